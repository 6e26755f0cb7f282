"""`recovery run MODULE_OR_FILE[:FLOW]`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from recovery.base.intervals import AVAILABLE_NOW
from recovery.base.printable import one_line
from recovery.base.version import VERSION
from recovery.cli.common import TRIGGER, json_option, print_json, tell, tell_error
from recovery.cli.config_options import config_options
from recovery.cli.idle import ended_idle
from recovery.cli.nodes import run_nodes
from recovery.cli.operational import chosen_backend, environment_options
from recovery.cli.option import option
from recovery.cli.progress import RunProgress, summary_text
from recovery.cli.promote import take_over_before_run
from recovery.cli.restore import restore_missing
from recovery.cli.settings import WORKERS, chosen_master, settings_options, workers_options
from recovery.config import DEFAULT_MASTER, RecoveryConfig
from recovery.errors import HistoryLossError
from recovery.host.signals import end_now, handle, is_main_thread
from recovery.idle.code import CodeWatch
from recovery.idle.look import note_input
from recovery.setting import settings_of
from recovery.storage.standby import is_standby

if TYPE_CHECKING:
    from recovery.flow import Flow
    from recovery.pipeline import Pipeline
    from recovery.spark.run.blocking import Ended

T = TypeVar("T")
PY_FILES = "spark.submit.pyFiles"
WITHOUT_DIRECTORY = {"directory", "snapshot_interval", "backup_interval", "thresholds", "state_backend"}
"""Fields of the configuration whose options a run without a recovery directory may have: these options change nothing
there."""

FOR_FLOWS = {
    "no_output": "only a flow can be forked",
    "until": "only a flow can be forked",
    "lose_epochs": "the nodes of a pipeline write by themselves",
    "lose_input": "a pipeline reads through its nodes",
    "kafka_group": "a pipeline reads through its nodes",
    "if_new_input": "the nodes of a pipeline look for new rows themselves",
    "replicate": "recovery backup copies what a pipeline closes",
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
@option("--if-new-input", is_flag=True, envvar="RECOVERY_IF_NEW_INPUT",
              help="If the sources have nothing new, end without starting Spark. For flows that [always read the same]"
                   "(operations.md#runs-without-new-input) with the same code, options and files.")  # fmt: skip
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
    if_new_input: bool,
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
    watch = _watch(ctx, config, trigger) if if_new_input else None
    from recovery.pipeline import Pipeline

    settings = _with_files(conf, py_files, jars, packages)
    with contextlib.nullcontext() if watch is None else watch.loading():
        flow = _loaded(target, master)
    if isinstance(flow, Pipeline):
        _refuse(ctx, FOR_FLOWS, "flows")
        if config is not None:
            # The variable is meant for flows.
            config = replace(config, replicate=None, replicate_sync=False, replicate_complete=False, replicate_keep=())
            config = _with_partitions(config, source, quiet=as_json)
        asking(
            lambda config: run_nodes(
                flow, config, resume=resume, full_refresh=full_refresh, no_state_update=no_state_update,
                environment=environment, master=master, conf=settings, as_json=as_json,
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
    _run_flow(flow, config, watch, trigger=trigger, master=master, conf=settings, as_json=as_json)


def _watch(ctx: click.Context, config: RecoveryConfig | None, trigger: str | float) -> CodeWatch | None:
    """Return what notes the code of a run with --if-new-input; None: nothing does. Ends the command if the run has
    nothing to do."""
    if trigger != AVAILABLE_NOW and ctx.get_parameter_source("if_new_input") == ParameterSource.COMMANDLINE:
        raise click.UsageError("--if-new-input is for --trigger available-now: other runs wait for input.")
    if trigger != AVAILABLE_NOW or config is None:
        return None
    facts = _facts(ctx)
    if ended_idle(config, facts, from_backup=ctx.params["source"] is not None, as_json=ctx.params["as_json"]):
        ctx.exit(0)
    return CodeWatch(facts)


def _facts(ctx: click.Context) -> dict[str, str]:
    """Return what the command line and the variables of its options say, by names for people."""
    names = {each.name: each.make_metavar(ctx) if isinstance(each, click.Argument) else max(each.opts, key=len)
             for each in ctx.command.params}  # fmt: skip
    given = {name: value for name, value in ctx.params.items() if name != "as_json"}
    given |= {name: ctx.meta.get(name) for name in WORKERS}
    return {"recovery": VERSION, **{names.get(name, name): repr(value) for name, value in given.items()}}


def _with_files(
    conf: dict[str, str], py_files: str | None, jars: str | None, packages: str | None
) -> Mapping[str, str]:
    """Return the settings with the modules and jars that the command line names."""
    from recovery.spark.jvm.jars import with_jars

    if py_files:
        conf = {**conf, PY_FILES: ",".join(filter(None, [conf.get(PY_FILES), py_files]))}
    return with_jars(conf, jars, packages)


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
    needing = {"source", "if_new_input", *settings_of(RecoveryConfig)} - WITHOUT_DIRECTORY
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
    watch: CodeWatch | None,
    *,
    trigger: str | float,
    master: str,
    conf: Mapping[str, str],
    as_json: bool,
) -> None:
    """Run a flow, and print what it did. watch: leave a note for the next run with --if-new-input."""
    from recovery.spark.jvm.session import gateway_port, jobs_begun, launching

    runs = flow if watch is None else replace(flow, build=watch.building(flow.build, gateway_port, jobs_begun))

    def run_once(config: RecoveryConfig | None) -> Ended:
        with RunProgress(flow.name, quiet=as_json) as progress:
            from recovery.spark.run.blocking import run_query

            return run_query(runs, config, trigger=trigger, master=master, conf=conf, observer=progress.observe)

    with launching(flow.name, master=master, conf=conf):
        summary, last = asking(run_once, config)
    if watch is not None and config is not None:
        from recovery.spark.run.reporting.read_input import read_input

        note_input(config, read_input(last), watch.code())
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
