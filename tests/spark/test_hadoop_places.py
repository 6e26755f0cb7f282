"""Checkpoints and output on real file systems whose requests fail or end the process: a mount, and S3 by moto."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from recovery import init_partitions
from tests.backup.emulators import BUCKET, moto
from tests.cluster.operator_counts import FEW, assert_counts
from tests.hadoop.real_places import checkpoints, outputs
from tests.spark.support import ROOT
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_output_on_s3 import JARS, s3a_options


@pytest.mark.long
def test_on_a_mount(spark, tmp_path):
    """Whatever request of a run fails, partitions and output are exact after the next one; RECOVERY_TEST_REQUEST_STRIDE
    says of how many requests one fails."""
    address, stride = f"file://{tmp_path}/share", int(os.environ.get("RECOVERY_TEST_REQUEST_STRIDE", "2"))
    assert checkpoints(address, stride) >= 3
    assert outputs(address, 4 * stride - 1) >= 3


@pytest.mark.long
@pytest.mark.skipif(not JARS, reason="no jars of S3A: mvn -f .ci/s3a/pom.xml, as .ci/run does")
def test_on_s3():
    """The same, in a session that has the libraries for it."""
    with moto() as server:
        settings = s3a_options(server)[1::2]
        command = [sys.executable, "-m", "tests.hadoop.real_places", f"s3a://{BUCKET}/places", "11", "31", *settings]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=900
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert min(map(int, done.stdout.split()[-2:])) >= 3


@pytest.mark.long
def test_killed_while_files_are_copied(tmp_path):
    """In the midst of a capture, and of the copy that a later run starts on: every micro-batch of every run counts what
    a plain loop does, and what a killed run leaves goes with the next one."""
    share = tmp_path / "share"
    options = ["--scratch", f"file://{share}", "-s", "0", "-b", "1h", "--trigger", "0", *FEW]
    init_partitions(tmp_path / "db", 2)

    def run(last: int, *more: str, crash_at: str = "") -> list[int]:
        flow = f"{ROOT}/tests/flows/cluster.py:native(500, {last})"
        process = recovery_command(flow, tmp_path / "db", *options, *more, crash_at=crash_at)
        output = finish(process)
        assert process.returncode == (-signal.SIGKILL if crash_at else 0), output
        assert len(list(share.iterdir())) == bool(crash_at)
        return assert_counts(output, 500)

    run(4, crash_at="close.1.copied:11")
    run(4, crash_at="start.3.copied:5")
    assert run(4)[-1] == 4
    run(4, "--resume-after", "2", crash_at="start.3.copied:2")
    assert run(3, "--resume-after", "2") == [2, 3]
