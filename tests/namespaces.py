"""Processes as a container has them: number 1 of a PID namespace of their own."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections import defaultdict
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@functools.cache
def _is_possible() -> bool:
    try:
        return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


def as_process_1(*command: object, **options) -> subprocess.Popen[str]:
    """Start a command as process 1 of a namespace; what is started is `unshare`, which ends as the command does."""
    if not _is_possible():
        pytest.skip("no PID namespace can be made here: that needs root, or user namespaces, and `unshare`")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options}
    return subprocess.Popen([*UNSHARE, *map(str, command)], **options)


def process_1(started: subprocess.Popen[str]) -> int:
    """The number that the command has outside of its namespace."""
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
    deadline_s = time.monotonic() + 60
    while not children.read_text():
        assert time.monotonic() < deadline_s, "unshare starts nothing"
        time.sleep(0.005)
    return int(children.read_text())


def family(pid: int) -> list[int]:
    """A process and all that descend from it, parents first."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(int(path.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def are_running(pids: list[int]) -> list[int]:
    """Those that have not ended."""
    running = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                running.append(pid)
        except OSError:
            continue
    return running


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each; one may have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
