"""Addresses of buckets, and where credentials are looked for."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from recovery.errors import ConfigurationError
from recovery.places.access import access_of, azure_access, gs_access, s3_access
from recovery.places.address import azure_place, parse_address
from recovery.places.opening import COPIES

KEYS = "[default]\naws_access_key_id = a\naws_secret_access_key = s\n[team]\naws_access_key_id = b\n"
KEYS += "aws_secret_access_key = t\naws_session_token = u\n"
CONFIG = "[default]\nregion = eu-west-1\n[profile team]\nendpoint_url = http://x:1\ns3 =\n  max = 5\n"
KEY = "AccountName=a;AccountKey=k"
CONFIG += "[profile sso]\nsso_session = corp\n"


@pytest.fixture
def home(tmp_path):
    """A home directory with the files of AWS's tools; the environment that names it."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(KEYS)
    (tmp_path / ".aws/config").write_text(CONFIG)
    return {"HOME": str(tmp_path)}


def test_s3_variables_come_before_files(home):
    given = {**home, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "v", "AWS_REGION": "r"}
    access = s3_access(given)
    assert (access.key_id, access.secret, access.token, access.region) == ("k", "v", None, "r")
    assert "AWS_ACCESS_KEY_ID" in access.looked_at


def test_s3_profiles(home):
    """Keys, region and endpoint; other files when the variables name them."""
    access = s3_access(home)
    assert (access.key_id, access.secret, access.region, access.endpoint) == ("a", "s", "eu-west-1", None)
    access = s3_access({**home, "AWS_PROFILE": "team"})
    assert (access.key_id, access.secret, access.token, access.endpoint) == ("b", "t", "u", "http://x:1")
    assert "profile 'team'" in access.looked_at
    other = Path(home["HOME"], "other")
    other.write_text(KEYS.replace("= a", "= z"))
    assert s3_access({**home, "AWS_SHARED_CREDENTIALS_FILE": str(other)}).key_id == "z"
    assert sorted(s3_access({**home, "AWS_PROFILE": "team"}).secrets) == ["t", "u"]


def test_s3_endpoints(home):
    """That of the service comes first."""
    both = {**home, "AWS_ENDPOINT_URL": "http://all:1", "AWS_ENDPOINT_URL_S3": "http://s3:2"}
    assert s3_access(both).endpoint == "http://s3:2"
    del both["AWS_ENDPOINT_URL_S3"]
    assert s3_access(both).endpoint == "http://all:1"


def test_s3_without_keys(home, tmp_path):
    """The sentence names what was looked at; a profile that cannot be read as keys says why; others are errors."""
    access = s3_access({**home, "AWS_PROFILE": "sso"})
    assert "sso_session" in access.unread
    assert access.key_id is None
    (tmp_path / "empty").mkdir()
    access = s3_access({"HOME": str(tmp_path / "empty")})
    assert access.unread is None
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", ".aws/credentials", ".aws/config", "'default'"):
        assert name in access.looked_at
    with pytest.raises(ConfigurationError, match="no profile 'none'"):
        s3_access({**home, "AWS_PROFILE": "none"})
    assert s3_access({**home, "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}).key_id is None
    (tmp_path / ".aws/credentials").write_text("aws_secret_access_key = not in a section")
    with pytest.raises(ConfigurationError, match="cannot be read") as raised:
        s3_access(home)
    assert "not in a section" not in str(raised.value)


def test_azure_variables():
    """Either name of the account and of its key; a token only without a key."""
    for account, key in (("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY"),
                         ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY")):  # fmt: skip
        access = azure_access({account: "acc", key: "k", "AZURE_STORAGE_SAS_TOKEN": "t"}, None)
        assert (access.account, access.secret, access.token) == ("acc", "k", None)
        assert key in access.looked_at
    access = azure_access({"AZURE_STORAGE_ACCOUNT": "acc", "AZURE_STORAGE_SAS_TOKEN": "t"}, "named")
    assert (access.account, access.secret, access.token) == ("named", None, "t")
    looked_at = azure_access({}, None).looked_at
    for name in ("CONNECTION_STRING", "KEY", "ACCOUNT_KEY", "SAS_TOKEN"):
        assert f"AZURE_STORAGE_{name}" in looked_at


@pytest.mark.parametrize(
    ("text", "account", "key", "token", "endpoint"),
    [
        (f"DefaultEndpointsProtocol=https;{KEY}=;EndpointSuffix=core.windows.net", "a", "k=", None, None),
        (f"{KEY};EndpointSuffix=core.chinacloudapi.cn", "a", "k", None, "https://a.blob.core.chinacloudapi.cn"),
        ("BlobEndpoint=https://a.example/;SharedAccessSignature=v=1&s=2", None, None, "v=1&s=2", "https://a.example"),
        (f"{KEY};BlobEndpoint=http://127.0.0.1:1/a;", "a", "k", None, "http://127.0.0.1:1/a"),
    ],
)  # fmt: skip
def test_azure_connection_strings(text, account, key, token, endpoint):
    """They come before the other variables."""
    access = azure_access({"AZURE_STORAGE_CONNECTION_STRING": text, "AZURE_STORAGE_KEY": "other"}, None)
    assert (access.account, access.secret, access.token, access.endpoint) == (account, key, token, endpoint)


def test_azure_s_emulator():
    access = azure_access({"AZURE_STORAGE_CONNECTION_STRING": "UseDevelopmentStorage=true"}, None)
    assert (access.account, access.endpoint) == ("devstoreaccount1", "http://127.0.0.1:10000/devstoreaccount1")


def test_invalid_connection_strings():
    """The error does not repeat them."""
    for text in ("secret", "AccountKey=secret", "AccountName=a;secret"):
        with pytest.raises(ConfigurationError, match="not a connection string") as raised:
            azure_access({"AZURE_STORAGE_CONNECTION_STRING": text}, None)
        assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="is of account 'b'"):
        azure_access({"AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;AccountKey=k"}, "b")


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("azure://c/p/q", ("c", None, "p/q")),
        ("az://c", ("c", None, "")),
        ("abfs://c@a.dfs.core.windows.net/p", ("c", "a", "p")),
        ("abfss://a.blob.core.windows.net/c/p%20q", ("c", "a", "p q")),
        ("abfs://a.dfs.core.windows.net/c/p", ("c", "a", "p")),
        ("abfs://a@c/p", ("c", "a", "p")),
    ],
)
def test_azure_addresses(address, place):
    assert azure_place(urlsplit(address)) == place


def test_google(tmp_path):
    """A key file, the application default credentials, or an emulator."""
    default = tmp_path / ".config/gcloud/application_default_credentials.json"
    found = gs_access({"HOME": str(tmp_path)})
    assert found.key_file is None
    assert all(text in found.looked_at for text in ("GOOGLE_APPLICATION_CREDENTIALS", str(default)))
    default.parent.mkdir(parents=True)
    default.write_text("{}")
    assert gs_access({"HOME": str(tmp_path)}).key_file == str(default)
    assert gs_access({"HOME": "/none", "CLOUDSDK_CONFIG": str(default.parent)}).key_file == str(default)
    assert gs_access({"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": "/k.json"}).key_file == "/k.json"
    assert gs_access({"HOME": str(tmp_path), "GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}).key_file is None
    access = gs_access({"HOME": str(tmp_path), "STORAGE_EMULATOR_HOST": "localhost:9023"})
    assert (access.endpoint, access.anonymous, access.key_file) == ("http://localhost:9023", True, None)


KEYS_OF_S3 = {
    "HOME": "/nowhere",
    "AWS_ACCESS_KEY_ID": "k",
    "AWS_SECRET_ACCESS_KEY": "v",
    "AWS_ENDPOINT_URL": "http://e:1",
}


@pytest.mark.parametrize(
    ("address", "environ", "found"),
    [
        ("s3://b/p", KEYS_OF_S3, ("k", "v", "http://e:1", False)),
        ("s3://b/p?endpoint=https://x", KEYS_OF_S3, ("k", "v", "https://x", False)),
        ("s3://b/p?endpoint_override=x:2&scheme=http", KEYS_OF_S3, ("k", "v", "http://x:2", False)),
        ("s3://b/p?endpoint_override=x:2", KEYS_OF_S3, ("k", "v", "https://x:2", False)),
        ("s3://a:s%2Ft@b/p", KEYS_OF_S3, ("a", "s/t", "http://e:1", False)),
        ("gs://b/p", {"HOME": "/nowhere"}, (None, None, None, False)),
        ("gs://anonymous@b/p", {"HOME": "/nowhere"}, (None, None, None, True)),
        ("gs://b/p", {"STORAGE_EMULATOR_HOST": "h:3"}, (None, None, "http://h:3", True)),
        ("abfs://acc:key%3D@c/p", {}, (None, "key=", None, False)),
        ("az://c/p?account=acc&endpoint=http://h:4/acc", {}, (None, None, "http://h:4/acc", False)),
        ("abfs://acc@c/p?blob_storage_authority=h:5&enable_tls=false", {}, (None, None, "http://h:5/acc", False)),
        ("az://c/p?blob_storage_authority=h:5", {"AZURE_STORAGE_ACCOUNT": "e"}, (None, None, "https://h:5/e", False)),
        ("abfs://acc@c/p?blob_storage_authority=.blob.x", {}, (None, None, "https://acc.blob.x", False)),
    ],
)  # fmt: skip
def test_an_address_comes_before_the_environment(address, environ, found):
    """Its keys, its server, and the way to write that; for both clients."""
    access = access_of(parse_address(address, COPIES), environ)
    assert (access.key_id, access.secret, access.endpoint, access.anonymous) == found
