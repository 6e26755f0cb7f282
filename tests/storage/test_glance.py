"""What looks remember of partitions: never another answer than that of a reader that knows nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.base.reserved import CHECKPOINT_STEP, DECLARATIONS_STEP
from recovery.errors import StorageError
from recovery.operational.steps.erasing import erase
from recovery.planning.measures import Measure
from recovery.planning.resume import too_old
from recovery.storage import glance
from recovery.storage.glance import Glances, stamp_of
from recovery.storage.initialize import init_partitions
from recovery.storage.reading import FileReader
from recovery.storage.scan import scan
from recovery.storage.seam import KeyToErase
from recovery.storage.store import Store
from recovery.wire.calls import DescribedFile
from recovery.wire.run_client import Owner
from tests.shares import one_in
from tests.stores import STEP, Driver, SpreadDirectory
from tests.waiting import wait_until

STEPS = (STEP, "sessions")


class Later(SystemClock):
    """An hour ahead: every file seems to have settled, so that only its times say whether it has changed."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


def answers(directory: Path, glances: Glances | None = None) -> dict[str, object]:
    """All that a look asks of a directory: by what was remembered, or afresh."""
    found = scan(directory) if glances is None else glances.scan(directory)
    answered: dict[str, object] = {"found": [(each.path, each.description, type(each.error)) for each in found]}
    for each in found:
        if each.description is None or each.description.newest is None:
            continue
        of = FileReader.of(each.description) if glances is None else glances.reader(each.description)
        cut = each.description.newest.cut
        answered[each.path.name] = (
            of.sizes(), of.newest_steps(), of.measures(), of.log_bytes(),
            sorted(of.states(DECLARATIONS_STEP, cut), key=lambda state: state.key),
            sorted(of.few_states(DECLARATIONS_STEP, cut, ["d1", "d3"]), key=lambda state: state.key),
            sorted(of.key_sizes(CHECKPOINT_STEP, cut)),
        )  # fmt: skip
    return answered


def next_tick(directory: Path, probe: Path) -> None:
    """Wait until the file system's clock has moved on since the newest write to a partition."""
    newest = max(each.stat().st_mtime_ns for each in directory.iterdir())

    def is_later() -> bool:
        probe.write_bytes(b"")
        return probe.stat().st_mtime_ns > newest

    wait_until(is_later)


@pytest.mark.parametrize(("clock", "seed"), one_in(3, [SystemClock, Later], range(3)))
def test_a_glance_says_what_is_there(tmp_path, clock, seed):
    """After any history of executions that close, log, fold, collect, discard and go back, while the run has its files
    open and after it. Replay with this seed."""
    dice = random.Random(seed)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    glances = Glances(clock())

    def check() -> None:
        next_tick(directory, tmp_path / "probe")
        assert answers(directory, glances) == answers(directory)

    check()
    epoch, batch, floor = 1, 0, 0
    for _ in range(4):
        resume = dice.randint(max(floor, 1) + 1, epoch) if epoch > floor + 2 and dice.random() < 0.5 else None
        reserved = (DECLARATIONS_STEP, CHECKPOINT_STEP)
        with Driver(directory, STEPS, resume_epoch=resume, started_ms=1_795_000_000_000, keeps_log=True) as run:
            check()
            for _ in range(dice.randint(1, 6)):
                batch += 1
                for step in dice.sample(STEPS, dice.randint(0, 2)):
                    keys = (f"k{dice.randrange(6)}" for _ in range(dice.randint(1, 5)))
                    run.apply(batch, {key: None if dice.random() < 0.4 else f'"{batch}"' for key in keys}, step=step)
                rows = {
                    step: {f"d{dice.randrange(5)}": None if dice.random() < 0.3 else f'"{batch}"' for _ in range(3)}
                    for step in reserved
                    if dice.random() < 0.6
                }
                floor = min(dice.randint(floor, max(floor, run.epoch - 2)), run.epoch - 1)
                is_logged = dice.random() < 0.7
                run.close(batch, driver_rows=rows, floor=0 if is_logged else floor, logged=is_logged)
                run.store.record(
                    Measure(execution=run.execution.number, epoch=run.epoch - 1, measured_ms=batch, resume_s=0.1)
                )
                check()
            run.fold(floor)
            check()
            epoch = run.epoch
        check()


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    """A file that nobody wrote to is not opened; of one that was, the epochs that are known are not read."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    opened = []
    real = glance.read_partition
    monkeypatch.setattr(glance, "read_partition", lambda path, read: opened.append(path.name) or real(path, read))
    glances = Glances(Later())
    glances.scan(directory)
    assert (sorted(opened), glances.done, glances.count) == (["part-0.sqlite3", "part-1.sqlite3"], 2, 2)
    glances.scan(directory)
    assert len(opened) == 2
    with Driver(directory, started_ms=1) as run:
        run.apply(0, {"a": '"x"'})
        run.close(0)
        run.close(1)
        first = glances.scan(directory)
        run.close(2)
        next_tick(directory, tmp_path / "probe")
        second = glances.scan(directory)
    assert second[0].description.epochs[0] is first[0].description.epochs[0]
    assert [len(each.description.epochs) for each in second] == [3, 3]


def test_a_file_that_was_just_written_is_read_again(tmp_path):
    """Two commits may lie in one tick of the file system's clock; and a clock that went back proves nothing."""
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    path = directory / "part-0.sqlite3"
    glances = Glances(SystemClock())
    [first] = glances.scan(directory)
    before = stamp_of(path)
    with Driver(directory, started_ms=1) as run:
        run.close(0)
    now = path.stat()
    # As if the two writes had been in one tick.
    os.utime(path, ns=(now.st_atime_ns, first.path.stat().st_mtime_ns))
    assert stamp_of(path) != before
    assert glances.scan(directory)[0].description.newest_epoch == 1


def test_another_file_in_its_place_is_read(tmp_path):
    """A partition of another store, one that is damaged, and one that is gone, each as if nothing had been known."""
    directory, other = tmp_path / "db", tmp_path / "other"
    init_partitions(directory, 2)
    init_partitions(other, 2)
    glances = Glances(Later())
    answers(directory, glances)
    (other / "part-1.sqlite3").replace(directory / "part-1.sqlite3")
    assert answers(directory, glances) == answers(directory)
    (directory / "part-1.sqlite3").write_bytes(b"x" * 10_000)
    assert answers(directory, glances) == answers(directory)
    (directory / "part-1.sqlite3").unlink()
    assert answers(directory, glances) == answers(directory)


def test_an_erasure_changes_older_epochs(tmp_path):
    """The newest epoch may stay as it was, where the key was discarded before."""
    directory = tmp_path / "db"
    init_partitions(directory, 1)
    glances = Glances(Later())
    with Driver(directory, (STEP,), backup_interval_s=3600.0) as run:
        for batch, changes in enumerate(({"k": "1", "who": "2"}, {"who": None}, {"k": "3"}, {"k": "4"}), 1):
            run.apply(batch, changes)
            run.close(batch)
    assert answers(directory, glances) == answers(directory)
    next_tick(directory, tmp_path / "probe")
    assert erase(Store(directory), [KeyToErase(STEP, "who")], SystemClock()) is not None
    assert answers(directory, glances) == answers(directory)


def test_a_partition_that_is_too_old_counts_once(tmp_path):
    """The partition is looked at again, and the progress of a look never says more files than there are."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    with Driver(directory, (STEP,)) as run:
        run.close(1)
    old = (directory / "part-1.sqlite3").read_bytes()
    with Driver(directory, (STEP,)) as run:
        for batch in (2, 3, 4):
            run.close(batch, floor=batch - 1)
    (directory / "part-1.sqlite3").write_bytes(old)
    glances = Glances(SystemClock())
    assert len(too_old(each.description for each in glances.scan(directory))) == 1
    assert (glances.done, glances.count) == (2, 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_look_at_owners_says_what_is_there(make_store, seed):
    """After any history, what looks remember makes no difference to what is found. Replay with this seed."""
    dice, glances = random.Random(seed), Glances(SystemClock())
    spread = SpreadDirectory(make_store(3), ((2,), (0,), (1,)))
    afresh = spread.locations()

    def check() -> None:
        assert Store(spread.places[0], afresh.owners, glances).found() == afresh.found()

    try:
        check()
        epoch, batch, floor = 1, 0, 0
        for _ in range(4):
            resume = dice.randint(max(floor, 1) + 1, epoch) if epoch > floor + 2 and dice.random() < 0.5 else None
            with Driver(spread, resume_epoch=resume, keeps_log=True) as run:
                check()
                for _ in range(dice.randint(1, 6)):
                    batch += 1
                    run.apply(batch, {f"k{dice.randrange(6)}": None if dice.random() < 0.4 else "x" for _ in range(3)})
                    floor = min(dice.randint(floor, max(floor, run.epoch - 2)), run.epoch - 1)
                    is_logged = dice.random() < 0.7
                    run.close(batch, floor=0 if is_logged else floor, logged=is_logged)
                    if dice.random() < 0.7:
                        check()
                run.fold(floor)
                check()
                epoch = run.epoch
        moved = spread.places[1] / "part-0.sqlite3"
        moved.rename(spread.places[2] / moved.name)
        check()
    finally:
        afresh.release()
        spread.close()


def test_an_owner_sends_what_changed_since_the_look_before(make_store, monkeypatch):
    """However many epochs its partitions hold. A partition that did not change has the same description."""
    sent: list[int] = []
    original = Owner.ask

    def ask(self: Owner, call: Callable, *arguments: object) -> object:
        answer = original(self, call, *arguments)
        if call.__name__ == "found":
            sent.append(sum(len(each.description.epochs) for each in answer))
        return answer

    spread, glances = SpreadDirectory(make_store(2), ((), (0,), (1,))), Glances(SystemClock())
    looks = spread.locations()
    with Driver(spread) as run:
        for batch in range(20):
            run.close(batch)
        monkeypatch.setattr(Owner, "ask", ask)
        first = Store(spread.places[0], looks.owners, glances).found()
        same = Store(spread.places[0], looks.owners, glances).found()
        assert [each.description for each in same] == [each.description for each in first]
        assert all(one.description is two.description for one, two in zip(first, same, strict=True))
        run.close(20)
        then = Store(spread.places[0], looks.owners, glances).found()
        monkeypatch.undo()
    assert [len(each.description.epochs) for each in then] == [21, 21]
    assert sent == [20, 20, 1, 1, 2, 2]
    looks.release()
    spread.close()


def test_an_owner_that_says_nothing_of_a_file(make_store, monkeypatch):
    """The error names the file, and the next look finds it."""
    spread, glances = SpreadDirectory(make_store(2), ((), (0, 1))), Glances(SystemClock())
    looks = spread.locations()
    with monkeypatch.context() as patched:
        patched.setattr(Owner, "ask", lambda self, call, *arguments: [DescribedFile("part-1.sqlite3")])
        with pytest.raises(StorageError, match="neither describes it nor says why") as error:
            Store(spread.places[0], looks.owners, glances).found()
    assert str(error.value.path) == f"{looks.owners[0].location}/part-1.sqlite3"
    assert len(Store(spread.places[0], looks.owners, glances).found()) == 2
    looks.release()
    spread.close()
