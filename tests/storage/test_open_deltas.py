"""Deltas that a process keeps open between small tasks: the same state as by fresh ones, and let go in time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from recovery.base.clock import SystemClock
from recovery.errors import LeaseLostError
from recovery.storage.deltas import open_deltas as kept_module
from recovery.storage.deltas.delta import Delta
from recovery.storage.deltas.lifeline import Lifeline, hold
from recovery.storage.deltas.open_deltas import KeptDeltas, kept
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount
from recovery.storage.sqlite.file import forked
from recovery.storage.sqlite.file.connections import connect
from tests.forks import Forked
from tests.stores import STEP, Driver, pack, paths_of, state_at

WORKER = """
import sys
from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.storage.reach import reach
from tests.stores import STEP, pack
from recovery.storage.seam import BatchCount
address = sys.stdin.readline().strip()
for line in sys.stdin:
    batch = int(line)
    task, count = reach(address, keep=True)
    try:
        for index in range(count):
            before = task.read(STEP, batch, {index: ("a",)})[index]
            changes = [pack({"a": str(int(before[0] or 0) + 1)})]
            task.apply(STEP, batch, {index: changes}, BatchCount(1, 1))
        said = "done"
    except Exception as error:
        said = type(error).__name__
    finally:
        task.release()
    print(said, flush=True)
"""


class Worker:
    """Another process, with tasks of its own that keep their deltas."""

    def __init__(self, address: str) -> None:
        self.process = Forked(["-c", WORKER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._tell(address)

    def batch(self, number: int) -> str:
        """Run the tasks of a micro-batch; what came of it."""
        self._tell(str(number))
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def open_below(self, directory: Path) -> list[str]:
        """The files of a directory that the process has open."""
        found = []
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if link.readlink().is_relative_to(directory.resolve()):
                    found.append(str(link.readlink()))
        return found

    def _tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are looked up in /proc")


@needs_proc
def test_a_worker_lets_go_when_the_run_ends(store_dir):
    """It lives on, as Spark's workers do, and has nothing of the directory open: no log stays behind."""
    with Driver(store_dir) as run, Worker(run.store.address(run.lease)) as worker:
        for number in range(4):
            run.store.open(run.lease, number)
            assert worker.batch(number) == "done"
            if number == 1:
                run.close(1)
        assert len(worker.open_below(store_dir)) >= 4
        run.close(3)
        run.store.release()
        assert worker.open_below(store_dir) == []
        assert [path.name for path in store_dir.iterdir() if path.name.endswith(("-wal", "-shm"))] == []
        assert worker.batch(4) == "LeaseLostError"
        assert worker.open_below(store_dir) == []
    assert state_at(store_dir, 2)[STEP, "a"] == ("4", None)


@needs_proc
def test_a_worker_lets_go_when_the_driver_is_killed(store_dir):
    """Nothing announces the end then but the end of the connection."""
    code = (
        "import sys; from pathlib import Path; from tests.stores import Driver\n"
        "run = Driver(Path(sys.argv[1])); print(run.store.address(run.lease), flush=True); sys.stdin.read()"
    )
    driver = Forked(["-c", code, store_dir], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert driver.stdout
    with Worker(driver.stdout.readline().strip()) as worker:
        assert worker.batch(0) == "done"
        assert worker.open_below(store_dir)
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
        waited = threading.Event()
        for _ in range(200):
            if not worker.open_below(store_dir):
                break
            waited.wait(0.05)
        assert worker.open_below(store_dir) == []


def test_a_kept_one_is_taken_again(store_dir):
    """The same connection, as long as nobody else has it."""
    with Driver(store_dir) as run:
        address = run.store.address(run.lease)
        first, _ = reach(address, keep=True)
        first.apply(STEP, 0, {0: [pack({"a": "1"})]}, BatchCount(1, 1))
        [delta] = first._deltas.values()
        first.release()
        second, _ = reach(address, keep=True)
        assert second.read(STEP, 1, {0: ("a",)})[0] == ["1"]
        third, _ = reach(address, keep=True)
        assert third.read(STEP, 1, {0: ("a",)})[0] == ["1"]
        assert list(second._deltas.values()) == [delta]
        assert list(third._deltas.values()) != [delta]
        second.release()
        third.release()


def test_not_after_its_files_are_gone(store_dir):
    """SQLite would go on with a file that has no name any more."""
    with Driver(store_dir) as run:
        address = run.store.address(run.lease)
        task, _ = reach(address, keep=True)
        task.apply(STEP, 0, {0: [pack({"a": "1"})]}, BatchCount(1, 1))
        [path] = [delta.path for delta in task._deltas.values()]
        task.release()
        path.unlink()
        late, _ = reach(address, keep=True)
        with pytest.raises(LeaseLostError, match="is gone"):
            late.read(STEP, 1, {0: ("a",)})[0]
        late.release()


def test_deltas_of_a_replaced_partition_are_not_reused(store_dir):
    """What lies below a delta is another file then."""
    with Driver(store_dir) as run:
        address = run.store.address(run.lease)
        task, _ = reach(address, keep=True)
        assert task.read(STEP, 0, {0: ("a",)})[0] == [None]
        [delta] = task._deltas.values()
        task.release()
        path = paths_of(store_dir)[0]
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
        assert not delta.is_current()
        assert kept.take(delta.path) is None


def test_not_after_an_error(store_dir):
    """Whatever state it was left in."""
    with Driver(store_dir) as run:
        run.store.open(run.lease, 5)
        task, _ = reach(run.store.address(run.lease), keep=True)
        with pytest.raises(LeaseLostError, match="is over"):
            task.read(STEP, 4, {0: ("a",)})[0]
        [path] = [delta.path for delta in task._deltas.values()]
        task.release()
        assert kept.take(path) is None


def test_only_so_many(make_store, monkeypatch):
    """Those used last; a task of more partitions than may be open gives the first ones back meanwhile."""
    monkeypatch.setattr(kept_module, "MOST_KEPT", 2)
    monkeypatch.setattr("recovery.storage.sqlite.task_store.MOST_KEPT", 2)
    with Driver(make_store(5)) as run:
        for number in range(3):
            task, count = reach(run.store.address(run.lease), keep=True)
            for index in range(count):
                assert task.read(STEP, number, {index: ("a",)})[index] == [str(number - 1) if number else None]
                assert len(task._deltas) <= 2
            for index in range(count):
                task.apply(STEP, number, {index: [pack({"a": str(number)})]}, BatchCount(1, 1))
            task.release()
            assert len(kept._deltas) == 2


def line_of(run: Driver) -> str:
    line: str = json.loads(run.store.address(run.lease))["line"]
    return line


def given(deltas: KeptDeltas, run: Driver, index: int = 0) -> Delta:
    """The delta of a partition, which a task used and gave to `deltas`."""
    task, _ = reach(run.store.address(run.lease))
    assert task.read(STEP, 0, {index: ("a",)})[index] == [None]
    [delta] = task._deltas.values()
    deltas.give(delta, line_of(run))
    return delta


def is_open(delta: Delta) -> bool:
    try:
        return delta.read(0, ("a",)) == [None]
    except apsw.ConnectionClosedError:
        return False


def test_tasks_of_two_executions_take_turns(make_store, monkeypatch):
    """Each finds its own delta again, and the process holds two lines, however often they do."""
    lines = []

    def counted(line: str, let_go: Callable[[], None]) -> bool:
        lines.append(line)
        return hold(line, let_go)

    monkeypatch.setattr(kept_module, "hold", counted)
    with Driver(make_store(1)) as one, Driver(make_store(1)) as two:
        used = []
        for number in range(4):
            for run in (one, two):
                task, _ = reach(run.store.address(run.lease), keep=True)
                task.apply(STEP, number, {0: [pack({"a": str(number)})]}, BatchCount(1, 1))
                used += task._deltas.values()
                task.release()
        assert used == used[:2] * 4
        assert lines == [line_of(one), line_of(two)]


def test_an_execution_that_ends_takes_its_own_along(make_store):
    """Another one that goes on has its deltas kept."""
    deltas = KeptDeltas()
    with Driver(make_store(1)) as other:
        with Driver(make_store(1)) as run:
            ended, kept_on = given(deltas, run), given(deltas, other)
        assert not is_open(ended)
        assert deltas.take(ended.path) is None
        assert is_open(kept_on)
        assert deltas.take(kept_on.path) is kept_on
        deltas.give(kept_on, line_of(other))
    assert not is_open(kept_on)


def test_an_error_on_closing_is_no_concern_of_others(make_store, monkeypatch):
    """Neither of the task that gives another one back, nor of what is closed next."""
    monkeypatch.setattr(kept_module, "MOST_KEPT", 2)
    deltas, close, failed = KeptDeltas(), Delta.close, []

    def failing(delta: Delta) -> None:
        close(delta)
        if delta in given_ones[:2]:
            failed.append(delta)
            raise apsw.IOError("as on a bad disk")

    given_ones: list[Delta] = []
    with Driver(make_store(3)) as run:
        monkeypatch.setattr(Delta, "close", failing)
        for index in range(3):
            given_ones.append(given(deltas, run, index))
        assert failed == given_ones[:1], "the third takes the place of the first"
        assert is_open(given_ones[2])
    assert failed == given_ones[:2]
    assert not is_open(given_ones[2])


def test_nothing_is_kept_without_a_thread_to_let_go(store_dir, monkeypatch):
    """The task has finished all the same, and nothing is left open: neither its delta nor a socket."""
    deltas, begun = KeptDeltas(), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "lifeline":
            raise RuntimeError("can't start new thread")
        begun(thread)

    with Driver(store_dir) as run:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert not is_open(given(deltas, run))
            line = Lifeline("threadless", SystemClock())
            assert line.address
            assert not hold(line.address, lambda: None)
            line.admit()
            assert line._holders == []
            line.close()
        assert is_open(given(deltas, run))


def test_nothing_is_kept_for_a_run_that_cannot_be_reached(store_dir):
    """As on another machine: what nobody would close is closed."""
    deltas = KeptDeltas()
    with Driver(store_dir) as run:
        task, _ = reach(run.store.address(run.lease), keep=True)
        assert task.read(STEP, 0, {0: ("a",)})[0] == [None]
        [delta] = task._deltas.values()
        task._deltas.clear()
        deltas.give(delta, str(store_dir / "no-such-line"))
        assert deltas.take(delta.path) is None
        with pytest.raises(apsw.ConnectionClosedError):
            delta.read(0, ("a",))


@needs_proc
def test_workers_that_came_and_went_take_no_place(store_dir, monkeypatch):
    """More of them than can wait to be seen, over the micro-batches of a run: the next one keeps its deltas."""
    monkeypatch.setattr("recovery.storage.deltas.lifeline.MOST_WAITING", 1)
    with Driver(store_dir) as run:
        for number in range(4):
            run.store.open(run.lease, number)
            with Worker(run.store.address(run.lease)) as worker:
                assert worker.batch(number) == "done"
                assert worker.open_below(store_dir)
        with Worker(run.store.address(run.lease)) as worker:
            for number in (4, 5):
                run.store.open(run.lease, number)
                assert worker.batch(number) == "done"
                assert worker.open_below(store_dir)
            run.store.release()
            assert worker.open_below(store_dir) == []


def test_who_has_ended_is_forgotten():
    """Who goes on learns of the end, and is waited for."""
    line = Lifeline("admitted", SystemClock())
    assert line.address
    let_go, gone = threading.Event(), []

    def slowly() -> None:
        threading.Event().wait(0.2)
        let_go.set()

    assert hold(line.address, slowly)
    for _ in range(3):
        gone.append(socket.socket(socket.AF_UNIX))
        gone[-1].connect(line.address)
    line.admit()
    assert len(line._holders) == 4
    for each in gone:
        each.close()
    with socket.socket(socket.AF_UNIX) as another:
        another.connect(line.address)
        line.admit()
        assert len(line._holders) == 2
    assert not let_go.is_set()
    line.close()
    assert let_go.is_set()


def test_where_sockets_need_files(tmp_path, monkeypatch):
    """One is among the temporary files, while it is there; or there is none, and nothing is kept."""
    monkeypatch.setattr("sys.platform", "darwin")
    with tempfile.TemporaryDirectory(prefix="r-") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        line = Lifeline("x", SystemClock())
        assert line.address
        assert Path(line.address).is_relative_to(short)
        let_go = threading.Event()
        assert hold(line.address, let_go.set)
        line.close()
        assert let_go.wait(10)
        assert list(Path(short).iterdir()) == []
    long = tmp_path / ("x" * 120)
    long.mkdir()
    for nowhere in (long, tmp_path / "missing"):
        monkeypatch.setattr("tempfile.tempdir", str(nowhere))
        line = Lifeline("x", SystemClock())
        assert line.address is None
        line.close()
    assert list(long.iterdir()) == []


def test_a_name_that_is_taken():
    """Each has an address of its own."""
    first, second = Lifeline("same", SystemClock()), Lifeline("same", SystemClock())
    assert first.address
    assert second.address
    assert first.address != second.address
    let_go = [threading.Event(), threading.Event()]
    assert hold(first.address, let_go[0].set)
    assert hold(second.address, let_go[1].set)
    first.close()
    assert let_go[0].wait(10)
    assert not let_go[1].is_set()
    second.close()
    assert let_go[1].wait(10)


def test_who_does_not_let_go_is_not_waited_for_long(monkeypatch):
    """The run ends all the same."""
    monkeypatch.setattr("recovery.storage.deltas.lifeline.WAIT_S", 0.05)
    line = Lifeline("slow", SystemClock())
    go_on, called = threading.Event(), threading.Event()

    def let_go() -> None:
        called.set()
        go_on.wait(10)

    assert line.address
    assert hold(line.address, let_go)
    line.close()
    assert called.wait(10)
    go_on.set()
    assert not hold(line.address, let_go)


def test_the_files_that_were_opened_last_come_first(store_dir, monkeypatch):
    """An error that nobody expects is most probably theirs; of very many, those that were opened long ago are
    forgotten."""
    monkeypatch.setattr(forked, "_paths", OrderedDict())
    first, second = paths_of(store_dir)
    for path in (first, second, first):
        connect(path, "ro").close()
    assert list(forked.opened_paths()) == [first, second]
    monkeypatch.setattr(forked, "MOST_PATHS", 1)
    connect(second, "ro").close()
    assert first not in forked.opened_paths()
