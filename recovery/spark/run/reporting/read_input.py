"""What an execution has read, for the next run: which sources, up to where, and when the next timeout is due."""

from __future__ import annotations

from recovery.idle import iceberg
from recovery.idle.note import FlowInput, NotedSource
from recovery.idle.sources import noted_source
from recovery.planning.sink_work import SinkWork
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.run.execution import FlowRun
from recovery.spark.run.parts.lagging import group_of


def read_input(run: FlowRun) -> FlowInput:
    """Return what an execution has read. It has ended without an error."""
    sources = [_noted(run.bound, place) for place in range(len(run.bound.streams))]
    return FlowInput(
        flow=run.prepared.flow_id,
        execution=run.execution.id,
        epoch=run.reports.summary.last_epoch,
        batch=run.closer.closed_batch,
        sources=[each for each in sources if isinstance(each, NotedSource)],
        places=run.bound.sources.to_text(),
        due_ms=run.mailboxes.due_ms,
        group=group_of(run.prepared.config, run.prepared.flow_id),
        why_not=_why_not(run, [each for each in sources if isinstance(each, str)]),
    )  # fmt: skip


def _noted(bound: BoundPlan, place: int) -> NotedSource | str:
    """Return what the note keeps of the source in a place, or why only Spark can ask the source."""
    stream, table = bound.streams[place], bound.tables.get(place)
    kind, options = stream.format, stream.options
    if table is not None and table.directory is not None:
        kind, options = iceberg.DIRECTORY, {**options, "path": table.directory}
    return noted_source(kind, options, plain_is_local=bound.plain_is_local)


def _why_not(run: FlowRun, unknown: list[str]) -> str:
    """Return why only Spark knows whether there is something to do; empty: this package knows, too. unknown: why this
    is so of sources."""
    work = run.delivery.work
    if unknown:
        return unknown[0]
    if run.bound.tables and not run.status.ran_out:
        return "the last run was stopped, and may have left rows of an Iceberg table unread"
    if run.bound.keeps_native_state:
        return "only Spark knows whether its own operators have something to do"
    if isinstance(work, SinkWork) and work.waiting:
        return "records wait at the sink"
    if any(run.bound.sources.labels):
        return "the flow's code names its sources"
    return ""
