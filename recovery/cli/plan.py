"""`recovery plan DIR`."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli.common import directory_argument, format_time, json_option, print_json, table
from recovery.planning.resume import plan_resume
from recovery.storage.files import scan


@click.command()
@directory_argument
@click.option("--resume-epoch", type=click.IntRange(min=1), help="Plan a rewind to this epoch.")
@json_option
def plan(directory: Path, resume_epoch: int | None, as_json: bool) -> None:
    """Dry run: say which epoch a run would resume from, and which file limits it. Changes nothing."""
    planned = plan_resume(scan(directory), resume_epoch=resume_epoch)
    snapshot = planned.snapshot
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "store_id": planned.store_id,
                "flow": planned.flow_id,
                "resume_epoch": planned.resume_epoch,
                "after_batch": snapshot.batch_id if snapshot else None,
                "closed_ms": snapshot.closed_ms if snapshot else None,
                "execution": planned.execution_number,
                "window": list(planned.window),
                "files": [
                    {
                        "file": v.path.name,
                        "oldest_epoch": v.oldest,
                        "newest_epoch": v.newest,
                        "behind": v.behind,
                        "limits": v.limits,
                        "note": v.note,
                    }
                    for v in planned.verdicts
                ],
            }
        )
        return
    if snapshot is None and planned.window[-1]:
        click.echo(f"execution {planned.execution_number} would begin at the start of the input again")
    elif snapshot is None:
        click.echo(
            f"execution {planned.execution_number} would begin at the start of the input: no epoch is shared yet"
        )
    else:
        click.echo(
            f"execution {planned.execution_number} would resume at epoch {planned.resume_epoch}, after micro-batch "
            f"{snapshot.batch_id}, with the state of {format_time(snapshot.closed_ms)}"
        )
    click.echo()
    click.echo(
        table(
            ("file", "oldest", "newest", "verdict"),
            ((v.path.name, v.oldest, v.newest, v.note) for v in planned.verdicts),
        )
    )
