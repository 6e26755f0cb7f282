"""The JVM's reader of `appended`: the same lines as Python's, whatever the bytes, the cuts, and what happens meanwhile.

Without Spark: a bare JVM with Spark's classes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql.types import StructType

from recovery.appended.content import Shape, read_task
from recovery.appended.files import LocalFiles
from recovery.appended.plan import Range, Slice
from recovery.appended.position import FilePosition, fingerprint
from recovery.appended.reach import TaskFiles
from recovery.errors import FlowFailedError, InputRewrittenError
from recovery.spark.jvm.java import choose_java, java_home
from recovery.spark.tuning.appended_lines import JvmCallback, sent
from tests.shares import some

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.string()), ("file", pa.string())])
ODD = [b"\n", b"\r\n", b"\r", b"\0", b"\xef\xbb\xbf", b"\xff", b"\xe2\x82", b"\xed\xa0\x80", "é😀".encode(), b"x" * 9]
READING = """
package appended;

public class Reading {
    public static java.util.List read(String[] columns, boolean fails, String slices, int window) throws Exception {
        LinesReader.window = window;
        java.util.List rows = new java.util.ArrayList();
        LinesReader reader = new LinesReader(columns, fails, Driver.parsed(slices));
        while (reader.next()) {
            org.apache.spark.sql.catalyst.InternalRow row = (org.apache.spark.sql.catalyst.InternalRow) reader.get();
            rows.add(row.getLong(0) + " " + row.getUTF8String(2) + " " + row.getUTF8String(1));
        }
        reader.close();
        return rows;
    }
}
"""


class Asked(JvmCallback):
    """Counts what the JVM asks."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def apply(self, question):
        """Count, and answer."""
        self.count += 1
        return super().apply(question)


@pytest.fixture(scope="module")
def jvm():
    """A JVM with the reader, and what it asked."""
    choose_java()
    classes = Path(pyspark.__file__).parent / "jars" / "*"
    port, process = launch_gateway(
        classpath=str(classes), java_path=str(java_home() / "bin" / "java"), die_on_exit=True, return_proc=True,
        jarpath=str(next(classes.parent.glob("py4j-*.jar"))),
    )  # fmt: skip
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auto_convert=True),
        callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
    )
    server = gateway.get_callback_server().get_listening_port()
    client = gateway.java_gateway_server.getCallbackClient().getAddress()
    gateway.java_gateway_server.resetCallbackClient(client, server)
    source = (files("recovery.spark") / "tuning" / "AppendedLines.java").read_text()
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(source + READING.split(";", 1)[1])
    loader, asked = compiler.getClassLoader(), Asked()
    loader.loadClass("appended.DefaultSource").newInstance().answerBy(asked)
    yield gateway, loader.loadClass("appended.Reading").newInstance(), asked
    gateway.shutdown()
    process.terminate()
    process.wait()


def planned(path: Path, begin: int, end: int, unfinished: bool = False) -> Range:
    """The range [begin, end) of a file, as the planner gives it."""
    opened = LocalFiles().open(str(path))
    with opened:
        digest = fingerprint(opened.read, end, end)
    return Range(str(path), FilePosition(str(path), path.name, end, end, 0, 1, digest), begin, end, unfinished)


def by_jvm(jvm, slices, window=2 << 20, fails=False):
    """What the JVM reads."""
    gateway, reading, _ = jvm
    columns = gateway.new_array(gateway.jvm.String, 3)
    for place, name in enumerate(SCHEMA.names):
        columns[place] = name
    return list(reading.read(columns, fails, json.dumps(list(sent(tuple(slices)))), window))


def by_python(slices, window=2 << 20):
    """What Python reads."""
    with TaskFiles(LocalFiles()) as reader_of:
        batches = list(read_task(slices, reader_of, Shape(SCHEMA, window_bytes=window)))
    return [f"{row['offset']} {row['file']} {row['value']}" for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", some(range(20), 0))
def test_the_jvm_reads_what_python_reads(jvm, tmp_path, seed):
    """Random bytes with odd ones, random ranges and cuts, windows shorter and longer than lines."""
    draw = random.Random(seed)
    for number in range(60):
        path = tmp_path / f"{number}.log"
        content = b"".join(draw.choice(ODD) for _ in range(draw.choice([0, 1, 5, 40, 3000])))
        path.write_bytes(content)
        ends = [0, *(i + 1 for i, byte in enumerate(content) if byte == 10), len(content)]
        begin, end = sorted((draw.choice(ends), draw.choice(ends)))
        if begin == end:
            continue
        whole = planned(path, begin, end, unfinished=draw.random() < 0.3)
        cuts = sorted({begin, end, *(draw.randint(begin, end) for _ in range(draw.randrange(4)))})
        slices = [Slice(whole, start, stop) for start, stop in itertools.pairwise(cuts)]
        window = draw.choice([1, 7, 64, 2 << 20])
        assert by_jvm(jvm, slices, window) == by_python(slices, window), (seed, number)


def test_the_jvm_asks_nothing_about_usual_files(jvm, tmp_path):
    """Lines of UTF-8 in a file that stays where it is never go through Python."""
    path = tmp_path / "a.log"
    path.write_bytes("é one\ntwo\r\n\n".encode() * 5000)
    whole, before = planned(path, 0, path.stat().st_size), jvm[2].count
    assert len(by_jvm(jvm, [Slice(whole, 0, whole.end)])) == 15_000
    assert jvm[2].count == before


def test_the_scan_tells_the_bytes_of_the_micro_batch_that_is_planned(jvm, tmp_path):
    """Not before one is planned. They are those between its offsets: new ones, those of a new file, and none."""
    gateway, reading, _ = jvm
    spark = gateway.jvm.org.apache.spark.sql
    schema = spark.types.StructType.fromDDL("value string")
    source = reading.getClass().getClassLoader().loadClass("appended.DefaultSource").newInstance()
    table = source.getTable(
        schema, gateway.new_array(spark.connector.expressions.Transform, 0), {"path": str(tmp_path)}
    )
    scan = table.newScanBuilder(spark.util.CaseInsensitiveStringMap({"path": str(tmp_path)})).build()
    assert not scan.estimateStatistics().sizeInBytes().isPresent()
    stream = scan.toMicroBatchStream("none")
    assert not scan.estimateStatistics().sizeInBytes().isPresent()
    at, sizes = stream.initialOffset(), []
    for name, content in [("a", "one\ntwo\n"), ("a", "three\nno end"), ("b", "four\n"), ("b", "")]:
        with (tmp_path / name).open("a") as file:
            file.write(content)
        at = stream.latestOffset(at, stream.getDefaultReadLimit())
        sizes.append(scan.estimateStatistics().sizeInBytes().getAsLong())
    assert sizes == [8, 6, 5, 0]
    stream.stop()


def test_a_file_that_was_rotated_after_the_plan_is_found(jvm, tmp_path):
    """Python finds the content under its new name, also when another file has the old one."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\n" * 2000)
    whole = planned(path, 0, path.stat().st_size)
    slices = [Slice(whole, 0, whole.end)]
    question = json.dumps(list(sent(tuple(slices))))
    path.rename(tmp_path / "a.log.1")
    path.write_bytes(b"other\n" * 9000)
    gateway, reading, _ = jvm
    columns = gateway.new_array(gateway.jvm.String, 3)
    for place, name in enumerate(SCHEMA.names):
        columns[place] = name
    rows = list(reading.read(columns, False, question, 2 << 20))
    assert [row.split()[2] for row in rows] == ["one", "two"] * 2000


def test_a_rewritten_file_is_an_error_with_its_class(jvm, tmp_path):
    """What no file holds any more is reported as Python does."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n")
    whole = planned(path, 0, 4)
    path.write_bytes(b"two\n")
    with pytest.raises(Py4JJavaError, match=InputRewrittenError.__name__):
        by_jvm(jvm, [Slice(whole, 0, 4)])


def test_names_that_are_not_ascii_are_read_by_python(jvm, tmp_path):
    """A JVM may not be able to name them."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + "/ä".encode() + b"\xff.log"))
    path.write_bytes(b"one\n" * 10)
    whole = planned(path, 0, 40)
    slices = [Slice(whole, 0, 40)]
    assert by_jvm(jvm, slices) == by_python(slices)


def test_bytes_that_are_not_utf8_can_be_an_error(jvm, tmp_path):
    """encodingErrors=fail names the byte."""
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n\xc3\xa9x\xfe\n")
    whole = planned(path, 0, path.stat().st_size)
    with pytest.raises(Py4JJavaError, match=rf"{FlowFailedError.__name__}: (?s:.*)The bytes at 7 are not UTF-8"):
        by_jvm(jvm, [Slice(whole, 0, whole.end)], fails=True)


@pytest.mark.parametrize(
    ("master", "here"),
    [
        ("local", True),
        ("local[2,4]", True),
        ("local-cluster[1,2,1024]", False),
        ("spark://localhost:7077", False),
        ("spark://h1:7077", False),
    ],
)
def test_only_tasks_in_the_drivers_jvm_find_the_class(monkeypatch, master, here):
    """It stays there when a later session has executors, which do not have it."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(master=master))
    question = {"ask": "schema", "options": {"path": "/nowhere"}}
    assert (JvmCallback().apply(json.dumps(question)) != "=") == here
    question |= {"ask": "table", "schema": StructType().add("value", "string").json()}
    assert (JvmCallback().apply(json.dumps(question)) != "=") == here


def test_a_slice_is_sent_whole():
    """Nothing of a plan is lost on its way through the JVM."""
    whole = Range("/nowhere/a", FilePosition("/nowhere/b", "b", 9, 9, 1, 2, "x", True), 3, 9, True)
    [value] = sent((Slice(whole, 4, 8),))
    assert value["expected"] == asdict(whole.expected)
    assert value["check"] is None
