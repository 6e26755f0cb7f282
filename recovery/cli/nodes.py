"""The output of `recovery run` for a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from recovery.base.intervals import format_interval
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.common import print_json, tell
from recovery.cli.operational import chosen_backend
from recovery.config import RecoveryConfig
from recovery.operational.runs import RUNNING, NodeRun

if TYPE_CHECKING:
    from recovery.pipeline import Pipeline


def run_nodes(
    pipeline: Pipeline,
    config: RecoveryConfig | None,
    *,
    resume: bool,
    full_refresh: bool,
    no_state_update: bool,
    environment: str,
    master: str,
    conf: Mapping[str, str],
    as_json: bool,
) -> None:
    """Run a pipeline; prints a line per node on standard error, or a JSON document on standard output."""
    from recovery.spark.pipelines.run import run_pipeline

    place = chosen_backend()
    if config is None:
        if place is None:
            raise click.UsageError("A pipeline needs a recovery directory (-r DIR) or a state backend.")
        config = RecoveryConfig(state_backend=place)
    if not as_json:
        tell(one_line(f"{pipeline.name}: starting Spark …"))

    def show(name: str, node: NodeRun) -> None:
        if not as_json:
            tell(_line(name, node))

    summary = run_pipeline(
        pipeline, config, resume=resume, full_refresh=full_refresh, no_state_update=no_state_update,
        environment=environment, master=master, conf=conf, observer=show,
    )  # fmt: skip
    if as_json:
        print_json({"pipeline": summary.pipeline, "run_id": summary.run_id, "nodes": {
            name: {**node.facts(), **node.details} for name, node in summary.nodes.items()
        }})  # fmt: skip
    else:
        tell(one_line(f"{pipeline.name}: {counted(len(summary.nodes), 'node')} done"))


def _line(name: str, node: NodeRun) -> str:
    text = f"{name}: {node.status}"
    if node.status != RUNNING and node.duration_s is not None:
        rows = "" if node.rows is None else f", {counted(node.rows, 'row')}"
        text += f"{rows} in {format_interval(node.duration_s)}"
    nulls = {key: count for key, count in node.details.get("nulls", {}).items() if count}
    if nulls:
        text += "; NULL or NaN in the column: " + ", ".join(
            f"{counted(count, 'row')} of {key}" for key, count in nulls.items()
        )
    future = node.details.get("future_marks")
    if future:
        text += f"; the mark of {', '.join(future)} is in the future: until then, loads skip new rows"
    text = one_line(text)
    return f"{text}: {node.error}" if node.error else f"{text} ({one_line(node.why)})"
