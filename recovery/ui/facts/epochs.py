"""The time line: the epochs that executions closed, whether they count, and the runs behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from recovery.base.ids import Epoch
from recovery.errors import ConfigurationError, RecoveryError
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.runs import RunHistory
from recovery.planning.lanes import Lane
from recovery.planning.measures import Measure, measure_json
from recovery.planning.values import ClosedEpoch
from recovery.report.facts import lanes_of
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import rows_wanted

SHOWN_RUNS = 20


class _Known(NamedTuple):
    """An epoch of an execution: what the first partition holds of it, and its measure; None: nothing."""

    held: ClosedEpoch | None
    measure: Measure | None

    @property
    def closed_ms(self) -> int:
        """When the epoch was closed, by wall time."""
        if self.held is not None:
            return self.held.closed_ms
        return 0 if self.measure is None else self.measure.measured_ms


def epoch_facts(flow: ShownFlow, *, before: str | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return a range of the epochs, the newest first: {"epochs": […], "next", "executions", "runs", "backup",
    "replica"}. before: the `next` of the page before.

    epochs: {"execution", "epoch", "closed_ms", "batch", "is_held", "is_abandoned", "duration_s", "measure"}; measure is
    that of `status --json`, None if it was not measured. Of older epochs every 10th is measured, of still older ones
    every 100th, and so on. executions: those of the page: {"number", "started_ms", "first_epoch", "last_epoch",
    "lived_epoch", "abandoned", "rewound", "parent", "host"}. runs: the newest, as `runs --json` prints them: status
    "dead" is a run that was killed.
    """
    look = flow.look()
    wanted, place = rows_wanted(limit), _place(before)
    known = _known(look)
    order = sorted((each for each in known if place is None or each < place), reverse=True)
    page = order[:wanted]
    lanes = {int(lane.execution.number): lane for lane in lanes_of(look.gathered)}
    rows = [_row(look, number, epoch, known, lanes.get(number)) for number, epoch in page]
    shown = {number for number, _ in page}
    return flow.answer(look, {
        "epochs": rows,
        "next": f"{page[-1][0]}.{page[-1][1]}" if len(order) > wanted else None,
        "count": len(known),
        "executions": [_lane(lane) for number, lane in lanes.items() if number in shown or not page],
        "runs": _runs(flow, look),
        "window": look.status["window"],
        "backup": look.status["last_backup"],
        "replica": look.status["replica"],
    })  # fmt: skip


def _known(look: Look) -> dict[tuple[int, int], _Known]:
    """Return each known epoch, by the number of its execution and its own."""
    first = next((each for each in look.gathered.described if each.index == 0), None)
    closed = () if first is None else first.epochs
    held = {(int(e.execution.number), int(e.epoch)): e for e in closed}
    measured = {(measure.execution, measure.epoch): measure for measure in look.gathered.epochs}
    return {each: _Known(held.get(each), measured.get(each)) for each in {*held, *measured}}


def _row(
    look: Look, number: int, epoch: int, known: Mapping[tuple[int, int], _Known], lane: Lane | None
) -> dict[str, Any]:
    held, measure = known[number, epoch]
    closed_ms = known[number, epoch].closed_ms
    before = known.get((number, epoch - 1))
    began_ms = None if before is None else before.closed_ms
    return {
        "execution": number,
        "epoch": epoch,
        "closed_ms": closed_ms,
        "batch": held.batch_id if held is not None else measure.batch if measure is not None else None,
        # A run resumes from what all partitions hold. If none can, `problem` says why.
        "is_held": held is not None and (look.at is None or held.cut in look.at.cuts),
        "is_abandoned": lane is not None and epoch > max(lane.lived, Epoch(lane.first - 1)),
        "duration_s": None if began_ms is None else (closed_ms - began_ms) / 1000,
        "measure": None if measure is None else measure_json(measure),
    }


def _lane(lane: Lane) -> dict[str, Any]:
    return {
        "number": lane.execution.number,
        "started_ms": lane.execution.started_ms,
        "first_epoch": lane.first,
        "last_epoch": lane.last,
        "lived_epoch": lane.lived,
        "abandoned": lane.abandoned,
        "rewound": lane.rewound,
        "parent": lane.parent,
        "host": lane.execution.host,
    }


def _runs(flow: ShownFlow, look: Look) -> list[dict[str, Any]]:
    """Return the newest runs; none if they cannot be read, which is said by the commands that check documents."""
    try:
        history = RunHistory(documents_of(look.store, flow.clock, RetryPolicy()), flow.clock)
        return [run.as_json() for run in history.runs()[:SHOWN_RUNS]]
    except (RecoveryError, ValueError):
        return []


def _place(before: str | None) -> tuple[int, int] | None:
    if before is None:
        return None
    execution, _, epoch = before.partition(".")
    if not all(each.isascii() and each.isdecimal() and len(each) < 20 for each in (execution, epoch)):
        raise ConfigurationError(
            f"{before!r:.80} is not a place in the time line", cause="", remedy="Give the `next` of another answer."
        )
    return int(execution), int(epoch)
