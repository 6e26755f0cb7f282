"""What an erasure says of a copy."""

from __future__ import annotations

import pytest

from recovery.backup.erased import ErasedCopy, Locked
from recovery.errors import BackupTargetError
from recovery.places.protocol import Lock

EARLY, LATE = "2026-12-01T00:00:00Z", "2026-12-24T00:00:00Z"


@pytest.mark.parametrize(
    ("locks", "until", "said"),
    [
        ([], None, ""),
        ([Lock(LATE, "governance"), Lock(EARLY, "compliance")], LATE, f"keeps 2 objects until {LATE} (compliance, gov"),
        ([Lock(EARLY, "governance"), Lock(None, "legal hold")], None, f"until {EARLY} and until its hold is removed"),
        ([Lock(None, "legal hold")], None, "keeps 1 object until its hold is removed (legal hold)"),
    ],
)
def test_the_last_lock_decides(locks, until, said):
    """A legal hold has no end that anybody knows."""
    found = Locked.of(lambda _: locks, ["a"])
    assert (found.until, said in found.why) == (until, True)


def test_who_may_not_see_locks_knows_of_none():
    """Who may not see locks erases all the same."""

    def refused(_):
        raise BackupTargetError("no permission")

    assert Locked.of(refused, ["a"]) == Locked()


def test_a_copy_is_done_if_nothing_is_left_or_unseen():
    """A place has objects, in folders; a standby has files."""
    assert ErasedCopy("place", ("objects/part-0/x",)).is_done
    assert not ErasedCopy("place", left=("x",)).is_done
    assert not ErasedCopy("place", unseen="versions").is_done
    assert ErasedCopy("place", ("objects/part-0/x",)).is_place
    assert not ErasedCopy("standby", ("part-0.sqlite3",)).is_place
