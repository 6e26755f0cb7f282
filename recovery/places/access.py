"""How buckets are reached: the credentials that the vendors' own tools would use for them.

Backups and operational state reach the same stores through different clients. Both clients ask this module, so that an
address and an environment that work for one client work for the other client. Without credentials, the client uses the
machine's own identity.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from recovery.base.untrusted_paths import read_named
from recovery.errors import ConfigurationError
from recovery.places.address import PlaceAddress

S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
S3_IDENTITIES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"
AZURE_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
AZURE_KEYS = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")
AZURE_TOKENS = ("AZURE_STORAGE_SAS_TOKEN",)
GS_KEYS = (
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
)  # fmt: skip
# The account of Azure's emulator is the same for everybody, and so is its key, which its documentation prints.
EMULATOR = {
    "AccountName": "devstoreaccount1",
    "AccountKey": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
    "BlobEndpoint": "http://127.0.0.1:10000/devstoreaccount1",
}
_BY_OTHERS = ("role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file")


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a bucket: what was given, and where credentials were looked for.

    endpoint: the URL of another server than the vendor's. key_id, secret, token: of S3; of Azure, `secret` is the
    account's key and `token` a SAS token. unread: why keys of a profile cannot be used. looked_at: a sentence that
    names the variables and files.
    """

    looked_at: str
    endpoint: str | None = None
    region: str | None = None
    account: str | None = None
    key_id: str | None = None
    secret: str | None = None
    token: str | None = None
    key_file: str | None = None
    anonymous: bool = False
    unread: str | None = None

    @property
    def secrets(self) -> list[str]:
        """The texts that must not be shown."""
        return [each for each in (self.secret, self.token) if each]


def access_of(address: PlaceAddress, environ: Mapping[str, str]) -> Access:
    """Return how to reach a bucket: what the address says comes before the environment. Raises ConfigurationError."""
    given = address.settings
    if address.kind == "s3":
        access = s3_access(environ)
    elif address.kind == "azure":
        access = azure_access(environ, address.account)
    else:
        access = gs_access(environ)
    if address.user == "anonymous" and address.kind == "gs":
        access = replace(access, anonymous=True)
    elif address.user or address.password:
        access = replace(
            access, key_id=address.user, secret=address.password or "", token=None, unread=None,
            looked_at="Its credentials are those of the address.",
        )  # fmt: skip
    endpoint = _given_endpoint(address, access.account or "") or access.endpoint
    if endpoint is not None and ("scheme" in given or "://" not in endpoint):
        scheme, authority = endpoint_of(endpoint)
        endpoint = f"{given.get('scheme') or scheme}://{authority}"
    return replace(access, endpoint=endpoint, region=given.get("region") or access.region)


def _given_endpoint(address: PlaceAddress, account: str) -> str | None:
    """Return the URL of the server that an address names, None if it names none. account: of Azure."""
    given = address.settings
    authority = given.get("blob_storage_authority")
    if "endpoint" in given or authority is None:
        return given.get("endpoint") or given.get("endpoint_override")
    scheme = "http" if given.get("enable_tls") == "false" else "https"
    # pyarrow puts the account before an authority that begins with a dot, and behind any other.
    return f"{scheme}://{account}{authority}" if authority.startswith(".") else f"{scheme}://{authority}/{account}"


def s3_access(environ: Mapping[str, str]) -> Access:
    """Return what the environment and the files of AWS's tools say. Raises ConfigurationError for a profile that does
    not exist."""
    profile, files = _profile(environ)
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or profile.get("endpoint_url")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile.get("region")
    key_id, secret = (environ.get(name) for name in S3_KEYS)
    token = environ.get("AWS_SESSION_TOKEN")
    unread = None
    if key_id and secret:
        looked_at = f"Its credentials are those of {S3_KEYS[0]}."
    elif any(environ.get(name) for name in S3_IDENTITIES):
        key_id = secret = token = None
        looked_at = f"Its credentials are those that {_named(environ, S3_IDENTITIES)} leads to."
    elif profile.get("aws_access_key_id") and profile.get("aws_secret_access_key"):
        key_id, secret = profile["aws_access_key_id"], profile["aws_secret_access_key"]
        token = profile.get("aws_session_token")
        looked_at = f"Its credentials are those of {files}."
    else:
        key_id = secret = token = None
        found = [name for name in _BY_OTHERS if name in profile]
        unread = f"{files} gets its credentials by {', '.join(found)}" if found else None
        looked_at = f"No credentials are in {' and '.join(S3_KEYS)}, nor as keys in {files}; the rest is the machine's."
    return Access(looked_at, endpoint=endpoint, region=region, key_id=key_id, secret=secret, token=token, unread=unread)


def azure_access(environ: Mapping[str, str], account: str | None) -> Access:
    """Return the access to Azure; `account` is the address's. Raises ConfigurationError for a connection string that
    cannot be read or is of another account."""
    text = environ.get(CONNECTION_STRING)
    if text:
        found = _connection(text)
        if account and account != found.get("AccountName", account):
            raise ConfigurationError(
                f"the address is of account {account!r:.80}, and {CONNECTION_STRING} of {found['AccountName']!r:.80}",
                remedy="Name one account: leave it out of the address, or unset the variable.",
            )
        return Access(
            f"Its credentials are those of {CONNECTION_STRING}.",
            endpoint=_endpoint(found),
            account=found.get("AccountName") or account or _first(environ, AZURE_ACCOUNTS),
            secret=found.get("AccountKey"),
            token=found.get("SharedAccessSignature"),
        )
    key, token = _first(environ, AZURE_KEYS), _first(environ, AZURE_TOKENS)
    every = (CONNECTION_STRING, *AZURE_KEYS, *AZURE_TOKENS)
    given = _named(environ, AZURE_KEYS if key else AZURE_TOKENS)
    looked_at = (
        f"Its credentials are those of {given}."
        if key or token
        else f"None of {', '.join(every)} is set; the rest is the machine's."
    )
    return Access(
        looked_at, account=account or _first(environ, AZURE_ACCOUNTS), secret=key, token=None if key else token
    )


def gs_access(environ: Mapping[str, str]) -> Access:
    """Return the access to Google Cloud Storage."""
    emulator = environ.get("STORAGE_EMULATOR_HOST")
    if emulator:
        endpoint = emulator.rstrip("/") if "://" in emulator else f"http://{emulator.rstrip('/')}"
        return Access("STORAGE_EMULATOR_HOST names an emulator.", endpoint=endpoint, anonymous=True)
    default = _home(environ) / ".config" / "gcloud"
    file = Path(environ.get("CLOUDSDK_CONFIG") or default) / "application_default_credentials.json"
    given = _named(environ, GS_KEYS)
    if given:
        return Access(f"Its credentials are those of {given}.", key_file=environ.get(GS_KEYS[0]) or None)
    if os.access(file, os.R_OK):
        return Access(f"Its credentials are those of {file}.", key_file=str(file))
    return Access(f"None of {', '.join(GS_KEYS)} is set, and there is no {file}; the rest is the machine's.")


def endpoint_of(url: str) -> tuple[str, str]:
    """Return scheme and authority of an endpoint: of a URL, or of HOST:PORT, which means https."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return parts.scheme, parts.netloc


def _profile(environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the settings of the profile that counts, and its name with its files."""
    named = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    folder = _home(environ) / ".aws"
    keys = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials").expanduser()
    config = Path(environ.get("AWS_CONFIG_FILE") or folder / "config").expanduser()
    sections = [(config, name if name == "default" else f"profile {name}"), (keys, name)]
    found = [section for file, title in sections if (section := _section(file, title)) is not None]
    shown = f"the profile {name!r:.80} of {keys} and {config}"
    if named and not found:
        raise ConfigurationError(
            f"there is no profile {named!r:.80}",
            cause=f"AWS_PROFILE names it, and neither {keys} nor {config} has it.",
            remedy="Correct the name, or unset AWS_PROFILE.",
        )
    merged: dict[str, str] = {}
    for section in found:
        merged |= section
    return merged, shown


MOST_BYTES = 16 << 20
"""Of a file of credentials or settings."""


def _section(file: Path, title: str) -> dict[str, str] | None:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(read_named(file, MOST_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # A container's user may not enter the home directory of another one.
        return None
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        kind = error.strerror if isinstance(error, OSError) else type(error).__name__
        # The parser's own text would repeat a line of the file.
        raise ConfigurationError(
            f"it cannot be read: {kind}",
            path=file,
            cause="AWS's tools keep profiles there.",
            remedy="Correct the file.",
        ) from None
    return dict(parser[title]) if parser.has_section(title) else None


def _connection(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.strip().strip(";").split(";")]
    found = {name.strip(): value for name, equals, value in pairs if equals}
    if found.get("UseDevelopmentStorage", "").lower() == "true":
        return EMULATOR
    if len(found) < len(pairs) or not found.keys() & {"AccountName", "BlobEndpoint"}:
        raise ConfigurationError(
            f"{CONNECTION_STRING} is not a connection string",
            cause="The text has neither AccountName nor BlobEndpoint, or a part without a =.",
            remedy="Copy it from `az storage account show-connection-string`.",
        )
    return found


def _endpoint(found: Mapping[str, str]) -> str | None:
    """Return the endpoint of a connection string, None if it is Azure's own."""
    if "BlobEndpoint" in found:
        return found["BlobEndpoint"].rstrip("/")
    suffix = found.get("EndpointSuffix", "core.windows.net")
    scheme = found.get("DefaultEndpointsProtocol", "https")
    default = (scheme, suffix) == ("https", "core.windows.net")
    return None if default else f"{scheme}://{found['AccountName']}.blob.{suffix}"


def _home(environ: Mapping[str, str]) -> Path:
    try:
        return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:
        # This user is in no list of users.
        return Path("/")


def _first(environ: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _named(environ: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((name for name in names if environ.get(name)), None)
