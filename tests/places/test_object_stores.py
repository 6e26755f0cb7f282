"""Backups in real object stores: S3 by moto, Google Cloud Storage by its emulator, Azure by Azurite."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.backup import conditional
from recovery.backup.make import Made
from recovery.backup.manifest import MANIFESTS, OBJECTS, RUNNING
from recovery.backup.repository import list_backups, prune
from recovery.backup.writer import Writer
from recovery.base.clock import SystemClock
from recovery.errors import (
    BackupDamagedError,
    BackupTargetError,
    ConfigurationError,
    NoBackupError,
    StaleDirectoryError,
    TakenOverError,
)
from recovery.places.bucket import BucketPlace
from recovery.places.opening import open_place
from recovery.planning.backups import KeepRule
from recovery.replication.process import Replication
from recovery.storage.hydration import Stop, hydrate_directory
from recovery.storage.scan import scan
from tests.backup import emulators
from tests.backup.emulators import BUCKET, Emulator
from tests.backup.standby.support import assert_follows, followed, promoted, writer
from tests.backup.support import assert_sound, back_up, bring_back, random_id, states, work
from tests.backup.test_commands import call
from tests.backup.test_incremental import fill
from tests.backup.test_incremental_faults import change
from tests.forks import run, run_code
from tests.shares import some
from tests.stores import ROOT, Driver

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


STORES = ["s3", "gs", "abfs"]
S3_BY_DEFAULT = pytest.mark.parametrize("emulator", some(STORES, "s3"), indirect=True)


@pytest.fixture(scope="module", params=STORES)
def emulator(request, servers) -> Emulator:
    """Each of the three."""
    return servers.of({"s3": emulators.moto, "gs": emulators.gcp, "abfs": emulators.azurite}[request.param])


@pytest.fixture
def place(emulator, request, monkeypatch) -> str:
    """A prefix of the test's own."""
    for name, value in emulator.environ.items():
        monkeypatch.setenv(name, value)
    return emulator.place(f"{request.node.originalname}/{abs(hash(request.node.name))}/sub folder")


@pytest.fixture
def store(make_store) -> Path:
    """Three partitions with five epochs."""
    return make_store(3, work, 5)


@S3_BY_DEFAULT
def test_back_and_forth(store, place, tmp_path):
    """The whole way by the commands, while a run writes: make, list, skip what is unchanged, prune, restore."""
    with Driver(store) as run:
        first = json.loads(call("backup", store, place, "--json"))
        second = json.loads(call("backup", store, place, "--json"))
        run.apply(900, {f"k{n}": '"later"' for n in range(40)})
        run.close(900)
        third = json.loads(call("backup", store, place, "--json", "--verify"))
    assert [(made["epoch"], made["stored"]) for made in (first, second, third)] == [(5, 3), (5, 0), (6, 3)]
    listed = json.loads(call("backup", "--list", place, "--json"))
    assert [each["id"] for each in listed["backups"]] == [made["id"] for made in (first, second, third)]
    pruned = json.loads(call("backup", "--prune", place, "--keep", 1, "--json"))
    assert (pruned["kept"], pruned["objects"]) == ([third["id"]], 3)
    call("restore", place, tmp_path / "new")
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == states(store)


@S3_BY_DEFAULT
def test_many_backups_are_listed_by_few_requests(store, place, monkeypatch):
    """One for the bundle and none for what it has, by sizes and times that the store lists; the listing is right."""
    monkeypatch.setattr("recovery.backup.bundle.FEW", 3)
    reads: list[str] = []
    read = BucketPlace.read

    def counted(target: BucketPlace, name: str) -> Iterator[bytes]:
        reads.append(name)
        return read(target, name)

    for _ in range(6):
        work(store, 1)
        back_up(store, open_place(place), incremental=True)
    monkeypatch.setattr(BucketPlace, "read", counted)
    found = list_backups(open_place(place))
    assert reads[0] == "manifests.bundle"
    assert sum(name.startswith(MANIFESTS) for name in reads) <= 3
    assert found == list_backups(open_place(place), bundled=False)
    call("drill", place)


@S3_BY_DEFAULT
def test_pages_are_fetched_when_they_are_read(store, place, tmp_path):
    """With range requests; an object that is gone is named."""
    work(store, 1, keys=3000)
    back_up(store, open_place(place))
    bring_back(open_place(place), tmp_path / "lazy", tmp_path, lazy_from=place)
    assert states(tmp_path / "lazy") == states(store)
    hydrate_directory(tmp_path / "lazy", Stop())
    assert_sound(tmp_path / "lazy")
    bring_back(open_place(place), tmp_path / "again", tmp_path, lazy_from=place)
    for entry in open_place(place).entries(OBJECTS):
        open_place(place).delete(entry.name)
    with pytest.raises(BackupDamagedError, match="is missing"):
        hydrate_directory(tmp_path / "again", Stop())


@S3_BY_DEFAULT
def test_a_chain(store, place, tmp_path, monkeypatch):
    """Links, a link that completes a level, and a pruning: what is restored is what a whole copy would be."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    fill(store)
    target = open_place(place)
    for _ in range(5):
        made = back_up(store, target, incremental=True)
        with Driver(store) as run:
            run.apply(run.epoch, {f"old{n}": str(run.epoch) for n in range(9)})
            run.close(run.epoch)
    assert [len(copy.objects) for copy in made.manifest.copies] == [3, 3, 3]
    made = back_up(store, target, incremental=True)
    prune(target, [KeepRule(count=1)], int(time.time() * 1000) + 3 * 86_400_000)
    assert {entry.name for entry in target.entries(OBJECTS)} == set(made.manifest.objects)
    assert not bring_back(target, tmp_path / "new", tmp_path).left_out
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == states(store)


@S3_BY_DEFAULT
def test_a_replica_in_a_service_that_stands_still(store, place, emulator, tmp_path):
    """Epochs are closed without it; when it answers again, one shipping covers what waits, and the chain restores."""
    pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")
    if emulator.kind == "gs":
        pytest.skip("this emulator of Google's service knows no conditional writes, which a lease needs")
    fill(store)
    [store_id] = {file.description.store_id for file in scan(store)}
    replication = Replication(store, store_id, place, tmp_path, clock=SystemClock())
    try:
        replication.ready(60)
        change(store)
        replication.closed()
        replication.wait(lambda: False)
        os.kill(emulator.process.pid, signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            for _ in range(4):
                change(store)
                replication.closed()
            assert replication.state.lag.epochs == 4
            assert time.monotonic() - began_s < 20
        finally:
            os.kill(emulator.process.pid, signal.SIGCONT)
        replication.wait(lambda: False)
        assert replication.state.lag.epochs == 0
        assert replication.state.shippings <= 3
    finally:
        replication.stop()
    bring_back(open_place(place), tmp_path / "new", tmp_path)
    assert_sound(tmp_path / "new")
    assert states(tmp_path / "new") == states(store)


@pytest.mark.parametrize("emulator", some(STORES, "s3"), indirect=True)
def test_a_standby(store, place, emulator, tmp_path):
    """It follows links, takes over, and goes on; the writer before is refused by a conditional write. Google's emulator
    knows none (tests/backup/test_lease.py has another one), so there a standby can be promoted only unfenced."""
    pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")
    fill(store)
    target, standby = open_place(place), tmp_path / "standby"
    with pytest.raises(NoBackupError):
        followed(place, standby)
    lease = None
    with pytest.raises(BackupTargetError) if emulator.kind == "gs" else contextlib.nullcontext():
        lease = writer(store, place)
    back_up(store, target, incremental=True)
    assert len(followed(place, standby).followed.whole_because) == 3
    with Driver(store) as run:
        run.apply(run.epoch, {f"old{n}": "x" for n in range(9)})
        run.close(run.epoch)
    made = back_up(store, target, incremental=True)
    assert followed(place, standby).followed.stored_bytes == made.stored_bytes
    assert_follows(standby, store)
    if lease is None:
        with pytest.raises(BackupTargetError):
            promoted(standby)
        assert promoted(standby, unfenced=True).term is None
        return
    done = promoted(standby)
    assert (done.before, done.term.term) == (lease.term, 2)
    with pytest.raises(TakenOverError):
        lease.check()
    with pytest.raises(TakenOverError):
        writer(store, place)
    assert writer(standby, place).term.term == 3


def test_objects_are_stored_as_they_are(place, emulator):
    """Names that end in .gz or .zst do not make pyarrow compress once more."""
    target = open_place(place)
    for name in ("manifests/a.json.gz", "objects/part-0/a.sqlite3.zst"):
        assert target.write(name, [b"some ", b"bytes"]) == 10
        assert [entry.size_bytes for entry in target.entries(name[: name.rindex("/") + 1])] == [10]
    assert b"".join(target.read("manifests/a.json.gz")) == b"some bytes"


@pytest.mark.parametrize("emulator", some(STORES, "s3"), indirect=True)
def test_an_upload_that_fails_leaves_nothing(place):
    """Leaving a stream by an exception would publish what was written so far."""
    target = open_place(place)

    def chunks() -> Iterator[bytes]:
        yield b"x" * 12_000_000
        raise KeyError("the disk of the copy failed")

    with pytest.raises(KeyError):
        target.write("objects/part-0/a.sqlite3.zst", chunks())
    assert target.entries(OBJECTS) == []


def test_a_manifest_that_is_being_written_does_not_count(store, place):
    """Azure shows an object as soon as it is opened; a backup is there when its manifest is whole."""
    made = back_up(store, open_place(place)).manifest
    target = open_place(place)
    [entry] = target.entries(MANIFESTS)
    data = b"".join(target.read(entry.name))
    target.delete(entry.name)
    seen = []

    def chunks() -> Iterator[bytes]:
        seen.append(list_backups(target).manifests)
        yield data[:-10]
        seen.append(list_backups(target).manifests)
        yield data[-10:]

    target.write(entry.name, chunks())
    assert seen == [(), ()]
    assert [m.id for m in list_backups(target).manifests] == [made.id]


@pytest.mark.parametrize("share", some([0.0, 0.9], 0.9))
def test_a_half_written_object_is_never_taken_for_good(store, place, emulator, tmp_path, share):
    """What a cut upload leaves is left out by its digest, and the backup before is restored."""
    target = open_place(place)
    back_up(store, target)
    work(store, 1)
    made = back_up(store, target).manifest
    name = made.copies[2].object_name
    path = target._path(name)
    with emulator.filesystem.open_input_stream(path, compression=None) as stream:
        data = stream.read()
    with emulator.filesystem.open_output_stream(path, compression=None) as stream:
        stream.write(data[: int(len(data) * share)])
    done = bring_back(target, tmp_path / "new", tmp_path)
    assert (done.plan.epoch, done.plan.lost_epochs, len(done.left_out)) == (5, 1, 1)
    assert states(tmp_path / "new") == {e: s for e, s in states(store).items() if e <= 5}


@pytest.mark.parametrize("emulator", some(STORES, "s3"), indirect=True)
def test_a_killed_backup_does_not_count(store, place, emulator, tmp_path):
    """SIGKILL while objects are on their way: what is there is the backup before, and pruning tidies up a day later."""
    first = back_up(store, open_place(place)).manifest
    work(store, 1)
    code = (
        "import os, signal, sys\n"
        "from recovery.backup import objects\n"
        "objects._Compressed.__iter__ = lambda self: iter(lambda: os.kill(os.getpid(), signal.SIGKILL), 1)\n"
        "from recovery.cli import main\n"
        "main(['backup', sys.argv[1], sys.argv[2]])\n"
    )
    assert run_code(code, store, place).returncode == -signal.SIGKILL
    target = open_place(place)
    assert [m.id for m in list_backups(target).manifests] == [first.id]
    assert len(target.entries(RUNNING)) == 1
    assert bring_back(target, tmp_path / "new", tmp_path).plan.epoch == 5
    assert back_up(store, target).stored == 3


def test_a_missing_bucket(store, place, emulator):
    """Said with its exit code, and nothing is made."""
    call("backup", store, place.replace(BUCKET, "nosuchbucket"), code=60)
    call("restore", place.replace(BUCKET, "nosuchbucket"), "new", code=61)


@pytest.mark.parametrize("client", some(["conditional", "missing", "without conditions"], "conditional"))
def test_a_bucket_has_one_writer(store, place, emulator, tmp_path, monkeypatch, client):
    """A bucket has one writer also without conditional writes, through the client of backups alone."""
    if client == "missing":
        monkeypatch.setattr(conditional, "BucketDocuments", _refuse)
    elif client == "without conditions":
        monkeypatch.setattr(conditional.Documents, "_refuses", lambda *_: False)
    made = [saved_in_bucket(store, place).manifest]
    other = Path(shutil.copytree(store, tmp_path / "other"))
    (other / "lease.json").unlink()
    for directory in (store, other):
        work(directory, 1)
    made.append(saved_in_bucket(store, place, incremental=True).manifest)
    for refused in (StaleDirectoryError, TakenOverError):
        takeover = refused is StaleDirectoryError
        with pytest.raises(refused):
            saved_in_bucket(other, place, takeover=takeover)
    made.append(saved_in_bucket(other, place, takeover=True, lose_epochs=True).manifest)
    with pytest.raises(TakenOverError):
        saved_in_bucket(store, place, incremental=True)
    found = list_backups(open_place(place))
    assert [each.id for each in found.manifests] == [each.id for each in made]
    assert [each.term for each in found.manifests] == [1, 1, 2]
    assert len(found.lines) == 2


def saved_in_bucket(
    directory: Path, place: str, *, incremental: bool = False, takeover: bool = False, lose_epochs: bool = False
) -> Made:
    target = open_place(place)
    by = Writer(
        directory, target, SystemClock(), random_id, place=place, takeover=takeover, lose_epochs=lose_epochs
    )  # fmt: skip
    return back_up(directory, target, writer=by, incremental=incremental)


def _refuse(*_: object) -> None:
    raise ConfigurationError("it cannot be used")


def test_credentials_are_never_shown(store, place, emulator, capfd):
    """Neither those in the address nor those of the environment, in texts, in JSON, and with --debug."""
    secrets = [emulators.AZURITE_KEY, "not-a-real-secret", "hunter2hunter2"]
    wrong = re.sub("://([^/]*@)?backups/", "://devstoreaccount1:hunter2hunter2@nosuchbucket/", place)
    refused = 11 if emulator.kind == "gs" else 60  # Google's store knows no password.
    for code, *arguments in (
        (0, "backup", str(store), place),
        (refused, "--debug", "backup", str(store), wrong),
        (refused, "--debug", "backup", str(store), wrong, "--json"),
    ):
        result = run(["-m", "recovery", *arguments], timeout_s=150)
        assert result.returncode == code
        assert result.stderr + result.stdout
        for secret in secrets:
            assert secret not in result.stdout + result.stderr


@pytest.mark.long
def test_a_service_that_dies_in_the_middle(store, tmp_path, monkeypatch):
    """The server is killed during an upload: a typed error in bounded time, and the directory is as it was."""
    before = states(store)
    with emulators.moto() as emulator:
        for name, value in emulator.environ.items():
            monkeypatch.setenv(name, value)
        target = open_place(emulator.place("p"), no_answer_s=2)
        back_up(store, target)
        work(store, 1)

        def die(event):
            emulator.process.kill()

        started = time.monotonic()
        with pytest.raises(BackupTargetError):
            back_up(store, target, observe=die)
        # The limit is 2 s for each call; one that nobody heeds would be a minute.
        assert time.monotonic() - started < 45
    assert {e: s for e, s in states(store).items() if e <= 5} == before


class TestUnreachable:
    """A service that refuses or says nothing ends the command with a typed error, in bounded time."""

    ADDRESSES = (
        "s3://b/p?endpoint_override={host}&scheme=http&region=us-east-1",
        "gs://anonymous@b/p?endpoint_override={host}&scheme=http",
        "abfs://account@b/p?blob_storage_authority={host}&dfs_storage_authority={host}&enable_tls=false",
    )
    CODE = (
        "import sys\n"
        "from recovery.places import opening\n"
        "opening.open_place.__kwdefaults__['no_answer_s'] = 1\n"
        "from recovery.cli import main\n"
        "main(['backup', *sys.argv[1:]])\n"
    )

    @pytest.mark.long
    @pytest.mark.parametrize("silent", [True, False], ids=["silent", "refusing"])
    def test_it_ends(self, store, tmp_path, silent):
        """The process ends too: no thread that waits for an answer holds it back."""
        environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
            "AZURE_STORAGE_KEY": emulators.AZURITE_KEY,
        }  # fmt: skip
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            if silent:
                listener.listen(64)
            host = f"127.0.0.1:{listener.getsockname()[1]}"
            started = time.monotonic()
            command = [sys.executable, "-c", self.CODE, "--json", "--list"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environ}
            processes = [subprocess.Popen([*command, each.format(host=host)], **pipes) for each in self.ADDRESSES]
            outputs = [process.communicate(timeout=120) for process in processes]
            # Three start together, which takes long on a slow machine; the limit that is not theirs is a minute.
            assert time.monotonic() - started < 55
        assert [process.returncode for process in processes] == [60, 60, 60], outputs
        assert {json.loads(out)["error"] for out, _ in outputs} == {"BackupTargetError"}


def test_the_usual_variables_name_emulators(servers):
    """STORAGE_EMULATOR_HOST for Google's store, as its tools have it."""
    host = servers.of(emulators.gcp).host
    target = open_place(f"gs://{BUCKET}/x", {"STORAGE_EMULATOR_HOST": f"http://{host}"})
    assert isinstance(target, BucketPlace)
    target.write("objects/a", [gzip.compress(b"")])
    assert len(target.entries(OBJECTS)) == 1


@pytest.mark.parametrize("variable", some(["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"], "AWS_ENDPOINT_URL_S3"))
def test_a_service_named_by_the_environment(store, servers, monkeypatch, variable):
    """As for the tools of AWS; the more special variable counts, and what the address says counts more."""
    emulator = servers.of(emulators.moto)
    for name, value in emulator.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, f"http://{emulator.host}/")
    place = f"s3://{BUCKET}/{variable}?region=us-east-1"
    made = json.loads(call("backup", store, place, "--json"))
    monkeypatch.setenv(variable, "http://127.0.0.1:1")
    listed = json.loads(call("backup", "--list", emulator.place(variable), "--json"))
    assert [each["id"] for each in listed["backups"]] == [made["id"]]


def test_few_objects_stay_open(tmp_path, monkeypatch):
    """However many parts of different objects a long process reads."""
    monkeypatch.setattr("recovery.places.bucket.OPEN_FILES", 3)
    pyarrow_fs = pytest.importorskip("pyarrow.fs")
    files = pyarrow_fs.SubTreeFileSystem(f"{tmp_path}", pyarrow_fs.LocalFileSystem())
    target = BucketPlace(files, "", "local")
    for number in range(9):
        (tmp_path / f"{number}").write_bytes(b"ab%d" % number)
        assert target.read_range(f"{number}", 1, 2) == b"b%d" % number
    assert target.read_range("0", 0, 2) == b"ab"
    assert list(target._files) == ["7", "8", "0"]
