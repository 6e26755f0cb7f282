"""Lazy restores: usable before they are fetched, exact, safe to kill, and ordinary files in the end."""

from __future__ import annotations

import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import threading
from pathlib import Path

import apsw
import pytest

from recovery.backup.manifest import Manifest, encode, manifest_name
from recovery.backup.repository import list_backups
from recovery.base.faults import VARIABLE
from recovery.errors import (
    AlreadyInitializedError,
    BackupDamagedError,
    BackupTargetError,
    ConfigurationError,
    CorruptPartitionError,
    HydratingError,
    RecoveryError,
    StorageError,
)
from recovery.places import mounted
from recovery.places.directory import DirectoryPlace
from recovery.places.frames import FRAME_BYTES, FrameIndex, digest_of, encode_index, pack
from recovery.places.opening import lasting_place
from recovery.planning.resume import plan_resume
from recovery.storage import hydration
from recovery.storage.hydration import Stop, hydrate_directory, hydrating
from recovery.storage.lazy import pages as pages_module
from recovery.storage.lazy.names import lazy_path
from recovery.storage.lazy.pages import Pages
from recovery.storage.moving import arriving
from recovery.storage.moving.blocks import BLOCK_BYTES
from recovery.storage.moving.blocks import digest_of as block_digest
from recovery.storage.scan import scan
from recovery.storage.sqlite.file.connections import connect
from tests.backup.lazy_run import changes, close_epochs, state_of
from tests.backup.support import assert_sound, back_up, bring_back, states, work
from tests.backup.test_commands import call
from tests.forks import Forked, run
from tests.shares import some
from tests.stores import ROOT, Driver, alter, paths_of, problems, state_at

COUNT = 2
POINTS = ("2.fetched:1", "2.written:3", "2.synced:1", "3:1", "4.linked:1", "4.whole:1", "4.removed:1")
HYDRATE = """
import sys
from pathlib import Path
from recovery.storage.hydration import Stop, hydrate_directory
hydrate_directory(Path(sys.argv[1]), Stop())
"""
MOST_KILLS = int(os.environ.get("RECOVERY_TEST_LAZY_KILLS", "12"))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A place with a backup of epoch 4, of two partitions of several frames."""
    from recovery.storage.initialize import init_partitions

    root = tmp_path_factory.mktemp("lazy")
    init_partitions(root / "db", COUNT)
    close_epochs(root / "db", 4)
    back_up(root / "db", root / "backups")
    return root / "backups"


@pytest.fixture
def lazy(place, tmp_path) -> Path:
    """A directory that was restored from it, with nothing else read yet."""
    return begin(place, tmp_path / "lazy")


def begin(place: Path, directory: Path, **options: object) -> Path:
    """Restore lazily."""
    bring_back(place, directory, directory.parent, lazy_from=str(place), **options)
    return directory


def hydrate(directory: Path) -> None:
    """Fetch the rest."""
    hydrate_directory(directory, Stop())
    assert hydrating(directory) == []
    assert lazy_names(directory) == []


def lazy_names(directory: Path) -> list[str]:
    """The names of the files that a lazy restore has besides an ordinary one."""
    return [path.name for path in directory.iterdir() if "lazy" in path.name]


def there(directory: Path) -> float:
    """The share of the bytes that is there."""
    found = hydrating(directory)
    return sum(each.there_bytes for each in found) / sum(each.total_bytes for each in found)


def newest(directory: Path) -> int:
    """The epoch after which a run would resume."""
    return plan_resume(scan(directory)).resume_epoch - 1


def copied(place: Path, directory: Path) -> Path:
    """A place of the test's own, with the same backup."""
    return Path(shutil.copytree(place, directory))


def restart_machine(directory: Path) -> None:
    """Let the marks be those of an earlier start of the machine."""
    for path in paths_of(directory):
        if lazy_path(path).exists():
            with lazy_path(path).open("r+b") as side:
                side.seek(16)
                side.write(b"another start")


def test_usable_before_it_is_fetched(lazy):
    """What is read is what was stored, and only that is fetched. In the end the files are ordinary ones."""
    assert there(lazy) < 0.6
    assert newest(lazy) == 4
    with Driver(lazy) as run:
        before = there(lazy)
        assert run.read(900, ["k00007"]) == {"k00007": state_of(4)["count", "k00007"][0]}
        assert before <= there(lazy) < 1
    assert state_at(lazy, 4) == state_of(4)
    hydrate(lazy)
    assert_sound(lazy)
    assert state_at(lazy, 4) == state_of(4)


def test_equals_an_ordinary_restore(place, lazy, tmp_path):
    """Byte by byte, once it is fetched."""
    bring_back(place, tmp_path / "whole", tmp_path)
    hydrate(lazy)
    for path in paths_of(tmp_path / "whole"):
        assert (lazy / path.name).read_bytes() == path.read_bytes()


def test_epochs_are_closed_meanwhile(lazy):
    """Pages that were written are never replaced by fetched ones, whether the log was moved into the file or not."""
    close_epochs(lazy, 3)
    with Driver(lazy) as run:
        run.apply(run.epoch, changes(run.epoch))
        run.close(run.epoch)
        hydrate_directory(lazy, Stop())
        run.apply(run.epoch, changes(run.epoch))
        run.close(run.epoch)
        run.store.checkpoint()
        assert hydrating(lazy) == []
    assert state_at(lazy, 9) == state_of(9)
    assert problems(lazy) == []
    with Driver(lazy):
        pass
    assert sorted(path.name for path in lazy.iterdir() if path.name.startswith("part-")) == [
        "part-0.sqlite3",
        "part-1.sqlite3",
    ]


def test_a_run_hydrates_beside_its_stream(lazy, monkeypatch):
    """In a thread of the store, from the second micro-batch on."""
    monkeypatch.setattr(hydration, "PATIENCE_S", 60.0)
    with Driver(lazy) as run:
        run.store.open(run.lease, 900)
        assert len(hydrating(lazy)) == COUNT
        run.store.open(run.lease, 901)
        run.store._hydration._thread.join(60)
        assert hydrating(lazy) == []
        run.store.open(run.lease, 902)
    assert_sound(lazy)


def test_the_log_is_moved_into_the_file_after_hydration_too(lazy):
    """While the same run goes on: its log keeps the length that a run of an ordinary directory has."""
    with Driver(lazy) as run:
        run.store.open(run.lease, 900)
        run.store.open(run.lease, 901)
        run.store._hydration._thread.join(60)
        assert hydrating(lazy) == []
        sizes = []
        for batch in range(902, 908):
            run.apply(batch, {f"k{n:05}": f"{batch}{'x' * 2000}" for n in range(2000)})
            run.close(batch)
            run.store.checkpoint()
            sizes.append(sum(path.with_name(f"{path.name}-wal").stat().st_size for path in paths_of(lazy)))
    assert sizes[-1] < 2 * sizes[1], sizes
    assert problems(lazy) == []


def test_no_other_tool_takes_it_for_a_whole_file(lazy):
    """Without a log and with one, after a crash too: opening it is an error, and changes nothing."""
    with Driver(lazy) as run:
        run.apply(900, changes(5))
        run.close(900)
        for path in paths_of(lazy):
            with pytest.raises(apsw.NotADBError):
                apsw.Connection(str(path)).execute("SELECT * FROM sqlite_schema").fetchall()
        shutil.copytree(lazy, lazy.with_name("crashed"), ignore=shutil.ignore_patterns("scratch", "*-shm"))
    crashed = lazy.with_name("crashed")
    for path in paths_of(crashed):
        with pytest.raises(apsw.NotADBError):
            apsw.Connection(str(path)).execute("SELECT * FROM sqlite_schema").fetchall()
    assert state_at(crashed, 5) == state_of(5)
    hydrate(crashed)
    assert state_at(crashed, 5) == state_of(5)


def test_after_a_restart_of_the_machine(lazy):
    """What was fetched and not synced is fetched again; what SQLite wrote, and what was synced, stays."""
    before = there(lazy)
    close_epochs(lazy, 3)
    assert there(lazy) > before
    restart_machine(lazy)
    assert there(lazy) < 1
    assert state_at(lazy, 7) == state_of(7)
    hydrate(lazy)
    assert state_at(lazy, 7) == state_of(7)
    assert problems(lazy) == []


def killed(directory: Path, point: str, epochs: int = 3) -> bool:
    """Run, and be killed at a point; return whether it was reached."""
    words = ["-m", "tests.backup.lazy_run", directory, epochs]
    done = run(words, cwd=ROOT, env={**os.environ, VARIABLE: f"hydrate.{point}" if point else ""})
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


@pytest.mark.parametrize("point", some(POINTS, "2.written:3", "4.linked:1"))
def test_killed_at_each_step(lazy, point):
    """Nothing is lost, and the next one goes on."""
    assert killed(lazy, point)
    restart_machine(lazy)
    at = newest(lazy)
    assert at >= 4
    assert state_at(lazy, at) == state_of(at)
    close_epochs(lazy, 1)
    hydrate(lazy)
    assert state_at(lazy, at + 1) == state_of(at + 1)
    assert problems(lazy) == []


def test_killed_after_the_last_partition(lazy):
    """Nothing is left to fetch, and the next run removes what the killed one left."""
    assert killed(lazy, f"4.removed:{COUNT}", 0)
    assert hydrating(lazy) == []
    close_epochs(lazy, 1)
    assert lazy_names(lazy) == []
    assert_sound(lazy)
    assert state_at(lazy, 5) == state_of(5)


@pytest.mark.long
def test_killed_again_and_again(place, tmp_path):
    """At random visits of random points, with restarts of the machine in between."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    for history in range(3):
        directory = begin(place, tmp_path / f"lazy-{history}")
        for _ in range(MOST_KILLS):
            point = f"{choose.choice(POINTS).partition(':')[0]}:{choose.randint(1, 9)}"
            killed(directory, point, choose.randint(0, 2))
            if choose.random() < 0.3:
                restart_machine(directory)
            at = newest(directory)
            assert state_at(directory, at) == state_of(at), (seed, point)
            if not hydrating(directory):
                break
        # A run that was killed after the last partition was whole leaves a file, which the next one removes.
        close_epochs(directory, 1)
        hydrate(directory)
        assert problems(directory) == []


@pytest.mark.parametrize("epochs", some((12, 120), 12))
def test_several_processes(lazy, epochs):
    """One runs, one hydrates, one reads, while the files become ordinary ones: each sees whole epochs."""
    commands = [
        ["-m", "tests.backup.lazy_run", str(lazy), str(epochs)],
        ["-c", HYDRATE, str(lazy)],
    ]
    processes = [Forked(each, cwd=ROOT, stdout=subprocess.PIPE) for each in commands]
    try:
        looks = 0
        while any(process.poll() is None for process in processes):
            at = newest(lazy)
            found = state_at(lazy, at)
            # Later ones may have collected it while it was read.
            if newest(lazy) <= at + 2:
                assert found == state_of(at)
                looks += 1
        assert looks
        assert [process.wait() for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert state_at(lazy, 4 + epochs) == state_of(4 + epochs)
    assert hydrating(lazy) == []
    assert problems(lazy) == []


def test_chains(make_store, tmp_path):
    """The changes are replayed on the whole copy: lazily restored, each epoch is what it is restored in full."""
    store = make_store(2)
    for epochs in (3, 2, 1):
        work(store, epochs, keys=2000)
        back_up(store, tmp_path / "backups", incremental=True)
    [*_, last] = list_backups(DirectoryPlace(tmp_path / "backups")).manifests
    assert any(copy.changes for copy in last.copies)
    directory = begin(tmp_path / "backups", tmp_path / "lazy")
    assert states(directory) == states(store)
    hydrate(directory)
    assert problems(directory) == []
    earlier = begin(tmp_path / "backups", tmp_path / "earlier", epoch=4)
    assert state_at(earlier, 4) == state_at(store, 4)


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 8))])
def test_random_histories(seed, make_store, tmp_path):
    """Runs, rewinds, backups and hydration in any order: the same as a directory that was restored in full."""
    choose = random.Random(seed)
    store = make_store(2)
    for _ in range(choose.randint(1, 4)):
        work(store, choose.randint(1, 3), keys=1500)
        back_up(store, tmp_path / "backups", incremental=choose.random() < 0.5)
    lazily = begin(tmp_path / "backups", tmp_path / "lazily")
    bring_back(tmp_path / "backups", tmp_path / "full", tmp_path)
    for _ in range(6):
        what = choose.choice(["work", "rewind", "hydrate", "restart"])
        if what == "hydrate" and hydrating(lazily):
            stop, seen = Stop(), []
            hydrate_directory(lazily, stop, lambda found, stop=stop, seen=seen: (seen.append(found), stop.set()))
        elif what == "restart":
            restart_machine(lazily)
        elif what == "rewind":
            window = plan_resume(scan(tmp_path / "full")).window
            epoch = choose.choice(window) + 1
            for directory in (lazily, tmp_path / "full"):
                with Driver(directory, resume_epoch=epoch) as run:
                    run.apply(epoch * 10, {f"k{n}": f"again {epoch}" for n in range(0, 1500, 7)})
                    run.close(epoch * 10)
        else:
            epochs = choose.randint(1, 2)
            for directory in (lazily, tmp_path / "full"):
                work(directory, epochs, keys=1500)
        assert states(lazily) == states(tmp_path / "full"), what
    hydrate(lazily)
    assert states(lazily) == states(tmp_path / "full")
    assert problems(lazily) == []


def spoil(place: Path, part: int, at: float) -> Path:
    """Change a byte of the newest object of a partition, this share of its length from its beginning."""
    path = max((place / "objects" / f"part-{part}").iterdir())
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1
    path.write_bytes(content)
    return path


def test_a_changed_frame_is_an_error(place, tmp_path):
    """It names the object and the bytes; nothing that lies in it is ever returned, and the run ends with it."""
    own = copied(place, tmp_path / "backups")
    path = spoil(own, 1, 0.5)
    lazy = begin(own, tmp_path / "lazy")
    with pytest.raises(BackupDamagedError, match=rf"part-1.*{path.name}, bytes [\d,]+ to [\d,]+, differs"):
        hydrate_directory(lazy, Stop())
    with pytest.raises(BackupDamagedError, match=path.name):
        state_at(lazy, 4)
    with Driver(lazy) as run:
        run.store.open(run.lease, 900)
        run.store.open(run.lease, 901)
        run.store._hydration._thread.join(60)
        with pytest.raises(BackupDamagedError, match=path.name):
            run.store.open(run.lease, 902)
    spoil(own, 1, 0.5)
    hydrate(lazy)
    assert state_at(lazy, 4) == state_of(4)


def test_a_missing_or_torn_object_is_an_error(place, tmp_path):
    """Whatever was read of it before."""
    own = copied(place, tmp_path / "backups")
    lazy = begin(own, tmp_path / "lazy")
    [path] = (own / "objects" / "part-0").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BackupDamagedError, match=rf"{path.name}, bytes .* differs from what was stored"):
        hydrate_directory(lazy, Stop())
    path.unlink()
    with pytest.raises(BackupDamagedError, match=rf"{path.name} is missing"):
        hydrate_directory(lazy, Stop())
    path.write_bytes(content)
    hydrate(lazy)
    assert state_at(lazy, 4) == state_of(4)


def test_a_changed_index_is_found_before_anything_is_used(place, tmp_path):
    """Then an older backup is taken, as for other damage."""
    own = copied(place, tmp_path / "backups")
    path = spoil(own, 1, 0.999)
    with pytest.raises(BackupDamagedError, match=f"{path.name} differs from what was stored: the index"):
        begin(own, tmp_path / "lazy")
    assert not (tmp_path / "lazy").exists()


def test_damage_from_before_the_backup_is_found_in_the_end(make_store, tmp_path):
    """The frames are what was stored; the digests of the rows say that it was damaged then. It stays a lazy one."""
    store = make_store(1)
    work(store, 3, keys=2000)
    alter(store / "part-0.sqlite3", "UPDATE snaps SET ser_change = 'x' WHERE state_key = 'k1500'")
    back_up(store, tmp_path / "backups")
    lazy = begin(tmp_path / "backups", tmp_path / "lazy")
    with pytest.raises(CorruptPartitionError, match="do not match their digest"):
        hydrate_directory(lazy, Stop())
    assert len(hydrating(lazy)) == 1


def test_copies_of_older_versions_are_fetched_first(place, tmp_path):
    """They have no index."""
    own = copied(place, tmp_path / "backups")
    target = DirectoryPlace(own)
    [manifest] = list_backups(target).manifests
    without_index(target, manifest)
    directory = begin(own, tmp_path / "whole")
    assert hydrating(directory) == []
    assert state_at(directory, 4) == state_of(4)


def without_index(target: DirectoryPlace, manifest: Manifest) -> None:
    """Let a manifest be as older versions wrote it."""
    from dataclasses import replace

    copies = tuple(replace(copy, index_bytes=0, index_sha256="") for copy in manifest.copies)
    (target.root / manifest_name(manifest.id)).unlink()
    target.write(manifest_name(manifest.id), [encode(replace(manifest, copies=copies))])


def test_cut_off_from_the_backup(lazy, monkeypatch):
    """A read that needs it ends with an error; hydration waits and goes on when it is back."""
    monkeypatch.setattr(hydration, "FIRST_WAIT_S", 0.01)
    cut = threading.Event()
    whole = pages_module._target

    def target(place: str):
        if cut.is_set():
            raise BackupTargetError("no answer", path=place)
        return whole(place)

    monkeypatch.setattr(pages_module, "_target", target)
    cut.set()
    with pytest.raises(BackupTargetError, match="no answer"):
        state_at(lazy, 4)
    with Driver(lazy) as run:
        run.store.open(run.lease, 900)
        run.store.open(run.lease, 901)
        run.store._hydration._thread.join(0.2)
        assert hydrating(lazy)
        run.store.open(run.lease, 902)
        cut.clear()
        run.store._hydration._thread.join(60)
        assert hydrating(lazy) == []
    assert state_at(lazy, 4) == state_of(4)


def test_what_needs_all_of_it_refuses(lazy, place, tmp_path):
    """By name; what reads a part works."""
    for command in (
        ["backup", lazy, tmp_path / "more"],
        ["fork", lazy, tmp_path / "fork"],
        ["repartition", lazy, tmp_path / "three", "3"],
        ["gc", lazy],
        ["verify", lazy],
        ["restore", lazy, tmp_path / "other"],
        ["drill", lazy],
    ):
        output = call_all(*command, code=HydratingError.exit_code)
        assert "a lazy restore has fetched" in output, command
    found = json.loads(call("status", lazy, "--json"))
    assert [each["file"] for each in found["hydrating"]] == ["part-0.sqlite3", "part-1.sqlite3"]
    assert found["resume_epoch"] == 5
    assert "a lazy restore has fetched" in call("status", lazy)
    assert "would resume at epoch 5" in call("plan", lazy)
    assert "held: epochs 1 to 4" in call("history", lazy, "--step", "count", "--key", "k00001")
    with pytest.raises(AlreadyInitializedError):
        begin(place, lazy)


def call_all(*arguments: object, code: int) -> str:
    """All output of a command."""
    from click.testing import CliRunner

    from recovery.cli import main

    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_the_command(place, tmp_path):
    """`restore --lazy` ends when all is there; again, it continues."""
    call("restore", "--lazy", place, tmp_path / "lazy")
    assert_sound(tmp_path / "lazy")
    assert state_at(tmp_path / "lazy", 4) == state_of(4)
    begin(place, tmp_path / "again")
    copied(place, tmp_path / "other")
    call("restore", "--lazy", tmp_path / "other", tmp_path / "again", code=AlreadyInitializedError.exit_code)
    assert json.loads(call("restore", "--lazy", "--json", place, tmp_path / "again"))["continued"]
    assert_sound(tmp_path / "again")


def test_who_else_may_read_it(place, tmp_path):
    """The lazy file has the permissions of its partition."""
    for umask in (False, True):
        directory = begin(place, tmp_path / f"lazy-{umask}", umask=umask)
        for path in paths_of(directory):
            assert lazy_path(path).stat().st_mode == path.stat().st_mode
        hydrate(directory)


def test_without_its_lazy_file(lazy):
    """A partition that lost it cannot be opened: nobody reads holes."""
    lazy_path(lazy / "part-0.sqlite3").unlink()
    with pytest.raises(CorruptPartitionError, match="not a database"):
        plan_resume(scan(lazy))


def test_a_partition_that_comes_in_place_of_an_older_one(place, lazy, tmp_path):
    """From another owner: no page of the older one's backup comes into the new file."""
    bring_back(place, tmp_path / "whole", tmp_path)
    close_epochs(tmp_path / "whole", 3)
    content = (tmp_path / "whole" / "part-1.sqlite3").read_bytes()
    pieces = dict(enumerate(content[at : at + BLOCK_BYTES] for at in range(0, len(content), BLOCK_BYTES)))
    move = lazy, "0123456789abcdef"
    arriving.begin(*move, {"part-1.sqlite3": len(content)}, 0)
    arriving.put(*move, "part-1.sqlite3", list(pieces.items()))
    arriving.check(*move, "part-1.sqlite3", len(content), {n: block_digest(each) for n, each in pieces.items()})
    arriving.place(*move, "part-1.sqlite3")
    arriving.end(*move)
    hydrate(lazy)
    assert (lazy / "part-1.sqlite3").read_bytes() == content


def test_a_copy_that_somebody_puts_over_it(place, lazy, tmp_path):
    """No page of the backup comes into the copy: it is an error that says how the copy can be used."""
    bring_back(place, tmp_path / "whole", tmp_path)
    for path in paths_of(lazy):
        shutil.copyfile(tmp_path / "whole" / path.name, path)
    with pytest.raises(CorruptPartitionError, match="another file has taken its place"):
        plan_resume(scan(lazy))
    with pytest.raises(CorruptPartitionError, match="another file has taken its place"):
        hydrate_directory(lazy, Stop())
    for path in paths_of(lazy):
        lazy_path(path).unlink()
    assert state_at(lazy, 4) == state_of(4)


def test_a_partition_that_becomes_whole_while_it_is_opened(lazy, monkeypatch):
    """By another process: what is opened is no copy that somebody has put there."""
    [path, *_] = paths_of(lazy)
    missing = Pages.missing

    def late(pages: Pages, most_bytes: int) -> tuple[int, int] | None:
        found = missing(pages, most_bytes)
        monkeypatch.undo()
        hydrate(lazy)
        return found

    monkeypatch.setattr(Pages, "missing", late)
    Pages(lazy_path(path))


@pytest.mark.parametrize("at", [0, 70, 8200, -1])
def test_an_altered_lazy_file(lazy, at):
    """It is an error, or only pages are fetched again; never other content."""
    side = lazy_path(lazy / "part-0.sqlite3")
    content = bytearray(side.read_bytes())
    content[at] ^= 0x55
    side.write_bytes(content[:-1] if at == -1 else content)
    try:
        found = state_at(lazy, 4)
    except RecoveryError:
        return
    assert found == state_of(4)


@pytest.mark.parametrize("page_bytes", [513, 1 << 15 | 512])
def test_a_lazy_file_whose_frames_are_not_whole_pages(lazy, page_bytes):
    """Its marks would not be those of the frames' pages: it is refused before a hole is read, or fetched for ever."""
    side = lazy_path(lazy / "part-0.sqlite3")
    content = side.read_bytes()
    (length,) = struct.unpack_from("<I", content, 64)
    source = {**json.loads(content[68 : 68 + length]), "page_bytes": page_bytes}
    changed = json.dumps(source).encode()
    index = content[8192 : 8192 + source["index_bytes"]]
    marks = bytes([1]) * (FrameIndex(index).size_bytes // page_bytes)
    side.write_bytes((content[:64] + struct.pack("<I", len(changed)) + changed).ljust(8192, b"\0") + index + marks)
    with pytest.raises(CorruptPartitionError, match="ends within a page"):
        state_at(lazy, 4)
    with pytest.raises(CorruptPartitionError, match="ends within a page"):
        hydrate_directory(lazy, Stop())


def test_marks_of_a_killed_process_are_synced_by_the_next_checkpoint(lazy, monkeypatch):
    """SQLite empties the log after it, which had those pages until then."""
    synced = []

    class Marks(mmap.mmap):
        def flush(self, *range_):
            synced.append(self[:])
            return super().flush(*range_)

    monkeypatch.setattr(pages_module.mmap, "mmap", Marks)
    side = lazy_path(lazy / "part-0.sqlite3")
    killed, later = Pages(side), Pages(side)
    page = next(page for page in range(killed.count) if not killed.keeps(page))
    with killed.locked():
        killed.keep(page, page + 1)
    synced.clear()
    assert later.keeps(page)
    later.sync_marks()
    assert [each[len(each) - later.count + page] for each in synced] == [2]


def test_the_lazy_file_of_another_user(lazy, monkeypatch):
    """It names the place from which pages are fetched, so nobody reads another user's, root included."""
    path = paths_of(lazy)[0]
    pages_module.Pages(lazy_path(path))
    monkeypatch.setattr(os, "geteuid", lambda: lazy_path(path).stat().st_uid + 1)
    with pytest.raises(StorageError, match="belongs to another user"):
        pages_module.Pages(lazy_path(path))


def test_a_backup_whose_disk_is_away(place, tmp_path):
    """It cannot be reached; it is not damaged."""
    own = copied(place, tmp_path / "backups")
    lazy = begin(own, tmp_path / "lazy")
    own.rename(tmp_path / "away")
    with pytest.raises(BackupTargetError, match="no such directory"):
        state_at(lazy, 4)
    (tmp_path / "away").rename(own)
    assert state_at(lazy, 4) == state_of(4)


def test_a_backup_whose_disk_does_not_answer(lazy, monkeypatch):
    """A read that needs it ends with an error, so a run ends too; nothing waits for the disk without limit."""
    answers, whole = threading.Event(), DirectoryPlace.read_range

    def silent(*arguments):
        answers.wait(3)
        return whole(*arguments)

    monkeypatch.setattr(DirectoryPlace, "read_range", silent)
    monkeypatch.setattr(mounted, "SILENT_S", 0.05)
    with pytest.raises(BackupTargetError, match="no answer"):
        state_at(lazy, 4)
    answers.set()
    monkeypatch.undo()
    assert state_at(lazy, 4) == state_of(4)


def test_credentials_are_not_written_down(tmp_path, monkeypatch):
    """An address with a key is refused; a path becomes an absolute one."""
    monkeypatch.chdir(tmp_path)
    assert lasting_place("backups") == str(tmp_path / "backups")
    assert (
        lasting_place("s3://bucket/path?endpoint=http://localhost:1") == "s3://bucket/path?endpoint=http://localhost:1"
    )
    with pytest.raises(ConfigurationError, match="credentials"):
        lasting_place("s3://key:secret@bucket/path")


def test_only_reading_connections_do_not_write(lazy):
    """Although what they fetch is kept."""
    with connect(lazy / "part-0.sqlite3", "ro") as connection, pytest.raises(apsw.ReadOnlyError):
        connection.execute("DELETE FROM epochs")


def test_frames():
    """Each is found by the index, and is what was stored."""
    content = random.Random(7).randbytes(3 * FRAME_BYTES + 4096)
    blocks = [content[at : at + FRAME_BYTES] for at in range(0, len(content), FRAME_BYTES)]
    packed = [pack(block) for block in blocks]
    encoded = encode_index([(len(each), digest_of(each)) for each in packed], len(content))
    index = FrameIndex(encoded)
    stored = b"".join(packed)
    for number, block in enumerate(blocks):
        offset, size = index.place(number, number + 1)
        assert index.unpacked(number, stored[offset : offset + size]) == block
        with pytest.raises(ValueError, match="changed"):
            index.unpacked(number, stored[offset : offset + size - 1])
    assert index.place(0, 4) == (0, len(stored))
    huge = encoded[:12] + struct.pack("<IQ", (1 << 32) - 1, (1 << 34) - 8) + encoded[24:]
    assert struct.unpack_from("<IQ", encoded, 12) == (FRAME_BYTES, len(content))
    for wrong in (encoded[:-1], b"", encoded[8:], b"\0" * len(encoded), huge):
        with pytest.raises(ValueError, match="index"):
            FrameIndex(wrong)
