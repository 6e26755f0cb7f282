"""Nexmark: its events have the published properties, and its queries give what a batch query over the events gives."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("duckdb")

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.harness.processes import Usage
from benchmarks.harness.rounds import Measurement
from benchmarks.nexmark import contender, events, spark_queries, truth
from benchmarks.nexmark.contender import BYTEWAX, OPERATORS, SPARK, STEPS
from benchmarks.nexmark.events import Shape
from benchmarks.suite import nexmark

SHAPE = Shape(events=100_000, files=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return events.generate(SHAPE, tmp_path_factory.mktemp("nexmark"))


@pytest.fixture(scope="module")
def stream(files: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted(files.glob("*.parquet")))


def of_kind(stream: pa.Table, name: str) -> pa.Table:
    return pa.Table.from_struct_array(stream[name].drop_null())


def column(rows: pa.Table, name: str) -> np.ndarray:
    return rows[name].cast(pa.int64()).to_numpy()


def test_proportions_ids_and_times(stream: pa.Table) -> None:
    """1 : 3 : 46 in every fifty events; ids without gaps, in order; ten thousand events in a second."""
    kinds = stream["event_type"].to_numpy().reshape(-1, 50)
    assert (kinds == [0] + [1] * 3 + [2] * 46).all()
    for name, n in (("person", 2_000), ("auction", 6_000)):
        assert (column(of_kind(stream, name), "id") == 1_000 + np.arange(n)).all()
    times = np.concatenate([column(of_kind(stream, name), "dateTime") for name in ("person", "auction", "bid")])
    assert np.bincount(times - events.BASE_TIME_MS).tolist() == [10] * 10_000


def test_hot_auctions_bidders_and_sellers(stream: pa.Table) -> None:
    """Half of the bids are for the hot auction, three quarters by the hot bidder; three quarters of the auctions are of
    the hot seller, who is not that bidder. The others are among those in flight, and the few that come next."""
    bids, auctions = of_kind(stream, "bid"), of_kind(stream, "auction")
    auction, bidder = column(bids, "auction") - 1_000, column(bids, "bidder") - 1_000
    newest = np.repeat(np.arange(2_000) * 3 + 2, 46)
    hot = auction == newest // 100 * 100
    assert 0.49 < hot.mean() < 0.53
    assert (auction <= newest + 10).all()
    assert (auction[~hot] >= newest[~hot] - 100).all()
    assert (auction > newest).any()
    person = np.repeat(np.arange(2_000), 46)
    assert 0.74 < (bidder == person // 100 * 100 + 1).mean() < 0.77
    assert (bidder <= person + 10).all()
    assert (bidder > person - 1_000).all()
    seller, person = column(auctions, "seller") - 1_000, np.repeat(np.arange(2_000), 3)
    assert 0.73 < (seller == person // 100 * 100).mean() < 0.78


def test_prices_categories_and_lengths(stream: pa.Table) -> None:
    """The logarithm of a price is even from 100 to 100 million; five categories; auctions as long as a hundred others
    take to come."""
    bids, auctions = of_kind(stream, "bid"), of_kind(stream, "auction")
    price = np.log10(column(bids, "price") / 100)
    assert np.abs(np.histogram(price, bins=6, range=(0, 6))[0] / len(price) - 1 / 6).max() < 0.01
    assert set(column(auctions, "category")) == set(range(10, 15))
    length_ms = column(auctions, "expires") - column(auctions, "dateTime")
    assert length_ms.min() >= 1
    assert length_ms.max() <= 332
    assert 155 < length_ms.mean() < 178
    channels = bids["channel"].to_pylist()
    assert 0.49 < sum(each in events.HOT_CHANNELS for each in channels) / len(channels) < 0.51


def test_the_same_shape_gives_the_same_events(files: Path, tmp_path: Path) -> None:
    """Inputs are kept, and made again only for another shape."""
    again = events.generate(SHAPE, tmp_path)
    assert [path.read_bytes() for path in sorted(again.iterdir())] == [
        path.read_bytes() for path in sorted(files.iterdir())
    ]
    before = [path.stat().st_ino for path in sorted(again.iterdir())]
    assert [path.stat().st_ino for path in sorted(events.generate(SHAPE, tmp_path).iterdir())] == before
    with pytest.raises(ValueError, match="120 events do not make 2 files"):
        Shape(120, 2)


def test_every_query_has_a_result(files: Path) -> None:
    """The events are enough for a comparison to mean something. A window's query has a row for each window."""
    rows = {number: truth.expected_rows(number, files) for number in truth.TRUTHS}
    assert (rows[4], rows[5], rows[7]) == (5, 9, 1)
    assert min(n for number, n in rows.items() if number not in (4, 5, 7)) > 500
    assert set(nexmark.TITLES) == set(rows)


def test_what_is_missing_or_too_much_is_found(files: Path, tmp_path: Path) -> None:
    """The comparison takes the newest row of each key, and counts rows that are the same."""
    for number, sql in ((17, truth.TRUTHS[17].sql), (3, truth.TRUTHS[3].sql)):
        database = duckdb.connect()
        database.execute(truth.VIEWS.format(files=files))
        result = database.sql(sql).to_arrow_table()
        written = tmp_path / str(number)
        for batch, rows in enumerate((result.slice(0, 100), result)):
            (written / f"batch={batch}").mkdir(parents=True)
            pq.write_table(rows, written / f"batch={batch}" / "part-0.parquet")
        if number == 17:
            assert truth.wrong(number, files, written, appended=False) is None
        else:
            assert "100 rows too many" in (truth.wrong(number, files, written, appended=True) or "")
        pq.write_table(result.slice(5), written / "batch=1" / "part-0.parquet")
        for path in (written / "batch=0").iterdir():
            path.unlink()
        assert "5 rows missing" in (truth.wrong(number, files, written, appended=False) or "")
    assert truth.wrong(3, files, tmp_path / "nothing", appended=True) == "nothing was written"


def check(spark: SparkSession, kind: str, number: int, files: Path, directory: Path) -> None:
    sink = contender.Written(directory / "out")
    contender.finish(contender.begin(spark, kind, number, str(files), directory, sink, 0))
    assert truth.wrong(number, files, directory / "out", contender.appended(kind, number)) is None


@pytest.mark.parametrize(("kind", "number"), [(STEPS, 4), (OPERATORS, 8)])
def test_queries_give_what_a_batch_query_gives(spark: SparkSession, tmp_path: Path, kind: str, number: int) -> None:
    """A chain of two steps, and Spark's join with its state in the snapshot; the long test has all."""
    check(spark, kind, number, events.generate(Shape(20_000, 2), tmp_path / "inputs"), tmp_path / "run")


def mean_winning_price(stream: DataFrame) -> DataFrame:
    """Query 4 as one writes it for a batch."""
    sold, made = spark_queries.auctions(stream), spark_queries.bids(stream)
    inside = (made.auction == sold.id) & made.dateTime.between(sold.dateTime, sold.expires)
    winning = made.join(sold, inside).groupBy("id", "category").agg(F.max("price").alias("price"))
    return winning.groupBy("category").agg(F.avg("price").alias("mean"))


def different_bidders(stream: DataFrame) -> DataFrame:
    """A part of query 16."""
    return spark_queries.bids(stream).groupBy("channel").agg(F.countDistinct("bidder"))


@pytest.mark.parametrize(
    ("build", "mode", "said"),
    [
        (mean_winning_price, "append", "watermark"),
        (mean_winning_price, "update", "correctness"),
        (mean_winning_price, "complete", "not supported"),
        (different_bidders, "update", "[Dd]istinct"),
    ],
)
def test_what_sparks_operators_refuse(
    spark: SparkSession, files: Path, tmp_path: Path, build: Callable[[DataFrame], DataFrame], mode: str, said: str
) -> None:
    """Why query 4 is not among those of Spark's operators, and why 16 keeps sets."""
    writer = build(spark_queries.events(spark, str(files))).writeStream.format("noop").outputMode(mode)
    with pytest.raises(AnalysisException, match=said):
        writer.option("checkpointLocation", f"file:{tmp_path}").start()


@pytest.mark.long
@pytest.mark.parametrize("kind", contender.KINDS)
def test_all_queries_give_what_a_batch_query_gives(spark: SparkSession, files: Path, tmp_path: Path, kind: str) -> None:
    """Each of twelve, as steps, with Spark's operators in a flow, and in plain Spark."""
    numbers = contender.queries(kind)
    assert set(numbers) == set(truth.TRUTHS) - ({4} if kind != STEPS else set())
    for number in numbers:
        if number == 19 and kind != STEPS and spark.version < "4.2":
            continue  # max_by has no k there
        check(spark, kind, number, files, tmp_path / str(number))


def test_a_kinds_answer_becomes_one_of_each_query() -> None:
    """A query that failed has its problem, and one of a process that failed has that of the process."""
    answer = {"seconds": 3, "queries": {"3": {"seconds": 1.5}, "5": {"problem": "no"}}, "versions": {"java": "17"}}
    given = [Measurement(STEPS, 0, answer, Usage(), None), Measurement(SPARK, 0, {}, Usage(), "killed")]
    found = nexmark.by_query([3, 4, 5], given)
    assert [(each.contender, each.problem) for each in found] == [
        ("3: steps", None), ("3: spark-rocksdb", "killed"), ("4: steps", None),
        ("5: steps", "no"), ("5: spark-rocksdb", "killed"),
    ]  # fmt: skip
    assert found[0].seconds == 1.5
    assert found[0].answer["versions"] == {"java": "17"}


def test_appended_is_of_sparks_append_mode() -> None:
    """Steps output newest rows; plain Spark's mode is that of the query."""
    assert not contender.appended(STEPS, 5)
    assert not contender.appended(BYTEWAX, 7)
    assert [number for number in spark_queries.QUERIES if contender.appended(SPARK, number)] == [3, 5, 7, 8, 11, 20]


def test_a_time_that_a_kind_does_not_measure_is_left_out() -> None:
    """Bytewax has no micro-batch in which it was killed."""
    answer = dict.fromkeys(("seconds", "used_cpu_s", "memory_bytes", "written_bytes", "kept_bytes"), 2.0)
    given = [
        Measurement("7: spark-rocksdb", 0, {**answer, "resume_s": 3.0}, Usage(), None),
        Measurement("7: bytewax", 0, answer, Usage(), None),
    ]
    chosen = Namespace(events=100_000, files=4, repeat=1, interval=2, queries=(7,), contenders=(SPARK, BYTEWAX))
    spark, bytewax = nexmark.report(chosen, given).rows
    assert (spark[-3:], bytewax[-3:]) == (("3", "1.00", "correct"), ("–", "–", "correct"))
    assert set(contender.queries(BYTEWAX)) < set(truth.TRUTHS)
