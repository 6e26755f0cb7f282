"""Power loss: writes that were not synced are dropped or torn, and no closed epoch is lost."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from recovery.errors import RecoveryError
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from recovery.storage.sqlite import store as files
from tests.faults.disk import Event, Recorder, Replay, in_use
from tests.stores import Driver, State, paths_of, problems, state_at

STEP = "count"
COUNT = 2
KEYS = [f"key{number}" for number in range(40)]


class History:
    """What was done to a store: every event of its disk, and every epoch's state, by the execution that closed it."""

    def __init__(self, directory: Path, generator: random.Random, epochs: int) -> None:
        self.directory = directory
        self.before = {str(path): path.read_bytes() for path in paths_of(directory)}
        self.states: dict[tuple[int, int], State] = {(0, 0): {}}
        recorder = Recorder(directory)
        with in_use(recorder):
            self._run(recorder, generator, epochs)
        self.events = recorder.events

    def _run(self, recorder: Recorder, generator: random.Random, epochs: int) -> None:
        """Executions of some epochs each, moved, logged and folded, with rewinds, collection, checkpoints and runs that
        end in the middle."""
        left, batch = epochs, 0
        state: State = {}
        while left:
            rewind = generator.random() < 0.2
            window = plan_resume(scan(self.directory)).window
            resume = generator.choice(window) + 1 if rewind else None
            # A rewind gives up what it abandons: from its beginning on, only what it keeps is promised.
            recorder.mark(("kept", (resume or window[-1] + 1) - 1))
            with Driver(self.directory, [STEP], resume_epoch=resume) as run:
                state = self._state_of(run.epoch - 1)
                for _ in range(min(left, generator.randrange(1, 6))):
                    left -= 1
                    batch += 1
                    state = self._apply(run, generator, batch, state)
                    epoch = run.epoch
                    self.states[epoch, run.execution.number] = state
                    logged = generator.random() < 0.4
                    run.close(batch, floor=max(0, epoch - 4) if generator.random() < 0.3 else 0, logged=logged)
                    recorder.mark(("closed", epoch))
                    if logged and generator.random() < 0.3:
                        run.fold()
                    if generator.random() < 0.3:
                        run.move_logs()
                if generator.random() < 0.2:
                    run.store.collect(max(0, run.epoch - 3))

    def _state_of(self, epoch: int) -> State:
        number = 0
        if epoch:
            number = next(e.execution.number for e in scan(self.directory)[0].description.epochs if e.epoch == epoch)
        return self.states[epoch, number]

    def _apply(self, run: Driver, generator: random.Random, batch: int, state: State) -> State:
        found = dict(state)
        changes: dict[str, str | None] = {}
        for key in generator.sample(KEYS, generator.randrange(1, len(KEYS))):
            changes[key] = None if generator.random() < 0.2 else f'"{batch}{"x" * generator.randrange(300)}"'
            if changes[key] is None:
                found.pop((STEP, key), None)
            else:
                found[STEP, key] = (changes[key], None)
        run.apply(batch, changes)
        return found


def crashes(history: History, generator: random.Random, count: int) -> Iterator[tuple[int, Replay, int]]:
    """Moments at which the power fails, among them many in the middle of a commit: (number of the event, the disk
    then, the newest epoch that was promised)."""
    moments = sorted(generator.sample(range(1, len(history.events) + 1), min(count, len(history.events))))
    replay, promised = Replay(history.before), 0
    for number, event in enumerate(history.events, 1):
        replay.follow(event)
        if event.kind == "mark":
            promised = event.data[1]
        while moments and moments[0] == number:
            moments.pop(0)
            yield number, replay, promised


def check(directory: Path, history: History, promised: int) -> int:
    """The files share the promised epoch or a newer one, each epoch that they share is exact, and nothing is damaged;
    a run can go on from there. Returns the newest shared epoch."""
    plan = plan_resume(scan(directory))
    newest = plan.window[-1]
    assert newest >= promised, f"epoch {promised} was closed, and the files share {newest}"
    assert problems(directory) == []
    by = {e.epoch: e.execution.number for e in plan.partitions[0].epochs}
    for epoch in plan.window:
        assert state_at(directory, epoch) == history.states[epoch, by.get(epoch, 0)], f"epoch {epoch}"
    with Driver(directory, [STEP]) as run:
        run.apply(10_000, {"after": '"the loss"'})
        run.close(10_000)
    assert state_at(directory, newest + 1)[STEP, "after"] == ('"the loss"', None)
    assert problems(directory) == []
    return newest


def lose_power(root: Path, store_maker, seed: int, states: int) -> int:
    """Make histories and let the power fail in them until so many states were checked."""
    generator = random.Random(seed)
    done = 0
    while done < states:
        history = History(store_maker(COUNT), generator, 20)
        for number, replay, promised in crashes(history, generator, min(50, states - done)):
            directory = root / f"{done}"
            directory.mkdir()
            replay.power_loss(generator, directory)
            try:
                check(directory, history, promised)
            except BaseException as error:
                error.add_note(f"seed {seed}, power lost after event {number} of {len(history.events)}, state {done}")
                raise
            shutil.rmtree(directory)
            done += 1
        shutil.rmtree(history.directory)
    return done


@pytest.fixture
def root(store_maker):
    """A place for what is left after the power failed, in memory."""
    directory = store_maker(1).with_name("lost")
    directory.mkdir(exist_ok=True)
    yield directory
    shutil.rmtree(directory)


def test_no_closed_epoch_is_lost(root, store_maker):
    """Whatever was not synced is dropped or torn: the newest closed epoch is there, whole, and a run goes on."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    assert lose_power(root, store_maker, seed, 30) >= 30


@pytest.mark.long
def test_no_closed_epoch_is_lost_in_many_states(root, store_maker):
    """The same; RECOVERY_TEST_POWER_LOSSES says how many."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    states = lose_power(root, store_maker, seed, int(os.environ.get("RECOVERY_TEST_POWER_LOSSES", "2000")))
    print(f"states checked: {states}")


def test_the_loss_is_real(root, store_maker, monkeypatch):
    """Without syncing, the same losses do lose closed epochs or damage files: the test above can fail."""
    prepare = files.prepare_writer

    def careless(connection: apsw.Connection, path: Path, *, cache_bytes: int) -> None:
        prepare(connection, path, cache_bytes=cache_bytes)
        connection.pragma("synchronous", "OFF")

    monkeypatch.setattr(files, "prepare_writer", careless)
    with pytest.raises((AssertionError, RecoveryError, apsw.Error)):
        lose_power(root, store_maker, 1, 100)


def test_the_replayed_disk_is_the_disk(root, store_maker):
    """With nothing dropped, what the events give is what the files are."""
    history = History(store_maker(COUNT), random.Random(3), 12)
    replay = Replay(history.before)
    for event in history.events:
        replay.follow(event)
    for path in paths_of(history.directory):
        replay.follow(Event("sync", str(path)))
        assert replay.files[str(path)].durable == path.read_bytes()
    shutil.rmtree(history.directory)
