"""What executors need, what is refused, and what needs no owner."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery import init_partitions
from recovery.base.version import VERSION
from tests.cluster.support import EXAMPLES, FLOWS, ROOT, assert_exact, counts_in
from tests.namespaces import are_running
from tests.stores import paths_of, query
from tests.waiting import wait_until


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A recovery directory on the driver's disk."""
    init_partitions(tmp_path / "db", 2)
    return tmp_path / "db"


@pytest.fixture
def run_without(make_lab, tmp_path, db):
    """Runs a flow on a host whose package is another one, or missing; returns the exit code and what is printed."""

    def run(package: Path | None, *options: str) -> tuple[int, str]:
        lab = make_lab(0)
        lab.add_host(package)
        started = lab.run("cluster.py:counts(100, 1)", db, *options)
        return started.wait(), started.text()

    return run


@pytest.mark.long
def test_a_host_without_the_package(run_without):
    """The error names the host, what it lacks and what to do."""
    code, text = run_without(None)
    assert code == 51
    assert f"host host1 lacks the Python module recovery, where recovery {VERSION} is wanted" in text
    assert "--py-files" in text
    assert "Traceback" not in text


@pytest.mark.long
def test_a_host_with_another_version(run_without, tmp_path):
    """Both versions are named, and where the wrong one was found."""
    other = Path(shutil.copytree(ROOT / "recovery", tmp_path / "recovery"))
    (other / "base" / "version.py").write_text('VERSION = "0.1.0"\n')
    code, text = run_without(other)
    assert code == 51
    assert "host host1 has another version of the package recovery: 0.1.0 (/mnt/package/recovery/__init__.py)" in text
    assert f"where {VERSION} is wanted" in text


MAKES_HOSTS = """
import sys, time
from hosts import Network
network = Network()
print(network.driver.pid, network.add().pid, flush=True)
time.sleep(600)
"""


def test_pretend_hosts_end_with_the_process_that_made_them(possible):
    """Pretend hosts end with the process that made them, also when that process is killed."""
    maker = subprocess.Popen([sys.executable, "-c", MAKES_HOSTS], cwd=EXAMPLES, stdout=subprocess.PIPE, text=True)
    with maker:
        hosts = [int(pid) for pid in maker.stdout.readline().split()]
        assert are_running(hosts) == hosts
        maker.kill()
    wait_until(lambda: not are_running(hosts))


def other_python() -> str | None:
    """A Python whose minor version is not this one's: that of RECOVERY_TEST_OTHER_PYTHON, or one in the PATH."""
    names = [f"python3.{minor}" for minor in range(9, 20) if minor != sys.version_info.minor]
    for name in (os.environ.get("RECOVERY_TEST_OTHER_PYTHON"), *names):
        path = name and shutil.which(name)
        if path and subprocess.run([path, "-V"], capture_output=True, timeout=60, check=False).returncode == 0:
            return path
    return None


@pytest.mark.long
def test_another_python_at_executors(lab, db):
    """Both versions are named and the setting to give; no epoch is closed, and the next run is exact."""
    python = other_python()
    if python is None:
        pytest.skip("no second version of Python: RECOVERY_TEST_OTHER_PYTHON names one")
    ours = "{}.{}".format(*sys.version_info)
    theirs = subprocess.run([python, "-V"], capture_output=True, text=True, check=True, timeout=60).stdout
    run = lab.run("cluster.py:counts(100, 1)", db, "-s", "0", PYSPARK_PYTHON=python)
    assert run.wait() == 51, run.text()
    assert f"Python workers run Python {'.'.join(theirs.split()[1].split('.')[:2])}" in run.text()
    assert f"the driver runs Python {ours}" in run.text()
    assert "Set PYSPARK_PYTHON to a Python" in run.text()
    assert "Traceback" not in run.text()
    assert query(paths_of(db)[0], "SELECT count(*) FROM epochs WHERE epoch > 0") == [(0,)]
    lab.run("cluster.py:counts(100, 1)", db, "-s", "0").succeed()
    assert assert_exact(db, 100) == 2


@pytest.mark.long
@pytest.mark.parametrize("what", ["files", "native"])
def test_what_would_use_the_disk_of_one_host(lab, db, what):
    """It is refused before anything starts, and the partitions stay as they were."""
    run = lab.run(f"cluster.py:refused({what!r}, {str(db)!r})", db)
    code, text = run.wait(), run.text()
    assert code == {"files": 11, "native": 32}[what]
    assert f"on master {lab.cluster.master}" in text
    assert "What to do" in text
    assert query(paths_of(db)[0], "SELECT count(*) FROM epochs WHERE epoch > 0") == [(0,)]
    assert query(paths_of(db)[0], "SELECT count(*) FROM exs") == [(0,)]


@pytest.mark.long
def test_a_pipeline_needs_no_owner(lab, db):
    """Its nodes run on the cluster, and its marks are the driver's."""
    run = lab.run("cluster.py:load()", db)
    assert run.succeed().count("rows ") >= 2


@pytest.mark.long
def test_growing_files_on_a_shared_mount(make_lab, tmp_path, db):
    """With sharedFiles=true; where a host does not see the file, the error says which."""
    share = tmp_path / "share"
    share.mkdir()
    (share / "a.log").write_text("to\nbe\nto\n" * 1000)
    lab = make_lab(1, shares=[share])
    target = f"cluster.py:lines({str(share)!r}"
    run = lab.run(f"{target}, 'false')", db, "--trigger", "once")
    assert run.wait() == 11
    assert "sharedFiles" in run.text()
    lab.run(f"{target}, 'true')", db, "--trigger", "once").succeed()
    assert counts_in(db) == {"to": 2000, "be": 1000}
    lab.network.hosts[0].run(["umount", share])
    with (share / "a.log").open("a") as file:
        file.write("be\n")
    run = lab.run(f"{target}, 'true')", db, "--trigger", "once")
    assert run.wait() == 12
    assert "host host1 does not see this file" in run.text()
    assert counts_in(db) == {"to": 2000, "be": 1000}


@pytest.mark.long
def test_modules_beside_a_flow(lab, db):
    """They are sent with --py-files; without it the error says so."""
    run = lab.run("cluster.py:helped()", db)
    assert run.wait() == 51
    assert "lacks the Python module cluster_helper" in run.text()
    lab.run("cluster.py:helped()", db, "-s", "0", "--py-files", FLOWS / "cluster_helper.py").succeed()
    assert sum(counts_in(db).values()) == 300
