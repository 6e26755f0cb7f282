"""What a database's error means, as one table: which error the run ends with, and whether the step is tried again.

An SQLSTATE decides where the database's module gives one; otherwise the class of the exception, SQLite's name of the
result, or a part of the text.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from recovery.errors import RecoveryError, SinkFailedError, SinkRefusedError
from recovery.sinks.targets import TargetRefusal

POSTGRESQL = ("psycopg", "psycopg2", "pg8000")
"""The modules of connections to PostgreSQL."""
DATABASE_ERRORS = (SinkFailedError, SinkRefusedError)
"""The errors that a database's own errors become."""
_AGAIN = "run the same command again: it publishes the output of closed epochs and recomputes the rest."


class Again(Enum):
    """When a step that failed is tried again, before the run ends."""

    ALWAYS = "always"
    RUNNING = "after the first successful start of the run"
    NEVER = "no"


@dataclass(frozen=True, slots=True)
class Reason(TargetRefusal):
    """Why a database refuses a statement.

    codes: SQLSTATEs, or the class of some, which has two characters. kinds: classes of exceptions, or beginnings of
    SQLite's names of results.
    """

    again: Again = Again.NEVER


CONFLICT = Reason(
    "a deadlock, a serialization failure",
    ("40001", "40003", "40P01"),
    SinkFailedError,
    "the other transaction ends",
    "Transactions of others write the same rows at the same time, and in another order than that of their keys.",
    f"Let them write in the order of the keys, or in shorter transactions; then {_AGAIN}",
    again=Again.ALWAYS,
    texts=("conflict on", "write-write conflict"),
)
LOCKED = Reason(
    "a lock timeout, a table or database in use",
    ("55P03", "55006"),
    SinkFailedError,
    "whoever holds the lock ends; a start waits for the lock by itself",
    "Another connection holds a lock for longer than this one waits.",
    f"Let the other connection end its transaction, or let `connect` give connections that wait longer; then {_AGAIN}",
    again=Again.RUNNING,
    kinds=("SQLITE_BUSY", "SQLITE_LOCKED"),
    texts=("is locked", "not set lock"),
)
OUTAGE = Reason(
    "no connection: cut, refused or timed out, an unknown host, a server that restarts or has no connection left",
    ("08", "53300", "57P01", "57P02", "57P03", "57P05"),
    SinkFailedError,
    "servers, networks and names of hosts come back",
    "The connection was cut, by the network, the server or a limit such as idle_in_transaction_session_timeout; or the "
    "server is restarting, not reachable or out of connections.",
    f"When it is reachable again, {_AGAIN}",
    again=Again.RUNNING,
    texts=(
        "connection refused", "failed to resolve host", "could not translate host name", "too many connections",
        "no more connections allowed",
        "server login has been failing", "query_wait_timeout",
    ),
)  # fmt: skip
OVERTIME = Reason(
    "a statement was cancelled, or a transaction took too long",
    ("25P03", "25P04", "57014"),
    SinkFailedError,
    "a server with less to do is faster",
    "The step took longer than statement_timeout, transaction_timeout or idle_in_transaction_session_timeout allow, "
    "or somebody cancelled it.",
    f"Raise that limit for this user, or make epochs smaller (-s); then {_AGAIN}",
    again=Again.RUNNING,
)
FULL = Reason(
    "the disk is full or failing, the memory is used up",
    ("53", "58"),
    SinkFailedError,
    "room is made without a change of the flow",
    "The host of the database has no room on its disk or no memory left, or its disk fails.",
    f"Make room there; then {_AGAIN}",
    again=Again.RUNNING,
    kinds=("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOMEM", "OutOfMemoryException"),
    texts=("disk full", "disk is full", "disk i/o error"),
)
READ_ONLY = Reason(
    "the server only reads: a standby, as during a failover",
    ("25006",),
    SinkFailedError,
    "a failover ends",
    "The connection may only read: the user is limited to reading, or the server is a standby, as after a failover to "
    "another server.",
    f"Let `connect` lead to the primary (target_session_attrs=read-write); then {_AGAIN}",
    again=Again.RUNNING,
)
LOGIN = Reason(
    "a wrong password, no such user, a user who may not connect from here",
    ("28",),
    SinkRefusedError,
    "somebody has to correct the address or the account, and repeated attempts may lock it",
    "The user or the password that `connect` gives is wrong, or the server does not accept this user from this host.",
    f"Correct `connect`, or the server's accounts (pg_hba.conf); then {_AGAIN}",
    texts=("authentication failed", "no password supplied", "pg_hba.conf", "fatal:  role "),
)
NO_DATABASE = Reason(
    "no such database or schema",
    ("3D", "3F", "57P04"),
    SinkRefusedError,
    "somebody has to correct the address, or to restore what was dropped",
    "`connect` names a database or a schema that the server does not have, or it was dropped.",
    f"Correct `connect`, or restore the database; then {_AGAIN}",
    texts=('fatal:  database "', "no such database"),
)
TLS = Reason(
    "a certificate that is not trusted, or no TLS where `connect` asks for it",
    (),
    SinkRefusedError,
    "somebody has to correct the certificates",
    "The server's certificate is not signed by an authority that `connect` trusts, is for another name or has expired; "
    "or the server has no TLS.",
    f"Correct sslmode and sslrootcert in `connect`, or the server's certificate; then {_AGAIN}",
    kinds=("SSLCertVerificationError",),
    texts=(
        "certificate verify failed",
        "server certificate for",
        "root certificate file",
        "does not support ssl",
        "server refuses ssl",
    ),
)
POOLER = Reason(
    "PgBouncer is set up in a way that does not work",
    ("26",),
    SinkRefusedError,
    "somebody has to change its settings",
    "PgBouncer gives each statement another session (pool_mode=statement), or `connect` sends a setting that PgBouncer "
    "does not pass on.",
    "Set pool_mode=transaction or session; set limits for the role (ALTER ROLE … SET lock_timeout = …) instead of "
    f"`options` in `connect`; then {_AGAIN}",
    texts=("unsupported startup parameter", "pooling mode"),
)
RIGHTS = Reason(
    "this user lacks a right",
    ("42501",),
    SinkRefusedError,
    "somebody has to grant it",
    "This connection's user lacks a right. It must be able to create tables, and to read and write them and the target "
    "table.",
    f"Grant it, or connect as the user who made those tables; then {_AGAIN}",
    kinds=("SQLITE_PERM", "SQLITE_AUTH", "PermissionException"),
)
READ_ONLY_FILE = Reason(
    "the file may only be read",
    (),
    SinkRefusedError,
    "somebody has to grant the right, or to change `connect`",
    "This user may not write to the database's file or its directory, or `connect` opens the file to read only.",
    f"Grant the right, or open the file to write; then {_AGAIN}",
    kinds=("SQLITE_READONLY",),
    texts=("readonly", "read-only"),
)
ABSENT = Reason(
    "no such table",
    ("42P01",),
    SinkRefusedError,
    "somebody has to restore the table, or to correct its name",
    "A table was dropped or renamed, or this is another database.",
    f"Restore the table, or correct the sink's table or `connect`; then {_AGAIN}",
    texts=("no such table", "does not exist"),
)
SHAPE = Reason(
    "the table's form: a column, type or unique index that it does not have, a statement that it does not know",
    ("0A", "42", "54"),
    SinkRefusedError,
    "somebody has to change the table or the flow",
    "The table's columns, their types or its unique index were changed since the run began; or it is a view, or in a "
    "database without INSERT … ON CONFLICT.",
    f"Change the table back, or the flow to fit it; then {_AGAIN}",
    kinds=("SQLITE_ERROR", "SQLITE_SCHEMA", "BinderException", "CatalogException", "ParserException"),
)
DAMAGED = Reason(
    "data or an index is damaged, or the file is no database",
    ("XX001", "XX002"),
    SinkRefusedError,
    "somebody has to repair or restore it",
    "The database's files are damaged, or the file is not one of this kind of database.",
    f"Restore the database, or rebuild the index; then {_AGAIN}",
    kinds=("SQLITE_CORRUPT", "SQLITE_NOTADB"),
    texts=("not a valid duckdb",),
)
VALUE = Reason(
    "a value: too long, out of range, NULL, against a constraint or refused by a trigger",
    ("09", "22", "23", "27", "44", "54000", "P0"),
    SinkRefusedError,
    "the flow gave this row. When only the table's rows of others are concerned, as while going back, or the epoch is "
    "closed already: `SinkRefusedError` (56)",
    "A row breaks a constraint of the table, or a value does not fit its column.",
    f"Correct the rows that the error names, or the table; then {_AGAIN}",
    kinds=("IntegrityError", "DataError", "SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "SQLITE_RANGE"),
)
OTHER = Reason(
    "anything else",
    (),
    SinkFailedError,
    "it is not known whether the cause passes",
    "The database reports this error; or it is full, failing or not reachable.",
    f"Fix it and {_AGAIN}",
)
REASONS = (
    CONFLICT, LOCKED, OUTAGE, OVERTIME, FULL, READ_ONLY, LOGIN, NO_DATABASE, TLS, POOLER, RIGHTS, READ_ONLY_FILE,
    ABSENT, SHAPE, DAMAGED, VALUE, OTHER,
)  # fmt: skip
"""All reasons, for people from what passes to what stays."""
_ANY_REFUSAL = "08P01"
"""PgBouncer gives this SQLSTATE, a violation of the protocol, for all that it refuses by itself."""


def reason_of(error: BaseException | None) -> Reason:
    """Return the reason of an error, or of the database module's error that it was raised from."""
    while isinstance(error, DATABASE_ERRORS):
        error = error.__cause__
    if error is None:
        return OTHER
    code = code_of(error)
    if code and code != _ANY_REFUSAL:
        return _by_code(code)
    kinds = [getattr(error, "sqlite_errorname", ""), *(kind.__name__ for kind in type(error).__mro__)]
    text = said(error).lower()
    # VALUE first: what is said of a value may contain the value.
    found = next((each for each in (VALUE, *REASONS) if each.fits(kinds, text)), OTHER)
    return OUTAGE if found is OTHER and (code or _is_of_the_network(error)) else found


def said(error: BaseException) -> str:
    """Return a database's own words in one text, with what it adds on the row or the table; never empty."""
    server = _of_server(error)
    primary, detail, hint = (server.get(key) for key in "MDH")
    if primary and server.get("V", server.get("S")) == "FATAL":
        primary = f"FATAL:  {primary}"
    if not primary:
        # Without the place in a statement that the user has not written.
        first, _, _ = str(error).strip().partition("\n\nLINE ")
        cause = error.__cause__
        return first + (f": {cause}" if cause is not None and str(cause) not in first else "") or type(error).__name__
    return "; ".join(part.rstrip(".") for part in (primary, detail, hint) if part)


def code_of(error: BaseException | None) -> str:
    """Return the SQLSTATE of a module's error; empty if there is none."""
    if error is None:
        return ""
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or _of_server(error).get("C")
    return str(code or "")


def says_unfit(error: RecoveryError) -> bool:
    """Whether a statement's value may have caused the error."""
    reason, cause = reason_of(error), error.__cause__
    if code_of(cause):
        return reason in (VALUE, SHAPE)
    return all(kind.__name__ != "OperationalError" for kind in type(cause).__mro__)


def _by_code(code: str) -> Reason:
    exact = next((each for each in REASONS if code in each.codes), None)
    return exact or next((each for each in REASONS if code[:2] in each.codes), OTHER)


def _is_of_the_network(error: BaseException) -> bool:
    """Whether a connection has ended, or none can be made: the server has not answered, so no SQLSTATE says why."""
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    return type(error).__module__.partition(".")[0] in POSTGRESQL and not names.isdisjoint(
        ("OperationalError", "InterfaceError")
    )


def _of_server(error: BaseException) -> Mapping[str, str]:
    """Return the fields of a PostgreSQL server's answer, by their letters in the protocol; empty if it gave none."""
    diag: Any = getattr(error, "diag", None)
    if getattr(diag, "message_primary", None):
        fields = {"M": diag.message_primary, "D": diag.message_detail, "H": diag.message_hint, "C": diag.sqlstate}
        return {key: value for key, value in fields.items() if value}
    return next(_answers_to_pg8000(error), {})


def _answers_to_pg8000(error: BaseException) -> Iterator[Mapping[str, str]]:
    """Yield what the server said to pg8000. When the server closes the connection with an error, as for a wrong
    password, pg8000 says "network error", and the answer is left in the frame that read it."""
    frames = traceback.walk_tb(error.__traceback__) if type(error).__module__.startswith("pg8000") else ()
    left = [frame.f_locals.get("context") for frame, _ in frames]
    for each in (error, *(getattr(context, "error", None) for context in left)):
        first = each.args[0] if isinstance(each, BaseException) and each.args else None
        if isinstance(first, Mapping):
            yield first
