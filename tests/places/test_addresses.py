"""One address and one environment for backups and for operational state."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from recovery import BackupTargetError, ConfigurationError, StateBackendError, StateManager
from recovery.operational.backends.open import STATE
from recovery.places.address import parse_address
from recovery.places.opening import open_place
from tests.backup import emulators
from tests.operational import emulators as stores
from tests.operational.support import IMPATIENT

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No credentials but those of the test."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "STORAGE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def s3(servers):
    """moto's server."""
    pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")
    return servers.of(emulators.moto)


@pytest.fixture
def azurite(servers):
    """Azurite."""
    pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")
    return servers.of(emulators.azurite)


def check(address: str) -> None:
    """Write and read with both clients."""
    target = open_place(address)
    assert target.write("objects/a.gz", [b"abc"]) == 3
    assert b"".join(target.read("objects/a.gz")) == b"abc"
    state = StateManager(backend=address)
    state.set_hwm("orders", 5)
    assert StateManager(backend=address).get_hwm("orders") == 5


def profile(home: Path, text: str) -> None:
    """Write a file as AWS's tools keep it."""
    (home / ".aws").mkdir()
    (home / ".aws/credentials").write_text(text)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_s3_by_a_profile(s3, tmp_path, monkeypatch, variable):
    """With keys in AWS's file, and an endpoint without TLS in a variable."""
    profile(
        tmp_path, "[team]\naws_access_key_id = key\naws_secret_access_key = not-a-real-secret\nregion = us-east-1\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "team")
    monkeypatch.setenv(variable, f"http://{s3.host}")
    check(f"s3://{emulators.BUCKET}/{variable}")


def test_s3_with_parameters(s3, monkeypatch):
    """Those of either client."""
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    for number, query in enumerate((f"endpoint=http://{s3.host}", f"endpoint_override={s3.host}&scheme=http")):
        check(f"s3://{emulators.BUCKET}/by-query-{number}?region=us-east-1&{query}")


@pytest.mark.parametrize("scheme", ["az", "azure", "abfs", "abfss"])
def test_azure_by_a_connection_string(azurite, monkeypatch, scheme):
    account = emulators.AZURITE_ACCOUNT
    text = f"AccountName={account};AccountKey={emulators.AZURITE_KEY};BlobEndpoint=http://{azurite.host}/{account}"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    check(f"{scheme}://{emulators.BUCKET}/{scheme}")


@pytest.mark.parametrize("key", ["AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"])
def test_azure_by_a_key(azurite, monkeypatch, key):
    monkeypatch.setenv(key, emulators.AZURITE_KEY)
    query = f"endpoint=http://{azurite.host}/{emulators.AZURITE_ACCOUNT}&account={emulators.AZURITE_ACCOUNT}"
    check(f"azure://{emulators.BUCKET}/{key}?{query}")


def test_google_s_emulator(monkeypatch, servers):
    """By the variable that names it, or by the address; no credentials are needed."""
    url = json.loads(servers.of(stores.gs).environ["GOOGLE_SERVICE_ACCOUNT_KEY"])["gcs_base_url"]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    state = StateManager(backend=f"gcs://{emulators.BUCKET}/x")
    state.set_hwm("orders", 5)
    assert StateManager(backend=f"gs://{emulators.BUCKET}/x?endpoint={url}").get_hwm("orders") == 5


def test_errors_name_what_was_looked_at(s3, monkeypatch):
    """Of both clients, without the secrets."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    address = f"s3://{emulators.BUCKET}/x?region=us-east-1"
    with pytest.raises(BackupTargetError, match=r"AWS_ACCESS_KEY_ID.*\.aws/credentials"):
        open_place(address, no_answer_s=4).write("a", [b"a"])
    with pytest.raises(StateBackendError, match=r"AWS_ACCESS_KEY_ID.*\.aws/credentials"):
        StateManager(backend=f"{address}&timeout=2s", retry=IMPATIENT).get_hwm("orders")


def test_profiles_without_keys_are_refused_for_state(s3, tmp_path, monkeypatch):
    """Its client reads keys only; the error says how to get them."""
    profile(tmp_path, "[corp]\nsso_session = corp\n")
    monkeypatch.setenv("AWS_PROFILE", "corp")
    with pytest.raises(ConfigurationError, match="sso_session") as raised:
        StateManager(backend=f"s3://{emulators.BUCKET}/x")
    assert "export-credentials" in raised.value.remedy


def test_one_place_has_one_name():
    """Whatever scheme it is written with; an account is not taken for credentials, a key is."""
    addresses = "azure://c/p", "az://c/p", "abfs://c/p", "abfss://c@acc.dfs.core.windows.net/p"
    assert {parse_address(each, STATE).location for each in addresses} == {"azure://c/p"}
    assert parse_address(addresses[-1], STATE).account == "acc"
    assert parse_address("gcs://b/p", STATE).location == "gs://b/p"
    with pytest.raises(ConfigurationError, match="credentials do not belong"):
        parse_address("abfs://acc:key@c/p", STATE)


@pytest.mark.parametrize("limit", ["inf", "nan", "1e300", "soon"])
def test_a_limit_that_is_no_time_is_refused(limit):
    """Python and pyarrow cannot convert each of them, for different reasons."""
    with pytest.raises(ConfigurationError):
        open_place(f"gs://bucket/path?retry_limit_seconds={limit}")
