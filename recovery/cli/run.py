"""`recovery run MODULE_OR_FILE[:FLOW]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from recovery.base.intervals import AVAILABLE_NOW
from recovery.base.printable import one_line
from recovery.cli.common import TRIGGER, json_option, print_json, tell, tell_error
from recovery.cli.config_options import config_options
from recovery.cli.nodes import run_nodes
from recovery.cli.operational import chosen_backend, environment_options
from recovery.cli.option import option
from recovery.cli.progress import RunProgress, summary_text
from recovery.cli.promote import take_over_before_run
from recovery.cli.restore import restore_missing
from recovery.cli.settings import chosen_master, settings_options, workers_options
from recovery.config import DEFAULT_MASTER, RecoveryConfig
from recovery.errors import HistoryLossError
from recovery.host.signals import end_now, handle, is_main_thread
from recovery.setting import settings_of
from recovery.storage.standby import is_standby

if TYPE_CHECKING:
    from recovery.flow import Flow
    from recovery.pipeline import Pipeline
    from recovery.spark.run.reporting.events import RunSummary

T = TypeVar("T")
PY_FILES = "spark.submit.pyFiles"
WITHOUT_DIRECTORY = {"directory", "snapshot_interval", "backup_interval", "thresholds", "state_backend"}
"""Fields of the configuration whose options a run without a recovery directory may have: these options change nothing
there."""

FOR_FLOWS = {
    "no_output": "only a flow can be forked",
    "until": "only a flow can be forked",
    "lose_epochs": "a pipeline closes no epochs",
    "lose_input": "a pipeline reads through its nodes",
    "kafka_group": "a pipeline closes no epochs",
    "replicate": "a pipeline closes no epochs",
    "replace_from": "the partitions of a lost owner come back by recovery restore --missing",
    "ui": "recovery ui DIR shows its directory",
    "metrics_port": "`recovery runs` shows what a pipeline did",
}
"""Options that a pipeline refuses, and why."""
FOR_PIPELINES = {
    "resume": "a flow resumes by itself",
    "full_refresh": "a flow has no marks; a rewind to the beginning reads everything again",
    "no_state_update": "a flow has no marks",
}
"""Options that a flow refuses, and why."""


@click.command()
@click.argument("target", metavar="MODULE_OR_FILE[:FLOW]")
@config_options
@option("--from", "source", metavar="SRC",
              help="If the recovery directory holds no partitions, first restore the newest backup at SRC into it. The "
                   "flow begins as soon as [the pages that it reads](backup.md#back-before-its-data) are there; the "
                   "rest follows.")  # fmt: skip
@option("--trigger", type=TRIGGER, default=AVAILABLE_NOW, show_default=True,
              metavar="available-now|once|INTERVAL",
              help="Run to the end of the input, or without end, with this time between micro-batches. once and "
                   "Spark's availableNow are available-now.")  # fmt: skip
@option("--master", default=DEFAULT_MASTER, show_default=True,
              help="Spark's master: local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT. On a "
                   "[cluster](clusters.md), tasks reach the partitions through this host. local[N,F] tries a task F "
                   "times in all.")  # fmt: skip
@workers_options
@option("--py-files", metavar="A.zip,B.py",
              help="On a cluster: modules of the flow to send to the executors; the flow's own file needs none of "
                   "this.")  # fmt: skip
@option("--jars", metavar="A.jar,B.jar",
              help="Jars to load besides those of spark.jars, such as a connector: paths, patterns ('jars/*.jar') or "
                   "addresses.")  # fmt: skip
@option("--packages", metavar="GROUP:ARTIFACT:VERSION,...",
              help="Jars to load from Maven, with their dependencies, besides those of spark.jars.packages. Spark "
                   "fetches and caches the packages.")  # fmt: skip
@settings_options
@option("--resume", is_flag=True,
              help="For a pipeline: skip nodes that succeeded in the last run and need not run again.")  # fmt: skip
@option("--full-refresh", is_flag=True,
              help="For a [pipeline](operational-state.md#pipelines): load everything, as if there were no "
                   "marks.")  # fmt: skip
@option("--no-state-update", is_flag=True, help="For a pipeline: leave the marks where they are.")
@environment_options
@json_option
def run(
    target: str,
    source: str | None,
    trigger: str | float,
    master: str,
    py_files: str | None,
    jars: str | None,
    packages: str | None,
    conf: dict[str, str],
    resume: bool,
    full_refresh: bool,
    no_state_update: bool,
    environment: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Run a flow or a pipeline; give the command again to resume.

    A flow resumes from the latest snapshot that is consistent across all partitions.

    FLOW defaults to `flow`, or else `pipeline`. FLOW names a Flow, a Pipeline, or calls a function that makes one, with
    literal arguments: "jobs.py:make('x')".

    On SIGTERM, Ctrl-C or SIGHUP the run finishes its micro-batch, closes the epoch and ends; on a second signal it ends
    immediately. A pipeline ends immediately, and the next run repeats the node that was running.
    """
    # Not by an exception: the flow's code could catch it while it is imported.
    if is_main_thread():
        handle(end_now)
    master = chosen_master(master)
    ctx = click.get_current_context()
    config = _configuration(ctx, source, given)
    from recovery.pipeline import Pipeline
    from recovery.spark.jvm.jars import with_jars

    if py_files:
        conf = {**conf, PY_FILES: ",".join(filter(None, [conf.get(PY_FILES), py_files]))}
    conf = with_jars(conf, jars, packages)
    flow = _loaded(target, master)
    if isinstance(flow, Pipeline):
        _refuse(ctx, FOR_FLOWS, "flows")
        if config is not None:
            # The variable is meant for flows.
            config = replace(config, replicate=None, replicate_sync=False, replicate_keep=())
            config = _with_partitions(config, source, quiet=as_json)
        asking(
            lambda config: run_nodes(
                flow, config, resume=resume, full_refresh=full_refresh, no_state_update=no_state_update,
                environment=environment, master=master, conf=conf, as_json=as_json,
            ), config
        )  # fmt: skip
        return
    _refuse(ctx, FOR_PIPELINES, "pipelines")
    if config is not None:
        config = _with_partitions(config, source, quiet=as_json)
    elif not as_json:
        tell("No -r given: running without recovery, state is lost at the end.")
    if given["no_output"] and not as_json:
        tell(one_line(f"--no-output: {_sink_text(flow.sink)}; rows are computed and dropped"))
    _run_flow(flow, config, trigger=trigger, master=master, conf=conf, as_json=as_json)


def _loaded(target: str, master: str) -> Flow | Pipeline:
    """Return the flow or pipeline; the environment is as its modules and Spark's workers need it."""
    from recovery.cli.flow_loader import import_paths, load
    from recovery.spark.jvm.session import prepare_environment

    prepare_environment(*import_paths(target), master=master)
    return load(target)


def _configuration(ctx: click.Context, source: str | None, given: dict[str, Any]) -> RecoveryConfig | None:
    """Return the configuration that the options give; None without a recovery directory."""
    if not given["owners"] and ctx.get_parameter_source("tls_ca") == ParameterSource.ENVIRONMENT:
        # It is meant for owners.
        given["tls_ca"] = None
    if source is not None and given["owners"]:
        raise click.UsageError(
            "--from restores into a directory of this host, whose pages the run fetches as it reads them; owners have "
            "whole files only. Bring them there (recovery restore SRC DIR --owner …), and run without --from."
        )
    if given["directory"] is not None:
        return RecoveryConfig(**given, state_backend=chosen_backend())
    # Variables are ignored: they may be meant for other runs.
    needing = {"source", *settings_of(RecoveryConfig)} - WITHOUT_DIRECTORY
    for each in ctx.command.params:
        if each.name in needing and ctx.get_parameter_source(each.name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{max(each.opts, key=len)} needs -r DIR.")
    return None


def _refuse(ctx: click.Context, options: Mapping[str, str], what: str) -> None:
    """Refuse options that are for something else. Variables are ignored, because they may be meant for other runs,
    except for the port."""
    for each in ctx.command.params:
        source = ctx.get_parameter_source(str(each.name))
        if each.name in options and (
            source == ParameterSource.COMMANDLINE
            or (each.name == "metrics_port" and source == ParameterSource.ENVIRONMENT)
        ):
            raise click.UsageError(f"{max(each.opts, key=len)} is for {what}: {options[each.name]}.")


def _run_flow(
    flow: Flow,
    config: RecoveryConfig | None,
    *,
    trigger: str | float,
    master: str,
    conf: Mapping[str, str],
    as_json: bool,
) -> None:
    """Run a flow, and print what it did."""
    from recovery.spark.jvm.session import launching

    def run_once(config: RecoveryConfig | None) -> RunSummary:
        with RunProgress(flow.name, quiet=as_json) as progress:
            from recovery.spark.run.blocking import run as run_flow

            return run_flow(flow, config, trigger=trigger, master=master, conf=conf, observer=progress.observe)

    with launching(flow.name, master=master, conf=conf):
        summary = asking(run_once, config)
    if as_json:
        print_json(asdict(summary))
    else:
        tell(summary_text(summary))


def _with_partitions(config: RecoveryConfig, source: str | None, *, quiet: bool) -> RecoveryConfig:
    """Take over the store and restore the directory, as the options say. Last before the run, because a takeover cannot
    be undone."""
    if config.takeover and (config.replicate is None or is_standby(config.path)):
        take_over_before_run(config.path, quiet=quiet)
        config = replace(config, takeover=False)
    if source is not None:
        replicate = None if config.replicate is None else os.fspath(config.replicate)
        restore_missing(source, config.path, replicate=replicate, takeover=config.takeover, quiet=quiet)
    return config


def _sink_text(sink: object) -> str:
    if sink is None:
        return "the flow has no sink"
    is_described = type(sink).__repr__ is not object.__repr__
    return (
        f"{getattr(sink, '__qualname__', None) or (repr(sink) if is_described else type(sink).__name__)} gets nothing"
    )


def asking(run_with: Callable[[RecoveryConfig | None], T], config: RecoveryConfig | None) -> T:
    """Run; if that would discard history, ask for permission, provided that a user is there to answer."""
    try:
        return run_with(config)
    except HistoryLossError as error:
        # This error comes before anything is written, and before Spark is needed.
        if config is None or not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        tell_error(error)
        if not click.confirm("Discard them?", err=True):
            raise
    return run_with(replace(config, discard_history=True))
