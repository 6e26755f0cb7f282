"""The processes, sockets and files of a run: they go with it, and other users of the machine have no part in them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery import init_partitions
from recovery.host.private import PREFIX
from tests.shares import first
from tests.spark.support import ROOT

FLOWS = ROOT / "tests" / "flows"
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and sockets are looked up in /proc")


def started(target: str, directory: Path, *options: str, umask: int = -1, **environment: str) -> subprocess.Popen[str]:
    """`recovery run`, with its temporary files beside the directory."""
    temporary = directory.parent / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "recovery", "run", target, "-r", str(directory), "--trigger", "1s", *options]
    return subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(temporary), **environment},
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        umask=umask,
        start_new_session=True,
    )


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += tree(int(child))
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def awaited(condition: Callable[[], object], what: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)


@pytest.mark.long
@needs_linux
def test_nothing_outlives_a_killed_driver(tmp_path):
    """Also not the process that plans a source, in the midst of its code; nor a file."""
    init_partitions(tmp_path / "db", 1)
    note = tmp_path / "planning"
    process = started(f"{FLOWS / 'endless.py'}:make({str(note)!r})", tmp_path / "db")
    try:
        awaited(note.exists, "the source is not planned")
        processes = tree(process.pid)
        assert len(processes) > 3
        process.kill()
        awaited(lambda: not any(map(lives, processes)), "some process lives on", 20)
        awaited(lambda: not list((tmp_path / "tmp").iterdir()), "something is left", 20)
    finally:
        end(process)


def bound_below(directory: Path) -> list[Path]:
    """The Unix sockets in a directory that somebody listens on."""
    paths = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted({Path(path) for path in paths if path.startswith(f"{directory}/")})


def listening(processes: list[int]) -> list[int]:
    """The ports on which processes listen."""
    inodes = set()
    for pid in processes:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for each in ("tcp", "tcp6") for line in Path(f"/proc/net/{each}").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


INTRUDER = """
import os, socket, sys
os.setgroups([]); os.setgid(54321); os.setuid(54321)
kind, where = sys.argv[1], sys.argv[2]
try:
    if kind == "unix":
        made = socket.socket(socket.AF_UNIX); made.connect(where)
    else:
        made = socket.create_connection(("127.0.0.1", int(where)))
        made.sendall(b"c\\np0\\ncall\\nt\\nL1\\ne\\n")
    made.settimeout(3)
    print("answered", made.recv(100))
except OSError as error:
    print("refused", type(error).__name__)
"""


@pytest.mark.long
@needs_linux
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user")
def test_other_users_reach_nothing(feed, tmp_path):
    """Whatever the umask: every socket is out of reach, no port answers, secrets are not in the list of processes, and
    connections without end do the run no harm."""
    feed.add_random(1)
    init_partitions(tmp_path / "db", 2)
    file = tmp_path / "spark.conf"
    file.write_text("# secrets\nspark.test.password  hidden-one\n")
    file.chmod(0o600)
    target = f"{FLOWS / 'totals.py'}:make({str(feed.path)!r})"
    options = ("--properties-file", str(file), "-s", "0")
    process = started(target, tmp_path / "db", *options, umask=0, RECOVERY_CONF="spark.test.token=hidden-two")
    # The directories of pytest keep others out, which the machine's directory for temporary files does not.
    opened = [each for each in (tmp_path, *tmp_path.parents) if not each.stat().st_mode & 0o001]
    modes = {each: each.stat().st_mode for each in opened}
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    try:
        for line in process.stderr:
            if line.startswith("epoch 1"):
                break
        for each in opened:
            each.chmod(0o755)
        processes = tree(process.pid)
        [home] = (tmp_path / "tmp").glob(f"{PREFIX}*")
        assert home.stat().st_mode & 0o777 == 0o700
        commands = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in processes)
        assert "hidden" not in commands
        assert not [each for each in (tmp_path / "tmp").iterdir() if each != home]
        places = [("unix", str(path)) for path in bound_below(Path("/tmp")) if PREFIX in str(path)]
        places += [("tcp", str(port)) for port in listening(processes)]
        assert {kind for kind, _ in places} == {"unix", "tcp"}
        for kind, place in places:
            done = subprocess.run([python, "-c", INTRUDER, kind, place], capture_output=True, text=True, timeout=30)
            assert re.match(r"refused|answered b''$|answered b'!xsAuthentication error", done.stdout), (place, done)
        process.terminate()
        rest = process.communicate(timeout=120)[1]
        assert process.returncode == 0, rest
        assert "Traceback" not in rest
        awaited(lambda: not home.exists(), "its directory is left", 20)
    finally:
        for each, mode in modes.items():
            each.chmod(mode)
        end(process)


@needs_linux
@pytest.mark.long
def test_a_long_directory_for_temporary_files(feed, tmp_path):
    """It leaves no room for the name of a socket: sockets lie elsewhere then, and the run is the same."""
    feed.add_random(1)
    init_partitions(tmp_path / "db", 1)
    long = tmp_path / ("x" * 120)
    long.mkdir()
    target = f"{FLOWS / 'totals.py'}:make({str(feed.path)!r})"
    done = subprocess.run(
        [sys.executable, "-m", "recovery", "run", target, "-r", str(tmp_path / "db"), "--master", "local[1]"],
        env={**os.environ, "TMPDIR": str(long)}, capture_output=True, text=True, cwd=ROOT, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@first(
    ("options", "limit", "expected"),
    [(("--conf", "spark.jars.packages=kafka"), None, "Maven Coordinates must be in the form"),
     ((), 40, "ulimit -n")],
    ids=["packages", "files"],
)  # fmt: skip
def test_why_spark_did_not_start(feed, tmp_path, options, limit, expected):
    """The error says what the JVM said, and the lines that it points to are there."""
    init_partitions(tmp_path / "db", 1)
    command = [sys.executable, "-m", "recovery", "run", f"{FLOWS / 'totals.py'}:make({str(feed.path)!r})",
               "-r", str(tmp_path / "db"), *options]  # fmt: skip
    if limit is not None:
        command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    error = done.stderr[done.stderr.index("Error: Spark did not start: ") :]
    assert done.returncode == 50
    assert expected in error, done.stderr
    assert "Exception in thread" in done.stderr[: -len(error)]
    assert "Traceback" not in done.stderr


def python_for_others() -> str | None:
    """A Python of this version that any user can start."""
    for each in (sys.executable, "/usr/bin/python3"):
        # By way of env: setpriv itself still has rights of root when it starts a program.
        version = "import sys; print(sys.version_info[:2])"
        command = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "env", each, "-c", version]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.stdout.strip() == str(sys.version_info[:2]):
            return each
    return None


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs another user")
def test_a_user_without_a_name_or_a_home():
    """As containers have them: Java has neither, and Spark starts all the same."""
    python = python_for_others()
    if python is None:
        pytest.skip("other users can start no Python of this version")
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o777)
        (home / "in").mkdir(0o755)
        (home / "in" / "1.txt").write_text("a,1\n")
        environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "PYSPARK_PYTHON")}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *(each for each in sys.path if "-packages" in each)])
        as_other = [
            "setpriv",
            "--reuid",
            "54321",
            "--regid",
            "54321",
            "--clear-groups",
            "env",
            python,
            "-m",
            "recovery",
        ]
        target = f"{FLOWS / 'totals.py'}:make({str(home / 'in')!r})"
        for command in (["init", "db", "1"], ["run", target, "-r", "db"]):
            done = subprocess.run(
                [*as_other, *command], env=environment, cwd=home, capture_output=True, text=True, timeout=240
            )
            assert done.returncode == 0, done.stderr
        assert {path.name for path in home.iterdir()} == {"in", "db"}
