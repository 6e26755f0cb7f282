"""What counts as a bad record, and what a task does with it: every fault of one key, while the other keys go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest

from recovery.base.ids import BatchId
from recovery.errors import CorruptPartitionError, LeaseLostError, QuarantineError, StateValueError
from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, ROUTE, StepDefinition
from recovery.spark.tasks import changes, quarantine
from recovery.spark.tasks.quarantine_task import QuarantineTask
from recovery.spark.tasks.run_tasks import run_tasks
from recovery.spark.tasks.step_task import StepTask
from recovery.storage.seam import BatchCount
from recovery.values.keys import partition_of
from recovery.values.quarantine import REPLAY_MS, WAITS_MS, note_key
from recovery.values.quarantined_rows import json_rows, unpacked
from tests.memory_store import MemoryDirectory
from tests.stores import STEP, Driver, pack
from tests.tasks import definition

QUARANTINE = f"$bad {STEP}"
ROWS = pa.table({"key": pa.array([], pa.string()), "v": pa.array([], pa.int64())})
KEYS = ["a", "b", "c", "d"]
LATE = pa.array([0, 0, 300_000_000, 0], pa.int32()).cast(pa.date32())


@pytest.fixture
def driver():
    with Driver(MemoryDirectory(2), (STEP, QUARANTINE)) as found:
        yield found


def count(key: str, rows: list[Any], state: Any) -> Any:
    """Counts rows; faults are in `Faults`."""
    fault = Faults.of.get(key)
    yield key, len(rows)
    yield key, "text" if fault == "output" else 0
    if isinstance(fault, BaseException):
        raise fault
    if fault == "width":
        yield (key,)
    if fault == "unfit":
        assert str(rows[0].v)
    state.update({1} if fault == "state" else "x" * 100 if fault == "large" else len(rows))
    if fault == "undeclared timeout":
        state.setTimeoutDuration(1000)


class Faults:
    """What is wrong with which key."""

    of: dict[str, Any] = {}  # noqa: RUF012 - each test sets it


def step(hold: str = "key", rows: pa.Table = ROWS, **others: Any) -> StepDefinition:
    made = definition(count, "n bigint", "key string, n bigint", rows, ["key"])
    return replace(made, state_schema=None, hold=hold, **others)


def run(
    driver: Driver, made: StepDefinition, number: int, rows: pa.Table, task: Callable[[], Any] | None = None
) -> list[str]:
    """Run a micro-batch in one task; returns the keys with output. task: makes the task's store."""
    connect = lambda keep: ((task or driver.task)(), driver.count)  # noqa: E731
    places = [EVERYWHERE << HASH_BITS | crc32(key.encode()) for key in rows["key"].to_pylist()]
    batches = rows.append_column(ROUTE, pa.array(places, pa.int64())).to_batches()
    found = run_tasks(made, iter(batches), connect, BatchId(number), QuarantineTask, 1)
    return sorted({row["key"] for batch in found for row in batch.to_pylist()})


def rows(keys: Iterable[str] = KEYS, values: pa.Array | None = None) -> pa.Table:
    keys = list(keys)
    return pa.table({"key": keys, "v": pa.array(range(len(keys)), pa.int64()) if values is None else values})


def entries(driver: Driver, number: int) -> dict[str, list[dict[str, Any]]]:
    """What waits, as the micro-batch finds it: the entries of each key."""
    found: dict[str, list[dict[str, Any]]] = {}
    task = driver.task()
    try:
        for home, names in task.due(QUARANTINE, number, range(driver.count), WAITS_MS).items():
            for name, text in zip(names, task.read(QUARANTINE, number, {home: tuple(names)})[home], strict=True):
                note = msgspec.json.decode(text)
                keys = [f"{name}{each:012}" for each in range(note["first"], note["end"])]
                texts = task.read(QUARANTINE, number, {home: tuple(keys)})[home]
                found[name[:-1]] = [msgspec.json.decode(each) for each in texts if each is not None]
                assert sum(each["rows"] or 1 for each in found[name[:-1]]) == note["rows"]
    finally:
        task.release()
    return found


def mark(driver: Driver, number: int, key: str) -> None:
    """Let the rows of a key be replayed, in a micro-batch of its own."""
    home, note = partition_of(key, driver.count), note_key(key)
    task = driver.task()
    try:
        [text] = task.read(QUARANTINE, number, {home: (note,)})[home]
        task.apply(QUARANTINE, number, {home: [pack({note: (text, REPLAY_MS)})]}, BatchCount(0, 0))
    finally:
        task.release()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (ValueError("bad"), "ValueError"),
        (KeyError("k"), "KeyError"),
        (RecursionError(), "RecursionError"),
        (StopIteration(), "RuntimeError"),
        (StateValueError("of the user"), "recovery.errors.StateValueError"),
        ("output", "recovery.errors.StateValueError"),
        ("width", "recovery.errors.StateValueError"),
        ("state", "recovery.errors.StateValueError"),
        ("large", "recovery.errors.StateValueError"),
        ("undeclared timeout", "recovery.errors.StateValueError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_a_key_that_fails_waits_and_the_others_go_on(driver, monkeypatch, fault, error, chunk_rows):
    """Whatever fails: no output of the call appears, also what it gave before; the key has no new state; and its later
    rows wait behind."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    monkeypatch.setattr(changes, "STATE_BYTES", 40)
    monkeypatch.setattr(Faults, "of", {"b": fault})
    assert run(driver, step(), 0, rows()) == ["a", "c", "d"]
    assert driver.read(1, KEYS) == {"a": "1", "b": None, "c": "1", "d": "1"}
    [entry] = entries(driver, 1)["b"]
    assert (entry["failure"]["type"], entry["attempts"], entry["rows"]) == (error, 1, 1)
    monkeypatch.setattr(Faults, "of", {})
    assert run(driver, step(), 1, rows()) == ["a", "c", "d"]
    assert [each.get("attempts", 0) for each in entries(driver, 2)["b"]] == [1, 0]
    mark(driver, 2, "b")
    assert run(driver, step(), 3, rows(["b", "b"])) == ["b"]
    assert driver.read(4, ["b"]) == {"b": "2"}
    assert entries(driver, 4) == {}


@pytest.mark.parametrize(
    "fault", [MemoryError(), ImportError("no module"), LeaseLostError("lost")], ids=lambda each: type(each).__name__
)
def test_a_fault_of_the_host_ends_the_task(driver, monkeypatch, fault):
    """It says nothing about the rows: nothing is kept, and nothing is in quarantine."""
    monkeypatch.setattr(Faults, "of", {"b": fault})
    with pytest.raises(type(fault)):
        run(driver, step(), 0, rows())
    assert set(driver.read(1, KEYS).values()) == {None}
    assert entries(driver, 1) == {}


def test_rows_without_a_note_are_not_replaced(driver, monkeypatch):
    """New rows that fail would get the number of the rows that wait: the micro-batch ends with what to do, and the rows
    are there."""
    monkeypatch.setattr(Faults, "of", {"a": ValueError("bad")})
    run(driver, step(), 0, rows())
    home, task = partition_of("a", driver.count), driver.task()
    [note] = task.read(QUARANTINE, 1, {home: (note_key("a"),)})[home]
    task.apply(QUARANTINE, 1, {home: [pack({note_key("a"): ("", None)})]}, BatchCount(0, 0))
    with pytest.raises(CorruptPartitionError, match="key 'a': entry 0 in quarantine is not in the note"):
        run(driver, step(), 2, rows())
    task.apply(QUARANTINE, 2, {home: [pack({note_key("a"): (note, WAITS_MS)})]}, BatchCount(0, 0))
    task.release()
    assert [each["batch"] for each in entries(driver, 3)["a"]] == [0]


class CutOff:
    """The store of an attempt that is cut off: its retry runs to the end before the write with this number."""

    def __init__(self, store: Any, write: int, retry: Callable[[], object]) -> None:
        self._store, self._left, self._retry = store, write, retry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, *given: Any) -> None:
        self._before()
        self._store.apply(*given)

    def withdraw(self, *given: Any) -> None:
        self._before()
        self._store.withdraw(*given)

    def _before(self) -> None:
        if not self._left:
            self._retry()
        self._left -= 1


@pytest.mark.parametrize("write", range(3))
def test_an_attempt_that_is_cut_off_writes_beside_its_retry(driver, monkeypatch, write):
    """The two attempts have seen other errors. What counts and what waits is as the retry has seen both, wherever the
    first attempt was; what that still writes is refused."""
    output = list[str]()

    def retry() -> None:
        monkeypatch.setattr(Faults, "of", {"a": ValueError("by chance"), "b": ValueError("by chance")})
        output.extend(run(driver, step(), 0, rows(), lambda: driver.task(2)))

    monkeypatch.setattr(Faults, "of", {"c": ValueError("by chance")})
    late = lambda: run(driver, step(), 0, rows(), lambda: CutOff(driver.task(1), write, retry))  # noqa: E731
    if write < 2:
        with pytest.raises(LeaseLostError, match="attempt 1 of a task of micro-batch 0 is over"):
            late()
    else:
        late()
        retry()
    assert output == ["c", "d"]
    assert driver.read(1, KEYS) == {"a": None, "b": None, "c": "1", "d": "1"}
    assert set(entries(driver, 1)) == {"a", "b"}
    assert driver.store.counts(driver.lease, 0).waiting == 2


def test_the_error_says_where_in_the_users_code(driver, monkeypatch):
    """The places in the user's own files, without those of this package."""
    monkeypatch.setattr(Faults, "of", {"b": ValueError("bad")})
    run(driver, step(), 0, rows())
    failure = entries(driver, 1)["b"][0]["failure"]
    assert failure["message"] == "bad"
    assert [place.partition(",")[0] for place in failure["places"]] == ["test_quarantine_task.py"]


@pytest.mark.parametrize("chunk_rows", [2, 100])
def test_text_that_is_not_utf8_fails_its_key(driver, monkeypatch, chunk_rows):
    """The rows cannot be given to update at all."""
    monkeypatch.setattr(StepTask, "chunk_rows", chunk_rows)
    monkeypatch.setattr(Faults, "of", {})
    ends = b"".join(each.to_bytes(4, "little") for each in (0, 1, 2, 4, 5))
    text = pa.Array.from_buffers(pa.string(), 4, [None, pa.py_buffer(ends), pa.py_buffer(b"xx\xff\xfey")])
    made = step(rows=pa.table({"key": pa.array([], pa.string()), "v": pa.array([], pa.string())}))
    assert run(driver, made, 0, rows(values=text)) == ["a", "b", "d"]
    [entry] = entries(driver, 1)["c"]
    assert "not valid UTF-8" in entry["failure"]["message"]
    [row] = json_rows(unpacked(entry["data"], AssertionError))
    assert row == {"key": "c", "v": "\\xff\\xfe"}


def test_a_date_beyond_python_fails_its_key_if_it_is_used(driver, monkeypatch):
    """Rows that do not use such a value pass, as without a quarantine."""
    made = step(rows=pa.table({"key": pa.array([], pa.string()), "v": pa.array([], pa.date32())}))
    monkeypatch.setattr(Faults, "of", {})
    assert run(driver, made, 0, rows(values=LATE)) == KEYS
    monkeypatch.setattr(Faults, "of", {"c": "unfit", "d": "unfit"})
    assert run(driver, made, 1, rows(values=LATE)) == ["a", "b", "d"]
    [entry] = entries(driver, 2)["c"]
    assert "Python cannot represent" in entry["failure"]["message"]


def test_more_rows_than_may_wait_end_the_task(driver, monkeypatch):
    """The error names the newest error, and nothing is kept."""
    monkeypatch.setattr(Faults, "of", dict.fromkeys(KEYS, ValueError("every row")))
    assert run(driver, step(most_waiting=4), 0, rows()) == []
    with pytest.raises(QuarantineError, match=r"5 rows into quarantine, where it may put 4; .*: every row"):
        run(driver, step(hold="no", most_waiting=4), 1, rows([*KEYS[1:], "b", "b"]))
    assert sum(map(len, entries(driver, 2).values())) == 4


def test_later_rows_pass_with_hold_no(driver, monkeypatch):
    """And the rows in quarantine count when they are replayed, on the state of then."""
    monkeypatch.setattr(Faults, "of", {"b": ValueError("bad")})
    run(driver, step("no"), 0, rows(["b", "b", "b"]))
    monkeypatch.setattr(Faults, "of", {})
    assert run(driver, step("no"), 1, rows()) == KEYS
    assert driver.read(2, ["b"]) == {"b": "1"}
    mark(driver, 2, "b")
    run(driver, step("no"), 3, rows(["b", "b"]))
    assert driver.read(4, ["b"]) == {"b": "2"}
    assert entries(driver, 4) == {}


def test_rows_without_a_column_of_now_stay_in_quarantine(driver, monkeypatch):
    """The input may have changed since; the error says what the rows lack. With the old columns they pass."""
    monkeypatch.setattr(Faults, "of", {"b": ValueError("bad")})
    run(driver, step(), 0, rows())
    monkeypatch.setattr(Faults, "of", {})
    wider = step(rows=ROWS.append_column("w", pa.array([], pa.int64())))
    mark(driver, 1, "b")
    more = rows(["b"]).append_column("w", pa.array([1], pa.int64()))
    assert run(driver, wider, 2, more) == []
    [first, second] = entries(driver, 3)["b"]
    assert "lack the columns 'w'" in first["failure"]["message"]
    assert (first["attempts"], second.get("attempts", 0)) == (2, 0)
    mark(driver, 3, "b")
    assert run(driver, step(), 4, rows(["a"])) == ["a", "b"]
    assert entries(driver, 5) == {}


@pytest.mark.long
def test_a_large_row_comes_back(driver, monkeypatch):
    """A hundred megabytes in one value."""
    monkeypatch.setattr(Faults, "of", {"b": ValueError("bad")})
    made = step(rows=pa.table({"key": pa.array([], pa.string()), "v": pa.array([], pa.binary())}))
    large = pa.array([b"x" * (100 << 20)], pa.binary())
    assert run(driver, made, 0, pa.table({"key": ["b"], "v": large})) == []
    monkeypatch.setattr(Faults, "of", {})
    mark(driver, 1, "b")
    assert run(driver, made, 2, rows(["a"], pa.array([b""], pa.binary()))) == ["a", "b"]
    assert entries(driver, 3) == {}


def test_a_row_that_no_partition_can_store_ends_the_task(driver, monkeypatch):
    """Nothing could keep it; the error names the key, and the error of its call. The limit is a small one here."""
    monkeypatch.setattr(Faults, "of", {"b": ValueError("bad")})
    monkeypatch.setattr(quarantine, "STATE_BYTES", quarantine.ENTRY_BYTES + 100)
    with pytest.raises(QuarantineError, match=r"key 'b': a row that fails takes .*; its error: ValueError: bad"):
        run(driver, step(), 0, rows())
    assert entries(driver, 1) == {}
