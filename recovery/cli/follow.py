"""`recovery follow SRC DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recovery.backup.progress import FileProgress
from recovery.base.clock import Clock, SystemClock
from recovery.base.printable import one_line
from recovery.base.wording import age_s, ago, counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import (
    DIRECTORY,
    INTERVAL,
    format_size,
    format_time,
    json_option,
    print_json,
    say,
    tell,
    umask_option,
)
from recovery.cli.option import option
from recovery.cli.output_errors import of_output
from recovery.cli.signals import answering
from recovery.errors import (
    BackupDamagedError,
    BackupTargetError,
    NoBackupError,
    RecoveryError,
    StorageError,
)
from recovery.host.durable import PRIVATE, UMASK
from recovery.host.signals import StopSignals

if TYPE_CHECKING:
    # It imports Arrow, which other commands need not wait for.
    from recovery.backup.standby.follow import Follower, FollowResult

PASSING = (BackupTargetError, BackupDamagedError, NoBackupError, StorageError)
"""Errors that may be gone at the next look: an unreachable service, a full disk, a place without a backup yet."""


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("directory", metavar="DIR", type=DIRECTORY, envvar="RECOVERY_DIRECTORY")
@option("--every", type=INTERVAL, default="10s", show_default=True,
        help="Look for a later backup at this interval, until SIGTERM, Ctrl-C or SIGHUP, which let a backup that is "
             "being applied finish; a second signal ends immediately. An unreachable place, a full disk and a damaged "
             "backup are reported once, and tried again.")  # fmt: skip
@option("--once", is_flag=True,
        help="Look once, and end: with 62 if a later backup is damaged, after the latest usable one was "
             "applied.")  # fmt: skip
@umask_option
@json_option
def follow(source: str, directory: Path, every: float, once: bool, umask: bool, as_json: bool) -> None:
    """Keep DIR as of the latest backup at SRC: a standby. Ends by SIGTERM or Ctrl-C.

    SRC is a place of backups (a directory, s3://, gs://, azure://). Only what changed is fetched, if the backups are
    made with --incremental. Nothing else may write to DIR until `recovery promote DIR`, or `recovery run --takeover`,
    makes it an ordinary directory.
    """
    if every == 0 and not once:
        raise click.UsageError("--every 0 would never stop looking: give the time between two looks.")
    from recovery.backup.standby.follow import Follower

    clock = SystemClock()
    progress = CopyProgress(quiet=as_json)

    def observe(event: FileProgress) -> None:
        # A line for each partition and epoch would be too much.
        if once or event.step != "applied":
            progress.observe(event)

    with Follower(directory, source, clock, modes=UMASK if umask else PRIVATE, observe=observe) as follower:
        if once:
            look = follower.look()
            _say(follower, look, clock, as_json)
            if look.missed:
                raise _damaged(follower, look)
            return
        _again_and_again(follower, every, clock, as_json)


def _again_and_again(follower: Follower, every_s: float, clock: Clock, as_json: bool) -> None:
    """Look for a later backup at each interval. Report a problem once, until there is another problem."""
    signals = StopSignals()
    said: tuple[str, ...] = ()
    pause_s = 0.0
    while not signals.came_within(pause_s):
        began_s = clock.elapsed_s()
        wrong: tuple[str, ...] = ()
        try:
            with answering("the backup that is being applied"):
                look = follower.look()
            wrong = tuple(f"backup {each.backup} cannot be used: {each.why}" for each in look.missed)
            if look.followed is not None or look.problems or (as_json and wrong and wrong != said):
                _say(follower, look, clock, as_json, line=True)
        except PASSING as error:
            wrong = (error.found,)
            if as_json and wrong != said:
                print_json(error.as_json(), line=True)
        except OSError as error:
            if not of_output(error):
                raise
            wrong = (f"standard output cannot be written: {error}",)
        if wrong != said and not as_json:
            for each in wrong:
                tell(one_line(f"{format_time(clock.wall_ms())} {each}"))
        said = wrong
        pause_s = max(0.0, every_s - (clock.elapsed_s() - began_s))


def _say(follower: Follower, look: FollowResult, clock: Clock, as_json: bool, *, line: bool = False) -> None:
    if as_json:
        print_json(_facts(follower, look, clock), line=line)
        return
    for problem in look.problems:
        tell(one_line(problem))
    at, followed = follower.at, look.followed
    if at is None:
        return
    age = "" if at.closed_ms is None else (
        f", closed {format_time(at.closed_ms)}, {ago(age_s(at.closed_ms, clock.wall_ms()))}"
    )  # fmt: skip
    if followed is None:
        say(f"epoch {at.epoch}{age}: nothing later in {one_line(follower.document.shown)}")
        return
    done = [f"changes of {counted(followed.linked, 'partition')}"] if followed.linked else []
    done += [f"{counted(len(followed.whole_because), 'partition')} whole"] if followed.whole_because else []
    fetched = f"{counted(followed.objects, 'object')}, {format_size(followed.stored_bytes)}"
    say(f"epoch {at.epoch}{age}: {', '.join(done) or 'nothing changed'}; {fetched} in {followed.elapsed_s:.1f} s")


def _facts(follower: Follower, look: FollowResult, clock: Clock) -> dict[str, Any]:
    at, followed, writer = follower.at, look.followed, follower.writer
    return {
        "directory": str(follower.directory),
        "source": follower.document.shown,
        "store_id": follower.document.store_id,
        "backup": at.manifest if at else None,
        "epoch": at.epoch if at else None,
        "closed_ms": at.closed_ms if at else None,
        "age_ms": clock.wall_ms() - at.closed_ms if at and at.closed_ms is not None else None,
        "changed": followed is not None,
        "linked": followed.linked if followed else 0,
        "whole_because": dict(followed.whole_because) if followed else {},
        "objects": followed.objects if followed else 0,
        "stored_bytes": followed.stored_bytes if followed else 0,
        "elapsed_s": followed.elapsed_s if followed else 0.0,
        "writer": writer.as_json() if writer else None,
        "missed": [{"backup": each.backup, "epoch": each.epoch, "why": each.why} for each in look.missed],
        "problems": list(look.problems),
    }


def _damaged(follower: Follower, look: FollowResult) -> RecoveryError:
    found = "; ".join(f"backup {each.backup} cannot be used: {each.why}" for each in look.missed[:3])
    return BackupDamagedError(found, path=follower.document.shown)
