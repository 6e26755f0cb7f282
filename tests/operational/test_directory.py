"""Operational state in a recovery directory: durable, shared by many processes, never mistaken for empty."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading

import apsw
import pytest

from recovery import (
    CorruptPartitionError,
    DuplicatePartitionError,
    MissingPartitionsError,
    NoPartitionsError,
    StateLockedError,
    StateManager,
)
from recovery.operational.backends.retry import RetryPolicy
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.tables import MIGRATIONS, SCHEMA_VERSION
from recovery.storage.verify import PartitionCheck
from tests.forks import run_code
from tests.operational.support import IMPATIENT, all_of, background, forked, part_0
from tests.stores import Driver, alter, problems, query, state_at

PROCESSES = 8
UPDATES = 20
ACQUISITIONS = 100


def test_concurrent_updates_all_survive(store_dir):
    """8 processes make 20 changes each to one value: as many survive as were acknowledged, which is all."""
    code = f"""
    import sys
    from recovery import StateManager
    counter = StateManager(sys.argv[1]).process_state("n", "count")
    sys.stdin.readline()
    for _ in range({UPDATES}):
        print(counter.update(lambda n: n + 1, 0), flush=True)
    """
    processes = [background(code, store_dir) for _ in range(PROCESSES)]
    acknowledged = [int(line) for printed in all_of_started(processes) for line in printed.split()]
    assert sorted(acknowledged) == list(range(1, PROCESSES * UPDATES + 1))
    assert StateManager(store_dir).process_state("n", "count").get() == PROCESSES * UPDATES
    assert problems(store_dir) == []


def test_a_lock_is_held_by_one_process_at_a_time(store_dir, tmp_path):
    """8 processes take it 100 times each; a file that only one can make shows that no two held it at the same time."""
    code = f"""
    import os, sys
    from recovery import StateManager
    state = StateManager(sys.argv[1])
    sys.stdin.readline()
    for _ in range({ACQUISITIONS}):
        with state.lock("orders"):
            os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))
            os.unlink(sys.argv[2])
    print("done")
    """
    processes = [background(code, store_dir, tmp_path / "inside") for _ in range(PROCESSES)]
    assert all_of_started(processes) == ["done\n"] * PROCESSES


def all_of_started(processes):
    """Start all together, and wait for them."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return all_of(processes)


def test_killed_at_any_system_call(store_dir):
    """SIGKILL at any call that changes files while a value is written leaves the old one or the new one, and a sound
    file."""
    code = """
import shutil, sys
from pathlib import Path
from recovery import StateManager
from tests.stores import problems
from tests.syscalls import killed_at
origin, directory = Path(sys.argv[1]), Path(sys.argv[1] + "-killed")
StateManager(origin).process_state("n", "x").set("old")
def write():
    StateManager(directory).process_state("n", "x").set("new")
number, found = 1, set()
while True:
    shutil.copytree(origin, directory)
    killed = killed_at(write, number, changes=True)
    value = StateManager(directory).process_state("n", "x").get()
    assert value in ("old", "new"), (number, value)
    assert problems(directory) == [], number
    found.add(value)
    shutil.rmtree(directory)
    if not killed:
        assert value == "new"
        break
    number += 1
print(number, sorted(found))
"""
    done = run_code(code, store_dir, timeout_s=300)
    assert done.returncode == 0, done.stderr
    number, found = done.stdout.split(maxsplit=1)
    print("system calls tried", number)
    assert int(number) > 20
    assert found == "['new', 'old']\n"


HOLD = """
import sys
from recovery import StateManager
with StateManager(sys.argv[1]).lock("orders", "loading"):
    print("held", flush=True)
    sys.stdin.readline()
print("freed", flush=True)
"""


def test_a_lock_names_its_holder_and_is_freed_by_its_death(store_dir):
    """The error of whoever waits names its holder; SIGKILL frees it."""
    holder = background(HOLD, store_dir)
    assert holder.stdout.readline() == "held\n"
    state = StateManager(store_dir, retry=IMPATIENT)
    with pytest.raises(StateLockedError, match=rf"process {holder.pid} on .* \(loading\) held the lock 'orders'"):
        state.lock("orders").__enter__()
    with state.lock("other"):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with state.lock("orders"):
        pass


def test_interrupting_a_waiter_leaves_the_lock(store_dir):
    """Ctrl-C ends the one that waits; the holder still holds, and the next gets it afterwards."""
    holder = background(HOLD, store_dir)
    assert holder.stdout.readline() == "held\n"
    waiter = background("""
    import sys, threading
    from recovery import StateManager
    state = StateManager(sys.argv[1])
    threading.Timer(0.1, lambda: print("waiting", flush=True)).start()
    with state.lock("orders"):
        print("held", flush=True)
    """, store_dir)  # fmt: skip
    assert waiter.stdout.readline() == "waiting\n"
    waiter.send_signal(signal.SIGINT)
    printed, errors = waiter.communicate(timeout=30)
    assert (waiter.returncode, printed) == (-signal.SIGINT, "")
    assert "KeyboardInterrupt" in errors
    with pytest.raises(StateLockedError, match=str(holder.pid)):
        StateManager(store_dir, retry=IMPATIENT).lock("orders").__enter__()
    assert holder.communicate("go\n", timeout=30)[0] == "freed\n"
    with StateManager(store_dir, retry=IMPATIENT).lock("orders"):
        pass


def test_interrupting_whoever_just_got_a_lock_frees_it(store_dir, monkeypatch):
    """A process that goes on after that, such as a notebook, gets the lock in its next cell."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    state = StateManager(store_dir, retry=IMPATIENT)
    with monkeypatch.context() as patch:
        patch.setattr("recovery.operational.locks.as_holder", interrupted)
        with pytest.raises(KeyboardInterrupt):
            state.lock("orders").__enter__()
    with state.lock("orders"):
        pass


def test_a_busy_file_is_waited_for_and_its_writer_named(store_dir):
    """Another process in a transaction: the wait is bounded, and the error names that process."""
    code = """
    import apsw, sys
    connection = apsw.Connection(sys.argv[1])
    connection.execute("BEGIN IMMEDIATE")
    print("busy", flush=True)
    sys.stdin.readline()
    """
    writer = background(code, part_0(store_dir))
    assert writer.stdout.readline() == "busy\n"
    with pytest.raises(StateLockedError, match=f"process {writer.pid} held the lock of the operational state"):
        StateManager(store_dir, retry=IMPATIENT).set_hwm("k", 1)
    assert StateManager(store_dir).get_hwm("k") is None
    writer.communicate("go\n", timeout=30)
    StateManager(store_dir, retry=IMPATIENT).set_hwm("k", 1)


def test_a_write_waits_for_a_writer_that_goes(store_dir):
    """Busy waiting and retries: what is locked for a moment is no error."""
    connection = apsw.Connection(str(part_0(store_dir)))
    connection.execute("BEGIN IMMEDIATE")
    state = StateManager(store_dir, retry=RetryPolicy(busy=0.01, delays=(0.02,) * 500, jitter=0))
    going = threading.Timer(0.2, lambda: connection.execute("ROLLBACK"))
    going.start()
    state.set_hwm("k", 1)
    assert state.get_hwm("k") == 1
    going.join()
    connection.close()


def test_it_survives_a_rewind(store_dir):
    """Facts stay when the flow's state goes back; and the flow's epochs know nothing of them."""
    state = StateManager(store_dir)
    with Driver(store_dir) as run:
        for batch in range(3):
            run.apply(batch, {"key": str(batch)})
            run.close(batch)
            state.set_hwm("orders", batch)
            state.process_state("n", "x").set(batch)
    state.save_pipeline_run("p", {"n": True})
    with Driver(store_dir, resume_epoch=2):
        assert state_at(store_dir, 1) == {("count", "key"): ("0", None)}
        assert state.get_hwm("orders") == 2
        assert state.process_state("n", "x").get() == 2
        assert state.get_last_run_status("p") is True
        state.set_hwm("orders", 3)
    assert problems(store_dir) == []


def test_a_copy_of_the_partitions_has_the_operational_state(store_dir, tmp_path):
    """It is in the partitions, so whatever copies them copies it."""
    StateManager(store_dir).set_hwm("k", 1)
    for path in store_dir.glob("part-*.sqlite3"):
        apsw.Connection(str(path)).execute("VACUUM INTO ?", (str(tmp_path / path.name),)).fetchall()
    assert StateManager(tmp_path).get_hwm("k") == 1


DAMAGE = {
    "content": "UPDATE states SET content = replace(content, '5', '6')",
    "id": "UPDATE states SET state_id = state_id || 'x'",
    "generation": "UPDATE states SET generation = generation + 1",
    "time": "UPDATE states SET changed_ms = changed_ms + 1",
    "removal": "UPDATE states SET content = NULL",
    "row": "DELETE FROM states",
    "digest": "UPDATE states SET digest = digest + 1",
}


@pytest.mark.parametrize("sql", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_an_error_and_never_an_empty_state(store_dir, sql):
    """Whatever part of a row was altered, or all of it: nothing is read, nothing is written, and verify tells."""
    state = StateManager(store_dir)
    state.set_hwm("k", 5)
    alter(part_0(store_dir), sql)
    unknown = state.process_state("never", "set")
    for use in (lambda: state.get_hwm("k"), lambda: state.set_hwm("k", 9), state.list_runs, unknown.get):
        with pytest.raises(CorruptPartitionError):
            use()
    assert PartitionCheck(part_0(store_dir)).run().problems


def test_lost_totals_are_damage(store_dir):
    """The row that says how many there are protects from losing rows; its own loss is reported."""
    state = StateManager(store_dir)
    state.set_hwm("k", 5)
    alter(part_0(store_dir), "DELETE FROM totals")
    with pytest.raises(CorruptPartitionError, match="totals"):
        state.set_hwm("k", 6)
    assert PartitionCheck(part_0(store_dir)).run().problems == ("the row of totals is missing or damaged",)


def downgrade(directory) -> None:
    """Make the files those of version 1: without the tables of operational state."""
    for path in directory.glob("part-*.sqlite3"):
        newer = ("states", "totals", "sizes", "measures", "changes", "logged", "beginning")
        alter(path, "".join(f"DROP TABLE {table}; " for table in newer) + "PRAGMA user_version = 1")


def test_files_of_version_1_are_read_and_brought_forward(store_dir):
    """Reading changes nothing; the first write adds what is missing; a flow's state stays what it was."""
    with Driver(store_dir) as run:
        run.apply(0, {"key": "1", "other": "2"})
        run.close(0)
    downgrade(store_dir)
    before = state_at(store_dir, 1)
    state = StateManager(store_dir)
    assert state.get_hwm("k") is None
    assert state.list_runs() == []
    assert problems(store_dir) == []
    assert query(part_0(store_dir), "PRAGMA user_version") == [(1,)]
    state.set_hwm("k", 1)
    assert query(part_0(store_dir), "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert query(store_dir / "part-1.sqlite3", "PRAGMA user_version") == [(1,)]
    with Driver(store_dir) as run:
        run.apply(1, {"key": "3"})
        run.close(1)
    assert query(store_dir / "part-1.sqlite3", "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert state_at(store_dir, 1) == before
    assert StateManager(store_dir).get_hwm("k") == 1
    assert problems(store_dir) == []


def test_two_processes_bring_a_file_forward_concurrently(store_dir):
    """The second finds it done."""
    downgrade(store_dir)
    code = """
    import sys
    from recovery import StateManager
    state = StateManager(sys.argv[1])
    sys.stdin.readline()
    state.set_hwm(sys.argv[2], 1)
    """
    processes = [background(code, store_dir, name) for name in "abcd"]
    all_of_started(processes)
    assert [mark.key for mark in StateManager(store_dir).list_hwms()] == list("abcd")


def test_there_is_a_migration_from_every_version():
    """Files of all versions that ever were can be brought forward."""
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))


def test_a_directory_without_partitions(tmp_path, store_dir):
    """Nothing is made where nothing was; the error names a lost or renamed file."""
    with pytest.raises(NoPartitionsError, match="no such directory"):
        StateManager(tmp_path / "missing")
    with pytest.raises(NoPartitionsError, match="holds no recovery partition"):
        StateManager(tmp_path)
    assert list(tmp_path.iterdir()) == []
    state = StateManager(store_dir)
    part_0(store_dir).unlink()
    with pytest.raises(MissingPartitionsError, match=r"part-0\.sqlite3"):
        state.get_hwm("k")
    shutil.copy(store_dir / "part-1.sqlite3", part_0(store_dir))
    with pytest.raises(DuplicatePartitionError, match=r"part-1\.sqlite3"):
        state.get_hwm("k")
    with pytest.raises(DuplicatePartitionError):
        state.set_hwm("k", 1)


def test_a_forked_process_does_not_keep_a_lock(store_dir):
    """It has the file open for as long as it lives; who took the lock gives it back all the same."""
    state = StateManager(store_dir, retry=RetryPolicy(busy=0, delays=()))
    reading, writing = os.pipe()
    try:
        with state.lock("orders"):
            child = os.fork()
            if not child:
                os.read(reading, 1)
                os._exit(0)
        with state.lock("orders"):
            pass
    finally:
        os.write(writing, b"!")
        os.waitpid(child, 0)


def test_a_forked_process_uses_it_like_any_other(store_dir):
    """No connection is open between two calls that it could inherit."""
    state = StateManager(store_dir)
    state.set_hwm("parent", 1)

    def work() -> int:
        state.set_hwm("child", 2)
        return StateManager(store_dir).get_hwm("parent")

    assert forked(work) == "1"
    assert state.get_hwm("child") == 2


def test_a_process_that_was_forked_in_the_middle_of_a_call_is_refused(store_dir):
    """SQLite would take the parent's locks for its own, and lose what it writes. Files that were not open, and those of
    a process that was not forked then, are used as ever."""
    state = StateManager(store_dir)

    def work() -> int:
        StateManager(store_dir).set_hwm("child", 2)
        return 2

    said = state.process_state("n", "x").update(lambda _: forked(work))
    assert said.startswith("StorageError:")
    assert "part-0.sqlite3" in said
    assert 'get_context("spawn")' in said
    with contextlib.closing(open_partition(part_0(store_dir), "rw")):
        assert forked(work).startswith("StorageError:")
    assert forked(work) == "2"
    assert state.get_hwm("child") == 2
    assert state.process_state("n", "x").get() == said
