"""One run at a time, also when the one before died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.errors import DirectoryLockedError, StorageError
from recovery.host import locks
from recovery.storage import lock as module
from recovery.storage.lock import LOCK_NAME, DirectoryLock, check_unlocked, lock_holder
from tests.forks import Forked
from tests.namespaces import as_process_1
from tests.stores import ROOT

HOLD = """
import sys
from pathlib import Path
from recovery.base.clock import SystemClock
from recovery.storage.lock import DirectoryLock
with DirectoryLock(Path(sys.argv[1]), SystemClock(), "flow elsewhere"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path):
    """A lock on the directory, not held yet, freed after the test."""
    held = DirectoryLock(tmp_path, SystemClock(), "flow here")
    yield held
    held.release()


@pytest.fixture
def other_process(tmp_path):
    """Another process that holds the lock until its input ends."""
    process = Forked(["-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_second_process_is_refused_and_learns_who_holds_it(lock, other_process, tmp_path):
    """The error names the process, the host and what it does."""
    with pytest.raises(DirectoryLockedError) as raised:
        lock.acquire()
    assert f"process {other_process.pid} on " in str(raised.value)
    assert "(flow elsewhere)" in str(raised.value)
    assert raised.value.path == str(tmp_path)
    assert lock_holder(tmp_path)["pid"] == other_process.pid


def test_the_death_of_its_holder_frees_it(lock, other_process, tmp_path):
    """After SIGKILL the lock can be taken immediately, although the file still names the dead process."""
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()
    assert json.loads((tmp_path / LOCK_NAME).read_text())["pid"] == other_process.pid
    assert lock_holder(tmp_path) is None
    lock.acquire()
    assert lock_holder(tmp_path)["pid"] == os.getpid()


def test_its_end_frees_it(lock, other_process, tmp_path):
    """A holder that ends in order leaves no name behind."""
    other_process.stdin.close()
    other_process.wait()
    assert lock_holder(tmp_path) is None
    assert (tmp_path / LOCK_NAME).read_text() == ""
    lock.acquire()


def test_two_locks_of_one_process_exclude_each_other(lock, tmp_path):
    """Threads and notebooks are no exception."""
    lock.acquire()
    with pytest.raises(DirectoryLockedError, match=str(os.getpid())):
        DirectoryLock(tmp_path, SystemClock(), "again").acquire()
    lock.release()
    lock.release()
    with DirectoryLock(tmp_path, SystemClock(), "again"):
        assert lock_holder(tmp_path)["purpose"] == "again"


def test_a_child_that_is_executed_does_not_keep_it(lock, tmp_path):
    """The JVM and other programs started meanwhile do not inherit the lock."""
    lock.acquire()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False)
    lock.release()
    try:
        deadline_s = time.monotonic() + 60
        # The child may be in the middle of replacing itself.
        while lock_holder(tmp_path) is not None and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert lock_holder(tmp_path) is None
    finally:
        child.communicate()


def test_asking_who_holds_it_never_makes_a_run_fail(tmp_path):
    """A monitor that asks all the time takes the lock for moments; a run that starts is not refused for that."""
    stop = threading.Event()
    lock = DirectoryLock(tmp_path, SystemClock(), "flow")
    lock.acquire()
    lock.release()

    def ask():
        while not stop.is_set():
            lock_holder(tmp_path)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            with lock:
                pass
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_those_who_only_ask_are_waited_out_and_a_run_is_not(lock, tmp_path, monkeypatch):
    """Beside others that share the lock it is tried again, for a bounded time; a run's hold refuses immediately."""
    tries = []

    def shared_until_the_tenth_try(descriptor, operation):
        tries.append(operation)
        if operation & locks.fcntl.LOCK_EX and len(tries) < 30:
            raise BlockingIOError

    def always_shared(descriptor, operation):
        tries.append(operation)
        if operation & locks.fcntl.LOCK_EX:
            raise BlockingIOError

    def held(descriptor, operation):
        tries.append(operation)
        raise BlockingIOError

    monkeypatch.setattr(module, "ATTEMPT_INTERVAL_S", 0)
    for flock, calls in ((shared_until_the_tenth_try, 31), (always_shared, 3 * module.ATTEMPTS), (held, 2)):
        tries.clear()
        monkeypatch.setattr(locks.fcntl, "flock", flock)
        another = DirectoryLock(tmp_path, SystemClock(), "flow")
        with pytest.raises(DirectoryLockedError) if calls != 31 else contextlib.nullcontext():
            another.acquire()
        assert len(tries) == calls
        another.release()


@pytest.mark.parametrize("text", ["", "{", "5", "[]", "{}", '"x"', "\xff"])
def test_a_lock_file_that_says_nothing_useful(lock, tmp_path, monkeypatch, text):
    """What counts is the lock, not the text: the refusal and the holder are still reported."""
    monkeypatch.setattr(module, "NAME_ATTEMPTS", 3)
    lock.acquire()
    (tmp_path / LOCK_NAME).write_text(text)
    with pytest.raises(DirectoryLockedError, match="another process"):
        DirectoryLock(tmp_path, SystemClock(), "again").acquire()
    assert lock_holder(tmp_path) is not None
    with pytest.raises(DirectoryLockedError, match="in use by another process"):
        check_unlocked(tmp_path)


def test_a_full_disk_does_not_keep_a_run_from_locking(lock, tmp_path, monkeypatch):
    """Only the text for people is missing then."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "pwrite", full)
    lock.acquire()
    with pytest.raises(DirectoryLockedError, match="another process"):
        DirectoryLock(tmp_path, SystemClock(), "again").acquire()


def test_a_missing_directory(tmp_path):
    """Locking it is a storage error; asking for the holder finds none, and makes nothing."""
    missing = tmp_path / "missing"
    with pytest.raises(StorageError, match="No such file"):
        DirectoryLock(missing, SystemClock(), "flow").acquire()
    assert lock_holder(missing) is None
    assert lock_holder(tmp_path) is None
    assert list(Path(tmp_path).iterdir()) == []


def test_a_holder_in_another_container_is_named(tmp_path):
    """Its number means nothing here, which is no reason to take it for a dead predecessor's."""
    process = as_process_1(sys.executable, "-c", HOLD, tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                           stdin=subprocess.PIPE)  # fmt: skip
    try:
        assert process.stdout.readline() == "held\n"
        lock = DirectoryLock(tmp_path, SystemClock(), "flow here")
        began_s = time.monotonic()
        with pytest.raises(DirectoryLockedError, match=r"by process 1 on .*, in another container \(flow elsewhere\)"):
            lock.acquire()
        assert lock_holder(tmp_path)["pid"] == 1
        assert time.monotonic() - began_s < 10
    finally:
        process.kill()
        process.communicate()
