"""The state of a step at any epoch that a partition still holds, and the changes between two epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import apsw

from recovery.base.ids import NO_EPOCH
from recovery.base.wording import counted, were
from recovery.errors import CorruptPartitionError, EpochNotHeldError
from recovery.planning.resume import BEGINNING, Cut
from recovery.storage.sqlite.describe import STEPS
from recovery.storage.sqlite.digests import SNAPS_DIGEST, load_digests
from recovery.storage.sqlite.epoch_log import logged_steps, overlaid
from recovery.storage.sqlite.file.reading import read_partition, reading
from recovery.storage.sqlite.file.statements import rows, snapshot, translated
from recovery.storage.sqlite.measures import counted_rows

MOST_DUE = 100_000
"""No more timeouts of a partition are counted."""
# A row written up to the epoch, or the value that its first later successor replaced, if that was written up to the
# epoch. Only a row that matches its digest has a reliable epoch.
AT = f"""
SELECT state_key, snap_epoch, ser_change, timeout_ms, digest IS {SNAPS_DIGEST} FROM snaps
WHERE step_id = :step AND (snap_epoch <= :epoch OR digest IS NOT {SNAPS_DIGEST}) {{key}}
UNION ALL
SELECT state_key, snap_epoch, ser_change, timeout_ms, digest IS {SNAPS_DIGEST} FROM (
    SELECT step_id, state_key, min(until_epoch), snap_epoch, ser_change, timeout_ms, digest FROM superseded
    WHERE until_epoch > :epoch AND step_id = :step {{key}} {{held}} GROUP BY state_key
) WHERE snap_epoch <= :epoch OR digest IS NOT {SNAPS_DIGEST}
"""
ONE_KEY = "AND state_key = :key"
# A search for each held epoch: without the list, SQLite reads all keys that were superseded after the epoch.
HELD = "AND until_epoch IN (SELECT epoch FROM epochs)"
ENDING = "AND substr(state_key, -length(:ending)) = :ending"
RANGE = "AND state_key >= :begin AND (:end IS NULL OR state_key < :end)"
NEWEST = f"""
SELECT state_key, snap_epoch, ser_change, timeout_ms, digest IS {SNAPS_DIGEST} FROM snaps WHERE step_id = :step
"""
NEWEST_SIZES = "SELECT state_key, octet_length(ser_change) FROM snaps WHERE step_id = :step"
# The same without the values: SQLite knows their length without reading them.
SIZES = """
SELECT state_key, octet_length(ser_change) FROM snaps WHERE step_id = :step AND snap_epoch <= :epoch
UNION ALL
SELECT state_key, octet_length(ser_change) FROM (
    SELECT state_key, min(until_epoch), snap_epoch, ser_change FROM superseded
    WHERE until_epoch > :epoch AND step_id = :step GROUP BY state_key
) WHERE snap_epoch <= :epoch
"""
COUNT = f"SELECT count(*) FROM ({SIZES})"
# All values of a key that were written up to the epoch.
VERSIONS = f"""
SELECT state_key, snap_epoch, ser_change, timeout_ms, digest IS {SNAPS_DIGEST}, until_epoch FROM superseded
WHERE step_id = :step AND state_key = :key AND snap_epoch BETWEEN :since AND :epoch {HELD}
UNION ALL
SELECT state_key, snap_epoch, ser_change, timeout_ms, digest IS {SNAPS_DIGEST}, NULL FROM snaps
WHERE step_id = :step AND state_key = :key AND snap_epoch BETWEEN :since AND :epoch
ORDER BY snap_epoch
"""
SPANS = f"""
SELECT snap_epoch, until_epoch, octet_length(ser_change) FROM superseded
WHERE step_id = :step AND state_key = :key AND snap_epoch <= :epoch {HELD}
UNION ALL
SELECT snap_epoch, NULL, octet_length(ser_change) FROM snaps
WHERE step_id = :step AND state_key = :key AND snap_epoch <= :epoch
ORDER BY snap_epoch
"""
EARLIEST = "SELECT min(timeout_ms) FROM snaps WHERE step_id = :step AND timeout_ms IS NOT NULL"
DUE = f"""
SELECT count(*) FROM (
    SELECT 1 FROM snaps WHERE step_id = :step AND timeout_ms <= :moment LIMIT {MOST_DUE}
)
"""
# Keys replaced in between, and keys written in between: live ones, and those superseded later.
TOUCHED = """
SELECT state_key FROM superseded WHERE until_epoch > :first AND until_epoch <= :last AND step_id = :step
UNION
SELECT state_key FROM superseded
WHERE until_epoch > :last AND step_id = :step AND snap_epoch > :first AND snap_epoch <= :last
UNION
SELECT state_key FROM snaps WHERE step_id = :step AND snap_epoch > :first AND snap_epoch <= :last
ORDER BY state_key
"""
# As many seeks as there are steps, and steps in each held epoch. The steps in the log come besides.
EVERY_STEP = f"""
WITH RECURSIVE before(epoch, id) AS (
    SELECT epoch, (SELECT min(step_id) FROM superseded WHERE until_epoch = epoch) FROM epochs
    UNION ALL
    SELECT epoch, (SELECT min(step_id) FROM superseded WHERE until_epoch = epoch AND step_id > id)
    FROM before WHERE id IS NOT NULL
)
SELECT id FROM before WHERE id IS NOT NULL UNION SELECT id FROM ({STEPS}) ORDER BY 1
"""
ANY_ROW = """
SELECT 1 FROM (SELECT step_id FROM snaps UNION ALL SELECT step_id FROM superseded) WHERE step_id = :step LIMIT 1
"""
FEW = 8
"""The most keys for which the log is searched; for more, it is read as a whole."""
SUPERSEDED_THERE = """
SELECT until_epoch, count(*) FROM main.superseded WHERE until_epoch > :epoch GROUP BY until_epoch ORDER BY until_epoch
"""
SUPERSEDED_COUNTED = """
SELECT epoch, superseded_rows FROM epochs WHERE epoch > :epoch AND superseded_rows > 0 ORDER BY epoch
"""


@dataclass(frozen=True, slots=True)
class KeyState:
    """One key's state: the epoch that wrote it, the stored value, and its timeout."""

    key: str
    epoch: int
    value: str | bytes
    timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class KeyVersion:
    """A value that a key had. until: the epoch that replaced or removed it; None: it is the newest."""

    state: KeyState
    until: int | None


class VersionSpan(NamedTuple):
    """A value that a key had: from which epoch, until which (None: it is the newest), and its bytes."""

    epoch: int
    until: int | None
    size_bytes: int


class Due(NamedTuple):
    """Timeouts of a step: the earliest, milliseconds since 1970, None: none is set; and how many are due up to each
    moment that was asked for, at most `MOST_DUE` of a partition."""

    earliest_ms: int | None
    counts: list[int]


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key's state at one epoch and at a later one; None if it had no state."""

    key: str
    before: KeyState | None
    after: KeyState | None


def states_at(path: Path, step: str, cut: Cut, *, in_order: bool = False) -> Iterator[KeyState]:
    """Yield the states of a step in one partition as of a cut, even during a run. in_order: by key.

    Raises EpochNotHeldError if the partition does not hold the cut, or no longer; CorruptPartitionError; and
    StorageError if a run began meanwhile on a partition that nobody used.
    """
    with _reading(path, step, cut) as connection:
        _check_all_there(connection, path, step, cut)
        sql = AT.format(key="", held="") + ("ORDER BY state_key" if in_order else "")
        yield from _states(connection, path, sql, {"step": step, "epoch": cut[0]})


def versions_of(path: Path, step: str, key: str, cut: Cut, since: int = 0) -> list[KeyVersion]:
    """Return the values of a key that a partition still holds, up to a cut, oldest first. since: only those that this
    epoch or a later one wrote. Raises like `states_at`."""

    def read(connection: apsw.Connection) -> list[KeyVersion]:
        with _as_of(connection, path, cut, step=step, keys=[key]):
            found = rows(connection, VERSIONS, {"step": step, "epoch": cut[0], "key": key, "since": since})
            states = (_checked(path, step, *row[:5]) for row in found)
            ends = (end if end is not None and end <= cut[0] else None for *_, end in found)
            return [KeyVersion(state, end) for state, end in zip(states, ends, strict=True)]

    return read_partition(path, read)


def spans_of(path: Path, step: str, key: str, cut: Cut) -> list[VersionSpan]:
    """Return when each value of a key that `versions_of` returns was there, without reading the values."""

    def read(connection: apsw.Connection) -> list[VersionSpan]:
        with _as_of(connection, path, cut, step=step, keys=[key]):
            found = rows(connection, SPANS, {"step": step, "epoch": cut[0], "key": key})
            return [
                VersionSpan(epoch, until if until is not None and until <= cut[0] else None, size)
                for epoch, until, size in found
            ]

    return read_partition(path, read)


def due_in(path: Path, step: str, moments: Sequence[int]) -> Due:
    """Return how many timeouts of a step are due up to each of these moments, in the newest snapshot of a partition."""

    def read(connection: apsw.Connection) -> Due:
        with translated(path), snapshot(connection), _newest(connection, path, step) as is_there:
            if not is_there:
                return Due(None, [0] * len(moments))
            [(earliest,)] = rows(connection, EARLIEST, {"step": step})
            counts = [rows(connection, DUE, {"step": step, "moment": moment})[0][0] for moment in moments]
            if not (earliest is None or type(earliest) is int):
                raise CorruptPartitionError(f"a timeout of step {step!r:.80} is not a whole number", path=path)
            return Due(earliest, counts)

    return read_partition(path, read)


def check_all_there(path: Path, step: str, cut: Cut) -> None:
    """Raise CorruptPartitionError if the partition lacks rows of a step that it had as of a cut.

    Reads all keys of the step. A row that has moved to another step's name counts as missing.
    """

    def check(connection: apsw.Connection) -> None:
        with _as_of(connection, path, cut, step=step):
            _check_all_there(connection, path, step, cut)

    read_partition(path, check)


def few_states_at(path: Path, step: str, cut: Cut, keys: Sequence[str] | None = None) -> list[KeyState]:
    """Return the states of a step with few keys, or of some keys, as of a cut, in one list. Reads again if a run began
    meanwhile."""

    def read(connection: apsw.Connection) -> list[KeyState]:
        with _as_of(connection, path, cut, step=step, keys=keys if keys is not None and len(keys) <= FEW else None):
            bindings = {"step": step, "epoch": cut[0]}
            if keys is None:
                return list(_states(connection, path, AT.format(key="", held=""), bindings))
            sql = AT.format(key=ONE_KEY, held=HELD)
            return [state for key in keys for state in _states(connection, path, sql, {**bindings, "key": key})]

    return read_partition(path, read)


def page_at(
    path: Path, step: str, cut: Cut, begin: str, end: str | None, limit: int, most_bytes: int
) -> list[KeyState]:
    """Return the first states of a step from a key on, in the order of their keys, as of a cut: at most `limit`, and
    none after their values together have `most_bytes`. end: the keys are less than this one; None: all. Reads again if
    a run began meanwhile."""

    def read(connection: apsw.Connection) -> list[KeyState]:
        with _as_of(connection, path, cut, step=step):
            sql = f"{AT.format(key=RANGE, held='')} ORDER BY state_key LIMIT :limit"
            bindings = {"step": step, "epoch": cut[0], "begin": begin, "end": end, "limit": limit}
            found: list[KeyState] = []
            sum_bytes = 0
            for state in _states(connection, path, sql, bindings):
                found.append(state)
                sum_bytes += len(state.value)
                if sum_bytes >= most_bytes:
                    break
            return found

    return read_partition(path, read)


def ending_at(path: Path, step: str, cut: Cut, ending: str) -> Iterator[KeyState]:
    """Yield the states of a step whose keys end with a text, as of a cut. The values of other keys are not read. Raises
    like `states_at`, but does not look for missing rows."""
    with _reading(path, step, cut) as connection:
        bindings = {"step": step, "epoch": cut[0], "ending": ending}
        yield from _states(connection, path, AT.format(key=ENDING, held=""), bindings)


def newest_states(connection: apsw.Connection, path: Path, step: str) -> list[KeyState]:
    """Return the states of a step with few keys in the newest snapshot of a partition. A read transaction is open. Of
    the log, only the step's own changes are read."""
    with _newest(connection, path, step) as is_there:
        return list(_states(connection, path, NEWEST, {"step": step})) if is_there else []


def newest_sizes(connection: apsw.Connection, path: Path, step: str) -> list[tuple[str, int]]:
    """Return the keys of a step in the newest snapshot of a partition, with the size of each value in bytes. As
    `newest_states`."""
    with _newest(connection, path, step) as is_there:
        return rows(connection, NEWEST_SIZES, {"step": step}) if is_there else []


@contextlib.contextmanager
def _newest(connection: apsw.Connection, path: Path, step: str) -> Iterator[bool]:
    """Let queries of `snaps` return the newest rows of a step. Yields whether there may be any."""
    there = _check_counted(connection, path, step)
    logged = logged_steps(connection)
    if not there and step not in logged:
        yield False
        return
    load_digests(connection)
    with overlaid(connection, path, (step,), unread=[each for each in logged if each != step]):
        yield True


def sizes_at(path: Path, step: str, cut: Cut) -> Iterator[tuple[str, int]]:
    """Yield the keys of a step in one partition as of a cut, with the size of each value in bytes. Values are not read,
    so their digests are not checked. Raises like `states_at`."""
    with _reading(path, step, cut) as connection:
        yield from connection.execute(SIZES, {"step": step, "epoch": cut[0]})


def count_at(path: Path, step: str, cut: Cut) -> int:
    """Return the number of keys of a step in one partition as of a cut. Raises like `states_at`."""
    with _reading(path, step, cut) as connection:
        [(count,)] = rows(connection, COUNT, {"step": step, "epoch": cut[0]})
        return int(count)


def changes_between(path: Path, step: str, first: Cut, last: Cut) -> Iterator[KeyChange]:
    """Yield the keys of a step in one partition whose value or timeout differs between two cuts. `first` is the older
    cut."""
    with _reading(path, step, first, last) as connection:
        touched = rows(connection, TOUCHED, {"step": step, "first": first[0], "last": last[0]})
        for (key,) in touched:
            before, after = (_one(connection, path, step, cut, key) for cut in (first, last))
            if _content(before) != _content(after):
                yield KeyChange(key, before, after)


def has_step(path: Path, step: str) -> bool:
    """Return whether a partition has state of a step in its own newest snapshot."""

    def read(connection: apsw.Connection) -> bool:
        with translated(path), snapshot(connection), overlaid(connection, path, (step,)):
            return bool(rows(connection, "SELECT 1 FROM snaps WHERE step_id = ? LIMIT 1", (step,)))

    return read_partition(path, read)


def steps_in(path: Path) -> list[str]:
    """Return the steps that have rows in any snapshot that is held, sorted, including reserved ones."""

    def read(connection: apsw.Connection) -> list[str]:
        with translated(path), snapshot(connection):
            found = [step for (step,) in rows(connection, EVERY_STEP)]
            for step in logged_steps(connection).keys() - set(found):
                # A step whose keys the log only discards has no rows.
                with overlaid(connection, path, (step,)):
                    found += [step for _ in rows(connection, ANY_ROW, {"step": step})]
        if not all(isinstance(step, str) for step in found):
            raise CorruptPartitionError("a step id in it is not text", path=path)
        return sorted(found)

    return read_partition(path, read)


@contextlib.contextmanager
def _reading(path: Path, step: str, *cuts: Cut) -> Iterator[apsw.Connection]:
    with reading(path) as connection, _as_of(connection, path, *cuts, step=step):
        yield connection


@contextlib.contextmanager
def _as_of(
    connection: apsw.Connection, path: Path, *cuts: Cut, step: str, keys: Sequence[str] | None = None
) -> Iterator[None]:
    """Open a read transaction in which the partition holds all cuts, with loaded digests. step, keys: of which the
    queries ask; None: of all keys."""
    with translated(path):
        load_digests(connection)
        with snapshot(connection):
            for cut in cuts:
                _check_held(connection, path, cut)
            with overlaid(connection, path, (step,), keys):
                yield


def _check_held(connection: apsw.Connection, path: Path, cut: Cut) -> None:
    if cut[0] == NO_EPOCH:
        held = cut == BEGINNING and rows(connection, "SELECT commit_epoch FROM commits") == [(NO_EPOCH,)]
    else:
        sql = "SELECT epoch, ex_id, batch_id FROM epochs WHERE epoch = ?"
        held = rows(connection, sql, (cut[0],)) == [cut]
    if not held:
        # The caller has already found that all partitions hold it.
        raise EpochNotHeldError(
            f"it does not hold epoch {cut[0]} any more",
            path=path,
            cause="A run closed epochs while this was read, and keeps older ones no longer than its backup interval; "
            "or it went back.",
            remedy="Run the same command again; to read for long while a run goes on, give it a longer -b, or read "
            "from a restored backup.",
        )


def _check_all_there(connection: apsw.Connection, path: Path, step: str, cut: Cut) -> None:
    """Compare the rows of the file itself, without the logged changes over them, with the counts it stores."""
    _check_counted(connection, path, step)
    bindings = {"epoch": cut[0]}
    if rows(connection, SUPERSEDED_THERE, bindings) != rows(connection, SUPERSEDED_COUNTED, bindings):
        raise CorruptPartitionError("rows that were superseded after that epoch are missing", path=path)


def _check_counted(connection: apsw.Connection, path: Path, step: str) -> int:
    """Return the number of rows of a step in the file itself, after comparing it with the count that the file
    stores."""
    [(there,)] = rows(connection, "SELECT count(*) FROM main.snaps WHERE step_id = ?", (step,))
    expected = counted_rows(connection, step)
    if expected is not None and there != expected:
        raise CorruptPartitionError(
            f"it holds {counted(there, 'row')} of step {step!r} where {were(expected, 'row')} counted", path=path
        )
    return int(there)


def _one(connection: apsw.Connection, path: Path, step: str, cut: Cut, key: str) -> KeyState | None:
    sql = AT.format(key=ONE_KEY, held=HELD)
    found = list(_states(connection, path, sql, {"step": step, "epoch": cut[0], "key": key}))
    return found[0] if found else None


def _states(connection: apsw.Connection, path: Path, sql: str, bindings: dict[str, object]) -> Iterator[KeyState]:
    step = bindings["step"]
    for row in connection.execute(sql, bindings):
        yield _checked(path, step, *row)


def _checked(
    path: Path, step: object, key: object, epoch: object, value: object, timeout_ms: object, sound: object
) -> KeyState:
    if not sound:
        raise CorruptPartitionError(f"the state of step {step!r} key {key!r:.80} does not match its digest", path=path)
    # A correct digest shows only that somebody wrote the row on purpose.
    if (
        not isinstance(key, str)
        or not isinstance(value, str | bytes)
        or type(epoch) is not int
        or not (timeout_ms is None or type(timeout_ms) is int)
    ):
        raise CorruptPartitionError(
            f"the state of step {step!r} key {key!r:.80} is of a type that no run writes", path=path
        )
    return KeyState(key, epoch, value, timeout_ms)


def _content(state: KeyState | None) -> tuple[str | bytes, int | None] | None:
    return None if state is None else (state.value, state.timeout_ms)
