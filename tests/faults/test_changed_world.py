"""Random histories in which others change the input, the output and the directory between two runs.

Every start ends in one of two ways. It is exact: a reader of the output sees each record of the closed epochs once,
and the states are the sums of these records. Or it is refused with a typed error, and then partitions and output are
as they were; once the change is undone, the same command is exact.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.errors import InputLostError, InputRewrittenError, OutputMismatchError, RecoveryError
from recovery.partitioning.in_place import drop_old
from recovery.partitioning.repartition import repartition
from recovery.storage.initialize import init_partitions
from tests.faults.minirun import CLOSE_POINTS, START_POINTS, states
from tests.faults.sources import FilesSource, TopicSource
from tests.faults.targets import DeltaTarget, FilesTarget, UpsertTarget
from tests.faults.worlds import Source, Target, attempt, changed, everything, forked
from tests.stores import paths_of, problems, window

POINTS = [
    *START_POINTS, *CLOSE_POINTS, "close.4.published", "start.3.output", "publish.1", "publish.2", "rollback.3",
    "delta.2", "delta.3", "delta.4", "upsert.2", "upsert.3", "upsert.4",
]  # fmt: skip
KEYS = "abcde"
TARGETS: dict[str, Callable[[Path], Target]] = {
    "files": FilesTarget,
    "delta": DeltaTarget,
    "merge": lambda path: DeltaTarget(path, mode="merge", key="n"),
    "upsert": UpsertTarget,
}
SOURCES: dict[str, Callable[[Path], Source]] = {"files": FilesSource, "topic": TopicSource}
BY_DEFAULT = {("topic", "files")}
PAIRS = [
    pytest.param(*pair, marks=[] if pair in BY_DEFAULT else [pytest.mark.long])
    for pair in itertools.product(SOURCES, TARGETS)
]


def nothing() -> None:
    """Undo no change."""


class World:
    """One input, one target, and the recovery directory whose flow owns the target.

    counted: the records that count. read: the parts of the input that have been read.
    """

    def __init__(self, home: Path, directory: Path, source: Source, target: Target, generator: random.Random) -> None:
        self.home, self.directory, self.generator = home, directory, generator
        self.source, self.target = source, target
        self.counted: set[tuple[str, int]] = set()
        self.read: set[str] = set()
        self.numbers = 0
        self.endings, self.changed = Counter[str](), Counter[str]()

    # ---- what others do

    def grow(self) -> None:
        """New input arrives."""
        for _ in range(self.generator.randrange(1, 4)):
            self.source.grow([self._new() for _ in range(self.generator.randrange(1, 4))])

    def _new(self) -> tuple[str, int]:
        self.numbers += 1
        return self.generator.choice(KEYS), self.numbers

    def spoiled_input(self) -> Callable[[], None]:
        """Somebody removes, rewrites or trims what was read."""
        changes = self.source.changes(self.read, self._new) if self.read else {}
        if not changes:
            return nothing
        name = self.generator.choice(sorted(changes))
        self.changed[name] += 1
        return changed(self.source.path, changes[name])

    def spoiled_target(self) -> Callable[[], None]:
        """Somebody removes, changes or maintains the target."""
        changes = self.target.changes()
        if not changes:
            return nothing
        name = self.generator.choice(sorted(changes))
        self.changed[name] += 1
        return changed(self.target.path, lambda: forked(self.target.changes()[name]))

    def spoiled(self) -> Callable[[], None]:
        """Somebody changes something, or nobody does."""
        return self.generator.choice([self.spoiled_input, self.spoiled_target, lambda: nothing])()

    # ---- runs

    def resume_after(self) -> dict[str, int]:
        """An epoch to go back to, at times the newest one."""
        held = window(self.directory)
        return {"resume_epoch": self.generator.choice(held) + 1} if held else {}

    def run(self, directory: Path | None = None, **config) -> RecoveryError | int:
        """Run to the end of the input. Whatever comes of that, it is exact, or refused and untouched."""
        directory = directory or self.directory
        before = everything(directory, self.target)
        settings = {"backup_interval": self.generator.choice([0, 3600]), "discard_history": True, **config}
        result = attempt(directory, self.source, self.target, **settings)
        if isinstance(result, RecoveryError):
            assert everything(directory, self.target) == before, f"refused, and not untouched: {result}"
            assert result.remedy
            self.endings[type(result).__name__] += 1
            return result
        assert result == 0
        self.endings["exact"] += 1
        self._check(directory)
        return result

    def _check(self, directory: Path) -> None:
        for part, records in self.source.parts().items():
            if part not in self.read:
                self.read.add(part)
                self.counted.update(records)
        assert forked(self.target.shown) == sorted(self.counted)
        sums = Counter[str]()
        for key, n in self.counted:
            sums[key] += n
        assert {key: int(text) for key, text in states(directory).items()} == sums

    def killed(self) -> None:
        """A run is killed, and the next one runs to the end."""
        settings = self.resume_after() if self.generator.random() < 0.3 else {}
        point = self.generator.choice(POINTS)
        visit = 1 if point.startswith(("start", "rollback")) else self.generator.randrange(1, 4)
        attempt(
            self.directory, self.source, self.target, point=point, visit=visit,
            backup_interval=3600, discard_history=True, **settings,
        )  # fmt: skip
        # Once a run has gone back, what the discarded epochs had read counts as new input, which may be gone.
        undo = self.spoiled_target() if settings else self.spoiled()
        if self.run() != 0:
            undo()
            assert self.run() == 0


def goes_on(world: World) -> None:
    """More input, and a run."""
    world.grow()
    undo = world.spoiled()
    if world.run() != 0:
        undo()
        assert world.run() == 0


def goes_back(world: World) -> None:
    """A run goes back while something is changed; refused, it does so again when the change is undone."""
    settings = world.resume_after()
    undo = world.spoiled()
    result = world.run(**settings)
    if result != 0:
        undo()
        result = world.run(**settings)
        # What others have changed before, and no run has minded so far, may be needed now.
        assert result == 0 or isinstance(result, InputLostError | InputRewrittenError | OutputMismatchError)
        assert world.run() == 0


def another_site(world: World) -> None:
    """A copy of the directory goes on; then the old one comes back, and is refused, unless it may lose epochs."""
    copy = world.home / f"copy-{world.numbers}"
    shutil.copytree(world.directory, copy)
    world.grow()
    assert world.run(copy) == 0
    world.grow()
    assert isinstance(world.run(world.directory), RecoveryError)
    assert isinstance(world.run(world.directory, **world.resume_after()), RecoveryError)
    if world.generator.random() > 0.3 or world.run(world.directory, lose_epochs=True) != 0:
        copy, world.directory = world.directory, copy
        assert world.run() == 0
    shutil.rmtree(copy)


def another_number(world: World) -> None:
    """The directory is repartitioned in place. A copy that has gone on since is not overwritten; one that has not is
    refused once the new directory has run."""
    copy = world.home / f"copy-{world.numbers}"
    shutil.copytree(world.directory, copy)
    ahead = world.generator.random() < 0.5
    if ahead:
        world.grow()
        assert world.run(copy) == 0
    repartition(
        world.directory,
        None,
        world.generator.choice([n for n in (1, 2, 3) if n != len(paths_of(world.directory))]),
        processes=1,
    )
    drop_old(world.directory)
    world.grow()
    if ahead:
        assert isinstance(world.run(), RecoveryError)
        copy, world.directory = world.directory, copy
    assert world.run() == 0
    assert isinstance(world.run(copy), RecoveryError)
    shutil.rmtree(copy)


MOVES = [goes_on, goes_back, goes_back, World.killed, World.killed, another_site, another_number]


def check_history(home: Path, source: str, target: str, seed: int, moves: int) -> Counter[str]:
    """One history; returns how its runs ended."""
    generator = random.Random(seed)
    directory = home / "db"
    init_partitions(directory, generator.choice([1, 2]))
    world = World(home, directory, SOURCES[source](home / "in"), TARGETS[target](home / "out"), generator)
    try:
        goes_on(world)
        for _ in range(moves):
            generator.choice(MOVES)(world)
        assert world.run() == 0
        assert problems(world.directory) == []
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world.endings


@pytest.mark.parametrize(
    "histories",
    [
        pytest.param(3, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_WORLDS", "250")), id="many", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_ending_is_exact_or_refused(store_maker, source, target, histories):
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest {__file__} -k {source}-{target}")
    endings = Counter[str]()
    for number in range(histories):
        home = store_maker(1).with_name(f"world-{source}-{target}-{number}")
        home.mkdir()
        endings += check_history(home, source, target, seed * 10_000 + number, moves=5)
        shutil.rmtree(home)
    print(dict(endings))
    assert endings["exact"]
    assert len(endings) > 1
