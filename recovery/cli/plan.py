"""`recovery plan DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from recovery.base.printable import one_line
from recovery.cli.common import (
    directory_argument,
    format_time,
    json_option,
    print_json,
    rewind_options,
    say,
    table,
    tell_error,
)
from recovery.config import RecoveryConfig
from recovery.errors import RecoveryError
from recovery.planning.explain import Explanation, explain
from recovery.planning.going_back import after_text, discarded
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.storage.origin import read_origins
from recovery.storage.scan import scan


@click.command()
@directory_argument
@rewind_options
@json_option
def plan(directory: Path, resume_after: int | None, resume_epoch: int | None, as_json: bool) -> None:
    """Dry run: say which snapshot a run would resume from, what it would discard, and which file limits it and why.

    Changes nothing. When the files do not fit together, it says so of each of them, and ends with the error's code.
    """
    found = scan(directory)
    files = explain(found, format_time)
    rewind_to = RecoveryConfig(directory, resume_after=resume_after, resume_epoch=resume_epoch).rewind_to
    try:
        planned = plan_resume(found, resume_epoch=rewind_to)
    except RecoveryError as error:
        if as_json:
            print_json({**error.as_json(), "directory": str(directory), "files": [_facts(each) for each in files]})
        else:
            say(_files_text(files))
            tell_error(error)
        raise SystemExit(error.exit_code) from error
    origins = read_origins(directory)
    if as_json:
        print_json({**_plan_facts(directory, planned, files), "origins": [each.as_json() for each in origins]})
        return
    say(_summary(planned))
    for origin in origins:
        say(one_line(origin.text(format_time)))
    say()
    notes = {v.path: v.note for v in planned.verdicts}
    say(_files_text(files, notes if rewind_to is not None else {}))


def _summary(planned: ResumePlan) -> str:
    snapshot, gone = planned.snapshot, discarded(planned)
    execution = f"execution {planned.execution_number}"
    if snapshot is None and gone is None:
        return f"{execution} would begin at the start of the input: no epoch is shared yet"
    place = "at the start of the input again"
    if snapshot is not None:
        place = (
            f"at epoch {planned.resume_epoch}, {after_text(snapshot.epoch)} (micro-batch {snapshot.batch_id}), with "
            f"the state of {format_time(snapshot.closed_ms)}"
        )
    if gone is None:
        return f"{execution} would resume {place}"
    verb = "begin" if snapshot is None else "rewind: it would resume"
    return f"{execution} would {verb} {place}\nit would discard {gone.text(format_time)}"


def _files_text(files: Sequence[Explanation], notes: dict[Path, str] | None = None) -> str:
    """Return a line per file, and below them how to fix the files that need it."""
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
    snapshot, gone = planned.snapshot, discarded(planned)
    verdicts = {v.path: v for v in planned.verdicts}
    return {
        "directory": str(directory),
        "store_id": planned.store_id,
        "flow": planned.flow_id,
        "resume_epoch": planned.resume_epoch,
        "resume_after": planned.resume_epoch - 1,
        "discards": None if gone is None else gone.as_json(),
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
