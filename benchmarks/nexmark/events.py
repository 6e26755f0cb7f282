"""Nexmark's events: one stream of persons, auctions and bids, as its published generator makes them, in Parquet files.

Proportions, ids, hot sellers, hot bidders, hot auctions, prices, lengths of auctions, and times follow Apache Beam's
generator with its default configuration; a bid's channel and url follow the queries for SQL engines. The random numbers
are NumPy's, so single events differ from those of the Java generator. The same shape gives the same events.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

PERSONS, AUCTIONS, BIDS = 1, 3, 46
"""Of every 50 events, in this order."""
CYCLE = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1_000
"""Of persons, and of auctions."""
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_AUCTIONS, HOT_BIDDERS, HOT_SELLERS = 2, 4, 4
"""All but one in so many bids or auctions concern the hot one."""
HOT_BATCH = 100
"""A hot person or auction stays hot while so many follow it."""
IN_FLIGHT, ACTIVE, LEAD = 100, 1_000, 10
"""Auctions that get bids, persons that act, and ids that are used before their person or auction is in the stream."""
BASE_TIME_MS = 1_436_918_400_000
EVENTS_PER_S = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
FORMAT = 1
"""Raised when the events change, so that kept inputs of an older format are not taken."""

Integers = npt.NDArray[np.int64]

_TIME = pa.timestamp("ms", tz="UTC")
PERSON = pa.struct(
    [("id", pa.int64()), *((name, pa.string()) for name in ("name", "emailAddress", "creditCard", "city", "state")),
     ("dateTime", _TIME), ("extra", pa.string())]
)  # fmt: skip
AUCTION = pa.struct(
    [("id", pa.int64()), ("itemName", pa.string()), ("description", pa.string()), ("initialBid", pa.int64()),
     ("reserve", pa.int64()), ("dateTime", _TIME), ("expires", _TIME), ("seller", pa.int64()),
     ("category", pa.int64()), ("extra", pa.string())]
)  # fmt: skip
BID = pa.struct(
    [("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string()),
     ("url", pa.string()), ("dateTime", _TIME), ("extra", pa.string())]
)  # fmt: skip
SCHEMA = pa.schema([("event_type", pa.int32()), ("person", PERSON), ("auction", AUCTION), ("bid", BID)])


@dataclass(frozen=True, slots=True)
class Shape:
    """So many events, in so many files of equal length."""

    events: int
    files: int
    seed: int = 1
    format: int = FORMAT

    def __post_init__(self) -> None:
        if min(self.events, self.files) < 1 or self.events % (self.files * CYCLE):
            raise ValueError(f"{self.events} events do not make {self.files} files of a multiple of {CYCLE} events")


def generate(shape: Shape, kept: Path) -> Path:
    """The directory with the files of this shape, from the directory `kept` or made there."""
    target = kept / f"nexmark-{shape.events}-{shape.files}-{shape.seed}"
    if not _is_complete(target, shape):
        shutil.rmtree(target, ignore_errors=True)
        (target / "files").mkdir(parents=True)
        size = shape.events // shape.files
        for number in range(shape.files):
            random = np.random.Generator(np.random.PCG64([shape.seed, number]))
            path = target / "files" / f"{number:04}.parquet"
            pq.write_table(table(np.arange(number * size, (number + 1) * size), random), path)
            # Spark's file source takes files in the order of their age.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        (target / "shape.json").write_text(json.dumps(asdict(shape)))
    return target / "files"


def _is_complete(target: Path, shape: Shape) -> bool:
    try:
        return bool(json.loads((target / "shape.json").read_text()) == asdict(shape))
    except OSError:
        return False


def last_person(event: Integers) -> Integers:
    """The newest person, counted from 0, when the event of this number is made."""
    return event // CYCLE * PERSONS + np.minimum(event % CYCLE, PERSONS - 1)


def last_auction(event: Integers) -> Integers:
    """The newest auction, counted from 0, when the event of this number is made; -1: there is none yet."""
    return event // CYCLE * AUCTIONS + np.minimum(event % CYCLE - PERSONS, AUCTIONS - 1)


def time_ms(event: Integers) -> Integers:
    """When the event of this number happens, in milliseconds since 1970."""
    return BASE_TIME_MS + event * 1_000 // EVENTS_PER_S


def table(events: Integers, random: np.random.Generator) -> pa.Table:
    """The events of these numbers, whole cycles."""
    offset = events % CYCLE
    kinds = np.where(offset < PERSONS, 0, np.where(offset < PERSONS + AUCTIONS, 1, 2))
    words = _Words(random)
    made = (
        _persons(events[kinds == 0], random, words),
        _auctions(events[kinds == 1], random, words),
        _bids(events[kinds == 2], random, words),
    )
    columns = [pa.array(kinds, pa.int32())]
    for kind, rows in enumerate(made):
        # A row takes its place in the stream; the rows of the other kinds are NULL in this column.
        places = np.cumsum(kinds == kind) - 1
        columns.append(rows.take(pa.array(places, pa.int64(), mask=kinds != kind)))
    return pa.table(columns, schema=SCHEMA)


def _persons(events: Integers, random: np.random.Generator, words: _Words) -> pa.Array:
    n = len(events)
    first = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
    family = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
    cities = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"]
    cities += ["Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
    states = ["AZ", "CA", "ID", "OR", "WA", "WY"]
    names = [f"{a} {b}" for a, b in zip(_chosen(first, n, random), _chosen(family, n, random), strict=True)]
    mails = [f"{a}@{b}.com" for a, b in zip(words.of(7, n), words.of(5, n), strict=True)]
    cards = [" ".join(f"{part:04}" for part in card) for card in random.integers(10_000, size=(n, 4)).tolist()]
    return _struct(
        PERSON, FIRST_ID + last_person(events), names, mails, cards, _chosen(cities, n, random),
        _chosen(states, n, random), time_ms(events), words.of(100, n),
    )  # fmt: skip


def _auctions(events: Integers, random: np.random.Generator, words: _Words) -> pa.Array:
    n = len(events)
    people = last_person(events)
    hot = random.integers(HOT_SELLERS, size=n) > 0
    sellers = np.where(hot, people // HOT_BATCH * HOT_BATCH, _any_person(people, random))
    initial = _prices(n, random)
    # On average an auction lasts until IN_FLIGHT others have begun.
    horizon_ms = IN_FLIGHT * CYCLE // AUCTIONS * 1_000 // EVENTS_PER_S
    ends = time_ms(events) + 1 + random.integers(2 * horizon_ms, size=n)
    return _struct(
        AUCTION, FIRST_ID + last_auction(events), words.of(20, n), words.of(100, n), initial,
        initial + _prices(n, random), time_ms(events), ends, FIRST_ID + sellers,
        FIRST_CATEGORY + random.integers(CATEGORIES, size=n), words.of(300, n),
    )  # fmt: skip


def _bids(events: Integers, random: np.random.Generator, words: _Words) -> pa.Array:
    n = len(events)
    newest, people = last_auction(events), last_person(events)
    oldest = np.maximum(newest - IN_FLIGHT, 0)
    hot = random.integers(HOT_AUCTIONS, size=n) > 0
    auctions = np.where(hot, newest // HOT_BATCH * HOT_BATCH, random.integers(oldest, newest + 1 + LEAD))
    hot = random.integers(HOT_BIDDERS, size=n) > 0
    # The second of its batch, so that it is not the hot seller.
    bidders = np.where(hot, people // HOT_BATCH * HOT_BATCH + 1, _any_person(people, random))
    numbers = random.integers(CHANNELS, size=n).tolist()
    named = random.integers(len(HOT_CHANNELS), size=n).tolist()
    common = (random.integers(2, size=n) > 0).tolist()
    channels = [HOT_CHANNELS[a] if c else f"channel-{b}" for a, b, c in zip(named, numbers, common, strict=True)]
    site, item = "https://www.nexmark.com", "item.htm?query=1&channel_id="
    urls = [f"{site}/{word}/{item}{b}" for word, b in zip(words.of(5, n), numbers, strict=True)]
    return _struct(
        BID, FIRST_ID + auctions, FIRST_ID + bidders, _prices(n, random), channels, urls, time_ms(events),
        words.of(60, n),
    )  # fmt: skip


def _any_person(newest: Integers, random: np.random.Generator) -> Integers:
    """One of the active persons, or one of the few that come next."""
    people = newest + 1
    active = np.minimum(people, ACTIVE)
    return people - active + random.integers(active + LEAD)


def _prices(n: int, random: np.random.Generator) -> Integers:
    return np.round(10 ** (random.random(n) * 6) * 100).astype(np.int64)


def _chosen(of: list[str], n: int, random: np.random.Generator) -> list[str]:
    return [of[each] for each in random.integers(len(of), size=n).tolist()]


def _struct(of: pa.StructType, *columns: object) -> pa.Array:
    arrays = [pa.array(column).cast(field.type) for column, field in zip(columns, of, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(of))


class _Words:
    """Random words, cut out of one long text."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._text = bytes(random.integers(ord("a"), ord("z") + 1, size=1 << 20, dtype=np.uint8)).decode()

    def of(self, length: int, n: int) -> list[str]:
        starts = self._random.integers(len(self._text) - length, size=n).tolist()
        return [self._text[start : start + length] for start in starts]
