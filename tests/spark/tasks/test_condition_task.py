"""Random histories of a step that puts rows aside by a condition: output and what waits are those of a model."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from recovery.base.ids import NO_BATCH
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, ROUTE, WHEN, StepDefinition
from recovery.spark.tasks.condition_task import ConditionTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.storage.initialize import init_partitions
from recovery.storage.seam import BatchCount
from recovery.values.keys import hash_of, partition_of
from recovery.values.quarantine import REPLAY_MS, WITHOUT_KEY, entry_key, note_key
from recovery.values.quarantined_rows import ENTRY, Replayed, unpacked
from tests.memory_store import MemoryDirectory
from tests.stores import STEP, Driver, OwnedDirectory, pack, problems
from tests.tasks import definition

pytestmark = pytest.mark.any_spark

COUNT = 3
QUARANTINE = f"$bad {STEP}"
HOME = partition_of(WITHOUT_KEY, COUNT)
ROWS = pa.table({"v": pa.array([], pa.int64())})
Waiting = list[tuple[int, list[int]]]
"""Attempts and values of each entry."""


def step() -> StepDefinition:
    made = definition(None, "n bigint", "v bigint", ROWS, [])
    return replace(
        made, state_schema=None, hold="no", replays=True, inputs=(WHEN,), when="v is bad", key_in_place=False
    )


def run(driver: Driver, batch: int, rows: list[int], bad: set[int], tasks: int | None) -> list[int]:
    """Run a micro-batch with ticks for all partitions: in so many tasks, or in one that has all partitions (None)."""
    made = replace(step(), replayed=looked_at(driver, batch, bad))
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    every = [(None, None, number) for number in range(COUNT)]
    every += [(value, value in bad, hash_of(WITHOUT_KEY) if value in bad else value) for value in rows]
    found: list[int] = []
    for place in [EVERYWHERE] if tasks is None else range(tasks):
        mine = [each for each in every if place < 0 or each[2] % COUNT % tasks == place]
        if mine:
            chunks = [
                pa.record_batch(
                    {
                        "v": pa.array([each[0] for each in some], pa.int64()),
                        WHEN: pa.array([each[1] for each in some], pa.bool_()),
                        ROUTE: pa.array([place << HASH_BITS | each[2] for each in some], pa.int64()),
                    }
                )
                for some in (mine[:5], mine[5:])
                if some
            ]
            for each in run_tasks(made, iter(chunks), connect, batch, ConditionTask, tasks or 1):
                found += each.column(0).to_pylist()
    return found


def looked_at(driver: Driver, batch: int, bad: set[int]) -> Replayed:
    """The condition for all rows that wait."""
    places, values = list[tuple[str, int]](), list[tuple[int, bool]]()
    for number, _, rows in entries(driver, batch):
        values += [(len(places), value in bad) for value in rows]
        places.append((WITHOUT_KEY, number))
    if not places:
        return Replayed((), b"")
    table = pa.table({ENTRY: pa.array([index for index, _ in values], pa.int32()),
                      WHEN: pa.array([each for _, each in values], pa.bool_())})  # fmt: skip
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Replayed(tuple(places), sink.getvalue().to_pybytes())


def note_of(driver: Driver, batch: int) -> dict[str, Any] | None:
    task = driver.task()
    try:
        [text] = task.read(QUARANTINE, batch, {HOME: (note_key(WITHOUT_KEY),)})[HOME]
    finally:
        task.release()
    return None if text is None else msgspec.json.decode(text)


def entries(driver: Driver, batch: int) -> list[tuple[int, int, list[int]]]:
    """Number, attempts and values of each entry, as the micro-batch finds them."""
    note = note_of(driver, batch)
    found = []
    task = driver.task()
    try:
        for number in range(note["first"], note["end"]) if note else ():
            [text] = task.read(QUARANTINE, batch, {HOME: (entry_key(WITHOUT_KEY, number),)})[HOME]
            if text is not None:
                entry = msgspec.json.decode(text)
                values = unpacked(entry["data"], AssertionError)["v"].to_pylist()
                assert (len(values), entry["failure"]) == (
                    entry["rows"],
                    {"type": "when", "message": "v is bad", "places": []},
                )
                found.append((number, entry["attempts"], values))
    finally:
        task.release()
    assert sum(len(values) for _, _, values in found) == (note["rows"] if note else 0)
    return found


def mark(driver: Driver, batch: int) -> None:
    note = note_of(driver, batch)
    task = driver.task()
    try:
        text = msgspec.json.encode(note).decode()
        changes = [pack({note_key(WITHOUT_KEY): (text, REPLAY_MS)})] if note else []
        task.apply(QUARANTINE, batch, {HOME: changes}, BatchCount(0, 0))
    finally:
        task.release()


class Model:
    """What waits, and whether it is marked."""

    def __init__(self) -> None:
        self.waiting: Waiting = []
        self.marked = False

    def run(self, rows: list[int], bad: set[int]) -> list[int]:
        output: list[int] = []
        if self.marked:
            left: Waiting = []
            for attempts, values in self.waiting:
                output += [value for value in values if value not in bad]
                stays = [value for value in values if value in bad]
                left += [(attempts + 1, stays)] if stays else []
            self.waiting, self.marked = left, False
        output += [value for value in rows if value not in bad]
        return output


@pytest.mark.parametrize(("where", "seed"), [("memory", 0), ("memory", 1), ("files", 2), ("files", 3), ("owner", 4)])
def test_a_random_history(seed, where, tmp_path):
    """Replayed by the seed in the test's name. Executions are killed; some micro-batches run twice, with another
    condition."""
    random_ = random.Random(seed)
    directory: Any = MemoryDirectory(COUNT)
    if where != "memory":
        init_partitions(tmp_path / "files", COUNT)
        directory = OwnedDirectory(tmp_path / "files") if where == "owner" else tmp_path / "files"
    model, batch, total = Model(), NO_BATCH, 0
    closed = copy.deepcopy(model)
    driver = Driver(directory, (STEP, QUARANTINE))
    try:
        for _ in range(60):
            kind = random_.random()
            if kind < 0.1:
                driver.__exit__()
                driver = Driver(directory, (STEP, QUARANTINE))
                model = copy.deepcopy(closed)
                batch = driver.plan.partitions[0].newest.batch_id if driver.plan.partitions[0].newest else NO_BATCH
                total = sum(len(values) for _, values in model.waiting)
                continue
            batch += 1
            driver.store.open(driver.lease, batch)
            if kind < 0.3:
                mark(driver, batch)
                model.marked = bool(model.waiting)
            else:
                rows = [random_.randrange(20) for _ in range(random_.randrange(15))]
                bad = {*random_.sample(range(20), random_.randrange(6))}
                tasks = random_.choice([None, COUNT, 2, 1])
                if random_.random() < 0.3:
                    # An attempt whose condition is another, and which does not count.
                    run(driver, batch, rows, {*random_.sample(range(20), 6)}, tasks)
                expected = model.run(rows, bad)
                assert sorted(run(driver, batch, rows, bad, tasks)) == sorted(expected)
                new = [value for value in rows if value in bad]
                counts = driver.store.counts_of_steps(batch)
                assert counts[STEP].rows == len(rows)
                assert counts[QUARANTINE].rows == len(new)
                total += counts[QUARANTINE].waiting
                stored = entries(driver, batch + 1)
                old, fresh = stored[: len(model.waiting)], stored[len(model.waiting) :]
                assert [(attempts, values) for _, attempts, values in old] == model.waiting
                assert sorted(value for _, _, values in fresh for value in values) == sorted(new)
                assert all(attempts == 1 for _, attempts, _ in fresh)
                model.waiting += [(attempts, values) for _, attempts, values in fresh]
                assert total == sum(len(values) for _, values in model.waiting)
            if random_.random() < 0.4:
                driver.store.seal(driver.lease, batch)
                driver.close(batch)
                closed = copy.deepcopy(model)
    finally:
        driver.__exit__()
    if where != "memory":
        assert not problems(directory)
