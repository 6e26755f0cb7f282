"""What a step's tasks refuse: rows that the plan brought to the wrong call. Nothing of such a task is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest

from recovery.base.ids import BatchId
from recovery.errors import StateValueError, UnsupportedPlanError
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, KEY, NOW, ROUTE, UNHASHED, StepDefinition
from recovery.spark.tasks import changes
from recovery.spark.tasks.arrow_task import ArrowStepTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tasks.step_task import StepTask
from recovery.values.keys import encode_key, partition_of
from tests.memory_store import MemoryDirectory
from tests.stores import STEP, Driver
from tests.tasks import definition

COUNT = 2
KEYS = [f"k{number:02}" for number in range(20)]
HERE = [key for key in KEYS if partition_of(key, COUNT) == 0]
THERE = [key for key in KEYS if partition_of(key, COUNT) == 1]


@pytest.fixture
def driver():
    with Driver(MemoryDirectory(COUNT)) as found:
        yield found


@pytest.fixture(params=[StepTask, ArrowStepTask])
def kind(request, monkeypatch):
    """Both kinds of steps, in chunks of two rows."""
    monkeypatch.setattr(StepTask, "chunk_rows", 2)
    return request.param


def step(kind: type[StepTask], **others) -> StepDefinition:
    """A step that counts the rows of each key."""
    rows = pa.table({"key": pa.array([], pa.string())})
    if kind is ArrowStepTask:

        def count(rows, states):
            new = pa.table({"key": states["key"], "n": states["_rows"]})
            return new, new

        return replace(definition(count, "n bigint", "key string, n bigint", rows, ["key"]), **others)

    def update(key, rows, state):
        state.update(len(rows))
        yield key, len(rows)

    made = definition(update, "n bigint", "key string, n bigint", rows, ["key"])
    return replace(made, state_schema=None, **others)


def batch(keys: Iterable[str | None], *, spark: int = 0, hashed: str | None = None) -> pa.RecordBatch:
    """Rows as they come out of the exchange in Spark's partition `spark`. hashed: the key that they were sent by, where
    it is not their own."""
    keys = list(keys)
    places = [spark << HASH_BITS | crc32((hashed or encode_key(key)).encode()) for key in keys]
    return pa.record_batch({"key": pa.array(keys, pa.string()), ROUTE: pa.array(places, pa.int64())})


def run(
    driver: Driver,
    step: StepDefinition,
    kind: type[StepTask],
    *batches: pa.RecordBatch,
    tasks: int | None = None,
    number: int = 0,
) -> list[str | None]:
    """The keys that one call of the step's function gave output for, of as many as there are partitions, or `tasks`."""
    connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
    output = run_tasks(step, iter(batches), connect, BatchId(number), kind, tasks or driver.count)
    return [row["key"] for found in output for row in found.to_pylist()]


def refused(driver: Driver, step: StepDefinition, kind: type[StepTask], *batches: pa.RecordBatch) -> str:
    """What the error says of such a call, after which no key has a state."""
    with pytest.raises(UnsupportedPlanError) as raised:
        run(driver, step, kind, *batches)
    assert set(driver.read(1, KEYS).values()) == {None}
    return raised.value.found


def test_what_is_in_its_place_is_taken(driver, kind):
    """The same rows as below where they belong: each key once."""
    assert run(driver, step(kind), kind, batch(reversed(HERE)), batch(HERE)) == HERE
    assert set(driver.read(1, HERE).values()) <= {"2", '{"n":2}'}
    assert run(driver, step(kind, sorted_by_spark=True), kind, batch(THERE, spark=1)) == THERE


@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_keys_of_any_length(driver, kind, chunk_rows, monkeypatch):
    """States come to their keys whether those of a chunk have one length, in characters or in bytes, or several; an
    escaped key is longer than what the function is given."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    keys = ["", "a", "b", "é", "日", "\0", "␀", "aa", "é1", "日本", "abc", "\0é", None]
    form = '{"n":%d}' if kind is ArrowStepTask else "%d"
    for number in range(COUNT):
        mine = {key: n for n, key in enumerate(keys, 1) if partition_of(encode_key(key), COUNT) == number}
        rows = [each for key, n in mine.items() for each in [key] * n]
        assert sorted(run(driver, step(kind), kind, batch(rows, spark=number)), key=str) == sorted(mine, key=str)
        assert driver.read(1, map(encode_key, mine)) == {encode_key(key): form % n for key, n in mine.items()}


@pytest.mark.parametrize("keys", [HERE, THERE], ids=["of one recovery partition", "of two"])
@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one after the other"])
def test_rows_of_two_partitions_of_the_exchange(driver, kind, together, keys):
    """As a coalesce behind it would bring them; in one chunk and in two."""
    batches = [batch(HERE[:4]), batch(keys[-4:], spark=1)]
    if together:
        batches = [pa.concat_batches(batches)]
    for by_spark in (False, True):
        message = refused(driver, step(kind, sorted_by_spark=by_spark), kind, *batches)
        assert "one call saw rows of several recovery partitions" in message


def test_rows_that_the_exchange_sent_elsewhere(driver, kind):
    """One exchange that spread rows over another number of partitions: the hash says another than Spark's number."""
    for keys in ([*HERE, THERE[0]], THERE):
        message = refused(driver, step(kind), kind, batch(keys))
        assert "one call saw rows of several recovery partitions" in message


@pytest.mark.parametrize("key", ["0", "z"], ids=["the first", "the last"])
def test_a_key_that_was_changed_behind_the_exchange(driver, kind, key, monkeypatch):
    """Spark's number and the hash agree, and the key is of another partition, which keeps its state."""
    monkeypatch.setattr(StepTask, "chunk_rows", 100)
    assert partition_of(key, COUNT) == 1
    message = refused(driver, step(kind), kind, batch(HERE), batch([key], hashed=HERE[0]))
    assert f"key {key!r} reached the task of partition 0" in message


def test_a_state_that_cannot_be_read(driver):
    """The error names step and key, and is not a failure of the function that asks for it."""

    def update(key, rows, state):
        yield key, state.get

    driver.apply(0, {key: '"many"' if key == HERE[2] else "1" for key in HERE})
    made = replace(step(StepTask), update=update, state_type=int)
    message = f"step '{STEP}', key '{HERE[2]}': its state \"many\" cannot be read: Expected `int`"
    with pytest.raises(StateValueError, match=message):
        run(driver, made, StepTask, batch(HERE), number=1)


def test_a_function_that_raises_stop_iteration(driver, kind):
    """The error says in which call, and where in the user's code: Python would replace it by one that says neither."""

    def update(*_):
        return next(iter(()))

    with pytest.raises(RuntimeError, match="the function raised StopIteration") as raised:
        run(driver, replace(step(kind), update=update), kind, batch(HERE))
    assert raised.value.__notes__[0].startswith(f"in step '{STEP}', ")
    assert Path(__file__).name in [Path(each.path).name for each in raised.traceback]


def test_a_state_that_no_partition_can_store_names_step_and_key(driver, kind, monkeypatch):
    """Before anything is written: SQLite's own error would name neither. The limit is a small one here."""
    monkeypatch.setattr(changes, "STATE_BYTES", 40)
    long = "k" * 50
    with pytest.raises(StateValueError, match=f"step '{STEP}', key 'k{{50}}': its state takes [0-9]+ bytes") as raised:
        run(driver, step(kind), kind, batch([long], spark=partition_of(long, COUNT)))
    assert "at most 40 bytes" in raised.value.cause
    assert driver.read(1, [long]) == {long: None}
    assert run(driver, step(kind), kind, batch(HERE)) == HERE


def test_a_long_key_is_shortened_in_an_error(driver):
    """Whatever its rows did."""

    def update(key, rows, state):
        state.update({"f": [1, lambda: key]})
        return []

    key = next(key for key in (f"{number}-" * 500 for number in range(100)) if partition_of(key, COUNT) == 0)
    with pytest.raises(StateValueError) as raised:
        run(driver, replace(step(StepTask), update=update), StepTask, batch([key]))
    where = re.escape(f"step '{STEP}', key '{key[:116]}...: in dict {{'f': [1, <function ")
    assert re.match(where, raised.value.found)
    assert re.search(r", at \['f'\]\[1\], function <function .* cannot be stored: a function is", raised.value.found)


UNSORTED = {
    "within a chunk": [[HERE[1], HERE[0]]],
    "from chunk to chunk": [[HERE[2], HERE[3]], [HERE[0], HERE[1]]],
    "a key that comes again": [[HERE[0], HERE[1]], [HERE[0], HERE[2]]],
    "a key that comes again after many": [HERE[:2], HERE[2:4], HERE[4:6], HERE[:1]],
}


@pytest.mark.parametrize("order", UNSORTED.values(), ids=UNSORTED)
def test_rows_that_spark_was_to_sort(driver, kind, order):
    """A key's rows would be split over two calls, of which the second does not know what the first did."""
    message = refused(driver, step(kind, sorted_by_spark=True), kind, *map(batch, order))
    assert "its rows are not sorted by key" in message


def test_a_key_may_continue_in_the_next_batch(driver, kind):
    """Where Spark sorts, rows of one key come together, and their batches may end anywhere."""
    order = [[HERE[0], HERE[1]], [HERE[1]], [HERE[1], HERE[1]], [HERE[1], HERE[2]], [HERE[2]]]
    assert run(driver, step(kind, sorted_by_spark=True), kind, *map(batch, order)) == HERE[:3]
    assert driver.read(1, [HERE[1]])[HERE[1]] in ("5", '{"n":5}')


NULL_AT = partition_of(encode_key(None), COUNT)
BESIDE_NULL = [HERE, THERE][NULL_AT][:3]
NULL_TWICE = {
    "within a chunk": [[None, *BESIDE_NULL[:1], None]],
    "at both ends": [[None, *BESIDE_NULL, None]],
    "from chunk to chunk": [[None, BESIDE_NULL[0]], [None, BESIDE_NULL[1]]],
    "after many": [[None], BESIDE_NULL[:2], BESIDE_NULL[2:], [None]],
}


@pytest.mark.parametrize("order", NULL_TWICE.values(), ids=NULL_TWICE)
@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_null_comes_twice(driver, kind, order, chunk_rows, monkeypatch):
    """It is a key like others: its rows would be split over two calls, too."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    batches = [batch(keys, spark=NULL_AT) for keys in order]
    message = refused(driver, step(kind, sorted_by_spark=True), kind, *batches)
    assert "its rows are not sorted by key" in message


@pytest.mark.parametrize("chunk_rows", [2, 100])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_null_comes_once(driver, kind, last, chunk_rows, monkeypatch):
    """At either end; its rows may go on in the next batch."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    order = [[None], [None, None], [None], BESIDE_NULL]
    keys = [[*BESIDE_NULL], [None], [None, None], [None]] if last else order
    given = run(driver, step(kind, sorted_by_spark=True), kind, *(batch(each, spark=NULL_AT) for each in keys))
    assert given == ([*BESIDE_NULL, None] if last else [None, *BESIDE_NULL])
    assert driver.read(1, [encode_key(None)])[encode_key(None)] in ("4", '{"n":4}')


@pytest.fixture
def many():
    """Seven partitions, for fewer tasks."""
    with Driver(MemoryDirectory(7)) as found:
        yield found


def of_task(place: int, tasks: int, count: int, keys: Iterable[str | None]) -> list[str | None]:
    """Those of the keys that one of so many tasks has, where there are `count` partitions."""
    return [key for key in keys if partition_of(encode_key(key), count) % tasks == place]


def by_partition(keys: Iterable[str | None], count: int) -> list[str | None]:
    """The keys as Spark sorts them for a task of several partitions."""
    return sorted(keys, key=lambda key: (partition_of(encode_key(key), count), key is not None, (key or "").encode()))


@pytest.mark.parametrize("by_spark", [False, True], ids=["", "sorted by Spark"])
@pytest.mark.parametrize("chunk_rows", [2, 100])
@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_fewer_tasks_than_partitions(many, kind, tasks, chunk_rows, by_spark, monkeypatch):
    """Each key once, with its state in its own partition; what the tasks ran through is added up. Run again with other
    rows, a partition has what they give."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    keys = [*(f"k{number:03}" for number in range(100)), "", None, "␀", "é"]
    form = '{"n":%d}' if kind is ArrowStepTask else "%d"
    for times in (3, 2):
        for place in range(tasks):
            mine = of_task(place, tasks, many.count, keys)
            rows = by_partition(mine * times, many.count) if by_spark else mine * times
            found = run(many, step(kind, sorted_by_spark=by_spark), kind, batch(rows, spark=place), tasks=tasks)
            assert found == by_partition(mine, many.count)
        assert many.read(1, map(encode_key, keys)) == {encode_key(key): form % times for key in keys}
        counts = many.store.counts(many.lease, BatchId(0))
        assert (counts.rows, counts.keys, counts.looked_up) == (times * len(keys), len(keys), len(keys))
    many.close(0)
    held = [partition.snapshot().get(STEP, {}) for partition in many.directory.partitions]
    assert all(partition_of(key, many.count) == number for number, found in enumerate(held) for key in found)
    assert sum(map(len, held)) == len(keys)


@pytest.mark.parametrize("by_spark", [False, True], ids=["", "sorted by Spark"])
@pytest.mark.parametrize("what", ["coalesced", "elsewhere"])
def test_rows_of_another_task_of_several_partitions(many, kind, what, by_spark):
    """As a coalesce behind the exchange would bring them, or one that spread rows over another number of tasks."""
    mine, others = (by_partition(of_task(place, 2, many.count, KEYS), many.count) for place in range(2))
    batches = [batch(others, spark=1), batch(mine)] if what == "coalesced" else [batch(others)]
    with pytest.raises(UnsupportedPlanError, match="one call saw rows of several recovery partitions"):
        run(many, step(kind, sorted_by_spark=by_spark), kind, *batches, tasks=2)


def test_partitions_that_spark_was_to_sort(many, kind):
    """A partition that came again would take back what was applied the first time."""
    mine = by_partition(of_task(0, 2, many.count, KEYS), many.count)
    assert partition_of(mine[0], many.count) != partition_of(mine[-1], many.count)
    made = step(kind, sorted_by_spark=True)
    with pytest.raises(UnsupportedPlanError, match="its rows are not sorted by partition"):
        run(many, made, kind, batch([*mine, mine[0]]), tasks=2)


def gathered(keys: Iterable[str | None], place: int) -> pa.RecordBatch:
    """Rows of all partitions as one task has them, with their keys' hashes or without."""
    keys = list(keys)
    hashes = [crc32(encode_key(key).encode()) if place != UNHASHED else 0 for key in keys]
    places = [place << HASH_BITS | each for each in hashes]
    return pa.record_batch({"key": pa.array(keys, pa.string()), ROUTE: pa.array(places, pa.int64())})


@pytest.mark.parametrize("place", [EVERYWHERE, UNHASHED], ids=["hashed", "unhashed"])
@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_one_task_for_all_partitions(driver, kind, place, chunk_rows, monkeypatch):
    """Each key once, with its state from its own partition; what the task ran through counts once."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    keys = [*KEYS, "", None, "␀", "é"]
    assert len({partition_of(encode_key(key), COUNT) for key in keys}) == COUNT
    found = run(driver, step(kind), kind, gathered(keys, place), gathered([*reversed(keys), "k00"], place))
    assert sorted(found, key=str) == sorted(keys, key=str)
    form = '{"n":%d}' if kind is ArrowStepTask else "%d"
    states = {encode_key(key): form % (3 if key == "k00" else 2) for key in keys}
    assert driver.read(1, map(encode_key, keys)) == states
    counts = driver.store.counts(driver.lease, BatchId(0))
    assert (counts.rows, counts.keys, counts.looked_up) == (2 * len(keys) + 1, len(keys), len(keys))


@pytest.mark.parametrize("place", [EVERYWHERE, UNHASHED], ids=["hashed", "unhashed"])
def test_such_a_task_that_runs_again_with_others(driver, kind, place):
    """Nothing is left of the first time, in no partition, whether it has other rows now or none."""
    run(driver, step(kind), kind, gathered([*HERE[:3], *THERE[:3]], place))
    run(driver, step(kind), kind, gathered(HERE[2:4], place))
    one = '{"n":1}' if kind is ArrowStepTask else "1"
    assert driver.read(1, KEYS) == dict.fromkeys(KEYS) | dict.fromkeys(HERE[2:4], one)
    counts = driver.store.counts(driver.lease, BatchId(0))
    assert (counts.rows, counts.keys) == (2, 2)
    run(driver, step(kind), kind)
    assert set(driver.read(1, KEYS).values()) == {None}


def test_rows_of_the_exchange_among_gathered_ones(driver, kind):
    """No plan that we make brings both to one call."""
    message = refused(driver, step(kind), kind, pa.concat_batches([gathered(HERE[:2], EVERYWHERE), batch(HERE[2:4])]))
    assert "one call saw rows of several recovery partitions" in message


@pytest.mark.parametrize("place", [EVERYWHERE, UNHASHED, 0], ids=["hashed", "unhashed", "exchanged"])
@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_timeouts_of_all_partitions(driver, place, chunk_rows, monkeypatch):
    """What is due in a partition that has rows, or a tick, is called once: with its rows if it has any."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)

    def update(key, rows, state):
        if state.hasTimedOut:
            state.remove()
            yield f"late {key}", 0
        else:
            state.update(len(rows))
            state.setTimeoutDuration(1)
            yield key, len(rows)

    kinds = {"timeouts": True, "needs_time": True, "key_in_place": False, "update": update}
    timed = step(StepTask, **kinds)

    def at(keys: list[str], now_ms: int, ticks: Iterable[int] = ()) -> pa.RecordBatch:
        rows = gathered(keys, place)
        ticks = list(ticks)
        names = ["key", KEY, NOW, ROUTE]
        places = [*rows[ROUTE].to_pylist(), *(place << HASH_BITS | tick for tick in ticks)]
        texts = pa.array([*keys, *[None] * len(ticks)], pa.string())
        times = pa.array([now_ms] * len(places), pa.int64())
        return pa.record_batch([texts, texts, times, pa.array(places, pa.int64())], names=names)

    def batch_of(number: int, rows: pa.RecordBatch) -> list[str]:
        driver.store.open(driver.lease, BatchId(number))
        connect = lambda keep: (driver.task(), driver.count)  # noqa: E731
        output = run_tasks(timed, iter([rows]), connect, BatchId(number), StepTask, 1)
        return sorted(row["key"] for each in output for row in each.to_pylist())

    assert batch_of(0, at([*HERE[:3], *THERE[:3]], 1000)) == sorted([*HERE[:3], *THERE[:3]])
    assert batch_of(1, at([HERE[0]], 1000)) == [HERE[0]]
    # Of the partition that has a row, and of no other one.
    late = [f"late {key}" for key in HERE[1:3]]
    assert batch_of(2, at([HERE[0]], 5000)) == sorted([HERE[0], *late])
    if place != UNHASHED:
        late = [f"late {key}" for key in [HERE[0], *THERE[:3]]]
        assert batch_of(3, at([], 9000, ticks=[0, 1])) == sorted(late)
        assert set(driver.read(4, KEYS).values()) == {None}
