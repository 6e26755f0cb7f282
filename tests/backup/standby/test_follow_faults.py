"""A follower that is cut off or killed anywhere: the directory is at an epoch, and the next call goes on."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from recovery.backup.standby import follow
from recovery.backup.standby.follow import Follower
from recovery.base.clock import SystemClock
from recovery.errors import BackupTargetError, StorageError
from recovery.places.directory import DirectoryPlace
from tests.backup.standby.support import assert_follows, followed, newest_state
from tests.backup.support import back_up
from tests.backup.test_faults import FailingTarget, one_at_a_time  # noqa: F401
from tests.backup.test_incremental_faults import change
from tests.forks import run_code
from tests.shares import steps, strided


def prepared(store: Path, root: Path, kind: str) -> tuple[Path, Path]:
    """A place, and a standby that lacks its latest backup: all of it, links, or a new chain of one partition."""
    place, standby = root / "place", root / "standby"
    back_up(store, place, incremental=True)
    if kind != "new":
        followed(place, standby)
    for _ in range(4):
        change(store)
        made = back_up(store, place, incremental=True)
    if kind == "chain":
        (place / made.manifest.copies[1].object_name).unlink()
        change(store)
        made = back_up(store, place, incremental=True)
        assert (made.stored, made.linked) == (1, 1)
    return place, standby


@pytest.mark.parametrize(
    ("kind", "lasting"),
    [
        ("links", False),
        *(
            pytest.param(kind, lasting, marks=pytest.mark.long)
            for kind, lasting in itertools.product(["new", "links", "chain"], [False, True])
            if (kind, lasting) != ("links", False)
        ),
    ],
)
@strided(3)
@pytest.mark.usefixtures("one_at_a_time")
def test_cut_off_at_any_read(store, tmp_path, monkeypatch, kind, lasting, every):
    """At every operation of the place until one is left untouched: what was there stays, and the next look goes on."""
    monkeypatch.setattr(follow, "AT_ONCE", 1)
    place, first = prepared(store, tmp_path, kind)
    before = newest_state(first) if kind != "new" else None
    for k in steps(every):
        standby = tmp_path / "killed"
        if first.exists():
            shutil.copytree(first, standby)
        target = FailingTarget(DirectoryPlace(place), k, lasting)
        with monkeypatch.context() as patched:
            patched.setattr(follow, "open_place", lambda _, target=target: target)
            try:
                followed(place, standby)
            except BackupTargetError:
                if before is not None:
                    assert newest_state(standby) == before
        assert followed(place, standby).problems == ()
        assert_follows(standby, store)
        shutil.rmtree(standby)
        if target.operations < k:
            break
    assert k > 5


KILLS = """
import shutil, sys
from pathlib import Path
from recovery.backup import repository
from recovery.backup.standby import follow
from recovery.backup.standby.follow import Follower
from recovery.base.clock import SystemClock
from tests.backup.standby.support import assert_follows, followed, newest_state
from tests.syscalls import killed_at

class Serial:
    def __init__(self, *_): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def map(self, work, items): return map(work, items)

# The calls of other threads are not traced.
follow.each = lambda work, items, **_: [work(item) for item in items]
repository.ThreadPoolExecutor = Serial
source, place, first = (Path(each) for each in sys.argv[1:4])
number, stride, twice = int(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
root = Path(str(place) + "-killed")
before = newest_state(first) if first.exists() else None
after = newest_state(source)
tried, found = 0, set()
while True:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    standby, here = root / "standby", root / "place"
    shutil.copytree(place, here)
    if before is not None:
        shutil.copytree(first, standby)
    hit = killed_at(lambda: followed(here, standby), number, changes=True)
    if hit and twice == "twice":
        killed_at(lambda: followed(here, standby), number // 2 + 1, changes=True)
    tried += 1
    if standby.exists() and (standby / "standby.json").exists():
        # Without the place: what was begun is completed.
        here.rename(root / "away")
        with Follower(standby, None, SystemClock()) as follower:
            at = follower.at
        (root / "away").rename(here)
        if at is not None:
            assert at.is_whole, number
            assert newest_state(standby) in (before, after), number
            found.add(newest_state(standby) == after)
        else:
            assert before is None and not list(standby.glob("part-*")), number
    assert followed(here, standby).problems == (), number
    assert_follows(standby, source)
    if not hit:
        break
    number += stride
shutil.rmtree(root)
print(tried, number, sorted(found))
"""


STRIDE = int(os.environ.get("RECOVERY_TEST_CUT_STRIDE", "1"))


@pytest.mark.parametrize(
    ("kind", "stride", "twice"),
    [
        pytest.param("chain", 31, "once", id="some"),
        *(
            pytest.param(kind, STRIDE, twice, id=f"{kind}-{twice}", marks=pytest.mark.long)
            for kind, twice in itertools.product(["new", "links", "chain"], ["once", "twice"])
        ),
    ],
)
def test_killed_at_any_file_operation(store, tmp_path, kind, stride, twice):
    """SIGKILL leaves a directory that the next call, even without the place, makes one of the epoch before or after."""
    place, standby = prepared(store, tmp_path, kind)
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    done = run_code(KILLS, store, place, standby, 1 + seed % stride, stride, twice, timeout_s=3000)
    assert done.returncode == 0, done.stderr
    tried, last, found = done.stdout.split(maxsplit=2)
    print(f"killed at {tried} of {last} system calls that change files: {found}")
    assert int(tried) > 3


def test_a_full_disk_changes_nothing(store, tmp_path, monkeypatch):
    """What was begun is completed when there is room again."""
    place, standby = prepared(store, tmp_path, "links")
    before = newest_state(standby)

    def full(*_: object, **__: object) -> None:
        raise StorageError("no space left on device", path=standby)

    for name in ("fetch.fetch_object", "follow.write_standby", "follow.replay"):
        there = Path(shutil.copytree(standby, tmp_path / name))
        with monkeypatch.context() as patched:
            patched.setattr(f"recovery.backup.standby.{name}", full)
            with pytest.raises(StorageError, match="no space"):
                followed(place, there)
        assert newest_state(there) == before
        with Follower(there, None, SystemClock()) as follower:
            assert follower.at.is_whole
        assert followed(place, there).problems == ()
        assert_follows(there, store)
