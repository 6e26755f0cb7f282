"""FileSink in S3, by moto and Spark's S3A: `.ci/run` fetches the jars; without them these tests are skipped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from recovery import init_partitions
from tests.backup.emulators import BUCKET, moto
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


def s3a_options(server) -> list[str]:
    """The options of a run by which Spark reaches the server."""
    port = server.parameters.split("127.0.0.1:")[1].split("&")[0]
    settings = {
        "spark.jars": ",".join(map(str, JARS)),
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port}",
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
