"""The promises of `recovery.storage.seam`, for every kind of partition store: local files, and the fake in memory."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.errors import LeaseLostError, StorageError
from recovery.planning.measures import Measure
from recovery.planning.values import StepEdit
from recovery.storage.scan import read_measures
from recovery.storage.seam import BatchCount, Changes, CloseRequest, KeyToErase
from recovery.values.keys import partition_of
from recovery.wire.calls import Closing
from tests.memory_store import MemoryDirectory
from tests.stores import STEP, Driver, ReachedDirectory, SpreadDirectory, new_execution, pack

COUNT = 2
KEYS = tuple("abcdef")
BOTH = tuple(range(COUNT))
OTHER = "other"
FIRST = [key for key in KEYS if partition_of(key, COUNT) == 0]
EACH = [next(key for key in KEYS if partition_of(key, COUNT) == index) for index in BOTH]
"""A key of each partition."""
POSITION = "$position"


@pytest.fixture(params=["files", "memory", "owner", "owners", "one service", "spread"])
def directory(request, make_store):
    """An empty store of two partitions, of each kind; files whose tasks reach them through an owner; files of two owner
    services, and of two directories of one; and one in the driver's directory, with one at a service."""
    if request.param == "memory":
        yield MemoryDirectory(COUNT)
    elif request.param in ("owners", "one service", "spread"):
        spread = ((1,), (0,)) if request.param == "spread" else ((), (0,), (1,))
        made = SpreadDirectory(make_store(COUNT), spread, together=request.param == "one service")
        yield made
        made.close()
    else:
        yield make_store(COUNT) if request.param == "files" else ReachedDirectory(make_store(COUNT))


@pytest.fixture
def run(directory):
    """An execution on it."""
    with Driver(directory) as found:
        yield found


def measures(run: Driver) -> list[Measure]:
    """What `record` stored. The protocol has no call that reads it: `recovery.storage.scan` does, from files."""
    if isinstance(run.directory, MemoryDirectory):
        return list(run.directory.measures.values())
    if isinstance(run.directory, SpreadDirectory):
        return read_measures(run.directory.paths()[0])
    return read_measures(run.store.paths[0])


def epochs(run: Driver) -> list[list[int]]:
    """The epochs that each partition holds."""
    return [[closed.epoch for closed in each.epochs] for each in run.store.describe()]


class TestTasks:
    """`TaskStore`."""

    def test_read_returns_the_states_in_the_order_of_the_keys(self, run):
        """Repeated and unknown keys included."""
        run.apply(0, dict.fromkeys(FIRST, "1"))
        task = run.task()
        assert task.read(STEP, 1, {0: (FIRST[1], "unknown", FIRST[0], FIRST[1])})[0] == ["1", None, "1", "1"]
        assert task.read(STEP, 1, {0: (FIRST[0],)})[0] == ["1"]
        assert task.read(STEP, 1, {0: ()})[0] == []
        task.release()

    @pytest.mark.parametrize("closed", [False, True], ids=["in the delta", "in the snapshot"])
    def test_read_returns_the_states_before_the_batch_even_if_it_was_applied(self, run, closed):
        run.apply(0, {"a": "1", "b": "2"})
        if closed:
            run.close(0)
        run.apply(1, {"a": "10", "b": None, "c": "30"})
        assert run.read(1, "abc") == {"a": "1", "b": "2", "c": None}
        assert run.read(2, "abc") == {"a": "10", "b": None, "c": "30"}

    def test_apply_replaces_an_earlier_apply_of_the_same_batch_completely(self, run):
        """States, timeouts and counts."""
        run.apply(0, {"a": ("1", 10), "b": ("1", None)})
        run.apply(1, {"a": ("2", 99), "b": None, "c": ("2", 5)}, partitions=BOTH)
        run.apply(1, {"d": "4"}, partitions=BOTH)
        assert run.read(2, "abcd") == {"a": "1", "b": "1", "c": None, "d": "4"}
        assert run.due(2, 100) == ["a"]
        assert run.store.counts(run.lease, 1).keys == 1

    def test_an_apply_that_fails_changes_nothing(self, run):
        """It is one transaction."""

        def broken():
            yield pack({FIRST[0]: "2"})
            raise RuntimeError("broken")

        run.apply(0, {FIRST[0]: "1"})
        task = run.task()
        with pytest.raises(RuntimeError, match="broken"):
            task.apply(STEP, 1, {0: broken()}, BatchCount(1, 1))
        task.release()
        assert run.read(2, FIRST[:1]) == {FIRST[0]: "1"}
        assert run.store.counts(run.lease, 1) == BatchCount(0, 0)

    @pytest.mark.parametrize("key_chars", [0, 1])
    def test_changes_come_in_three_forms(self, run, key_chars):
        """With separators, with the keys' length, and with timeouts. An empty value discards the key."""
        separator = "" if key_chars else "\x1f"
        packed = {key: f"{key}{value}" if key_chars else f"{value}{separator}{key}" for key, value in zip(
            FIRST[:2], ("[1]", ""), strict=True
        )}  # fmt: skip
        run.apply(0, {FIRST[1]: ("1", 7)})
        task = run.task()
        task.apply(STEP, 1, {0: [Changes(tuple(packed.values()), False, key_chars)]}, BatchCount(2, 2))
        assert task.read(STEP, 2, {0: tuple(FIRST[:2])})[0] == ["[1]", None]
        assert task.due(STEP, 2, [0], 100)[0] == []
        task.release()

    def test_withdraw_undoes_everything_of_a_batch(self, run):
        """Its counts too. Withdrawing what was never applied changes nothing."""
        run.apply(0, {FIRST[0]: ("1", 10)})
        run.apply(1, {FIRST[0]: ("2", 20), FIRST[1]: ("3", 1)})
        task = run.task()
        for _ in range(2):
            task.withdraw(STEP, 1, [0])
        task.withdraw(STEP, 1, [1])
        task.release()
        assert run.read(2, FIRST[:2]) == {FIRST[0]: "1", FIRST[1]: None}
        assert run.due(2, 15) == [FIRST[0]]
        assert run.store.counts(run.lease, 1) == BatchCount(0, 0)

    def test_an_attempt_whose_retry_has_written_is_refused(self, run):
        """Whether the retry has changed anything, or withdrawn: in its partition, and for its batch. Attempts without a
        number are never refused."""
        late, retry = run.task(3), run.task(4)
        late.apply(STEP, 0, {0: [pack({EACH[0]: "1"})], 1: [pack({EACH[1]: "1"})]}, BatchCount(2, 2))
        retry.apply(STEP, 0, {0: []}, BatchCount(0, 0))
        retry.withdraw(STEP, 0, [1])
        for partition in (0, 1):
            with pytest.raises(LeaseLostError, match=r"attempt 3 .* is over"):
                late.apply(STEP, 0, {partition: [pack({EACH[partition]: "2"})]}, BatchCount(1, 1))
            with pytest.raises(LeaseLostError, match=r"attempt 3 .* is over"):
                late.withdraw(STEP, 0, [partition])
        assert run.read(1, EACH) == dict.fromkeys(EACH)
        retry.apply(STEP, 0, {1: [pack({EACH[1]: "3"})]}, BatchCount(1, 1))
        run.apply(0, {EACH[0]: "4"})
        late.apply(STEP, 1, {0: []}, BatchCount(0, 0))
        late.release()
        retry.release()
        assert run.read(2, EACH) == {EACH[0]: "4", EACH[1]: "3"}

    def test_gathered_tells_whether_such_a_task_has_begun_the_batch(self, run):
        """Only if that was noted, and only of this step and batch."""
        task, later = run.task(), run.task()
        assert not task.gathered(STEP, 0, note=False)
        assert not task.gathered(STEP, 0, note=True)
        assert later.gathered(STEP, 0, note=True)
        assert later.gathered(STEP, 0, note=False)
        assert not later.gathered(STEP, 1, note=False)
        assert not later.gathered(OTHER, 0, note=False)

    def test_a_late_gathered_task_does_not_hide_a_later_one(self, run):
        """A second attempt of the later batch has to withdraw what the first left elsewhere."""
        late, task = run.task(), run.task()
        late.gathered(STEP, 3, note=True)
        task.gathered(STEP, 5, note=True)
        late.gathered(STEP, 4, note=True)
        assert task.gathered(STEP, 5, note=True)

    @pytest.mark.parametrize("closed", [False, True], ids=["in the delta", "in the snapshot"])
    def test_due_returns_the_keys_whose_timeout_has_come_before_the_batch(self, run, closed):
        """Sorted, with the limit itself."""
        run.apply(0, {"c": ("1", 10), "a": ("1", 20), "b": ("1", 21), "d": ("1", None), "e": ("1", 5)})
        if closed:
            run.close(0)
        run.apply(1, {"e": None, "c": ("2", 90), "f": ("2", 1)})
        assert run.due(1, 20) == ["a", "c", "e"]
        assert run.due(2, 20) == ["a", "f"]

    def test_a_batch_that_is_over_is_refused(self, run):
        """Because a later one was applied or opened, or it was sealed: for every operation of a task."""
        run.store.open(run.lease, 1)
        with pytest.raises(LeaseLostError, match="micro-batch 0 is over"):
            run.apply(0, {"a": "1"})
        run.apply(2, {"a": "1"})
        with pytest.raises(LeaseLostError, match="micro-batch 1 is over"):
            run.read(1, "a")
        run.store.seal(run.lease, 3)
        run.store.seal(run.lease, 3)
        task = run.task()
        for late in (
            lambda: task.apply(STEP, 3, {0: []}, BatchCount(0, 0)),
            lambda: task.withdraw(STEP, 3, [0]),
            lambda: task.due(STEP, 3, [0], 1)[0],
            lambda: task.read(STEP, 3, {0: ("a",)})[0],
        ):
            with pytest.raises(LeaseLostError, match="micro-batch 3 is over"):
                late()
        task.release()

    def test_a_task_of_an_earlier_execution_is_refused(self, directory):
        with Driver(directory) as late:
            task = late.task()
            with Driver(directory) as run:
                with pytest.raises(LeaseLostError):
                    task.apply(STEP, 0, {0: [pack({FIRST[0]: "late"})]}, BatchCount(1, 1))
                with pytest.raises(LeaseLostError):
                    late.read(0, "a")
                assert run.read(0, KEYS) == dict.fromkeys(KEYS)
            task.release()


class TestStart:
    """`prepare`, `start` and `release`."""

    def test_a_directory_to_write_to(self, run):
        """It is removed by `release`, which may be called again."""
        path = run.store.prepare(run.execution)
        (path / "file").write_text("")
        run.store.release()
        run.store.release()
        assert not path.exists()

    @pytest.mark.parametrize("logged", [False, True])
    def test_epochs_from_the_resume_epoch_on_are_abandoned(self, directory, logged):
        with Driver(directory) as run:
            for batch, changes in enumerate([{"a": "1", "b": ("1", 5)}, {"a": "2", "c": "2"}, {"b": None}]):
                run.apply(batch, changes)
                run.close(batch, logged=logged, driver_rows={POSITION: {"p": str(batch)}})
            run.apply(3, {"a": "not closed"})
        with Driver(directory, resume_epoch=2) as run:
            assert run.read(1, "abc") == {"a": "1", "b": "1", "c": None}
            assert run.due(1, 5) == ["b"]
            assert run.store.driver_values(POSITION) == {"p": "0"}
            assert [each.newest_epoch for each in run.store.describe()] == [1, 1]

    def test_starting_again_changes_nothing(self, run):
        before = run.store.describe()
        run.store.start(run.execution, [STEP], run.plan.partitions)
        assert [each.executions for each in run.store.describe()] == [each.executions for each in before]

    def test_an_earlier_execution_is_refused(self, directory, run):
        """An owner says so before it asks its partitions."""
        reason = "began before|began here" if isinstance(directory, SpreadDirectory) else "began before"
        with Driver(directory), pytest.raises(LeaseLostError, match=reason):
            run.store.start(replace(run.execution, id="other"), [STEP])

    def test_an_epoch_that_the_plan_does_not_know_is_not_abandoned(self, directory):
        with Driver(directory) as run:
            plan = run.plan
            run.close(-1)
            with pytest.raises(LeaseLostError, match="an epoch was closed since"):
                run.store.start(replace(new_execution(plan), number=9), [STEP], plan.partitions)
            assert epochs(run) == [[1], [1]]

    @pytest.mark.parametrize("logged", [False, True], ids=["folded", "logged"])
    def test_a_start_that_erases_leaves_nothing_of_the_keys(self, directory, logged):
        """At no epoch, also when it goes back; every other key is as it was, and a repeated start changes nothing."""
        with Driver(directory, (STEP, OTHER), backup_interval_s=1.0) as run:
            for batch in range(3):
                run.apply(batch, {"a": f"{batch}", "b": ("1", batch)})
                run.apply(batch, {"a": "9", "c": f"{batch}"}, OTHER)
                run.close(batch, logged=logged)
        with Driver(directory, (STEP, OTHER), backup_interval_s=1.0) as run:
            later = replace(run.execution, number=run.execution.number + 1, id="erased-x")
            for _ in range(2):
                run.store.start(later, [], run.store.describe(), erases=[KeyToErase(STEP, "a"), KeyToErase(None, "c")])
            run.store.scrub()
            assert epochs(run) == [[1, 2, 3]] * COUNT
            assert all(each.executions[-1].erases for each in run.store.describe())
        for resume, values in ((4, {"b": "1"}), (2, {"b": "1"})):
            with Driver(directory, (STEP, OTHER), resume_epoch=resume, backup_interval_s=1.0) as run:
                assert run.store.driver_values(STEP) == values
                assert run.store.driver_values(OTHER) == {"a": "9"}
                assert run.due(9, 0 if resume == 2 else 2) == ["b"]

    def test_a_fenced_execution_can_do_nothing(self, directory):
        with Driver(directory) as late, Driver(directory) as run:
            late_calls = (
                lambda: late.store.open(late.lease, 0),
                lambda: late.store.check(late.lease),
                lambda: late.close(-1),
                lambda: late.store.fold(late.lease, 0, 0),
                lambda: late.store.begin_input(late.lease, "x"),
            )
            for call in late_calls:
                with pytest.raises(LeaseLostError):
                    call()
            run.store.check(run.lease)
            assert run.close(-1) == [0, 0]
            assert run.store.beginning() is None


class TestClosing:
    """`seal`, `close` and `fold`."""

    @pytest.mark.parametrize("logged", [False, True])
    def test_an_epoch_is_what_its_micro_batches_left(self, directory, logged):
        """Without what tasks of the next one have applied early."""
        with Driver(directory) as run:
            run.apply(0, {"a": "1", "b": "1"})
            run.apply(1, {"a": "2", "c": "2"})
            run.close(0, logged=logged)
            assert run.store.driver_values(STEP) == {"a": "1", "b": "1"}
            assert run.read(2, "abc") == {"a": "2", "b": "1", "c": "2"}
        with Driver(directory) as run:
            assert run.read(1, "abc") == {"a": "1", "b": "1", "c": None}

    @pytest.mark.parametrize("logged", [False, True])
    def test_closing_again_changes_nothing(self, run, logged):
        run.apply(0, {"a": "1", "b": "1"})
        settings = {"logged": logged, "epoch": 1}
        assert sum(run.close(0, **settings)) == 2
        before = run.store.describe()
        assert sum(run.close(0, **settings)) == 2
        assert [each.epochs for each in run.store.describe()] == [each.epochs for each in before]

    def test_what_was_done_is_returned(self, run):
        """And the sizes of the steps afterwards."""
        run.apply(0, {"a": "1", "b": "22"})
        requests = run.requests(0, driver_rows={POSITION: {"p": b"\xff"}})
        closed = run.store.close(run.lease, requests)
        assert sum(each.states for each in closed) == 2
        assert sum(each.written for each in closed) == 3
        assert sum(each.written_bytes for each in closed) == 7
        sizes = [size for each in closed for step, size in each.sizes.items() if step == STEP]
        assert (sum(size.rows for size in sizes), sum(size.size_bytes for size in sizes)) == (2, 5)

    def test_the_floor_gives_up_earlier_epochs(self, run):
        """And tells how many superseded rows that were."""
        for batch in range(3):
            run.apply(batch, {"a": str(batch)})
            run.close(batch)
        closed = run.store.close(run.lease, run.requests(2, floor=2))
        assert sum(each.collected for each in closed) == 1
        assert epochs(run) == [[2, 3, 4], [2, 3, 4]]

    def test_driver_rows(self, run):
        """Text and bytes by key; None discards; an earlier epoch's can be read until it is given up."""
        run.close(-1, driver_rows={POSITION: {"a": "1", "b": b"2"}})
        run.close(-1, driver_rows={POSITION: {"a": None, "c": "3"}})
        assert run.store.driver_values(POSITION) == {"b": b"2", "c": "3"}
        assert dict(run.store.driver_rows(POSITION, 2)) == {"a": "1", "b": b"2"}
        assert run.store.driver_values(POSITION, 1) == {}
        assert run.store.known_steps() == run.store.known_steps(2) == {POSITION}
        assert run.store.known_steps(1) == set()

    def test_steps_are_dropped_renamed_and_converted(self, directory):
        """With their timeouts; a conversion to None discards the key."""
        with Driver(directory, [STEP, OTHER, "gone"]) as run:
            run.apply(0, {"a": ("1", 5), "b": "2"})
            run.apply(0, {"a": "9"}, "gone")
            run.close(0)
            rename = StepEdit(STEP, OTHER, lambda key, text: None if key == "b" else f"[{text}]")
            run.close(0, edits=[rename, StepEdit("gone", None)])
            assert run.store.known_steps() == {OTHER}
            assert run.store.driver_values(OTHER) == {"a": "[1]"}
            assert run.store.next_due_ms(run.lease, [OTHER]) == 5
        with Driver(directory, resume_epoch=2) as run:
            assert run.store.known_steps() == {STEP, "gone"}

    def test_folding_keeps_the_newest_epoch_alone(self, run):
        """The states stay, micro-batches may have gone on, and folding again changes nothing."""
        for batch in range(3):
            run.apply(batch, {"a": str(batch), f"k{batch}": "1"})
            run.close(batch, logged=True)
        run.store.seal(run.lease, 2)
        run.apply(3, {"a": "3"})
        sizes = run.store.fold(run.lease, 3, 3)
        assert run.store.fold(run.lease, 3, 3) == sizes
        assert sum(each[STEP].rows for each in sizes if STEP in each) == 4
        assert epochs(run) == [[3], [3]]
        assert [each.newest.is_logged for each in run.store.describe()] == [False, False]
        assert run.store.driver_values(STEP) == {"a": "2", "k0": "1", "k1": "1", "k2": "1"}
        assert run.read(4, "a") == {"a": "3"}

    @pytest.mark.parametrize(("floor", "held"), [(3, [3]), (2, [2, 3]), (0, [1, 2, 3])])
    def test_folding_keeps_what_is_not_collected(self, run, floor, held):
        """Each epoch from the floor on is as if it had not been logged, and can be gone back to."""
        for batch in range(3):
            run.apply(batch, {"a": str(batch), f"k{batch}": "1", f"k{batch - 1}": None})
            run.close(batch, logged=True)
        for _ in range(2):
            run.fold(floor)
            assert epochs(run) == [held, held]
            assert not any(each.is_logged for found in run.store.describe() for each in found.epochs)
            for epoch in held:
                values = {"a": str(epoch - 1), f"k{epoch - 1}": "1"}
                assert run.store.driver_values(STEP, epoch + 1) == values
        run.apply(3, {"a": "3"})
        run.close(3, floor=floor)
        assert run.store.driver_values(STEP) == {"a": "3", "k2": "1"}

    @pytest.mark.parametrize(("floor", "held"), [(2, [2, 3]), (0, [1, 2, 3])])
    def test_an_epoch_that_is_not_logged_folds_those_that_are(self, run, floor, held):
        """Epochs before the floor are not held afterwards."""
        for batch, logged in enumerate((True, True, False)):
            run.apply(batch, {"a": str(batch)})
            run.close(batch, logged=logged, floor=floor)
        assert epochs(run) == [held, held]
        assert run.store.driver_values(STEP) == {"a": "2"}

    def test_a_start_may_keep_what_is_logged(self, directory):
        """Tasks read it and its timeouts, earlier epochs stay held, epochs are logged over it and folded with it."""
        with Driver(directory) as run:
            run.apply(0, {"a": "0", "b": ("0", 7), "c": "0"})
            run.close(0)
            run.apply(1, {"a": "1", "b": ("1", 9), "c": None})
            run.close(1, logged=True, driver_rows={OTHER: {"at": "1"}})
        with Driver(directory, keeps_log=True) as run:
            assert run.read(2, "abc") == {"a": "1", "b": "1", "c": None}
            assert (run.due(2, 8), run.due(2, 9)) == ([], ["b"])
            assert run.store.next_due_ms(run.lease) == 9
            run.apply(2, {"c": "2"})
            run.apply(3, {"a": "early"})
            run.close(2, logged=True)
            assert run.store.driver_values(STEP) == {"a": "1", "b": "1", "c": "2"}
            run.close(3, logged=True)
            run.fold()
            assert epochs(run) == [[4], [4]]
            assert run.store.driver_values(STEP) == {"a": "early", "b": "1", "c": "2"}
            assert run.store.driver_values(OTHER) == {"at": "1"}

    def test_going_back_within_what_a_start_keeps(self, directory):
        """The log is cut off, and the rest is kept."""
        with Driver(directory) as run:
            for batch in range(3):
                run.apply(batch, {"a": str(batch), f"k{batch}": "1"})
                run.close(batch, logged=batch > 0)
        with Driver(directory, resume_epoch=3, keeps_log=True) as run:
            assert run.read(2, ["a", "k0", "k1", "k2"]) == {"a": "1", "k0": "1", "k1": "1", "k2": None}
            run.apply(2, {"a": "new"})
            run.close(2, logged=True)
            run.fold(0)
            assert run.store.driver_values(STEP, 3) == {"a": "1", "k0": "1", "k1": "1"}
            assert run.store.driver_values(STEP) == {"a": "new", "k0": "1", "k1": "1"}

    def test_what_was_logged_must_be_set_apart_before_it_is_folded(self, run):
        run.apply(0, {"a": "1"})
        run.store.seal(run.lease, 0, apart=False)
        run.close(0, logged=True)
        # An owner's defect arrives as a typed error.
        kind = StorageError if isinstance(run.directory, SpreadDirectory) else AssertionError
        with pytest.raises((kind, AssertionError), match="set apart"):
            run.store.fold(run.lease, 1, 1)


class TestFacts:
    """What does not belong to an epoch, and what is asked of all partitions."""

    def test_where_the_input_begins_outlasts_every_rewind(self, directory):
        with Driver(directory) as run:
            assert run.store.beginning() is None
            run.store.begin_input(run.lease, "first")
            run.store.begin_input(run.lease, "second")
            run.close(-1)
        with Driver(directory, resume_epoch=1) as run:
            assert run.store.beginning() == "second"
            run.store.begin_input(run.lease, "third")
            assert run.store.beginning() == "third"

    def test_measures_outlast_every_rewind(self, directory):
        one = Measure(execution=1, epoch=1, measured_ms=5, resume_s=0.5)
        with Driver(directory) as run:
            run.close(-1)
            run.store.record(one)
            run.store.checkpoint()
        with Driver(directory, resume_epoch=1) as run:
            run.store.record(replaced := Measure(execution=2, epoch=1, measured_ms=6, resume_s=0.5))
            assert measures(run) == [one, replaced]

    def test_counts_are_of_all_steps_and_partitions(self, directory):
        """Rows are those of the step that saw most. What was looked up is the store's own count."""
        with Driver(directory, [STEP, OTHER]) as run:
            for step, rows in ((STEP, 3), (OTHER, 4)):
                for index in range(COUNT):
                    task = run.task()
                    task.read(step, 0, {index: ("x", "y")})[index]
                    task.apply(step, 0, {index: []}, BatchCount(rows, 1, 10 * rows))
                    task.release()
            assert run.store.counts(run.lease, 0)[:4] == (8, 4, 40, 8)
            assert run.store.counts(run.lease, 1) == BatchCount(0, 0)

    def test_the_next_timeout(self, directory):
        """Of all steps, or of those that are named; the newest states count."""
        with Driver(directory, [STEP, OTHER]) as run:
            assert run.store.next_due_ms(run.lease) is None
            run.apply(0, {"a": ("1", 10), "b": ("1", 20)})
            run.apply(0, {"a": ("1", 5)}, OTHER)
            run.close(0)
            assert run.store.next_due_ms(run.lease) == 5
            assert run.store.next_due_ms(run.lease, [STEP]) == 10
            run.apply(1, {"a": None})
            assert run.store.next_due_ms(run.lease, [STEP]) == 20


VALUES = st.none() | st.tuples(st.sampled_from(["1", "22", '"é"']), st.none() | st.integers(1, 9))
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
ACTIONS = st.one_of(
    st.tuples(st.just("apply"), st.booleans(), CHANGES),
    st.tuples(st.just("apply"), st.booleans(), CHANGES),
    st.tuples(st.just("open")),
    st.tuples(st.just("withdraw"), st.sampled_from(BOTH)),
    st.tuples(st.just("close"), st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("rewind"), st.integers(0, 2)),
)


class History:
    """One store that goes through a random history. `play` returns all that can be seen after an action."""

    def __init__(self, directory) -> None:
        self.run = Driver(directory)
        self.batch = 0

    def play(self, action: tuple) -> tuple:
        name, *arguments = action
        getattr(self, name)(*arguments)
        run, later = self.run, self.batch + 1
        described = run.store.describe()
        return (
            run.read(later, KEYS),
            run.due(later, 5),
            run.store.next_due_ms(run.lease),
            run.store.counts(run.lease, self.batch)._replace(seam_s=0.0),
            {
                last: (run.store.driver_values(STEP, last), run.store.known_steps(last))
                for last in [None, *(epoch + 1 for epoch in self.epochs(described))]
            },
            [(each.collected, [(one.epoch, one.batch_id, one.is_logged) for one in each.epochs]) for each in described],
            [each.newest.live_rows for each in described if each.newest],
        )

    def epochs(self, described) -> list[int]:
        """The epochs that all partitions hold."""
        return sorted(set.intersection(*({closed.epoch for closed in each.epochs} for each in described)))

    def apply(self, new: bool, changes: dict) -> None:
        self.batch += new
        self.run.apply(self.batch, changes, partitions=BOTH)

    def open(self) -> None:
        self.batch += 1
        self.run.store.open(self.run.lease, self.batch)

    def withdraw(self, index: int) -> None:
        task = self.run.task()
        task.withdraw(STEP, self.batch, [index])
        task.release()

    def close(self, floor: int, logged: bool, fold: bool, lag: int) -> None:
        """Close as of this micro-batch, or of the one before while this one is running."""
        closed = self.batch - lag
        if any(closed < each.newest.batch_id for each in self.run.store.describe() if each.newest):
            closed = self.batch
        self.run.store.seal(self.run.lease, closed, apart=fold or not logged)
        self.run.close(closed, logged=logged, floor=max(0, self.run.epoch - 1 - floor))
        if logged and fold:
            self.run.fold()
        self.batch = max(self.batch, closed + 1)

    def rewind(self, back: int) -> None:
        described = self.run.store.describe()
        self.run.store.release()
        oldest = max(each.oldest_epoch for each in described)
        newest = min(each.newest_epoch for each in described)
        self.run = Driver(self.run.directory, resume_epoch=max(oldest, newest - back) + 1)
        self.batch += 1


@settings(max_examples=40)
@given(actions=st.lists(ACTIONS, max_size=14))
def test_both_stores_agree_on_every_history(store_maker, actions):
    """Reads, timeouts, counts, snapshots, and the epochs that partitions hold."""
    real, fake = History(store_maker(COUNT)), History(MemoryDirectory(COUNT))
    try:
        for action in actions:
            assert real.play(action) == fake.play(action)
    finally:
        real.run.store.release()
        fake.run.store.release()


def test_what_an_owner_is_asked_to_close_is_all_that_the_seam_has():
    """A field that is added to one is added to the other; what goes ahead of it is counted besides."""
    wanted = [*(each.name for each in fields(CloseRequest)), "parts"]
    assert [each.name for each in msgspec.structs.fields(Closing)] == wanted
