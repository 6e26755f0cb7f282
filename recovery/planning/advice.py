"""Advice on snapshot interval, partitions and size of a store: pure functions of the measures of its runs.

Users see the arithmetic, so it is simple. A snapshot costs time on threads beside the stream; after a crash, the run
reprocesses the micro-batches since the last snapshot. So the longest interval that recovers in time is as many
micro-batches as fit into the tolerated time, and the cost of snapshots at an interval is

    cost of a snapshot ÷ (time of a micro-batch × micro-batches in the interval)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from recovery.base.intervals import format_interval
from recovery.base.wording import counted
from recovery.planning.health import format_bytes, format_seconds
from recovery.planning.measures import Measure

NEEDED_EPOCHS = 3
RECENT = 100
CHEAP = 0.01
"""A share of the stream's time that is too small to save: a longer interval would save less than this."""
DEAR = 0.15
SMALL_STEPS = (1, 2, 5, 10, 15, 20, 30, 60)
LARGE_PARTITION_BYTES = 20e9
"""Above this a full check, a copy and a restore of one file take minutes."""


@dataclass(frozen=True, slots=True)
class Known:
    """The input of `advise`. Sizes are bytes, times seconds.

    snapshot_interval_s, backup_interval_s: of the newest execution; None: there was none.
    live_rows, live_bytes: of the newest snapshot. superseded_rows: kept for going back. file_bytes: on disk.
    partition_bytes: live bytes of each partition. cores: of the machine that asks.
    """

    measures: Sequence[Measure]
    snapshot_interval_s: float | None
    backup_interval_s: float | None
    partitions: int
    cores: int
    live_rows: int
    live_bytes: int | None
    superseded_rows: int
    file_bytes: int
    partition_bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Option:
    """A snapshot interval, the share of the stream's time that its snapshots take, and the worst recovery time."""

    interval_s: float
    batches: int
    overhead: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class IntervalAdvice:
    """Medians of the measures, what follows from them, and the proposal; `options` includes the present interval."""

    tolerate_s: float
    batch_s: float
    snapshot_s: float
    resume_s: float
    tolerated_batches: int
    proposed: Option
    present: Option | None
    options: tuple[Option, ...]
    why: str


@dataclass(frozen=True, slots=True)
class PartitionAdvice:
    """The present and the proposed number of partitions. The number is fixed when a store is created."""

    present: int
    proposed: int
    skew: float
    why: str


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """The estimate keys × (key + value) × versions kept, now and at the proposed interval."""

    keys: int
    row_bytes: float
    versions: float
    estimate_bytes: float
    file_bytes: int
    versions_proposed: float | None
    estimate_proposed_bytes: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """All advice that the measures allow. `missing` names the rest, with reasons."""

    epochs: int
    interval: IntervalAdvice | None
    partitions: PartitionAdvice
    size: SizeEstimate | None
    missing: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the advice as JSON values."""
        return asdict(self)


def advise(known: Known, tolerate_s: float) -> Advice:
    """Return the advice for recovery within `tolerate_s` after a crash, not counting the start of Spark."""
    usable = [m for m in known.measures if m.epoch and m.batches and m.batch_s > 0][-RECENT:]
    missing = []
    interval = None
    if len(usable) < NEEDED_EPOCHS:
        count = counted(len(usable), "epoch")
        missing.append(
            f"not enough is measured yet for a snapshot interval: {count} with micro-batches of {NEEDED_EPOCHS} needed"
        )
    else:
        interval = _interval(known, usable, tolerate_s)
    if known.live_bytes is None:
        missing.append("the size of the state is unknown: no run of this version has written to the files yet")
    elif not known.live_rows:
        missing.append("there is no state yet, so its size cannot be estimated")
    size = _size(known, usable, interval) if known.live_rows and known.live_bytes is not None else None
    return Advice(len(usable), interval, _partitions(known), size, tuple(missing))


def _interval(known: Known, usable: Sequence[Measure], tolerate_s: float) -> IntervalAdvice:
    batch_s = statistics.median(m.batch_s / m.batches for m in usable)
    snapshot_s = statistics.median(m.snapshot_s for m in usable)
    resume_s = statistics.median(m.resume_s for m in usable)

    def option(batches: int) -> Option:
        span_s = batches * batch_s
        return Option(span_s, batches, snapshot_s / span_s, recovery_s(span_s))

    def recovery_s(span_s: float) -> float:
        # Worst case: a crash just before the last snapshot is complete also loses what was processed beside it.
        return resume_s + span_s + min(snapshot_s, span_s)

    left_s = tolerate_s - resume_s
    tolerated = max(1, math.floor(max(left_s - snapshot_s, left_s / 2) / batch_s)) if left_s > 0 else 1
    longest = option(tolerated)
    # Just rare enough that the cost is negligible: a longer interval would only reprocess more micro-batches.
    cheap = max(1, math.ceil(snapshot_s / (CHEAP * batch_s)))
    chosen = option(min(tolerated, cheap))
    # A round number, but never beyond the tolerated time.
    setting_s = _rounded_down(longest.interval_s) if cheap >= tolerated else _rounded_up(chosen.interval_s)
    setting_s = min(setting_s, longest.interval_s)
    proposed = Option(setting_s, max(1, round(setting_s / batch_s)), snapshot_s / max(setting_s, batch_s),
                      recovery_s(max(setting_s, batch_s)))  # fmt: skip
    present = None
    if known.snapshot_interval_s is not None:
        span_s = max(known.snapshot_interval_s, batch_s)
        present = Option(
            known.snapshot_interval_s, math.ceil(span_s / batch_s), snapshot_s / span_s, recovery_s(span_s)
        )
    options = {proposed, *([present] if present else [])}
    for each in (option(1), longest):
        # Two nearly equal options would only confuse.
        if not any(0.8 <= each.interval_s / max(other.interval_s, batch_s) <= 1.25 for other in options):
            options.add(each)
    ordered = tuple(sorted(options, key=lambda each: each.interval_s))
    return IntervalAdvice(
        tolerate_s, batch_s, snapshot_s, resume_s, tolerated, proposed, present, ordered,
        _why_interval(tolerate_s, batch_s, snapshot_s, resume_s, tolerated, cheap, proposed),
    )  # fmt: skip


def _why_interval(
    tolerate_s: float,
    batch_s: float,
    snapshot_s: float,
    resume_s: float,
    tolerated: int,
    cheap: int,
    proposed: Option,
) -> str:
    beside_s = max(0.0, min(snapshot_s, (tolerate_s - resume_s) / 2))
    fits = (
        f"{format_seconds(tolerate_s)} − {format_seconds(resume_s)} to resume − {format_seconds(beside_s)} to "
        f"write the snapshot, ÷ {format_seconds(batch_s)} per micro-batch: at most {tolerated} may be repeated"
    )
    cost = (
        f"{format_seconds(snapshot_s)} ÷ ({format_seconds(batch_s)} × {tolerated}) = "
        f"{format_share(snapshot_s / (batch_s * tolerated))} of the stream's time"
    )
    if resume_s + batch_s + min(snapshot_s, batch_s) > tolerate_s:
        end = (
            "Resuming, one micro-batch and writing its snapshot alone take longer than that: shorten the "
            "micro-batches, with a limit on what a source reads per micro-batch, or tolerate more."
        )
    elif cheap < tolerated:
        end = (
            f"At {format_seconds(proposed.interval_s)} a snapshot already costs no more than about "
            f"{format_share(CHEAP)}, so a shorter interval would hardly save any work after a crash."
        )
    elif proposed.overhead > DEAR:
        end = "That share is high: snapshots take much of the processor time. Tolerate more, or touch fewer keys."
    else:
        end = "A shorter interval would cost more, a longer one would take too long to recover."
    return f"{fits}. At the longest interval a snapshot costs {cost}. {end}"


def _partitions(known: Known) -> PartitionAdvice:
    mean = sum(known.partition_bytes) / len(known.partition_bytes) if known.partition_bytes else 0.0
    skew = max(known.partition_bytes) / mean if mean else 1.0
    by_size = math.ceil(sum(known.partition_bytes) / LARGE_PARTITION_BYTES)
    proposed = max(known.cores, by_size)
    if known.cores <= known.partitions <= 4 * known.cores and known.partitions >= by_size:
        cores = counted(known.cores, "core")
        partitions = "1 partition suits" if known.partitions == 1 else f"{known.partitions} partitions suit"
        why = f"{partitions} {cores}: about one task a core per step."
        proposed = known.partitions
    elif proposed > known.partitions:
        reason = f"{known.cores} cores" if proposed == known.cores else f"{format_bytes(sum(known.partition_bytes))}"
        why = (
            f"Fewer partitions than {reason} ask for: cores stay idle, or files take long to check and copy. The "
            "number is fixed when a store is made, so this is for the next one."
        )
    else:
        why = (
            f"More than {counted(4 * known.cores, 'partition')} on {counted(known.cores, 'core')} cost time in every "
            "micro-batch and epoch, "
            "for files that hold little. The number is fixed when a store is made, so this is for the next one."
        )
    if skew > 2 and known.live_rows >= 100 * known.partitions:
        why += f" The largest partition holds {skew:.1f} times the mean: a few keys are much larger than all other "
        "keys."
    return PartitionAdvice(known.partitions, proposed, skew, why)


def _size(known: Known, usable: Sequence[Measure], interval: IntervalAdvice | None) -> SizeEstimate:
    assert known.live_bytes is not None
    row_bytes = known.live_bytes / known.live_rows
    versions = 1 + known.superseded_rows / known.live_rows
    proposed = None
    if interval is not None and usable:
        per_epoch = statistics.median(m.written for m in usable)
        per_batch = statistics.median(m.written / m.batches for m in usable)
        batches = max(1, interval.proposed.batches)
        # An epoch writes a recurring key once: at most all keys, at least as many as one micro-batch writes now.
        written = min(known.live_rows, max(min(per_epoch, per_batch), per_batch * batches))
        held = math.ceil((known.backup_interval_s or 0) / max(interval.proposed.interval_s, interval.batch_s)) + 1
        proposed = 1 + written * held / known.live_rows
    estimate = known.live_rows * row_bytes * versions
    why = (
        f"{counted(known.live_rows, 'row')} (with the run's own) × {counted(round(row_bytes), 'byte')} of key and "
        f"value × "
        f"{_versions(versions)} kept = "
        f"{format_bytes(estimate)}; the files take {format_bytes(known.file_bytes)}, with digests and free space"
    )
    if proposed is not None:
        why += (
            f". With the proposed interval and a backup interval of {format_interval(known.backup_interval_s or 0)}: "
            f"up to {_versions(proposed)}, {format_bytes(known.live_bytes * proposed)}"
        )
    return SizeEstimate(
        known.live_rows, row_bytes, versions, estimate, known.file_bytes,
        proposed, None if proposed is None else known.live_bytes * proposed, why + ".",
    )  # fmt: skip


def _versions(factor: float) -> str:
    """Return how often the state is held, superseded values included: 1 version, 1.25 versions, 7,358 versions."""
    return f"{factor:.3g} version{'s' * (f'{factor:.3g}' != '1')}" if factor < 10 else counted(round(factor), "version")


def _rounded_up(seconds: float) -> float:
    """Return the next larger interval that a person would write."""
    if seconds <= 1:
        return math.ceil(seconds * 10) / 10
    return next((float(step) for step in SMALL_STEPS if step >= seconds), math.ceil(seconds / 60) * 60.0)


def _rounded_down(seconds: float) -> float:
    """Return the next smaller interval that a person would write; below 1 s, return `seconds`."""
    if seconds < 1:
        return seconds
    if seconds >= 120:
        return math.floor(seconds / 60) * 60.0
    return max(float(step) for step in SMALL_STEPS if step <= seconds)


def format_share(share: float) -> str:
    """Return a share as text like "3.4 %" or "1.7 times"."""
    return f"{100 * share:.2g} %" if share < 1 else f"{share:.1f} times"
