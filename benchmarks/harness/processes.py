"""Running a contender in a child process, and watching what the child and its descendants use."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""Of the repository: children import `benchmarks` from here."""
SAMPLE_S = 0.2
ENDING_S = 30
"""How long descendants may outlive the child, until they are killed."""
_UNSET = ("PYTHONHOME", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class ChildFailedError(Exception):
    """A child process failed, or took too long; the text ends with what it last wrote."""


@dataclass(slots=True)
class Usage:
    """What a tree of processes used. Memory is the highest sum of resident sizes among the samples.

    others_share: the share of the machine's processors that all other processes took meanwhile.
    """

    total_s: float = 0.0
    cpu_s: float = 0.0
    python_rss_bytes: int = 0
    java_rss_bytes: int = 0
    others_share: float = 0.0


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    name: str
    started: int
    cpu_s: float
    waited_s: float
    """Processor time of children that have ended."""
    rss_bytes: int


def run_child(
    python: Path, target: str, arguments: dict[str, Any], directory: Path, environment: dict[str, str], timeout_s: float
) -> tuple[dict[str, Any], Usage]:
    """Calls `module:function` with `arguments` in a process of its own, in `directory`; gives what it returned.

    The process and all that it started have ended when this returns. Raises ChildFailedError.
    """
    scratch = directory / "scratch"
    scratch.mkdir(parents=True)
    given = {key: value for key, value in os.environ.items() if key not in _UNSET}
    given |= {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_DIRS": str(scratch),
        "TMPDIR": str(scratch),
        # No archive of classes, but for those that say so.
        "RECOVERY_CACHE": str(scratch),
        "RECOVERY_CLASS_ARCHIVE": "off",
        **environment,
    }
    errors = directory / "stderr.log"
    command = [str(python), "-m", "benchmarks.harness.child", target, json.dumps(arguments)]
    with errors.open("wb") as log:
        child = subprocess.Popen(
            command, cwd=directory, env=given, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
    watch = _Watch(child.pid)
    try:
        printed, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ChildFailedError(f"not done after {timeout_s:.0f} s{_tail(errors)}") from None
    finally:
        usage = watch.finish(abandoned=child.poll() is None)
        child.wait()
    try:
        answer = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        raise ChildFailedError(f"it ended with code {child.returncode}{_tail(errors)}") from None
    return answer, usage


@dataclass(slots=True)
class Ran:
    """A command that has ended. usage: of all its processes until the last one of them had ended; total_s: until the
    command itself had ended. lines: what it wrote to standard output and standard error, with the time of each line,
    seconds since 1970."""

    code: int
    usage: Usage
    lines: list[tuple[float, str]]

    @property
    def said(self) -> str:
        """The text of the lines."""
        return "".join(line for _, line in self.lines)


def run_command(command: Sequence[str], environment: dict[str, str] | None = None) -> Ran:
    """Run a command in this directory, and wait until all that it has started has ended."""
    running = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watch, lines = _Watch(running.pid), []
    assert running.stdout is not None
    reader = threading.Thread(target=lambda: lines.extend((time.time(), line) for line in running.stdout), name="lines")
    reader.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = running.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = watch.finish(abandoned=False)
    # The samples miss what short processes do, and the system's count what nobody waits for, as a JVM.
    counted_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    usage.cpu_s = max(usage.cpu_s, counted_s)
    # Children that outlive the command, such as a JVM, have its output open.
    reader.join()
    running.stdout.close()
    return Ran(code, usage, lines)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process and its descendants have used so far, those included that ended and were waited for.

    written_bytes: pages of files that became dirty, as /proc/PID/io counts them. A page that is written again after a
    sync counts again; files in memory, pipes and sockets do not count.
    """

    cpu_s: float
    written_bytes: int

    def __sub__(self, before: Spent) -> Spent:
        return Spent(self.cpu_s - before.cpu_s, self.written_bytes - before.written_bytes)


def spent(root: int | None = None) -> Spent:
    """By the process with this number, or this one. Raises OSError where the system does not say what was written."""
    running = _processes()
    members = _tree({root or os.getpid()}, running)
    written = 0
    for pid in members:
        # A process may end meanwhile; then its parent has it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            written += written_bytes(pid)
    return Spent(sum(running[pid].cpu_s + running[pid].waited_s for pid in members), written)


def written_bytes(pid: int | None = None) -> int:
    """What the process with this number, or this one, has written without its descendants; see `Spent`. Takes no look
    at other processes, so it can be asked for around each step of what is measured."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid or os.getpid()}/io").read_text().splitlines())
    return int(fields["write_bytes"])


def resident_bytes(root: int | None = None) -> int:
    """The sum of resident sizes of the process with this number, or this one, and its descendants."""
    running = _processes()
    return sum(running[pid].rss_bytes for pid in _tree({root or os.getpid()}, running))


class _Watch:
    """A thread that samples /proc until the watched tree has ended."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._usage = Usage()
        self._seen: dict[tuple[int, int], float] = {}
        """CPU seconds by pid and start: a pid alone may be given again."""
        self._started_s = time.perf_counter()
        self._busy_s = _machine_busy_s()
        self._ended = threading.Event()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def finish(self, abandoned: bool) -> Usage:
        """Waits for the rest of the tree to end, at once by force when it is abandoned."""
        usage = self._usage
        usage.total_s = time.perf_counter() - self._started_s
        self._ended.set()
        self._thread.join()
        self._sample()
        deadline_s = time.perf_counter() + (0 if abandoned else ENDING_S)
        while left := self._alive():
            if time.perf_counter() >= deadline_s:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
            self._sample()
        elapsed_s = time.perf_counter() - self._started_s
        usage.cpu_s = sum(self._seen.values())
        others_s = _machine_busy_s() - self._busy_s - usage.cpu_s
        usage.others_share = min(1.0, max(0.0, others_s / elapsed_s / (os.cpu_count() or 1)))
        return usage

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._sample()

    def _alive(self) -> list[int]:
        """Those of the tree that still run; a zombie waits only for its parent to look."""
        running = _processes()
        return [pid for pid, started in self._seen if pid in running and running[pid].started == started]

    def _sample(self) -> None:
        running = _processes()
        tree = {pid for pid, started in self._seen if pid in running and running[pid].started == started}
        members = [(pid, running[pid]) for pid in _tree({*tree, self._root}, running)]
        for pid, process in members:
            self._seen[pid, process.started] = process.cpu_s
        python = sum(process.rss_bytes for _, process in members if process.name.startswith("python"))
        java = sum(process.rss_bytes for _, process in members if process.name == "java")
        self._usage.python_rss_bytes = max(self._usage.python_rss_bytes, python)
        self._usage.java_rss_bytes = max(self._usage.java_rss_bytes, java)


def _tree(roots: set[int], running: dict[int, _Process]) -> set[int]:
    """Those of the roots that run, and all descendants."""
    tree = set(roots)
    while children := {pid for pid, process in running.items() if process.parent in tree} - tree:
        tree |= children
    return tree & running.keys()


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            # A process may end between the listing and the look at it.
            with contextlib.suppress(OSError):
                process = parse_stat(Path(entry.path, "stat").read_text())
                if process is not None:
                    found[int(entry.name)] = process
    return found


def parse_stat(text: str) -> _Process | None:
    """A line of /proc/PID/stat; None for a process that has ended. Its name, in brackets, may hold anything."""
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return _Process(
        parent=int(fields[1]),
        name=name,
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        waited_s=(int(fields[13]) + int(fields[14])) / _TICKS,
        rss_bytes=int(fields[21]) * _PAGE,
    )


def _machine_busy_s() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) / _TICKS


def _tail(errors: Path, lines: int = 15) -> str:
    """Its last line as the reason, and more lines below."""
    said = errors.read_text(errors="replace").strip().splitlines()
    return f": {said[-1].strip()}\n" + "\n".join(said[-lines:]) if said else ""
