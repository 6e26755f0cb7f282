"""Random histories of a step with a quarantine: states, output and what waits are those of a model, which fails, waits
and replays likewise. Micro-batches run in several tasks or in one, some twice with other errors; executions are killed.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest

from recovery.base.ids import NO_BATCH
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, KEY, NOW, ROUTE, StepDefinition
from recovery.spark.tasks.arrow_quarantine_task import ArrowQuarantineTask
from recovery.spark.tasks.quarantine_task import QuarantineTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tasks.step_task import StepTask
from recovery.storage.initialize import init_partitions
from recovery.storage.seam import BatchCount
from recovery.values.keys import partition_of
from recovery.values.quarantine import REPLAY_MS, WAITS_MS, entry_key, note_key, parse_waiting_key
from recovery.values.quarantined_rows import ENTRY, Replayed, unpacked
from tests.memory_store import MemoryDirectory
from tests.shares import first
from tests.stores import STEP, Driver, OwnedDirectory, pack, problems
from tests.tasks import definition

pytestmark = pytest.mark.any_spark

COUNT = 3
QUARANTINE = f"$bad {STEP}"
KEYS = ["a", "b", "c\x1e", "d", "e\x1e000000000001", "", "f", "g"]
IDLE_MS = 10
MISFIT, UNENCODABLE = 100, 101
ROWS = pa.table({"key": pa.array([], pa.string()), "v": pa.array([], pa.int64())})


class Faults:
    """The values for which update raises now, and the keys whose timeouts fail."""

    values: ClassVar[set[int]] = set()
    timeouts: ClassVar[set[str]] = set()
    sets_timeouts: ClassVar[bool] = False
    """Whether update sets a timeout in each call."""
    offset: ClassVar[int] = 0
    """What Spark adds to a value now, where it computes the values for update."""


def update(key: str, rows: list[Any], state: Any) -> Any:
    """Keeps the values of a key, changing the stored list in place, and gives their sum after each row."""
    if state.hasTimedOut:
        yield key, -1
        if key in Faults.timeouts:
            raise LookupError("no timeout for", key)
        state.remove()
        return
    values = state.getOption or []
    for row in rows:
        values.append(row.v)
        yield key, f"{row.v}" if row.v == MISFIT and MISFIT in Faults.values else sum(values)
        if row.v in Faults.values and row.v < MISFIT:
            raise ValueError(f"bad value {row.v}")
    unencodable = UNENCODABLE in Faults.values and UNENCODABLE in (row.v for row in rows)
    state.update({object()} if unencodable else values)
    if Faults.sets_timeouts:
        state.setTimeoutDuration(IDLE_MS)


def update_tables(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The same for many keys in one call."""
    new, output, faults = [], [], Faults.values
    for state in states.to_pylist():
        values = state["values"] or []
        for value in rows["v"].slice(state["_start"], state["_rows"]).to_pylist():
            values.append(value)
            output.append((state["key"], sum(values)))
            if value in faults and value < MISFIT:
                raise ValueError(f"bad value {value}")
        new.append(values)
    given = set(rows["v"].to_pylist()) & faults
    keys, sums = [key for key, _ in output], [f"{each}" if MISFIT in given else each for _, each in output]
    table = pa.table({"key": states["key"], "values": pa.array(new, pa.list_(pa.int64()))})
    return table.select(["key"]) if UNENCODABLE in given else table, pa.table({"key": keys, "n": sums})


def update_computed(rows: pa.Table, states: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Like update_tables, with the values that Spark has computed."""
    return update_tables(rows.drop_columns(["v"]).rename_columns({"x": "v"}), states)


@dataclass
class Of:
    """A key in the model. waiting: the rows of each call that waits; None for a call for a timeout. overdue_ms: the
    first timeout that passed since the key waits, if no call has cleared it."""

    values: list[int] | None = None
    timeout_ms: int | None = None
    waiting: list[list[int] | None] = field(default_factory=list)
    overdue_ms: int | None = None


class Model:
    """What the step does, key by key."""

    def __init__(self, hold: str, timeouts: bool) -> None:
        self.hold, self.timeouts = hold, timeouts
        self.keys: dict[str, Of] = {}
        self.marked: set[str] = set()

    def run(self, rows: list[tuple[str, int]], now_ms: int) -> list[tuple[str, int]]:
        output: list[tuple[str, int]] = []
        waited = {key: len(of.waiting) for key, of in self.keys.items()}
        due = [key for key, of in self.keys.items() if of.timeout_ms is not None and of.timeout_ms <= now_ms]
        for key, of in self.keys.items():
            if self.hold == "no" and self.timeouts and of.waiting and of.overdue_ms is not None:
                of.overdue_ms = None
                if of.values is not None and key not in due:
                    due.append(key)
        by_key: dict[str, list[int]] = {}
        for key, value in rows:
            by_key.setdefault(key, []).append(value)
        behind: dict[str, list[int]] = {}
        called = set()
        for key, values in by_key.items():
            of = self.keys.setdefault(key, Of())
            if key in self.marked:
                behind[key] = values
                continue
            if of.waiting and self.hold == "key":
                of.waiting.append(values)
                continue
            called.add(key)
            if not self._call(key, values, now_ms, output):
                of.waiting.append(values)
        for key in due:
            of = self.keys[key]
            if key in called or (key in self.marked and self.hold == "no"):
                continue
            if of.waiting and self.hold == "key":
                of.timeout_ms, of.overdue_ms = None, of.overdue_ms or now_ms
            elif not self._call(key, None, now_ms, output):
                of.timeout_ms = None
                of.waiting.append(None)
        for key in sorted(self.marked):
            passed = self._replay(key, waited[key], now_ms, output)
            of, values = self.keys[key], behind.get(key)
            if values is not None:
                if (of.waiting and self.hold == "key") or not self._call(key, values, now_ms, output):
                    of.waiting.append(values)
            elif key in due and self.hold == "no" and not passed and not self._call(key, None, now_ms, output):
                of.timeout_ms = None
                of.waiting.append(None)
        self.marked.clear()
        return output

    def _replay(self, key: str, waited: int, now_ms: int, output: list[tuple[str, int]]) -> bool:
        """Call again for what waited before the micro-batch; return whether any call has passed."""
        of, left, passed = self.keys[key], list[list[int] | None](), False
        for each in of.waiting[:waited]:
            if left and self.hold == "key":
                left.append(each)
            elif each is not None or of.values is not None:
                if self._call(key, each, now_ms, output):
                    passed = True
                else:
                    left.append(each)
        of.waiting = left + of.waiting[waited:]
        if passed or not of.waiting:
            of.overdue_ms = None
        return passed

    def _call(self, key: str, values: list[int] | None, now_ms: int, output: list[tuple[str, int]]) -> bool:
        of = self.keys[key]
        if values is None:
            if key in Faults.timeouts:
                return False
            output.append((key, -1))
            of.values, of.timeout_ms = None, None
            return True
        values = [value + Faults.offset for value in values]
        if Faults.values.intersection(values):
            return False
        of.values = [*(of.values or []), *values]
        before = len(of.values) - len(values)
        output += [(key, sum(of.values[: before + n])) for n in range(1, len(values) + 1)]
        of.timeout_ms = now_ms + IDLE_MS if self.timeouts else None
        return True

    def waiting(self) -> dict[str, int]:
        found = {key: sum(len(each) if each else 1 for each in of.waiting) for key, of in self.keys.items()}
        return {key: count for key, count in found.items() if count}


def step(hold: str, form: str) -> StepDefinition:
    if form in ("tables", "computed"):
        inputs = ("x",) if form == "computed" else ()
        made = definition(
            update_computed if inputs else update_tables, "values array<bigint>", "key string, n bigint", ROWS, ["key"]
        )
        return replace(made, hold=hold, replays=True, key_in_place=False, inputs=inputs)
    timeouts = form == "timeouts"
    made = definition(update, "n bigint", "key string, n bigint", ROWS, ["key"])
    return replace(
        made, state_schema=None, hold=hold, timeouts=timeouts, needs_time=timeouts, replays=True, key_in_place=False
    )


def run(
    driver: Driver, made: StepDefinition, batch: int, rows: list[tuple[str, int]], now_ms: int, tasks: int | None
) -> list[tuple[str, int]]:
    """Run a micro-batch with ticks for all partitions: in so many tasks, or in one that has all partitions (None)."""
    found = []
    if made.inputs:
        made = replace(made, replayed=computed(driver, batch))
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    kind = QuarantineTask if made.state_schema is None else ArrowQuarantineTask
    ticks = [(None, None, number) for number in range(COUNT)]
    every = [*ticks, *((key, value, crc32(key.encode())) for key, value in rows)]
    for place in [EVERYWHERE] if tasks is None else range(tasks):
        mine = [each for each in every if place < 0 or each[2] % COUNT % tasks == place]
        if not mine:
            continue
        chunk = pa.record_batch(
            {
                "key": pa.array([each[0] for each in mine], pa.string()),
                "v": pa.array([each[1] for each in mine], pa.int64()),
                **({"x": of_values([each[1] for each in mine])} if made.inputs else {}),
                KEY: pa.array([each[0] for each in mine], pa.string()),
                **({NOW: pa.array([now_ms] * len(mine), pa.int64())} if made.needs_time else {}),
                ROUTE: pa.array([place << HASH_BITS | each[2] for each in mine], pa.int64()),
            }
        )
        for each in run_tasks(made, iter([chunk]), connect, batch, kind, tasks or 1):
            found += [(row["key"], row["n"]) for row in each.to_pylist()]
    return found


def of_values(values: list[int | None]) -> pa.Array:
    """What Spark computes of values now; ticks have none."""
    return pa.array([None if value is None else value + Faults.offset for value in values], pa.int64())


def computed(driver: Driver, batch: int) -> Replayed:
    """What Spark computes now for the rows that wait."""
    places, tables = list[tuple[str, int]](), list[pa.Table]()
    task = driver.task()
    try:
        for home, notes in task.due(QUARANTINE, batch, range(COUNT), WAITS_MS).items():
            for note, text in zip(notes, task.read(QUARANTINE, batch, {home: tuple(notes)})[home], strict=True):
                key, _ = parse_waiting_key(note)
                found = msgspec.json.decode(text)
                for number in range(found["first"], found["end"]):
                    [text] = task.read(QUARANTINE, batch, {home: (entry_key(key, number),)})[home]
                    if text is not None:
                        rows = unpacked(msgspec.json.decode(text)["data"], AssertionError)
                        values = of_values(rows["v"].to_pylist())
                        index = pa.array([len(places)] * len(rows), pa.int32())
                        tables.append(pa.table({ENTRY: index, "x": values}))
                        places.append((key, number))
    finally:
        task.release()
    if not tables:
        return Replayed((), b"")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, tables[0].schema) as writer:
        writer.write_table(pa.concat_tables(tables))
    return Replayed(tuple(places), sink.getvalue().to_pybytes())


def mark(driver: Driver, batch: int, keys: set[str]) -> None:
    """Mark keys for replay in one micro-batch: those of a partition in one call."""
    task = driver.task()
    try:
        for home in range(COUNT):
            notes = [note_key(key) for key in sorted(keys) if partition_of(key, COUNT) == home]
            texts = task.read(QUARANTINE, batch, {home: tuple(notes)})[home]
            changes = {note: (text, REPLAY_MS) for note, text in zip(notes, texts, strict=True)}
            task.apply(QUARANTINE, batch, {home: [pack(changes)] if changes else []}, BatchCount(0, 0))
    finally:
        task.release()


def check(driver: Driver, model: Model, batch: int) -> None:
    """Compare states, timeouts and what waits with the model, as the next micro-batch sees them."""
    stored = driver.read(batch, KEYS)
    values = {key: None if text is None else msgspec.json.decode(text) for key, text in stored.items()}
    values = {key: each["values"] if isinstance(each, dict) else each for key, each in values.items()}
    assert values == {key: model.keys.get(key, Of()).values for key in KEYS}
    due = {key for key, of in model.keys.items() if of.timeout_ms is not None}
    assert set(driver.due(batch, WAITS_MS)) == due
    notes, overdue = dict[str, int](), dict[str, int | None]()
    task = driver.task()
    try:
        for home, texts in task.due(QUARANTINE, batch, range(COUNT), WAITS_MS).items():
            for note, text in zip(texts, task.read(QUARANTINE, batch, {home: tuple(texts)})[home], strict=True):
                key, number = parse_waiting_key(note)
                assert (number, partition_of(key, COUNT)) == (None, home)
                found = msgspec.json.decode(text)
                notes[key], overdue[key] = found["rows"], found.get("overdue_ms")
    finally:
        task.release()
    assert notes == model.waiting()
    assert overdue == {key: model.keys[key].overdue_ms for key in notes}


@pytest.mark.parametrize("form", ["rows", "timeouts", "tables", "computed"])
@first("hold", ["key", "no"])
@first(
    ("where", "seed"),
    [("memory", 0), ("files", 2), ("owner", 5), ("memory", 1), ("files", 3), ("files", 4)],
    count=3,
)
def test_a_random_history(seed, where, hold, form, tmp_path, monkeypatch):
    """Replayed by the seed in the test's name."""
    random_, timeouts = random.Random(f"{seed} {hold} {form}"), form == "timeouts"
    monkeypatch.setattr(StepTask, "chunk_rows", 3)
    monkeypatch.setattr(Faults, "sets_timeouts", timeouts)
    monkeypatch.setattr(Faults, "offset", 0)
    directory: Any = MemoryDirectory(COUNT)
    if where != "memory":
        init_partitions(tmp_path / "files", COUNT)
        directory = OwnedDirectory(tmp_path / "files") if where == "owner" else tmp_path / "files"
    made = step(hold, form)
    model = Model(hold, timeouts)
    closed, batch, now_ms = copy.deepcopy(model), NO_BATCH, 1000
    driver = Driver(directory, (STEP, QUARANTINE))
    total = 0
    try:
        for _ in range(30):
            if random_.random() < 0.1:
                model.hold = "no" if model.hold == "key" else "key"
                made = step(model.hold, form)
            kind = random_.random()
            if kind < 0.1:
                driver.__exit__()
                driver = Driver(directory, (STEP, QUARANTINE))
                closed.hold = model.hold
                model = copy.deepcopy(closed)
                batch = driver.plan.partitions[0].newest.batch_id if driver.plan.partitions[0].newest else NO_BATCH
                total = sum(model.waiting().values())
                continue
            batch += 1
            driver.store.open(driver.lease, batch)
            if kind < 0.3:
                keys = {key for key in model.waiting() if random_.random() < 0.7}
                mark(driver, batch, keys)
                model.marked |= keys
            else:
                now_ms += random_.randrange(8)
                rows = [(random_.choice(KEYS), random_.randrange(12)) for _ in range(random_.randrange(12))]
                rows += [(random_.choice(KEYS), random_.choice([MISFIT, UNENCODABLE]))] * (random_.random() < 0.3)
                # A key's rows come in any order: the model needs the one that the tasks see.
                rows.sort(key=lambda row: row[0])
                if random_.random() < 0.3:
                    # An attempt whose errors are others, and which does not count.
                    Faults.values, Faults.timeouts = {*random_.sample(range(12), 4)}, {*random_.sample(KEYS, 3)}
                    run(driver, made, batch, rows, now_ms, random_.choice([None, COUNT]))
                Faults.values = {*random_.sample(range(12), random_.randrange(4)), *[MISFIT] * random_.randrange(2)}
                Faults.values |= {UNENCODABLE} if random_.random() < 0.5 else set()
                Faults.timeouts = {*random_.sample(KEYS, random_.randrange(4))}
                Faults.offset = random_.randrange(3) if form == "computed" else 0
                found = run(driver, made, batch, rows, now_ms, random_.choice([None, COUNT, 2, 1]))
                assert sorted(found) == sorted(model.run(rows, now_ms))
                counted = driver.store.counts(driver.lease, batch).waiting
                assert total + counted == sum(model.waiting().values())
                total += counted
            check(driver, model, batch + 1)
            if random_.random() < 0.4:
                logged = random_.random() < 0.5
                driver.store.seal(driver.lease, batch, apart=not logged)
                driver.close(batch, logged=logged)
                closed = copy.deepcopy(model)
                check(driver, model, batch + 1)
    finally:
        driver.__exit__()
    if where != "memory":
        assert not problems(directory)


def test_a_replay_in_part_clears_the_timeout_that_passed(monkeypatch):
    """The first call passes and sets the next timeout; the call behind it fails again. The timeout that passed while
    the key waited is over: dropping the rows must not bring it back."""
    monkeypatch.setattr(Faults, "sets_timeouts", True)
    model, made = Model("key", True), step("key", "timeouts")
    with Driver(MemoryDirectory(COUNT), (STEP, QUARANTINE)) as driver:
        histories = [({2, 3}, [("a", 1)]), ({2, 3}, [("a", 2)]), ({2, 3}, [("a", 3)]), ({3}, [])]
        for batch, (values, rows) in enumerate(histories):
            monkeypatch.setattr(Faults, "values", values)
            if batch == 3:
                check(driver, model, batch)
                assert model.keys["a"].overdue_ms is not None
                mark(driver, batch, {"a"})
                model.marked.add("a")
            now_ms = 1000 + batch * IDLE_MS
            assert run(driver, made, batch + (batch == 3), rows, now_ms, COUNT) == model.run(rows, now_ms)
        assert (model.waiting(), model.keys["a"].overdue_ms) == ({"a": 1}, None)
        check(driver, model, 5)
