"""The `appended` format in Spark: what a query sees, from its columns to its errors."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from recovery import DiscardSink, RecoveryConfig, init_partitions, start
from recovery.errors import InputRewrittenError
from recovery.spark.jvm.versions import VERSION
from tests.shares import first

pytestmark = [
    pytest.mark.skipif(VERSION < (4, 2), reason="tests/spark/jvm/test_versions.py: before 4.2 in flows only"),
    pytest.mark.usefixtures("tuning"),
]
DOCUMENT = Path(__file__).parents[2] / "docs" / "appended.md"


@pytest.fixture
def log(tmp_path) -> Path:
    path = tmp_path / "logs" / "app.log"
    path.parent.mkdir()
    return path


@pytest.fixture
def lines(spark):
    """A reader of the format, which Spark finds by its name, by path and options."""

    def load(path, schema=None, **options):
        reader = spark.readStream.format("appended").options(**options)
        return (reader.schema(schema) if schema else reader).load(str(path))

    return load


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as out:
        out.write(content)


def batches(frame, checkpoint: Path) -> list[list[tuple]]:
    """The rows of each micro-batch of a run to the end of the input."""
    seen: list[list[tuple]] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: seen.append([tuple(row) for row in batch.collect()]))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return seen


def test_a_query_continues_where_it_was_through_growth_and_rotation(lines, log, tmp_path):
    """Three runs on one checkpoint, micro-batches under a limit: every line once, with file and offset."""
    append(log, b"one\ntwo\nthree\nfo")
    frame = lines(log, maxBytesPerTrigger="8b")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("value", "string"),
        ("file", "string"),
        ("offset", "bigint"),
    ]
    path = str(log)
    assert batches(frame, tmp_path / "c") == [[("one", path, 0), ("two", path, 4)], [("three", path, 8)]]
    append(log, b"ur\n")
    rotated = log.rename(log.with_name("app.log.1"))
    append(log, b"one\n")
    rows = [row for batch in batches(frame, tmp_path / "c") for row in batch]
    assert rows == [("four", str(rotated), 14), ("one", path, 0)]
    assert batches(frame, tmp_path / "c") == []


@first("pattern", ["app.log", "", "*.log"])
def test_a_log_that_was_empty_at_the_first_run_is_followed(lines, log, tmp_path, pattern):
    """The run that reads nothing closes an epoch with its position; the next one reads what was rotated since, once."""
    if pattern != "*.log":
        log.touch()
    init_partitions(tmp_path / "db", 2)

    def run() -> list[str]:
        seen: list[str] = []
        query = start(
            lines(log.parent / pattern),
            RecoveryConfig(tmp_path / "db"),
            sink=lambda batch, _: seen.extend(row.value for row in batch.collect()),
            name="flow",
            trigger="available-now",
        )
        query.await_termination(120)
        return seen

    assert run() == []
    append(log, b"one\ntwo\n")
    log.rename(log.with_name("app.log.1"))
    log.touch()
    assert run() == ["one", "two"]
    append(log, b"three\n")
    log.rename(log.with_name("app.log.2"))
    append(log, b"four\n")
    assert sorted(run()) == ["four", "three"]
    assert run() == []


def test_a_running_query_sees_what_is_appended(lines, spark, log, tmp_path):
    """Under the default trigger each append becomes rows; renamed options and any case of them work."""
    append(log, b"a\n")
    writer = lines(log.parent, "value string", MAXBYTESPERTRIGGER="1m").writeStream.format("memory")
    query = writer.queryName("appended_rows").start()
    try:
        query.processAllAvailable()
        append(log, b"b\n")
        query.processAllAvailable()
        assert sorted(row.value for row in spark.table("appended_rows").collect()) == ["a", "b"]
    finally:
        query.stop()


def test_the_documented_example_runs(spark, log, tmp_path):
    """The code in docs/appended.md works unchanged, on another path."""
    append(log, b"to be or\nnot to be\n")
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names = {"spark": spark}
    exec(code.replace('"logs/"', repr(str(log.parent))), names)
    (rows,) = batches(names["words"], tmp_path / "c")
    assert sorted(word for (word,) in rows) == ["be", "be", "not", "or", "to", "to"]


def test_a_large_range_is_read_by_several_tasks(lines, log, tmp_path):
    """A file is cut at line ends for as many tasks as partitionBytes asks for, and comes whole."""
    append(log, b"".join(b"line %d\n" % i for i in range(10_000)))
    frame = lines(log, "value string", partitionBytes="16k").withColumn("task", F.spark_partition_id())
    (rows,) = batches(frame, tmp_path / "c")
    assert [value for value, _ in rows] == [f"line {i}" for i in range(10_000)]
    assert len({task for _, task in rows}) > 5


def test_odd_content_reaches_spark_as_documented(lines, log, tmp_path):
    """NUL, CRLF, a byte order mark, invalid UTF-8, empty lines, and a line of 100 MB."""
    append(log, b"\xef\xbb\xbffirst\r\nn\0l\n\n\xff\n" + "é😀\n".encode() + b"x" * (100 << 20) + b"\nlast")
    frame = lines(log, "value string", lastLine="take")
    short = F.when(F.length("value") < 100, F.col("value"))
    (rows,) = batches(frame.select(short, F.length("value")), tmp_path / "c")
    assert rows == [
        ("first", 5),
        ("n\0l", 3),
        ("", 0),
        ("\ufffd", 1),
        ("é😀", 2),
        (None, 100 << 20),
        ("last", 4),
    ]


def test_columns_can_be_left_out_and_reordered(lines, log, tmp_path):
    """The schema's columns decide, in its order."""
    append(log, b"a\n")
    assert batches(lines(log, "offset long, value string"), tmp_path / "c") == [[(0, "a")]]


@pytest.mark.parametrize("schema", ["line string", "value string, offset int"])
def test_another_schema_is_refused(lines, log, tmp_path, schema):
    """A column that the source has not, or not with that type, is a ConfigurationError that lists what there is."""
    append(log, b"a\n")
    with pytest.raises(PySparkException, match=r"(?s)ConfigurationError: .*value string, file string, offset bigint"):
        batches(lines(log, schema), tmp_path / "c")


def test_a_wrong_option_is_refused_when_the_source_is_loaded(lines, log):
    """A misspelt option is an error at load, before a query exists."""
    with pytest.raises(PySparkException, match=r"(?s)ConfigurationError: .*Did you mean maxBytesPerTrigger"):
        lines(log, maxBytePerTrigger="1m")


def test_a_rewritten_file_is_reported_to_the_driver(lines, log, tmp_path):
    """The planner's error reaches the caller with its class, file and choices; restart reads the file again."""
    append(log, b"a\nb\n")
    batches(lines(log), tmp_path / "c")
    log.write_bytes(b"x\n")
    with pytest.raises(PySparkException, match=r"(?s)InputRewrittenError: .*app\.log: .*has 2 bytes.*onRewrite"):
        batches(lines(log), tmp_path / "c")
    assert batches(lines(log, "value string", onRewrite="restart"), tmp_path / "c") == [[("x",)]]


def test_a_query_that_nobody_waited_for_tells_its_error_when_it_is_stopped(lines, log, tmp_path):
    """Spark ended it, outside of any micro-batch; what was finished before is closed."""
    append(log, b"a\nb\n")
    init_partitions(tmp_path / "db", 2)
    query = start(lines(log), RecoveryConfig(tmp_path / "db"), sink=DiscardSink(), name="flow", trigger="50ms")
    deadline = time.monotonic() + 120
    while query.is_active and time.monotonic() < deadline:
        if query.summary.batches == 1:
            # In one step: written piece by piece, the source might see it empty.
            os.truncate(log, 2)
        time.sleep(0.05)
    for end in (query.stop, query.stop, query.await_termination):
        with pytest.raises(InputRewrittenError, match=r"app\.log: .*has 2 bytes"):
            end()
    assert query.summary.last_epoch == 1


def test_an_error_of_a_task_is_reported_to_the_driver(lines, log, tmp_path):
    """An error raised while reading reaches the caller with its class and text."""
    append(log, b"a\n\xff\n")
    with pytest.raises(PySparkException, match=r"(?s)FlowFailedError: .*app\.log: The bytes at 2 are not UTF-8"):
        batches(lines(log, encodingErrors="fail"), tmp_path / "c")
