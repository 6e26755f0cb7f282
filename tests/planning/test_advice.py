"""Advice is arithmetic over what was measured."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from recovery.planning.advice import NEEDED_EPOCHS, Known, advise
from recovery.planning.measures import Measure


def measures(count, *, batch_s=0.5, batches=4, snapshot_s=1.0, resume_s=1.0, written=100):
    """Epochs that are all the same."""
    return [
        Measure(execution=1, epoch=n + 1, measured_ms=n, resume_s=resume_s, batches=batches, batch_s=batch_s * batches,
                snapshot_s=snapshot_s, written=written)
        for n in range(count)
    ]  # fmt: skip


def known(found, **fields):
    """A store of two partitions with a thousand keys of a hundred bytes."""
    facts = {
        "snapshot_interval_s": 10.0, "backup_interval_s": 0.0, "partitions": 2, "cores": 2, "live_rows": 1_000,
        "live_bytes": 100_000, "superseded_rows": 500, "file_bytes": 300_000, "partition_bytes": [50_000, 50_000],
    } | fields  # fmt: skip
    return Known(measures=found, **facts)


def test_the_interval_is_what_may_come_again():
    """30 s − 1 s to resume − 1 s to write the snapshot, ÷ 0.5 s a micro-batch: 56 of them; a snapshot of 1 s
    costs 3.6 % of that."""
    interval = advise(known(measures(5)), 30.0).interval
    assert interval.tolerated_batches == 56
    longest = max(interval.options, key=lambda option: option.interval_s)
    assert (longest.interval_s, longest.recovery_s) in {(28.0, 30.0), (20.0, 22.0)}
    assert interval.proposed.interval_s == 20.0
    assert interval.proposed.recovery_s == 22.0
    assert "1 s ÷ (500 ms × 56) = 3.6 % of the stream's time" in interval.why


def test_no_longer_than_it_takes_to_be_cheap():
    """When snapshots cost next to nothing, there is no reason to let more come again."""
    interval = advise(known(measures(5, snapshot_s=0.01)), 600.0).interval
    assert interval.proposed.interval_s == 1.0
    assert interval.proposed.overhead <= 0.02
    assert "hardly save any work" in interval.why


def test_a_target_that_cannot_be_reached_is_reported():
    """When one micro-batch alone takes longer than is tolerated."""
    interval = advise(known(measures(5, batch_s=60.0)), 30.0).interval
    assert interval.tolerated_batches == 1
    assert "alone take longer than that" in interval.why


def test_too_few_measures_are_reported():
    """Starts and epochs without micro-batches do not count."""
    found = [*measures(NEEDED_EPOCHS - 1), Measure(execution=1, epoch=9, measured_ms=0, resume_s=0.1)]
    advice = advise(known(found), 30.0)
    assert advice.interval is None
    assert "2 epochs with micro-batches of 3 needed" in advice.missing[0]
    empty = advise(known([], live_rows=0, live_bytes=0), 30.0)
    assert empty.size is None
    assert "no state yet" in empty.missing[1]
    older = advise(known([], live_bytes=None), 30.0)
    assert "is unknown" in older.missing[1]


def test_the_size_is_keys_times_bytes_times_versions():
    """1,000 keys of 100 bytes, and half as many superseded."""
    size = advise(known(measures(5)), 30.0).size
    assert (size.keys, size.row_bytes, size.versions, size.estimate_bytes) == (1_000, 100.0, 1.5, 150_000.0)
    assert size.versions_proposed >= 1


def test_partitions_follow_cores_and_size():
    """About one a core; more when files would be huge; a skew is reported."""
    assert advise(known([], partitions=2, cores=2), 30.0).partitions.proposed == 2
    assert advise(known([], partitions=8, cores=2), 30.0).partitions.proposed == 8
    assert advise(known([], partitions=2, cores=8), 30.0).partitions.proposed == 8
    assert advise(known([], partitions=64, cores=4), 30.0).partitions.proposed == 4
    huge = known([], partitions=2, cores=2, partition_bytes=[100 * 10**9, 100 * 10**9])
    assert advise(huge, 30.0).partitions.proposed == 10
    skewed = advise(known([], partitions=4, cores=4, partition_bytes=[99_000, 500, 500, 500]), 30.0)
    assert "3.9 times the mean" in skewed.partitions.why


seconds = st.floats(0.001, 1_000)


@given(st.integers(3, 20), seconds, seconds, seconds, seconds, st.integers(1, 50), st.integers(0, 10_000))
def test_the_proposal_keeps_its_promise(count, batch_s, snapshot_s, resume_s, tolerate_s, batches, written):
    """It recovers in time, unless one micro-batch alone does not; what it says adds up; it is a JSON document."""
    found = measures(count, batch_s=batch_s, snapshot_s=snapshot_s, resume_s=resume_s, batches=batches, written=written)
    advice = advise(known(found), tolerate_s)
    interval = advice.interval
    assert interval.proposed.interval_s > 0
    if resume_s + batch_s + min(snapshot_s, batch_s) <= tolerate_s:
        assert interval.proposed.recovery_s <= tolerate_s * 1.0001 + 1e-9
        assert interval.tolerated_batches * batch_s + resume_s <= tolerate_s * 1.0001 + 1e-9
    else:
        assert interval.tolerated_batches == 1
    assert interval.proposed in interval.options
    assert list(interval.options) == sorted(interval.options, key=lambda option: option.interval_s)
    assert advice.size.estimate_proposed_bytes >= 100_000
    json.dumps(advice.as_json())


@given(seconds, seconds, seconds, seconds)
def test_tolerating_more_never_costs_more(batch_s, snapshot_s, resume_s, tolerate_s):
    """A longer tolerated time gives an interval that is no shorter, and snapshots that take no more of the time."""
    found = measures(3, batch_s=batch_s, snapshot_s=snapshot_s, resume_s=resume_s)
    less, more = (advise(known(found), each).interval for each in (tolerate_s, 3 * tolerate_s))
    assert more.tolerated_batches >= less.tolerated_batches
    longest = [max(each.options, key=lambda option: option.interval_s) for each in (less, more)]
    assert longest[1].overhead <= longest[0].overhead + 1e-9 or longest[0] == less.present


def test_versions_are_numbers_that_a_person_reads():
    """Neither thousandths of a version nor thousands with decimals."""
    long = known(measures(10, written=1_000), backup_interval_s=7 * 86400.0)
    why = advise(long, 30.0).size.why
    assert "1.5 versions kept" in why
    assert re.search(r"up to \d{1,3}(,\d{3})+ versions", why)
