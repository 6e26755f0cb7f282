"""The steps: what each declares, how much state it has, how that grows, and its largest keys."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from recovery.base.reserved import RESERVED_PREFIX
from recovery.base.threads import limited
from recovery.errors import EpochNotHeldError, LookLimitError, RecoveryError
from recovery.planning.measures import Measure
from recovery.report.facts import largest
from recovery.storage.history import MOST_DUE
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.keys import key_row
from recovery.ui.facts.limits import check_time, spending

POINTS = 100
"""The most points of growth of a step."""
LARGEST_OF = 200_000
"""The largest keys are looked for where there are no more keys than this: that reads all of them."""
LARGEST = 10
SAMPLE = 5
MOST_SAMPLE_BYTES = 64 << 10
"""The sample of one partition ends where its values have this much."""
DUE = {"now": 0, "within_minute": 60_000, "within_hour": 3_600_000}
"""The moments up to which timeouts are counted, milliseconds from now."""
EXTRA_S = 0.3
"""The processor time in which a request looks for timeouts, for samples, and for the largest keys, of all steps."""
LONGEST_S = 2.0
"""How long the request may wait for one of these: a partition's log may be long, or its disk slow."""
ALL_S = 4.0
"""How long it may wait for all of them."""
T = TypeVar("T")


def step_facts(flow: ShownFlow) -> dict[str, Any]:
    """Return {"steps": […], "operators": […]}.

    steps: {"step", "declaration", "keys", "bytes", "growth", "quarantine", "largest", "due", "sample", "problem"}.
    declaration: as in `status --json`; None: the step declares nothing. growth: [{"epoch", "closed_ms", "keys",
    "bytes"}], the oldest first.
    largest: [{"key", "bytes"}]; None: the flow has too many keys to look for them, and `report --keys` does it.
    due: timeouts in the newest snapshots: {"earliest_ms", "now", "within_minute", "within_hour", "is_cut"}: how many
    are due by now, and up to a minute and an hour later; is_cut: a partition has more, of which `MOST_DUE` count; None:
    not counted. sample: a few keys of partitions far from each other, as `page_facts` shows them; None: not looked for.
    problem: the error for which that is so, as of a damaged state; None: they are there, or took too long.
    operators: Spark's own, as in `status --json`.
    """
    look = flow.look()
    sizes = {step: size for step, size in look.gathered.steps.items() if not step.startswith(RESERVED_PREFIX)}
    known = dict.fromkeys([*look.status["steps"], *sizes])
    until_s = time.monotonic() + ALL_S
    most = within(until_s, EXTRA_S, partial(largest_keys, look, sum(size.rows for size in sizes.values())))
    now_ms = flow.clock.wall_ms()
    steps = [
        {
            "step": step,
            "declaration": look.status["schemas"].get(step),
            "keys": sizes[step].rows if step in sizes else None,
            "bytes": sizes[step].size_bytes if step in sizes else None,
            "growth": _growth(look.measures, step),
            "quarantine": look.status["quarantine"].get(step),
            "largest": None if most is None else most.get(step, []),
            **_some_of(look, step, now_ms, until_s, EXTRA_S / len(known)),
        }
        for step in known
    ]
    return flow.answer(look, {"steps": steps, "operators": look.status["operators"]})


def _some_of(look: Look, step: str, now_ms: int, until_s: float, cpu_s: float) -> dict[str, Any]:
    """Return a step's timeouts and its sample. What is damaged is said, and hides nothing else."""
    found: dict[str, Any] = {"due": None, "sample": None, "problem": None}
    try:
        found["due"] = within(until_s, cpu_s, partial(due_timeouts, look, step, now_ms))
        found["sample"] = within(until_s, cpu_s, partial(sample, look, step))
    except RecoveryError as error:
        found["problem"] = error.as_json()
    return found


def largest_keys(look: Look, keys: int) -> dict[str, list[dict[str, Any]]] | None:
    """Return the largest keys by step, of all steps together; None if there are more than `LARGEST_OF`."""
    if keys > LARGEST_OF:
        return None
    found: dict[str, list[dict[str, Any]]] = {}
    for step, key, size_bytes in largest(look.store, look.gathered, LARGEST, check_time):
        found.setdefault(step, []).append({"key": key, "bytes": size_bytes})
    return found


def within(until_s: float, cpu_s: float, read: Callable[[], T]) -> T | None:
    """Return what is read; None if that takes until `until_s` or more processor time, or a run collected its epoch
    meanwhile."""
    try:
        with limited(min(LONGEST_S, until_s - time.monotonic())), spending(cpu_s):
            return read()
    except (LookLimitError, EpochNotHeldError):
        return None


def due_timeouts(look: Look, step: str, now_ms: int) -> dict[str, Any]:
    """Return how many timeouts of a step are due, over all partitions, and the earliest."""
    earliest: list[int] = []
    counts, is_cut = [0] * len(DUE), False
    for reader in () if look.at is None else look.at.readers:
        check_time()
        found = reader.due(step, [now_ms + ahead_ms for ahead_ms in DUE.values()])
        counts = [one + more for one, more in zip(counts, found.counts, strict=True)]
        is_cut = is_cut or max(found.counts) >= MOST_DUE
        earliest += [] if found.earliest_ms is None else [found.earliest_ms]
    return {"earliest_ms": min(earliest, default=None), **dict(zip(DUE, counts, strict=True)), "is_cut": is_cut}


def sample(look: Look, step: str) -> list[dict[str, Any]]:
    """Return a few keys of a step with their states: the first ones of partitions far from each other."""
    at = look.at
    if at is None:
        return []
    # The rows of steps whose changes are only logged are not counted yet.
    sizes = [look.gathered.sizes.get(reader.path.name) for reader in at.readers]
    having = [reader for reader, size in zip(at.readers, sizes, strict=True) if size and step in size] or at.readers
    some = having[:: max(1, len(having) // SAMPLE)]
    each = -(-SAMPLE // len(some))
    rows: list[dict[str, Any]] = []
    for reader in some:
        check_time()
        found = reader.page(step, at.cut, "", None, min(each, SAMPLE - len(rows)), MOST_SAMPLE_BYTES)
        rows += [key_row(state) for state in found]
        if len(rows) >= SAMPLE:
            break
    return rows


def _growth(epochs: list[Measure], step: str) -> list[dict[str, Any]]:
    """Return the sizes of a step over time, in at most `POINTS` points, the newest among them."""
    measured = [each for each in epochs if step in each.steps]
    stride = max(1, -(-len(measured) // POINTS))
    chosen = measured[::-1][::stride][::-1]
    return [
        {
            "epoch": each.epoch,
            "closed_ms": each.measured_ms,
            "keys": each.steps[step].rows,
            "bytes": each.steps[step].size_bytes,
        }
        for each in chosen
    ]
