"""KafkaSink in a running flow: from rows to records, and kills of the whole command."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from recovery import FlowFailedError, KafkaSink, OutputMismatchError, init_partitions
from recovery.cli import main
from recovery.storage.scan import scan
from tests.kafka import CONNECTOR, needs_jars
from tests.shares import first
from tests.spark.support import ROOT, going_back, run_to_end, states
from tests.spark.test_crashes import finish, recovery_command

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra has it)")
pytestmark = needs_jars
KILLS = int(os.environ.get("RECOVERY_TEST_KAFKA_KILLS", "50"))
POINTS = ["", "kafka.1", "kafka.2", "kafka.3.sent", "kafka.3.part", "kafka.3", "kafka.4", "kafka.5.claimed", "close.3"]
BACK = ["kafka.5.back.sent", "kafka.5.back.part", "kafka.5.back", "kafka.5.kept", "kafka.5"]
_numbers = itertools.count(1)


@pytest.fixture
def topic(kafka):
    return kafka.create(f"out-{next(_numbers)}", 2)


def made(kafka, topic, tmp_path, **options):
    """A sink of the topic."""
    return KafkaSink(topic, servers=kafka.servers, staging=tmp_path / "staged", **options)


def rows_of(spark, tmp_path):
    """A stream of lines of the form key,number; each micro-batch has one file."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    return lines.selectExpr("split(value, ',')[0] AS name", "cast(split(value, ',')[1] AS long) AS n")


def add(tmp_path, number, *lines):
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / f"{number:04}").write_text("\n".join(lines))


def test_rows_become_records(spark, kafka, topic, tmp_path):
    """By names of columns, expressions in SQL and Column objects; with headers, a partition and a time."""
    add(tmp_path, 1, "ä,1", "b,2")
    sink = made(
        kafka, topic, tmp_path, key="name", value=F.to_json(F.struct("*")), partition="cast(n - 1 AS int)",
        headers="array(struct('n' AS key, cast(cast(n AS string) AS binary) AS value))",
        timestamp="timestamp_millis(1700000000000 + n)",
    )  # fmt: skip
    run_to_end(rows_of(spark, tmp_path), tmp_path / "db", sink)
    found = {each.key.decode(): each for each in kafka.committed(topic)}
    assert {key: (each.value.decode(), each.partition, each.timestamp) for key, each in found.items()} == {
        "ä": ('{"name":"ä","n":1}', 0, 1700000000001), "b": ('{"name":"b","n":2}', 1, 1700000000002),
    }  # fmt: skip
    assert list(found["b"].headers) == [("n", b"2")]
    status = ["status", str(tmp_path / "db")]
    work = json.loads(CliRunner().invoke(main, [*status, "--json"]).stdout)["last_epoch"]["sink"]
    assert (work["staged"], work["produced"], work["waiting"], work["transactions"]) == (2, 2, 0, 1)
    shown = CliRunner().invoke(main, status).stdout
    assert "sink: in the newest epoch 2 records produced, 0 records wait; 1 transaction of" in shown


@pytest.mark.long
def test_columns_by_their_names_in_the_order_of_their_key(spark, kafka, topic, tmp_path):
    """As for Spark's own sink: key and value. A second run goes on, with the directory as a path instead of an address;
    keys go where Java's clients send them."""
    add(tmp_path, 1, *(f"k{n % 7},{n}" for n in range(100)))
    frame = rows_of(spark, tmp_path).selectExpr("name AS key", "cast(n AS string) AS value")
    staging = f"file://{tmp_path}/staged"
    sink = KafkaSink(topic, servers=kafka.servers, staging=staging)
    assert sink.shared
    run_to_end(frame, tmp_path / "db", sink)
    add(tmp_path, 2, *(f"k{n % 7},{n}" for n in range(100, 200)))
    add(tmp_path, 3)
    run_to_end(frame, tmp_path / "db", made(kafka, topic, tmp_path))
    order: dict[bytes, list[int]] = {}
    for each in kafka.committed(topic):
        order.setdefault(each.key, []).append(int(each.value))
    assert order == {b"k%d" % key: list(range(key, 200, 7)) for key in range(7)}
    kafka.send_by_key(other := kafka.create(f"{topic}-java", 2), [(key, b"x") for key in order])
    places = {each.key: each.partition for each in kafka.records(other)}
    assert {each.key: each.partition for each in kafka.committed(topic)} == places


@first(
    ("options", "words", "remedy"),
    [
        ({"value": "n"}, "the value of a record has to be text or bytes, and is of type bigint", "cast(n AS string)"),
        ({"value": "struct(name, n)"}, "type struct<name:string,n:bigint>", "to_json(struct(name, n))"),
        ({}, "the flow's rows have no column 'value'; they have name, n", "to_json(struct(*))"),
        ({"value": "nme"}, "nme", "expression"),
        ({"value": "to_json(("}, "to_json((", "expression"),
        ({"value": "name", "partition": "n"}, "the partition of a record has to be an int", "cast(… AS int)"),
        ({"value": "name", "headers": "name"}, "the headers of a record", "array(struct("),
        ({"value": "name", "timestamp": "n"}, "the timestamp of a record", "cast(… AS timestamp)"),
    ],
    count=2,
)
def test_columns_that_make_no_record(spark, kafka, topic, tmp_path, options, words, remedy):
    """The run ends before it has produced or closed anything, with what to write instead."""
    add(tmp_path, 1, "a,1")
    with pytest.raises(FlowFailedError) as caught:
        run_to_end(rows_of(spark, tmp_path), tmp_path / "db", made(kafka, topic, tmp_path, **options))
    assert words in caught.value.found
    assert remedy in caught.value.cause + caught.value.remedy
    assert kafka.committed(topic) == []
    assert states(tmp_path / "db", "any") == {}


@pytest.mark.long
def test_going_back_is_refused(spark, kafka, topic, tmp_path):
    """By --resume-after; the directory is as it was, and goes on. With --lose-epochs the records come again."""
    sink = made(kafka, topic, tmp_path, key="name", value="cast(n AS string)")
    for number in range(3):
        add(tmp_path, number, f"a,{number}")
    run_to_end(rows_of(spark, tmp_path), tmp_path / "db", sink, backup_interval="1h")
    with pytest.raises(OutputMismatchError, match="2 records of epochs 2 to 3 are in the topic"):
        run_to_end(rows_of(spark, tmp_path), tmp_path / "db", sink, backup_interval="1h", resume_after=1)
    add(tmp_path, 3, "a,3")
    run_to_end(rows_of(spark, tmp_path), tmp_path / "db", sink, backup_interval="1h")
    assert [int(each.value) for each in kafka.committed(topic)] == [0, 1, 2, 3]
    again = {"resume_after": 3, "lose_epochs": True, "backup_interval": "1h"}
    run_to_end(rows_of(spark, tmp_path), tmp_path / "db", sink, **again)
    assert [int(each.value) for each in kafka.committed(topic)] == [0, 1, 2, 3, 3]


@pytest.mark.long
@pytest.mark.parametrize("compensate", [False, True])
def test_killed_at_any_moment(kafka, tmp_path, compensate):
    """The command is killed at steps and at moments by lot: each row comes once, and those of a key in their order.
    With compensate, each third run goes back first, and each key has the last of its rows."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    lot = random.Random(seed)
    policy = "compact" if compensate else "delete"
    source = kafka.create(f"source-{policy}", 2)
    output = kafka.create(f"out-{policy}", 3, cleanup_policy=policy)
    points = [*POINTS, *BACK] if compensate else POINTS
    init_partitions(tmp_path / "db", 2)
    target = (
        f"{ROOT}/tests/flows/kafka_sink.py:make({kafka.servers!r}, {source!r}, {output!r}, "
        f"{str(tmp_path / 'staged')!r}, {compensate})"
    )
    jars = ",".join(map(str, CONNECTOR))
    sent = rewinds = 0
    for number in range(KILLS):
        count = lot.randrange(1, 60)
        kafka.send_by_key(source, [(b"k%d" % (n % 5), b"%d" % n) for n in range(sent, sent + count)])
        sent += count
        newest, back = scan(tmp_path / "db")[0].description.newest_epoch or 0, []
        point = lot.choice(points)
        if compensate and number % 3 == 2 and newest > 1:
            rewinds += 1
            back = going_back(tmp_path / "db", "pass", lot.randrange(newest))
            point = lot.choice([*BACK, point])
        at = f"{point}:{1 if point.startswith('kafka.5') else lot.randrange(1, 4)}" if point else ""
        options = ["--jars", jars, "-s", "0", "-b", "1h", *back]
        process = recovery_command(target, tmp_path / "db", *options, crash_at=at)
        if not point:
            time.sleep(lot.uniform(0, 15))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        printed = finish(process)
        assert process.returncode in (0, -signal.SIGKILL), printed
    process = recovery_command(target, tmp_path / "db", "--jars", jars, "-s", "0")
    assert (finish(process), process.returncode)[1] == 0
    order: dict[bytes, list[int]] = {}
    for each in kafka.committed(output):
        order.setdefault(each.key, []).append(int(each.value or 0))
    expected = {b"k%d" % key: list(range(key, sent, 5)) for key in range(min(5, sent))}
    if compensate:
        assert {key: numbers[-1] for key, numbers in order.items()} == {
            key: numbers[-1] for key, numbers in expected.items()
        }
    else:
        assert order == expected
    print(f"{KILLS} kills, {rewinds} rewinds, {sent} records")
