"""What the tests of backups share: directories with a history, and a comparison of what they hold."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from recovery.backup.make import Made, make_backup
from recovery.backup.restore import RestoredDirectory, restore
from recovery.backup.sources import open_source
from recovery.base.clock import SystemClock
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place
from recovery.storage.restored import read_restored
from recovery.storage.scan import scan
from tests.stores import Driver, State, problems, state_at

_ids = itertools.count()


def random_id() -> str:
    """Different each time, and the same in each run of the tests."""
    return f"{next(_ids):08x}"


def work(directory: Path, epochs: int, *, keys: int = 40, floor: int = 0) -> None:
    """One execution that closes some epochs, each changing and discarding keys."""
    with Driver(directory) as run:
        first = run.epoch
        for epoch in range(first, first + epochs):
            batch = epoch * 10
            changes = {f"k{n}": f"{epoch}.{run.execution.number}" for n in range(epoch % 3, keys, 3)}
            changes[f"k{epoch % keys}"] = None
            run.apply(batch, changes)
            run.close(batch, floor=min(floor, epoch - 1), driver_rows={"$position": {"offset": str(batch)}})


@contextlib.contextmanager
def in_memory(otherwise: Callable[[], Path]) -> Iterator[Path]:
    """A directory in memory where there is some, for tests that write many small files and do not test the disk."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield otherwise()
        return
    with tempfile.TemporaryDirectory(prefix="recovery-", dir=memory) as name:
        yield Path(name)


def states(directory: Path) -> dict[int, State]:
    """Every epoch that a directory can be taken to, with its state."""
    from recovery.planning.resume import plan_resume

    return {epoch: state_at(directory, epoch) for epoch in plan_resume(scan(directory)).window}


def back_up(directory: Path, target: Place | Path, **options: object) -> Made:
    """A backup as the command makes it."""
    place = DirectoryPlace(target) if isinstance(target, Path) else target
    return make_backup(directory, place, clock=SystemClock(), random_id=random_id, **options)


def bring_back(target: Place | Path, directory: Path, scratch: Path, **options: object) -> RestoredDirectory:
    """A restore as the command does it."""
    place = DirectoryPlace(target) if isinstance(target, Path) else target
    clock = SystemClock()
    return restore(open_source(place, scratch, clock), directory, clock=clock, random_id=random_id, **options)


def is_marked(directory: Path) -> bool:
    """Whether the first run on a directory takes the place of another one."""
    return read_restored(directory, SystemClock().wall_ms()).counts


def assert_sound(directory: Path) -> None:
    """A full check finds nothing, and no file but partitions and the mark of a restored directory is there."""
    assert problems(directory) == []
    assert {path.name for path in directory.iterdir() if not path.name.startswith("part-")} <= {"restored.json"}
    assert [path.name for path in directory.iterdir() if "-wal" in path.name or "-shm" in path.name] == []
