"""`recovery run MODULE_OR_FILE[:FLOW]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource

from recovery.base.intervals import AVAILABLE_NOW
from recovery.base.printable import one_line
from recovery.cli.common import (
    DIRECTORY,
    INTERVAL,
    TRIGGER,
    json_option,
    print_json,
    rewind_options,
    tell,
    tell_error,
    threshold_option,
)
from recovery.cli.nodes import run_nodes
from recovery.cli.owners import owner_options
from recovery.cli.places import chosen_backend, place_options
from recovery.cli.progress import Progress, summary_text
from recovery.cli.promote import take_over_before_run
from recovery.cli.restore import restore_missing
from recovery.cli.settings import settings_options
from recovery.config import DEFAULT_MASTER, RecoveryConfig
from recovery.errors import HistoryLossError
from recovery.host.signals import end_now, handle, is_main_thread
from recovery.storage.locations import OwnerAccess
from recovery.storage.standby import is_standby

if TYPE_CHECKING:
    from recovery.spark.run.reporting.events import RunSummary

T = TypeVar("T")
FILE = click.Path(path_type=Path)
PY_FILES = "spark.submit.pyFiles"
WITH_DIRECTORY = (
    "source",
    "resume_epoch",
    "resume_after",
    "rewind_again",
    "discard_history",
    "drop_step",
    "rename_step",
    "keep_step",
    "metrics_port",
    "metrics_host",
    "serve_at",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "scratch_directory",
    "no_output",
    "until",
    "owners",
    "token_file",
    "replicate",
    "replicate_sync",
    "replicate_keep",
    "takeover",
    "lose_epochs",
)
"""Options that need a recovery directory: without their effect the run would not be the intended one."""


@click.command()
@click.argument("target", metavar="MODULE_OR_FILE[:FLOW]")
@click.option("-r", "--recovery-directory", "directory", type=DIRECTORY, envvar="RECOVERY_DIRECTORY",
              help="The recovery directory, created by init. Without it the flow runs without recovery.")  # fmt: skip
@click.option("--from", "source", metavar="SRC",
              help="If the recovery directory holds no partitions, first restore the newest backup at SRC into it. The "
                   "flow begins as soon as the pages that it reads are there; the rest follows.")  # fmt: skip
@click.option("-s", "--snapshot-interval", type=INTERVAL, default="10s", show_default=True,
              envvar="RECOVERY_SNAPSHOT_INTERVAL",
              help="Close an epoch after this time, at the next micro-batch; 0: after every one.")  # fmt: skip
@click.option("-b", "--backup-interval", type=INTERVAL, envvar="RECOVERY_BACKUP_INTERVAL",
              help="Keep superseded snapshots this long, so that copies of the files taken at different "
                   "moments still fit together, and runs can go back. By default the last run's; 0 for a new "
                   "directory.")  # fmt: skip
@click.option(
    "--discard-history",
    is_flag=True,
    help="Allow a backup interval shorter than the last run's, and discard the snapshots that it no longer covers.",
)
@rewind_options
@click.option("--rewind-again", type=click.IntRange(min=1), metavar="EXECUTION",
              help="Go back again, although this execution already went back to the same snapshot.")  # fmt: skip
@click.option(
    "--drop-step",
    multiple=True,
    metavar="STEP",
    help="Discard the state of a step that is not in the flow, whose key or state type no longer fits, or whose "
    "state cannot be read.",
)
@click.option("--rename-step", multiple=True, metavar="OLD=NEW", help="Keep a step's state under its new id.")
@click.option("--keep-step", multiple=True, metavar="STEP",
              help="Keep a step's state unchanged although its key or state type changed.")  # fmt: skip
@click.option("--takeover", is_flag=True,
              help="Take over the store from the run that has it: promote the recovery directory, a standby that "
                   "`recovery follow` keeps current; or, for a restored directory, replace the writer at "
                   "--replicate.")  # fmt: skip
@click.option("--lose-epochs", is_flag=True,
              help="Go on although --replicate's place or the sink has epochs that this directory lacks, because it is "
                   "an older copy, or rows of closed epochs are gone from its table: they are lost.")  # fmt: skip
@click.option("--no-output", is_flag=True,
              help="For a fork: compute the rows, but do not pass them to the flow's sink.")  # fmt: skip
@click.option("--until", metavar="EPOCH|batch:N",
              help="For a fork: stop where its origin's input position was at the end of this epoch or "
                   "micro-batch.")  # fmt: skip
@click.option("--trigger", type=TRIGGER, default=AVAILABLE_NOW, show_default=True,
              metavar="available-now|once|INTERVAL",
              help="Run to the end of the input, or without end, with this time between micro-batches. once is "
                   "the same as available-now.")  # fmt: skip
@click.option("--master", default=DEFAULT_MASTER, show_default=True,
              help="Spark's master: local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT. On a cluster, tasks reach "
                   "the partitions through this host.")  # fmt: skip
@click.option("--serve", "serve_at", metavar="[HOST]:PORT", envvar="RECOVERY_SERVE",
              help="On a cluster: where tasks reach the partitions. By default spark.driver.host and a free "
                   "port.")  # fmt: skip
@click.option("--tls-cert", type=FILE, help="On a cluster: the certificate that tasks see, a PEM file. Without it, "
              "states cross the network without encryption.")  # fmt: skip
@click.option("--tls-key", type=FILE, help="Its key.")
@owner_options
@click.option("--py-files", metavar="A.zip,B.py",
              help="On a cluster: modules of the flow to send to the executors.")  # fmt: skip
@click.option("--scratch", "scratch_directory", metavar="DIR|ADDRESS", envvar="RECOVERY_SCRATCH",
              help="Where to keep temporary files of the run; by default inside the recovery directory. For the "
                   "state of Spark's own operators on a cluster: an address that all hosts reach, such as "
                   "s3a://bucket/scratch or file:///mnt/share/scratch.")  # fmt: skip
@click.option("--replicate", metavar="DEST", envvar="RECOVERY_REPLICATE",
              help="Ship each closed epoch to DEST in the background, as an incremental backup: a directory or s3://, "
                   "gs://, azure://.")  # fmt: skip
@click.option("--replicate-sync", is_flag=True,
              help="Show an epoch's output at the sink only when the epoch is shipped.")  # fmt: skip
@click.option("--replicate-keep", multiple=True, metavar="N|AGE|AGE/EVERY",
              help="Remove older backups at DEST, as backup --keep does; by default all are kept.")  # fmt: skip
@click.option("--jars", metavar="A.jar,B.jar", help="Jars to load, such as a connector; a pattern may name several.")
@click.option("--packages", metavar="GROUP:ARTIFACT:VERSION,...",
              help="Jars to load from Maven, with their dependencies. Spark fetches and caches them.")  # fmt: skip
@settings_options
@threshold_option
@click.option("--metrics-port", type=click.IntRange(0, 65535), envvar="RECOVERY_METRICS_PORT",
              help="Serve metrics for Prometheus at this port during the run; 0: a free port.")  # fmt: skip
@click.option("--metrics-host", default="127.0.0.1", show_default=True, envvar="RECOVERY_METRICS_HOST",
              help="The address at which to serve metrics.")  # fmt: skip
@click.option("--resume", is_flag=True, help="For a pipeline: skip nodes that succeeded in the last run.")
@click.option("--full-refresh", is_flag=True, help="For a pipeline: load everything, as if there were no marks.")
@click.option("--no-state-update", is_flag=True, help="For a pipeline: leave the marks where they are.")
@place_options
@json_option
def run(
    target: str,
    directory: Path | None,
    source: str | None,
    snapshot_interval: float,
    backup_interval: float | None,
    discard_history: bool,
    resume_after: int | None,
    resume_epoch: int | None,
    rewind_again: int | None,
    drop_step: tuple[str, ...],
    rename_step: tuple[str, ...],
    keep_step: tuple[str, ...],
    takeover: bool,
    lose_epochs: bool,
    no_output: bool,
    until: str | None,
    trigger: str | float,
    master: str,
    serve_at: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    scratch_directory: str | None,
    access: OwnerAccess,
    replicate: str | None,
    replicate_sync: bool,
    replicate_keep: tuple[str, ...],
    py_files: str | None,
    jars: str | None,
    packages: str | None,
    conf: dict[str, str],
    thresholds: dict[str, str],
    metrics_port: int | None,
    metrics_host: str,
    resume: bool,
    full_refresh: bool,
    no_state_update: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Run a flow, resuming from the latest snapshot that is consistent across all partitions; or run a pipeline.

    FLOW defaults to `flow`, or else `pipeline`. It names a Flow, a Pipeline, or calls a function that makes one, with
    literal arguments: "jobs.py:make('x')".

    On SIGTERM, Ctrl-C or SIGHUP the run finishes its micro-batch, closes the epoch and ends; on a second signal it ends
    immediately. A pipeline ends immediately, and the next run repeats the node that was running.
    """
    # Not by an exception: the flow's code could catch it while it is imported.
    if is_main_thread():
        handle(end_now)
    given = click.get_current_context().get_parameter_source("tls_ca")
    if not access.owners and given == ParameterSource.ENVIRONMENT:
        # It is meant for owners.
        access = access._replace(tls_ca=None)
    if source is not None and access.owners:
        raise click.UsageError("--from restores all partitions into one directory; owners have theirs.")
    config = None
    if directory is not None:
        config = RecoveryConfig(
            directory,
            snapshot_interval=snapshot_interval,
            backup_interval=backup_interval,
            discard_history=discard_history,
            resume_after=resume_after,
            resume_epoch=resume_epoch,
            rewind_again=rewind_again,
            drop_steps=drop_step,
            rename_steps=_pairs(rename_step, "--rename-step", "OLD=NEW"),
            keep_steps=keep_step,
            thresholds=thresholds,
            metrics_port=metrics_port,
            metrics_host=metrics_host,
            serve_at=serve_at,
            tls_cert=tls_cert,
            tls_key=tls_key,
            scratch_directory=scratch_directory,
            owners=access.owners,
            token_file=access.token_file,
            tls_ca=access.tls_ca,
            state_backend=chosen_backend(),
            no_output=no_output,
            until=until,
            replicate=replicate,
            replicate_sync=replicate_sync,
            replicate_keep=replicate_keep,
            takeover=takeover,
            lose_epochs=lose_epochs,
        )
    else:
        _refuse_directory_options(click.get_current_context())
    from recovery.cli.flow_loader import import_paths, load
    from recovery.pipeline import Pipeline
    from recovery.spark.jvm.jars import with_jars
    from recovery.spark.jvm.session import launching, prepare_environment

    if py_files:
        conf = {**conf, PY_FILES: ",".join(filter(None, [conf.get(PY_FILES), py_files]))}
    conf = with_jars(conf, jars, packages)
    prepare_environment(*import_paths(target), master=master)
    flow = load(target)
    if isinstance(flow, Pipeline):
        if no_output or until is not None:
            raise click.UsageError("--no-output and --until are for flows.")
        if lose_epochs:
            raise click.UsageError("--lose-epochs is for flows: a pipeline closes no epochs.")
        if click.get_current_context().get_parameter_source("replicate") == ParameterSource.COMMANDLINE:
            raise click.UsageError("--replicate is for flows: a pipeline closes no epochs.")
        if metrics_port is not None:
            raise click.UsageError("--metrics-port is for flows; `recovery runs` shows what a pipeline did.")
        if config is not None:
            # The variable is meant for flows.
            config = replace(config, replicate=None, replicate_sync=False, replicate_keep=())
    elif resume:
        raise click.UsageError("--resume is for pipelines; a flow resumes by itself.")
    elif full_refresh or no_state_update:
        raise click.UsageError("--full-refresh and --no-state-update are for pipelines.")
    if config is not None:
        config = _with_partitions(config, source, quiet=as_json)
    if isinstance(flow, Pipeline):

        def run_them(config: RecoveryConfig | None) -> None:
            run_nodes(
                flow, config, resume=resume, full_refresh=full_refresh, no_state_update=no_state_update,
                environment=environment, master=master, conf=conf, as_json=as_json,
            )  # fmt: skip

        asking(run_them, config)
        return
    if config is None and not as_json:
        tell("No -r given: running without recovery, state is lost at the end.")

    if no_output and not as_json:
        tell(one_line(f"--no-output: {_sink_text(flow.sink)}; rows are computed and dropped"))

    def run_once(config: RecoveryConfig | None) -> RunSummary:
        with Progress(flow.name, quiet=as_json) as progress:
            from recovery.spark.run.blocking import run as run_flow

            return run_flow(flow, config, trigger=trigger, master=master, conf=conf, observer=progress.observe)

    with launching(flow.name, master=master, conf=conf):
        summary = asking(run_once, config)
    if as_json:
        from dataclasses import asdict

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


def _refuse_directory_options(ctx: click.Context) -> None:
    """Refuse options that need a directory if none is given. Variables are ignored: they may be meant for other
    runs."""
    for option in ctx.command.params:
        if option.name in WITH_DIRECTORY and ctx.get_parameter_source(option.name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{max(option.opts, key=len)} needs -r DIR.")


def _pairs(given: tuple[str, ...], option: str, form: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise click.BadParameter(f"{text!r} is not {form}", param_hint=option)
        pairs[name] = value
    return pairs
