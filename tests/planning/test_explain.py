"""What `plan` says of each file: why it is used or not, and which copy in its place would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import CorruptPartitionError, InconsistentPartitionsError
from recovery.planning.explain import Role, explain
from recovery.planning.resume import plan_resume
from recovery.planning.values import FoundFile
from tests.planning.test_backups import LINE, MINUTE_MS, ONE, closed, copy, execution, held


def found(*copies, names=None):
    """The copies as files of a directory."""
    return [
        FoundFile(Path(name), _at(c.description, name))
        for c, name in zip(copies, names or [f"part-{c.index}.sqlite3" for c in copies], strict=True)
    ]


def _at(description, name):
    from dataclasses import replace

    return replace(description, path=Path(name))


def show(at_ms: int) -> str:
    """Moments as minutes since the execution began."""
    return f"minute {(at_ms - ONE.started_ms) // MINUTE_MS}"


def by_name(files):
    """The explanations by file name."""
    return {each.path.name: each for each in explain(files, show)}


def test_files_that_fit_are_current():
    """Nothing needs repair."""
    explained = by_name(found(copy(0, held(1, 5), [ONE]), copy(1, held(1, 5), [ONE])))
    assert [(e.role, e.newest_epoch, e.behind_ms, e.fix) for e in explained.values()] == [(Role.CURRENT, 5, 0, "")] * 2


def test_a_file_too_old_says_by_how_much_and_what_would_do():
    """The distance is that beyond the backup interval; the needed copy is named by its time and its epoch."""
    explained = by_name(found(copy(0, held(7, 9), [ONE], collected=7), copy(1, held(1, 4), [ONE])))
    old = explained["part-1.sqlite3"]
    assert old.role is Role.TOO_OLD
    assert "it is 3 min older than the backup interval of 0 s allows" in old.note
    assert "part-0.sqlite3 goes back no further than epoch 7" in old.note
    assert old.fix == "a copy newer than minute 7 (epoch 7) would do"
    assert old.behind_ms == 5 * MINUTE_MS
    assert explained["part-0.sqlite3"].role is Role.CURRENT


def test_a_file_that_holds_the_others_back():
    """It fits; a newer copy would lose less. The others say what they give up."""
    explained = by_name(found(copy(0, held(1, 9), [ONE]), copy(1, held(1, 4), [ONE])))
    assert explained["part-1.sqlite3"].role is Role.HOLDS_BACK
    assert "5 min behind; a copy newer than minute 9 (epoch 9) would lose nothing" in explained["part-1.sqlite3"].fix
    assert explained["part-0.sqlite3"].role is Role.AHEAD
    assert "5 epochs after" in explained["part-0.sqlite3"].note


def test_a_copy_from_before_a_rewind():
    """Its epochs have the right numbers and count for nothing; the execution that went back is named."""
    two = execution(2, resume_epoch=4, started_ms=ONE.started_ms + 30 * MINUTE_MS)
    explained = by_name(
        found(copy(0, [*held(1, 3), closed(4, two)], [ONE, two]), copy(1, held(1, 8), [ONE]))
    )  # fmt: skip
    old = explained["part-1.sqlite3"]
    assert old.role is Role.LEFT_BEHIND
    assert "before execution 2 went back to epoch 4" in old.note
    assert old.fix == "a copy newer than minute 30 would do"


def test_a_rewind_that_was_cut_off_needs_no_copies():
    """One file has gone back, the other not yet: the next run completes it, so nobody holds anybody back."""
    two = execution(2, resume_epoch=4, started_ms=ONE.started_ms + 30 * MINUTE_MS)
    files = found(copy(0, held(1, 3), [ONE, two]), copy(1, held(1, 8), [ONE]))
    explained = by_name(files)
    assert {name: (e.role, e.behind_ms, e.fix) for name, e in explained.items()} == {
        "part-0.sqlite3": (Role.CURRENT, 0, ""),
        "part-1.sqlite3": (Role.AHEAD, 0, ""),
    }
    assert explained["part-1.sqlite3"].note == (
        "execution 2 began at epoch 4 and was cut off: the next one abandons 5 epochs here too"
    )
    planned = plan_resume(files)
    assert [(v.behind, v.limits) for v in planned.verdicts] == [(0, False), (0, False)]
    assert planned.resume_epoch == 4
    assert planned.verdicts[1].note == "5 epochs after the newest shared one will be abandoned"


def test_a_missing_file_says_which_copy_would_fit():
    """Any that holds an epoch of the others; with a newer one nothing is lost."""
    explained = by_name(found(copy(0, held(5, 9), [ONE], collected=5, count=2)))
    missing = explained["part-1.sqlite3"]
    assert (missing.role, missing.newest_epoch) == (Role.MISSING, None)
    assert missing.fix == (
        "a copy of part-1.sqlite3 newer than minute 5 (epoch 5) would do; with one newer than minute 9 nothing is lost"
    )


def test_a_damaged_file_says_the_same():
    """And what is wrong with it; it is not listed as missing besides."""
    broken = FoundFile(Path("part-1.sqlite3"), None, CorruptPartitionError("it ends after 12 bytes"))
    explained = explain([*found(copy(0, held(5, 9), [ONE], collected=5)), broken], show)
    assert [each.path.name for each in explained] == ["part-0.sqlite3", "part-1.sqlite3"]
    assert explained[1].role is Role.DAMAGED
    assert explained[1].note == "it ends after 12 bytes"
    assert "newer than minute 5 (epoch 5) would do" in explained[1].fix


def test_strays_are_distinguished_from_partitions():
    """A file of another store, and a second copy under another name."""
    files = found(
        copy(0, held(1, 5), [ONE]), copy(1, held(1, 5), [ONE]), copy(0, held(1, 3), [ONE]),
        copy(2, held(1, 5), [ONE], store="other", count=3),
        names=["part-0.sqlite3", "part-1.sqlite3", "part-0-old.sqlite3", "part-2.sqlite3"],
    )  # fmt: skip
    explained = by_name(files)
    assert explained["part-0-old.sqlite3"].role is Role.DUPLICATE
    assert "Move the extra file away" in explained["part-0-old.sqlite3"].fix
    assert explained["part-2.sqlite3"].role is Role.FOREIGN
    assert "store other" in explained["part-2.sqlite3"].note


def test_nothing_readable():
    """Each file says why, and nothing is made up."""
    broken = [FoundFile(Path(f"part-{n}.sqlite3"), None, CorruptPartitionError("junk")) for n in (0, 1)]
    assert [each.role for each in explain(broken, show)] == [Role.DAMAGED, Role.DAMAGED]
    only_stray = found(copy(0, held(1, 3), [ONE]), names=["mine.sqlite3"])
    assert [each.role for each in explain(only_stray, show)] == [Role.DUPLICATE]


@pytest.mark.parametrize("first", range(10))
@pytest.mark.parametrize("second", range(10))
def test_the_copy_that_is_asked_for_does_fit(first, second):
    """Whatever two files hold: one that ends at the epoch named in the advice fits the other."""
    pair = [
        copy(0, held(max(1, first - 2), first) if first else [], [ONE], collected=max(0, first - 2)),
        copy(1, held(max(1, second - 2), second) if second else [], [ONE], collected=max(0, second - 2)),
    ]
    old = [each for each in explain(found(*pair), show) if each.role is Role.TOO_OLD]
    try:
        plan_resume(found(*pair))
    except InconsistentPartitionsError:
        assert len(old) == 1
        [epoch] = [e for e in LINE if f"(epoch {e.epoch})" in old[0].fix]
        index = int(old[0].path.stem[5:])
        better = copy(index, held(max(1, epoch.epoch - 2), epoch.epoch), [ONE], collected=max(0, epoch.epoch - 2))
        plan_resume(found(*(better if c.index == index else c for c in pair)))
    else:
        assert old == []
