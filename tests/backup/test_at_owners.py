"""Restores to owners on several hosts: all partitions of the backup are there, or none is."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from recovery.backup import at_owners
from recovery.base.ids import PartitionIndex
from recovery.cli import main
from recovery.errors import LeaseLostError, StorageError
from recovery.planning.copies import Departed
from recovery.planning.resume import plan_resume
from recovery.storage.moving.departed import write_note
from recovery.storage.scan import scan
from recovery.storage.staged import StagedRestore
from recovery.wire.run_client import Owner
from tests.backup.support import back_up, is_marked, states, work
from tests.owner.served import Served, recovery, token_file
from tests.shares import some
from tests.stores import Driver, SpreadDirectory, state_at
from tests.waiting import wait_until

HISTORIES = int(os.environ.get("RECOVERY_TEST_RESTORES_TO_OWNERS", "12"))


def call(*arguments: object, code: int = 0) -> str:
    """Standard output of a command, which ends with this code; with an error, all that it prints."""
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code else result.stdout


class Hosts:
    """Owners without partitions, and the directory of the run."""

    def __init__(self, root: Path, owners: int, *, together: bool = False) -> None:
        """together: one process serves the directories of all owners."""
        self.spread = SpreadDirectory(root / "host", [()] * (owners + 1), together=together)
        self.directory = self.spread.places[0]

    @property
    def options(self) -> list[object]:
        named = [word for each in self.spread.services for word in ("--owner", each.at)]
        return [*named, "--token-file", self.spread.token]

    def names(self) -> list[list[str]]:
        """What lies at each owner, but lock and logs."""
        return [files(place) for place in self.spread.places[1:]]

    def restore(self, source: Path, *options: object, code: int = 0) -> Any:
        found = call("restore", source, self.directory, "--json", *options, *self.options, code=code)
        return found if code else json.loads(found)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name not in ("recovery.lock", "scratch"))


def parts(*indexes: int) -> list[str]:
    return [f"part-{index}.sqlite3" for index in indexes]


@pytest.fixture(params=some([False, True], True), ids=["two owners", "two directories of one owner"])
def hosts(request, tmp_path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, 2, together=request.param)
    yield made
    made.spread.close()


@pytest.fixture
def store(make_store) -> Path:
    """Three partitions with five epochs."""
    return make_store(3, work, 5)


@pytest.fixture
def backups(store, tmp_path) -> Path:
    back_up(store, tmp_path / "backups", incremental=True)
    return tmp_path / "backups"


def together(places: Sequence[Path], room: Path) -> Path:
    """Copies of all partitions of several directories in one."""
    room.mkdir()
    for place in places:
        for path in place.glob("part-*"):
            shutil.copy(path, room)
    return room


def test_owners_of_the_environment_do_not_count(make_store, tmp_path, monkeypatch):
    """They are set where runs are; a restore to DIR is one, also on such a host."""
    store = make_store(1)
    work(store, 2)
    back_up(store, tmp_path / "backups")
    monkeypatch.setenv("RECOVERY_OWNERS", "no address")
    call("restore", tmp_path / "backups", tmp_path / "new")
    call("restore", tmp_path / "backups", tmp_path / "lazy", "--lazy")
    assert states(tmp_path / "new") == states(store)


class TestARestore:
    """Without kills."""

    def test_a_run_resumes_exactly(self, hosts, backups, store, tmp_path):
        """With the state, the window and the position of the backup, and nothing but partitions at the owners. The
        directory of the run is marked: it takes another one's place at the sinks."""
        found = hosts.restore(backups)
        first, second = (each.at for each in hosts.spread.services)
        assert found["owners"] == dict(zip(parts(0, 1, 2), (first, first, second), strict=True))
        assert (found["epoch"], found["resume_epoch"], found["store_id"]) == (5, 6, scan(store)[0].description.store_id)
        assert hosts.names() == [parts(0, 1), parts(2)]
        assert files(hosts.directory) == ["restored.json"]
        assert is_marked(hosts.directory)
        assert states(together(hosts.spread.places, tmp_path / "all")) == states(store)
        with Driver(hosts.spread) as run, Driver(store) as other:
            assert run.epoch == other.epoch == 6
            for each in (run, other):
                each.apply(60, {"k1": "new", "k2": None})
                each.close(60)
        assert state_at(together(hosts.spread.places, tmp_path / "after"), 6) == state_at(store, 6)

    def test_an_older_epoch_for_people(self, hosts, backups, store):
        """What is printed says what is where; the plan is shown, and nothing written, with --dry-run."""
        words = [backups, hosts.directory, "--epoch", 3, *hosts.options]
        planned = call("restore", *words, "--dry-run")
        assert f"part-0, part-1 would go to {hosts.spread.services[0].at}" in planned
        assert hosts.names() == [[], []]
        said = call("restore", *words)
        assert f"part-2 are at {hosts.spread.services[1].at}" in said
        assert "3 partitions, to 2 owners" in said
        with Driver(hosts.spread) as run:
            assert run.epoch == 4
        assert "part-0.sqlite3, part-1.sqlite3: it is refused" in call("restore", *words, "--dry-run")

    def test_more_owners_than_partitions_and_no_directory(self, make_store, tmp_path):
        """One of them gets nothing; the directory of the run need not be named."""
        directory = make_store(2)
        work(directory, 2)
        hosts = Hosts(tmp_path, 3)
        # Partitions of a later time have left these directories; the restored ones count nevertheless.
        left = Departed(PartitionIndex(0), scan(directory)[0].description.store_id, 99, 99, "127.0.0.1:1", 0)
        for place in hosts.spread.places[1:]:
            write_note(place, left)
        try:
            found = json.loads(call("restore", directory, "--json", *hosts.options))
            assert (found["directory"], sorted(map(len, hosts.names()))) == (None, [0, 1, 1])
            with Driver(hosts.spread) as run:
                assert run.epoch == 3
        finally:
            hosts.spread.close()

    def test_permissions(self, hosts, backups):
        """Private, or with --umask those of the owner's umask."""
        for options, mode in (((), 0o600), (("--umask",), 0o666 & ~_umask())):
            hosts.restore(backups, *options)
            paths = [path for place in hosts.spread.places for path in place.glob("part-*")]
            assert {path.stat().st_mode & 0o777 for path in paths} == {mode}
            for path in paths:
                path.unlink()

    def test_a_store_with_another_number_of_partitions(self, hosts, store, tmp_path):
        """The way to repartition what owners have: repartition into one directory, restore that to owners."""
        hosts.restore(store)
        said = call("repartition", hosts.directory, tmp_path / "five", 5, *hosts.options)
        assert f"python -m recovery restore {tmp_path / 'five'} {hosts.directory} --owner" in said
        for place in hosts.spread.places:
            for path in place.glob("part-*"):
                path.unlink()
        hosts.restore(tmp_path / "five")
        assert [len(names) for names in hosts.names()] == [3, 2]
        with Driver(hosts.spread) as run:
            assert (run.count, run.epoch) == (5, 6)
        found = state_at(together(hosts.spread.places, tmp_path / "all"), 5)
        assert found == state_at(store, 5)


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


class TestRefused:
    """With nothing written anywhere."""

    def test_owners_and_directories_with_partitions(self, hosts, backups, make_store):
        """Each is named with what it holds."""
        other = make_store(2)
        shutil.copy(other / "part-1.sqlite3", hosts.spread.places[2])
        said = hosts.restore(backups, code=26)
        assert f"{hosts.spread.services[1].at} holds part-1.sqlite3" in said
        (hosts.spread.places[2] / "part-1.sqlite3").rename(hosts.directory / "part-1.sqlite3")
        assert "part-1.sqlite3" in hosts.restore(backups, code=26)
        (hosts.directory / "part-1.sqlite3").unlink()
        (hosts.spread.places[2] / "part-1.sqlite3-wal").write_bytes(b"")
        assert "part-1.sqlite3-wal" in hosts.restore(backups, code=26)
        assert hosts.names() == [[], ["part-1.sqlite3-wal"]]

    def test_owners_that_a_run_holds(self, hosts, backups):
        run = hosts.spread.locations(run="one")
        assert "run one" in hosts.restore(backups, code=40)
        run.release()
        hosts.restore(backups)

    def test_one_owner_twice(self, hosts, backups):
        again = ["--owner", hosts.spread.services[0].at.replace("127.0.0.1", "localhost")]
        assert "are one owner" in hosts.restore(backups, *again, code=11)
        assert hosts.names() == [[], []]

    def test_options_that_do_not_fit(self, hosts, backups):
        assert "--lazy" in hosts.restore(backups, "--lazy", code=2)
        assert "Missing argument 'DIR'" in call("restore", backups, code=2)

    def test_a_missing_epoch(self, hosts, backups):
        hosts.restore(backups, "--epoch", 77, code=28)
        assert hosts.names() == [[], []]
        hosts.restore(backups)


class TestKilled:
    """A kill at any moment leaves nothing that the next restore does not clear."""

    @pytest.mark.parametrize("point", [pytest.param("owners.3", marks=pytest.mark.long), "owners.4.others", "owners.4"])
    def test_the_command(self, point, hosts, backups, store, tmp_path):
        """What is in place counts once part-0 is; not before."""
        killed = recovery(
            "restore", backups, hosts.directory, *hosts.options, RECOVERY_CRASH_AT=point, TMPDIR=str(tmp_path)
        )
        assert killed.returncode == -9, killed.stderr
        if point == "owners.4":
            assert "holds part-0.sqlite3, part-1.sqlite3" in hosts.restore(backups, code=26)
        else:
            found = hosts.restore(backups)
            assert found["epoch"] == 5
        assert is_marked(hosts.directory)
        assert hosts.names() == [parts(0, 1), parts(2)]
        assert states(together(hosts.spread.places, tmp_path / "all")) == states(store)
        with Driver(hosts.spread) as run:
            assert run.epoch == 6

    @pytest.mark.long
    @pytest.mark.parametrize(("which", "point"), [(0, "staged.2"), (0, "staged.3"), (1, "staged.3")])
    def test_an_owner(self, which, point, backups, store, tmp_path):
        """It is started again, and the same command called again."""
        token = token_file(tmp_path)
        places = [tmp_path / "h1", tmp_path / "h2"]
        for place in places:
            place.mkdir()
        served = [Served(place, token, crash_at=point if n == which else "") for n, place in enumerate(places)]
        words = ["restore", backups, *(w for each in served for w in ("--owner", each.at)), "--token-file", token]
        try:
            lost = recovery(*words)
            assert lost.returncode == 47, lost.stderr
            served[which].start()
            again = recovery(*words)
            if (which, point) == (0, "staged.3"):
                # The home had placed its files: the restore had come to its end, though nobody had heard of it.
                assert (again.returncode, "holds part-0" in again.stderr) == (26, True), again.stderr
            else:
                assert again.returncode == 0, again.stderr
            assert [files(place) for place in places] == [parts(0, 1), parts(2)]
        finally:
            for each in served:
                each.kill()
        assert states(together(places, tmp_path / "all")) == states(store)

    def test_other_owners_are_named_next(self, hosts, backups, tmp_path):
        """What only the home can tell is neither kept nor removed by a guess."""
        recovery("restore", backups, *hosts.options, RECOVERY_CRASH_AT="owners.4", TMPDIR=str(tmp_path))
        before = hosts.names()
        [_, _, *second] = hosts.options
        # The owners free their locks when they notice that the command has died.
        wait_until(lambda: recovery("restore", backups, *second).returncode == 26)
        said = call("restore", backups, *second, code=26)
        assert f"{hosts.spread.services[0].at}" in said
        assert hosts.names() == before

    @pytest.mark.long
    @pytest.mark.parametrize("seed", range(HISTORIES))
    def test_any_history(self, seed, make_store, tmp_path):
        """Commands that are killed after a random number of calls, at three owners: in the end the state is the
        backup's, and each attempt either counted or did not."""
        chance = random.Random(seed)
        print(f"seed {seed}: RECOVERY_TEST_RESTORES_TO_OWNERS={seed + 1}")
        directory = make_store(chance.randint(1, 6))
        work(directory, 4)
        expected = states(directory)
        hosts = Hosts(tmp_path, 3)
        try:
            for attempt in range(8):
                point = chance.choice(["owners.3", "owners.4.others", "owners.4", ""])
                done = recovery("restore", directory, *hosts.options, RECOVERY_CRASH_AT=point, TMPDIR=str(tmp_path))
                assert done.returncode in (-9, 0, 26), done.stderr
                found = together(hosts.spread.places, tmp_path / f"{attempt}")
                if done.returncode in (0, 26) or point == "owners.4":
                    assert states(found) == expected
                    assert all(name.startswith("part-") for names in hosts.names() for name in names) or point
                    if chance.random() < 0.5:
                        with Driver(hosts.spread) as run:
                            assert run.epoch == 5
                    for place in hosts.spread.places[1:]:
                        for path in place.glob("part-*"):
                            path.unlink()
                else:
                    with pytest.raises(Exception, match=r"part-0|no recovery partition"):
                        plan_resume(scan(found))
        finally:
            hosts.spread.close()


class TestFailures:
    """An error at one owner leaves nothing at the others."""

    def test_a_disk_that_fails_when_files_are_put_into_place(self, hosts, backups, monkeypatch):
        """At the home, which is asked last, or at another one."""
        original = StagedRestore.place
        for failing in (0, 2):

            def place(self: StagedRestore, failing: int = failing) -> None:
                if failing in self._indexes:
                    raise StorageError("the disk failed", path=self._directory)
                original(self)

            monkeypatch.setattr(StagedRestore, "place", place)
            assert "the disk failed" in hosts.restore(backups, code=12)
            assert hosts.names() == [[], []]
        monkeypatch.setattr(StagedRestore, "place", original)
        hosts.restore(backups)

    def test_a_home_that_does_not_say_whether_its_files_are_in_place(self, hosts, backups, monkeypatch):
        """Whichever error says that it was lost: what the others have stays until the home tells."""
        original = StagedRestore.place

        def place(self: StagedRestore) -> None:
            original(self)
            if 0 in self._indexes:
                raise LeaseLostError("the partitions are held by another run now", path=self._directory)

        with monkeypatch.context() as lost:
            lost.setattr(StagedRestore, "place", place)
            assert "run the same command again" in hosts.restore(backups, code=41)
        names = [[name for name in found if name.startswith("part-")] for found in hosts.names()]
        assert names == [parts(0, 1), parts(2)]
        assert not is_marked(hosts.directory)
        hosts.restore(backups, code=26)
        assert hosts.names() == [parts(0, 1), parts(2)]
        assert is_marked(hosts.directory)

    def test_bytes_that_change_on_the_way(self, hosts, backups, monkeypatch):
        """They are found before anything is in place."""
        original = StagedRestore.put

        def put(self: StagedRestore, name: str, data: bytes) -> None:
            original(self, name, data[:-1] + bytes([data[-1] ^ 1]) if name == "part-2.sqlite3" else data)

        monkeypatch.setattr(StagedRestore, "put", put)
        said = json.loads(hosts.restore(backups, code=12))
        assert (said["found"], Path(said["path"]).name) == ("it is not what was sent", "part-2.sqlite3")
        assert hosts.names() == [[], []]

    def test_many_pieces(self, hosts, backups, store, monkeypatch, tmp_path):
        """A file that is larger than a piece; at most one piece is in memory."""
        monkeypatch.setattr(at_owners, "PIECE_BYTES", 4096)
        largest = []
        original = Owner.ask

        def ask(self: Owner, called: Any, *arguments: Any) -> Any:
            largest.extend(len(each.data) for each in arguments if hasattr(each, "data"))
            return original(self, called, *arguments)

        monkeypatch.setattr(Owner, "ask", ask)
        hosts.restore(backups)
        assert (max(largest), len(largest) > 9) == (4096, True)
        assert states(together(hosts.spread.places, tmp_path / "all")) == states(store)
