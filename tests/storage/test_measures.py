"""Sizes of steps that are kept by increments, and measures that are kept whatever becomes of the epochs."""

from __future__ import annotations

import apsw
import pytest

from recovery.errors import CorruptPartitionError
from recovery.planning.measures import Measure, StepSize, summed
from recovery.planning.values import StepEdit
from recovery.storage.scan import largest_states, read_measures, sizes_in
from recovery.storage.sqlite.file.tables import SCHEMA_VERSION
from tests.stores import Driver, alter, paths_of, problems, query


def sizes(directory):
    """What the files say of each step, over all partitions."""
    return summed(sizes_in(path) or {} for path in paths_of(directory))


def measure(epoch, execution=1, **fields):
    """A measure with nothing in it."""
    return Measure(execution=execution, epoch=epoch, measured_ms=1_000 * epoch, resume_s=0.1, **fields)


def test_sizes_are_those_of_keys_and_values_in_bytes(store_dir):
    """Bytes as UTF-8, of all partitions; a key that is discarded counts no more."""
    with Driver(store_dir) as run:
        run.apply(0, {"ключ": '"🔑"', "b": "1", "c": "22"})
        run.close(0)
        assert sizes(store_dir) == {"count": StepSize(3, 8 + 6 + 1 + 1 + 1 + 2)}
        run.apply(1, {"b": "333", "c": None})
        run.close(1, driver_rows={"$mine": {"k": b"\x00\x01"}})
        assert sizes(store_dir) == {"$mine": StepSize(1, 3), "count": StepSize(2, 8 + 6 + 1 + 3)}
    assert problems(store_dir) == []


def test_closing_says_what_it_did(store_dir):
    """Rows and bytes that were written, what was collected, and the sizes afterwards."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "1"})
        run.close(0)
        run.apply(1, {"a": "2", "b": "2"})
        run.close(1)
        run.apply(2, {"a": "22"})
        closed = run.store.close(run.lease, run.requests(2, floor=2))
    assert sum(each.written for each in closed) == 1
    assert sum(each.written_bytes for each in closed) == 3
    assert sum(each.collected for each in closed) == 2
    assert all(each.collect_s >= 0 for each in closed)
    assert summed(each.sizes for each in closed) == {"count": StepSize(2, 5)}


def test_sizes_go_back_with_a_rewind(store_dir):
    """What the abandoned epochs added, replaced and discarded is taken back."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "1"})
        run.close(0)
        before = sizes(store_dir)
        for batch in (1, 2, 3):
            run.apply(batch, {"a": None if batch == 2 else "x" * 50, "b": None, f"new{batch}": "1"})
            run.close(batch)
        assert sizes(store_dir) != before
    with Driver(store_dir, resume_epoch=2):
        pass
    assert sizes(store_dir) == before
    assert problems(store_dir) == []


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (StepEdit("count", None), {}),
        (StepEdit("count", "counts"), {"counts": StepSize(2, 6)}),
        (StepEdit("count", "count", lambda key, text: text * 2), {"count": StepSize(2, 10)}),
    ],
    ids=["drop", "rename", "convert"],
)
def test_sizes_follow_edits_of_steps(store_dir, edit, expected):
    """A step that is dropped, renamed or converted."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "12", "b": "34"})
        run.close(0)
        run.close(0, edits=(edit,))
    assert sizes(store_dir) == expected
    assert problems(store_dir) == []


def test_a_wrong_size_is_noticed(store_dir):
    """A full check compares them with the state."""
    with Driver(store_dir) as run:
        run.apply(0, {f"k{n}": "1" for n in range(9)})
        run.close(0)
    alter(store_dir / "part-0.sqlite3", "UPDATE sizes SET live_bytes = live_bytes + 1")
    assert problems(store_dir) == ["sizes does not say how many rows and bytes each step has"]


def test_files_of_version_2_learn_their_sizes(store_dir):
    """They are read as they are, and counted when a run first writes to them."""
    with Driver(store_dir) as run:
        run.apply(0, {f"k{n}": "1" for n in range(9)})
        run.close(0)
    before = sizes(store_dir)
    for path in paths_of(store_dir):
        alter(path, "DROP TABLE sizes; DROP TABLE measures; DROP TABLE changes; DROP TABLE logged")
        alter(path, "DROP TABLE beginning")
        alter(path, "PRAGMA user_version = 2")
    assert [sizes_in(path) for path in paths_of(store_dir)] == [None, None]
    assert read_measures(store_dir / "part-0.sqlite3") == []
    assert problems(store_dir) == []
    with Driver(store_dir):
        assert sizes(store_dir) == before
    assert query(store_dir / "part-1.sqlite3", "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert problems(store_dir) == []


def test_measures_survive_a_rewind(store_dir):
    """They say what happened, also in a future that was abandoned; only part-0 has them."""
    with Driver(store_dir) as run:
        for batch in range(3):
            run.apply(batch, {"a": str(batch)})
            run.close(batch)
            run.store.record(measure(batch + 1, steps={"count": StepSize(1, 2)}))
    with Driver(store_dir, resume_epoch=2) as run:
        run.apply(1, {"a": "9"})
        run.close(1)
        run.store.record(measure(2, execution=2))
    found = read_measures(store_dir / "part-0.sqlite3")
    assert [(each.execution, each.epoch) for each in found] == [(1, 1), (1, 2), (1, 3), (2, 2)]
    assert found[0].steps == {"count": StepSize(1, 2)}
    assert query(store_dir / "part-1.sqlite3", "SELECT count(*) FROM measures") == [(0,)]
    assert problems(store_dir) == []


def test_measures_are_bounded_in_number(store_dir):
    """The newest thousand stay; of older ones fewer and fewer."""
    with Driver(store_dir) as run:
        for epoch in range(1, 2_501):
            run.store.record(measure(epoch))
    found = [each.epoch for each in read_measures(store_dir / "part-0.sqlite3")]
    assert found == [*range(10, 1_501, 10), *range(1_501, 2_501)]


def test_keeping_a_measure_does_not_wait_for_the_disk(store_dir):
    """And the closing after it does."""
    with Driver(store_dir) as run:
        [writer, _] = run.store._writers
        seen = []
        writer.set_update_hook(lambda *_: seen.append(writer.pragma("synchronous")))
        run.store.record(measure(1))
        writer.set_update_hook(None)
        assert (seen, writer.pragma("synchronous")) == ([1], 2)


def test_a_damaged_measure_is_noticed(store_dir):
    """When it is read, and by a full check."""
    path = store_dir / "part-0.sqlite3"
    with Driver(store_dir) as run:
        run.store.record(measure(1))
    alter(path, "UPDATE measures SET content = replace(content, '0.1', '0.2')")
    with pytest.raises(CorruptPartitionError, match="measures"):
        read_measures(path)
    assert problems(store_dir) == ["1 row of measures has values that do not match their digest"]


def test_the_largest_states(store_dir):
    """By the bytes of key and value."""
    with Driver(store_dir) as run:
        run.apply(0, {f"k{n}": f'"{"v" * n}"' for n in range(40)})
        run.close(0)
    found = sorted((each for path in paths_of(store_dir) for each in largest_states(path, 3)), key=lambda s: -s[2])
    assert found[:3] == [("count", "k39", 44), ("count", "k38", 43), ("count", "k37", 42)]


def test_octets_are_those_of_any_sqlite(store_dir):
    """`octet_length` is there and counts bytes."""
    assert apsw.Connection(":memory:").execute("SELECT octet_length('ä') + octet_length(x'00')").fetchall() == [(3,)]
