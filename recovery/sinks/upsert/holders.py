"""Who holds a lock that a start waits for, as PostgreSQL says it."""

from __future__ import annotations

from recovery.base.printable import one_line
from recovery.sinks.upsert.database import Transaction, quoted_table
from recovery.sinks.upsert.table import BESIDE, UpsertTable

MOST = 3
SHOWN_CHARACTERS = 80
# Readers of the user's table hold up nobody; a reader of the sink's own tables does, since a start makes some again.
HOLDERS = """
SELECT a.pid, a.usename, a.application_name, a.state, CAST(extract(epoch FROM now() - a.xact_start) AS BIGINT), a.query
FROM pg_stat_activity AS a
WHERE a.pid <> pg_backend_pid() AND EXISTS (
    SELECT 1 FROM pg_locks AS l
    WHERE l.pid = a.pid AND l.granted AND l.locktype = 'relation'
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (
            l.relation IN ({beside})
            OR (l.relation = to_regclass(CAST({p} AS TEXT)) AND l.mode <> 'AccessShareLock')
        )
)
ORDER BY a.xact_start
"""


def holders_of(table: UpsertTable, database: Transaction) -> str:
    """Return the transactions that hold locks on the table or those beside it, to be added to an error; empty if none
    does, or the database cannot say it."""
    if not database.is_postgresql:
        return ""
    beside = [quoted_table(table.name + end) for end in BESIDE]
    places = ", ".join(["to_regclass(CAST({p} AS TEXT))"] * len(beside)).format(p="\0")
    found = database.run(HOLDERS, (*beside, quoted_table(table.name)), beside=places)
    return "".join(f"; {_described(*each)}" for each in found[:MOST])


def _described(pid: int, user: str, application: str, state: str | None, age_s: int | None, query: str | None) -> str:
    """Describe a transaction. PostgreSQL shows state, age and query only to roles that may see them."""
    since = "" if age_s is None else f", which began {age_s} s ago"
    last = "" if not query else f": {query if len(query) <= SHOWN_CHARACTERS else query[:SHOWN_CHARACTERS] + ' …'}"
    doing = f", {state}" if state else ""
    named = f", application {application!r}" if application else ""
    return one_line(f"process {pid} of user {user}{named}{doing} holds locks in a transaction{since}{last}")
