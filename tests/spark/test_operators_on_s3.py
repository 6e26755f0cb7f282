"""The state of Spark's own operators in S3, by moto and Spark's S3A; without its jars these tests are skipped."""

from __future__ import annotations

import os
import signal

import pyarrow.fs
import pytest

from recovery import init_partitions
from tests.backup.emulators import BUCKET, moto
from tests.cluster.operator_counts import FEW, assert_counts
from tests.flows.operators import STORES
from tests.spark.support import ROOT
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_output_on_s3 import JARS, s3a_options
from tests.stores import problems

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not JARS, reason="no jars of S3A: mvn -f .ci/s3a/pom.xml, as .ci/run does"),
]
POINTS = [("hdfs", "close.3:2"), ("rocksdb", "start.3"), ("changelog", "close.1:3"), ("rocksdb", "close.1.copied:9")]
POINTS = POINTS[: int(os.environ.get("RECOVERY_TEST_S3_KILLS", "4"))]


@pytest.fixture(scope="module")
def server():
    with moto() as running:
        yield running


def left(server, prefix: str) -> list[str]:
    """What there is in the scratch place."""
    selector = pyarrow.fs.FileSelector(f"{BUCKET}/{prefix}", recursive=True, allow_not_found=True)
    return [each.path for each in server.filesystem.get_file_info(selector) if each.is_file]


@pytest.mark.parametrize(("store", "point"), POINTS)
def test_killed_resumed_and_gone_back(server, tmp_path, store, point):
    """Every micro-batch of every run counts what a plain loop does; only a killed run leaves anything."""
    prefix = f"scratch-{store}-{point.replace(':', '-')}"
    options = [*s3a_options(server), "--scratch", f"s3a://{BUCKET}/{prefix}", "-s", "0", "-b", "1h", *FEW]
    options += [word for name, value in STORES[store].items() for word in ("--conf", f"{name}={value}")]
    options += ["--trigger", "0"]
    flow = f"{ROOT}/tests/flows/cluster.py:native"
    init_partitions(tmp_path / "db", 2)

    def run(last: int, *more: str, crash_at: str | None = None) -> list[int]:
        given = {} if crash_at is None else {"crash_at": crash_at}
        process = recovery_command(f"{flow}(500, {last})", tmp_path / "db", *options, *more, **given)
        output = finish(process)
        assert process.returncode == (0 if crash_at is None else -signal.SIGKILL), output
        return assert_counts(output, 500)

    run(4, crash_at=point)
    # A first run copies nothing before it starts.
    assert (left(server, prefix) != []) == (point != "start.3")
    assert run(4)[-1] == 4
    assert left(server, prefix) == []
    assert run(6) == [5, 6]
    assert run(3, "--resume-after", "2") == [2, 3]
    assert problems(tmp_path / "db") == []
    assert left(server, prefix) == []
