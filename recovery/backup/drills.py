"""Notes of drills at a place of backups: when each ended, what it restored, and how it ended.

The notes lie at the place, because a drill runs wherever the place can be read, best not on the host of the directory.
They only inform: no restore and no backup depends on them. `recovery backup` brings the newest one to its directory.

A note's name begins with the time at which its drill ended, or with one more than the number of the newest note that
its drill found there: so the names are in the order of the drills, also if the clock of a host is wrong.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import msgspec

from recovery.base.intervals import format_interval
from recovery.base.untrusted_json import Count, Moment, Real
from recovery.base.wording import ahead_s, moment_text
from recovery.errors import RecoveryError, shortened
from recovery.places.protocol import Place, nonce

DRILLS = "drills/"
KEPT = 10
"""How many notes stay at a place."""
LONGEST = 1 << 16
LAST = 10**15 - 1
"""The largest number of a note."""
_NAME = re.compile(rf"{DRILLS}\d{{15}}-[0-9a-f]{{16}}\.json", re.ASCII)


class LastDrill(msgspec.Struct, frozen=True):
    """A drill that has ended. finished_ms: when, by wall time. place: what it restored from. epoch: what it restored;
    None: nothing. took_s: from listing the copies to a run that could continue. found: why it failed; empty: it has
    passed. host: where it ran."""

    finished_ms: Moment
    place: str
    epoch: Count | None
    took_s: Real
    found: str
    host: str

    @property
    def has_passed(self) -> bool:
        """Whether the backups are what they should be."""
        return not self.found


def note_drill(target: Place, drill: LastDrill) -> str | None:
    """Write the note after those that are there, and remove old ones. Returns why it could not be written, as with
    credentials that only read; None: it was."""
    try:
        latest = max((_number(name) for name in drill_names(target)), default=-1)
        name = f"{DRILLS}{min(max(drill.finished_ms, latest + 1), LAST):015d}-{nonce()}.json"
        target.write(name, [msgspec.json.encode(drill)])
    except RecoveryError as error:
        return error.found
    with contextlib.suppress(RecoveryError):
        for old in drill_names(target)[:-KEPT]:
            target.delete(old)
    return None


def last_drill_at(target: Place) -> LastDrill | None:
    """Return the newest note at a place that can be read; None: there is none. Raises BackupTargetError."""
    return next(drills_at(target), None)


def drills_at(target: Place) -> Iterator[LastDrill]:
    """Yield the notes at a place that can be read, the newest first; each is read when it is asked for. Raises
    BackupTargetError."""
    for name in reversed(drill_names(target)[-KEPT:]):
        # Anything may have this name; a drill that cannot be read does not hide the one before.
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
            yield msgspec.json.decode(target.read_range(name, 0, LONGEST), type=LastDrill)


def drill_text(drill: LastDrill | None, now_ms: int) -> str:
    """Return what people read of the last drill: whoever writes to the place may have written the note, so long texts
    are cut."""
    if drill is None:
        return "none is recorded here"
    when, epoch = moment_text(drill.finished_ms), "nothing" if drill.epoch is None else f"epoch {drill.epoch:,}"
    restored = f"restored {epoch} from {shortened(drill.place)} in {format_interval(round(drill.took_s, 1))}"
    if ahead_s(drill.finished_ms, now_ms):
        when += f", by the clock of {shortened(drill.host)}, which is ahead"
    return f"passed {when}: {restored}" if drill.has_passed else f"failed {when}: {restored}; {shortened(drill.found)}"


def drill_names(target: Place) -> list[str]:
    """Return the names of the notes at a place, the oldest first. Raises BackupTargetError."""
    entries = [each for each in target.entries(DRILLS) if _NAME.fullmatch(each.name)]
    # After the largest number, which somebody may have written, only the clock of the store is left.
    return [each.name for each in sorted(entries, key=lambda each: (_number(each.name), each.written_ms, each.name))]


def _number(name: str) -> int:
    return int(name.removeprefix(DRILLS).partition("-")[0])
