"""`recovery plan DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from recovery.cli.common import directory_argument, format_time, json_option, print_json, say, table, tell_error
from recovery.errors import RecoveryError
from recovery.planning.explain import Explanation, explain
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.printable import one_line
from recovery.storage.files import scan


@click.command()
@directory_argument
@click.option("--resume-epoch", type=click.IntRange(min=1), help="Plan a rewind to this epoch.")
@json_option
def plan(directory: Path, resume_epoch: int | None, as_json: bool) -> None:
    """Dry run: say which epoch a run would resume from, which file limits it, and what would mend it.

    Changes nothing. When the files do not fit together, it says so of each of them, and ends with the error's code.
    """
    found = scan(directory)
    files = explain(found, format_time)
    try:
        planned = plan_resume(found, resume_epoch=resume_epoch)
    except RecoveryError as error:
        if as_json:
            print_json({**error.as_json(), "directory": str(directory), "files": [_facts(each) for each in files]})
        else:
            say(_files_text(files))
            tell_error(error)
        raise SystemExit(error.exit_code) from error
    if as_json:
        print_json(_plan_facts(directory, planned, files))
        return
    say(_summary(planned))
    say()
    notes = {v.path: v.note for v in planned.verdicts}
    say(_files_text(files, notes if resume_epoch is not None else {}))


def _summary(planned: ResumePlan) -> str:
    snapshot = planned.snapshot
    if snapshot is None and planned.window[-1]:
        return f"execution {planned.execution_number} would begin at the start of the input again"
    if snapshot is None:
        return f"execution {planned.execution_number} would begin at the start of the input: no epoch is shared yet"
    return (
        f"execution {planned.execution_number} would resume at epoch {planned.resume_epoch}, after micro-batch "
        f"{snapshot.batch_id}, with the state of {format_time(snapshot.closed_ms)}"
    )


def _files_text(files: Sequence[Explanation], notes: dict[Path, str] | None = None) -> str:
    """A line per file, and below what would mend those that need it."""
    rows = [
        (
            each.path.name,
            each.oldest,
            each.newest_epoch,
            format_time(each.newest.closed_ms if each.newest else None),
            (notes or {}).get(each.path, each.note),
        )
        for each in files
    ]
    lines = [table(("file", "oldest", "newest", "closed", "verdict"), rows)]
    fixes = [one_line(f"{each.path.name}: {each.fix}") for each in files if each.fix]
    return "\n".join([*lines, *([""] if fixes else []), *fixes])


def _plan_facts(directory: Path, planned: ResumePlan, files: Sequence[Explanation]) -> dict[str, Any]:
    snapshot = planned.snapshot
    verdicts = {v.path: v for v in planned.verdicts}
    return {
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
                **_facts(each),
                "behind": verdicts[each.path].behind,
                "limits": verdicts[each.path].limits,
                "note": verdicts[each.path].note,
            }
            for each in files
        ],
    }


def _facts(each: Explanation) -> dict[str, Any]:
    return {
        "file": each.path.name,
        "role": each.role.value,
        "oldest_epoch": each.oldest,
        "newest_epoch": each.newest_epoch,
        "closed_ms": each.newest.closed_ms if each.newest else None,
        "behind_ms": each.behind_ms,
        "note": each.note,
        "fix": each.fix,
    }
