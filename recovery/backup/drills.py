"""Notes of drills at a place of backups: when each ended, what it restored, and how it ended.

The notes lie at the place, because a drill runs wherever the place can be read, best not on the host of the directory.
They only inform: no restore and no backup depends on them. `recovery backup` brings the newest one to its directory.
"""

from __future__ import annotations

import contextlib
import re

import msgspec

from recovery.base.intervals import format_interval
from recovery.base.untrusted_json import Count, Moment, Real
from recovery.base.wording import moment_text
from recovery.errors import RecoveryError, shortened
from recovery.places.protocol import Place, nonce

DRILLS = "drills/"
KEPT = 10
"""How many notes stay at a place."""
LONGEST = 1 << 16
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
    """Write the note, and remove old ones. Returns why it could not be written, as with credentials that only read;
    None: it was."""
    name = f"{DRILLS}{max(0, drill.finished_ms):015d}-{nonce()}.json"
    try:
        target.write(name, [msgspec.json.encode(drill)])
    except RecoveryError as error:
        return error.found
    with contextlib.suppress(RecoveryError):
        for old in drill_names(target)[:-KEPT]:
            target.delete(old)
    return None


def last_drill_at(target: Place) -> LastDrill | None:
    """Return the newest note at a place that can be read; None: there is none. Raises BackupTargetError."""
    for name in reversed(drill_names(target)[-KEPT:]):
        # Anything may have this name; a drill that cannot be read does not hide the one before.
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError):
            return msgspec.json.decode(target.read_range(name, 0, LONGEST), type=LastDrill)
    return None


def drill_text(drill: LastDrill | None) -> str:
    """Return what people read of the last drill: whoever writes to the place may have written the note, so long texts
    are cut."""
    if drill is None:
        return "none is recorded here"
    when, epoch = moment_text(drill.finished_ms), "nothing" if drill.epoch is None else f"epoch {drill.epoch:,}"
    restored = f"restored {epoch} from {shortened(drill.place)} in {format_interval(round(drill.took_s, 1))}"
    return f"passed {when}: {restored}" if drill.has_passed else f"failed {when}: {restored}; {shortened(drill.found)}"


def drill_names(target: Place) -> list[str]:
    """Return the names of the notes at a place, the oldest first. Raises BackupTargetError."""
    return sorted(each.name for each in target.entries(DRILLS) if _NAME.fullmatch(each.name))
