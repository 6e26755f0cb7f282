"""One partition: starting an execution, closing epochs, collecting, and what they cost."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import partial

import apsw
import pytest

from recovery.base import faults
from recovery.base.ids import ExecutionNumber, Lease
from recovery.errors import CorruptPartitionError, LeaseLostError, StateValueError
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from recovery.storage.seam import StepEdit
from recovery.storage.sqlite import describe, fold, rewind, snap_rows
from recovery.storage.sqlite.columns import COLUMNS
from recovery.storage.sqlite.file.statements import transaction
from recovery.storage.sqlite.file.tables import CREATE_ALL
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.sqlite.transfer.changes_file import CREATE as CREATE_CHANGES_FILE
from recovery.values.keys import partition_of
from tests.stores import STEP, Driver, alter, content, new_execution, paths_of, problems, query, state_at, window


class TestClosing:
    """Closing an epoch in all partitions."""

    def test_an_epoch_says_what_was_written_and_when(self, store_dir):
        """The row of the epoch is what the request said, and the count of states is returned per partition."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": "1", "b": "2", "c": None})
            written = run.close(0, closed_ms=123, clock_ms=45)
            assert sum(written) == 2
            for described in run.store.describe():
                [closed] = described.epochs
                assert (closed.epoch, closed.execution, closed.batch_id) == (1, run.lease, 0)
                assert (closed.closed_ms, closed.clock_ms) == (123, 45)
                assert closed.written == closed.live_rows == written[described.index]

    def test_closing_again_changes_nothing(self, store_dir):
        """The same execution may close the same epoch twice, as after a lost answer; the second time is a no-op."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": "1"})
            requests = run.requests(0)
            first = run.store.close(run.lease, requests)
            before = content(store_dir)
            run.apply(1, {"a": "2"})
            again = run.store.close(run.lease, requests)
            assert [(each.written, each.sizes) for each in again] == [(each.written, each.sizes) for each in first]
            assert content(store_dir) == before
            assert run.read(2, "a") == {"a": "2"}, "what came after it is still there"

    def test_an_epoch_closed_as_of_another_batch_is_not_taken_for_the_same(self, store_dir):
        """Closing it again as of a later micro-batch is refused: a no-op would lose what came between."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
            run.apply(1, {"a": "2"})
            with pytest.raises(CorruptPartitionError, match="cannot close epoch 1"):
                run.store.close(run.lease, run.requests(1, epoch=1))
            assert run.read(2, "a") == {"a": "2"}
            run.close(1)
            assert state_at(store_dir, 2) == {(STEP, "a"): ("2", None)}

    @pytest.mark.parametrize("epoch", [0, 1, 2, 4, 5])
    def test_epochs_are_closed_in_their_order(self, store_dir, epoch):
        """After epoch 2 only epoch 3 can be closed."""
        with Driver(store_dir) as run:
            run.close(-1)
            run.close(-1)
            before = content(store_dir)
            run.apply(0, {"a": "1"})
            with pytest.raises(CorruptPartitionError, match=f"cannot close epoch {epoch}"):
                run.store.close(run.lease, run.requests(0, epoch=epoch))
            assert content(store_dir) == before

    def test_a_run_whose_successor_began_closes_nothing(self, store_dir):
        """The lease is checked in storage: an execution that was cut off and comes back is refused, by every call."""
        late = Driver(store_dir)
        late.apply(0, {"a": "1"})
        with Driver(store_dir) as successor:
            successor.apply(0, {"a": "10"})
            before = content(store_dir)
            with pytest.raises(LeaseLostError, match="may not write any more: a later one began"):
                late.close(0)
            assert content(store_dir) == before
            successor.close(0)
            assert state_at(store_dir, 1) == {(STEP, "a"): ("10", None)}
        late.store.release()
        assert problems(store_dir) == []

    def test_the_right_number_with_another_id_is_another_run(self, store_dir):
        """Two runs that drew the same execution number differ by their id."""
        with Driver(store_dir) as run, pytest.raises(LeaseLostError):
            run.store.close(Lease(run.lease.number, "another"), run.requests(-1))

    def test_an_epoch_without_changes_is_closed_too(self, store_dir):
        """Every partition holds every epoch, whether it was touched or not."""
        with Driver(store_dir) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
            run.close(0)
            run.close(3)
            assert window(store_dir) == (0, 1, 2, 3)
            assert state_at(store_dir, 3) == {(STEP, "a"): ("1", None)}
        assert problems(store_dir) == []

    def test_driver_rows_are_part_of_the_epoch(self, store_dir):
        """Texts and blobs of the driver's own come back as they were, are replaced, discarded and rewound."""
        blob = bytes(range(256)) * 4
        with Driver(store_dir) as run:
            run.close(0, driver_rows={"$at": {"text": "ü\n{}", "blob": blob, "empty": "", "nothing": b""}})
            assert run.store.driver_values("$at") == {"text": "ü\n{}", "blob": blob, "empty": "", "nothing": b""}
            run.close(1, driver_rows={"$at": {"text": None, "blob": blob[::-1], "new": "1"}})
            assert run.store.driver_values("$at") == {"blob": blob[::-1], "empty": "", "nothing": b"", "new": "1"}
            assert run.store.known_steps() == {"$at"}
        assert problems(store_dir) == []
        with Driver(store_dir, resume_epoch=2) as run:
            assert run.store.driver_values("$at") == {"text": "ü\n{}", "blob": blob, "empty": "", "nothing": b""}
            assert problems(store_dir) == []

    def test_several_steps_are_closed_together(self, store_dir):
        """The same key in two steps is two states, of one epoch."""
        with Driver(store_dir, ["one", "two 'quoted' $"]) as run:
            run.apply(0, {"a": "1", "b": "2"}, "one")
            run.apply(0, {"a": "-1"}, "two 'quoted' $")
            run.close(0)
            run.apply(1, {"a": None}, "one")
            run.close(1)
            assert run.read(2, "ab", "one") == {"a": None, "b": "2"}
            assert run.read(2, "ab", "two 'quoted' $") == {"a": "-1", "b": None}
            assert run.store.known_steps() == {"one", "two 'quoted' $"}
        assert problems(store_dir) == []


class TestStepEdits:
    """Dropping and renaming steps."""

    @pytest.fixture
    def edited(self, store_dir):
        """A store with two epochs of two steps."""
        with Driver(store_dir, ["old", "other"]) as run:
            run.apply(0, {"a": ("1", 5), "b": ("2", None)}, "old")
            run.apply(0, {"a": "9"}, "other")
            run.close(0)
            run.apply(1, {"b": ("3", 7), "c": "4"}, "old")
            run.close(1)
        return store_dir

    def test_a_renamed_step_keeps_its_states_and_timeouts(self, edited):
        """Everything is under the new name, nothing under the old, and a rewind brings the old back."""
        with Driver(edited, ["new", "other"]) as run:
            run.close(1, edits=[StepEdit("old", "new")])
            assert run.read(2, "abc", "new") == {"a": "1", "b": "3", "c": "4"}
            assert run.due(2, 10, "new") == ["a", "b"]
            assert run.store.known_steps() == {"new", "other"}
            assert problems(edited) == []
        with Driver(edited, ["old", "other"], resume_epoch=3) as run:
            assert run.read(2, "abc", "old") == {"a": "1", "b": "3", "c": "4"}
            assert run.store.known_steps() == {"old", "other"}
            assert problems(edited) == []

    def test_a_dropped_step_leaves_the_others(self, edited):
        """Its states are gone from the snapshot, the other step's stay, and a rewind brings them back."""
        with Driver(edited, ["other"]) as run:
            run.close(1, edits=[StepEdit("old", None)])
            assert run.store.known_steps() == {"other"}
            assert state_at(edited, 3) == {("other", "a"): ("9", None)}
            assert problems(edited) == []
        assert state_at(edited, 2)["old", "b"] == ("3", 7)

    def test_a_step_is_converted_in_one_epoch(self, edited):
        """Every value is the new one, timeouts stay, None discards the key, and a rewind brings the old ones back."""

        def convert(key, text):
            return None if key == "c" else f"[{text}]"

        with Driver(edited, ["old", "other"]) as run:
            run.close(1, edits=[StepEdit("old", "old", convert)])
            assert run.read(2, "abc", "old") == {"a": "[1]", "b": "[3]", "c": None}
            assert run.due(2, 10, "old") == ["a", "b"]
            assert run.read(2, "a", "other") == {"a": "9"}
            assert problems(edited) == []
        with Driver(edited, ["old", "other"], resume_epoch=3) as run:
            assert run.read(2, "abc", "old") == {"a": "1", "b": "3", "c": "4"}
            assert problems(edited) == []

    def test_a_conversion_that_fails_changes_nothing(self, edited):
        """The error comes as it is; the epoch is not closed everywhere, so the next run starts where this one did."""

        def convert(key, text):
            raise StateValueError(f"not {key}")

        before = state_at(edited, 2)
        with Driver(edited, ["old", "other"]) as run, pytest.raises(StateValueError, match="not "):
            run.close(1, edits=[StepEdit("other", "old", None), StepEdit("old", "old", convert)])
        with Driver(edited, ["old", "other"]) as run:
            assert run.epoch == 3
            assert state_at(edited, 3) == before
        assert problems(edited) == []

    def test_a_conversion_renames_as_well(self, edited):
        """Under the new id stand the new values."""
        with Driver(edited, ["new", "other"]) as run:
            run.close(1, edits=[StepEdit("old", "new", lambda key, text: f'"{key}{text}"')])
            assert run.read(2, "abc", "new") == {"a": '"a1"', "b": '"b3"', "c": '"c4"'}
            assert run.store.known_steps() == {"new", "other"}

    def test_steps_and_values_of_an_earlier_epoch(self, edited):
        """What a rewind will find is known before anything is written."""
        with Driver(edited, ["old", "other"]) as run:
            run.close(1, edits=[StepEdit("old", "new"), StepEdit("other", None)], driver_rows={"$at": {"x": "1"}})
            run.close(1, driver_rows={"$at": {"x": "2", "y": "3"}})
            assert [run.store.known_steps(epoch) for epoch in range(1, 6)] == [
                set(), {"old", "other"}, {"old", "other"}, {"new", "$at"}, {"new", "$at"},
            ]  # fmt: skip
            assert run.store.known_steps() == {"new", "$at"}
            assert [run.store.driver_values("$at", epoch) for epoch in (3, 4)] == [{}, {"x": "1"}]
            assert run.store.driver_values("$at", 5) == {"x": "2", "y": "3"}
            assert run.store.driver_values("other", 2) == {"a": "9"}

    def test_both_together_and_touches_in_the_same_epoch_add_up(self, edited):
        """Edits and driver rows share one epoch, whose sums stay right."""
        with Driver(edited, ["new"]) as run:
            edits = [StepEdit("old", "new"), StepEdit("other", None)]
            run.close(1, edits=edits, driver_rows={"$at": {"x": "1"}})
            assert run.store.known_steps() == {"new", "$at"}
        assert problems(edited) == []


class TestStarting:
    """Beginning an execution: what lies beyond its resume epoch is abandoned."""

    @pytest.fixture
    def five(self, store_dir):
        """Five epochs: the key `k` counts them, `fN` is new in epoch N, and `d` comes and goes."""
        with Driver(store_dir) as run:
            for batch in range(5):
                run.apply(batch, {"k": str(batch + 1), f"f{batch + 1}": "1", "d": "1" if batch % 2 else None})
                run.close(batch)
        return store_dir

    @pytest.mark.parametrize("resume", [1, 2, 3, 4, 5, 6])
    def test_the_state_is_that_of_the_epoch_before_the_resume_epoch(self, five, resume):
        """Resuming at E puts back what every abandoned epoch superseded, nothing else."""
        expected = state_at(five, resume - 1)
        with Driver(five, resume_epoch=resume) as run:
            assert state_at(five, resume - 1) == expected
            assert run.read(9, ["k"]) == {"k": str(resume - 1) if resume > 1 else None}
            assert window(five) == tuple(range(resume))
            assert problems(five) == []

    def test_a_row_that_cannot_be_restored_is_damage(self, five):
        """A row of an earlier epoch that says by itself that it came later: nothing changes."""
        path = next(path for path in paths_of(five) if query(path, "SELECT 1 FROM snaps WHERE state_key = 'f2'"))
        alter(path, "UPDATE snaps SET snap_epoch = 4 WHERE state_key = 'f2'")
        before = [query(path, f"SELECT * FROM {table}") for table in ("snaps", "superseded", "epochs", "exs")]
        with pytest.raises(CorruptPartitionError, match="going back to epoch 2 leaves"), Driver(five, resume_epoch=3):
            pass
        assert [query(path, f"SELECT * FROM {table}") for table in ("snaps", "superseded", "epochs", "exs")] == before

    def test_starting_again_changes_nothing(self, five):
        """After a crash halfway, the same execution can be begun again in every partition."""
        plan = plan_resume(scan(five), resume_epoch=3)
        store = FilePartitions([d.path for d in plan.partitions], five / "scratch")
        execution = new_execution(plan)
        try:
            rewind.start(store._writers[0], store.paths[0], execution, plan.partitions[0])  # then it was killed
            store.start(execution, [STEP], plan.partitions)
            before = content(five)
            store.start(execution, [STEP, "another"], plan.partitions)
            assert content(five) == before
            assert window(five) == (0, 1, 2)
        finally:
            store.release()
        assert problems(five) == []

    def test_a_start_that_reached_only_some_files_is_taken_up_by_the_next(self, five):
        """One file rolled back, the other not: the next run resumes at the epoch that was asked for."""
        plan = plan_resume(scan(five), resume_epoch=3)
        store = FilePartitions([d.path for d in plan.partitions], five / "scratch")
        rewind.start(store._writers[1], store.paths[1], new_execution(plan))
        store.release()
        with Driver(five) as run:
            assert run.epoch == 3
            assert run.execution.number == 3
            assert state_at(five, 2)[STEP, "k"] == ("2", None)
        assert problems(five) == []

    def test_abandoned_epochs_are_never_read_again(self, five):
        """After a rewind the timeline that was left has no trace in any later epoch."""
        with Driver(five, resume_epoch=3) as run:
            run.apply(2, {"k": "30"})
            run.close(2)
        with Driver(five) as run:
            assert run.epoch == 4
            assert set(state_at(five, 3)) == {(STEP, key) for key in ("k", "d", "f1", "f2")}
            assert run.read(3, ["k", "f3", "f4"]) == {"k": "30", "f3": None, "f4": None}
        assert problems(five) == []

    def test_an_older_execution_cannot_begin(self, five):
        """Numbers only grow: whoever comes late with an old plan is refused, and writes nothing."""
        plan = plan_resume(scan(five))
        late = new_execution(plan)
        with Driver(five):
            pass
        before = content(five)
        store = FilePartitions([d.path for d in plan.partitions], five / "scratch")
        with pytest.raises(LeaseLostError, match="began before"):
            store.start(late, [STEP])
        store.release()
        assert content(five) == before

    @pytest.mark.parametrize("held", [(), (0,), (1,)])
    def test_an_epoch_that_was_closed_since_the_plan_stands(self, five, held):
        """It was acknowledged: a plan that does not know it in each file is refused, and abandons nothing."""
        with Driver(five) as run:
            run.apply(5, {"k": "6"})
            for index in held:
                run.store.close_partition(index, run.lease, run.requests(5)[index])
            plan = plan_resume(scan(five))
            run.close(5)
        store = FilePartitions([d.path for d in plan.partitions], five / "scratch")
        with pytest.raises(LeaseLostError, match="closed since"):
            store.start(new_execution(plan), [STEP], plan.partitions)
        store.release()
        assert window(five) == tuple(range(7))
        assert state_at(five, 6)[STEP, "k"] == ("6", None)
        with Driver(five) as run:
            assert run.epoch == 7
        assert problems(five) == []

    def test_files_of_different_ages_are_started_as_they_were_planned(self, five, tmp_path):
        """An older copy of one holds back the other: it begins, and what lies beyond is abandoned."""
        shutil.copytree(five, tmp_path / "older")
        with Driver(five) as run:
            run.close(5)
        shutil.copy(tmp_path / "older" / "part-1.sqlite3", five / "part-1.sqlite3")
        plan = plan_resume(scan(five))
        store = FilePartitions([d.path for d in plan.partitions], five / "scratch")
        store.start(new_execution(plan), [STEP], plan.partitions)
        store.release()
        assert window(five) == tuple(range(6))
        assert problems(five) == []

    def test_a_plan_that_does_not_fit_the_file_is_refused(self, five):
        """An epoch beyond the newest, or below what was collected, cannot be started at; nothing is written."""
        with Driver(five) as run:
            run.close(4, floor=3)
        plan = plan_resume(scan(five))
        before = content(five)
        for resume in (8, 3, 1):
            wrong = replace(new_execution(plan), resume_epoch=resume)
            store = FilePartitions([d.path for d in plan.partitions], five / "scratch")
            with pytest.raises(CorruptPartitionError, match=f"cannot start at epoch {resume}"):
                store.start(wrong, [STEP])
            store.release()
        assert content(five) == before

    def test_the_beginning_is_not_held_after_collecting(self, store_dir):
        """Also a store without any state cannot go back to before its oldest epoch."""
        with Driver(store_dir) as run:
            run.close(0)
            run.close(1, floor=1)
        plan = plan_resume(scan(store_dir))
        store = FilePartitions([d.path for d in plan.partitions], store_dir / "scratch")
        with pytest.raises(CorruptPartitionError, match="it has collected up to 1"):
            store.start(replace(new_execution(plan), resume_epoch=1), [STEP])
        store.release()
        assert window(store_dir) == (1, 2)

    def test_the_first_execution_binds_the_flow_and_all_are_recorded(self, five):
        """Every partition knows its flow and has its own copy of every execution."""
        with Driver(five, resume_epoch=2):
            pass
        for file in scan(five):
            assert file.description.flow_id == "flow"
            assert [e.number for e in file.description.executions] == [1, 2]
            assert [e.resume_epoch for e in file.description.executions] == [1, 2]


class TestCrashes:
    """A crash between the partitions' transactions."""

    @pytest.mark.parametrize("count", [1, 3])
    def test_closed_in_some_partitions_means_not_closed(self, make_store, count):
        """For every number of partitions that had committed, the next run resumes at that epoch, and none is lost."""
        for committed in range(count + 1):
            directory = make_store(count)
            with Driver(directory) as run:
                run.apply(0, {str(key): "1" for key in range(20)})
                run.close(0)
                run.apply(1, {str(key): "2" for key in range(10)})
                requests = run.requests(1)
                for index in range(committed):
                    run.store.close_partition(index, run.lease, requests[index])
            complete = committed == count
            with Driver(directory) as run:
                assert run.epoch == 2 + complete
                values = {text for text, _ in state_at(directory, run.epoch - 1).values()}
                assert values == ({"1", "2"} if complete else {"1"})
                assert run.plan.snapshot.batch_id == 0 + complete
                run.apply(1, {str(key): "2" for key in range(10)})
                run.close(1)
            assert problems(directory) == []

    def test_a_transaction_that_fails_leaves_the_partition_as_it_was(self, store_dir, monkeypatch):
        """Whatever step of closing fails, the partition holds the epoch before, whole; closing can be repeated."""
        points = []
        monkeypatch.setattr(faults, "reach", points.append)
        with Driver(store_dir) as run:
            run.apply(0, {str(key): "1" for key in range(20)})
            run.close(0)
            inside = [point for point in points if point.startswith("close.2") and point != "close.2.committed"]
            assert len(set(inside)) == 5
            before = content(store_dir)
            run.apply(1, {str(key): "2" for key in range(0, 20, 2)})
            for point in sorted(set(inside)):

                def fail(reached, point=point):
                    if reached == point:
                        raise apsw.FullError(f"disk full at {point}")

                monkeypatch.setattr(faults, "reach", fail)
                with pytest.raises(Exception, match="disk full"):
                    run.store.close(run.lease, run.requests(1))
                assert content(store_dir) == before
            monkeypatch.setattr(faults, "reach", lambda point: None)
            run.close(1)
            assert sorted(v for v, _ in state_at(store_dir, 2).values()) == ["1"] * 10 + ["2"] * 10
        assert problems(store_dir) == []


class TestGoingBack:
    """Discarding epochs."""

    def test_a_damaged_row_and_a_new_key_do_not_cancel_out(self, store_maker):
        """What is left is compared by the sum of its digests, not by its number alone; else nothing is changed."""
        directory = store_maker(1)
        with Driver(directory) as run:
            run.apply(0, {"a": "1", "b": "1"})
            run.close(0)
            run.apply(1, {"a": "2"})
            run.close(1)
            run.apply(2, {"m": "3"})
            run.close(2)
        alter(paths_of(directory)[0], "UPDATE superseded SET snap_epoch = snap_epoch + 64 WHERE state_key = 'a'")
        before = content(directory)
        with pytest.raises(CorruptPartitionError, match="going back to epoch 1 leaves 1 row where it had 2"):
            Driver(directory, resume_epoch=2)
        assert content(directory) == before


class TestCollection:
    """Giving up what the backup interval no longer needs."""

    def test_the_floor_and_everything_after_it_stay(self, store_dir):
        """Epochs at and above the floor can be resumed after as before; nothing below it is kept."""
        with Driver(store_dir) as run:
            for batch in range(6):
                run.apply(batch, {"k": str(batch), f"f{batch}": "1", "d": None if batch % 2 else "1"})
                run.close(batch)
            expected = {epoch: state_at(store_dir, epoch) for epoch in range(4, 7)}
            run.apply(6, {"k": "6"})
            run.close(6, floor=4)
            assert window(store_dir) == (4, 5, 6, 7)
            assert {epoch: state_at(store_dir, epoch) for epoch in expected} == expected
            for path in run.store.paths:
                assert query(path, "SELECT count(*) FROM superseded WHERE until_epoch <= 4") == [(0,)]
                assert query(path, "SELECT count(*) FROM epochs WHERE epoch < 4") == [(0,)]
        assert problems(store_dir) == []

    def test_a_floor_never_goes_down(self, store_dir):
        """A smaller floor than the one collected to is no news."""
        with Driver(store_dir) as run:
            for _ in range(4):
                run.close(-1)
            assert run.store.collect(3) == [(0, 0), (0, 0)]
            before = content(store_dir)
            assert run.store.collect(1) == [(0, 0), (0, 0)]
            assert content(store_dir) == before

    def test_a_floor_beyond_the_newest_epoch_is_refused(self, store_dir):
        """Collecting may never remove the newest epoch's own row."""
        with Driver(store_dir) as run:
            run.close(-1)
            before = content(store_dir)
            with pytest.raises(AssertionError, match="cannot be collected"):
                run.store.collect(2)
            assert content(store_dir) == before

    def test_a_store_without_backup_interval_stays_near_its_live_rows(self, make_store):
        """Rewriting the same keys for many epochs does not make the file grow."""
        directory = make_store(1)
        with Driver(directory) as run:
            keys = [f"key-{number}" for number in range(500)]
            for batch in range(30):
                run.apply(batch, dict.fromkeys(keys, f'"{"v" * 100}{batch}"'))
                run.close(batch, floor=run.epoch - 1)
                run.store.checkpoint()
            [path] = run.store.paths
            [(live,)] = query(path, "SELECT sum(length(state_key) + length(ser_change) + 30) FROM snaps")
            [described] = run.store.describe()
            assert query(path, "SELECT count(*) FROM superseded") == [(500,)]
            assert described.size_bytes < 4.2 * live
            run.store.collect(run.epoch - 1)
            assert query(path, "SELECT count(*) FROM superseded") == [(0,)]
        # An idle file of a few pages has its fixed share; the rows themselves are tight.
        assert path.stat().st_size < 1.3 * live + 12 * 4096


class TestCost:
    """Work is proportional to what was touched, counted in SQLite's own steps, not in time."""

    TOUCHED = 50

    @pytest.mark.parametrize("work", ["close", "collect", "abandon"])
    def test_cost_follows_what_was_touched(self, make_store, work):
        """With a hundred times the state, the same touches cost the same, but for the depth of the trees."""
        costs = {}
        for size in (500, 50_000):
            directory = make_store(1)
            with Driver(directory) as run:
                run.apply(0, {f"k{number}": "1" for number in range(size)})
                run.close(0)
                run.close(0, floor=1)
                [writer], [path] = run.store._writers, run.store.paths
                keys = [f"k{number}" for number in range(0, 500, 500 // self.TOUCHED)]
                if work == "close":
                    run.apply(1, dict.fromkeys(keys, "2"))
                    costs[size] = steps_of(writer, partial(run.close, 1))
                    continue
                run.apply(1, dict.fromkeys(keys, "2"))
                run.close(1)
                if work == "collect":
                    costs[size] = steps_of(writer, partial(collect, writer, 3))
                else:
                    execution = new_execution(plan_resume(scan(directory), resume_epoch=3))
                    costs[size] = steps_of(writer, partial(rewind.start, writer, path, execution))
        small, large = costs.values()
        assert small > self.TOUCHED
        assert large < 1.2 * small + 200

    def test_rows_changed_are_those_touched(self, make_store):
        """Closing writes each touched state once and keeps what it replaces once, and of a new key nothing."""
        [path] = paths_of(make_store(1))
        with Driver(path.parent) as run:
            run.apply(0, {f"k{number}": "1" for number in range(1_000)})
            run.close(0)
            [writer] = run.store._writers
            run.apply(1, {f"k{number}": "2" for number in range(7)} | {"k999": None, "new": "1"})
            before = writer.total_changes()
            run.close(1)
            # 8 superseded, 8 written, 1 discarded, 1 epoch, 1 size.
            assert writer.total_changes() - before == 19

    @pytest.mark.parametrize("sql", [snap_rows.SUPERSEDE, snap_rows.WRITE, snap_rows.DISCARD, snap_rows.WRITTEN])
    def test_closing_scans_nothing_but_the_delta(self, store_dir, sql):
        """The statements that close an epoch look up every touched key; none reads through the snapshot."""
        with Driver(store_dir) as run:
            sql = sql.format(table="delta_0.touched_1")
            assert scans(run.store._writers[0], sql) <= {"SCAN m", "SCAN touched_1", "SCAN delta_0.touched_1"}

    @pytest.mark.parametrize(
        "sql",
        [
            describe.STEPS,
            "SELECT state_key, ser_change FROM snaps WHERE step_id = :step",
            "DELETE FROM superseded WHERE until_epoch <= :floor",
            rewind.UNDO.partition("AS\n")[2].replace("?", ":epoch"),
        ],
        ids=["steps", "values", "collect", "undo"],
    )
    def test_other_statements_search(self, store_dir, sql):
        """Naming steps, reading driver rows, collecting and abandoning go by the primary key."""
        with Driver(store_dir) as run:
            assert scans(run.store._writers[0], sql) <= {"SCAN steps"}


def scans(connection: apsw.Connection, sql: str) -> set[str]:
    """The tables that a statement reads through."""
    bindings = dict.fromkeys(re.findall(r":(\w+)", sql), 1)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings)]
    return {line for line in plan if line.startswith("SCAN")}


def steps_of(connection: apsw.Connection, work) -> int:
    """How many steps SQLite's machine takes on a connection."""
    counted = 0

    def count():
        nonlocal counted
        counted += 1
        return False

    connection.set_progress_handler(count, 1)
    try:
        work()
    finally:
        connection.set_progress_handler(None)
    return counted


def collect(writer: apsw.Connection, floor: int) -> None:
    """Collect in a transaction, as closing does."""
    with transaction(writer):
        assert fold.collect(writer, floor) > 0


def test_execution_numbers_grow_over_all_files(store_dir):
    """A number that any file has seen is never given again, also after a rewind."""
    for number in range(1, 4):
        with Driver(store_dir, resume_epoch=1) as run:
            assert run.execution.number == ExecutionNumber(number)


def test_keys_go_to_the_partition_of_their_checksum(store_dir):
    """Every row is in the file that its key belongs to."""
    with Driver(store_dir) as run:
        run.apply(0, {str(key): "1" for key in range(100)})
        run.close(0, driver_rows={"$at": {str(key): "x" for key in range(20)}})
        for index, path in enumerate(run.store.paths):
            keys = {row[0] for row in query(path, "SELECT state_key FROM snaps")}
            assert keys == {str(key) for key in range(100) if partition_of(str(key), 2) == index}


class TestValuesOfTheDriver:
    """Rows of reserved steps, as of any epoch that can be resumed."""

    def test_as_a_resume_epoch_will_find_them(self, store_dir):
        """The value before each epoch, a value that came later, and one that was discarded; nothing is changed."""
        step = "$sink"
        with Driver(store_dir) as run:
            for batch, values in enumerate([{"note": "1"}, {"note": "2", "new": "x"}, {"note": "3", "new": None}]):
                run.close(batch, driver_rows={step: values})
            before = content(store_dir)
            found = [run.store.driver_values(step, epoch) for epoch in (1, 2, 3, 4)]
            assert found == [{}, {"note": "1"}, {"note": "2", "new": "x"}, {"note": "3"}]
            assert run.store.driver_values(step) == found[-1]
            assert content(store_dir) == before


@pytest.mark.parametrize("made", [CREATE_ALL, CREATE_CHANGES_FILE], ids=["partition", "changes file"])
def test_the_columns_of_each_small_table(made):
    """They stand once, with what each may hold; the tables of partitions and of changes files have them."""
    connection = apsw.Connection(":memory:")
    connection.execute(made)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for table in tables & set(COLUMNS):
        found = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
        # `link` says which part of a chain a row belongs to; the one row of `beginning` needs no number.
        ignored = {"link", "digest", *(["one"] if table == "beginning" else [])}
        assert [name for name in found if name not in ignored] == list(COLUMNS[table]), table
    assert len(tables & set(COLUMNS)) >= 6
