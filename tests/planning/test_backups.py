"""Which copies are restored and which backups are kept, decided from values alone."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.base.ids import Lease
from recovery.errors import (
    ConfigurationError,
    EpochNotHeldError,
    FlowMismatchError,
    ForeignPartitionError,
    InconsistentPartitionsError,
    MissingPartitionsError,
)
from recovery.planning.backups import KeepRule, PartitionCopy, backups_to_keep, parse_keep, plan_restore
from recovery.planning.values import ClosedEpoch, Execution, PartitionDescription

MINUTE_MS = 60_000


def execution(number, resume_epoch=1, started_ms=None, name=None):
    started = number * 1_000_000 if started_ms is None else started_ms
    return Execution(number, name or f"ex{number}", "flow", resume_epoch, started, 10.0, 0.0, "host", 1, "test")


def closed(epoch, ex, at_ms=None, batch=None):
    at = ex.started_ms + epoch * MINUTE_MS if at_ms is None else at_ms
    return ClosedEpoch(epoch, Lease(ex.number, ex.id), epoch * 10 if batch is None else batch, at, at, 1, 1, 0, 0, 0)


def copy(index, epochs, executions, *, collected=0, count=2, store="store", taken_ms=0, origin=None, flow="flow"):
    """A copy of one partition; `epochs` are ClosedEpoch values, oldest first."""
    description = PartitionDescription(
        Path(f"part-{index}.sqlite3"), index, count, store, flow, collected, tuple(executions), tuple(epochs), 4096
    )
    return PartitionCopy(description, origin or f"copy of {index} at {taken_ms}", taken_ms)


ONE = execution(1)
LINE = [closed(epoch, ONE) for epoch in range(1, 11)]


def held(first, last):
    """The epochs first to last of one execution."""
    return LINE[first - 1 : last]


class TestTheNewestCommonEpoch:
    """Of all copies of different ages the newest set that fits."""

    def test_a_single_backup_is_restored_without_loss(self):
        """Copies of one moment lose nothing."""
        plan = plan_restore([copy(0, held(1, 5), [ONE]), copy(1, held(1, 5), [ONE])])
        assert (plan.epoch, plan.lost_epochs, plan.lost_ms, plan.limiting) == (5, 0, 0, ())
        assert plan.resume.resume_epoch == 6
        assert plan.snapshot == LINE[4]

    def test_a_partition_without_a_newer_copy_limits_the_others(self):
        """The epoch is the newest of the oldest newest copy; the loss is counted from the newest epoch seen."""
        plan = plan_restore(
            [copy(0, held(1, 5), [ONE], taken_ms=1), copy(1, held(1, 5), [ONE], taken_ms=1),
             copy(0, held(1, 8), [ONE], taken_ms=2)]
        )  # fmt: skip
        assert (plan.epoch, plan.lost_epochs, plan.lost_ms, plan.limiting) == (5, 3, 3 * MINUTE_MS, (1,))
        assert [c.taken_ms for c in plan.copies] == [2, 1]

    def test_an_older_copy_is_taken_when_the_newer_has_collected_past(self):
        """The newest copy of partition 0 goes back to epoch 7 only, and partition 1 ends at 6."""
        copies = [
            copy(0, held(7, 9), [ONE], collected=7, taken_ms=3),
            copy(0, held(4, 6), [ONE], collected=4, taken_ms=2),
            copy(1, held(5, 6), [ONE], collected=5, taken_ms=1),
        ]
        plan = plan_restore(copies)
        assert plan.epoch == 6
        assert [c.taken_ms for c in plan.copies] == [2, 1]

    def test_copies_that_are_no_better_than_the_best_are_not_chosen_over_it(self):
        """Of several copies that hold the epoch the one with the least to undo is taken, then the latest."""
        copies = [copy(1, held(1, n), [ONE], taken_ms=n) for n in (5, 6, 7)]
        copies += [copy(0, held(1, 5), [ONE], taken_ms=n) for n in (1, 2)]
        plan = plan_restore(copies)
        assert [c.taken_ms for c in plan.copies] == [2, 5]

    def test_operational_state_is_taken_from_the_latest_copy_that_fits(self):
        """It lies in partition 0 and is not undone with epochs: the latest copy, unless an older state is asked for."""
        copies = [copy(0, held(1, n), [ONE], taken_ms=n) for n in (5, 6, 7)] + [copy(1, held(1, 5), [ONE])]
        assert plan_restore(copies).copies[0].taken_ms == 7
        assert plan_restore(copies, epoch=5).copies[0].taken_ms == 5

    def test_the_beginning_is_an_epoch_too(self):
        """Partitions that were never collected can be restored to before the first epoch."""
        plan = plan_restore([copy(0, [], []), copy(1, held(1, 3), [ONE])])
        assert (plan.epoch, plan.snapshot, plan.lost_epochs, plan.lost_ms) == (0, None, 3, None)

    def test_copies_too_far_apart_are_refused_by_name(self):
        """No pair shares an epoch: the file that is too old is named, and how far."""
        copies = [copy(0, held(7, 9), [ONE], collected=7), copy(1, held(2, 4), [ONE], collected=2)]
        with pytest.raises(InconsistentPartitionsError, match=r"part-1\.sqlite3 ends at epoch 4, 3 min too old"):
            plan_restore(copies)

    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12))
    def test_it_is_what_trying_every_combination_finds(self, ranges):
        """The plan is the best of all combinations of one copy per partition, tried one by one."""
        copies = [
            copy(index, held(max(1, min(a, b)), max(a, b)) if max(a, b) else [], [ONE], collected=min(a, b), count=3,
                 taken_ms=n, origin=f"{n}")
            for n, (index, a, b) in enumerate(ranges)
        ]  # fmt: skip
        groups = [[c for c in copies if c.index == index] for index in range(3)]
        best = -1
        for combination in itertools.product(*groups):
            low = max(c.description.collected for c in combination)
            high = min(c.description.newest_epoch for c in combination)
            best = max(best, high if high >= low else -1)
        if not all(groups):
            with pytest.raises(MissingPartitionsError):
                plan_restore(copies)
        elif best < 0:
            with pytest.raises(InconsistentPartitionsError):
                plan_restore(copies)
        else:
            plan = plan_restore(copies)
            assert plan.epoch == best
            assert all(c.description.collected <= best <= c.description.newest_epoch for c in plan.copies)


class TestTimelines:
    """After going back, what was left behind is recognised although its numbers fit."""

    TWO = execution(2, resume_epoch=4)
    BEFORE = (held(1, 8), [ONE])
    AFTER = ([*held(1, 3), closed(4, TWO), closed(5, TWO)], [ONE, TWO])

    def test_the_abandoned_future_is_not_restored(self):
        """Epoch 8 of the old timeline is newer by number, epoch 5 of the new one is what counts."""
        copies = [copy(i, *side, taken_ms=t) for t, side in enumerate((self.BEFORE, self.AFTER)) for i in (0, 1)]
        plan = plan_restore(copies)
        assert (plan.epoch, plan.snapshot.execution.number, plan.abandoned, plan.lost_epochs) == (5, 2, False, 0)

    def test_also_when_the_new_timeline_has_closed_nothing_yet(self):
        """Somebody went back to epoch 4 and was cut off: epoch 3 is the newest valid one."""
        copies = [copy(i, *self.BEFORE, taken_ms=1) for i in (0, 1)]
        copies += [copy(i, held(1, 3), [ONE, self.TWO], taken_ms=2) for i in (0, 1)]
        plan = plan_restore(copies)
        assert (plan.epoch, plan.newest.epoch) == (3, 3)

    def test_an_old_copy_of_one_partition_shares_what_came_before(self):
        """One partition is there from before the rewind only: both timelines share epoch 3."""
        plan = plan_restore([copy(0, *self.AFTER), copy(1, *self.BEFORE)])
        assert (plan.epoch, plan.lost_epochs, plan.limiting) == (3, 2, (1,))

    def test_a_restored_store_that_went_on_counts_more_than_what_it_left(self):
        """Both branches have an execution 2; the one that began later is valid."""
        left = execution(2, resume_epoch=4, started_ms=2_000_000, name="left")
        went_on = execution(2, resume_epoch=3, started_ms=9_000_000, name="went on")
        copies = [copy(i, [*held(1, 3), closed(4, left), closed(5, left)], [ONE, left], taken_ms=1) for i in (0, 1)]
        copies += [copy(i, [*held(1, 2), closed(3, went_on)], [ONE, went_on], taken_ms=2) for i in (0, 1)]
        plan = plan_restore(copies)
        assert (plan.epoch, plan.snapshot.execution.id) == (3, "went on")

    @pytest.mark.parametrize("terms", [(1, 2), (2, 3), (0, 1)])
    def test_the_later_term_counts_more_than_clocks(self, terms):
        """Two holders began executions of one number; the clock of the first is ahead. Without terms it counts."""
        day_ms = 86_400_000
        first = execution(2, resume_epoch=4, started_ms=day_ms, name="first")
        second = execution(2, resume_epoch=4, started_ms=2_000_000, name="second")
        sides = [([*held(1, 3), *(closed(n, each) for n in (4, 5))], [ONE, each]) for each in (first, second)]
        copies = [copy(i, *side, taken_ms=day_ms * 2 - t) for t, side in enumerate(sides) for i in (0, 1)]
        assert plan_restore(copies).snapshot.execution.id == "first"
        # The oldest that is kept of what both share may be of either.
        copies += [copy(i, held(1, 3), [ONE], taken_ms=9) for i in (0, 1)]
        copies = [replace(each, term=terms[n // 2 % 2]) for n, each in enumerate(copies)]
        plan = plan_restore(copies)
        assert (plan.epoch, plan.snapshot.execution.id, plan.lost_epochs) == (5, "second", 0)
        assert {each.term for each in plan.copies} == {terms[1]}
        assert plan_restore(copies, epoch=5).snapshot.execution.id == "second"

    def test_it_can_be_asked_for_by_number(self):
        """Epoch 7 was abandoned; whoever names it gets it, with a warning."""
        copies = [copy(i, *side, taken_ms=t) for t, side in enumerate((self.BEFORE, self.AFTER)) for i in (0, 1)]
        plan = plan_restore(copies, epoch=7)
        assert (plan.epoch, plan.abandoned, plan.snapshot.execution.number) == (7, True, 1)
        assert (plan.kept, plan.lost_epochs) == (3, 2), "epochs 4 and 5 of the timeline that stands"
        assert plan.lost_ms == self.AFTER[0][4].closed_ms - LINE[2].closed_ms

    def test_of_two_epochs_with_one_number_the_one_that_stands_is_taken(self):
        """Epoch 5 exists on both timelines."""
        copies = [copy(i, *side, taken_ms=t) for t, side in enumerate((self.BEFORE, self.AFTER)) for i in (0, 1)]
        plan = plan_restore(copies, epoch=5)
        assert (plan.snapshot.execution.number, plan.abandoned) == (2, False)

    def test_a_time_before_the_rewind_means_what_stood_then(self):
        """At that time nobody had gone back yet."""
        copies = [copy(i, *side, taken_ms=t) for t, side in enumerate((self.BEFORE, self.AFTER)) for i in (0, 1)]
        plan = plan_restore(copies, at_ms=LINE[6].closed_ms + 1)
        assert (plan.epoch, plan.snapshot.execution.number) == (7, 1)

    def test_only_an_abandoned_epoch_in_common_is_refused(self):
        """No valid epoch is in copies of all partitions: the error says how to get the other one."""
        copies = [
            copy(0, *self.BEFORE), copy(0, *self.AFTER, taken_ms=2), copy(1, held(6, 8), [ONE], collected=6),
        ]  # fmt: skip
        with pytest.raises(InconsistentPartitionsError, match="--epoch 8"):
            plan_restore(copies)
        assert plan_restore(copies, epoch=8).abandoned


class TestWhatIsAskedFor:
    """--epoch and --timestamp."""

    COPIES = (copy(0, held(3, 9), [ONE], collected=3), copy(1, held(2, 8), [ONE], collected=2))

    @pytest.mark.parametrize("epoch", range(3, 9))
    def test_an_epoch_that_all_hold(self, epoch):
        """Every epoch in the window can be had, and the next run resumes after it."""
        plan = plan_restore(self.COPIES, epoch=epoch)
        assert (plan.epoch, plan.resume.resume_epoch, plan.snapshot.epoch) == (epoch, epoch + 1, epoch)
        assert plan.lost_epochs == 9 - epoch

    @pytest.mark.parametrize("epoch", [0, 1, 2, 9, 10])
    def test_an_epoch_that_not_all_hold(self, epoch):
        """It says which there are."""
        with pytest.raises(EpochNotHeldError, match="between 3 and 8"):
            plan_restore(self.COPIES, epoch=epoch)

    def test_a_time(self):
        """The newest epoch that was closed then; exactly at its closing it is that one."""
        at = LINE[5].closed_ms
        assert plan_restore(self.COPIES, at_ms=at).epoch == 6
        assert plan_restore(self.COPIES, at_ms=at - 1).epoch == 5
        assert plan_restore(self.COPIES, at_ms=10**12).epoch == 8

    def test_a_time_before_all(self):
        """Refused, not rounded up."""
        with pytest.raises(EpochNotHeldError, match="that old"):
            plan_restore(self.COPIES, at_ms=LINE[2].closed_ms - 1)


class TestSetsThatAreNone:
    """The errors of `plan`, for copies."""

    def test_copies_of_two_stores(self):
        """They are never put together."""
        with pytest.raises(ForeignPartitionError, match="several stores"):
            plan_restore([copy(0, held(1, 2), [ONE]), copy(1, held(1, 2), [ONE], store="other")])

    def test_a_partition_without_a_copy(self):
        """It is named."""
        with pytest.raises(MissingPartitionsError, match=r"part-1\.sqlite3 of 2"):
            plan_restore([copy(0, held(1, 2), [ONE])])

    def test_copies_of_two_flows(self):
        """They are never put together."""
        with pytest.raises(FlowMismatchError):
            plan_restore([copy(0, held(1, 2), [ONE]), copy(1, held(1, 2), [ONE], flow="other")])

    def test_a_damaged_copy_still_shows_what_is_lost(self):
        """The newest epoch seen is in a damaged copy."""
        plan = plan_restore([copy(i, held(1, 3), [ONE]) for i in (0, 1)], unusable=[copy(0, held(1, 9), [ONE])])
        assert (plan.epoch, plan.lost_epochs) == (3, 6)


HOUR_MS = 3_600_000
TAKEN = [(f"b{n}", n * HOUR_MS) for n in range(100)]


class TestTheLatestBackup:
    """At a place of backups, what leads to the latest one counts, and nothing else."""

    AHEAD = execution(2, resume_epoch=6, started_ms=10**12, name="of a host whose clock is ahead")
    OTHER = ([*held(1, 5), closed(6, AHEAD), closed(7, AHEAD)], [ONE, AHEAD])
    NEXT = execution(2, resume_epoch=4, started_ms=1, name="of the writer")

    @pytest.mark.parametrize(
        ("latest", "epoch"),
        [((held(1, 3), [ONE]), 3), (([*held(1, 3), closed(4, NEXT)], [ONE, NEXT]), 4), (([], []), 0)],
        ids=["no execution yet", "an execution", "nothing"],
    )
    def test_another_line_does_not_count(self, latest, epoch):
        """Neither its clock, nor its later times, nor its higher epochs; it is no loss either."""
        copies = [copy(index, *self.OTHER, taken_ms=10**12) for index in (0, 1)]
        chosen = [copy(index, *latest, taken_ms=1) for index in (0, 1)]
        plan = plan_restore([*copies, *chosen], latest=chosen)
        assert (plan.epoch, plan.lost_epochs, plan.abandoned) == (epoch, 0, False)
        assert plan.copies[0] == chosen[0]
        assert plan_restore([*copies, *chosen], epoch=7, latest=chosen).abandoned

    def test_a_damaged_one_still_says_what_counts(self):
        """The newest epoch that leads to it, and what is lost."""
        copies = [copy(index, *self.OTHER, taken_ms=10**12) for index in (0, 1)]
        latest = [copy(index, held(1, 4), [ONE], taken_ms=1) for index in (0, 1)]
        older = [copy(index, held(1, 2), [ONE]) for index in (0, 1)]
        plan = plan_restore([*copies, *older, latest[0]], unusable=latest[1:], latest=latest)
        assert (plan.epoch, plan.lost_epochs) == (4, 0)
        plan = plan_restore([*older, latest[0]], unusable=latest[1:], latest=latest)
        assert (plan.epoch, plan.lost_epochs) == (2, 2)

    @pytest.mark.parametrize("latest", [True, False])
    def test_the_time_before_the_first_epoch_is_not_what_a_time_finds(self, latest):
        """It was never closed."""
        copies = [copy(index, held(1, 3), [ONE]) for index in (0, 1)]
        with pytest.raises(EpochNotHeldError) as refused:
            plan_restore(copies, at_ms=LINE[0].closed_ms - 1, latest=copies if latest else ())
        assert "--epoch 0" in refused.value.remedy
        assert plan_restore(copies, at_ms=LINE[0].closed_ms).epoch == 1
        assert plan_restore(copies, epoch=0).epoch == 0


class TestKeeping:
    """Which backups a pruning leaves."""

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            ("24", KeepRule(count=24)),
            ("7d", KeepRule(age_s=7 * 86400.0)),
            ("90d/1d", KeepRule(age_s=90 * 86400.0, every_s=86400.0)),
        ],
    )
    def test_rules_are_read(self, text, rule):
        """A count, an age, or one per time."""
        assert parse_keep(text) == rule

    @pytest.mark.parametrize("text", ["0", "", "-1", "x", "7d/", "7d/0", "/1d", "1d/x"])
    def test_what_is_no_rule_is_refused(self, text):
        """Nothing is guessed where backups are removed."""
        with pytest.raises(ConfigurationError):
            parse_keep(text)

    def test_a_count_keeps_the_newest(self):
        """Exactly that many."""
        assert backups_to_keep(TAKEN, [KeepRule(count=3)], 0) == {"b97", "b98", "b99"}

    def test_an_age_keeps_what_is_younger(self):
        """The limit itself included."""
        kept = backups_to_keep(TAKEN, [KeepRule(age_s=7200.0)], 99 * HOUR_MS)
        assert kept == {"b97", "b98", "b99"}

    def test_one_a_day_is_the_last_of_each(self):
        """Of days by the clock, so that the same are kept whenever one looks."""
        rule = KeepRule(age_s=365 * 86400.0, every_s=86400.0)
        assert backups_to_keep(TAKEN, [rule], 99 * HOUR_MS) == {"b23", "b47", "b71", "b95", "b99"}

    def test_an_age_is_counted_from_the_latest_at_most(self):
        """A clock that is days ahead, and backups that have stopped, remove nothing; one that is behind keeps more."""
        rule = KeepRule(age_s=7200.0)
        for ahead in (0, 1, 24 * 365):
            assert backups_to_keep(TAKEN, [rule], (99 + ahead) * HOUR_MS) == {"b97", "b98", "b99"}
        assert backups_to_keep(TAKEN, [rule], 90 * HOUR_MS) == {f"b{n}" for n in range(88, 100)}

    def test_the_order_of_the_backups_counts(self):
        """It is that of their terms; the time of the latest may be an earlier one."""
        taken = [("late", 9 * HOUR_MS), ("before", 3 * HOUR_MS), ("latest", 2 * HOUR_MS)]
        assert backups_to_keep(taken, [KeepRule(count=2)], 9 * HOUR_MS) == {"before", "latest"}

    def test_the_newest_always_stays(self):
        """However old it is, and without any rule."""
        assert backups_to_keep(TAKEN, [KeepRule(age_s=1.0)], 10**15) == {"b99"}
        assert backups_to_keep(TAKEN, [], 10**15) == {"b99"}
        assert backups_to_keep([], [KeepRule(count=1)], 0) == set()

    def test_rules_add_up(self):
        """What any of them keeps is kept."""
        rules = [KeepRule(count=1), KeepRule(age_s=3 * 3600.0)]
        assert len(backups_to_keep(TAKEN, rules, 99 * HOUR_MS)) == 4

    def test_pruning_again_keeps_the_same(self):
        """With the same clock nothing more is removed, whatever was removed before."""
        generator = random.Random(1)
        for _ in range(50):
            taken = [(f"b{n}", generator.randrange(400) * HOUR_MS) for n in range(40)]
            rules = [KeepRule(count=3), KeepRule(age_s=200 * 3600.0, every_s=86400.0)]
            kept = backups_to_keep(taken, rules, 400 * HOUR_MS)
            assert backups_to_keep([each for each in taken if each[0] in kept], rules, 400 * HOUR_MS) == kept
