"""Digests, which show that no row was changed and none lost.

Every row of `snaps` and `superseded` carries a digest of all its other columns. Every epoch carries the sum of the
digests of the rows that were live when it closed, and of the rows it superseded. SQLite computes both itself, with
extensions that apsw ships, so they cost no Python per row. A digest is the first 60 bits of a SHA-1. A digest guards
against accidents, not against an attacker who can write the file.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import apsw
import apsw.sqlite_extra
import msgspec

from recovery.base.wording import counted
from recovery.errors import CorruptPartitionError

_HALF_BITS = 30
_HALF = (1 << _HALF_BITS) - 1
MODULUS = 1 << (2 * _HALF_BITS)


def load_digests(connection: apsw.Connection) -> None:
    """Load the extensions that the SQL expression of a digest needs into a connection."""
    allowed = connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, -1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
    try:
        for extension in ("sha1", "ieee754"):
            connection.load_extension(_path_of(extension))
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, allowed)


@cache
def _path_of(extension: str) -> str:
    """Return the file of an extension. Finding it takes longer than loading it: apsw reads a list of all each time."""
    return str(apsw.sqlite_extra.path(extension))


def row_digest_sql(step: str, key: str, epoch: str, value: str, timeout: str) -> str:
    """Return an SQL expression for the digest of a row, given the expressions of its columns. See `load_digests`.

    The digested text includes the length of the key and the type of the value, so no two different rows of a step have
    the same text. `concat_ws` builds the text in a third of the time of `||`. The only quick conversion from
    hexadecimal to an integer goes through the bytes of a double; four leading zero bits keep it from being NaN.
    """
    parts = (step, f"length({key})", key, _present(epoch), f"typeof({value})", _present(timeout), _present(value))
    text = f"concat_ws(char(31), {', '.join(parts)})"
    return f"ieee754_to_int(ieee754_from_blob(unhex('0' || substr(sha1({text}), 1, 15))))"


def _present(expression: str) -> str:
    """Return an expression that is never NULL, because `concat_ws` skips NULL."""
    return f"coalesce({expression}, '')"


SNAPS_DIGEST = row_digest_sql("step_id", "state_key", "snap_epoch", "ser_change", "timeout_ms")

SUM_SQL = f"count(*), coalesce(sum(digest >> {_HALF_BITS}), 0), coalesce(sum(digest & {_HALF}), 0)"
"""Select list for the number and the digest sum of a set of rows; see `combine`."""


def combine(high: int, low: int) -> int:
    """Combine the two sums of SUM_SQL into the digest sum, modulo 2^60. Raises CorruptPartitionError if a sum is not an
    integer, because a digest is not."""
    if type(high) is not int or type(low) is not int:
        raise CorruptPartitionError("a digest in it is not a whole number")
    return ((high << _HALF_BITS) + low) % MODULUS


def record_digest(*fields: Any) -> int:
    """Return the digest of a row of one of the small tables."""
    return int.from_bytes(hashlib.blake2b(msgspec.json.encode(fields), digest_size=7).digest(), "big")


def mismatch_text(count: int, table: str) -> str:
    """Return the sentence for rows whose digest does not match their content."""
    verb = "has" if count == 1 else "have"
    return f"{counted(count, 'row')} of {table} {verb} values that do not match their digest"
