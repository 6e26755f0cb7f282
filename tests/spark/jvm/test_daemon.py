"""The path of Python workers: Spark's archives are left off it, where PySpark is installed beside them."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import pyspark
import pytest

from recovery.host import private
from recovery.spark.jvm.session import _for_cluster, _for_python, daemon
from recovery.spark.jvm.startup import sitecustomize
from tests.stores import ROOT

HOME = Path(pyspark.__file__).parent
ARCHIVES = [
    *map(str, sorted((HOME / "python" / "lib").glob("*.zip"))),
    *map(str, (HOME / "jars").glob("spark-core_*.jar")),
]
LOOK = """
import sys
from recovery.spark.jvm.startup.sitecustomize import leave_archives
{before}
leave_archives()
import pyspark, importlib
importlib.invalidate_caches()
print(pyspark.__file__, *(each for each in [*sys.path, *sys.path_importer_cache] if each in {archives}), sep="\\n")
"""


@pytest.fixture
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark runs this Python."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def looked(before: str = "") -> list[str]:
    """Where PySpark comes from, and the archives that are still looked into."""
    code = f"import sys; sys.path[:0] = {ARCHIVES!r}\n" + LOOK.format(before=before, archives=ARCHIVES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_there_are_such_archives():
    """The names under which this version of Spark has them."""
    assert len(ARCHIVES) == 3


@pytest.mark.parametrize("before", ["", "import importlib.util; importlib.util.find_spec('nothing')"])
def test_pyspark_comes_from_where_it_is_installed(before):
    """And no list of an archive is kept to be read again, also where one was looked into before."""
    assert looked(before) == [pyspark.__file__]


def test_where_it_is_not_installed_the_archives_stay():
    """As on a machine that has Spark without PySpark's package."""
    found = looked("sys.path[:] = [each for each in sys.path if 'site-packages/' in each or 'packages' not in each]")
    assert found[0].startswith(ARCHIVES[1]) or found[0].startswith(ARCHIVES[0])
    assert set(ARCHIVES) <= set(found)


def for_python(path: str) -> dict[str, str]:
    """What the session sets for its Python processes, if this path is set for its own."""
    with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
        return _for_python()


def started(tmp_path: Path, *path: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """A Python as Spark starts it from the JVM of a session, with further directories on its path."""
    environment = {**os.environ, **for_python(os.pathsep.join(map(str, path)))}
    environment["PYTHONPATH"] = os.pathsep.join([*ARCHIVES, environment["PYTHONPATH"]])
    code = f"import pyspark, sys; print(pyspark.__file__, *sys.path, sep='\\n'); {code}"
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )


def test_what_spark_starts_leaves_the_archives(tmp_path, this_python):
    """Before the module that it is to run is looked for, and without a trace of how."""
    found = started(tmp_path, tmp_path / "mine").stdout.split()
    assert found[0] == pyspark.__file__
    assert str(tmp_path / "mine") in found
    assert not [each for each in found if each in ARCHIVES or "startup" in each]


def test_the_users_own_sitecustomize_has_its_turn(tmp_path, this_python):
    """As if it were the only one; an error in it is printed as Python prints it."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = __name__, __file__")
    looked_at = "import sitecustomize; print(sys.mine, sitecustomize.__file__)"
    own = str(tmp_path / "sitecustomize.py")
    assert started(tmp_path, tmp_path, code=looked_at).stdout.endswith(f"('sitecustomize', '{own}') {own}\n")
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    done = started(tmp_path, tmp_path)
    assert "sitecustomize" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert done.stdout.split()[0] == pyspark.__file__


@pytest.mark.parametrize("given", ["python", "by another name", sys.executable])
def test_this_python_by_any_name(given, tmp_path, monkeypatch):
    """As `PYSPARK_PYTHON=python3` in a shell's profile has it, in an environment that is active."""
    directory = Path(sys.executable).parent
    if given == "by another name":
        directory = tmp_path
        (tmp_path / "python").symlink_to(sys.executable)
        (tmp_path / given).symlink_to(sys.executable)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "flow").mkdir()
    monkeypatch.chdir(tmp_path / "flow")
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("PYSPARK_PYTHON", given)
    assert for_python("/mine")["PYTHONPATH"].endswith(f"startup{os.pathsep}/mine")
    assert daemon()


def test_on_a_cluster(tmp_path, monkeypatch):
    """What Spark starts beside the driver by the name `python3` is this Python, and runs `startup`, too. A Python that
    the user names for executors is left alone, unless it is this one."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "/mine")
    given = _for_cluster()
    assert given["PATH"] == os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path)])
    first, mine = given["PYTHONPATH"].split(os.pathsep)
    assert mine == "/mine"
    # Executors of YARN get this path, and must find nothing there.
    assert first.startswith(f"{private.home()}/")
    assert Path(first, "sitecustomize.py").samefile(sitecustomize.__file__)
    monkeypatch.setenv("PYSPARK_PYTHON", "environment/bin/python")
    assert _for_cluster() == {}
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert list(_for_cluster()) == ["PYTHONPATH"]


@pytest.mark.parametrize("importable", [True, False])
def test_sparks_daemon_is_replaced_where_the_package_can_be_imported(importable, monkeypatch):
    """Elsewhere Spark's own goes on."""
    replaced = []
    monkeypatch.setattr(os, "execv", lambda _, arguments: replaced.append(arguments))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object() if importable else None)
    sitecustomize._prepare(["python3", "-m", "pyspark.daemon", "pyspark.worker"])
    assert replaced == ([["python3", "-m", "recovery.spark.jvm.daemon", "pyspark.worker"]] if importable else [])


@pytest.mark.parametrize("place", ["elsewhere", "linked"])
def test_another_python_is_left_alone(place, tmp_path, monkeypatch):
    """PySpark need not be installed for it: not for one that was called up from another directory either, for that is
    another environment."""
    (tmp_path / "linked").symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / place))
    assert for_python("/mine") == {}
    assert daemon() == {}


def test_sparks_own_daemon_makes_way(tmp_path, this_python, request):
    """Where the JVM plans sources, it starts that one: a worker of it would leave with a traceback."""
    environment = {**os.environ, **for_python(str(ROOT))}
    # The path of a socket has to be short.
    sockets = tempfile.TemporaryDirectory(prefix="sockets-", dir="/tmp")
    request.addfinalizer(sockets.cleanup)
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark.sql.worker.lookup_data_sources"],
        env={**environment, "PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets.name},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert int.from_bytes(process.stdout.read(4), "big") > 0
    assert b"recovery.spark.jvm.daemon\0pyspark.sql.worker.lookup_data_sources" in (
        Path(f"/proc/{process.pid}/cmdline").read_bytes()
    )
    # It says nothing when its JVM has closed a connection.
    [path] = Path(sockets.name).glob(".*.sock")
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(str(path))
        connected.recv(4)
    assert process.communicate(timeout=20)[1] == b""


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
sys.stdin.read()
"""
CHILD = """
from recovery.spark.jvm.startup.sitecustomize import end_with_parent
end_with_parent(); end_with_parent()
while True:
    pass
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="processes are looked up in /proc")
def test_a_busy_process_ends_with_its_parent():
    """Whatever it is doing."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    child = Path("/proc", parent.stdout.readline().strip())
    time.sleep(0.5)
    assert child.exists()
    parent.kill()
    parent.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while child.exists() and b") Z " not in (child / "stat").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
