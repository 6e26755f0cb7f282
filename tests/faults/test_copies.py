"""Every combination of good, old, newer, missing, damaged and foreign files, on real files, against an oracle."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from pathlib import Path

import pytest

from recovery.errors import (
    CorruptPartitionError,
    DuplicatePartitionError,
    ForeignPartitionError,
    InconsistentPartitionsError,
    MissingPartitionsError,
    NoPartitionsError,
    RecoveryError,
)
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import init_partitions
from recovery.storage.scan import scan
from tests.shares import some
from tests.stores import Driver, State, alter, paths_of, problems, state_at

N = 3
KINDS = ("current", "older", "too old", "newer", "missing", "damaged", "other store", "wrong index")
# The epochs that each kind of file can go back to.
HELD = {"current": range(4, 8), "older": range(2, 6), "too old": range(3), "newer": range(6, 10)}
KEYS = [f"key{number}" for number in range(30)]


class History:
    """One store's files as they were at four times, and what every epoch holds."""

    def __init__(self, directory: Path, copies: Path, mark: str) -> None:
        self.copies = copies
        self.states: dict[int, State] = {0: {}}
        with Driver(directory) as run:
            for epoch in range(1, 10):
                changes = {key: f'"{mark}{epoch}{key}"' for key in KEYS[epoch % 3 :: 2]}
                self.states[epoch] = self.states[epoch - 1] | {("count", k): (v, None) for k, v in changes.items()}
                run.apply(epoch, changes)
                for kind, held in HELD.items():
                    if held[-1] == epoch:
                        run.close(epoch, floor=held[0])
                        run.move_logs()
                        shutil.copytree(directory, copies / kind, ignore=shutil.ignore_patterns("scratch"))
                        break
                else:
                    run.close(epoch)

    def file(self, kind: str, index: int) -> list[Path]:
        """The files of one partition at that time: the database and its log."""
        return sorted((self.copies / kind).glob(f"part-{index}.sqlite3*"))


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Two stores of the same flow."""
    made = []
    for mark in ("ours", "theirs"):
        copies = tmp_path_factory.mktemp(mark)
        init_partitions(copies / "db", N)
        made.append(History(copies / "db", copies, mark))
    return made


def build(directory: Path, kinds: tuple[str, ...], histories: list[History]) -> None:
    """A directory whose partition i is of the i-th kind."""
    ours, theirs = histories
    for index, kind in enumerate(kinds):
        if kind == "missing":
            continue
        source, of = ours, index
        if kind == "other store":
            source = theirs
        elif kind == "wrong index":
            of = (index + 1) % N
        for path in source.file(kind if kind in HELD else "current", of):
            shutil.copy(path, directory / path.name.replace(f"part-{of}", f"part-{index}"))
        if kind == "damaged":
            alter(directory / f"part-{index}.sqlite3", "UPDATE epochs SET written = written + 1 WHERE epoch = 6")


def oracle(kinds: tuple[str, ...]) -> int | type[RecoveryError]:
    """The newest epoch that all share, or the error, from the kinds alone."""
    there = [kind for kind in kinds if kind != "missing"]
    foreign = there.count("other store")
    if "damaged" in kinds:
        return CorruptPartitionError
    if not there:
        return NoPartitionsError
    if 0 < foreign < len(there):
        return ForeignPartitionError
    if "wrong index" in kinds:
        return DuplicatePartitionError
    if "missing" in kinds:
        return MissingPartitionsError
    if foreign:
        return HELD["current"][-1]
    shared = set.intersection(*(set(HELD[kind]) for kind in kinds))
    return max(shared) if shared else InconsistentPartitionsError


def names_a_culprit(error: RecoveryError, kinds: tuple[str, ...]) -> bool:
    """Whether the message names a file that is not as it should be; the lesser number of stores is the foreign one."""
    text = str(error)
    if isinstance(error, NoPartitionsError):
        return True
    if isinstance(error, ForeignPartitionError):
        there = [kind for kind in kinds if kind != "missing"]
        theirs = there.count("other store")
        if theirs * 2 == len(there):
            return "part-" in text
        return any(
            f"part-{i}.sqlite3" in text.splitlines()[0]
            for i, kind in enumerate(kinds)
            if kind != "missing" and (kind == "other store") == (theirs * 2 < len(there))
        )
    wanted = {
        CorruptPartitionError: ("damaged",),
        DuplicatePartitionError: ("wrong index",),
        MissingPartitionsError: ("missing",),
        InconsistentPartitionsError: ("too old", "older", "current"),
    }[type(error)]
    return any(f"part-{index}.sqlite3" in text for index, kind in enumerate(kinds) if kind in wanted)


def contents(directory: Path) -> dict[str, str]:
    """Every file and what is in it; but not the index of a log, which every reader rebuilds."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in directory.iterdir()
        if path.is_file() and not path.name.endswith("-shm")
    }


def judge(directory: Path, kinds: tuple[str, ...], histories: list[History]) -> None:
    """Compare what planning and starting do with the oracle."""
    build(directory, kinds, histories)
    expected = oracle(kinds)
    before = contents(directory)
    if isinstance(expected, type):
        with pytest.raises(expected) as raised:
            Driver(directory)
        assert type(raised.value) is expected
        assert names_a_culprit(raised.value, kinds), f"{kinds}: {raised.value}"
        assert contents(directory) == before
        return
    plan = plan_resume(scan(directory))
    assert plan.resume_epoch == expected + 1
    assert contents(directory) == before
    states = histories["other store" in kinds].states
    for epoch in plan.window:
        assert state_at(directory, epoch) == states[epoch]
    with Driver(directory) as run:
        assert run.epoch == expected + 1
        assert state_at(directory, expected) == states[expected]
        run.apply(100, {"key0": '"on"'})
        run.close(100)
    assert state_at(directory, expected + 1) == states[expected] | {("count", "key0"): ('"on"', None)}
    assert problems(directory) == []


COMBINATIONS = list(itertools.product(KINDS, repeat=N))


@pytest.mark.parametrize("first", some(KINDS, "older", "damaged"))
def test_every_combination_of_three_files(histories, store_maker, first):
    """The verdict is the oracle's; what is refused is not touched; what is accepted is exact and goes on."""
    for number, kinds in enumerate(COMBINATIONS):
        if kinds[0] == first:
            directory = store_maker(1).with_name(f"combination-{number}")
            directory.mkdir()
            try:
                judge(directory, kinds, histories)
            except BaseException as error:
                error.add_note(f"combination {kinds}")
                raise
            finally:
                shutil.rmtree(directory)


def test_the_combinations_reach_every_verdict():
    """None of the oracle's verdicts is there for nothing."""
    verdicts = [oracle(kinds) for kinds in COMBINATIONS]
    assert len(verdicts) == 512
    assert {v for v in verdicts if isinstance(v, int)} == {2, 5, 7, 9}
    assert len({v for v in verdicts if not isinstance(v, int)}) == 6


def test_the_kinds_are_what_they_say(histories):
    """Each copy holds the epochs that the oracle believes."""
    for kind, held in HELD.items():
        plan = plan_resume(scan(histories[0].copies / kind))
        assert plan.window == tuple(held)
        assert len(paths_of(histories[0].copies / kind)) == N
