"""The lifeline: whoever connects, and however often, the driver goes on."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.storage.deltas import lifeline as module
from recovery.storage.deltas.lifeline import Lifeline, hold

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
INTRUDER = """
import os, socket, sys
os.setgroups([]); os.setgid(54321); os.setuid(54321)
made = []
for _ in range(100):
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    try:
        one.connect("\\0" + sys.argv[1])
    except OSError:
        break
    made.append(one)
print(len(made), flush=True)
sys.stdin.read()
"""


def files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def connected(line: Lifeline) -> socket.socket:
    assert line.address is not None
    made = socket.socket(socket.AF_UNIX)
    made.connect(line.address)
    return made


@pytest.fixture
def line(monkeypatch):
    """One whose close waits for nobody."""
    monkeypatch.setattr(module, "WAIT_S", 0.1)
    made = Lifeline(f"test-{os.getpid()}", SystemClock())
    yield made
    made.close()


@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="needs another user")
def test_other_users_are_not_let_in(line):
    """Their connections are closed, and cost no files; workers learn of the end as before."""
    process = subprocess.Popen(
        [PYTHON, "-c", INTRUDER, line.address[1:]], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 50
    before = files()
    over = threading.Event()
    assert hold(line.address, over.set)
    line.admit()
    assert files() <= before + 2
    line.close()
    assert over.wait(5)
    process.communicate("")


def test_more_than_can_be_held_are_let_go(line, monkeypatch):
    """Those that came last, and only as long as it is full."""
    monkeypatch.setattr(module, "MOST_HELD", 3)
    first = [connected(line) for _ in range(3)]
    line.admit()
    late = connected(line)
    line.admit()
    late.settimeout(5)
    assert late.recv(1) == b""
    for each in first:
        each.close()
    again = connected(line)
    line.admit()
    again.settimeout(0.1)
    with pytest.raises(TimeoutError):
        again.recv(1)
    for each in (late, again):
        each.close()


@pytest.mark.skipif(sys.platform != "linux", reason="open files are looked up in /proc")
def test_no_files_left_is_no_error(line):
    """Who connected waits until there are some."""
    waiting = connected(line)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files() - 1, limit[1]))
    try:
        line.admit()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    line.admit()
    assert len(line._holders) == 1
    waiting.close()
