"""`recovery plan DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from recovery.base.printable import one_line
from recovery.cli.common import (
    directory_argument,
    format_time,
    json_option,
    print_json,
    say,
    tell_error,
)
from recovery.cli.config_options import rewind_options
from recovery.cli.owners import owner_options, say_copies, say_links, store_at
from recovery.cli.tables import table
from recovery.config import RecoveryConfig
from recovery.errors import RecoveryError
from recovery.planning.copies import copies_json
from recovery.planning.explain import Explanation, shown_path
from recovery.planning.going_back import after_text, discarded
from recovery.planning.resume import ResumePlan
from recovery.planning.values import FoundFile
from recovery.report.plan import PlanFacts
from recovery.storage.scan import links_of
from recovery.storage.store import OwnerAccess, Store


@click.command()
@directory_argument
@rewind_options
@owner_options
@json_option
def plan(
    directory: Path, resume_after: int | None, resume_epoch: int | None, access: OwnerAccess, as_json: bool
) -> None:
    """Show what a run would resume from, and what it would discard.

    Also shows which file limits the run, and why.

    Changes nothing. If the files do not fit together, the command explains each file and ends with the error's code.
    With owners it also shows which copy of each partition a run would use.
    """
    store = store_at(directory, access)
    found = _found(store, as_json)
    rewind_to = RecoveryConfig(directory, resume_after=resume_after, resume_epoch=resume_epoch).rewind_to
    facts = PlanFacts(store, found, rewind_to=rewind_to)
    if as_json:
        print_json(facts.as_json())
    planned = facts.planned
    if planned is None:
        assert facts.problem is not None
        if not as_json:
            say(_files_text(facts.files, directory))
            tell_error(facts.problem)
        raise SystemExit(facts.problem.exit_code) from facts.problem
    if as_json:
        return
    say(_summary(planned))
    if facts.again is not None:
        say(one_line(facts.again.text()))
    for origin in facts.origins:
        say(one_line(origin.text(format_time)))
    say_links(links_of(directory))
    say()
    notes = {v.path: v.note for v in planned.verdicts}
    say(_files_text(facts.files, directory, notes if rewind_to is not None else {}))
    for note in store.notes:
        say(one_line(note))


def _found(store: Store, as_json: bool) -> list[FoundFile]:
    """Return the files that count. If there are copies of which none can be chosen, say what each location has."""
    try:
        return store.found()
    except RecoveryError as error:
        if not store.asked:
            raise
        if as_json:
            print_json({**error.as_json(), "directory": str(store.directory), "files": copies_json(store.asked)})
        else:
            say_copies(store.asked)
            tell_error(error)
        raise SystemExit(error.exit_code) from error


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


def _files_text(files: Sequence[Explanation], directory: Path, notes: dict[Path, str] | None = None) -> str:
    """Return a line per file, and below them how to fix the files that need it."""
    rows = [
        (
            shown_path(each.path, directory),
            each.oldest,
            each.newest_epoch,
            format_time(each.newest.closed_ms if each.newest else None),
            (notes or {}).get(each.path, each.note),
        )
        for each in files
    ]
    lines = [table(("file", "oldest", "newest", "closed", "verdict"), rows)]
    fixes = [one_line(f"{shown_path(each.path, directory)}: {each.fix}") for each in files if each.fix]
    return "\n".join([*lines, *([""] if fixes else []), *fixes])
