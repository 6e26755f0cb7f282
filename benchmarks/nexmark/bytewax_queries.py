"""Nexmark's queries in Bytewax, of those for which it has the operators: the events are read file by file, in order.

`stateful_batch`, on which all of Bytewax's stateful operators are built, outputs a key's newest result with each batch.
Windows come out when they are over: in event time when the watermark has passed them, and all at the end of the input.
"""

# mypy: disable-error-code="import-not-found, misc"
# Bytewax is not in the environment that is checked.
from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import FixedPartitionedSink, StatefulSinkPartition

from benchmarks.nexmark.spark_queries import CATEGORY, DAY_MS, HIGH, LOW, STATES
from benchmarks.nexmark.truth import LATE_MS, TRUTHS, WINDOW_MS

START = datetime(1970, 1, 1, tzinfo=UTC)
LENGTH = timedelta(milliseconds=WINDOW_MS)
AWAKE_S = 0.2
Rows = Iterable[tuple[Any, ...]]


class Events(StatefulSourcePartition[Path, int]):
    """The files in order. stop_at: the file before which it waits for the end of the process, and makes the file
    `stopped`."""

    def __init__(self, files: Path, done: int, stop_at: int | None, stopped: Path) -> None:
        self._stopped = stopped
        self._left = sorted(files.iterdir())[done:]
        self._done = done
        self._stop_at = stop_at

    def next_batch(self) -> list[Path]:
        if self._done == self._stop_at:
            self._stopped.touch()
            return []
        if not self._left:
            raise StopIteration
        self._done += 1
        return [self._left.pop(0)]

    def next_awake(self) -> datetime | None:
        return datetime.now(UTC) + timedelta(seconds=AWAKE_S) if self._done == self._stop_at else None

    def snapshot(self) -> int:
        return self._done


class Files(FixedPartitionedSource[Path, int]):
    """One worker reads all files, so that events stay in order."""

    def __init__(self, files: Path, stop_at: int | None, stopped: Path) -> None:
        self._files = files
        self._stop_at = stop_at
        self._stopped = stopped

    def list_parts(self) -> list[str]:
        return ["events"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Events:
        return Events(self._files, resume_state or 0, self._stop_at, self._stopped)


class Lines(StatefulSinkPartition[tuple[Any, ...], int]):
    """A file of rows as JSON. A resumed flow continues where its snapshot has it end."""

    def __init__(self, path: Path, position: int) -> None:
        self._file = path.open("ab")
        self._file.truncate(position)
        self._file.seek(position)

    def write_batch(self, values: list[tuple[Any, ...]]) -> None:
        self._file.writelines(json.dumps(value).encode() + b"\n" for value in values)

    def snapshot(self) -> int:
        self._file.flush()
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class Written(FixedPartitionedSink[tuple[Any, ...], int]):
    """A file for each worker, in `directory`."""

    def __init__(self, directory: Path, workers: int) -> None:
        self._directory = directory
        self._workers = workers

    def list_parts(self) -> list[str]:
        return [str(number) for number in range(self._workers)]

    def part_fn(self, item_key: str) -> int:
        return zlib.crc32(item_key.encode())

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Lines:
        self._directory.mkdir(exist_ok=True)
        return Lines(self._directory / f"{for_part}.json", resume_state or 0)


def rows_of(path: Path, kind: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The columns of a file's events of a kind; times as milliseconds since 1970."""
    wanted = [f"{kind}.{name}" for name in columns]
    events = pq.ParquetFile(path).read(wanted)[kind].combine_chunks().drop_null()
    values = []
    for name in columns:
        column = events.field(name)
        values.append((column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist())
    return [*zip(*values, strict=True)]


def keyed(kind: str, columns: Sequence[str], key: Callable[[tuple[Any, ...]], str]) -> Callable[[list[Path]], Rows]:
    """A function that gives the events of files with their keys."""
    return lambda paths: ((key(row), row) for path in paths for row in rows_of(path, kind, columns))


def first(row: tuple[Any, ...]) -> str:
    """The first column as a key."""
    return str(row[0])


def pair(row: tuple[Any, ...]) -> str:
    """The first two columns as a key."""
    return f"{row[0]} {row[1]}"


def folded(step_id: str, up: Any, fold: Callable[[Any, list[Any]], tuple[Any, Rows]]) -> Any:
    """The rows that a function gives for a key's state, None at first, and its new values, with the new state."""

    class Fold(StatefulBatchLogic[Any, Any, Any]):
        def __init__(self, state: Any) -> None:
            self._state = state

        def on_batch(self, values: list[Any]) -> tuple[Rows, bool]:
            self._state, rows = fold(self._state, values)
            return rows, StatefulBatchLogic.RETAIN

        def snapshot(self) -> Any:
            return self._state

    return op.stateful_batch(step_id, up, Fold)


def event_clock(place: int) -> win.EventClock:
    """A clock by the time at this place of a row. Its watermark moves with events only, however slow the machine is."""

    def time_of(row: tuple[Any, ...]) -> datetime:
        return START + timedelta(milliseconds=row[place])

    return win.EventClock(time_of, timedelta(milliseconds=LATE_MS), now_getter=lambda: START)


def window_start(number: int) -> int:
    """When the window of this number begins."""
    return number * WINDOW_MS


TUMBLING = win.TumblingWindower(LENGTH, START)


def suggest(state: Any, values: list[Any]) -> tuple[Any, Rows]:
    """Query 3's function: the seller, once known, and auctions that came before."""
    seller, waiting = state or (None, ())
    waiting = [*waiting, *(row[1] for row in values if len(row) == 2)]
    seller = next((row[1:] for row in values if len(row) == 4), seller)
    if seller is None:
        return (None, tuple(waiting)), ()
    return (seller, ()), [(*seller, auction) for auction in waiting]


def local_items(events: Any) -> Any:
    """Query 3."""

    def persons(paths: list[Path]) -> Rows:
        found = keyed("person", ("id", "name", "city", "state"), first)(paths)
        return ((key, row) for key, row in found if row[3] in STATES)

    def auctions(paths: list[Path]) -> Rows:
        found = keyed("auction", ("seller", "id", "category"), first)(paths)
        return ((key, row[:2]) for key, row in found if row[2] == CATEGORY)

    sides = [op.flat_map_batch("persons", events, persons), op.flat_map_batch("auctions", events, auctions)]
    return folded("sellers", op.merge("both", *sides), suggest)


def highest_bid(events: Any) -> Any:
    """Query 7. All bids of a window meet in one worker."""
    columns = ("price", "auction", "bidder", "dateTime")
    bids = op.flat_map_batch("bids", events, keyed("bid", columns, lambda _: "all"))
    highest = win.max_window("highest", bids, event_clock(3), TUMBLING)
    return op.map_value("rows", highest.down, lambda found: (window_start(found[0]), *found[1][:3]))


def new_sellers(events: Any) -> Any:
    """Query 8."""
    persons = op.flat_map_batch("persons", events, keyed("person", ("id", "name", "dateTime"), first))
    sellers = op.flat_map_batch("sellers", events, keyed("auction", ("seller", "seller", "dateTime"), first))
    joined = win.join_window("joined", event_clock(2), TUMBLING, persons, sellers)

    def row(found: tuple[int, tuple[Any, Any]]) -> tuple[Any, ...] | None:
        number, (person, sold) = found
        return None if person is None or sold is None else (person[0], person[1], window_start(number))

    return op.filter_map_value("rows", joined.down, row)


def sessions(events: Any) -> Any:
    """Query 11. Bytewax's gap may be as long as it is, the query's is shorter."""
    bids = op.flat_map_batch("bids", events, keyed("bid", ("bidder", "dateTime"), first))
    windower = win.SessionWindower(LENGTH - timedelta(microseconds=1))

    def fold(session: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return row if session is None else (row[0], min(session[1], row[1]), session[2] + 1)

    def counted(session: Any, row: tuple[Any, ...]) -> tuple[Any, ...]:
        return fold(session, (*row, 1))

    def merged(one: Any, other: Any) -> Any:
        return (one[0], min(one[1], other[1]), one[2] + other[2]) if one and other else one or other

    found = win.fold_window("sessions", bids, event_clock(1), windower, lambda: None, counted, merged)
    return op.map_value("rows", found.down, lambda session: session[1])


def by_processing_time(events: Any) -> Any:
    """Query 12."""
    bids = op.flat_map_batch("bids", events, keyed("bid", ("bidder",), first))
    unkeyed = op.map("bidders", bids, lambda each: each[0])
    counts = win.count_window("now", unkeyed, win.SystemClock(), TUMBLING, lambda bidder: bidder)
    return op.map("rows", counts.down, lambda each: (each[0], (int(each[0]), window_start(each[1][0]), each[1][1])))


def of_day(state: Any, values: list[Any]) -> tuple[Any, Rows]:
    """Query 17's function."""
    n, ranks, low, high, total = state or (0, (0, 0, 0), values[0][2], values[0][2], 0)
    prices = [row[2] for row in values]
    new = [sum(price < LOW for price in prices), 0, sum(price >= HIGH for price in prices)]
    new[1] = len(prices) - new[0] - new[2]
    n, ranks = n + len(prices), tuple(map(sum, zip(ranks, new, strict=True)))
    low, high, total = min(low, *prices), max(high, *prices), total + sum(prices)
    auction, day = values[0][:2]
    return (n, ranks, low, high, total), [(auction, day, n, *ranks, low, high, total / n, total)]


def auction_days(events: Any) -> Any:
    """Query 17."""

    def bids(paths: list[Path]) -> Rows:
        rows = (row for path in paths for row in rows_of(path, "bid", ("auction", "dateTime", "price")))
        days = ((auction, ms // DAY_MS, price) for auction, ms, price in rows)
        return ((pair(row), row) for row in days)

    return folded("days", op.flat_map_batch("bids", events, bids), of_day)


def last_bids(events: Any) -> Any:
    """Query 18."""

    def newest(state: Any, values: list[Any]) -> tuple[Any, Rows]:
        best = max(row[2:] for row in values)
        best = best if state is None else max(state, best)
        return best, [(*values[0][:2], *best)]

    columns = ("auction", "bidder", "dateTime", "price")
    return folded("last", op.flat_map_batch("bids", events, keyed("bid", columns, pair)), newest)


def top_bids(events: Any) -> Any:
    """Query 19."""

    def top(state: Any, values: list[Any]) -> tuple[Any, Rows]:
        prices = heapq.nlargest(10, [*(state or ()), *(row[1] for row in values)])
        return prices, [(values[0][0], prices)]

    return folded("top", op.flat_map_batch("bids", events, keyed("bid", ("auction", "price"), first)), top)


def expand(state: Any, values: list[Any]) -> tuple[Any, Rows]:
    """Query 20's function: what is known of the auction, and bids that came before."""
    known, waiting = state or (None, ())
    waiting = [*waiting, *(row for row in values if len(row) == 5)]
    known = next((row[1:] for row in values if len(row) == 6), known)
    if known is None:
        return (None, tuple(waiting)), ()
    item, seller, category, expires, _ = known
    rows = [(*bid, item, seller, expires) for bid in waiting] if category == CATEGORY else []
    return (known, ()), rows


def expanded_bids(events: Any) -> Any:
    """Query 20."""
    columns = ("id", "itemName", "seller", "category", "expires", "id")
    auctions = op.flat_map_batch("auctions", events, keyed("auction", columns, first))
    columns = ("auction", "bidder", "price", "channel", "dateTime")
    bids = op.flat_map_batch("bids", events, keyed("bid", columns, first))
    return folded("sold", op.merge("both", auctions, bids), expand)


@dataclass(frozen=True, slots=True)
class Query:
    """A query: its flow, from files to rows with a key, and the names of their columns."""

    build: Callable[[Any], Any]
    columns: str


QUERIES = {
    3: Query(local_items, "name city state auction"),
    7: Query(highest_bid, "start price auction bidder"),
    8: Query(new_sellers, "id name start"),
    11: Query(sessions, "bidder start n"),
    12: Query(by_processing_time, "bidder start n"),
    17: Query(auction_days, "auction day bids rank1_bids rank2_bids rank3_bids lowest highest mean total"),
    18: Query(last_bids, "auction bidder ms price"),
    19: Query(top_bids, "auction prices"),
    20: Query(expanded_bids, "auction bidder price channel ms itemName seller expires"),
}


def flow(number: int, files: Path, directory: Path, workers: int, stop_at: int | None) -> Dataflow:
    """The query's flow, which writes its rows into `directory`/lines."""
    made = Dataflow(f"query{number}")
    events = op.input("events", made, Files(files, stop_at, directory / "stopped"))
    op.output("written", QUERIES[number].build(events), Written(directory / "lines", workers))
    return made


def to_parquet(number: int, lines: Path, target: Path) -> None:
    """Write the newest rows of a flow's files as a micro-batch of one file: of each key if the query has one."""
    columns = QUERIES[number].columns.split()
    key = [columns.index(name) for name in TRUTHS[number].key]
    rows = [json.loads(line) for path in sorted(lines.iterdir()) for line in path.read_text().splitlines()]
    if key:
        rows = [*{tuple(row[place] for place in key): row for row in rows}.values()]
    target = target / "batch=0"
    target.mkdir(parents=True)
    made = pa.table({name: [row[place] for row in rows] for place, name in enumerate(columns)})
    pq.write_table(made, target / "part-0.parquet")
