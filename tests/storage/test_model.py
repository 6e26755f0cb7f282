"""Random histories of a store against a plain model of every epoch."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recovery.errors import InconsistentPartitionsError, LeaseLostError
from recovery.storage.history import states_at, steps_in
from recovery.storage.seam import StepEdit
from recovery.storage.sqlite.describe import describe, step_values
from recovery.storage.sqlite.file.reading import read_partition, reading
from recovery.values.keys import partition_of
from tests.stores import Driver, State, problems, query, state_at

COUNT = 2
STEPS = ("a", "b$ '\"", "c")
KEYS = ("", "1", "Ω", "😀\u2400\u2400", "it's\x1f;--")
TEXTS = st.sampled_from(["0", "1", "null", '"1"', "[1,{}]", "1e5", '"😀"'])
VALUES = st.none() | st.tuples(TEXTS, st.none() | st.integers(1, 40))
POSITIONS = TEXTS | st.binary(max_size=6).map(b"\xff".__add__)
"""Of rows of the run's own: text, or the content of a file."""
CHANGES = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
ATTEMPTS = st.lists(st.tuples(st.booleans(), st.sampled_from(STEPS), CHANGES), min_size=1, max_size=6)
DRIVER_STEP = "$position"


class Slot:
    """What one delta should say: the state before and after the newest batch that was applied to it."""

    def __init__(self, state: dict[str, tuple]) -> None:
        self.before = dict(state)
        self.after = dict(state)
        self.applied = -1

    def as_of(self, batch: int) -> dict[str, tuple]:
        return self.after if self.applied <= batch else self.before


@dataclass
class Told:
    """What the model knows of an epoch of some timeline: its state, its last micro-batch, and what it touched."""

    state: State
    batch: int
    touched: set


@dataclass
class Copy:
    """A copy of one partition, and which epochs it holds: of a timeline that may be abandoned since. logged: those that
    are not folded."""

    index: int
    path: Path
    held: dict[int, int]
    logged: set[int]


class Histories(RuleBasedStateMachine):
    """Apply, apply again, seal, close, log, fold, crash, rewind, collect, drop and rename, copy and put back, in any
    order."""

    make_store = None

    @initialize()
    def begin(self):
        self.directory = type(self).make_store(COUNT)
        self.snapshots: dict[int, State] = {0: {}}
        self.batches = {0: -1}
        self.touched: dict[int, set] = {}
        self.collected = 0
        self.ids = {0: 0}
        self.told = {0: Told({}, -1, set())}
        self.copies: list[Copy] = []
        # What a partition that was put back holds from before the window of all partitions.
        self.older: list[dict[int, int]] = [{} for _ in range(COUNT)]
        self.logged: list[set[int]] = [set() for _ in range(COUNT)]
        self.start()

    def start(self, resume_epoch: int | None = None, *, edits: bool = False):
        # What is logged is kept, or folded with or without the epochs before.
        keeps, window = not edits and len(self.told) % 3 == 0, len(self.told) % 3 == 1
        self.run = Driver(
            self.directory, STEPS, resume_epoch=resume_epoch, keeps_log=keeps, backup_interval_s=float(window)
        )
        newest = self.run.epoch - 1
        self.snapshots = {epoch: state for epoch, state in self.snapshots.items() if epoch <= newest}
        self.ids = {epoch: name for epoch, name in self.ids.items() if epoch <= newest}
        self.touched_now: set = set()
        self.logged = [{epoch for epoch in each if epoch <= newest} for each in self.logged]
        self.touched_unfolded: set = set().union(*(self.touched[epoch] for epoch in set().union(*self.logged)))
        if not keeps:
            self.folded([index for index, each in enumerate(self.logged) if newest in each], 0 if window else newest)
        self.sealed: tuple[int, State, set, bool] | None = None
        self.batch = self.closed_batch = self.batches[newest]
        self.fenced = self.worked = False
        self.written = True
        self.slots = {}
        for step in STEPS:
            for index in range(COUNT):
                held = self.snapshots[newest].items()
                self.slots[step, index] = Slot(
                    {k: v for (s, k), v in held if s == step and partition_of(k, COUNT) == index}
                )

    def newest(self) -> State:
        return self.snapshots[max(self.snapshots)]

    def put(self, batch: int, step: str, changes: dict):
        self.worked = True
        for index in range(COUNT):
            part = {key: change for key, change in changes.items() if partition_of(key, COUNT) == index}
            if not part:
                continue
            slot = self.slots[step, index]
            if slot.applied != batch:
                slot.before = dict(slot.after)
            slot.applied = batch
            slot.after = dict(slot.before)
            for key, change in part.items():
                self.touched_now.add((step, key))
                if change is None:
                    slot.after.pop(key, None)
                else:
                    slot.after[key] = change
        self.run.apply(batch, changes, step)

    @rule(attempts=ATTEMPTS, opened=st.booleans(), now=st.integers(0, 45))
    def work(self, attempts, opened, now):
        """Micro-batches one after another; an attempt that is not new replaces what its task did before."""
        for new, step, changes in attempts:
            if new or self.batch <= self.closed_batch:
                self.batch += 1
                if opened:
                    self.run.store.open(self.run.lease, self.batch)
            self.put(self.batch, step, changes)
            self.look(step, now)

    more_work = work  # a rule of its own, so that it comes more often

    def look(self, step, now):
        """Compare what the tasks of this and of the next micro-batch see with the model."""
        for batch in (self.batch, self.batch + 1):
            expected = {}
            for index in range(COUNT):
                expected.update(self.slots[step, index].as_of(batch - 1))
            found = self.run.read(batch, KEYS, step)
            assert found == {key: expected.get(key, (None, None))[0] for key in KEYS}
            due = sorted(key for key, (_, timeout) in expected.items() if timeout is not None and timeout <= now)
            assert self.run.due(batch, now, step) == due
        timeouts = [t for slot in self.slots.values() for _, t in slot.after.values() if t is not None]
        assert self.run.store.next_due_ms(self.run.lease) == min(timeouts, default=None)

    @precondition(lambda self: self.fenced)
    @rule(step=st.sampled_from(STEPS), key=st.sampled_from(KEYS), late=st.integers(0, 3))
    def late_task(self, step, key, late):
        with pytest.raises(LeaseLostError):
            self.run.apply(self.closed_batch - late, {key: ("666", None)}, step)

    @precondition(lambda self: self.sealed is None)
    @rule(lag=st.integers(0, 1), logged=st.booleans(), apart=st.booleans())
    def seal(self, lag, logged, apart=True):
        """End the epoch; what tasks do from here on belongs to the next one. What is logged need not be set apart."""
        batch = max(self.batch - lag, self.closed_batch)
        self.run.store.seal(self.run.lease, batch, apart=apart or not logged)
        self.sealed = (batch, self.cut(batch), self.touched_now, logged)
        self.touched_now = {
            (step, key)
            for (step, _), slot in self.slots.items()
            if slot.applied > batch
            for key in (*slot.after, *slot.before, *KEYS)
        }
        self.closed_batch = batch
        self.fenced = True

    @rule(lag=st.integers(0, 1), floor=st.integers(0, 3), position=POSITIONS, logged=st.booleans(), fold=st.booleans())
    def close(self, lag, floor, position, logged, fold):
        """Move the epoch into the snapshots, or log it; and then fold it, or not."""
        if self.sealed is None:
            self.seal(lag, logged, fold)
        batch, cut, touched, logged = self.sealed
        floor = max(0, self.run.epoch - 1 - floor)
        epoch = self.run.epoch
        settings = {"floor": floor, "driver_rows": {DRIVER_STEP: {"position": position}}, "logged": logged}
        written = self.run.close(batch, **settings)
        if logged:
            self.logged = [each | {epoch} for each in self.logged]
            self.touched_unfolded |= touched
        else:
            touched = touched | self.touched_unfolded
            if any(self.logged):
                self.folded(range(COUNT), floor)
            assert sum(written) <= len(touched) + 1
        self.closed(epoch, cut | {(DRIVER_STEP, "position"): (position, None)}, batch, touched)
        self.written, self.sealed = True, None
        if not logged:
            self.forget(floor)
        self.run.store.close(self.run.lease, self.run.requests(batch, epoch=epoch, **settings))
        # What was set apart is in the way of the next epoch until it is folded.
        if logged and (self.is_apart() or (fold and self.may_fold())):
            self.fold()

    def is_apart(self) -> bool:
        [deltas, *_] = self.run.store._deltas.values()
        return deltas[0]._meta().sealed

    def may_fold(self) -> bool:
        """Whether what is logged can be set apart: no task but of the next micro-batch has run."""
        return self.sealed is None and any(self.logged) and self.batch <= self.closed_batch + 1

    @precondition(lambda self: self.may_fold())
    @rule(back=st.integers(0, 3))
    def fold(self, back=0):
        floor = max(self.run.epoch - 1 - back, 0)
        self.run.fold(floor)
        self.folded(range(COUNT), floor)
        self.forget(floor)
        self.written = True
        self.run.store.fold(self.run.lease, self.run.epoch - 1, floor)

    def folded(self, indexes, floor: int) -> None:
        """Note that partitions have folded, and hold nothing but their newest epoch any more if that is the floor."""
        if not indexes:
            return
        self.touched_unfolded = set()
        newest = max(self.snapshots)
        if floor < newest:
            self.logged = [set() if index in indexes else each for index, each in enumerate(self.logged)]
            return
        for index in range(COUNT):
            if index in indexes:
                self.older[index], self.logged[index] = {}, set()
            else:
                self.older[index] |= {epoch: self.ids[epoch] for epoch in self.snapshots if epoch < newest}
        self.collected = newest
        self.snapshots = {newest: self.snapshots[newest]}

    def closed(self, epoch: int, state: State, batch: int, touched: set) -> None:
        """Note an epoch under a name of its own: epochs of other timelines have the same numbers."""
        name = self.ids[epoch] = len(self.told)
        self.told[name] = Told(state, batch, touched)
        self.snapshots[epoch], self.batches[epoch], self.touched[epoch] = state, batch, touched

    def cut(self, batch: int) -> State:
        state = {key: value for key, value in self.newest().items() if key[0] == DRIVER_STEP}
        for (step, _), slot in self.slots.items():
            state |= {(step, key): value for key, value in slot.as_of(batch).items()}
        return state

    def forget(self, floor: int):
        self.older = [{epoch: name for epoch, name in older.items() if epoch >= floor} for older in self.older]
        self.collected = max(self.collected, floor)
        self.snapshots = {epoch: state for epoch, state in self.snapshots.items() if epoch >= self.collected}

    def held(self, index: int) -> dict[int, int]:
        """The epochs that one partition holds."""
        return self.older[index] | {epoch: self.ids[epoch] for epoch in self.snapshots}

    @rule(back=st.integers(0, 3))
    def collect(self, back):
        floor = min([max(self.snapshots) - back, *(epoch - 1 for each in self.logged for epoch in each)])
        if floor > 0 and not self.run.store._writers[0].in_transaction:
            self.run.store.collect(floor)
            self.forget(floor)
            self.written = True

    @precondition(lambda self: self.worked)
    @rule(back=st.integers(0, 4), killed=st.booleans())
    def rewind(self, back, killed):
        """Start again, at the newest epoch or an earlier one; killed: as after a crash, with files left behind."""
        self.stop(killed)
        resume = max(max(self.snapshots) - back, self.collected) + 1
        self.start(resume if back else None)
        assert self.run.epoch == resume

    @precondition(lambda self: self.worked)
    @rule(closed=st.integers(0, COUNT), position=POSITIONS, logged=st.booleans())
    def crash_while_closing(self, closed, position, logged):
        """The epoch is closed in some partitions only: the next run starts it again, everywhere."""
        epoch = self.run.epoch
        batch, cut, touched, logged = self.sealed or (self.batch, self.cut(self.batch), self.touched_now, logged)
        if not logged:
            touched = touched | self.touched_unfolded
        requests = self.run.requests(batch, driver_rows={DRIVER_STEP: {"position": position}}, logged=logged)
        for index in range(closed):
            self.run.store.close_partition(index, self.run.lease, requests[index])
            if logged:
                self.logged[index] = self.logged[index] | {epoch}
            elif self.logged[index]:
                self.folded([index], 0)
        if closed == COUNT:
            self.closed(epoch, cut | {(DRIVER_STEP, "position"): (position, None)}, batch, touched)
        self.stop(killed=True)
        self.start()
        assert self.run.epoch == epoch + (closed == COUNT)

    @rule(index=st.integers(0, COUNT - 1))
    def copy(self, index):
        """Back up one partition while the run goes on."""
        path = self.directory.with_name(f"{self.directory.name}-copy-{len(self.copies)}")
        source = apsw.Connection(str(self.run.store.paths[index]), flags=apsw.SQLITE_OPEN_READONLY)
        target = apsw.Connection(str(path))
        with target.backup("main", source, "main") as backup:
            backup.step()
        source.close()
        target.close()
        self.copies.append(Copy(index, path, self.held(index), self.logged[index]))

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), killed=st.booleans())
    def restore(self, data, killed):
        """Put one or more copies, of any age and timeline, in the place of their partitions."""
        chosen = data.draw(st.lists(st.sampled_from(self.copies), min_size=1, max_size=2, unique_by=lambda c: c.index))
        self.stop(killed)
        kept = self.directory.with_name(self.directory.name + "k")
        shutil.copytree(self.directory, kept)
        for copy in chosen:
            for suffix in ("", "-wal", "-shm"):
                (self.directory / f"part-{copy.index}.sqlite3{suffix}").unlink(missing_ok=True)
            shutil.copy(copy.path, self.directory / f"part-{copy.index}.sqlite3")
        put_back = {copy.index: copy.held for copy in chosen}
        before = list(self.logged)
        held = [put_back[index] if index in put_back else self.held(index) for index in range(COUNT)]
        shared = {epoch: name for epoch, name in held[0].items() if all(each.get(epoch) == name for each in held)}
        if shared:
            for copy in chosen:
                self.logged[copy.index] = copy.logged
            self.older = [{epoch: name for epoch, name in each.items() if epoch < min(shared)} for each in held]
            self.ids = shared
            self.snapshots = {epoch: self.told[name].state for epoch, name in shared.items()}
            self.batches = {epoch: self.told[name].batch for epoch, name in shared.items()}
            self.touched = {epoch: self.told[name].touched for epoch, name in shared.items()}
            self.collected = min(shared)
            self.start()
            assert self.run.epoch == max(shared) + 1
        else:
            with pytest.raises(InconsistentPartitionsError):
                Driver(self.directory, STEPS)
            shutil.rmtree(self.directory)
            shutil.copytree(kept, self.directory)
            self.logged = before
            self.start()
        shutil.rmtree(kept)
        self.written = True

    @precondition(lambda self: self.worked)
    @rule(drop=st.booleans())
    def edit_steps(self, drop):
        """Drop the last step, or give its state to one that has none; before any batch, as a run does."""
        self.stop(killed=False)
        self.start(edits=True)
        old, new = STEPS[2], STEPS[0]
        state = self.newest()
        if not drop and any(step == new for step, _ in state):
            return
        epoch = self.run.epoch
        self.run.close(self.closed_batch, edits=[StepEdit(old, None if drop else new)])
        moved = {} if drop else {(new, key): value for (step, key), value in state.items() if step == old}
        left = {key: value for key, value in state.items() if key[0] != old} | moved
        self.closed(epoch, left, self.closed_batch, {key for key in state if key[0] == old} | set(moved))
        self.stop(killed=False)
        self.start()

    def stop(self, killed: bool):
        if killed:
            # What a killed process leaves is the files and their logs; its connections are closed by the system,
            # which SQLite cannot tell from here, so a copy of the directory replaces it.
            survivor = self.directory.with_name(self.directory.name + "s")
            shutil.copytree(self.directory, survivor)
            self.run.store.release()
            shutil.rmtree(self.directory)
            survivor.rename(self.directory)
        else:
            self.run.store.release()

    @invariant()
    def the_files_hold_what_the_model_says(self):
        """Every held epoch is as it was, the window is what is held, nothing grows, and a full check finds nothing."""
        if not self.written:
            return
        self.written = False
        for epoch, state in self.snapshots.items():
            assert state_at(self.directory, epoch) == state, f"epoch {epoch}"
            assert self.found_at(epoch) == state, f"epoch {epoch}"
        for each in self.run.store.describe():
            held = {closed.epoch for closed in each.epochs} | ({0} if each.collected == 0 else set())
            assert held == set(self.held(each.index))
            counts = query(each.path, "SELECT until_epoch, count(*) FROM superseded GROUP BY 1")
            for epoch, count in counts:
                assert epoch > each.collected
                assert epoch not in self.touched or count <= len(self.touched[epoch]) + 1
        assert problems(self.directory) == []

    def found_at(self, epoch: int) -> State:
        """The same as the package reads it."""
        found: State = {}
        for path in self.run.store.paths:
            closed = next(
                (each for each in read_partition(path, partial(describe, path=path)).epochs if each.epoch == epoch),
                None,
            )
            if closed is None:
                continue
            for step in steps_in(path):
                states = list(states_at(path, step, closed.cut))
                found |= {(step, each.key): (each.value, each.timeout_ms) for each in states}
                with reading(path) as connection:
                    assert dict(step_values(connection, path, step, epoch + 1)) == {s.key: s.value for s in states}
        return found

    def teardown(self):
        if hasattr(self, "run"):
            self.run.store.release()
            shutil.rmtree(self.directory)
            for copy in self.copies:
                copy.path.unlink()


def _run(store_maker, examples: int, steps: int):
    Histories.make_store = staticmethod(store_maker)
    test = Histories.TestCase
    test.settings = settings(max_examples=examples, stateful_step_count=steps, print_blob=True, deadline=None)
    test("runTest").runTest()


def test_random_histories_agree_with_a_model_of_every_epoch(store_maker):
    """Whatever happens in whatever order, each held epoch is what the model says, and a full check finds nothing."""
    _run(store_maker, 8, 25)


@pytest.mark.long
def test_many_random_histories_agree_with_the_model(store_maker):
    """The same, for longer; RECOVERY_TEST_HISTORIES and RECOVERY_TEST_HISTORY_STEPS say how many and how long."""
    histories = int(os.environ.get("RECOVERY_TEST_HISTORIES", "400"))
    _run(store_maker, histories, int(os.environ.get("RECOVERY_TEST_HISTORY_STEPS", "45")))
