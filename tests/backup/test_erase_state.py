"""`recovery erase` and operational state in a bucket: what the bucket keeps of documents that are gone."""

from __future__ import annotations

import json

import pytest

from recovery.base.clock import SystemClock
from recovery.errors import ErasureIncompleteError, StateNotFoundError
from recovery.operational.backends.open import VARIABLE
from recovery.operational.steps.step_edits import audit
from recovery.places.versions import BucketVersions
from recovery.storage.store import Store
from tests.backup.buckets import Bucket, locked_bucket, versioned_bucket
from tests.cli.test_erase import command, erase
from tests.operational import emulators as stores
from tests.operational.person import PERSON, SECRET, history

pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")


def state_in(bucket: Bucket, monkeypatch) -> str:
    """Let operational state be in a bucket; its URI."""
    port = bucket.server.parameters.partition("127.0.0.1:")[2].partition("&")[0]
    uri = f"s3://{bucket.name}/state?endpoint=http://127.0.0.1:{port}&region=us-east-1"
    monkeypatch.setenv(VARIABLE, uri)
    return uri


def people(store) -> None:
    """State of a person and of another one, each written twice; of the person, more that was removed; and state whose
    id is too long for a path."""
    for number in range(2):
        for name in ("people/ada", "people/gone", f"people/{'x' * 200}"):
            assert command("state", "set", store, name, f'"{SECRET} {number}"', "--yes").exit_code == 0
        assert command("state", "set", store, "others/bob", f'"bob {number}"', "--yes").exit_code == 0
    assert command("state", "clear", store, "people/gone", "--yes").exit_code == 0


def names_in(bucket: Bucket) -> list[str]:
    """The names of all versions, and of what stands for removed objects."""
    found = bucket.client.list_object_versions(Bucket=bucket.name)
    return [each["Key"] for kind in ("Versions", "DeleteMarkers") for each in found.get(kind, [])]


def test_older_versions_are_erased(reached, make_store, monkeypatch):
    """Of the documents that are selected and of no others; not even their ids are left."""
    bucket, store = versioned_bucket(reached, "state-versions"), make_store(2)
    state_in(bucket, monkeypatch)
    people(store)
    looked = json.loads(erase(store, "--state", "people/*", "--dry-run", "--json").stdout)
    [copy] = looked["copies"]
    assert looked["states"] == 3
    assert len(copy["held"]) == len(set(copy["held"])) == 4
    assert all("/state.json?versionId=" in name for name in copy["held"])
    done = erase(store, "--state", "people/*", "--yes", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["complete"], said["copies"][0]["left"], said["copies"][0]["unseen"]) == (True, [], "")
    assert len(said["copies"][0]["held"]) == 7
    assert "people" not in done.stdout
    assert bucket.traces(SECRET) == []
    assert [name for name in names_in(bucket) if "people" in name] == []
    assert len(bucket.traces("bob 0")) == len(bucket.traces("bob 1")) == 1
    again = erase(store, "--state", "people/*", "--yes")
    assert again.exit_code == StateNotFoundError.exit_code


def test_older_versions_of_records_lose_the_key(reached, make_store, monkeypatch):
    """Older versions of a record lose the key, also if the record lost it while nobody looked at versions."""
    bucket, store = versioned_bucket(reached, "record-versions"), make_store(2)
    history(store, 1, executions=1)
    state_in(bucket, monkeypatch)
    record = audit(Store(store), SystemClock()).begin("flow", "flow")
    record.end(ValueError(f"step 'count', key {PERSON!r}: no"))
    audit(Store(store), SystemClock()).begin("flow", "flow").end(ValueError("step 'count', key 'k1': no"))
    others = len(bucket.traces("'k1'"))
    with monkeypatch.context() as unseeing:
        unseeing.setattr("recovery.backup.erase_state.StateVersions.__bool__", lambda self: False)
        assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    assert bucket.traces(PERSON)
    done = erase(store, "--key", PERSON, "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert bucket.traces(PERSON) == []
    assert len(bucket.traces("'k1'")) == others


def test_a_name_without_versions_is_erased(reached, make_store, monkeypatch):
    """A rule of the bucket has removed the versions of a removed document, whose id is still there."""
    bucket, store = versioned_bucket(reached, "state-names"), make_store(2)
    state_in(bucket, monkeypatch)
    assert command("state", "set", store, "people/ada", "1", "--yes").exit_code == 0
    [version] = bucket.client.list_object_versions(Bucket=bucket.name)["Versions"]
    bucket.client.delete_object(Bucket=bucket.name, Key=version["Key"])
    bucket.client.delete_object(Bucket=bucket.name, Key=version["Key"], VersionId=version["VersionId"])
    looked = json.loads(erase(store, "--state", "people/*", "--dry-run", "--json").stdout)
    assert [name.partition("?")[0] for name in looked["copies"][0]["held"]] == ["people/ada/state.json"]
    assert names_in(bucket) == ["state/people/ada/state.json"]
    done = erase(store, "--state", "people/*", "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert "people" not in done.stdout
    assert names_in(bucket) == []
    assert erase(store, "--state", "people/*", "--yes").exit_code == StateNotFoundError.exit_code


def test_a_version_is_read_once(reached, make_store, monkeypatch):
    """The whole command reads each version once: an active run adds a version of its record with each heartbeat."""
    bucket, store = versioned_bucket(reached, "state-reads"), make_store(2)
    history(store, 1, executions=1)
    state_in(bucket, monkeypatch)
    for _ in range(3):
        audit(Store(store), SystemClock()).begin("flow", "flow").end(ValueError(f"step 'count', key {PERSON!r}: no"))
    read, whole = [], BucketVersions.read
    monkeypatch.setattr(BucketVersions, "read", lambda self, older: read.append(older) or whole(self, older))
    done = erase(store, "--key", PERSON, "--yes")
    assert done.exit_code == 0, done.output
    assert len(read) == len(set(read)) >= 3


def test_a_lock_is_reported(reached, make_store, monkeypatch):
    """`erase` and its dry run report a lock with its date, also of an object that is to be removed. The object stays
    removed."""
    bucket, store = locked_bucket(reached, "state-locks", days=2, mode="GOVERNANCE"), make_store(2)
    # The client of documents does not write to a bucket that locks each object by itself.
    bucket.client.put_object_lock_configuration(
        Bucket=bucket.name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"}
    )
    state_in(bucket, monkeypatch)
    people(store)
    assert command("state", "set", store, "once/eve", '"written once"', "--yes").exit_code == 0
    bucket.lock(days=2, mode="GOVERNANCE")
    looked = erase(store, "--state", "once/*", "--dry-run", "--json")
    [copy] = json.loads(looked.stdout)["copies"]
    assert (copy["held"], copy["left"]) == ([], [])
    assert copy["until"]
    assert "the bucket keeps" in erase(store, "--state", "once/*", "--dry-run").stdout
    done = erase(store, "--state", "people/*", "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    [copy] = json.loads(done.stdout)["copies"]
    assert copy["until"]
    assert "governance" in copy["why"]
    locked = {name.rpartition("?")[2] for name in bucket.traces(SECRET)}
    assert locked
    assert locked <= {name.rpartition("=")[2] for name in copy["left"]}
    assert command("state", "get", store, "people/ada").exit_code == StateNotFoundError.exit_code


@pytest.mark.parametrize("kind", ["gs", pytest.param("azure", marks=pytest.mark.long)])
def test_what_other_buckets_keep_is_said(make_store, tmp_path, servers, monkeypatch, kind):
    """No client can see what these buckets keep: the command does not call itself complete."""
    with stores.store(kind, tmp_path, servers) as server:
        monkeypatch.setenv(VARIABLE, server.place("state"))
        store = make_store(2)
        people(store)
        done = erase(store, "--state", "people/*", "--yes", "--json")
        assert done.exit_code == ErasureIncompleteError.exit_code, done.output
        said = json.loads(done.stdout)
        assert (said["complete"], said["states"], said["copies"][0]["left"]) == (False, 3, [])
        assert "soft-deleted" in said["copies"][0]["unseen"]
        again = erase(store, "--state", "people/*", "--yes")
        assert again.exit_code == StateNotFoundError.exit_code
        assert "(not looked at: what the" in again.stderr


def test_files_keep_no_versions(make_store, tmp_path, monkeypatch):
    """Of operational state in files, the command says nothing of versions."""
    (tmp_path / "state").mkdir()
    monkeypatch.setenv(VARIABLE, f"file://{tmp_path / 'state'}")
    store = make_store(2)
    people(store)
    done = erase(store, "--state", "people/*", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)["copies"]) == (0, [])
    assert not any(SECRET in each.read_text() for each in (tmp_path / "state").rglob("state.json"))
