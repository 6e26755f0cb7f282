"""How runs end in containers and under supervisors, which signal more than the driver, and look from elsewhere."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from recovery import DirectoryLockedError, StateManager, init_partitions
from recovery.base.clock import SystemClock
from recovery.host.signals import STOPPING, again
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import scan
from tests.namespaces import are_running, as_process_1, family, process_1, signal_all
from tests.spark.support import ROOT
from tests.spark.test_crashes import finish, limited, wait_for_batch
from tests.spark.test_processes import python_for_others

FLOW = ROOT / "tests" / "flows" / "lines.py"


def command(target: str, directory: Path, *options: str) -> list[str]:
    """`recovery run` of the flow's file."""
    return [
        sys.executable, "-m", "recovery", "run", f"{FLOW}:{target}", "-r", str(directory), "--master", "local[2]",
        *options,
    ]  # fmt: skip


def lines(directory: Path) -> Path:
    """Input of some ten micro-batches."""
    directory.mkdir()
    (directory / "a.txt").write_text("".join(f"line {n % 7}\n" for n in range(100)))
    return directory


def ends_well(process: subprocess.Popen, directory: Path, number: int, pid: int) -> None:
    """A signal to every process of a run while micro-batch 1 is under way, in any order, is a graceful stop."""
    wait_for_batch(process)
    pids = family(pid)
    assert len(pids) >= 4, "the run, the JVM, the daemon and its workers"
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    random.Random(seed).shuffle(pids)
    signal_all(pids, number)
    output = finish(process)
    assert process.returncode == 0, output
    assert f"stopping: waiting for micro-batch 1 …; {again(number)} ends immediately, and the next run" in output
    assert not re.search("^Error", output, re.MULTILINE), output
    assert {file.description.newest.batch_id for file in scan(directory)} == {1}
    [run] = StateManager(directory).list_runs()
    assert (run.status, run.details["batches"]) == ("succeeded", 2)
    deadline_s = time.monotonic() + 60
    while are_running(pids):
        assert time.monotonic() < deadline_s, "a process has outlived the run"
        time.sleep(0.05)


@pytest.mark.long
def test_a_signal_to_all_processes_of_a_container(tmp_path):
    """The run is process 1 there. For those who look from outside, and cannot see its process, it goes on, and is
    named as one of another container."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    target = f"make({str(lines(tmp_path / 'input'))!r}, 2.0)"
    process = as_process_1(*command(target, directory, "-s", "1h"))
    wait_for_batch(process)
    state = StateManager(directory)
    assert [run.status for run in state.list_runs()] == ["running"]
    assert state.get_last_run_status("lines") is None
    with pytest.raises(DirectoryLockedError, match=r"process 1 on .*, in another container \(flow lines\)"):
        DirectoryLock(directory, SystemClock(), "test").acquire()
    ends_well(process, directory, signal.SIGTERM, process_1(process))


CONTAINER = """
set -e
mount --make-rprivate /
mount --bind "$0" "$0"
mount -o remount,bind,ro /
if touch /read-only 2>/dev/null; then exit 99; fi
cd "$0"
exec setpriv --reuid 54321 --regid 54321 --clear-groups env -u HOME -u PYSPARK_PYTHON TMPDIR="$0/tmp" "$@"
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user, and mounts")
def test_a_container_with_a_read_only_root_and_one_volume():
    """Process 1 with a user id that has no name and no home: it starts, and a signal to all is a graceful stop."""
    python = python_for_others()
    if python is None:
        pytest.skip("other users can start no Python of this version")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        volume = Path(name)
        (volume / "tmp").mkdir()
        lines(volume / "input")
        init_partitions(volume / "db", 2)
        for path in (volume, *volume.rglob("*")):
            os.chown(path, 54321, 54321)
        target = f"make({str(volume / 'input')!r}, 2.0)"
        packages = os.pathsep.join([str(ROOT), *(each for each in sys.path if "-packages" in each)])
        process = as_process_1(
            "sh", "-c", CONTAINER, volume, python, *command(target, volume / "db", "-s", "1h")[1:],
            env={**os.environ, "PYTHONPATH": packages},
        )  # fmt: skip
        wait_for_batch(process)
        ends_well(process, volume / "db", signal.SIGTERM, process_1(process))


@pytest.mark.long
@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,2,1024]"])
def test_a_signal_to_all_processes_of_a_unit(number, master, tmp_path):
    """As systemd sends it by default."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    target = f"make({str(lines(tmp_path / 'input'))!r}, 2.0)"
    process = subprocess.Popen(
        command(target, directory, "-s", "1h", "--master", master),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    wait_for_batch(process)
    ends_well(process, directory, number, process.pid)


@pytest.mark.long
def test_a_signal_ends_a_pipeline(tmp_path):
    """Also as process 1, without waiting for the node under way, which the history has as failed."""
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    process = as_process_1(*command("pipeline(600)", directory))
    with limited(process, 240):
        while (line := process.stdout.readline()) != "rows 3\n":
            assert line, "the pipeline ended early"
    os.kill(process_1(process), signal.SIGTERM)
    sent_s = time.monotonic()
    output = finish(process)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert time.monotonic() - sent_s < 30
    assert "load: failed: stopped by SIGTERM\n" in output
    [run] = StateManager(directory).list_runs()
    assert (run.status, run.error) == ("failed", "InterruptedBySignal: stopped by SIGTERM")
    assert {name: node.status for name, node in run.nodes.items()} == {"load": "failed"}
