"""Tables that others changed behind a sink's back: for each change and each format the run is exact, or refused and the
table untouched, with a way out that works."""

from __future__ import annotations

import itertools
import random

import pytest

from recovery.base import faults
from recovery.errors import OutputLostError, OutputMismatchError, RecoveryError, StaleDirectoryError
from tests.shares import first, seeds, some
from tests.sinks.support import Store
from tests.sinks.tables import Killed, Run, truth, two_epochs
from tests.sinks.worlds import Lake, Warehouse

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy", reason="the catalog of these tests: pip install 'pyiceberg[sql-sqlite]'")

WORLDS = {
    "delta": Lake,
    "partitioned": lambda path: Lake(path, partition_by=["key"]),
    "merge": lambda path: Lake(path, mode="merge", key=["key"]),
    "iceberg": Warehouse,
    "iceberg partitioned": lambda path: Warehouse(path, partitioned=True),
}
ADDING = ["delta", "partitioned", "iceberg", "iceberg partitioned"]


@pytest.fixture
def world(request, tmp_path):
    return WORLDS[request.param](tmp_path)


def of(*kinds: str):
    """Run a test on tables of these kinds; on all if none is given. One of each format runs always."""
    by_default = ["iceberg partitioned", "partitioned" if kinds == (*ADDING,) else "merge"]
    return pytest.mark.parametrize("world", some(kinds or WORLDS, *by_default), indirect=True)


def check_refused(world, store: Store, error: type[RecoveryError], match: str, **options) -> RecoveryError:
    """The run ends with the error, and neither the table nor what lies below it has changed."""
    before, closed, executions = world.state(), list(store.closed), store.executions
    with pytest.raises(error, match=match) as caught:
        Run(store, world.sink(), **options)
    assert world.state() == before
    store.closed[:], store.executions = closed, executions
    if store.past is not None:
        store.past.pop()
    return caught.value


def goes_on(world, store: Store, **options) -> None:
    """The run starts, writes an epoch, goes back over it, and the table has the rows of the closed epochs."""
    run = Run(store, world.sink(), **options)
    assert world.rows() == truth(store, world.mode)
    run.write([("a", 100), ("on", 1)])
    run.close()
    assert world.rows() == truth(store, world.mode)
    Run(store, world.sink(), resume_epoch=len(store.closed))
    assert world.rows() == truth(store, world.mode)


def lose(store: Store, *epochs: int) -> None:
    """Take the rows of epochs out of what the table should have."""
    for each in epochs:
        store.closed[each - 1].records = []


@first("runs", [1, 3])
@of(*ADDING)
def test_going_back_when_the_history_was_forgotten(world, runs):
    """The rows are found by the paths of their files, those of others stay, and what was taken back once is not missed
    later."""
    store, run = two_epochs(world.sink(), Store(past=[]), count=6)
    for _ in range(runs - 1):
        run = Run(store, world.sink())
        run.write([("more", 1)])
        run.close()
    world.add_theirs()
    world.forget()
    Run(store, world.sink(), resume_epoch=3)
    assert world.rows() == sorted([*truth(store), ("theirs", 9)])
    world.forget()
    run = Run(store, world.sink())
    run.write([("new", 1)])
    run.close()
    world.forget()
    Run(store, world.sink(), resume_epoch=2)
    assert world.rows() == sorted([*truth(store), ("theirs", 9)])


@of("delta", "merge", "iceberg")
def test_going_back_when_the_history_was_forgotten_and_the_rows_were_rewritten(world):
    """It is refused, until the user has taken the rows out, and says so once."""
    store, _ = two_epochs(world.sink(), Store(past=[]), count=3)
    if world.mode == "append":
        world.compact()
    world.forget()
    error = check_refused(
        world, store, OutputMismatchError, "epoch 3 of execution .* cannot be taken back", resume_epoch=3
    )
    assert "Resume without going back" in error.remedy
    goes_on(world, store)
    world.forget()
    check_refused(world, store, OutputMismatchError, "cannot be taken back", resume_epoch=2)
    left = store.closed[1:]
    store.accepts = True
    Run(store, world.sink(), resume_epoch=2)
    store.accepts = False
    if world.mode == "append":
        assert world.rows() == sorted([*truth(store), *(row for each in left for row in each.records)])
    world.forget()
    run = Run(store, world.sink())
    run.write([("a", 5)])
    run.close()


@of()
def test_files_of_a_closed_epoch_that_maintenance_removed(world):
    """The commit is refused at the start; the epoch before, or the user's word, lead on."""
    store, run = two_epochs(world.sink(), Store(past=[]))
    run.write([("c", 1), ("d", 1)])

    def killed():
        raise Killed

    with pytest.raises(Killed):
        run.close(before_publishing=killed)
    world.remove_unnamed()
    error = check_refused(
        world, store, OutputLostError, r"of the \d files of closed epoch 3, which is not in the table"
    )
    assert "--resume-after 2" in error.remedy
    assert "--lose-epochs" in error.remedy
    accepting = store.copied()
    Run(store, world.sink(), resume_epoch=3)
    assert world.rows() == truth(store, world.mode)
    goes_on(world, store)
    accepting.accepts = accepting.loses = True
    lose(accepting, 3)
    Run(accepting, world.sink())
    accepting.accepts = accepting.loses = False
    assert world.rows() == truth(accepting, world.mode)
    goes_on(world, accepting)


@of()
def test_files_that_maintenance_removed_between_closing_and_publishing(world):
    """A run that goes on sees it too."""
    store, run = two_epochs(world.sink(), Store(past=[]))
    run.write([("c", 1), ("d", 1)])
    before = world.rows()
    with pytest.raises(OutputLostError, match="closed epoch 3"):
        run.close(before_publishing=world.remove_unnamed)
    assert world.rows() == before
    Run(store, world.sink(), resume_epoch=3)
    assert world.rows() == truth(store, world.mode)


@of()
def test_a_table_that_somebody_restored(world):
    """The run is refused, until that is undone, or the epochs are computed again, or the user accepts their loss."""
    store, run = two_epochs(world.sink(), Store(past=[]), count=4)
    world.roll_back(2)
    error = check_refused(world, store, OutputMismatchError, "rows of closed epochs 3 to 4 are no longer in the table")
    assert "--resume-after 2" in error.remedy
    run.write([("late", 1)])
    rows = world.rows()
    with pytest.raises(OutputMismatchError, match="rows of closed epochs 3 to 4 are no longer"):
        run.close()
    assert world.rows() == rows
    del store.closed[4:]
    world.undo_rollback()
    goes_on(world, store)
    world.roll_back(3)
    Run(store, world.sink(), resume_epoch=2)
    goes_on(world, store)


@of()
def test_the_loss_of_what_somebody_restored_is_accepted_once(world):
    """No later start refuses it again; a new loss is refused."""
    store, run = two_epochs(world.sink(), Store(past=[]), count=4)
    world.roll_back(2)
    lose(store, 3, 4)
    store.accepts = True
    Run(store, world.sink())
    store.accepts = False
    assert world.rows() == truth(store, world.mode)
    run = Run(store, world.sink())
    run.write([("a", 5)])
    run.close()
    Run(store, world.sink())
    assert world.rows() == truth(store, world.mode)
    world.roll_back(2)
    check_refused(world, store, OutputMismatchError, "rows of closed epoch 5 are no longer in the table")
    Run(store, world.sink(), resume_epoch=5)
    assert world.rows() == truth(store, world.mode)


@of("delta", "merge", "iceberg", "iceberg partitioned")
def test_a_table_that_somebody_overwrote(world):
    """Rows of closed epochs are gone, as after a restore; an accepted loss is not refused again."""
    store, _ = two_epochs(world.sink(), Store(past=[]), count=3)
    world.overwrite()
    check_refused(world, store, OutputMismatchError, "rows of closed epochs 1 to 3 are no longer in the table")
    store.accepts = True
    Run(store, world.sink())
    store.accepts = False
    lose(store, 1, 2, 3)
    store.closed[0].records = [("theirs", 9)]
    goes_on(world, store)
    world.overwrite()
    goes_on(world, store)


@of()
def test_rows_that_somebody_deleted_stay_deleted(world):
    """Deleting and updating are what others may do on purpose; so is compacting."""
    store, _ = two_epochs(world.sink(), Store(past=[]), count=3)
    world.delete("a")
    world.compact()
    for each in store.closed:
        each.records = [row for row in each.records if row[0] != "a"]
    run = Run(store, world.sink())
    run.write([("on", 1)])
    run.close()
    assert world.rows() == truth(store, world.mode)


@of()
def test_whose_the_table_is_when_its_history_was_forgotten(world):
    """The directory that is right goes on; a copy from the middle of its newest run, and one from before that run, are
    refused."""
    store, run = two_epochs(world.sink(), Store(past=[]))
    middle = store.copied()
    run.write([("c", 1)])
    run.close()
    world.forget()
    check_refused(world, middle, StaleDirectoryError, "only up to epoch 2")
    before = store.copied()
    run = Run(store, world.sink())
    run.write([("d", 1)])
    run.close()
    world.forget()
    check_refused(world, middle, StaleDirectoryError, "this directory")
    check_refused(world, before, StaleDirectoryError, "this directory")
    Run(store, world.sink())
    assert world.rows() == truth(store, world.mode)
    before.loses = before.accepts = True
    Run(before, world.sink())
    if world.mode == "append":
        # On the user's word it takes the table back, and finds what the other directory has added since.
        assert world.rows() == truth(before)
    before.loses = before.accepts = False
    run = Run(before, world.sink())
    run.write([("again", 1)])
    run.close()
    world.forget()
    Run(before, world.sink(), resume_epoch=len(before.closed) if world.mode == "append" else None)
    check_refused(world, store, StaleDirectoryError, "this directory")


@pytest.mark.parametrize("made", [True, False])
@of()
def test_a_table_that_was_dropped_during_a_run(world, made):
    """The run does not go on in a new one, of which earlier epochs would be missing."""
    _, run = two_epochs(world.sink(), Store(past=[]))
    run.write([("c", 1)])
    world.drop()
    if made:
        world.make()
    with pytest.raises(OutputMismatchError, match=r"it is another table than the one that|there is no table that"):
        run.close()


@of(*ADDING)
def test_two_flows_write_one_table(world):
    """Each takes back its own rows only, also when the history was forgotten."""
    one, other = Store(store_id="a1", past=[]), Store(store_id="b2", past=[])
    two_epochs(world.sink(), one, count=3)
    two_epochs(world.sink(), other, count=3)
    Run(one, world.sink(), resume_epoch=3)
    assert world.rows() == sorted([*truth(one), *truth(other)])
    world.forget()
    Run(other, world.sink(), resume_epoch=2)
    Run(one, world.sink(), resume_epoch=2)
    assert world.rows() == sorted([*truth(one), *truth(other)])


@pytest.mark.parametrize("seed", seeds(20))
@of("delta", "merge", "iceberg")
def test_random_histories_with_changes_by_others(world, seed, monkeypatch):
    """Runs that are killed anywhere and go back, between others who append, compact and forget the history: each start
    is exact, or refused and the table untouched, and then a start that does not go back is exact."""
    generator, store, theirs, countdown = random.Random(seed), Store(past=[]), [], 0
    numbers = itertools.count(1)

    def reach(_point: str) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise Killed

    def wanted() -> list:
        return sorted([*truth(store, world.mode), *theirs], key=str)

    def disturb() -> None:
        if generator.random() < 0.3 and world.mode == "append":
            world.add_theirs()
            theirs.append(("theirs", 9))
        for change in (world.compact, world.forget):
            if generator.random() < 0.25:
                change()

    def start(resume_epoch: int | None) -> Run | None:
        """Begin a run; None if it was refused, and then the table is untouched and the store as before."""
        before = world.state() if world.rows() else None
        closed, past = list(store.closed), list(store.past)
        try:
            return Run(store, world.sink(), resume_epoch)
        except (OutputMismatchError, OutputLostError):
            assert countdown <= 0
            assert (world.state() if before else None) == before
            store.closed, store.past = closed, past
            return None

    monkeypatch.setattr(faults, "reach", reach)
    done = {"kills": 0, "rewinds": 0, "refused": 0}
    for _ in range(20):
        if store.closed and world.rows():
            disturb()
        back = generator.randrange(1, len(store.closed) + 1) if store.closed and generator.random() < 0.4 else None
        countdown = 0
        run = start(back)
        if run is None:
            assert back is not None
            done["refused"] += 1
            run = start(None)
        done["rewinds"] += back is not None
        assert run is not None
        assert world.rows() == wanted(), (seed, back)
        countdown = generator.randrange(1, 12)
        try:
            for _ in range(generator.randrange(1, 4)):
                keys = generator.sample(["a", "b c", "d:e", "f%2Fg", "é/ü"], 3)
                run.write([(key, next(numbers)) for key in keys])
                run.close()
                assert world.rows() == wanted(), seed
        except Killed:
            done["kills"] += 1
    assert min(done["kills"], done["rewinds"]) > 2, done
