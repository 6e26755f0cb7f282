"""`recovery checkpoint import --into-step`: its options, and what it prints."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from recovery.base.clock import SystemClock
from recovery.base.ids import StepId
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.checkpoint.directories import CheckpointDirectory
from recovery.cli.checkpoint_progress import CheckpointProgress
from recovery.cli.common import print_json, say
from recovery.cli.dry_run import dry_run_option
from recovery.cli.flow_loader import load_function
from recovery.cli.option import option
from recovery.operators.into_step import IntoStep, StepImport, import_into_step
from recovery.storage.store import Store

F = TypeVar("F", bound=Callable[..., Any])


class StepOptions(NamedTuple):
    """The options of an import into a step, as given."""

    step: str | None
    function: str | None
    state: str | None
    processing_time: bool
    dry_run: bool

    def wanted(self) -> IntoStep | None:
        """Return what the options ask for; None: no step. Raises UsageError for options that need --into-step, and
        FlowLoadError."""
        if self.step is None:
            if any(self[1:]):
                raise click.UsageError("--map, --state-type, --processing-time and --dry-run need --into-step.")
            return None
        function = None if self.function is None else load_function(self.function)
        return IntoStep(StepId(self.step), function, self.state, self.processing_time)


def step_options(function: F) -> F:
    """Add the options of an import into a step, which the command gets as `into`."""

    @functools.wraps(function)
    def gathered(into_step: str | None, function_: str | None, state: str | None, **more: Any) -> Any:
        into = StepOptions(into_step, function_, state, more.pop("processing_time"), more.pop("dry_run"))
        return function(into=into, **more)

    for add in reversed(
        (
            option("--into-step", metavar="STEP", without="Spark's operators stay as they are",
                   help="Make the state of the job's `applyInPandasWithState` or `transformWithState` "
                        "[the state of this step](coming-from-spark.md#the-state-comes-along). Starts Spark."),
            option("--map", "function_", metavar="MODULE:FUNCTION", without="each state as it is",
                   help="With --into-step: the function `map(key, state)` that returns the step's state of a key; None "
                        "leaves the key out. `map(key, state, times)` returns state and timeout."),
            option("--state-type", "state", was="--state", metavar="COLUMNS",
                   without="the type of what --map returns, or the job's columns",
                   help="With --into-step: `state=` of the step, if those are columns or \"pickle\"."),
            option("--processing-time", is_flag=True,
                   help="With --into-step: say that the job's timeouts are `ProcessingTimeTimeout`."),
            dry_run_option("With --into-step: read and check everything; write nothing."),
        )
    ):  # fmt: skip
        gathered = add(gathered)
    return gathered  # type: ignore[return-value]


def import_step(
    there: CheckpointDirectory,
    directory: Path,
    store: Store,
    flow_id: str,
    wanted: IntoStep,
    spark: Any,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Import the state of the operator at `there` into a step, and print what was done."""
    from recovery.spark.sources.operator_keys import keys_reader
    from recovery.spark.steps.stateful import stored_type

    clock = SystemClock()
    wanted = replace(wanted, state=stored_type(wanted.step, wanted.state))
    read = keys_reader(spark, clock.wall_ms())
    with CheckpointProgress(quiet=as_json) as progress:
        done = import_into_step(
            there, store, flow_id, wanted, read, clock=clock, dry_run=dry_run, observe=progress.observe
        )
    if as_json:
        print_json({"from": there.shown, "directory": str(directory), **_facts(done, dry_run=dry_run)})
    else:
        say(_text(done, directory))


def _facts(done: StepImport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "flow": done.flow_id,
        "step": done.step,
        "dry_run": dry_run,
        "epoch": done.epoch,
        "batch": done.batch,
        "operator": done.operator.as_json(),
        "keys": done.keys,
        "left_out": done.left_out,
        "expired": done.expired,
        "timeouts": done.timeouts,
    }


def _text(done: StepImport, directory: Path) -> str:
    counts = [counted(done.keys, "key"), f"{done.timeouts:,} with a timeout"]
    counts += [f"{done.left_out:,} left out"] if done.left_out else []
    counts += [f"{done.expired:,} expired"] if done.expired else []
    operator = f"operator {done.operator.number} ({one_line(done.operator.name)})"
    verb = "would import" if done.epoch is None else "imported"
    lines = [
        f"{verb} {operator} into step {one_line(done.step)} of flow {one_line(done.flow_id)}: {', '.join(counts)}; "
        f"a run goes on after micro-batch {done.batch}"
    ]
    if done.epoch is not None:
        lines.append(f"Next: python -m recovery run flow.py -r {one_line(directory)}")
    return "\n".join(lines)
