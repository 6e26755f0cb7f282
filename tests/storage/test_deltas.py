"""The seam between tasks and storage: what a task reads and writes, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import threading

import apsw
import pytest

from recovery.errors import CorruptPartitionError, LeaseLostError, StorageError
from recovery.storage.deltas import delta as deltas
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from recovery.values.keys import encode_key, partition_of
from tests.stores import STEP, Driver, alter, pack, problems, query, state_at


def test_reads_of_an_empty_store_give_none_in_the_order_of_the_keys(store_dir):
    """A key without state reads as None; the answers stand in the order of the keys, repeated ones included."""
    with Driver(store_dir) as run:
        keys = tuple(k for k in map(str, range(50)) if partition_of(k, 2) == 0)
        run.apply(0, {key: key for key in keys[::2]})
        task = run.task()
        asked = (*reversed(keys), keys[0], keys[0])
        assert task.read(STEP, 0, {0: asked})[0] == [None] * len(asked)
        assert task.read(STEP, 1, {0: asked})[0] == [key if key in keys[::2] else None for key in asked]
        assert task.read(STEP, 1, {0: ()})[0] == []
        task.release()


@pytest.mark.parametrize("closed", [False, True], ids=["in the delta", "in the snapshot"])
def test_a_batch_reads_the_states_before_it_even_when_it_was_applied(store_dir, closed):
    """A task that runs again sees what its first attempt saw, wherever the earlier state lies."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "2"})
        if closed:
            run.close(0)
        run.apply(1, {"a": "10", "b": None, "c": "30"})
        assert run.read(1, "abc") == {"a": "1", "b": "2", "c": None}
        assert run.read(2, "abc") == {"a": "10", "b": None, "c": "30"}


def test_applying_a_batch_again_restores_timeouts_too(store_dir):
    """A key that the second attempt leaves out has the timeout back that it had before."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": ("1", 10), "b": ("1", None)}, partitions=(0, 1))
        run.apply(1, {"a": ("2", 99), "b": ("2", 99)}, partitions=(0, 1))
        run.apply(1, {}, partitions=(0, 1))
        assert run.due(2, 100) == ["a"]
        assert run.store.next_due_ms(run.lease) == 10
        run.close(1)
        assert state_at(store_dir, 1) == {(STEP, "a"): ("1", 10), (STEP, "b"): ("1", None)}


@pytest.mark.parametrize("closed", [False, True], ids=["in the delta", "in the snapshot"])
def test_applying_a_batch_again_replaces_it_whole(store_dir, closed):
    """What the first attempt wrote and the second leaves out is undone; nothing is counted twice."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "2", "c": "3"}, partitions=(0, 1))
        if closed:
            run.close(0)
        run.apply(1, {"a": "10", "b": "20", "c": None, "d": "40"}, partitions=(0, 1))
        run.apply(1, {"b": "21", "e": "50"}, partitions=(0, 1))
        expected = {"a": "1", "b": "21", "c": "3", "d": None, "e": "50"}
        assert run.read(1, "abcde") == {"a": "1", "b": "2", "c": "3", "d": None, "e": None}
        assert run.read(2, "abcde") == expected
        assert run.store.counts(run.lease, 1)[:2] == (2, 2)
        run.close(1)
        held = {(STEP, key): (text, None) for key, text in expected.items() if text is not None}
        assert state_at(store_dir, run.epoch - 1) == held
        assert problems(store_dir) == []


def test_an_apply_that_fails_halfway_leaves_nothing(store_dir):
    """The changes of a task are one transaction: when their source fails, the state before remains."""

    def broken():
        yield Changes(("1\x1fa",), False)
        raise RuntimeError("the spool is gone")

    with Driver(store_dir) as run:
        index = partition_of("a", 2)
        task = run.task()
        with pytest.raises(RuntimeError, match="the spool is gone"):
            task.apply(STEP, 0, {index: broken()}, BatchCount(1, 1))
        assert task.read(STEP, 1, {index: ("a",)})[index] == [None]
        task.apply(STEP, 0, {index: [pack({"a": "2"})]}, BatchCount(1, 1))
        assert task.read(STEP, 1, {index: ("a",)})[index] == ["2"]
        task.release()


def test_a_key_that_comes_twice_in_one_apply_keeps_its_state_before(store_dir):
    """The later of two changes counts, and what stood before the batch is still read."""
    with Driver(store_dir) as run:
        index = partition_of("a", 2)
        run.apply(0, {"a": "1"})
        run.close(0)
        task = run.task()
        for batch, closed in ((1, "1"), (2, "3")):
            task.apply(STEP, batch, {index: [pack({"a": ("2", 20)}), pack({"a": ("3", 30)})]}, BatchCount(2, 1))
            assert task.read(STEP, batch, {index: ("a",)})[index] == [closed]
            assert task.due(STEP, batch, [index], 25)[index] == []
            assert task.read(STEP, batch + 1, {index: ("a",)})[index] == ["3"]
            assert task.due(STEP, batch + 1, [index], 30)[index] == ["a"]
        task.release()
        run.close(1)
        assert state_at(store_dir, 2) == {(STEP, "a"): ("3", 30)}


ONE_LENGTH = {
    "one byte each": ["key-1", "key-2", "key-3"],
    "of one and more bytes": ["aé", "日本", "😀\x1f"],
    "one character": ["a", "é", "😀"],
}


@pytest.mark.parametrize("keys", ONE_LENGTH.values(), ids=ONE_LENGTH)
def test_keys_of_one_length_need_nothing_between_them_and_their_values(make_store, keys):
    """Reading by length gives what reading by separator gives: states, discarded keys, and an apply that comes
    again. Values are longer than their characters, too."""
    length = len(keys[0])

    def in_one(changes):
        return Changes(tuple(key + (value or "") for key, value in changes.items()), False, length)

    with Driver(make_store(1)) as run:
        task = run.task()
        for batch, form in enumerate((pack, in_one) * 2):
            first = dict.fromkeys(keys, f'"ü{batch}"') | {keys[1]: None}
            task.apply(STEP, batch, {0: [in_one(dict.fromkeys(keys, "0"))]}, BatchCount(3, 3))
            task.apply(STEP, batch, {0: [form(first)]}, BatchCount(3, 3))
            assert task.read(STEP, batch + 1, {0: tuple(keys)})[0] == list(first.values())
            task.apply(STEP, batch, {0: [form({keys[0]: "1"})]}, BatchCount(1, 1))
            later = [None, None] if batch == 0 else [None, f'"é{batch - 1}"']
            assert task.read(STEP, batch + 1, {0: tuple(keys)})[0] == ["1", *later]
            task.apply(STEP, batch, {0: [form({keys[2]: f'"é{batch}"', keys[0]: "1"})]}, BatchCount(2, 2))
        task.release()
        run.close(3)
        assert state_at(run.directory, 1) == {(STEP, keys[0]): ("1", None), (STEP, keys[2]): ('"é3"', None)}
        assert problems(run.directory) == []


def test_closing_as_of_a_batch_takes_the_value_before_a_later_one(store_dir):
    """Rows of a micro-batch that is already under way count with their state before it, and stay in the delta."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "2", "gone": "3"})
        run.close(0)
        run.apply(1, {"a": "10", "gone": None})
        run.apply(2, {"a": "100", "b": "200", "c": "300", "gone": "4"})
        run.close(1)
        assert state_at(store_dir, 2) == {(STEP, "a"): ("10", None), (STEP, "b"): ("2", None)}
        assert run.read(2, ["a", "b", "c", "gone"]) == {"a": "10", "b": "2", "c": None, "gone": None}
        assert run.read(3, ["a", "b", "c", "gone"]) == {"a": "100", "b": "200", "c": "300", "gone": "4"}
        run.apply(2, {"a": "101"}, partitions=(0, 1))
        assert run.read(3, ["a", "b", "c", "gone"]) == {"a": "101", "b": "2", "c": None, "gone": None}
        run.close(2)
        assert state_at(store_dir, 3) == {(STEP, "a"): ("101", None), (STEP, "b"): ("2", None)}
        assert problems(store_dir) == []


def test_closing_as_of_a_batch_takes_the_timeout_before_a_later_one(store_dir):
    """A timeout belongs to its value: the one that a later micro-batch set comes with the later epoch."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": ("1", 10), "b": ("1", None), "c": ("1", 30)})
        run.apply(1, {"a": ("2", 20), "b": ("2", 20), "c": ("2", None)})
        run.close(0)
        assert state_at(store_dir, 1) == {(STEP, "a"): ("1", 10), (STEP, "b"): ("1", None), (STEP, "c"): ("1", 30)}
        assert run.due(1, 30) == ["a", "c"]
        assert run.due(2, 30) == ["a", "b"]
        run.close(1)
        assert state_at(store_dir, 2) == {(STEP, "a"): ("2", 20), (STEP, "b"): ("2", 20), (STEP, "c"): ("2", None)}
        assert problems(store_dir) == []


def test_a_batch_older_than_the_one_before_the_newest_cannot_be_closed_as_of(store_dir):
    """A row keeps one value before its newest, so an older cut is refused loudly instead of guessed."""
    with Driver(store_dir) as run:
        for batch in range(3):
            run.apply(batch, {"a": str(batch)})
        with pytest.raises(AssertionError, match="not known any more"):
            run.close(0)
        assert state_at(store_dir, 1) == {}


def test_late_tasks_are_refused_inside_their_transaction(store_dir):
    """A task of a closed, an earlier or an already overtaken batch, or of another execution, writes nothing."""
    with Driver(store_dir) as run:
        run.store.open(run.lease, 0)
        run.apply(0, {"a": "1"})
        run.close(0)
        with pytest.raises(LeaseLostError, match="micro-batch 0 is over"):
            run.apply(0, {"a": "2"})
        with pytest.raises(LeaseLostError, match="micro-batch 0 is over"):
            run.read(0, ["a"])
        run.apply(1, {"a": "3"})
        run.store.open(run.lease, 2)
        with pytest.raises(LeaseLostError, match="micro-batch 1 is over"):
            run.apply(1, {"a": "4"})
        run.apply(3, {"a": "5"})  # a stage of a later micro-batch may run early
        with pytest.raises(LeaseLostError, match="micro-batch 2 is over"):
            run.apply(2, {"a": "6"})
        zombie, _ = reach(json.dumps(json.loads(run.store.address(run.lease)) | {"id": "another"}))
        with pytest.raises(LeaseLostError, match="may not write any more"):
            zombie.apply(STEP, 4, {partition_of("a", 2): [pack({"a": "7"})]}, BatchCount(1, 1))
        zombie.release()
        assert run.read(4, ["a"]) == {"a": "5"}


def test_the_fence_holds_for_a_task_that_waits_for_its_lock(store_dir):
    """A task that began before the closer and gets the write lock after it is refused: it checks inside."""
    with Driver(store_dir) as run:
        index = partition_of("a", 2)
        run.apply(0, {"a": "1"})
        # Two attempts hold their connections open already, as tasks do between their reads and their apply.
        late = run.task()
        late.read(STEP, 0, {index: ("a",)})[index]
        blocker = apsw.Connection(str(run.store._deltas[STEP][index].path))
        blocker.execute("BEGIN IMMEDIATE")
        outcome: list[BaseException | None] = []

        def apply_late():
            try:
                late.apply(STEP, 0, {index: [pack({"a": "2"})]}, BatchCount(1, 1))
                outcome.append(None)
            except LeaseLostError as error:
                outcome.append(error)

        thread = threading.Thread(target=apply_late)
        thread.start()
        blocker.execute("UPDATE meta SET closed_batch = 0")
        blocker.execute("COMMIT")
        blocker.close()
        thread.join()
        late.release()
        assert isinstance(outcome[0], LeaseLostError)


def test_a_task_of_a_removed_execution_is_refused(store_dir):
    """When a successor has removed the scratch files, a late task that opens them gets LeaseLostError."""
    run = Driver(store_dir)
    address = run.store.address(run.lease)
    run.store.release()
    task, count = reach(address)
    assert count == 2
    with pytest.raises(LeaseLostError, match="is gone"):
        task.read(STEP, 0, {0: ("a",)})[0]
    task.release()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "plain",
        'it\'s "quoted"; DROP TABLE touched; --',
        "naïve 😀 \u202e right to left",
        "tab\tand\nnewline\rand\x1funit separator\x1f",
        encode_key(None),
        encode_key("nul \0 and \u2400"),
        "k" * 10_240,
        "12",
        "012",
        "1e3",
        "NULL",
    ],
    ids=repr,
)
@pytest.mark.parametrize("timeout", [None, 5], ids=["plain", "with timeouts"])
def test_keys_are_kept_as_they_are(store_dir, key, timeout):
    """Whatever a key holds, it comes back under itself, from the delta and from the snapshot."""
    other = key + "x"
    with Driver(store_dir) as run:
        run.apply(0, {key: ("1", timeout), other: ("2", timeout)} if timeout else {key: "1", other: "2"})
        assert run.read(1, [key, other]) == {key: "1", other: "2"}
        run.close(0)
        assert run.read(1, [key, other]) == {key: "1", other: "2"}
        assert state_at(store_dir, 1) == {(STEP, key): ("1", timeout), (STEP, other): ("2", timeout)}
        assert problems(store_dir) == []


@pytest.mark.parametrize(
    "text",
    [
        "null", "true", "0", "-1", "123456789012345678901234567890", "1e400", "1.0", "-0.0", '""', '"\\u0000\\u001f"',
        '"😀\u2400\x7f"', "[]", "{}", '{"a":[1,2.5,null,{"b":"\'"}]}', '"' + "v" * 100_000 + '"', "0x10", "Infinity",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_values_are_kept_as_the_same_text(store_dir, text):
    """Every kind of JSON comes back as it was written: SQLite turns none of it into a number."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": text, "b": (text, 7)})
        assert run.read(1, "ab") == {"a": text, "b": text}
        run.close(0)
        run.apply(1, {"a": "9", "b": "9"})
        run.close(1)
        assert state_at(store_dir, 1) == {(STEP, "a"): (text, None), (STEP, "b"): (text, 7)}
    with Driver(store_dir, resume_epoch=2) as run:
        assert run.read(1, "ab") == {"a": text, "b": text}
        assert problems(store_dir) == []


def test_discarding_a_key_leaves_no_row_behind(store_dir):
    """A discarded key is no row of the snapshot, not one that says NULL, and nothing of it stays when collected."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "2"})
        run.close(0)
        run.apply(1, {"a": None, "never there": None})
        run.close(1)
        assert state_at(store_dir, 2) == {(STEP, "b"): ("2", None)}
        run.close(1, floor=2)
        kept = [row for path in run.store.paths for row in query(path, "SELECT state_key FROM snaps")]
        kept += [row for path in run.store.paths for row in query(path, "SELECT state_key FROM superseded")]
        assert kept == [("b",)]


class TestTimeouts:
    """Which keys are due, and when the next one will be."""

    def test_due_keys_are_those_whose_timeout_passed_before_the_batch(self, store_dir):
        """From the snapshot and from the delta, up to and including the moment asked for, sorted."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": ("1", 10), "b": ("1", 20), "never": ("1", None)})
            assert run.store.next_due_ms(run.lease) == 10
            run.close(0)
            assert run.store.next_due_ms(run.lease) == 10
            run.apply(1, {"c": ("1", 15), "😀": ("1", 12)})
            assert run.due(2, 9) == []
            assert run.due(2, 10) == ["a"]
            assert run.due(2, 14) == ["a", "😀"]
            assert run.due(2, 20) == ["a", "b", "c", "😀"]

    def test_a_later_touch_overrides_the_timeout(self, store_dir):
        """A key that was touched since is due by its new timeout alone, and a discarded one never."""
        with Driver(store_dir) as run:
            run.apply(0, {"moved": ("1", 10), "cleared": ("1", 10), "gone": ("1", 10), "kept": ("1", 10)})
            run.close(0)
            run.apply(1, {"moved": ("1", 30), "cleared": ("1", None), "gone": None})
            assert run.due(2, 20) == ["kept"]
            assert run.due(2, 30) == ["kept", "moved"]
            run.apply(2, {"kept": ("1", 50)})
            assert run.store.next_due_ms(run.lease) == 30
            run.close(2)
            assert run.store.next_due_ms(run.lease) == 30
            assert run.due(3, 100) == ["kept", "moved"]

    @pytest.mark.parametrize("closed", [False, True], ids=["in the delta", "in the snapshot"])
    def test_a_batch_that_runs_again_finds_the_same_keys_due(self, store_dir, closed):
        """What the first attempt rearmed is due again for the second."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": ("1", 10), "b": ("1", 11), "c": ("1", 99)})
            if closed:
                run.close(0)
            before = run.due(1, 20)
            run.apply(1, {"a": ("2", 90), "b": None, "new": ("1", 5)})
            assert run.due(1, 20) == before == ["a", "b"]
            assert run.due(2, 20) == ["new"]

    def test_no_timeout_means_none(self, store_dir):
        """Without any timeout nothing is due, ever."""
        with Driver(store_dir) as run:
            assert run.store.next_due_ms(run.lease) is None
            run.apply(0, {"a": "1"})
            run.close(0)
            assert run.store.next_due_ms(run.lease) is None
            assert run.due(1, 1 << 62) == []


def test_readers_do_not_see_a_gap_while_an_epoch_is_closed(store_dir):
    """Reads that run beside closing see each state in the delta or in the snapshot, never in neither."""
    with Driver(store_dir) as run:
        index = partition_of("a", 2)
        failures: list[object] = []
        stop = threading.Event()

        def read():
            task = run.task()
            while not stop.is_set():
                [found] = task.read(STEP, 1_000_000, {index: ("a",)})[index]
                # The key is there from the first batch on, and its number never goes down.
                if found is None or int(found) < read.seen:
                    failures.append((read.seen, found))
                    return
                read.seen = int(found)
            task.release()

        read.seen = 0
        run.apply(0, {"a": "0"})
        thread = threading.Thread(target=read)
        thread.start()
        batch = 0
        # Until a reader that seldom has its turn has seen a change.
        while batch < 60 or (not read.seen and thread.is_alive()):
            batch += 1
            run.apply(batch, {"a": str(batch)})
            run.close(batch)
        stop.set()
        thread.join()
        assert failures == []
        assert read.seen > 0


def test_a_later_micro_batch_can_be_applied_while_an_epoch_is_being_closed(store_dir):
    """The closing transaction holds no lock on the deltas: early stages of the next micro-batch do not wait for it."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1"})
        index = partition_of("a", 2)
        writer = run.store._writers[index]
        # Not the statement that was prepared before the deltas were attached: that one knows nothing of them.
        writer.execute("BEGIN IMMEDIATE -- anew")
        writer.execute("SELECT * FROM delta_0.touched_0").fetchall()
        task = run.task()
        task.read(STEP, 1, {index: ("a",)})[index]
        [delta] = task._deltas.values()
        delta._connection.set_busy_timeout(0)
        task.apply(STEP, 1, {index: [pack({"a": "2"})]}, BatchCount(1, 1))
        task.release()
        writer.execute("ROLLBACK")
        assert run.read(2, "a") == {"a": "2"}


@pytest.mark.parametrize("name", ["READ", "READ_OVER_SEALED", "DUE", "NEXT_DUE"])
def test_look_ups_search_and_never_scan_a_table(store_dir, name):
    """What a task asks costs as much as the answer, not as much as the state or the delta."""
    with Driver(store_dir) as run:
        sql = run.store._deltas[STEP][0]._meta().sql(getattr(deltas, name))
        bindings = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
        if "keys" in bindings:
            bindings["keys"] = apsw.carray(("a",))
        connection = run.store._deltas[STEP][0]._connection
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
        scans = [line for line in plan if line.startswith("SCAN") and "VIRTUAL TABLE" not in line]
        assert scans == []
        assert [line for line in plan if line.startswith("SEARCH")] != []


def test_damage_is_reported_with_the_partition_that_a_task_read(store_dir):
    """An error of the snapshot below a delta names the partition file, which has a backup, not the scratch file."""
    keys = [str(key) for key in range(2_000)]
    with Driver(store_dir) as run:
        run.apply(0, dict.fromkeys(keys, "x" * 500))
        run.close(0)
    path = store_dir / "part-0.sqlite3"
    data = path.read_bytes()
    path.write_bytes(data[: 24 * 4096] + bytes(len(data) - 24 * 4096))
    with Driver(store_dir) as run, pytest.raises(CorruptPartitionError) as raised:
        run.read(1, keys)
    assert raised.value.path == str(path)


def test_a_task_whose_delta_vanishes_while_it_is_opened_has_lost_its_lease(store_dir, monkeypatch):
    """A driver that was stopped right there wakes to a file that its successor removed: the disk is not at fault."""
    connect = deltas.connect
    with Driver(store_dir) as run:

        def too_late(path, mode):
            shutil.rmtree(run.store.scratch)
            return connect(path, mode)

        task = run.task()
        monkeypatch.setattr(deltas, "connect", too_late)
        with pytest.raises(LeaseLostError, match="is gone"):
            task.read(STEP, 0, {0: ("a",)})[0]
        task.release()


def test_a_delta_that_cannot_be_opened_is_no_lost_lease(store_dir):
    """Only a scratch file that is gone means that a successor took over; any other failure says what it is."""
    with Driver(store_dir) as run:
        path = run.store._deltas[STEP][0].path
        other = path.with_name("directory.delta")
        other.mkdir()
        with pytest.raises(StorageError, match="unable to open"):
            deltas.Delta(other, run.store.paths[0], run.lease, STEP)
        alter(path, "DROP TABLE meta")
        with pytest.raises(CorruptPartitionError, match="altered"):
            run.store.open(run.lease, 1)
