"""Partitions move between owners: exact whoever is killed at which step, and refused without a trace."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from secrets import token_hex
from types import SimpleNamespace

import pytest

from recovery import init_partitions
from recovery.base.clock import SystemClock
from recovery.base.ids import Lease
from recovery.cli.moves import _moved, _Shown
from recovery.errors import (
    DirectoryLockedError,
    DuplicatePartitionError,
    ForeignPartitionError,
    MissingPartitionsError,
    OwnerUnreachableError,
    RecoveryError,
    StorageError,
)
from recovery.planning.moves import BY_HAND
from recovery.spark.run.between import Between
from recovery.spark.run.parts.moving import RunMoves
from recovery.storage.documents import change_states, home
from recovery.storage.moving.mover import MoveResult
from recovery.storage.moving.task import MoveTask, to_targets
from recovery.storage.store import OwnerAccess, Store
from recovery.wire import run_client
from recovery.wire.address import OwnerAddress
from recovery.wire.calls import DocumentCalls, OwnerCalls
from recovery.wire.messages import as_error
from recovery.wire.move_calls import MoveCalls, MoveRequest
from recovery.wire.run_client import Owner
from tests.faults.minirun import MiniRun, child, die_at, run, states, totals, wait
from tests.owner.histories import UNHURRIED, ForkedOwner, History, play
from tests.owner.served import invoked, spread, token_file
from tests.shares import first, seeds, some
from tests.stores import problems
from tests.waiting import wait_until

DRIVER = ["moves.1", "moves.2", "moves.3", "moves.4", "moves.5"]
SOURCE = ["leave.noted", "leave.removed"]
TARGET = ["arrive.checked", "arrive.cleared", "arrive.placed"]
INPUT = 7
"""The number of the input."""


class Places:
    """Four partitions at two owners, and a third owner without any; the driver's directory has none."""

    def __init__(self, made: Path, root: Path) -> None:
        self.root = root
        self.token = token_file(root)
        self.places = spread(made, ((), (0, 3), (1, 2), ()))
        self.owners = [ForkedOwner([each], self.token) for each in self.places[1:]]
        for each in self.owners:
            each.start()

    @property
    def ats(self) -> list[str]:
        return [each.at for each in self.owners]

    def access(self, *numbers: int) -> OwnerAccess:
        """How these owners are reached; without numbers the first two."""
        return OwnerAccess(tuple(self.owners[number].at for number in numbers or (0, 1)), self.token)

    def settings(self, *numbers: int) -> dict:
        return {"owners": self.access(*numbers).owners, "token_file": self.token, "backup_interval": 3600, **UNHURRIED}

    def run(self, batches: int, *numbers: int) -> None:
        """A run, in a process of its own, up to so many micro-batches; these owners are named."""
        report = self.root / "report"

        def work() -> None:
            try:
                run(self.places[0], INPUT, batches, batches, **self.settings(*numbers))
            except BaseException as error:
                report.write_text(repr(error))
                raise

        assert wait(child(work)) == 0, report.read_text()

    def move(self, targets: dict[int, int], *numbers: int, deadline_s: float = 5.0) -> MoveResult:
        """Move these partitions to the owners with these numbers."""
        nothing = self.root / token_hex(4)
        nothing.mkdir()
        wanted = {index: self.owners[number].at for index, number in targets.items()}
        owners = self.access(*numbers).connect(deadline_s)
        task = MoveTask(nothing, owners, tuple(dict.fromkeys(wanted.values())))
        try:
            task.plan(to_targets({index: task.location(at) for index, at in wanted.items()}), token_hex(8))
            task.stage(threading.Event())
            done = task.finish(SystemClock(), "a move")
        finally:
            task.release()
        if done.error is not None:
            raise done.error
        return done

    def files(self) -> list[list[str]]:
        """The partitions of each owner."""
        return [sorted(path.name for path in place.glob("part-*.sqlite3")) for place in self.places[1:]]

    def together(self) -> Path:
        """All partitions, one copy of each, in one directory; ends the owners."""
        for each in self.owners:
            each.end(signal.SIGTERM)
        found = self.root / "together"
        found.mkdir()
        for path in sorted(path for place in self.places for path in place.glob("part-*.sqlite3")):
            assert not (found / path.name).exists(), f"two copies of {path.name}"
            shutil.copyfile(path, found / path.name)
        return found

    def content(self) -> dict[str, bytes]:
        """The files of all owners but for locks and SQLite's own."""
        return {
            str(path): path.read_bytes() for place in self.places[1:] for path in sorted(place.rglob("*"))
            if path.is_file() and path.suffix not in (".lock", ".sqlite3-shm", ".sqlite3-wal") and path.parent == place
        }  # fmt: skip

    def close(self) -> None:
        for each in self.owners:
            each.end()


def three_batches(directory: Path) -> None:
    """What a run has done before its partitions come to owners."""
    run(directory, INPUT, 3, 3, backup_interval=3600)


@pytest.fixture
def places(make_store, tmp_path):
    """After three micro-batches."""
    made = Places(make_store(4, three_batches), tmp_path)
    yield made
    made.close()


def test_partitions_move_and_are_found(places):
    """The source has a note in place of the file; a run that names the old owners alone finds the partition, also after
    it moved on, and one that names all is exact, too."""
    done = places.move({3: 2})
    assert done.indexes == (3,)
    assert places.files() == [["part-0.sqlite3"], ["part-1.sqlite3", "part-2.sqlite3"], ["part-3.sqlite3"]]
    note = json.loads((places.places[1] / ".moved-part-3.json").read_text())
    assert note["to"] == places.owners[2].at
    places.run(5)
    places.move({3: 1})
    places.run(6, 0)
    places.move({3: 0}, 0, 1)
    assert not (places.places[1] / ".moved-part-3.json").exists()
    places.run(8, 2, 1, 0)
    together = places.together()
    assert states(together) == totals(INPUT, 8)
    assert problems(together) == []


def test_a_run_finds_owners_of_all_partitions(places):
    """A run whose named owners have no partition uses the owners that have them."""
    places.move({0: 2, 3: 2})
    execution = MiniRun(places.places[0], INPUT, **places.settings(0, 1))
    try:
        assert set(execution.prepared.config.owners) == {places.owners[1].at, places.owners[2].at}
        # It has let the other one go, whose end then ends nothing.
        places.owners[0].end(signal.SIGTERM)
        execution.batch()
    finally:
        execution.finish()
    assert states(places.together()) == totals(INPUT, 4)


@first("point", DRIVER, count=2)
@pytest.mark.parametrize("order", some([(0, 1), (1, 0), (2, 1, 0), (0, 1, 2)], (0, 1)))
def test_the_command_is_killed(places, point, order):
    """Wherever it is: the next run is exact with any owners named in any order, and so is the same move again."""

    def work() -> None:
        die_at(point)
        places.move({3: 2, 2: 2})

    assert wait(child(work)) == -signal.SIGKILL
    wait_until_free(places)
    places.run(5, *order)
    places.move({3: 2, 2: 2})
    places.run(7, *order)
    assert {"part-2.sqlite3", "part-3.sqlite3"} <= set(places.files()[2])
    assert newest_are_exact(places, 7)


@pytest.mark.parametrize("order", some([(0, 1), (0, 1, 2)], (0, 1, 2)))
def test_an_owner_is_killed(places, order):
    """The source or the target, at each of their steps: the move says so; the next run goes on, and so does the same
    move again. In the end everything is exact."""
    batches = 3
    for point in [*SOURCE, *TARGET]:
        victim = places.owners[0 if point in SOURCE else 2]
        victim.end(signal.SIGTERM)
        victim.start(point)
        with pytest.raises(OwnerUnreachableError):
            places.move({3: 2}, deadline_s=10.0)
        assert victim.has_died(), point
        victim.start()
        wait_until_free(places)
        places.run(batches + 1, *order)
        places.move({3: 2})
        batches += 2
        places.run(batches, *order)
        assert "part-3.sqlite3" in places.files()[2], point
        places.move({3: 0}, 0, 1, 2)
    assert newest_are_exact(places, batches)


def test_nothing_is_written_between_the_last_copy_and_the_end(places):
    """A document of operational state that is written to the source after its blocks were compared is refused, or waits
    and fails: no document is acknowledged and then lost."""
    source = places.places[1]
    owner = places.access().connect(5.0)[0]
    owner.hold("move", "a move", bytes(32))
    try:
        owner.ask(MoveCalls.begin_leaving, "part-0.sqlite3")
        found = []

        def write() -> None:
            try:
                change_states(home(source), {"global/a": lambda _: "1"}, 1, busy_ms=20_000)
            except RecoveryError as error:
                found.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(0.3)
        owner.ask(MoveCalls.note_leaving, "part-0.sqlite3", "h9:1")
        owner.ask(MoveCalls.leave, "part-0.sqlite3")
        writer.join(30)
        assert [type(each).__name__ for each in found] == ["FileReplacedError"]
    finally:
        owner.release()


def test_an_owner_that_has_the_note_refuses_documents(places):
    """After a kill between the note and the end, whoever knows the source only must not write to it."""

    def work() -> None:
        die_at("moves.4")
        places.move({0: 2})

    assert wait(child(work)) == -signal.SIGKILL
    wait_until_free(places)
    store = Store(places.places[0], places.access().connect(5.0))
    try:
        assert store.home_owner().location == places.owners[2].at
        with pytest.raises(MissingPartitionsError, match=r"is moving to 127.0.0.1:\d+, or has moved"):
            store.owners[0].ask(DocumentCalls.forget_documents, ["global/a"], 100)
        places.move({1: 2})
        places.move({0: 0})
        places.move({0: 2})
        with pytest.raises(MissingPartitionsError, match=r"has moved"):
            store.owners[0].ask(DocumentCalls.documents, ["global/a"])
    finally:
        store.release()


# ---- refused


def refused(
    places: Places,
    kind: type[RecoveryError],
    match: str,
    targets: dict[int, int],
    *numbers: int,
    deadline_s: float = 10.0,
) -> None:
    """The move is refused, and nothing has changed."""
    before = places.content()
    with pytest.raises(kind, match=match):
        places.move(targets, *numbers, deadline_s=deadline_s)
    assert places.content() == before
    assert [path for place in places.places for path in place.glob(".move-*")] == []


def test_what_is_refused(places, tmp_path):
    """A partition that nobody has, a target that is gone or has another store; a partition that a run holds."""
    refused(places, MissingPartitionsError, "has part-9", {9: 2})
    places.owners[2].end(signal.SIGTERM)
    refused(places, OwnerUnreachableError, "was not reached", {3: 2}, deadline_s=2.0)
    another = tmp_path / "another"
    init_partitions(another, 4)
    shutil.copy(another / "part-3.sqlite3", places.places[3])
    places.owners[2].start()
    refused(places, ForeignPartitionError, "belongs to store", {2: 2})
    (places.places[3] / "part-3.sqlite3").unlink()
    execution = MiniRun(places.places[0], INPUT, **places.settings())
    try:
        with pytest.raises(DirectoryLockedError, match="in use by flow"):
            places.move({3: 2})
    finally:
        execution.release()


def test_a_target_whose_copy_went_another_way(places):
    """Two runs, each with copies of its own: the move refuses to choose."""
    for path in [*places.places[1].glob("part-*"), *places.places[2].glob("part-*")]:
        shutil.copy(path, places.places[3])
    places.run(4)
    wait_until_free(places)
    forked = {**places.settings(2), "owners": places.access(2).owners}
    aside = places.root / "aside"
    aside.mkdir()
    assert wait(child(lambda: run(aside, INPUT, 4, 4, **forked))) == 0
    refused(places, DuplicatePartitionError, "went different ways", {3: 2})


def test_an_older_copy_at_the_target_is_replaced(places):
    """With its log, which SQLite would otherwise take for that of the new file."""
    for path in places.places[1].glob("part-3*"):
        shutil.copy(path, places.places[3])
    (places.places[3] / "part-3.sqlite3-wal").write_bytes(b"of the old file")
    places.run(4)
    (places.places[3] / "part-3.sqlite3-wal").unlink()
    places.move({3: 2})
    places.run(6, 0, 1, 2)
    assert states(places.together()) == totals(INPUT, 6)


def test_a_file_of_the_directory_of_a_run_goes_to_an_owner_by_hand(places):
    """As the refusal of a move says: with the run stopped, the file is moved; a copy that stays counts."""

    def by_hand(source: int, target: int) -> None:
        for path in places.places[source].glob("part-3.sqlite3*"):
            shutil.move(path, places.places[target])

    by_hand(1, 0)
    places.run(4)
    with pytest.raises(MissingPartitionsError, match=r"has part-3\.sqlite3") as found:
        places.move({3: 2})
    assert BY_HAND in found.value.remedy
    shutil.copy(places.places[0] / "part-3.sqlite3", places.places[3])
    places.run(5, 0, 1, 2)
    # Both have gone on by their own: the copy that stayed is the newer one.
    (places.places[3] / "part-3.sqlite3").unlink()
    by_hand(0, 3)
    places.run(7, 0, 1, 2)
    assert places.files()[2] == ["part-3.sqlite3"]
    assert states(places.together()) == totals(INPUT, 7)


def test_a_target_without_room(places, monkeypatch):
    """Refused before anything is sent."""
    from recovery.planning.moves import plan_drain
    from recovery.storage.moving import arriving

    usage = shutil.disk_usage(places.root)
    monkeypatch.setattr(arriving.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(StorageError, match="are free"):
        arriving.begin(places.places[3], token_hex(8), {"part-3.sqlite3": 4096}, 0)
    store = Store(places.places[0], places.access(0, 1, 2).connect(5.0))
    try:
        with pytest.raises(StorageError, match="no owner has room for part-"):
            plan_drain(store.locations()[1:], [places.ats[0]], weights={}, free_bytes=dict.fromkeys(places.ats, 10))
    finally:
        store.release()


def test_what_is_left_is_removed(places):
    """What a killed move has staged goes when the owner starts, and nothing else does."""

    def work() -> None:
        die_at("moves.1")
        places.move({3: 2})

    assert wait(child(work)) == -signal.SIGKILL
    [left] = places.places[3].glob(".move-*")
    assert left.is_dir()
    kept = places.places[3] / ".move-mine"
    kept.mkdir()
    places.owners[2].end(signal.SIGTERM)
    places.owners[2].start()
    # It listens before it removes anything, and answers afterwards.
    wait_until_free(places)
    assert not left.exists()
    assert kept.is_dir()


def test_an_owner_that_a_note_names_is_lost(places):
    """The start says which partition is there, and the way out if it is lost for good."""
    places.move({3: 2})
    places.owners[2].end()
    store = Store(places.places[0], places.access().connect(0.5))
    try:
        with pytest.raises(OwnerUnreachableError, match=r"part-3.sqlite3 has moved to 127.0.0.1:\d+") as found:
            store.found()
        assert "restore SRC DIR --missing" in found.value.remedy
    finally:
        store.release()


def test_a_file_that_is_put_back_makes_a_note_void(places):
    """A copy from a backup takes the place of a partition whose owner was lost; a note that is no note is an error."""
    shutil.copy(places.places[1] / "part-3.sqlite3", places.root / "backup")
    places.run(4)
    places.move({3: 2})
    places.owners[2].end()
    shutil.copy(places.root / "backup", places.places[1] / "part-3.sqlite3")
    places.run(6)
    assert not (places.places[1] / ".moved-part-3.json").exists()
    (places.places[2] / ".moved-part-3.json").write_text("{")
    store = Store(places.places[0], places.access().connect(1.0))
    try:
        with pytest.raises(StorageError, match="no note of a partition"):
            store.found()
    finally:
        store.release()


# ---- the commands


def named(places: Places) -> list[object]:
    """Options that name the first two owners."""
    return ["--owner", places.ats[0], "--owner", places.ats[1], "--token-file", places.token]


def test_the_commands_as_users_give_them(places, monkeypatch):
    """Without a run: a plan that changes nothing, a move, a balance, a drain, refusals; and facts for programs."""
    before = places.content()
    shown = invoked("owners", "move", "part-3", "1", "--to", places.ats[2], *named(places), "--dry-run")
    assert (shown.returncode, places.content()) == (0, before), shown.stderr
    assert [line.split(",")[0] for line in shown.stdout.splitlines()] == [
        f"part-1 from {places.ats[1]} to {places.ats[2]}", f"part-3 from {places.ats[0]} to {places.ats[2]}",
    ]  # fmt: skip
    done = invoked("owners", "move", "part-3.sqlite3", "--to", places.ats[2], *named(places), "--json")
    facts = json.loads(done.stdout)
    assert facts["moved"] == facts["moves"]
    assert [facts["moved"][0][name] for name in ("partition", "from", "to")] == [
        "part-3.sqlite3", places.ats[0], places.ats[2],
    ]  # fmt: skip
    again = invoked("owners", "move", "3", "--to", places.ats[2], *named(places))
    assert (again.returncode, again.stdout) == (0, "nothing to move\n")
    weights = f"{places.ats[0]}=1,{places.ats[1]}=0,{places.ats[2]}=1"
    assert invoked("owners", "balance", "--weights", weights, *named(places)).returncode == 0
    assert [len(names) for names in places.files()] == [2, 0, 2]
    drained = invoked("owners", "drain", places.ats[2], *named(places))
    assert drained.returncode == 0, drained.stderr
    assert drained.stdout.splitlines()[-1].startswith("moved 2 partitions in ")
    assert places.files()[2] == []
    for words, code, text in (
        (["move", "9", "--to", places.ats[2], *named(places)], 21, "has part-9.sqlite3"),
        (["move", "x", "--to", places.ats[2], *named(places)], 2, "'x' is no partition"),
        (["move", "1", "--to", places.ats[2]], 2, "name the owners that have the partitions"),
        (["balance", "--weights", "h1", *named(places)], 2, "'h1' is no weight"),
        (["balance", "--weights", "h1:1=2,h1:1=0", *named(places)], 2, "h1:1 has two weights"),
        (["move", "1", "--to", "127.0.0.1:1", *named(places)], 47, "127.0.0.1:1 was not reached"),
    ):
        monkeypatch.setattr("recovery.cli.moves.LOOK_S", 0.5)
        refusal = invoked("owners", *words)
        assert refusal.returncode == code, refusal.stderr
        assert text in refusal.stderr
    places.run(5)
    assert states(places.together()) == totals(INPUT, 5)


# ---- requests to a run


def test_a_request_needs_a_run_and_there_is_one_at_a_time(places, monkeypatch):
    """Otherwise the request is refused, and the command that asks tries again or moves the partitions itself."""
    monkeypatch.setattr(run_client, "STILL_S", 0.1)
    owner = places.access().connect(5.0)[0]
    request = MoveRequest("0" * 16, {3: places.owners[2].at})
    try:
        with pytest.raises(DirectoryLockedError, match="no run holds"):
            owner.ask(MoveCalls.request_move, request)
        execution = MiniRun(places.places[0], INPUT, **places.settings())
        try:
            owner.ask(MoveCalls.request_move, request)
            with pytest.raises(DirectoryLockedError, match="asked to move partitions before"):
                owner.ask(MoveCalls.request_move, request)
            assert owner.ask(MoveCalls.move_request, request.move_id) == request
            assert owner.ask(MoveCalls.move_request, "1" * 16) is None
            held = next(each for each in execution.prepared.places.owners if each.location == owner.location)
            until_s = time.monotonic() + 30
            while held.request is None and time.monotonic() < until_s:
                time.sleep(0.05)
            assert held.request == request
        finally:
            execution.release()
        # The next run does not do what the one before was asked.
        execution = MiniRun(places.places[0], INPUT, **places.settings())
        try:
            time.sleep(0.5)
            assert all(each.request is None for each in execution.prepared.places.owners)
            assert owner.ask(MoveCalls.move_request, request.move_id) is None
            owner.ask(MoveCalls.request_move, request)
        finally:
            execution.release()
    finally:
        owner.release()


def test_two_commands_ask_one_run(places):
    """Each another owner. The run serves one of them once, and refuses the other; if the execution ends by an error
    first, the command hears of it, and what was staged goes."""
    execution = MiniRun(places.places[0], INPUT, **places.settings())
    asked: list[Between] = []
    moves = RunMoves(SimpleNamespace(prepared=execution.prepared, goes_on=True), lambda each: not asked.append(each))
    looks = places.access().connect(5.0)
    requests = [MoveRequest(digit * 16, {index: places.ats[2]}) for digit, index in (("0", 3), ("1", 1))]

    def answers() -> list[MoveRequest]:
        return [look.ask(MoveCalls.move_request, each.move_id) for look, each in zip(looks, requests, strict=True)]

    try:
        for look, request in zip(looks, requests, strict=True):
            look.ask(MoveCalls.request_move, request)
        wait_until(lambda: all(each.request for each in execution.prepared.places.owners), 30)
        for _ in range(4):
            moves.look()
        wait_until(lambda: asked and sorted(each.state for each in answers()) == ["moving", "refused"], 30)
        for _ in range(4):
            moves.look()
        moves.end(None)
        assert len(asked) == 1
        [refusal] = [each.refusal for each in answers() if each.refusal]
        assert isinstance(as_error(refusal, ""), DirectoryLockedError)
        assert list(places.places[3].glob(".move-*"))
        asked[0].drop(OwnerUnreachableError("an owner was lost"))
        assert not list(places.places[3].glob(".move-*"))
        assert [each.state for each in answers()] == ["refused", "refused"]
        assert "an owner was lost" in " ".join(as_error(each.refusal, "").found for each in answers())
    finally:
        for each in looks:
            each.release()
        execution.release()


def test_a_command_goes_on_where_a_killed_run_has_moved_some(places):
    """What the run has staged under the id of the request is not in the way; what it has moved counts as moved."""
    move_id = "0" * 16
    target = places.access(2).connect(5.0)[0]
    target.ask(MoveCalls.begin_arrival, move_id, {"part-0.sqlite3": 1, "part-3.sqlite3": 1})
    target.release()
    task = MoveTask(places.root, places.access().connect(5.0), [places.ats[2]])
    try:
        request = MoveRequest(move_id, dict.fromkeys((0, 3), places.ats[2]))
        task.plan(to_targets(request.targets), move_id)
        places.move({0: 2})
        answer = _moved(task, request, _Shown(quiet=True))
    finally:
        task.release()
    assert (answer.state, sorted(answer.moved)) == ("done", [0, 3])
    assert places.files()[2] == ["part-0.sqlite3", "part-3.sqlite3"]
    assert not list(places.places[3].glob(".move-*"))


def test_an_owner_that_is_drained_is_no_spare(places):
    """An owner that keeps a partition is not drained."""
    for targets, drained in (({0: 2}, set()), ({3: 2}, {places.ats[0]})):
        task = MoveTask(places.root, places.access().connect(5.0), [places.ats[2]])
        try:
            task.plan(to_targets({index: places.ats[to] for index, to in targets.items()}), token_hex(8))
            task.stage(threading.Event())
            assert task.finish(SystemClock(), "a move").error is None
            assert task.drained == drained
        finally:
            task.release()


# ---- histories


class MovingHistory(History):
    """Runs and moves, with kills at any step and moment, and owners that are named or not."""

    moved = 0

    def move(self) -> None:
        """A move during which somebody may be killed. What is left is for the next run."""
        for each in self.owners:
            each.start()
        where = {path.name: path.parent for path in self.newest()}
        movable = [name for name, place in where.items() if place != self.places[0]]
        places = [place for each in self.owners for place in each.directories]
        addresses = dict(zip(places, self.addresses(), strict=True))
        if len(addresses) < 2 or not movable:
            return
        name = self.chance.choice(movable)
        target = self.chance.choice([at for place, at in addresses.items() if place != where[name]])
        what = self.chance.choice(["nothing", "nothing", "driver at a step", "driver", "owner", "owner at a step"])
        victim = self.chance.choice(self.owners)
        if what == "owner at a step":
            victim.end(signal.SIGTERM)
            victim.start(self.chance.choice([*SOURCE, *TARGET]))
        index = int(name[5:].split(".")[0])
        nothing = self.token.with_name(f"nothing-{self.moves}")
        nothing.mkdir()
        names = self.addresses()
        self.chance.shuffle(names)
        point = self.chance.choice(DRIVER) if what == "driver at a step" else ""
        report = nothing / "report"

        def work() -> None:
            die_at(point)
            task = MoveTask(nothing, OwnerAccess(tuple(names), self.token).connect(1.5))
            try:
                task.plan(to_targets({index: target}), token_hex(8))
                task.stage(threading.Event())
                done = task.finish(SystemClock(), "a move")
                if done.error is not None:
                    raise done.error
            except RecoveryError as error:
                report.write_text(f"{type(error).__name__} {error}")
                raise
            finally:
                task.release()

        pid = child(work)
        if what in ("driver", "owner"):
            time.sleep(self.chance.random() * 0.2)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL) if what == "driver" else victim.end()
        code = wait(pid)
        assert code in (0, 1, -signal.SIGKILL)
        if code == 1:
            text = report.read_text()
            assert text.split()[0] in {"OwnerUnreachableError", "DirectoryLockedError"}, text
        self.moves += 1
        self.moved += code == 0
        self.wait_until_free()

    def disturbed_run(self) -> None:
        super().disturbed_run()
        self.move()


@pytest.mark.parametrize("seed", seeds(20))
def test_runs_and_moves_that_die(make_store, tmp_path, seed):
    """Whatever dies when, the state is that of a plain loop, and every file is sound."""
    play(MovingHistory, make_store(3), 3, seed, tmp_path)


# ---- what the tests share


def wait_until_free(places: Places) -> None:
    """Until all owners know that whoever held them is gone."""
    until_s = time.monotonic() + 30
    for each in places.owners:
        owner = Owner(OwnerAddress("127.0.0.1", each.port, Lease(0, ""), 0, 5.0), places.token.read_bytes())
        try:
            while owner.ask(OwnerCalls.serving).holder:
                assert time.monotonic() < until_s
                time.sleep(0.005)
        finally:
            owner.release()


def newest_are_exact(places: Places, batches: int) -> bool:
    """Whether the newest copies have the state of a plain loop; older ones may be left."""
    store = Store(places.places[0], places.access(0, 1, 2).connect(5.0))
    try:
        found = [each.path for each in store.found()]
    finally:
        store.release()
    at = dict(zip(places.ats, places.places[1:], strict=True))
    together = places.root / "newest"
    together.mkdir()
    for each in places.owners:
        each.end(signal.SIGTERM)
    for path in found:
        shutil.copyfile(at[str(path.parent)] / path.name, together / path.name)
    assert problems(together) == []
    return states(together) == totals(INPUT, batches)
