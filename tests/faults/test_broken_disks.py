"""A disk that is full or fails at any operation: a typed error, the old state or the new, and exact once it is well.

Each operation of the package is repeated with the failure one step later every time, until it completes untouched:
once with a single failure and once with a lasting one.
"""

from __future__ import annotations

import os
import random
import shutil
import traceback
from pathlib import Path

import apsw
import pytest

from recovery.errors import StorageError
from recovery.planning.resume import plan_resume
from recovery.planning.values import StepEdit
from recovery.storage.initialize import init_partitions
from recovery.storage.scan import scan
from recovery.storage.verify import PartitionCheck
from tests.faults.disk import Broken, in_use
from tests.shares import first, some, steps, strided
from tests.stores import Driver, State, paths_of, problems, state_at

STEP = "count"
KEYS = [f"key{number}" for number in range(60)]
# A connection that could not be closed is closed once more when it is forgotten.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SAMPLE = 25
"""The default tests try one failure in so many, beginning anywhere."""


def changes(batch: int) -> dict[str, str | None]:
    """What micro-batch `batch` does: every third key gets a value of some length, a few are discarded."""
    return {
        key: None if (number + batch) % 11 == 0 else f'"{batch}:{"x" * (40 * (number % 9))}"'
        for number, key in enumerate(KEYS)
        if (number + batch) % 3 != 1
    }


def after(state: State, batch: int) -> State:
    """The state after micro-batch `batch`."""
    found = dict(state)
    for key, change in changes(batch).items():
        if change is None:
            found.pop((STEP, key), None)
        else:
            found[STEP, key] = (change, None)
    return found


STATES: dict[int, State] = {0: {}}
for _epoch in range(1, 8):
    STATES[_epoch] = after(STATES[_epoch - 1], _epoch - 1)


@pytest.fixture(scope="module")
def template(store_maker):
    """Four closed epochs, collected up to the first, and a fifth that only one of two partitions has."""
    directory = store_maker(2)
    with Driver(directory, [STEP]) as run:
        for batch in range(4):
            run.apply(batch, changes(batch))
            run.close(batch, floor=1 if batch == 3 else 0)
        run.apply(4, changes(4))
        run.store.close_partition(0, run.lease, run.requests(4)[0])
    return directory


class Case:
    """One attempt at an operation on a fresh copy of the store, with a disk that may fail while it is done."""

    states = STATES

    def __init__(self, directory: Path, disk: Broken) -> None:
        self.directory = directory
        self.disk = disk

    def prepare(self) -> None:
        """What is done before the disk fails."""

    def act(self) -> None:
        """What is done while it fails; raises what the package raises."""
        raise NotImplementedError

    def leave(self) -> None:
        """End what is still open, on the disk as it is then."""

    def expected(self) -> tuple[int, ...]:
        """The epochs that may be the newest shared one afterwards."""
        return (4,)

    def complete(self) -> None:
        """Do it again, on a disk that is well."""
        self.act()
        self.leave()


class Look(Case):
    """Reading what the partitions say, and planning."""

    def act(self):
        plan_resume(scan(self.directory))


class Check(Case):
    """A full check: an error of the disk is not damage."""

    def act(self):
        for path in paths_of(self.directory):
            PartitionCheck(path).run().raise_if_damaged()


class Start(Case):
    """Beginning an execution, which abandons the half-closed epoch."""

    run: Driver | None = None

    def act(self):
        self.run = Driver(self.directory, [STEP, "other"])

    def leave(self):
        if self.run is not None:
            self.run.store.release()
            self.run = None


class Work(Start):
    """A task: reading states and applying changes, twice as Spark may, then closing on a disk that is well."""

    def prepare(self):
        self.run = Driver(self.directory, [STEP])

    def act(self):
        assert self.run is not None
        assert self.run.read(4, KEYS) == {key: STATES[4].get((STEP, key), (None,))[0] for key in KEYS}
        self.run.apply(4, changes(4))

    def complete(self):
        assert self.run is not None
        self.act()
        self.run.close(4)
        self.leave()

    def expected(self):
        return (4, 5)


class Close(Start):
    """Closing an epoch."""

    def prepare(self):
        self.run = Driver(self.directory, [STEP])
        self.run.apply(4, changes(4))

    def act(self):
        assert self.run is not None
        self.run.close(4, floor=2, driver_rows={})

    def complete(self):
        self.leave()
        with Driver(self.directory, [STEP]) as run:
            if run.epoch == 5:
                run.apply(4, changes(4))
                run.close(4, floor=2)

    def expected(self):
        return (4, 5)


class Log(Close):
    """Closing an epoch by appending it to the log."""

    def act(self):
        assert self.run is not None
        self.run.store.seal(self.run.lease, 4, apart=False)
        self.run.close(4, logged=True)


class Fold(Close):
    """Folding what was logged: by the run, and by the next one after its failure."""

    def prepare(self):
        super().prepare()
        assert self.run is not None
        self.run.close(4, logged=True)

    def act(self):
        assert self.run is not None
        self.run.fold()

    def complete(self):
        self.leave()
        with Driver(self.directory, [STEP]) as run:
            assert run.epoch == 6

    def expected(self):
        return (5,)


class FoldAtStart(Fold):
    """The same after the run was killed."""

    def prepare(self):
        super().prepare()
        self.leave()

    def act(self):
        self.run = Driver(self.directory, [STEP])


class Edit(Close):
    """Converting a step in an epoch of its own: here every value to itself."""

    states = STATES | {5: STATES[4], 6: STATES[4]}

    def prepare(self):
        self.run = Driver(self.directory, [STEP])

    def act(self):
        assert self.run is not None
        self.run.close(3, edits=[StepEdit(STEP, STEP, lambda key, text: text)])

    def complete(self):
        self.leave()
        with Driver(self.directory, [STEP]) as run:
            run.close(3, edits=[StepEdit(STEP, STEP, lambda key, text: text)])


class Checkpoint(Close):
    """Moving the logs into the files."""

    def prepare(self):
        super().prepare()
        assert self.run is not None
        self.run.close(4)

    def act(self):
        assert self.run is not None
        self.run.move_logs()

    def complete(self):
        self.act()
        self.leave()

    def expected(self):
        return (5,)


class Collect(Start):
    """Collecting and giving space back."""

    def prepare(self):
        self.run = Driver(self.directory, [STEP])

    def act(self):
        assert self.run is not None
        self.run.store.collect(3)


class Release(Close):
    """The end of a run: the logs are moved into the files, and what fails there loses nothing and is no error."""

    def prepare(self):
        super().prepare()
        assert self.run is not None
        self.run.close(4)

    def act(self):
        self.leave()

    def complete(self):
        pass

    def expected(self):
        return (5,)


CASES = [Look, Check, Start, Work, Close, Log, Fold, FoldAtStart, Edit, Checkpoint, Collect, Release]


def sound(directory: Path, disk: Broken, states: dict[int, State]) -> int:
    """The newest shared epoch, after checking that every shared epoch is exact, and that nothing is damaged."""
    apsw.set_default_vfs("unix")
    plan = plan_resume(scan(directory))
    assert problems(directory) == []
    for epoch in plan.window:
        shared = {key: value for key, value in state_at(directory, epoch).items() if key[0] == STEP}
        assert shared == states[epoch], f"epoch {epoch}"
    apsw.set_default_vfs(disk.name)
    return plan.window[-1]


def from_closing(error: BaseException) -> bool:
    """Whether the error is one of closing a connection, which SQLite never reports: only a file system written in
    Python has its own errors raised there."""
    return any("Connection.close" in frame.name for frame in traceback.extract_tb(error.__traceback__))


def try_failures(
    template: Path, target: Path, disk: Broken, case_type: type[Case], kind: str, lasting: bool, at: int, stride: int
) -> int:
    """Let every `stride`-th operation fail from number `at` on. Returns how many failures were tried."""
    tried = 0
    while True:
        shutil.copytree(template, target)
        case = case_type(target, disk)
        case.prepare()
        disk.fail_at(at, kind, lasting)
        error = None
        try:
            case.act()
        except StorageError as raised:
            error = raised
        except apsw.Error as raised:
            if not from_closing(raised):
                raise
        failed = disk.failed
        disk.heal()
        if error is not None:
            assert failed, f"{error} without a failure"
            assert str(target) in str(error), "the error names the file"
        newest = sound(target, disk, case.states)
        assert newest in case.expected(), f"failure {at}: newest epoch {newest}"
        case.complete()
        assert sound(target, disk, case.states) in (4, 5, 6)
        shutil.rmtree(target)
        if not failed:
            return tried
        tried += 1
        at += stride


def try_operation(template: Path, case_type: type[Case], kind: str, lasting: bool, at: int, stride: int) -> int:
    """`try_failures` in a place of its own."""
    root = template.with_name(f"broken-{case_type.__name__}-{kind}-{lasting}")
    disk = Broken(root)
    with in_use(disk):
        return try_failures(template, root / "db", disk, case_type, kind, lasting, at, stride)


FAILURES = [
    pytest.param(case_type, kind, lasting, id=f"{case_type.__name__.lower()}-{kind}-{'lasting' if lasting else 'once'}")
    for case_type in CASES
    for kind in ("io", "full")
    for lasting in (False, True)
    if not (kind == "full" and case_type in (Look, Check))  # reading writes nothing
]
BY_DEFAULT = [each for each in FAILURES if each.values[1:] in (("io", False), ("full", True))]
"""Each kind of failure, a single one and a lasting one; the long test takes all four, at every operation."""


@pytest.mark.parametrize(("case_type", "kind", "lasting"), BY_DEFAULT)
def test_failures_of_every_operation(template, case_type, kind, lasting):
    """Old state or new state, a typed error that names the file, and exact once the disk is well again."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    at = random.Random(f"{seed} {case_type.__name__} {kind} {lasting}").randrange(SAMPLE) + 1
    print(f"replay with RECOVERY_TEST_SEED={seed}: from operation {at} on")
    try_operation(template, case_type, kind, lasting, at, SAMPLE)


@pytest.mark.long
@pytest.mark.parametrize(("case_type", "kind", "lasting"), FAILURES)
def test_all_failures_of_every_operation(template, case_type, kind, lasting):
    """The same at every single operation; RECOVERY_TEST_FAULT_STRIDE tries one in so many."""
    tried = try_operation(template, case_type, kind, lasting, 1, int(os.environ.get("RECOVERY_TEST_FAULT_STRIDE", "1")))
    print(f"failures tried: {tried}")
    assert tried


@strided(4)
@first("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("kind", some(["io", "full"], "io"))
def test_init_is_all_or_nothing(template, kind, lasting, every):
    """Wherever the disk fails, there are all partitions or none, and init can be repeated."""
    root = template.with_name(f"init-{kind}-{lasting}-{every}")
    root.mkdir()
    disk = Broken(root)
    with in_use(disk):
        for at in steps(every):
            directory = root / f"db-{at}"
            disk.fail_at(at, kind, lasting)
            try:
                init_partitions(directory, 2)
                made = True
            except StorageError:
                made = False
            failed = disk.failed
            disk.heal()
            assert (len(paths_of(directory)) == 2) == made
            assert directory.exists() == made
            if not made:
                init_partitions(directory, 2)
            assert plan_resume(scan(directory)).window == (0,)
            assert problems(directory) == []
            if not failed:
                break
    assert at > 10
