"""Chains that are cut off, torn or incomplete anywhere: what counts is whole, and what is damaged is named."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.backup.manifest import OBJECTS, RUNNING
from recovery.backup.repository import list_backups, prune
from recovery.errors import BackupDamagedError, BackupTargetError, StaleDirectoryError
from recovery.places.directory import DirectoryPlace
from recovery.planning.backups import KeepRule
from tests.backup.support import assert_sound, back_up, bring_back, in_memory, states
from tests.backup.test_faults import NOW_MS, FailingTarget, Interleaved, one_at_a_time, pruned_with_failures  # noqa: F401
from tests.backup.test_incremental import fill
from tests.shares import first, some, steps, strided
from tests.stores import Driver, state_at


@pytest.fixture
def tmp_path(tmp_path_factory) -> Iterator[Path]:
    """In memory where there is some."""
    with in_memory(lambda: tmp_path_factory.mktemp("chains")) as path:
        yield path


@pytest.fixture
def store(make_store, monkeypatch) -> Path:
    """Two partitions with state. Chains are merged with every third link."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    return make_store(2, fill)


def change(directory: Path) -> None:
    """One epoch."""
    with Driver(directory) as run:
        run.apply(run.epoch, {f"old{n}": str(run.epoch) for n in range(run.epoch, 60, 3)})
        run.close(run.epoch)


def chain(directory: Path, place: Path, links: int) -> list:
    """A whole copy and some links. The manifests."""
    made = [back_up(directory, place, incremental=True)]
    for _ in range(links):
        change(directory)
        made.append(back_up(directory, place, incremental=True))
    assert all(each.linked == 2 for each in made[1:])
    return [each.manifest for each in made]


def objects(manifest) -> set[str]:
    return set(manifest.objects)


@pytest.mark.parametrize(
    ("links", "lasting"),
    [(2, True), *(pytest.param(*each, marks=pytest.mark.long) for each in [(2, False), (1, True), (1, False)])],
)
@strided(4)
@pytest.mark.usefixtures("one_at_a_time")
def test_a_link_cut_off_at_any_step_counts_whole_or_not_at_all(store, tmp_path, links, lasting, every):
    """Also while changes files are merged: the backup is there and restores, or the one before does."""
    first = tmp_path / "first"
    chain(store, first, links)
    before = states(store)
    change(store)
    after = states(store)
    for k in steps(every):
        root = Path(shutil.copytree(first, tmp_path / "dest"))
        target = FailingTarget(DirectoryPlace(root), k, lasting)
        try:
            made = back_up(store, target, incremental=True)
        except BackupTargetError:
            pass
        else:
            if target.operations < k:
                break
        finished = len(list_backups(DirectoryPlace(root)).manifests) == links + 2
        bring_back(root, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == (after if finished else before), k
        shutil.rmtree(tmp_path / "new")
        made = back_up(store, DirectoryPlace(root), incremental=True).manifest
        prune(DirectoryPlace(root), [KeepRule(count=1)], NOW_MS)
        assert {entry.name for entry in DirectoryPlace(root).entries(OBJECTS)} == objects(made)
        assert DirectoryPlace(root).entries(RUNNING) == []
        bring_back(root, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == after
        for path in (tmp_path / "new", root):
            shutil.rmtree(path)
    assert k > 10


@first("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.usefixtures("one_at_a_time")
def test_a_pruning_cut_off_at_any_step_breaks_no_chain(store, tmp_path, lasting):
    """Every manifest that is left has all its objects; the last one restores, and only its objects stay."""
    first = tmp_path / "first"
    manifests = chain(store, first, 4)
    for root in pruned_with_failures(first, tmp_path / "dest", lasting):
        stored = {entry.name for entry in DirectoryPlace(root).entries(OBJECTS)}
        for manifest in list_backups(DirectoryPlace(root)).manifests:
            assert objects(manifest) <= stored
        prune(DirectoryPlace(root), [KeepRule(count=1)], NOW_MS)
        assert {entry.name for entry in DirectoryPlace(root).entries(OBJECTS)} == objects(manifests[-1])
    bring_back(root, tmp_path / "new", tmp_path)
    assert states(tmp_path / "new") == states(store)
    # A chain goes on after a pruning.
    change(store)
    assert back_up(store, root, incremental=True).linked == 2
    assert states(bring_back(root, tmp_path / "newer", tmp_path).paths[0].parent) == states(store)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", some([cut, flip, Path.unlink, lambda path: path.write_bytes(b"")], flip))
def test_a_damaged_object_is_named_and_what_lies_before_it_is_restored(store, tmp_path, spoil):
    """Whichever object it is; without a whole copy nothing can be restored. A new backup begins a new chain."""
    root = tmp_path / "dest"
    names = [name for name, _ in chain(store, root, 4)[-1].copies[0].objects]
    assert len(names) == 3
    for position, name in enumerate(names):
        here = Path(shutil.copytree(root, tmp_path / "here"))
        spoil(here / name)
        if position == 0:
            with pytest.raises(BackupDamagedError, match=name):
                bring_back(here, tmp_path / "new", tmp_path)
        else:
            done = bring_back(here, tmp_path / "new", tmp_path)
            assert any(name in problem for problem in done.left_out)
            assert len(done.left_out) == 1
            # The links before the first file of a level are in earlier backups, each in a file of its own.
            assert done.plan.epoch == {1: 3, 2: 4}[position]
            assert_sound(tmp_path / "new")
            shutil.rmtree(tmp_path / "new")
        made = back_up(store, here, incremental=True, check=True)
        assert made.stored == 1
        bring_back(here, tmp_path / "new", tmp_path)
        assert states(tmp_path / "new") == states(store)
        shutil.rmtree(tmp_path / "new")
        shutil.rmtree(here)


def stored_at(place: DirectoryPlace) -> set[str]:
    return {entry.name for entry in place.entries(OBJECTS)}


@first("other", ["a pruning", "another backup and prunings"])
@pytest.mark.usefixtures("one_at_a_time")
def test_others_act_while_a_link_is_made(store, tmp_path, other):
    """At every operation of a backup that merges: every manifest that is left has all its objects, and restores."""
    first = tmp_path / "first"
    chain(store, first, 2)
    ahead = Path(shutil.copytree(store, tmp_path / "ahead"))
    change(store)
    expected = states(store)
    change(ahead)

    def act(plain: DirectoryPlace) -> None:
        if other != "a pruning":
            back_up(ahead, plain, incremental=True)
            prune(plain, [KeepRule(count=1)], 0)
        prune(plain, [KeepRule(count=1)], 0)

    for k in itertools.count(1):
        plain = DirectoryPlace(Path(shutil.copytree(first, tmp_path / "dest")))
        target = Interleaved(plain, k, lambda plain=plain: act(plain))
        with contextlib.suppress(StaleDirectoryError):
            # It finds the one of the directory that is ahead, or it continues the one before.
            assert objects(back_up(store, target, incremental=True).manifest) <= stored_at(plain), k
        assert all(objects(manifest) <= stored_at(plain) for manifest in list_backups(plain).manifests), k
        if k % 4 == 1:
            prune(plain, [KeepRule(count=1)], NOW_MS)
            bring_back(plain, tmp_path / "new", tmp_path, epoch=4)
            assert state_at(tmp_path / "new", 4) == expected[4]
            shutil.rmtree(tmp_path / "new")
        shutil.rmtree(plain.root)
        if target.operations < k:
            break
    assert k > 10
