"""`recovery import bytewax SRC DIR`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.checkpoint_progress import CheckpointProgress
from recovery.cli.common import DIRECTORY, json_option, print_json, say, style
from recovery.cli.config_options import config_option
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import option
from recovery.cli.owners import receiving_options
from recovery.cli.restore_to_owners import ByOwner, new_store
from recovery.cli.tables import table
from recovery.host.new_directory import check_outside
from recovery.importing.bytewax import ImportedBytewax, ImportedStep, import_bytewax
from recovery.storage.store import OwnerAccess


def _pairs(_: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        if not (equals and name and value):
            raise click.BadParameter(f"{text!r} is not {parameter.metavar}")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        found[name] = value
    return found


@click.command()
@click.argument("source", metavar="SRC", type=DIRECTORY)
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@config_option("rename_steps", was="--step", callback=_pairs,
        help="Take over the state of Bytewax's step OLD, such as count, as the state of step NEW. Each step with state "
             "needs --rename-step or --drop-step.")  # fmt: skip
@option("--input", "inputs", multiple=True, metavar="SOURCE=PATH", callback=_pairs, without="Bytewax's path",
        help="The path that the flow reads in place of Bytewax's file source SOURCE. Bytewax's own path is taken from "
             "the present directory; a DirSource needs this option.")  # fmt: skip
@config_option("drop_steps", help="Leave out a step of Bytewax's with state, a sink, or a source.")
@option("--allow", multiple=True, metavar="MODULE.CLASS", without="none",
        help="A class that pickled states may build; the code of the class runs. Modules of the present directory are "
             "found.")  # fmt: skip
@option("--partitions", type=click.IntRange(1), metavar="N", without="as many as SRC has",
        help="The number of recovery partitions.")  # fmt: skip
@option("--flow", metavar="NAME", without="Bytewax's name",
        help="The name of the flow that continues. DIR is bound to that name.")  # fmt: skip
@option("--no-older-copies", is_flag=True,
        help="Say that every file of SRC is the newest, where the files do not show it.")  # fmt: skip
@dry_run_option("Read and check everything; write nothing.")
@receiving_options
@json_option
def bytewax(
    source: Path,
    directory: Path,
    rename_steps: dict[str, str],
    inputs: dict[str, str],
    drop_steps: tuple[str, ...],
    allow: tuple[str, ...],
    partitions: int | None,
    flow: str | None,
    no_older_copies: bool,
    dry_run: bool,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Take over a recovery directory of Bytewax 0.20 or 0.21.

    DIR must not exist, or must be empty. SRC is only read. Stop the dataflow first. All of DIR appears or nothing.

    With --owner, the partitions go to the owners, the same number to each, as `recovery restore` brings them; DIR is
    then the directory of the run. The command ignores RECOVERY_OWNERS.
    """
    if allow:
        # Last, so that nothing in the present directory takes the place of an installed module.
        sys.path.append(str(Path.cwd()))
    check_outside(directory, source)
    with new_store(directory, access) as new:
        with CheckpointProgress(quiet=as_json) as progress:
            done = import_bytewax(
                source, new.made, steps=rename_steps, inputs=inputs, drop_steps=drop_steps, allow=allow,
                partitions=partitions, flow=flow, no_older_copies=no_older_copies, dry_run=dry_run,
                observe=progress.observe,
            )  # fmt: skip
        by_owner = new.bring(done.partitions, dry_run=dry_run, quiet=as_json)
    if as_json:
        print_json({"from": str(source), "directory": str(directory), **_facts(done), **by_owner.facts()})
    else:
        say(_text(done, source, directory, by_owner))


def _facts(done: ImportedBytewax) -> dict[str, Any]:
    facts = asdict(done)
    for each in facts["sources"]:
        each["files"] = [{"path": str(path), "offset": offset} for path, offset in each["files"]]
    return facts


def _text(done: ImportedBytewax, source: Path, directory: Path, by_owner: ByOwner) -> str:
    verb = "imported" if done.written else "would import"
    lines = [
        f"{verb} epoch {done.epoch} of {one_line(source)} into {one_line(directory)}: flow {one_line(done.flow)}, "
        f"{counted(done.partitions, 'partition')}"
    ]
    if done.steps:
        rows = ((each.ours, each.theirs, each.keys, each.discarded, _converted(each)) for each in done.steps)
        lines += ["", table(("step", "of Bytewax", "keys", "discarded", "types to declare"), rows)]
    files = [(each.path, each.step, str(path), offset) for each in done.sources for path, offset in each.files]
    if files:
        lines += ["", table(("input", "of Bytewax", "file", "read"), files)]
    if done.left_out:
        left = ((each.theirs, each.keys, each.example) for each in done.left_out)
        lines += ["", table(("left out", "keys", "example"), left)]
    lines += [f"\n{style(each, 'yellow')}" for each in _warnings(done)]
    if by_owner.owner_of:
        lines += ["", by_owner.text()]
    if done.written:
        with_owners = " --owner …" if by_owner.owner_of else ""
        lines += ["", f"Next: python -m recovery run flow.py -r {one_line(directory)}{with_owners}"]
    return "\n".join(lines)


def _converted(step: ImportedStep) -> str | None:
    return ", ".join(f"{name} in {counted(count, 'key')}" for name, count in sorted(step.converted.items())) or None


def _warnings(done: ImportedBytewax) -> list[str]:
    found = []
    if done.unclear:
        found.append(
            f"{counted(done.unclear, 'snapshot')} appeared in the second in which an execution began: wrong if Bytewax "
            "was killed in that second"
        )
    if done.quiet:
        found.append(f"taken as the newest, as you said: {', '.join(done.quiet)}")
    return found
