"""Nexmark's queries as steps of recovery: declared with `aggregate`, or a Python function per key.

A step outputs the newest result of a key with each micro-batch, also of windows and sessions that are not over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.spark_queries import (
    CATEGORY,
    DAY_MS,
    GAP,
    MINUTE_MS,
    STATES,
    STEP,
    bids,
    day,
    ranks,
    start_ms,
)
from recovery import GroupState, aggregate, stateful
from recovery.aggregates import count, count_distinct, last, max_, mean, min_, sum_, top_k

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GAP_MS = 10_000


@dataclass
class Seller:
    """A person, once known, and the auctions that came before."""

    name: str | None = None
    city: str = ""
    state: str = ""
    waiting: list[int] = field(default_factory=list)


def suggest(who: int, rows: list[Any], state: GroupState) -> Iterator[tuple[str, str, str, int]]:
    """Query 3's function."""
    seller = state.getOption or Seller()
    waiting = seller.waiting + [row.auction for row in rows if row.auction is not None]
    for row in rows:
        if row.name is not None:
            seller = Seller(row.name, row.city, row.state)
    if seller.name is None:
        state.update(Seller(waiting=waiting))
        return
    state.update(Seller(seller.name, seller.city, seller.state))
    for auction in waiting:
        yield seller.name, seller.city, seller.state, auction


def local_items(stream: DataFrame) -> DataFrame:
    """Query 3."""
    from pyspark.sql import functions as F

    wanted = F.col("person.state").isin(*STATES) | (F.col("auction.category") == CATEGORY)
    rows = stream.where(wanted).select(
        F.coalesce("person.id", "auction.seller").alias("who"),
        "person.name", "person.city", "person.state", F.col("auction.id").alias("auction"),
    )  # fmt: skip
    output = "name string, city string, state string, auction long"
    return rows.transform(stateful("sellers", key="who", update=suggest, output=output, state=Seller))


@dataclass
class Auction:
    """Query 4's state: an auction, once known, its winning price so far, and bids that came before it."""

    category: int | None = None
    opened: int = 0
    expires: int = 0
    winning: int | None = None
    waiting: list[list[int]] = field(default_factory=list)


def winning(number: int, rows: list[Any], state: GroupState) -> Iterator[tuple[int, int, int]]:
    """Query 4's function: by how much the winning price rose, and whether it is the first one."""
    auction = state.getOption or Auction()
    offers = auction.waiting + [[row.at, row.price] for row in rows if row.price is not None]
    for row in rows:
        if row.category is not None:
            auction = Auction(row.category, row.at, row.expires)
    if auction.category is None:
        state.update(Auction(waiting=offers))
        return
    valid = [price for at, price in offers if auction.opened <= at <= auction.expires]
    before = auction.winning
    best = max(valid, default=before) if before is None else max([before, *valid])
    state.update(Auction(auction.category, auction.opened, auction.expires, best))
    if best is not None and best != before:
        yield auction.category, best - (before or 0), int(before is None)


def category_means(stream: DataFrame) -> DataFrame:
    """Query 4: the mean winning price of each category. Two steps: the second adds what changed in the first."""
    from pyspark.sql import functions as F

    rows = stream.where("event_type > 0").select(
        F.coalesce("auction.id", "bid.auction").alias("number"),
        "auction.category",
        F.unix_millis(F.coalesce("auction.dateTime", "bid.dateTime")).alias("at"),
        F.unix_millis("auction.expires").alias("expires"),
        "bid.price",
    )
    output = "category long, more long, fresh long"
    changes = rows.transform(stateful("winning", key="number", update=winning, output=output, state=Auction))
    means = aggregate("means", key="category", total=sum_("more"), n=sum_("fresh"))
    return changes.transform(means).select("category", (F.col("total") / F.col("n")).alias("mean"))


@dataclass
class Hottest:
    """Query 5's state of a window."""

    n: int = 0
    auctions: list[int] = field(default_factory=list)


def hottest(start: int, rows: list[Any], state: GroupState) -> Iterator[tuple[int, int, list[int]]]:
    """Query 5's second function. Counts only grow, so no auction that was beaten has to be kept."""
    before = state.getOption or Hottest()
    n = max(before.n, *(row.n for row in rows))
    found = {row.auction for row in rows if row.n == n} | (set(before.auctions) if n == before.n else set())
    state.update(Hottest(n, sorted(found)))
    yield start, n, sorted(found)


def hot_items(stream: DataFrame) -> DataFrame:
    """Query 5: counts of each auction and window, declared, and a function for each window."""
    from pyspark.sql import functions as F

    windows = bids(stream).select("auction", F.window("dateTime", GAP, STEP)).select("auction", start_ms())
    counts = windows.transform(aggregate("counts", key=["start", "auction"], n=count()))
    output = "start long, n long, auctions array<long>"
    return counts.transform(stateful("hottest", key="start", update=hottest, output=output, state=Hottest))


def highest_bid(stream: DataFrame) -> DataFrame:
    """Query 7."""
    from pyspark.sql import functions as F

    windows = bids(stream).select("price", "auction", "bidder", F.window("dateTime", GAP))
    rows = windows.select("price", "auction", "bidder", start_ms())
    step = aggregate(
        "highest",
        key="start",
        top=max_("price"),
        auction=last("auction", by="price"),
        bidder=last("bidder", by="price"),
    )
    return rows.transform(step).select("start", F.col("top").alias("price"), "auction", "bidder")


@dataclass
class Came:
    """Query 8's state of a person in a window."""

    name: str | None = None
    sold: bool = False


def sold(key: tuple[int, int], rows: list[Any], state: GroupState) -> Iterator[tuple[int, str, int]]:
    """Query 8's function."""
    before = state.getOption or Came()
    name = next((row.name for row in rows if row.name is not None), before.name)
    now = Came(name, before.sold or any(row.name is None for row in rows))
    state.update(now)
    if now.name is not None and now.sold and before != now:
        yield key[0], now.name, key[1]


def new_sellers(stream: DataFrame) -> DataFrame:
    """Query 8."""
    from pyspark.sql import functions as F

    at = F.unix_millis(F.coalesce("person.dateTime", "auction.dateTime"))
    rows = stream.where("event_type < 2").select(
        F.coalesce("person.id", "auction.seller").alias("id"), "person.name", (at - at % GAP_MS).alias("start")
    )
    output = "id long, name string, start long"
    return rows.transform(stateful("came", key=["id", "start"], update=sold, output=output, state=Came))


@dataclass
class Session:
    """Query 11's state of a person: the newest session."""

    start: int = 0
    end: int = 0
    n: int = 0


def extend(bidder: int, rows: list[Any], state: GroupState) -> Iterator[tuple[int, int, int]]:
    """Query 11's function, for bids in the order of their times."""
    session = state.getOption
    for row in rows:
        if session is not None and row.at < session.end:
            session = Session(session.start, row.at + GAP_MS, session.n + 1)
            continue
        if session is not None:
            yield bidder, session.start, session.n
        session = Session(row.at, row.at + GAP_MS, 1)
    state.update(session)
    yield bidder, session.start, session.n


def sessions(stream: DataFrame) -> DataFrame:
    """Query 11."""
    from pyspark.sql import functions as F

    rows = bids(stream).select("bidder", F.unix_millis("dateTime").alias("at"))
    output = "bidder long, start long, n long"
    return rows.transform(
        stateful("sessions", key="bidder", update=extend, output=output, state=Session, order_by="at")
    )


def counted(bidder: int, rows: list[Any], state: GroupState) -> Iterator[tuple[int, int, int]]:
    """Query 12's function."""
    now = state.getCurrentProcessingTimeMs()
    start = now - now % GAP_MS
    before, n = state.getOption or (start, 0)
    n = (n if before == start else 0) + len(rows)
    state.update((start, n))
    yield bidder, start, n


def by_processing_time(stream: DataFrame) -> DataFrame:
    """Query 12. Only the newest window of a person is kept."""
    step = stateful(
        "now",
        key="bidder",
        update=counted,
        output="bidder long, start long, n long",
        state=tuple[int, int],
    )
    return bids(stream).select("bidder").transform(step)


def channels(stream: DataFrame) -> DataFrame:
    """Query 16."""
    from pyspark.sql import functions as F

    minute = F.expr(f"unix_millis(dateTime) % {DAY_MS} div {MINUTE_MS}").alias("minute")
    rows = bids(stream).select("channel", day(), minute, "price", "bidder", "auction")
    columns = {"bids": count(), **{f"{name}_bids": count(each) for name, each in ranks("1").items()}}
    for who in ("bidder", "auction"):
        different = {"": F.col(who), **{f"{name}_": each for name, each in ranks(who).items()}}
        columns |= {f"{name}{who}s": count_distinct(each) for name, each in different.items()}
    return rows.transform(aggregate("report", key=["channel", "day"], minute=max_("minute"), **columns))


def auction_days(stream: DataFrame) -> DataFrame:
    """Query 17."""
    by_rank = {f"{name}_bids": count(each) for name, each in ranks("1").items()}
    prices = {"lowest": min_("price"), "highest": max_("price"), "mean": mean("price"), "total": sum_("price")}
    rows = bids(stream).select("auction", "price", day())
    return rows.transform(aggregate("days", key=["auction", "day"], bids=count(), **by_rank, **prices))


def last_bids(stream: DataFrame) -> DataFrame:
    """Query 18."""
    from pyspark.sql import functions as F

    rows = bids(stream).select("auction", "bidder", "price", F.unix_millis("dateTime").alias("at"))
    return rows.transform(aggregate("last", key=["auction", "bidder"], ms=max_("at"), price=last("price", by="at")))


def top_bids(stream: DataFrame) -> DataFrame:
    """Query 19."""
    return bids(stream).select("auction", "price").transform(aggregate("top", key="auction", prices=top_k("price", 10)))


@dataclass
class Sold:
    """Query 20's state of an auction: what is known of it, and bids that came before. Of other categories only that."""

    known: bool = False
    item: str | None = None
    seller: int = 0
    expires: int = 0
    waiting: list[tuple[int, int, str, int]] = field(default_factory=list)


def expand(auction: int, rows: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
    """Query 20's function."""
    sold = state.getOption or Sold()
    made = sold.waiting + [(row.bidder, row.price, row.channel, row.at) for row in rows if row.price is not None]
    for row in rows:
        if row.category == CATEGORY:
            sold = Sold(True, row.itemName, row.seller, row.expires)
        elif row.category is not None:
            sold = Sold(True)
    if not sold.known:
        state.update(Sold(waiting=made))
        return
    state.update(Sold(True, sold.item, sold.seller, sold.expires))
    if sold.item is not None:
        for bidder, price, channel, at in made:
            yield auction, bidder, price, channel, at, sold.item, sold.seller, sold.expires


def expanded_bids(stream: DataFrame) -> DataFrame:
    """Query 20."""
    from pyspark.sql import functions as F

    rows = stream.where("event_type > 0").select(
        F.coalesce("auction.id", "bid.auction").alias("auction"),
        "bid.bidder", "bid.price", "bid.channel", F.unix_millis("bid.dateTime").alias("at"),
        "auction.itemName", "auction.seller", "auction.category", F.unix_millis("auction.expires").alias("expires"),
    )  # fmt: skip
    output = (
        "auction long, bidder long, price long, channel string, ms long, itemName string, seller long, expires long"
    )
    return rows.transform(stateful("sold", key="auction", update=expand, output=output, state=Sold))


QUERIES: dict[int, Callable[[DataFrame], DataFrame]] = {
    3: local_items,
    4: category_means,
    5: hot_items,
    7: highest_bid,
    8: new_sellers,
    11: sessions,
    12: by_processing_time,
    16: channels,
    17: auction_days,
    18: last_bids,
    19: top_bids,
    20: expanded_bids,
}
