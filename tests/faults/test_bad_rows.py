"""Runs that put rows into quarantine, the edit that marks these for replay, and the run that replays them are killed at
every crash point: states, output and what waits are those of a model, and each row counts once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from recovery.base.clock import SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.base.ids import BatchId, StepId
from recovery.operational.steps.quarantine import WaitingRows, Wanted, replay
from recovery.storage.reach import reach
from recovery.storage.seam import TaskStore
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import OwnerAccess, Store
from tests.faults import minirun
from tests.faults.minirun import CLOSE_POINTS, FOLD_POINTS, START_POINTS, MiniRun, child, die_at, wait
from tests.owner.histories import DRIVER_POINTS, UNHURRIED, ForkedOwner
from tests.owner.served import token_file
from tests.shares import one_in
from tests.spark.tasks import test_quarantine_model
from tests.spark.tasks.test_quarantine_model import COUNT, KEYS, QUARANTINE, Faults, Model, step
from tests.stores import STEP, problems

BAD, ALL = 5, 9
"""The micro-batches until the code is fixed, and all."""
POINTS = [*START_POINTS, *CLOSE_POINTS, *FOLD_POINTS]
EDIT_POINTS = [
    "start.3.partition", "close.2.checked", "close.2.collected", "close.2.driver", "close.2.snaps", "close.2.epochs",
    "close.2.committed", "close.3", "close.4",
]  # fmt: skip
"""The crash points that an edit comes by."""
BAD_VALUES = {3, 7}
NEVER = ("", 1)
"""No point, and its first visit."""
Output = list[tuple[str, int]]


def rows_of(seed: int, batch: int) -> Output:
    """The rows of a micro-batch, by key."""
    chance = random.Random(f"rows {seed} {batch}")
    return sorted((chance.choice(KEYS), chance.randrange(10)) for _ in range(12))


class Tasks:
    """What a task of an execution gets."""

    count = COUNT

    def __init__(self, run: MiniRun) -> None:
        self._run = run

    def task(self) -> TaskStore:
        return reach(self._run.store.address(self._run.lease), task_key=task_key())[0]


class QuarantineRun(MiniRun):
    """An execution whose tasks are those of a step with a quarantine. A micro-batch's output is a file, which the next
    execution that runs the micro-batch replaces."""

    steps = (STEP, QUARANTINE)
    hold: ClassVar[str] = "key"
    outputs: ClassVar[Path]

    def task(self, index: int, batch: BatchId) -> None:
        # All partitions in one call: rows wake those that have none.
        if index:
            return
        made = step(self.hold, "rows")
        self._output = test_quarantine_model.run(Tasks(self), made, batch, rows_of(self.number, batch), 0, COUNT)

    def deliver(self, batch: BatchId) -> None:
        (self.outputs / f"{batch}.json").write_text(json.dumps(self._output))


class Bad:
    """One history: an input, where its partitions are, and who dies at which point."""

    def __init__(self, directory: Path, root: Path, seed: int, hold: str, owned: bool) -> None:
        self.seed, self.hold, self.kept = seed, hold, directory
        self.outputs = root / f"{directory.name}-outputs"
        self.outputs.mkdir()
        self.owner: ForkedOwner | None = None
        self.directory = directory
        if owned:
            self.directory = root / f"{directory.name}-driver"
            self.directory.mkdir()
            self.token = token_file(root)
            self.owner = ForkedOwner([directory], self.token)

    def settings(self) -> dict:
        if self.owner is None:
            return {}
        return {"owners": (self.owner.at,), "token_file": self.token, **UNHURRIED}

    def store(self) -> Store:
        if self.owner is None:
            return Store(self.directory)
        return Store(self.directory, OwnerAccess((self.owner.at,), self.token).connect(UNHURRIED["owner_deadline"]))

    def _work(self, work: Callable[[], object], point: str, visit: int) -> int:
        """Do work in a process of its own; that process dies at the point, or the owner, where the point is there."""
        there = self.owner is not None and point not in DRIVER_POINTS
        if self.owner is not None:
            if there and point:
                self.owner.end(signal.SIGTERM)
            self.owner.start(*((point, visit) if there else ()))

        def begun() -> None:
            if not there:
                die_at(point, visit)
            work()

        code = wait(child(begun))
        if self.owner is not None and there and point:
            died = not self.owner.running()
            self.owner.end(signal.SIGTERM)
            assert died or code == 0
            code = -signal.SIGKILL if died else code
        return code

    def run(self, batches: int, values: set[int], point: str = "", visit: int = 1) -> int:
        """Run up to a micro-batch, with code that fails for these values."""

        def work() -> None:
            Faults.values, Faults.offset, Faults.sets_timeouts = values, 0, False
            QuarantineRun.hold, QuarantineRun.outputs = self.hold, self.outputs
            config = {"backup_interval": 3600 if self.seed % 2 else 0, "discard_history": True, **self.settings()}
            if self.owner is not None and point and point not in DRIVER_POINTS:
                config["owner_deadline"] = 0.5
            minirun.run(self.directory, self.seed, batches, self.seed, kind=QuarantineRun, **config)

        return self._work(work, point, visit)

    def mark(self, point: str = "", visit: int = 1) -> int:
        """Mark all rows that wait for replay."""
        return self._work(lambda: replay(self.store(), Wanted(), SystemClock()), point, visit)

    def at(self) -> Snapshot:
        if self.owner is not None:
            self.owner.start()
        return self.store().at()

    def waiting(self) -> WaitingRows:
        return WaitingRows.of((each.note, each.replays) for each in Wanted().keys(self.at()))

    def check(self, model: Model, output: Output) -> None:
        """Compare everything with the model."""
        at = self.at()
        found = {state.key: msgspec.json.decode(state.value) for state in at.states(StepId(STEP))}
        assert found == {key: of.values for key, of in model.keys.items() if of.values is not None}
        assert {each.key: each.note.rows for each in Wanted().keys(at)} == model.waiting()
        shown = [tuple(row) for file in self.outputs.iterdir() for row in json.loads(file.read_text())]
        assert Counter(shown) == Counter(output)


def killed_and_resumed(history: Bad, deaths: dict[str, tuple[str, int]]) -> set[str]:
    """Kill phases of a history, each at a point and a visit, then do each again, and go on. Returns the phases in which
    the point was come by."""
    model, output = Model(history.hold, timeouts=False), Output()
    codes: dict[str, int] = {}
    codes["quarantine"] = history.run(BAD, BAD_VALUES, *deaths.get("quarantine", NEVER))
    assert history.run(BAD, BAD_VALUES) == 0
    Faults.values = BAD_VALUES
    for batch in range(BAD):
        output += model.run(rows_of(history.seed, batch), 0)
    history.check(model, output)
    assert model.waiting()
    codes["mark"] = history.mark(*deaths.get("mark", NEVER))
    history.check(model, output)
    assert history.mark() == 0
    assert history.waiting().replays
    model.marked = set(model.waiting())
    codes["replay"] = history.run(ALL, set(), *deaths.get("replay", NEVER))
    assert history.run(ALL, set()) == 0
    Faults.values = set()
    for batch in range(BAD, ALL):
        output += model.run(rows_of(history.seed, batch), 0)
    assert not model.waiting()
    history.check(model, output)
    if history.owner is not None:
        history.owner.end(signal.SIGTERM)
    assert problems(history.kept) == []
    return {phase for phase, code in codes.items() if code == -signal.SIGKILL}


HOLDS = ["key", "no"]
CASES = [*one_in(8, POINTS, HOLDS, ["files"]), *one_in(24, POINTS, HOLDS, ["owner"])]
INPUTS = int(os.environ.get("RECOVERY_TEST_BAD_ROW_INPUTS", "1"))


@pytest.mark.parametrize(("point", "hold", "where"), CASES)
def test_killed_at_a_crash_point(point, hold, where, make_store, tmp_path, monkeypatch):
    """Both runs of a history at this point, and the edit at one of its own. The history is replayed by the test's name.
    RECOVERY_TEST_BAD_ROW_INPUTS says with how many inputs."""
    monkeypatch.setattr(Faults, "values", set())
    monkeypatch.setattr(Faults, "offset", 0)
    monkeypatch.setattr(Faults, "sets_timeouts", False)
    edit = EDIT_POINTS[(POINTS.index(point) // 3 + HOLDS.index(hold)) % len(EDIT_POINTS)]
    # A run that finds where its input begins does not come by start.5.
    runs = ["quarantine"] if point.startswith("start.5") else ["quarantine", "replay"]
    for number in range(INPUTS):
        left = {*runs, "mark"}
        # Every other input has a setting under which epochs are logged and folded: some points are come by only then.
        for seed in (2 * number, 2 * number + 1):
            chance = random.Random(f"{seed} {point} {hold}")
            visit = lambda: 1 if point.startswith(("start", "fold")) else chance.randrange(1, 4)  # noqa: B023, E731
            deaths = {phase: (edit, 1) if phase == "mark" else (point, visit()) for phase in sorted(left)}
            directory = make_store(COUNT)
            history = Bad(directory, tmp_path, seed, hold, where == "owner")
            try:
                left -= killed_and_resumed(history, deaths)
            except BaseException as error:
                error.add_note(f"seed {seed}, killed at {deaths}")
                raise
            finally:
                if history.owner is not None:
                    history.owner.end()
            shutil.rmtree(directory, ignore_errors=True)
            if not left:
                break
        assert not left
