"""All values that a partition holds of a span of epochs: the live rows as of its last epoch, and the superseded ones.

Logged epochs count as folded (see `epoch_log.overlaid`). Epochs after the span, which a killed run left in some
partitions only, count as taken back.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw

from recovery.errors import CorruptPartitionError
from recovery.planning.values import PartitionDescription
from recovery.storage.sqlite.digests import SNAPS_DIGEST, SUM_SQL, combine
from recovery.storage.sqlite.epoch_log import is_logged
from recovery.storage.sqlite.file.statements import rows, translated, value
from recovery.storage.sqlite.file.tables import ROW_BYTES
from recovery.storage.sqlite.transfer.tally import Tally

ROW = "step_id, state_key, snap_epoch, ser_change, timeout_ms, digest"
LIVE = f"SELECT {ROW} FROM snaps"
# A step after the other, without reading the rows between.
STEPS = """
WITH RECURSIVE steps (step) AS (
    SELECT min(step_id) FROM snaps
    UNION ALL SELECT (SELECT min(step_id) FROM snaps WHERE step_id > step) FROM steps WHERE step IS NOT NULL
)
SELECT step FROM steps WHERE step IS NOT NULL
"""
BEHIND = "SELECT state_key FROM snaps WHERE step_id = :step AND state_key >= :key ORDER BY state_key LIMIT 1"
# Rows that come back when the epochs after the span are taken back.
LIVE_BEFORE = f"""
{LIVE} WHERE snap_epoch <= :last
UNION ALL SELECT {ROW} FROM superseded WHERE until_epoch > :last AND snap_epoch <= :last
"""
# Files of version 3 have rows without snap_epoch and value, which say only that a key is new.
EARLIER = f"""
SELECT until_epoch, {ROW} FROM superseded
WHERE until_epoch > :first AND until_epoch <= :last AND snap_epoch IS NOT NULL
"""
OF_STEPS = f"SELECT step_id, :first, {SUM_SQL} FROM {{live}} GROUP BY step_id"
# For one step: SQLite sorts single integers in half the time of texts with integers.
SINCE = f"""
SELECT :step, snap_epoch, {SUM_SQL} FROM {{live}} WHERE step_id = :step AND snap_epoch > :first GROUP BY snap_epoch
"""
EARLIER_WRITTEN = f"SELECT step_id, max(snap_epoch, :first), {SUM_SQL} FROM ({EARLIER}) GROUP BY 1, 2"
EARLIER_ENDED = f"SELECT step_id, until_epoch, {SUM_SQL} FROM ({EARLIER}) GROUP BY 1, 2"
SUPERSEDED = f"SELECT until_epoch, {SUM_SQL} FROM main.superseded GROUP BY until_epoch"
# By step: damaged rows, and the rows and bytes that `sizes` counts.
SOUND = f"SELECT step_id, sum(digest IS NOT {SNAPS_DIGEST}), count(*), sum({ROW_BYTES}) FROM snaps GROUP BY step_id"
DAMAGED_EARLIER = f"SELECT count(*) FROM superseded WHERE digest IS NOT {SNAPS_DIGEST}"

END = b""
"""Behind all keys: SQLite orders texts before bytes."""


class Versions:
    """The values of one partition from epoch `first` to epoch `last`, read within one transaction."""

    def __init__(self, connection: apsw.Connection, path: Path, newest: int, first: int, last: int) -> None:
        """newest: the newest epoch of the partition, which may come after the span."""
        self._connection = connection
        self._path = path
        self._span = {"first": first, "last": last}
        self._live = LIVE if newest <= last else LIVE_BEFORE

    def live(self) -> Generator[tuple[Any, ...], None, None]:
        """Yield the rows that are live at the last epoch, by step and key."""
        return self._execute(f"{self._live} ORDER BY step_id, state_key")

    @property
    def is_plain(self) -> bool:
        """Whether the live rows are those of the table in the file: nothing is logged, and nothing has to be taken
        back."""
        return self._live == LIVE and not is_logged(self._connection)

    def keys(self, number: int) -> Generator[tuple[str, str, int], None, None]:
        """Yield step and key of the live rows in order, if they are plain, each with `number`."""
        return self._execute(f"SELECT step_id, state_key, {number} FROM snaps ORDER BY step_id, state_key")

    def earlier(self) -> Generator[tuple[Any, ...], None, None]:
        """Yield the rows that an epoch of the span after the first superseded, by that epoch, step and key."""
        return self._execute(f"{EARLIER} ORDER BY until_epoch, step_id, state_key")

    def tally(self) -> Tally:
        """Count the rows of each step and epoch."""
        found, live = Tally(), f"({self._live})"
        of_steps = list(self._execute(OF_STEPS.format(live=live)))
        found.wrote(of_steps)
        if self._span["first"] < self._span["last"]:
            since = [row for step, *_ in of_steps for row in self._execute(SINCE.format(live=live), step=step)]
            found.wrote(since)
            found.wrote(((step, self._span["first"], *sums) for step, _, *sums in since), -1)
            found.wrote(self._execute(EARLIER_WRITTEN))
            found.ended(self._execute(EARLIER_ENDED))
        return found

    def steps(self) -> list[str]:
        """Return the steps with live rows, if they are plain."""
        return [step for (step,) in self._execute(STEPS)]

    def key_behind(self, step: str, key: str, number: int) -> str | bytes:
        """Return the key `number` live rows behind another one, or `END`, if they are plain."""
        found = [*self._execute(f"{BEHIND} OFFSET {number}", step=step, key=key), (END,)]
        key_or_end: str | bytes = found[0][0]
        return key_or_end

    def _execute(self, sql: str, **bindings: Any) -> Generator[Any, None, None]:
        with translated(self._path):
            yield from self._connection.execute(sql, self._span | bindings)


def check_complete(connection: apsw.Connection, path: Path, held: PartitionDescription) -> None:
    """Raise CorruptPartitionError unless the rows of a partition are as many as its epochs say, with the same digests.
    Whether each row matches its own digest is not checked."""
    folded = next((closed for closed in held.epochs if closed.epoch == held.folded_epoch), None)
    [(count, *sums)] = rows(connection, f"SELECT {SUM_SQL} FROM main.snaps")
    problem = None
    if (count, combine(*sums)) != ((folded.live_rows, folded.live_digest) if folded else (0, 0)):
        problem = f"the rows of snaps are not those that epoch {held.folded_epoch} left"
    there = {until: (count, combine(*sums)) for until, count, *sums in rows(connection, SUPERSEDED)}
    for closed in held.epochs:
        expected = closed.superseded_rows, closed.superseded_digest
        if closed.epoch > held.collected and there.get(closed.epoch, (0, 0)) != expected:
            problem = f"the rows that epoch {closed.epoch} superseded are not all there"
    if problem is not None:
        raise CorruptPartitionError(problem, path=path)


def sizes_if_sound(connection: apsw.Connection) -> dict[str, tuple[int, int]] | None:
    """Return rows and bytes of each step in `snaps`; None if a row in the partition does not match its digest."""
    found = rows(connection, SOUND)
    if value(connection, DAMAGED_EARLIER) or any(damaged for _, damaged, *_ in found):
        return None
    return {step: (count, size_bytes) for step, _, count, size_bytes in found}
