"""`recovery verify DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from recovery.cli.common import directory_argument, json_option, print_json, say, tell_error
from recovery.cli.owners import owner_options, say_links, store_at
from recovery.cli.tables import table
from recovery.errors import CorruptPartitionError, RecoveryError
from recovery.planning.explain import shown_path
from recovery.planning.resume import plan_resume
from recovery.planning.values import FoundFile
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.scan import links_of
from recovery.storage.store import OwnerAccess
from recovery.storage.verify import Verdict, run_all


@click.command()
@directory_argument
@owner_options
@json_option
def verify(directory: Path, access: OwnerAccess, as_json: bool) -> None:
    """Read everything, and check every digest and sum. Changes nothing; works during a run.

    Ends with 23 if a file is damaged, and with the code of `plan` if the files do not fit together.
    """
    store = store_at(directory, access)
    found = store.found()
    refuse_hydrating(directory, "verify")
    verdicts = run_all(store.checks([file.description for file in found if file.description is not None]))
    damaged = [verdict for verdict in verdicts if verdict.problems]
    errors: list[RecoveryError] = [CorruptPartitionError("; ".join(v.problems[:3]), path=v.path) for v in damaged]
    verdicts += [Verdict(f.path, 0, (f.error.found,)) for f in found if f.error is not None]
    errors += [file.error for file in found if file.error is not None]
    problem = errors[0] if errors else _misfit(found)
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "files": [
                    {"file": shown_path(v.path, directory), "rows": v.rows, "problems": list(v.problems)}
                    for v in verdicts
                ],
                "links": links_of(directory),
                "problem": problem.as_json() if problem else None,
            }
        )
    else:
        rows = ((shown_path(v.path, directory), v.rows, "; ".join(v.problems) or "sound") for v in verdicts)
        say(table(("file", "rows", "verdict"), rows))
        say_links(links_of(directory))
    if problem is not None:
        if not as_json:
            tell_error(problem)
        raise SystemExit(problem.exit_code)


def _misfit(found: Sequence[FoundFile]) -> RecoveryError | None:
    try:
        plan_resume(found)
    except RecoveryError as error:
        return error
    return None
