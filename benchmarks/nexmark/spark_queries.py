"""Nexmark's queries with Spark's own operators: for plain Spark, and for flows whose state is in the snapshot.

Times come out as milliseconds since 1970. Where a query needs a day or a minute, they are those of UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LATE = "4 seconds"
"""The watermark's delay."""
GAP = "10 seconds"
"""The length of windows, and the gap between sessions."""
STEP = "2 seconds"
"""Between the beginnings of sliding windows."""
CATEGORY = 10
STATES = ("OR", "ID", "CA")
DAY_MS, MINUTE_MS = 86_400_000, 60_000
LOW, HIGH = 10_000, 1_000_000
"""Prices below the first have rank 1, those from the second on rank 3."""
TIME = "timestamp"
EVENTS = (
    "event_type int, "
    f"person struct<id:long,name:string,city:string,state:string,dateTime:{TIME}>, "
    f"auction struct<id:long,itemName:string,dateTime:{TIME},expires:{TIME},seller:long,category:long>, "
    f"bid struct<auction:long,bidder:long,price:long,channel:string,dateTime:{TIME}>"
)
"""The columns that the queries read."""


def events(spark: SparkSession, files: str) -> DataFrame:
    """The stream, one file a micro-batch."""
    return spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).parquet(files)


def bids(stream: DataFrame) -> DataFrame:
    """Only bids, with their columns."""
    return stream.where("event_type = 2").select("bid.*")


def auctions(stream: DataFrame) -> DataFrame:
    """Only auctions, with their columns."""
    return stream.where("event_type = 1").select("auction.*")


def persons(stream: DataFrame) -> DataFrame:
    """Only persons, with their columns."""
    return stream.where("event_type = 0").select("person.*")


def start_ms(window: str = "window") -> Column:
    """When a window begins."""
    from pyspark.sql import functions as F

    return F.unix_millis(f"{window}.start").alias("start")


def day() -> Column:
    """The number of the day since 1970."""
    from pyspark.sql import functions as F

    return F.expr(f"unix_millis(dateTime) div {DAY_MS}").alias("day")


def ranks(value: str) -> dict[str, Column]:
    """The value, in the rows of each rank."""
    from pyspark.sql import functions as F

    return {
        "rank1": F.expr(f"CASE WHEN price < {LOW} THEN {value} END"),
        "rank2": F.expr(f"CASE WHEN price >= {LOW} AND price < {HIGH} THEN {value} END"),
        "rank3": F.expr(f"CASE WHEN price >= {HIGH} THEN {value} END"),
    }


def local_items(stream: DataFrame) -> DataFrame:
    """Query 3: auctions of a category whose sellers live in some states."""
    from pyspark.sql import functions as F

    sold = auctions(stream).where(F.col("category") == CATEGORY).select(F.col("id").alias("auction"), "seller")
    sellers = persons(stream).where(F.col("state").isin(*STATES)).select("id", "name", "city", "state")
    return sold.join(sellers, sold.seller == sellers.id).select("name", "city", "state", "auction")


def hot_items(stream: DataFrame) -> DataFrame:
    """Query 5: the auctions with the most bids in each sliding window."""
    from pyspark.sql import functions as F

    windows = bids(stream).withWatermark("dateTime", LATE).groupBy(F.window("dateTime", GAP, STEP), "auction")
    counts = windows.agg(F.count("*").alias("n"))
    best = counts.groupBy("window").agg(F.collect_list(F.struct("n", "auction")).alias("all"), F.max("n").alias("n"))
    hottest = F.expr("array_sort(transform(filter(all, each -> each.n = n), each -> each.auction))")
    return best.select(start_ms(), "n", hottest.alias("auctions"))


def highest_bid(stream: DataFrame) -> DataFrame:
    """Query 7: the highest bid of each window; of equal ones, that of the greatest auction and bidder."""
    from pyspark.sql import functions as F

    windows = bids(stream).withWatermark("dateTime", LATE).groupBy(F.window("dateTime", GAP))
    return windows.agg(F.max(F.struct("price", "auction", "bidder")).alias("best")).select(start_ms(), "best.*")


def new_sellers(stream: DataFrame) -> DataFrame:
    """Query 8: persons that sell in the window in which they came."""
    from pyspark.sql import functions as F

    came = persons(stream).withWatermark("dateTime", LATE).select("id", "name", F.window("dateTime", GAP))
    sold = auctions(stream).withWatermark("dateTime", LATE).select("seller", F.window("dateTime", GAP).alias("sold"))
    once = sold.dropDuplicates(["seller", "sold"])
    found = came.join(once, (came.id == once.seller) & (came.window == once.sold))
    return found.select("id", "name", start_ms())


def sessions(stream: DataFrame) -> DataFrame:
    """Query 11: bids of each person in each session."""
    from pyspark.sql import functions as F

    each = bids(stream).withWatermark("dateTime", LATE).groupBy(F.session_window("dateTime", GAP), "bidder")
    return each.agg(F.count("*").alias("n")).select("bidder", start_ms("session_window"), "n")


def by_processing_time(stream: DataFrame) -> DataFrame:
    """Query 12: bids of each person in windows of the time at which they are read."""
    from pyspark.sql import functions as F

    each = bids(stream).groupBy(F.window(F.current_timestamp(), GAP), "bidder")
    return each.agg(F.count("*").alias("n")).select("bidder", start_ms(), "n")


def channels(stream: DataFrame) -> DataFrame:
    """Query 16: for each channel and day, bids, bidders and auctions, in all and by rank of price."""
    from pyspark.sql import functions as F

    counts = {"bids": F.count("*"), **{f"{name}_bids": F.count(each) for name, each in ranks("1").items()}}
    for who in ("bidder", "auction"):
        # Spark has no exact count of different values on a stream.
        distinct = {"": F.col(who), **{f"{name}_": each for name, each in ranks(who).items()}}
        counts |= {f"{name}{who}s": F.size(F.collect_set(each)) for name, each in distinct.items()}
    minute = F.max(F.expr(f"unix_millis(dateTime) % {DAY_MS} div {MINUTE_MS}")).alias("minute")
    columns = [each.cast("long").alias(name) for name, each in counts.items()]
    return bids(stream).groupBy("channel", day()).agg(minute, *columns)


def auction_days(stream: DataFrame) -> DataFrame:
    """Query 17: for each auction and day, bids in all and by rank, and lowest, highest, mean and sum of prices."""
    from pyspark.sql import functions as F

    by_rank = [F.count(each).alias(f"{name}_bids") for name, each in ranks("1").items()]
    return (
        bids(stream)
        .groupBy("auction", day())
        .agg(
            F.count("*").alias("bids"),
            *by_rank,
            F.min("price").alias("lowest"),
            F.max("price").alias("highest"),
            F.avg("price").alias("mean"),
            F.sum("price").alias("total"),
        )
    )


def last_bids(stream: DataFrame) -> DataFrame:
    """Query 18: the last bid of each person in each auction; of several in one millisecond the highest."""
    from pyspark.sql import functions as F

    newest = F.max(F.struct(F.unix_millis("dateTime").alias("ms"), "price")).alias("newest")
    return bids(stream).groupBy("auction", "bidder").agg(newest).select("auction", "bidder", "newest.*")


def top_bids(stream: DataFrame) -> DataFrame:
    """Query 19: the ten highest prices of each auction. It needs Spark 4.2."""
    from pyspark.sql import functions as F

    return bids(stream).groupBy("auction").agg(F.max_by("price", "price", 10).alias("prices"))


def expanded_bids(stream: DataFrame) -> DataFrame:
    """Query 20: bids with what is known of their auction, in one category."""
    from pyspark.sql import functions as F

    sold = auctions(stream).where(F.col("category") == CATEGORY)
    sold = sold.select("id", "itemName", "seller", F.unix_millis("expires").alias("expires"))
    made = bids(stream).select("auction", "bidder", "price", "channel", F.unix_millis("dateTime").alias("ms"))
    return made.join(sold, made.auction == sold.id).drop("id")


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A query, and the mode in which Spark outputs its rows."""

    build: Callable[[DataFrame], DataFrame]
    mode: str = "append"


QUERIES = {
    3: SparkQuery(local_items),
    5: SparkQuery(hot_items),
    7: SparkQuery(highest_bid),
    8: SparkQuery(new_sellers),
    11: SparkQuery(sessions),
    12: SparkQuery(by_processing_time, "update"),
    16: SparkQuery(channels, "update"),
    17: SparkQuery(auction_days, "update"),
    18: SparkQuery(last_bids, "update"),
    19: SparkQuery(top_bids, "update"),
    20: SparkQuery(expanded_bids),
}
"""By number. Query 4, a mean over the newest result of another aggregation, is none of them: in append mode Spark's
second aggregation needs a window of its own, and in update mode it allows no second one."""
