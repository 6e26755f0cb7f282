"""When logged epochs are folded: how much is logged, how much is held, and what comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recovery.planning.folding import (
    FOLD_ROWS,
    FOLD_S,
    LEFT_ROWS,
    LONG_EPOCHS,
    LONG_ROWS,
    SMALL_ROWS,
    FoldLimits,
    left_log,
)
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.stores import Driver

LIMITS = FoldLimits()
KEYS = [f"k{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("logged", "held", "waited_s", "pauses", "folds"),
    [
        pytest.param(1, SMALL_ROWS - 1, 0, True, True, id="little is held, at a pause"),
        pytest.param(1, SMALL_ROWS - 1, FOLD_S, False, True, id="little is held, in time"),
        pytest.param(1, SMALL_ROWS - 1, FOLD_S - 1, False, False, id="little is held, too early"),
        pytest.param(1000, 100_000, 0, True, False, id="a hundredth, at a pause"),
        pytest.param(1000, 100_000, 3600, False, False, id="a hundredth, in time"),
        pytest.param(50_000, 100_000, 0, True, True, id="half, at a pause"),
        pytest.param(50_000, 100_000, FOLD_S, False, True, id="half, in time"),
        pytest.param(50_000, 100_000, 0, False, False, id="half, too early"),
        pytest.param(LEFT_ROWS, 10_000_000, 0, True, True, id="long for a start"),
        pytest.param(LEFT_ROWS, 10_000_000, 3600, False, False, id="not long for an epoch"),
        pytest.param(LONG_ROWS, 10_000_000, FOLD_S, False, True, id="long for an epoch"),
        pytest.param(FOLD_ROWS, 10**9, 0, False, True, id="as long as it may be"),
    ],
)
def test_folding_waits_until_it_pays(logged, held, waited_s, pauses, folds):
    """A few changes of much state stay logged; a log is never longer than a start or an epoch can bear."""
    assert LIMITS.reached(logged, held, waited_s, pauses=pauses) is folds


def test_many_epochs_are_folded_however_little_each_has_changed():
    """Every look at a partition reads a row of each."""
    for epochs, waited_s, pauses, folds in (
        (LONG_EPOCHS - 1, FOLD_S, False, False),
        (LONG_EPOCHS, FOLD_S, False, True),
        (LONG_EPOCHS, FOLD_S - 1, False, False),
        (LONG_EPOCHS, 0, True, True),
    ):
        assert LIMITS.reached(5 * epochs, 10**7, waited_s, pauses=pauses, epochs=epochs) is folds


def test_what_is_left_is_counted_before_the_resume_epoch(store_dir):
    """Partitions that have folded and others that have not are counted together; the fold of the oldest counts."""
    with Driver(store_dir) as run:
        run.apply(0, dict.fromkeys(KEYS, "0"))
        run.close(0)
        for batch in (1, 2):
            run.apply(batch, dict.fromkeys(KEYS, str(batch)))
            run.close(batch, logged=True)
        plan = plan_resume(scan(store_dir))
        assert left_log(plan) == (16, 1)
        assert left_log(replace(plan, resume_epoch=3)) == (8, 1)
        assert left_log(replace(plan, resume_epoch=2)) == (0, 1)
        run.store.seal(run.lease, 2)
        run.store.fold_partition(0, run.lease, 3, 3)
        changes, folded = left_log(plan_resume(scan(store_dir)))
        assert (0 < changes < 16, folded) == (True, 1)
    with Driver(store_dir):
        assert left_log(plan_resume(scan(store_dir))) == (0, 3)
