"""The scratch directory is worth nothing: lost, older or newer than the partitions, the result is the same."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.minirun import MiniRun, run, states, totals
from tests.stores import problems

BATCHES = 9


def leave(directory: Path, batches: int) -> None:
    """A run that dies after so many micro-batches, with all that it leaves."""
    execution = MiniRun(directory, 1)
    while execution.next_batch < batches:
        execution.batch()
    survivor = directory.with_name("survivor")
    shutil.copytree(directory, survivor)
    execution.release()
    shutil.rmtree(directory)
    survivor.rename(directory)


def lost(directory: Path, older: Path) -> None:
    shutil.rmtree(directory / "scratch")


def checkpoint_lost(directory: Path, older: Path) -> None:
    for path in directory.glob("scratch/ex-*/checkpoint"):
        shutil.rmtree(path)


def old(directory: Path, older: Path) -> None:
    shutil.rmtree(directory / "scratch")
    shutil.copytree(older / "scratch", directory / "scratch")


def newer(directory: Path, older: Path) -> None:
    """The partitions are older than the scratch directory: as after a restore."""
    for path in directory.glob("part-*"):
        path.unlink()
    for path in older.glob("part-*"):
        shutil.copy(path, directory)


def of_another_run(directory: Path, older: Path) -> None:
    """Under the name that the next execution would give its own, were names used twice."""
    [found] = (directory / "scratch").iterdir()
    prefix, execution = found.name.rsplit("-", 2)[0], found.name.rsplit("-", 1)[1]
    for number in range(1, 6):
        shutil.copytree(found, found.with_name(f"{prefix}-{number}-{execution}x"))


def half(directory: Path, older: Path) -> None:
    generator = random.Random(1)
    for path in sorted((directory / "scratch").rglob("*")):
        if path.is_file() and generator.random() < 0.5:
            path.unlink()


@pytest.mark.parametrize(
    "what", [lost, checkpoint_lost, old, newer, of_another_run, half], ids=lambda each: each.__name__
)
@pytest.mark.parametrize("killed_after", [3, 6])
def test_scratch_does_not_matter(make_store, tmp_path, what, killed_after):
    """After any change to it, the next run ends with the state of an uninterrupted one."""
    directory = make_store(2)
    leave(directory, 2)
    older = tmp_path / "older"
    shutil.copytree(directory, older)
    leave(directory, killed_after)
    what(directory, older)
    run(directory, 1, BATCHES)
    assert states(directory) == totals(1, BATCHES)
    assert problems(directory) == []
    assert not (directory / "scratch").exists()
