"""`recovery checkpoint export|import|show`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import click

from recovery.base.addresses import is_cut_off, local_path
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.checkpoint.directories import CheckpointDirectory, LocalCheckpoint, is_uri
from recovery.cli.checkpoint_into_step import StepOptions, import_step, step_options
from recovery.cli.checkpoint_progress import CheckpointProgress
from recovery.cli.common import Summaries, directory_argument, format_size, json_option, print_json, say
from recovery.cli.operational import directory_and
from recovery.cli.operators import operator_options, operators_text, print_state, session
from recovery.cli.option import epoch_option, limit_option, option
from recovery.cli.owners import owner_options, store_at, store_to_read
from recovery.cli.settings import settings_options
from recovery.operators.exporting import ExportedCheckpoint, export
from recovery.operators.held import held_files, operators_at
from recovery.operators.importing import Imported, import_checkpoint
from recovery.storage.store import OwnerAccess

held_epoch_option = epoch_option("As of this epoch, one that `recovery status` shows as held.")


@click.group(cls=Summaries)
def checkpoint() -> None:
    """Export, import or show the state of Spark's own operators.

    What is exported and imported is an ordinary Spark checkpoint.

    FROM and TO are directories, or URIs that Spark can reach: hdfs://, s3a://, file: and so on.
    """


@checkpoint.command(name="export")
@click.argument("words", metavar="[DIR] TO", nargs=-1)
@held_epoch_option
@owner_options
@settings_options
@json_option
def export_(
    words: tuple[str, ...], epoch: int | None, access: OwnerAccess, conf: dict[str, str], as_json: bool
) -> None:
    """Write a held epoch as an ordinary Spark checkpoint at TO.

    Plain Spark starts from TO, without this package. TO appears complete or not at all. The command only reads DIR,
    also during a run.
    """
    directory, [target] = directory_and(words, ("TO",))
    with opened(target, conf) as there, CheckpointProgress(quiet=as_json) as progress:
        done = export(store_to_read(Path(directory), access), there, epoch=epoch, observe=progress.observe)
    if as_json:
        print_json({"directory": directory, "to": there.shown, **_export_facts(done)})
    else:
        say(_export_text(done, there.shown))


@checkpoint.command(name="import")
@click.argument("source", metavar="FROM")
@directory_argument
@option("--flow", "flow_id", required=True, metavar="NAME",
        help="The name of the flow that continues from the checkpoint. DIR is bound to that name.")  # fmt: skip
@step_options
@owner_options
@settings_options
@json_option
def import_(
    source: str,
    directory: Path,
    flow_id: str,
    into: StepOptions,
    access: OwnerAccess,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Import a Spark job's checkpoint as the first epoch of DIR.

    The partitions of DIR must be new. FROM does not change. Stop the job first: DIR does not contain what the job does
    afterwards.
    """
    wanted = into.wanted()
    store = store_at(directory, access)
    if wanted is not None:
        # Without partitions, no JVM starts.
        store.found()
        with session(conf) as spark:
            there = _place(source, spark)
            import_step(there, directory, store, flow_id, wanted, spark, dry_run=into.dry_run, as_json=as_json)
        return
    with opened(source, conf) as there, CheckpointProgress(quiet=as_json) as progress:
        done = import_checkpoint(there, store, flow_id, clock=SystemClock(), observe=progress.observe)
    if as_json:
        print_json({"from": there.shown, "directory": str(directory), **_import_facts(done)})
    else:
        say(_import_text(done, directory))


@checkpoint.command()
@directory_argument
@held_epoch_option
@operator_options("Show keys and values of this operator, through Spark's own `statestore` source.")
@option("--changes-since", "since", metavar="E", type=click.IntRange(min=0),
        help="With --operator: only keys whose value differs from the value at this older epoch.")  # fmt: skip
@limit_option("With --operator: the most rows to show, sorted.")
@owner_options
@settings_options
@json_option
def show(
    directory: Path,
    epoch: int | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    timers: bool,
    since: int | None,
    limit: int,
    access: OwnerAccess,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """List Spark's own stateful operators, or show one of them.

    With --operator, shows the keys and values of that operator as of an epoch.

    Reads only, also during a run. The list needs no Spark; keys and values do.
    """
    if operator is not None:
        print_state(
            directory, access, operator, epoch=epoch, store=store, variable=variable, since=since, limit=limit,
            conf=conf, as_json=as_json, timers=timers,
        )  # fmt: skip
        return
    if store is not None or variable is not None or since is not None or timers:
        raise click.UsageError("--store, --variable, --timers and --changes-since need --operator.")
    at = store_to_read(directory, access).at(epoch)
    files = held_files(at)
    operators = operators_at(at)
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "epoch": at.epoch,
                "batch": at.cut[2],
                "files": len(files),
                "bytes": sum(files.values()),
                "operators": operators,
            }
        )
        return
    when = f"after micro-batch {at.cut[2]}" if at.epoch else "before the first micro-batch"
    say(f"epoch {at.epoch}, {when}: {counted(len(files), 'file')}, {format_size(sum(files.values()))}")
    say(operators_text(operators) if operators else "none of Spark's own operators has state")


@contextlib.contextmanager
def opened(name: str, conf: dict[str, str]) -> Iterator[CheckpointDirectory]:
    """Open the directory that a name on the command line means. Only other file systems start Spark."""
    with contextlib.nullcontext() if _is_local(name) else session(conf) as spark:
        yield _place(name, spark)


def _is_local(name: str) -> bool:
    return not is_uri(name) or is_cut_off(name)


def _place(name: str, spark: Any) -> CheckpointDirectory:
    """Return the directory of a name; one of another file system is reached through the session."""
    if _is_local(name):
        return LocalCheckpoint(local_path(name), lambda: token_hex(4))
    from recovery.hadoop.checkpoint import HadoopCheckpoint

    return HadoopCheckpoint(spark, name, lambda: token_hex(4))


def _export_text(done: ExportedCheckpoint, target: str) -> str:
    lines = [
        f"exported epoch {done.epoch} to {one_line(target)}: Spark goes on there after micro-batch {done.batch}; "
        f"{counted(done.files, 'file')}, {format_size(done.size_bytes)}"
    ]
    if done.operators:
        lines.append(operators_text([each.as_json() for each in done.operators]))
    if done.steps:
        lines.append(
            f"left out, because a Spark checkpoint cannot hold it: the state of "
            f"{one_line(', '.join(done.steps))} "
            "(python -m recovery state export writes that)"
        )
    return "\n".join(lines)


def _export_facts(done: ExportedCheckpoint) -> dict[str, Any]:
    return {
        "epoch": done.epoch,
        "batch": done.batch,
        "files": done.files,
        "bytes": done.size_bytes,
        "operators": [each.as_json() for each in done.operators],
        "steps_left_out": list(done.steps),
    }


def _import_text(done: Imported, directory: Path) -> str:
    lines = [
        f"imported as epoch {done.epoch} of flow {one_line(done.flow_id)}: {counted(done.files, 'file')}, "
        f"{format_size(done.size_bytes)}; "
        f"a run goes on after micro-batch {done.batch}"
    ]
    if done.begun is not None:
        lines.append(f"micro-batch {done.begun} was begun but not finished: the flow computes it again")
    if done.operators:
        lines.append(operators_text([each.as_json() for each in done.operators]))
    return "\n".join(lines)


def _import_facts(done: Imported) -> dict[str, Any]:
    return {
        "flow": done.flow_id,
        "epoch": done.epoch,
        "batch": done.batch,
        "begun_batch": done.begun,
        "files": done.files,
        "bytes": done.size_bytes,
        "operators": [each.as_json() for each in done.operators],
    }
