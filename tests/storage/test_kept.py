"""The last record of each key, and what epochs replaced: compared with dictionaries."""

from __future__ import annotations

import os
import random
import time

import apsw
import pytest

from recovery.errors import CorruptPartitionError, LeaseLostError
from recovery.storage.kept import KeptRecords
from tests.shares import seeds


@pytest.mark.parametrize("seed", seeds(20))
def test_any_sequence_of_epochs_and_rewinds(tmp_path, seed):
    """Epochs come and go, the file is opened again, and each answer is that of one dictionary for each epoch."""
    lot = random.Random(int(os.environ.get("RECOVERY_TEST_SEED", seed)))
    kept = KeptRecords(tmp_path / "kept")
    history: list[dict[bytes, bytes]] = [{b"k1": b"before"}]
    touched: list[set[bytes]] = [set()]
    oldest = 0
    kept.begin("id", "e", 0, "", [(b"k1", b"x"), (b"k2", b"y"), (b"k1", b"before"), (b"k2", None)])
    for _ in range(60):
        what = lot.randrange(6)
        if what < 3:
            records = [
                (b"k%d" % lot.randrange(9), None if lot.random() < 0.3 else b"%d" % lot.randrange(99))
                for _ in range(lot.randrange(8))
            ]
            kept.keep("e", len(history), "e", records)
            after = {**history[-1], **dict(records)}
            history.append({key: record for key, record in after.items() if record is not None})
            touched.append({key for key, _ in records})
        elif what == 3:
            epoch = lot.randrange(oldest, len(history))
            kept.go_back(epoch)
            del history[epoch + 1 :], touched[epoch + 1 :]
        elif what == 4:
            oldest = lot.randrange(oldest, len(history))
            kept.collect(oldest)
        else:
            kept.close()
        assert (kept.oldest, kept.newest[0]) == (oldest, len(history) - 1)
        low = lot.randrange(oldest, len(history))
        to = lot.randrange(low, len(history))
        expected = [(key, history[to].get(key)) for key in sorted(set().union(*touched[low + 1 :]))]
        assert kept.count(low) == len(expected)
        skip = lot.randrange(len(expected) + 1)
        assert list(kept.values(low, to, skip)) == expected[skip:]


def test_epochs_that_have_no_records(tmp_path):
    """After edits of states, say, the epoch before them is the one that a run goes back to: it stays known."""
    kept = KeptRecords(tmp_path / "kept")
    kept.begin("id", "e", 0, "", [(b"k", b"0")])
    for epoch in (1, 2, 6, 7):
        kept.keep("e", epoch, "e", [(b"k", b"%d" % epoch)])
    kept.collect(5)
    assert (kept.has(1, "e"), kept.has(2, "e"), kept.oldest) == (False, True, 2)
    assert list(kept.values(2, 2, 0)) == [(b"k", b"2")]
    kept.collect(7)
    assert (kept.oldest, kept.count(7)) == (7, 0)


def test_one_execution_writes(tmp_path):
    """A former owner is refused, and what it would keep is not kept; a file that is begun again has another id."""
    path = tmp_path / "kept"
    late, after = KeptRecords(path), KeptRecords(path)
    assert (late.id, late.has(0, "")) == ("", False)
    late.begin("one", "late", 0, "", [])
    late.keep("late", 1, "late", [(b"k", b"1")])
    after.claim("after")
    with pytest.raises(LeaseLostError):
        late.keep("late", 2, "late", [(b"k", b"2")])
    assert after.newest == (1, "late")
    assert after.has(1, "late")
    assert not after.has(1, "after")
    after.begin("two", "after", 5, "x", [(b"k", b"5")])
    assert (KeptRecords(path).id, KeptRecords(path).newest) == ("two", (5, "x"))


def test_a_begin_that_fails_leaves_the_file_as_it_was(tmp_path):
    """And what it has written does not keep another one from beginning."""
    kept = KeptRecords(tmp_path / "kept")
    kept.begin("one", "e", 0, "", [(b"k", b"1")])

    def broken():
        yield b"k", b"2"
        raise OSError(28, "no space left")

    with pytest.raises(Exception, match="no space left"):
        kept.begin("two", "e", 3, "e", broken())
    assert (kept.id, kept.newest) == ("one", (0, ""))
    kept.begin("three", "e", 3, "e", [])
    assert (kept.id, kept.newest) == ("three", (3, "e"))


@pytest.mark.parametrize("damage", ["DELETE FROM replaced WHERE epoch = 2", "DROP TABLE replaced", None])
def test_a_file_that_is_damaged(tmp_path, damage):
    """Missing rows, a missing table, and other bytes are seen before a record is given."""
    kept = KeptRecords(tmp_path / "kept")
    kept.begin("one", "e", 0, "", [])
    for epoch in (1, 2, 3):
        kept.keep("e", epoch, "e", [(b"%d" % n, b"x" * 100) for n in range(100)])
    kept.close()
    if damage is None:
        kept.path.write_bytes(b"\xff" * 20_000)
    else:
        connection = apsw.Connection(str(kept.path))
        connection.execute(damage)
        connection.close()
    with pytest.raises(CorruptPartitionError):
        kept.count(0)


@pytest.mark.long
def test_the_cost_of_an_epoch_does_not_grow_with_the_keys(tmp_path):
    """A hundred touched keys cost about as much among a million as among a thousand."""
    costs = []
    for keys in (1_000, 1_000_000):
        kept = KeptRecords(tmp_path / f"{keys}")
        kept.begin("id", "e", 0, "", ((b"%09d" % n, b"x" * 50) for n in range(keys)))
        took = []
        for epoch in range(1, 30):
            began = time.process_time()
            kept.keep("e", epoch, "e", [(b"%09d" % (n * keys // 100), b"y" * 50) for n in range(100)])
            took.append(time.process_time() - began)
        costs.append(sorted(took)[len(took) // 2])
        kept.close()
    assert costs[1] < 20 * costs[0], costs
