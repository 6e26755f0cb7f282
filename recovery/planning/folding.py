"""When logged epochs are folded into the snapshots: pure functions of how much is logged and how much is held.

Folding writes every page of the snapshots that has a logged key, twice: to SQLite's log and into the file. A page holds
about a hundred keys, so a few keys on all pages cost as much as all keys. Folding pays when a good part of the state
has changed. The log is read when a run starts, and each epoch that is logged scans what was logged before it, so the
log may not become long either.
"""

from __future__ import annotations

from typing import NamedTuple

from recovery.base.ids import Epoch
from recovery.planning.resume import ResumePlan

FOLD_S = 30.0
"""Not more often than this, unless `FOLD_ROWS` are logged or the stream pauses."""
FOLD_ROWS = 8_000_000
FOLD_SHARE = 1 / 2
"""Logged changes, as a share of the held rows, that are folded when it is time."""
LONG_ROWS = 500_000
"""As many changes are folded when it is time, however many rows are held: an epoch that is logged takes 0.07 µs for
each change before it."""
LEFT_ROWS = 100_000
"""As many changes are folded when the stream pauses or ends, however many rows are held: the next run reads them in
0.2 s."""
LONG_EPOCHS = 5_000
"""As many epochs are folded when it is time, however little each has changed: whoever looks at a partition reads a row
of each, and with a backup interval folding takes 0.2 ms for each."""
KEPT_SHARE = 1 / 8
"""With a backup interval, epochs that change more of the held rows are moved: folding would write as many pages, since
each epoch is kept, and would take longer by the logging."""
SMALL_ROWS = 10_000
"""With fewer rows held, everything is folded when it is time: that is some hundred pages."""


class FoldLimits(NamedTuple):
    """The limits of one run, by default those of this module."""

    fold_s: float = FOLD_S
    fold_rows: int = FOLD_ROWS
    small_rows: int = SMALL_ROWS
    share: float = FOLD_SHARE
    kept_share: float = KEPT_SHARE
    long_epochs: int = LONG_EPOCHS

    def reached(self, logged: int, held: int, waited_s: float, *, pauses: bool, epochs: int = 1) -> bool:
        """Return whether `logged` changes of so many epochs are to be folded into `held` rows. waited_s: since the
        snapshots were written last. pauses: no epoch is expected for now."""
        if logged >= self.fold_rows:
            return True
        if not pauses and waited_s < self.fold_s:
            return False
        if held < self.small_rows or epochs >= self.long_epochs:
            return True
        return logged >= min(held * self.share, LEFT_ROWS if pauses else LONG_ROWS)

    def where_kept(self) -> FoldLimits:
        """Return the limits of a run that keeps each epoch: folding repeats each, while the stream may have to wait."""
        return self._replace(fold_rows=min(self.fold_rows, LONG_ROWS))


class LeftLog(NamedTuple):
    """What earlier runs have logged and not folded: the number of changes, and the newest epoch that every partition
    has folded."""

    changes: int
    folded: Epoch


def left_log(plan: ResumePlan) -> LeftLog:
    """Return what is logged of the epochs before the resume epoch."""
    newest = Epoch(plan.resume_epoch - 1)
    logged = [each.logged_rows or 0 for part in plan.partitions for each in part.epochs if each.epoch <= newest]
    return LeftLog(sum(logged), min((newest, *(part.folded_epoch for part in plan.partitions))))


def held_rows(plan: ResumePlan) -> int:
    """Return the number of rows in the snapshots."""
    return sum(part.newest.live_rows for part in plan.partitions if part.newest is not None)
