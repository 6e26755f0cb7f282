"""Output in S3, by moto and Spark's S3A: `.ci/run` fetches its jars, else they are skipped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from recovery import init_partitions
from tests.backup.emulators import BUCKET, moto
from tests.flows.tables import NAME, properties
from tests.kafka import broker, needs_jars
from tests.spark.support import ROOT, states
from tests.spark.test_crashes import FLOW, finish, recovery_command
from tests.spark.test_sinks import running_totals

JARS = sorted(Path(os.environ.get("RECOVERY_TEST_S3A_JARS", ROOT / ".ci" / "jars")).glob("*.jar"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not JARS, reason="no jars of S3A: mvn -f .ci/s3a/pom.xml, as .ci/run does"),
]
POINTS = ["publish.1.file:2", "close.3:2", "prepare.1", "prepare.2:2", "publish.1", "publish.2:2", "publish.3"]
POINTS = POINTS[: int(os.environ.get("RECOVERY_TEST_S3_KILLS", "7"))]


@pytest.fixture(scope="module")
def server():
    with moto() as running:
        yield running


def published(server, prefix: str) -> list[tuple]:
    """Every record that a reader of the directory sees."""
    found = server.filesystem.get_file_info(pyarrow.fs.FileSelector(f"{BUCKET}/{prefix}"))
    rows = []
    for each in found:
        if each.is_file and not each.base_name.startswith(("_", ".")):
            rows += [tuple(row.values()) for row in pq.read_table(each.path, filesystem=server.filesystem).to_pylist()]
    return sorted(rows)


def port_of(server) -> str:
    return server.parameters.split("127.0.0.1:")[1].split("&")[0]


def s3a_options(server) -> list[str]:
    """The options of a run by which Spark reaches the server."""
    settings = {
        "spark.jars": ",".join(map(str, JARS)),
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port_of(server)}",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "key",
        "spark.hadoop.fs.s3a.secret.key": "not-a-real-secret",
    }
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


@pytest.mark.parametrize("point", POINTS)
def test_killed_while_it_publishes(server, feed, tmp_path, point):
    """Killed at a step, run again, and gone back: state and output are those of the uninterrupted run."""
    for seed in range(3):
        feed.add_random(seed, count=40)
    prefix = f"out-{point.replace(':', '-')}"
    options = s3a_options(server)
    target = f"{FLOW}:make({str(feed.path)!r}, 0.0, 's3a://{BUCKET}/{prefix}')"
    options += ["-s", "0", "-b", "1h", "--trigger", "available-now"]
    init_partitions(tmp_path / "db", 2)
    killed = recovery_command(target, tmp_path / "db", *options, crash_at=point)
    output = finish(killed)
    assert killed.returncode == -signal.SIGKILL, output
    for more in ([], ["--resume-after", "1"]):
        process = recovery_command(target, tmp_path / "db", *options, *more)
        output = finish(process)
        assert process.returncode == 0, output
        assert published(server, prefix) == sorted(running_totals(feed.rows, 40))
    assert states(tmp_path / "db", "totals") == feed.totals()


@needs_jars
@pytest.mark.parametrize("point", ["kafka.2:2", "close.3:2", "kafka.3.part:9"][: len(POINTS)])
def test_rows_for_kafka_that_are_staged_there(server, feed, tmp_path, point):
    """Killed before and after the epoch is closed, and between its transactions: each row is in the topic once."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra has it)")
    for seed in range(3):
        feed.add_random(seed, count=40)
    (tmp_path / "broker").mkdir()
    init_partitions(tmp_path / "db", 2)
    with broker(tmp_path / "broker") as kafka:
        kafka.create("out", 2)
        staging = f"s3a://{BUCKET}/staged-{point.replace(':', '-')}"
        flow = f"{ROOT}/tests/flows/kafka_sink.py:lines"
        target = f"{flow}({str(feed.path)!r}, {kafka.servers!r}, 'out', {staging!r})"
        options = [*s3a_options(server), "-s", "0", "--trigger", "available-now"]
        killed = recovery_command(target, tmp_path / "db", *options, crash_at=point)
        output = finish(killed)
        assert killed.returncode == -signal.SIGKILL, output
        process = recovery_command(target, tmp_path / "db", *options)
        output = finish(process)
        assert process.returncode == 0, output
        found = [(each.key.decode(), int(each.value)) for each in kafka.committed("out")]
    assert sorted(found) == sorted(feed.rows)


def delta_table(server, directory: Path):
    """How the flow's sink is made, and what returns the rows of its table."""
    deltalake = pytest.importorskip("deltalake")
    settings = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "not-a-real-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port_of(server)}",
        "AWS_ALLOW_HTTP": "true",
    }
    table = f"s3://{BUCKET}/delta"
    return (table, settings), lambda: deltalake.DeltaTable(table, storage_options=settings).to_pyarrow_table()


def iceberg_table(server, directory: Path):
    """The same. The catalog is in a file, the table's files and its metadata are in S3."""
    catalogs = pytest.importorskip("pyiceberg.catalog")
    pytest.importorskip("sqlalchemy")
    settings = {
        "warehouse": f"s3://{BUCKET}/warehouse",
        "s3.endpoint": f"http://127.0.0.1:{port_of(server)}",
        "s3.region": "us-east-1",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "not-a-real-secret",
    }

    def rows():
        return catalogs.load_catalog("default", **properties(directory) | settings).load_table(NAME).scan().to_arrow()

    return (str(directory), settings), rows


@pytest.mark.parametrize(("kind", "make"), [("delta", delta_table), ("iceberg", iceberg_table)])
def test_a_table(server, feed, tmp_path, kind, make):
    """Killed between the steps of publishing, run again, and gone back: each row is in the table once."""
    sink, rows = make(server, tmp_path)
    for seed in range(3):
        feed.add_random(seed, count=40)
    flow = f"{ROOT}/tests/flows/tables.py:make_{kind}{(str(feed.path), *sink)!r}"
    options = [*s3a_options(server), "-s", "0", "-b", "1h", "--trigger", "available-now"]
    init_partitions(tmp_path / "db", 2)
    for point, *more in ([f"{kind}.2:2"], ["close.3:2"], [""], [f"{kind}.3", "--resume-after", "1"], [""]):
        process = recovery_command(flow, tmp_path / "db", *options, *more, crash_at=point)
        told = finish(process)
        assert process.returncode == (-signal.SIGKILL if point else 0), told
        if not point:
            found = [tuple(row[name] for name in ("key", "n", "total")) for row in rows().to_pylist()]
            assert sorted(found) == sorted(running_totals(feed.rows, 40))
    assert states(tmp_path / "db", "totals") == feed.totals()
