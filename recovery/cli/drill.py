"""`recovery drill SRC`."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from recovery.base.clock import Clock, SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import INTERVAL, format_size, json_option, print_json, say, tell, tell_error
from recovery.cli.option import option
from recovery.cli.restore import wanted_options
from recovery.cli.restore_output import announcing, plan_facts
from recovery.cli.tables import table
from recovery.errors import RecoveryError
from recovery.planning.going_back import after_text

if TYPE_CHECKING:
    from recovery.backup.drill import Drilled
    from recovery.backup.sources import Source
    from recovery.places.protocol import Place

SCRATCH = click.Path(exists=True, file_okay=False, writable=True, path_type=Path)


@click.command()
@click.argument("source", metavar="SRC")
@wanted_options
@option("--max-age", type=INTERVAL, without="any age", help="Fail (63) if the restored epoch is older than this.")
@option("--scratch", type=SCRATCH, metavar="DIR", without="the one for temporary files",
        help="Where to keep what need not survive the drill: an existing directory, into which SRC is "
             "restored.")  # fmt: skip
@json_option
def drill(
    source: str, epoch: int | None, at_ms: int | None, max_age: float | None, scratch: Path | None, as_json: bool
) -> None:
    """Rehearse a disaster: restore SRC, check it, and report.

    Restores SRC into a scratch directory, checks everything, and begins a run there. No backup in SRC changes, and the
    command removes the scratch directory. The command ends with an error's code if nothing could
    be restored, a copy was damaged, or the newest epoch is older than --max-age.

    At a place of backups the command leaves a note of how the drill ended: the pages of that place show it, and DIR's
    status after its next backup. With credentials that only read, it says that there is no note.
    """
    from recovery.backup.drill import drill as rehearse
    from recovery.backup.sources import open_source
    from recovery.host.scratch import scratch_directory
    from recovery.places.opening import open_place

    if epoch is not None and at_ms is not None:
        raise click.UsageError("Give --epoch or --timestamp, not both.")
    clock = SystemClock()
    progress = CopyProgress(quiet=as_json)
    with scratch_directory("drill", scratch) as room:
        started = clock.elapsed_s()
        target = open_place(source)
        found = open_source(target, room, clock, bundled=False)
        list_s = clock.elapsed_s() - started

        noted = partial(_noted, target, found, clock, started)
        try:
            done = rehearse(
                found,
                clock=clock,
                random_id=lambda: token_hex(4),
                scratch=scratch,
                epoch=epoch,
                at_ms=at_ms,
                max_age_s=max_age,
                announce=announcing(progress, found, clock),
                observe=progress.observe,
            )
        except RecoveryError as error:
            noted(None, error)
            raise
        is_noted = noted(done.restored.plan.epoch, done.problem)
    seconds = _seconds(done, list_s)
    if as_json:
        facts = {**_facts(done, seconds), "noted": is_noted}
        print_json({**plan_facts(done.restored.plan, found, clock.wall_ms()), **facts})
    else:
        say(_text(done, seconds))
    if done.problem is not None:
        if not as_json:
            tell_error(done.problem)
        raise SystemExit(done.problem.exit_code)


def _noted(
    target: Place, source: Source, clock: Clock, started_s: float, epoch: int | None, problem: RecoveryError | None
) -> bool:
    """Leave a note at a place of backups, or say why there is none. Plain copies have no place for it."""
    from recovery.backup.drills import LastDrill, note_drill
    from recovery.backup.sources import BackupSource

    if not isinstance(source, BackupSource):
        return False
    why, took_s = "" if problem is None else problem.found, clock.elapsed_s() - started_s
    not_noted = note_drill(target, LastDrill(clock.wall_ms(), target.shown, epoch, took_s, why, socket.gethostname()))
    if not_noted is not None:
        tell(one_line(f"no note of this drill is at {target.shown}: {not_noted}"))
    return not_noted is None


def _seconds(done: Drilled, list_s: float) -> dict[str, float]:
    """Return what each part of the drill took."""
    spent = done.restored.timings
    return {
        "list copies": list_s,
        "plan": spent.plan_s,
        "fetch": spent.fetch_s,
        "check": spent.check_s,
        "put into place": spent.place_s,
        "begin a run": done.open_s,
    }


def _facts(done: Drilled, seconds: dict[str, float]) -> dict[str, object]:
    return {
        "passed": done.problem is None,
        "problem": done.problem.as_json() if done.problem else None,
        "began_at": done.began_at,
        "steps": list(done.steps),
        "rows": done.restored.rows,
        "bytes": done.restored.size_bytes,
        "left_out": list(done.restored.left_out),
        "seconds": {name.replace(" ", "_"): spent_s for name, spent_s in seconds.items()},
        "elapsed_s": seconds["list copies"] + done.total_s,
    }


def _text(done: Drilled, seconds: dict[str, float]) -> str:
    spent = table(("step", "seconds"), [(name, f"{spent_s:.2f}") for name, spent_s in seconds.items()])
    return (
        f"{spent}\n\nrestored {counted(done.restored.rows, 'row')}, {format_size(done.restored.size_bytes)}, of "
        f"{one_line(', '.join(done.steps)) or 'no step'} in {seconds['list copies'] + done.total_s:.1f} s; "
        f"a run would begin at epoch {done.began_at}, {after_text(done.began_at - 1)}"
    )
