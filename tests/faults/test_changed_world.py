"""Random histories in which others change the input, the output and the directory between two runs.

Every start ends in one of two ways. It is exact: a reader of the output sees each record of the closed epochs once,
and the states are the sums of these records. Or it is refused with a typed error, and then partitions and output are
as they were; once the change is undone, the same command is exact.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.errors import RecoveryError, RewindRepeatedError
from recovery.partitioning.in_place import drop_old
from recovery.partitioning.repartition import repartition
from recovery.storage.initialize import init_partitions
from tests.faults.minirun import CLOSE_POINTS, START_POINTS, states
from tests.faults.targets import DeltaTarget, FilesTarget, UpsertTarget
from tests.faults.worlds import Target, attempt, changed, everything, forked, read_records
from tests.shares import some
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


def nothing() -> None:
    """Undo no change."""


class World:
    """One input, one target, and the recovery directory whose flow owns the target.

    counted: the records that count. names: the input files that have been read.
    """

    def __init__(self, home: Path, directory: Path, target: Target, generator: random.Random) -> None:
        self.home, self.directory, self.target, self.generator = home, directory, target, generator
        self.source = home / "in"
        self.source.mkdir()
        self.counted: set[tuple[str, int]] = set()
        self.names: set[str] = set()
        self.numbers = 0
        self.endings, self.changed = Counter[str](), Counter[str]()

    # ---- what others do

    def grow(self) -> None:
        """New input files arrive."""
        for _ in range(self.generator.randrange(1, 4)):
            self._write(self.source / f"{self.numbers:06}.csv")

    def _write(self, path: Path) -> None:
        records = []
        for _ in range(self.generator.randrange(1, 4)):
            self.numbers += 1
            records.append(f"{self.generator.choice(KEYS)},{self.numbers}\n")
        path.write_text("".join(records))

    def spoiled_input(self) -> Callable[[], None]:
        """Somebody removes, rewrites or cuts an input file that was read."""
        read = sorted(self.names)
        if not read:
            return nothing
        # The newest files are those that going back reads again.
        path = self.source / self.generator.choice(read[-3:] if self.generator.random() < 0.7 else read)
        change = self.generator.choice([Path.unlink, self._write, lambda it: it.write_text("")])
        return changed(path, change)

    def spoiled_target(self) -> Callable[[], None]:
        """Somebody removes, changes or maintains the target."""
        if not self.target.path.exists():
            return nothing
        name = self.generator.choice(sorted(self.target.changes()))
        self.changed[name] += 1
        return changed(self.target.path, lambda _: forked(self.target.changes()[name]))

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
        fresh = [path for path in self.source.iterdir() if path.name not in self.names]
        self.counted |= {record for path in fresh for record in read_records(path)}
        self.names |= {path.name for path in fresh}
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
        undo = self.spoiled_target() if self.generator.random() < 0.3 else nothing
        if self.run() != 0:
            undo()
            assert self.run() == 0


def goes_on(world: World) -> None:
    """More input, and a run."""
    world.grow()
    undo = world.spoiled_target() if world.generator.random() < 0.5 else nothing
    if world.run() != 0:
        undo()
        assert world.run() == 0


def goes_back(world: World) -> None:
    """A run goes back while something is changed; refused, it does so again when the change is undone."""
    settings = world.resume_after()
    undo = world.generator.choice([world.spoiled_target, world.spoiled_target, lambda: nothing])()
    result = world.run(**settings)
    if result != 0:
        undo()
        result = world.run(**settings)
        assert result == 0 or isinstance(result, RewindRepeatedError)
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


def check_history(home: Path, kind: str, seed: int, moves: int) -> Counter[str]:
    """One history; returns how its runs ended."""
    generator = random.Random(seed)
    directory = home / "db"
    init_partitions(directory, generator.choice([1, 2]))
    world = World(home, directory, TARGETS[kind](home / "out"), generator)
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
        pytest.param(4, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_WORLDS", "500")), id="many", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("kind", some(TARGETS, "files", "delta"))
def test_every_ending_is_exact_or_refused(store_maker, kind, histories):
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest tests/faults/test_changed_world.py -k {kind}")
    endings = Counter[str]()
    for number in range(histories):
        home = store_maker(1).with_name(f"world-{kind}-{number}")
        home.mkdir()
        endings += check_history(home, kind, seed * 10_000 + number, moves=5)
        shutil.rmtree(home)
    print(dict(endings))
    assert endings["exact"]
    assert len(endings) > 1
