"""What a database's error means: by its SQLSTATE where the module gives one, otherwise by its class and text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from recovery.errors import SinkFailedError

POSTGRESQL = ("psycopg", "psycopg2", "pg8000")
"""The modules of connections to PostgreSQL."""
ABSENT = "42P01"
_AGAIN = "run the same command again: it publishes the output of closed epochs and recomputes the rest."


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a database refuses a statement whatever the statement's values are.

    codes: SQLSTATEs, or the class of some, which has two characters. texts: parts of what modules without them say.
    """

    codes: tuple[str, ...]
    texts: tuple[str, ...]
    cause: str
    remedy: str


RIGHTS = Reason(
    ("42501",),
    (),
    "This connection's user lacks a right. It must be able to create tables, and to read and write them and the target "
    "table.",
    f"Grant it, or connect as the user who made those tables; then {_AGAIN}",
)
READ_ONLY = Reason(
    ("25006",),
    ("readonly", "read-only"),
    "The connection may only read: this user lacks a right, or the server is a standby, as after a failover to another "
    "one.",
    f"Grant it, or let `connect` lead to the primary (target_session_attrs=read-write); then {_AGAIN}",
)
LOCKED = Reason(
    ("55P03",),
    ("is locked", "not set lock"),
    "Another connection holds a lock for longer than this one waits.",
    f"Let that one end its transaction, or let `connect` give connections that wait longer; then {_AGAIN}",
)
CONFLICT = Reason(
    ("40001", "40P01"),
    (),
    "Transactions of others write the same rows at the same time, and in another order than that of their keys.",
    f"Let them write in the order of the keys, or in shorter transactions; then {_AGAIN}",
)
OUTAGE = Reason(
    ("08", "57P01", "57P02", "57P03", "53300"),
    (),
    "The connection was cut, or the server is restarting, not reachable or out of connections.",
    f"When it is reachable again, {_AGAIN}",
)
OTHER = Reason(
    (),
    (),
    "The database reports this error; or it is full, failing or not reachable.",
    f"Fix it and {_AGAIN}",
)
_KNOWN = (RIGHTS, READ_ONLY, LOCKED, CONFLICT, OUTAGE)
PASSING = (LOCKED, CONFLICT, OUTAGE)
"""Reasons that lie neither in the flow nor in the table."""


def reason_of(error: BaseException | None) -> Reason:
    """Return the reason of an error, or of the database module's error that it was raised from."""
    while isinstance(error, SinkFailedError):
        error = error.__cause__
    code, text = _code_and_text(error)
    if code:
        return next((each for each in _KNOWN if code in each.codes or code[:2] in each.codes), OTHER)
    found = next((each for each in _KNOWN if any(part in text for part in each.texts)), OTHER)
    return OUTAGE if found is OTHER and _is_of_the_network(error) else found


def says_absent(error: SinkFailedError) -> bool:
    """Whether the error says that a table does not exist."""
    code, text = _code_and_text(error.__cause__)
    return code == ABSENT if code else "no such table" in text or "does not exist" in text


def says_unfit(error: SinkFailedError) -> bool:
    """Whether a statement's value may have caused the error, by the names and numbers of database errors."""
    code, _ = _code_and_text(error.__cause__)
    if code:
        return code.startswith(("22", "42"))
    return all(kind.__name__ != "OperationalError" for kind in type(error.__cause__).__mro__)


def _is_of_the_network(error: BaseException | None) -> bool:
    """Whether a connection has ended, or none can be made: the server has not answered, so no SQLSTATE says why."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return type(error).__module__.partition(".")[0] in POSTGRESQL and not names.isdisjoint(
        ("OperationalError", "InterfaceError")
    )


def _code_and_text(error: BaseException | None) -> tuple[str, str]:
    """Return the SQLSTATE of a module's error, if it has one, and its text."""
    first = error.args[0] if error is not None and error.args else None
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    # pg8000 passes on the server's response.
    return code or (first.get("C") if isinstance(first, Mapping) else None) or "", str(error)
