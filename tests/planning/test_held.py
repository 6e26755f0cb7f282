"""Which epochs a description holds, also those that it does not list: compared with the whole list."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from recovery.base.ids import Lease
from recovery.errors import InconsistentPartitionsError
from recovery.planning.backups import PartitionCopy, plan_restore
from recovery.planning.chains import continues
from recovery.planning.held import (
    check_fit,
    continued,
    differing,
    holds,
    is_without_gap,
    listed_from,
    merged_spans,
    newest_shared,
    unlisted,
    unsettled_from,
)
from recovery.planning.resume import BEGINNING, common_cuts, cuts_of
from recovery.planning.values import ERASURE, ClosedEpoch, Execution, FoundFile, PartitionDescription


class History:
    """Partitions that close epochs, go back and collect, each with all that it holds listed."""

    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        self.partitions = [
            PartitionDescription(Path(f"part-{n}.sqlite3"), n, count, "store", "flow", 0, (), (), 1)
            for n in range(count)
        ]

    def step(self) -> None:
        newest = min(each.newest_epoch for each in self.partitions)
        oldest = max(each.collected for each in self.partitions)
        if not self.partitions[0].executions or self.chance.random() < 0.2:
            number = len(self.partitions[0].executions) + 1
            resume = self.chance.randint(oldest, newest) + 1 if self.chance.random() < 0.5 else newest + 1
            run = Execution(number, f"ex{number}", "flow", resume, number, 1.0, 1.0, "host", 1, "0")
            self.partitions = [
                replace(
                    each,
                    executions=(*each.executions, run),
                    epochs=tuple(closed for closed in each.epochs if closed.epoch < resume),
                )
                for each in self.partitions
            ]
        run = self.partitions[0].executions[-1]
        epoch = min(each.newest_epoch for each in self.partitions) + 1
        closed = ClosedEpoch(epoch, Lease(run.number, run.id), epoch * 10 + run.number, epoch, epoch, 1, 1, 0, 0, 0)
        reached = self.chance.choice([len(self.partitions), len(self.partitions), 1])
        for n, each in enumerate(self.partitions[:reached]):
            if each.newest_epoch < epoch:
                floor = self.chance.choice([each.collected, max(each.collected, epoch - 6)])
                held = tuple(old for old in each.epochs if old.epoch >= floor)
                self.partitions[n] = replace(each, collected=floor, epochs=(*held, closed))


@pytest.mark.parametrize("seed", range(20))
def test_a_short_list_says_what_the_whole_one_does(seed):
    """Which snapshots a partition holds, which is the newest that all hold, where a link continues, and which copies
    are restored: the same as with all epochs listed, for short lists of any length."""
    history, before = History(seed, 3), None
    for _ in range(40):
        history.step()
        whole = history.partitions
        cuts = {cut for each in whole for cut in cuts_of(each)} | {BEGINNING, (3, "other", 30)}
        short = [listed_from(each, history.chance.randint(0, 12)) for each in whole]
        for one, all_of_it in zip(short, whole, strict=True):
            assert is_without_gap(one)
            assert {cut for cut in cuts if holds(one, cut)} == cuts_of(all_of_it)
            assert not differing(one, all_of_it)
            found = {(closed.epoch, closed.execution.id) for closed in all_of_it.epochs}
            assert set(unlisted(one)) | {(c.epoch, c.execution.id) for c in one.epochs} == found
        assert newest_shared(whole) == max(common_cuts(whole), default=None)
        least = [listed_from(each, min(each.newest_epoch for each in whole)) for each in whole]
        assert newest_shared(least) == newest_shared(whole)
        if before is not None:
            for old, shorter, new in zip(before, least, whole, strict=True):
                at = listed_from(old, 1 << 40)
                assert continues(at, new) == continues(old, new)
                # If both lists are too short, the partition is described in full.
                assert continues(at, shorter).epoch in (None, continues(old, new).epoch)
        planned = [
            plan_restore([PartitionCopy(each, f"{each.index}", 1) for each in given]) for given in (whole, least)
        ]
        assert planned[0].epoch == planned[1].epoch
        before = whole


@pytest.mark.parametrize("seed", range(20))
def test_a_description_is_continued_by_what_changed(seed):
    """Whatever happened meanwhile: the result is the whole description, or none where a partition no longer has the
    newest epoch that was known."""
    history = History(seed, 3)
    before = history.partitions
    for _ in range(60):
        history.step()
        if history.chance.random() < 0.5:
            continue
        for old, now in zip(before, history.partitions, strict=True):
            found = continued(old, listed_from(now, unsettled_from(old)))
            assert found in (None, now)
            if found is None:
                assert old.newest.cut not in cuts_of(now)
        before = history.partitions


@pytest.mark.parametrize("change", [{"store_id": "other"}, {"index": 7}, {"count": 7}, {"unlisted": 1}])
def test_the_description_of_another_partition_is_not_continued(change):
    """Nor one that lacks more than was known before."""
    history = History(1, 1)
    while len(history.partitions[0].epochs) < 6:
        history.step()
    [whole] = history.partitions
    short = listed_from(whole, whole.newest_epoch)
    assert continued(whole, short) == whole
    assert continued(whole, replace(short, **change)) is None


def test_an_erasure_describes_a_partition_again():
    """Epochs that both descriptions have may differ."""
    history = History(1, 1)
    while len(history.partitions[0].epochs) < 6:
        history.step()
    [whole] = history.partitions
    erased = replace(whole.executions[-1], number=99, id=f"{ERASURE}1")
    now = replace(whole, executions=(*whole.executions, erased))
    assert continued(whole, listed_from(now, whole.newest_epoch)) is None


def test_what_is_only_logged_is_described_again():
    """Folding changes its row, and those of all logged epochs after it."""
    history = History(1, 1)
    while len(history.partitions[0].epochs) < 6:
        history.step()
    [whole] = history.partitions
    assert unsettled_from(whole) == whole.newest_epoch
    logged = tuple(replace(each, logged_rows=1, logged_digest=2) for each in whole.epochs[-3:])
    assert unsettled_from(replace(whole, epochs=(*whole.epochs[:-3], *logged))) == logged[0].epoch
    assert unsettled_from(replace(whole, epochs=())) == 0


def test_a_changed_epoch_or_one_too_few_differs():
    """Listed or not, and whoever closed it."""
    history = History(1, 1)
    while len(history.partitions[0].epochs) < 6:
        history.step()
    [whole] = history.partitions
    short = listed_from(whole, whole.newest_epoch)
    assert short.unlisted == len(whole.epochs) - 1
    other = replace(whole.epochs[1], execution=Lease(99, "other"))
    for epochs in (
        whole.epochs[1:],
        whole.epochs[:-1],
        (whole.epochs[0], other, *whole.epochs[2:]),
        (*whole.epochs[:-1], replace(whole.epochs[-1], batch_id=7)),
    ):
        assert differing(short, replace(whole, epochs=epochs))


def test_epochs_with_a_gap_are_listed_in_full():
    """Who closed those that are left out could not be known."""
    history = History(2, 1)
    while len(history.partitions[0].epochs) < 6:
        history.step()
    [whole] = history.partitions
    gap = replace(whole, epochs=(whole.epochs[0], *whole.epochs[2:]))
    assert listed_from(gap, whole.newest_epoch) is gap


def test_partitions_without_a_snapshot_in_common_do_not_fit():
    """The error is that of a plan."""
    history = History(3, 2)
    for _ in range(12):
        history.step()
    one, other = history.partitions
    apart = replace(other, collected=other.newest_epoch + 3, epochs=())
    with pytest.raises(InconsistentPartitionsError):
        check_fit([FoundFile(each.path, each) for each in (one, apart)])


def test_spans_are_joined():
    """Overlapping ones, and those that follow each other."""
    spans = [(5, 9), (1, 2), (3, 4), (20, 21), (8, 12)]
    assert merged_spans(spans) == [(1, 12), (20, 21)]
    assert all(one[1] + 1 < other[0] for one, other in pairwise(merged_spans(spans)))
