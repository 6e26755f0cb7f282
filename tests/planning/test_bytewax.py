"""Where Bytewax resumes, by its partitions' own words, and when that would be wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from recovery.errors import (
    CorruptPartitionError,
    DuplicatePartitionError,
    EpochNotHeldError,
    ForeignPartitionError,
    InconsistentPartitionsError,
    MissingPartitionsError,
)
from recovery.planning.bytewax import TheirExecution, TheirPartition, Written, their_position

HERE = Path("db")
FIRST, SECOND = TheirExecution(0, 1, 1, "a"), TheirExecution(1, 2, 5, "c")


def part(index, **said):
    return TheirPartition(HERE / f"part-{index}.sqlite3", index, 2, **said)


ZERO = part(
    0, executions=(FIRST, SECOND), frontiers={(0, 0): 5, (1, 0): 9, (1, 1): 8}, snapshots={7: "d"}, flows=frozenset("f")
)
ONE = part(1, collected=4, snapshots={4: "b", 7: "d"}, flows=frozenset("f"))


def position(*found, **more):
    return their_position(found, HERE, **more)


def test_the_slowest_worker_of_the_newest_execution_counts():
    """One that has counted nothing is where the execution began."""
    assert (position(ZERO, ONE).epoch, position(ZERO, ONE).flow) == (8, "f")
    one_worker = replace(ZERO, frontiers={(0, 0): 5, (1, 0): 9})
    assert position(one_worker, ONE).epoch == 5
    behind = replace(ZERO, frontiers={(1, 0): 3, (1, 1): 9})
    assert position(behind, ONE).epoch == 5


@pytest.mark.parametrize(
    ("found", "kind", "named"),
    [
        ((ZERO,), MissingPartitionsError, "1"),
        ((ZERO, ONE, replace(ONE, path=HERE / "old.sqlite3")), DuplicatePartitionError, "old.sqlite3"),
        ((ZERO, replace(ONE, count=3)), InconsistentPartitionsError, "part-1.sqlite3"),
        ((ZERO, replace(ONE, flows=frozenset("g"))), ForeignPartitionError, "f, g"),
        ((ZERO, replace(ONE, executions=(FIRST,))), InconsistentPartitionsError, "part-1.sqlite3"),
        ((ZERO, replace(ONE, collected=8)), InconsistentPartitionsError, "part-1.sqlite3 has discarded"),
        (
            (ZERO, replace(ONE, snapshots={4: "b"})),
            InconsistentPartitionsError,
            "part-1.sqlite3 has nothing of the epochs 5",
        ),
        ((replace(ZERO, executions=(replace(FIRST, workers=0),)), ONE), CorruptPartitionError, "execution 0"),
        ((part(0), part(1)), EpochNotHeldError, "no execution"),
    ],
)
def test_what_is_refused(found, kind, named):
    """And the file that is named."""
    with pytest.raises(kind, match=named):
        position(*found)


def test_a_partition_that_is_quiet():
    """It is accepted on the user's word. Snapshots of abandoned epochs are no sign of the newest epoch."""
    quiet = replace(ONE, snapshots={4: "b"})
    assert position(ZERO, quiet, no_older_copies=True).quiet == (ONE.path,)
    with pytest.raises(InconsistentPartitionsError, match="nothing of"):
        position(ZERO, replace(ONE, snapshots={7: "b"}))
    assert position(ZERO, replace(ONE, snapshots={}, collected=7)).quiet == ()
    assert position(ZERO, replace(ONE, snapshots={}, frontiers={(0, 3): 8})).quiet == ()


def test_which_execution_wrote_a_snapshot():
    """By the time at which its row appeared; in the second of a beginning nobody can tell."""
    at = position(ZERO, ONE)
    assert [at.written(7, each) for each in "bcd"] == [Written.ABANDONED, Written.UNCLEAR, Written.COUNTED]
    assert at.written(4, "a") is Written.COUNTED
