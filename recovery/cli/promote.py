"""`recovery promote DIR`, and the same before a run (`run --takeover`)."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import DIRECTORY, format_time, json_option, print_json, say, tell
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import option
from recovery.planning.going_back import after_text

if TYPE_CHECKING:
    # It imports Arrow, which other commands need not wait for.
    from recovery.backup.standby.promote import Promoted


@click.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY, envvar="RECOVERY_DIRECTORY")
@option("--unfenced", is_flag=True,
        help="Do not ask the followed place, which is gone or has no conditional writes. Nothing then stops a run that "
             "still writes there: make sure that it has ended.")  # fmt: skip
@dry_run_option("Show what would be promoted, which term would be claimed, and what would be lost; claim, apply and "
                "change nothing.")  # fmt: skip
@json_option
def promote(directory: Path, unfenced: bool, dry_run: bool, as_json: bool) -> None:
    """Make a standby an ordinary directory, which takes over.

    DIR is a standby that `recovery follow` keeps current. DIR takes over the store.

    The command first fences the run that replicates to the followed place: that run's next close fails. Then the
    command brings DIR to the latest backup and prints what is lost. The next `recovery run -r DIR` continues from
    there. A directory that is the store's writer already stays as it is.
    """
    done = take_over(directory, unfenced=unfenced, dry_run=dry_run, quiet=as_json)
    if as_json:
        print_json({**promoted_facts(done), "dry_run": dry_run})
    else:
        say(promoted_text(done, dry_run=dry_run))


def take_over(directory: Path, *, unfenced: bool = False, dry_run: bool = False, quiet: bool = False) -> Promoted:
    """Promote a standby. Raises what `recovery.backup.standby.promote.promote` raises."""
    from recovery.backup.standby.promote import promote as promote_standby

    progress = CopyProgress(quiet=quiet)
    return promote_standby(
        directory, SystemClock(), lambda: token_hex(8), unfenced=unfenced, dry_run=dry_run, observe=progress.observe
    )


def take_over_before_run(directory: Path, *, quiet: bool) -> None:
    """Promote the directory of a run that is about to start, and say on standard error what is lost."""
    tell(promoted_text(take_over(directory, quiet=quiet)))


def promoted_text(done: Promoted, *, dry_run: bool = False) -> str:
    """Return what was promoted, or would be, and what is lost, for people."""
    from recovery.backup.lease import BACKUP

    if not done.changed:
        return _unchanged_text(done)
    snapshot = done.resume.snapshot
    epoch = done.resume.resume_epoch - 1
    closed = f", closed {format_time(snapshot.closed_ms)}" if snapshot is not None else ""
    verb = "would promote" if dry_run else "promoted"
    lines = [f"{verb} {one_line(done.directory)}: the state {after_text(epoch)}{closed}, of backup {done.backup}"]
    if done.term is None:
        lines.append("unfenced: a run that still writes to the place is not stopped")
    elif done.before is None:
        lines.append(f"term {done.term.term}: nobody held the store before, so no run is stopped by it")
    else:
        ends = (
            ": its directory is refused from now on, but no run is stopped"
            if done.before.purpose == BACKUP
            else ", which may not publish any more"
        )
        lines.append(f"term {done.term.term}, after {done.before.holder}{ends}")
    lines += [one_line(f"backup {each.backup} cannot be used: {each.why}") for each in done.missed]
    lines.append(_lost_text(done))
    return "\n".join(lines)


def promoted_facts(done: Promoted) -> dict[str, Any]:
    """Return what a promotion did, for programs (`--json`)."""
    snapshot = done.resume.snapshot
    return {
        "directory": str(done.directory),
        "changed": done.changed,
        "source": done.source or None,
        "backup": done.backup,
        "store_id": done.resume.store_id,
        "flow": done.resume.flow_id,
        "epoch": done.resume.resume_epoch - 1,
        "resume_epoch": done.resume.resume_epoch,
        "closed_ms": snapshot.closed_ms if snapshot else None,
        "fenced": done.term is not None,
        "term": done.term.as_json() if done.term else None,
        "before": done.before.as_json() if done.before else None,
        "lost_epochs": list(done.lost_epochs) if done.lost_epochs else None,
        "unseen": done.unseen,
        "missed": [{"backup": each.backup, "epoch": each.epoch, "why": each.why} for each in done.missed],
    }


def _unchanged_text(done: Promoted) -> str:
    at = f"{one_line(done.directory)} is an ordinary directory already, as of the state"
    epoch = after_text(done.resume.resume_epoch - 1)
    if done.term is None:
        return f"{at} {epoch}: it was promoted or restored, and no run has begun on it since; nothing changed"
    return f"{at} {epoch}, and the writer of {one_line(done.source)}, with term {done.term.term}; nothing changed"


def _lost_text(done: Promoted) -> str:
    epoch = done.resume.resume_epoch - 1
    lost = ""
    if done.lost_epochs is not None:
        first, last = done.lost_epochs
        lost = f"epoch {first} is lost" if first == last else f"epochs {first} to {last} are lost"
    elif done.missed:
        lost = "what these backups held besides is lost"
    if done.unseen == "nothing":
        return lost or "nothing is lost"
    if done.unseen == "unpublished":
        rest = f"nothing that was published is lost; what was closed after epoch {epoch} is computed again"
        return f"{lost}; what was closed after that was not published" if lost else rest
    rest = f"what was closed after epoch {epoch}, and did not get into the place, is lost"
    return f"{lost}; {rest}" if lost else f"{rest}, if there was any; no later epoch is in the place"
