"""What runs now, and the partitions: the pages Flow and Partitions."""

from __future__ import annotations

from typing import Any

from recovery.planning.measures import Measure
from recovery.report.facts import advice_of
from recovery.ui.facts.flows import Look, ShownFlow
from recovery.ui.facts.limits import page_of

SHOWN_EXECUTIONS = 10


def flow_facts(flow: ShownFlow) -> dict[str, Any]:
    """Return what `status --json` prints, with the newest executions only and without the list of partitions, which
    `partition_facts` has; besides:

    {"running_since_ms", "batch", "rows_per_s", "epoch_s", "partition_count", "advice": {target: what to do}}
    """
    look = flow.look()
    status = {name: value for name, value in look.status.items() if name not in ("partitions", "executions", "flow")}
    newest = look.gathered.epochs[-1] if look.gathered.epochs else None
    began = look.status["executions"][-1:] if look.status["lock"] is not None else []
    return flow.answer(look, {
        **status,
        "id": look.status["flow"],
        "executions": look.status["executions"][-SHOWN_EXECUTIONS:],
        "partition_count": len(look.status["partitions"]),
        "running_since_ms": began[0]["started_ms"] if began else None,
        "batch": None if newest is None else newest.batch,
        **_rate(look, newest),
        "advice": {each.target.name: text for each in look.gathered.health if (text := advice_of(each)) is not None},
    })  # fmt: skip


def _rate(look: Look, newest: Measure | None) -> dict[str, float | None]:
    """Return the seconds between the newest two epochs of one execution, and the rows that came in a second."""
    before = look.gathered.epochs[-2:-1]
    if newest is None or not before or before[0].execution != newest.execution:
        return {"epoch_s": None, "rows_per_s": None}
    seconds = (newest.measured_ms - before[0].measured_ms) / 1000
    return {"epoch_s": seconds, "rows_per_s": newest.input_rows / seconds if seconds > 0 else None}


def partition_facts(flow: ShownFlow, *, after: int | None = None, limit: int | None = None) -> dict[str, Any]:
    """Return a range of the partitions as `status --json` prints them: {"partitions": […], "next"}. after: the number
    of the last one on the page before."""
    look = flow.look()
    rows, following = page_of(look.status["partitions"], after, limit)
    return flow.answer(look, {"partitions": rows, "next": following, "count": len(look.status["partitions"])})
