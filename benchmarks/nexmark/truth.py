"""What Nexmark's queries must give: batch queries in DuckDB's SQL over the same files, compared with what was written.

A flow writes the rows of micro-batch N into `batch=N/*.parquet`. In append mode all rows count; else the newest of
each key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.nexmark.spark_queries import CATEGORY, DAY_MS, HIGH, LOW, MINUTE_MS, STATES

LATE_MS = 4_000
WINDOW_MS, STEP_MS = 10_000, 2_000
VIEWS = """
CREATE VIEW events AS SELECT * FROM read_parquet('{files}/*.parquet');
CREATE VIEW persons AS SELECT person.*, epoch_ms(person.dateTime) AS ms FROM events WHERE event_type = 0;
CREATE VIEW auctions AS
SELECT auction.*, epoch_ms(auction.dateTime) AS ms, epoch_ms(auction.expires) AS until FROM events WHERE event_type = 1;
CREATE VIEW bids AS SELECT bid.*, epoch_ms(bid.dateTime) AS ms FROM events WHERE event_type = 2;
"""


@dataclass(frozen=True, slots=True)
class Truth:
    """sql: the result. key: the columns by which a newer row takes the place of an older one; none: all rows count.

    ends: the column of `sql` that says when a window is over. Where all rows count, Spark shows only those of windows
    that the watermark has passed. The column is not in the result.
    seen: what of the written rows is compared.
    """

    sql: str
    key: tuple[str, ...] = ()
    ends: str | None = None
    seen: str = "SELECT * FROM written"


def _start(ms: str = "ms") -> str:
    return f"{ms} - {ms} % {WINDOW_MS}"


def _by_rank(what: str, name: str) -> str:
    low, high = f"price < {LOW}", f"price >= {HIGH}"
    conditions = {"": "true", "rank1_": low, "rank2_": f"NOT ({low} OR {high})", "rank3_": high}
    return ", ".join(f"count({what}) FILTER (WHERE {each}) AS {rank}{name}" for rank, each in conditions.items())


_WINDOWS = f"""
SELECT start, auction, count(*) AS n
FROM (
    SELECT auction, unnest(range(ms - ms % {STEP_MS} - {WINDOW_MS - STEP_MS}, ms + 1, {STEP_MS})) AS start FROM bids
)
GROUP BY ALL
"""
_SESSIONS = f"""
SELECT bidder, min(ms) AS start, max(ms) + {WINDOW_MS} AS ends, count(*) AS n
FROM (
    SELECT *, sum(new) OVER (PARTITION BY bidder ORDER BY ms ROWS UNBOUNDED PRECEDING) AS number
    FROM (SELECT *, (ms - lag(ms, 1, 0) OVER (PARTITION BY bidder ORDER BY ms) >= {WINDOW_MS})::INT AS new FROM bids)
)
GROUP BY bidder, number
"""

TRUTHS = {
    3: Truth(f"""
        SELECT name, city, state, auctions.id AS auction FROM auctions JOIN persons ON seller = persons.id
        WHERE category = {CATEGORY} AND state IN {STATES}
    """),
    4: Truth("""
        SELECT category, avg(price) AS mean
        FROM (
            SELECT id, category, max(price) AS price
            FROM auctions JOIN bids ON id = auction AND bids.ms BETWEEN auctions.ms AND until
            GROUP BY ALL
        )
        GROUP BY category
    """, key=("category",)),
    5: Truth(f"""
        SELECT start, n, list(auction ORDER BY auction) AS auctions, start + {WINDOW_MS} AS ends
        FROM (SELECT *, max(n) OVER (PARTITION BY start) AS best FROM ({_WINDOWS})) WHERE n = best
        GROUP BY start, n
    """, key=("start",), ends="ends"),
    7: Truth(f"""
        SELECT {_start()} AS start, price, auction, bidder, start + {WINDOW_MS} AS ends FROM bids
        QUALIFY row_number() OVER (PARTITION BY {_start()} ORDER BY price DESC, auction DESC, bidder DESC) = 1
    """, key=("start",), ends="ends"),
    8: Truth(f"""
        SELECT DISTINCT persons.id AS id, name, {_start("persons.ms")} AS start
        FROM persons JOIN auctions ON persons.id = seller AND {_start("persons.ms")} = {_start("auctions.ms")}
    """),
    11: Truth(_SESSIONS, key=("bidder", "start"), ends="ends"),
    12: Truth("SELECT bidder, count(*) AS n FROM bids GROUP BY bidder", key=("bidder", "start"),
              seen="SELECT bidder, sum(n) AS n FROM written GROUP BY bidder"),
    16: Truth(f"""
        SELECT channel, ms // {DAY_MS} AS day, max(ms % {DAY_MS} // {MINUTE_MS}) AS minute, {_by_rank("*", "bids")},
            {_by_rank("DISTINCT bidder", "bidders")}, {_by_rank("DISTINCT auction", "auctions")}
        FROM bids GROUP BY channel, day
    """, key=("channel", "day")),
    17: Truth(f"""
        SELECT auction, ms // {DAY_MS} AS day, {_by_rank("*", "bids")}, min(price) AS lowest, max(price) AS highest,
            avg(price) AS mean, sum(price) AS total
        FROM bids GROUP BY auction, day
    """, key=("auction", "day")),
    18: Truth("""
        SELECT auction, bidder, ms, price FROM bids
        QUALIFY row_number() OVER (PARTITION BY auction, bidder ORDER BY ms DESC, price DESC) = 1
    """, key=("auction", "bidder")),
    19: Truth("SELECT auction, list(price ORDER BY price DESC)[1:10] AS prices FROM bids GROUP BY auction",
              key=("auction",)),
    20: Truth(f"""
        SELECT auction, bidder, price, channel, bids.ms AS ms, itemName, seller, until AS expires
        FROM bids JOIN auctions ON auction = id WHERE category = {CATEGORY}
    """),
}  # fmt: skip
"""By number of the query."""


def wrong(number: int, files: Path, written: Path, appended: bool) -> str | None:
    """What is wrong with the rows that a flow wrote; None: nothing. `appended`: they are of Spark's append mode."""
    import duckdb

    truth = TRUTHS[number]
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(VIEWS.format(files=files))
    paths = sorted(str(path) for path in written.glob("batch=*/*.parquet"))
    if not paths:
        return "nothing was written"
    rows = "SELECT * FROM read_parquet($paths, hive_partitioning = true)"
    if truth.key and not appended:
        rows += f" QUALIFY row_number() OVER (PARTITION BY {', '.join(truth.key)} ORDER BY batch DESC) = 1"
    database.execute(f"CREATE TABLE written AS SELECT * EXCLUDE (batch) FROM ({rows})", {"paths": paths})
    expected = truth.sql
    if truth.ends is not None:
        over = f"WHERE {truth.ends} <= (SELECT max(ms) - {LATE_MS} FROM bids)" if appended else ""
        expected = f"SELECT * EXCLUDE ({truth.ends}) FROM ({expected}) {over}"
    database.execute(f"CREATE TABLE expected AS {expected}")
    database.execute(f"CREATE TABLE seen AS {truth.seen}")
    columns = ", ".join(
        f"round({name}, 3) AS {name}" if kind == "DOUBLE" else name
        for name, kind, *_ in database.execute("DESCRIBE expected").fetchall()
    )
    counts = {}
    for name, one, other in (("missing", "expected", "seen"), ("too many", "seen", "expected")):
        found = f"SELECT {columns} FROM {one} EXCEPT ALL SELECT {columns} FROM {other}"
        n = database.execute(f"SELECT count(*) FROM ({found})").fetchone()
        if n and n[0]:
            counts[name] = f"{n[0]} rows {name}, as {database.execute(found).fetchone()}"
    return "; ".join(counts.values()) or None


def expected_rows(number: int, files: Path) -> int:
    """The number of rows of the result, those of windows that are not over included."""
    import duckdb

    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    database.execute(VIEWS.format(files=files))
    found = database.execute(f"SELECT count(*) FROM ({TRUTHS[number].sql})").fetchone()
    return int(found[0]) if found else 0
