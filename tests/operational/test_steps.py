"""The state of steps at any held epoch, and edits of it."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import (
    ConfigurationError,
    CorruptPartitionError,
    DirectoryLockedError,
    EpochNotHeldError,
    FlowMismatchError,
    LeaseLostError,
    StateBackendError,
    StateLockedError,
    StateManager,
    StateValueError,
    StorageError,
)
from recovery.base.clock import SystemClock, Uptime
from recovery.base.reserved import DECLARATIONS_STEP
from recovery.cli import main
from recovery.epochs.writer import EpochWriter
from recovery.operational.steps.step_edits import edit_states
from recovery.planning.resume import plan_resume
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import scan
from recovery.storage.snapshot import snapshot_at
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.store import Store
from recovery.values.declaration import Declaration
from tests.forks import run_code
from tests.operational.support import background
from tests.stores import STEP, Driver, alter, paths_of, problems, state_at, window

KEYS = ["a", "b", "c", "b/c", "*", "..", "'\"", "🙂", "k" * 10_000]


def at(directory, epoch, step=STEP):
    """The states of a step at an epoch, by key."""
    return {s.key: (s.value, s.timeout_ms) for s in snapshot_at(directory, epoch).states(step)}


def edited(directory, changes, **options):
    """Edit the keys of the step; returns the epoch."""
    compute = lambda _: {(STEP, key): change for key, change in changes.items()}  # noqa: E731
    return edit_states(Store(directory), "set", compute, clock=SystemClock(), **options)


@settings(max_examples=5)
@given(seed=st.integers(0, 10**9))
def test_every_epoch_reads_as_it_was_written(store_maker, seed):
    """Changes, discards, timeouts and a rewind: each epoch that is held, and each difference of two, is the model's."""
    generator = random.Random(seed)
    directory = store_maker(2)
    model: list[dict] = [{}]

    def write(run: Driver, batch: int) -> None:
        changes = {
            key: generator.choice([None, str(batch), (f'"{batch}"', generator.randrange(100))])
            for key in generator.sample(KEYS, 3)
        }
        run.apply(batch, changes)
        run.close(batch)
        state = dict(model[-1])
        for key, change in changes.items():
            value, timeout = change if isinstance(change, tuple) else (change, None)
            state[key] = (value, timeout)
            if value is None:
                del state[key]
        model.append(state)

    with Driver(directory) as run:
        for batch in range(4):
            write(run, batch)
    back = generator.randrange(2, 5)
    del model[back:]
    with Driver(directory, resume_epoch=back) as run:
        for batch in range(back - 1, 5):
            write(run, batch)
    for last in range(len(model)):
        assert at(directory, last) == model[last]
        for first in range(last):
            found = {c.key: c for c in snapshot_at(directory, last).changes(STEP, snapshot_at(directory, first))}
            differing = {k for k in KEYS if model[first].get(k) != model[last].get(k)}
            assert set(found) == differing
            for key, change in found.items():
                for state, when in ((change.before, first), (change.after, last)):
                    assert (state and (state.value, state.timeout_ms)) == model[when].get(key)


@pytest.fixture
def ran(store_dir):
    """A directory on which a flow closed two epochs."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": ("2", 5000)})
        run.close(0)
        run.apply(1, {"a": "3"})
        run.close(1)
    return store_dir


def test_an_edit_is_an_epoch_of_its_own(ran):
    """Older epochs stay as they were; going back before it undoes it; the position does not move."""
    assert edited(ran, {"a": ("9", None), "c": ("7", 8000), "b": (None, None)}) == 3
    assert at(ran, 3) == {"a": ("9", None), "c": ("7", 8000)}
    assert at(ran, 2) == {"a": ("3", None), "b": ("2", 5000)}
    assert snapshot_at(ran).cut[2] == 1
    assert problems(ran) == []
    with Driver(ran, resume_epoch=3):
        pass
    assert at(ran, 2) == {"a": ("3", None), "b": ("2", 5000)}
    assert window(ran)[-1] == 2


def test_an_edit_is_recorded(ran):
    """Who, what, when, which epoch; it is never what "the last run" means, and no rewind takes the record back."""
    state = StateManager(ran)
    edited(ran, {"a": ("9", None)})
    with Driver(ran, resume_epoch=3):
        pass
    [record] = state.list_runs()
    assert (record.kind, record.status, record.details["epoch"], record.details["keys"]) == ("edit", "succeeded", 3, 1)
    assert record.details["what"] == "set"
    assert record.details["by"]
    assert state.get_last_run_status("flow") is None


def test_an_empty_edit_makes_no_epoch(ran):
    """No epoch, no execution."""
    assert edited(ran, {}) is None
    assert snapshot_at(ran).epoch == 2


def test_an_edit_needs_the_lock(ran):
    """It is refused while a run goes on, and names the run."""
    with DirectoryLock(ran, SystemClock(), "flow words"), pytest.raises(DirectoryLockedError, match="flow words"):
        edited(ran, {"a": ("9", None)})
    assert snapshot_at(ran).epoch == 2


def test_force_fences_the_holder(ran):
    """The edit is made; nothing that the run does from then on counts, and its next call raises."""
    with DirectoryLock(ran, SystemClock(), "flow words"), Driver(ran) as run:
        run.apply(2, {"a": "4"})
        assert edited(ran, {"a": ("9", None)}, force=True) == 3
        with pytest.raises(LeaseLostError):
            run.close(2)
    assert at(ran, 3)["a"] == ("9", None)
    assert state_at(ran, 3)[STEP, "a"] == ("9", None)
    assert problems(ran) == []


def test_an_edit_by_force_stands_also_where_the_next_run_is_about_to_begin(ran, monkeypatch):
    """The fenced run ended and its successor planned before the edit was closed: it has to plan again."""
    original, plans = EpochWriter.close, []

    def close(self, *arguments, **options):
        plans.append(plan_resume(scan(ran)))
        return original(self, *arguments, **options)

    monkeypatch.setattr(EpochWriter, "close", close)
    with DirectoryLock(ran, SystemClock(), "flow words"):
        assert edited(ran, {"a": ("9", None)}, force=True) == 3
    with pytest.raises(LeaseLostError, match="closed since this was planned"):
        EpochWriter(Store(ran), plans[0], "flow", SystemClock(), backup_interval_s=0)
    assert at(ran, 3)["a"] == ("9", None)
    with Driver(ran) as run:
        assert run.read(2, ["a"]) == {"a": "9"}
    assert problems(ran) == []


@pytest.mark.parametrize("found", ["nothing", "another"])
def test_force_with_nothing_to_do_fences_nobody(ran, found):
    """Where the state is as it is to be, or another than was seen, the run goes on."""

    def compute(_):
        if found == "another":
            raise StateLockedError("it was changed meanwhile")
        return {}

    with DirectoryLock(ran, SystemClock(), "flow words"), Driver(ran) as run:
        run.apply(2, {"a": "4"})
        with contextlib.suppress(StateLockedError):
            assert edit_states(Store(ran), "set", compute, clock=SystemClock(), force=True) is None
        run.close(2)
    assert at(ran, 3)["a"] == ("4", None)
    assert StateManager(ran).list_runs() == []
    assert problems(ran) == []


@pytest.mark.parametrize("how", ["whole epochs", "in one partition"])
def test_force_while_the_run_closes_epochs(ran, monkeypatch, how):
    """What it closes until it is fenced remains, collected or not; nothing of a later epoch is left anywhere."""
    from recovery.operational.steps import step_edits as steps

    original = steps.check_whole

    def close_meanwhile(plan, store):
        original(plan, store)
        for _ in range(2):
            run.apply(run.epoch, {"a": str(100 + run.epoch)})
            run.close(run.epoch, floor=run.epoch - 1)
        if how == "in one partition":
            epoch = run.epoch
            run.apply(epoch, {"a": "lost", "b": "lost"})
            run.store.close_partition(1, run.lease, run.requests(epoch, floor=epoch - 1)[1])

    monkeypatch.setattr(steps, "check_whole", close_meanwhile)
    seen = []

    def compute(newest):
        seen.append(newest.epoch)
        return {(STEP, "b"): ("9", None)}

    with DirectoryLock(ran, SystemClock(), "flow words"), Driver(ran) as run:
        assert edit_states(Store(ran), "set", compute, clock=SystemClock(), force=True) == 5
        with pytest.raises(LeaseLostError):
            run.close(99)
    assert seen == [4]
    assert at(ran, 5) == {"a": ("104", None), "b": ("9", None)}
    assert problems(ran) == []


def test_force_computes_while_the_run_continues(ran):
    """What takes long is done before anybody is kept waiting, and again only when an epoch was closed meanwhile."""
    seen = []

    def compute(newest):
        seen.append((newest.epoch, newest.state(STEP, "a").value))
        if len(seen) == 1:
            run.apply(2, {"a": "4"})
            run.close(2)
        return {(STEP, "b"): ("9", None)}

    with DirectoryLock(ran, SystemClock(), "flow words"), Driver(ran) as run:
        assert edit_states(Store(ran), "set", compute, clock=SystemClock(), force=True) == 4
    assert seen == [(2, "3"), (3, "4")]
    assert at(ran, 4) == {"a": ("4", None), "b": ("9", None)}
    assert problems(ran) == []


def test_force_that_finds_nothing_to_do_in_the_end(ran):
    """The run closed an epoch after which nothing is to be changed: it goes on, and the record says so."""

    def compute(newest):
        if newest.epoch == 2:
            run.apply(2, {"a": "9"})
            run.close(2)
        return {} if newest.state(STEP, "a").value == "9" else {(STEP, "a"): ("9", None)}

    with DirectoryLock(ran, SystemClock(), "flow words"), Driver(ran) as run:
        assert edit_states(Store(ran), "set", compute, clock=SystemClock(), force=True) is None
        run.apply(3, {"a": "10"})
        run.close(3)
    [record] = StateManager(ran).list_runs()
    assert (record.status, record.details["keys"], record.details["epoch"]) == ("succeeded", 0, None)
    assert problems(ran) == []


def test_force_that_cannot_be_recorded_fences_nobody(ran, tmp_path, monkeypatch):
    """The place of the run history cannot be written: the edit fails and the run goes on."""
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("RECOVERY_STATE_BACKEND", (tmp_path / "file" / "state").as_uri())
    with DirectoryLock(ran, SystemClock(), "flow words"), Driver(ran) as run:
        with pytest.raises(StateBackendError):
            edited(ran, {"a": ("9", None)}, force=True)
        run.apply(2, {"a": "4"})
        run.close(2)
    assert at(ran, 3)["a"] == ("4", None)


def test_an_epoch_that_is_closed_is_closed(ran, monkeypatch):
    """Also when its log cannot be moved into the file: that is tried again by whoever comes next."""
    from recovery.storage.sqlite.store import FilePartitions

    def fail(self):
        raise StorageError("the disk is full")

    monkeypatch.setattr(FilePartitions, "checkpoint", fail)
    assert edited(ran, {"a": ("9", None)}) == 3
    assert at(ran, 3)["a"] == ("9", None)


def test_many_keys_are_read_in_one_call(ran, monkeypatch):
    """Each partition once for what is looked at, and once for what is compared before it is written."""
    from recovery.operational.targets import StepTarget
    from recovery.storage import history

    reads = []
    original = history.few_states_at

    def counted(path, step, cut, keys=None):
        if step != DECLARATIONS_STEP:
            reads.append((path.name, step, len(keys)))
        return original(path, step, cut, keys)

    monkeypatch.setattr(history, "few_states_at", counted)
    target = StepTarget(Store(ran), STEP, SystemClock())
    names = [(step, f"key-{n}") for n in range(200) for step in (STEP, "other")]
    seen = target.find_all(names)
    assert target.write("import", dict.fromkeys(names, 5), seen) == "epoch 3 closed: 400 keys edited"
    assert len(reads) == 2 * 2 * len(paths_of(ran))
    assert sum(count for *_, count in reads) == 2 * len(names)
    assert StepTarget(Store(ran), STEP, SystemClock()).write("import", {names[0]: 5, names[2]: 6}, {}) == (
        "epoch 4 closed: 1 key edited"
    )


DECLARED = {
    STEP: Declaration((("word", "string"),), {"dataclass": "Session", "fields": [["clicks", "int", True]]}).to_text(),
    "users": Declaration((("id", "bigint"),), "plain").to_text(),
    "later": '{"key": "of a later version"}',
}


@pytest.fixture
def declared(store_dir):
    """A directory whose flow declares its steps."""
    with Driver(store_dir, steps=(STEP, "users")) as run:
        run.apply(0, {"a": '{"clicks":1}', "old": '{"odd":1}'})
        run.apply(0, {"7": "[]", "007": "[]"}, step="users")
        run.close(0, driver_rows={"$steps": DECLARED})
    return store_dir


@pytest.mark.parametrize(
    ("step", "key", "text", "said"),
    [(STEP, "a", '{"clicks":"x"}', r"Expected `int`, got `str` - at `\$\.clicks`"),
     (STEP, "b", "5", "Expected `object`"), (STEP, "b", '{"clickz":5}', "clickz"), (STEP, "a␀", '{"clicks":1}', "␀␀"),
     ("users", "x", "1", "id: 'x' is not a bigint"),
     ("users", "08", "1", "id: '08' is not a bigint"), ("users", "8", "null", "null is no state")],
)  # fmt: skip
def test_an_edit_that_the_step_could_not_read(declared, step, key, text, said):
    """By any verb, also forced, and together with others: refused with step and key, and nothing is changed."""
    before = window(declared)
    with pytest.raises(StateValueError, match=f"step '{step}', key '{key}'.*{said}"):
        edit_states(
            Store(declared),
            "set",
            lambda _: {(step, key): (text, None), (step, "1"): ("[]", None)},
            clock=SystemClock(),
        )
    result = CliRunner().invoke(
        main, ["state", "set", str(declared), "--step", step, "--key", key, text, "--force", "--json"]
    )
    assert (result.exit_code, json.loads(result.output)["error"]) == (33, "StateValueError")
    assert window(declared) == before


def test_an_edit_that_the_step_reads(declared):
    """Of the declared form; of a key that exists, whatever its text; of a step that declares nothing known. A state of
    another form can be removed."""
    changes = {
        (STEP, "b"): ('{"clicks":5}', None), (STEP, "old"): (None, None), ("users", "8"): ('{"any":1}', None),
        ("users", "007"): ("[1]", None), ("later", "x"): ("5", None), ("new", "x"): ("5", None),
    }  # fmt: skip
    assert edit_states(Store(declared), "set", lambda _: changes, clock=SystemClock()) == 2
    assert at(declared, 2) == {"a": ('{"clicks":1}', None), "b": ('{"clicks":5}', None)}
    assert at(declared, 2, "users") == {"7": ("[]", None), "8": ('{"any":1}', None), "007": ("[1]", None)}


def test_nothing_is_written_on_top_of_damage(ran):
    """Neither is damaged state handed out."""
    for path in paths_of(ran):
        alter(path, "UPDATE snaps SET ser_change = '8' WHERE state_key = 'a'")
    with pytest.raises(CorruptPartitionError):
        edited(ran, {"b": ("9", None)})
    with pytest.raises(CorruptPartitionError, match="'a'"):
        at(ran, 2)


@pytest.mark.parametrize("step", ["$checkpoint", "", "a\0b"])
def test_steps_that_are_not_the_flows(ran, step):
    """The input position cannot be edited apart from the state."""
    with pytest.raises(ConfigurationError, match="cannot be edited"):
        edit_states(Store(ran), "set", lambda _: {(step, "a"): ("1", None)}, clock=SystemClock())


def test_an_epoch_that_is_not_held(ran):
    """The error says which are."""
    with pytest.raises(EpochNotHeldError, match="epochs 0 to 2"):
        snapshot_at(ran, 9)


def test_a_directory_without_a_flow(store_dir):
    """There is nothing to edit yet."""
    with pytest.raises(FlowMismatchError, match="no flow"):
        edited(store_dir, {"a": ("1", None)})


def test_killed_at_any_crash_point(ran):
    """SIGKILL within an edit leaves all partitions at the epoch before it, or all with it; repeating it is safe."""
    code = """
import sys
from pathlib import Path
from recovery.base.clock import SystemClock, Uptime
from recovery.operational.steps.step_edits import edit_states
from recovery.storage.store import Store
changes = {("count", key): (sys.argv[2], None) for key in "abcdef"}
edit_states(Store(Path(sys.argv[1])), "set", lambda _: changes, clock=SystemClock())
"""
    points = ["start.3.partition", "start.3.partition:2", "close.2.checked:2", "close.2.driver", "close.2.committed",
              "close.2.committed:2", "close.3", "close.4"]  # fmt: skip
    for number, point in enumerate(points):
        before = at(ran, None)
        done = run_code(code, ran, str(number), env={"RECOVERY_CRASH_AT": point})
        assert done.returncode == -signal.SIGKILL, point
        found = at(ran, None)
        assert found in (before, dict.fromkeys("abcdef", (str(number), None))), point
        assert problems(ran) == [] or point.startswith("close.2"), point
    assert run_code(code, ran, "99").returncode == 0
    assert at(ran, None) == dict.fromkeys("abcdef", ("99", None))
    assert problems(ran) == []
    assert [run.status for run in StateManager(ran).list_runs(limit=2)] == ["succeeded", "dead"]


def test_a_reader_sees_one_moment(ran):
    """What was planned is read, although epochs are closed meanwhile; when it is gone, that is an error."""
    then = snapshot_at(ran)
    edited(ran, {"a": ("9", None)})
    assert {s.key: s.value for s in then.states(STEP)} == {"a": "3", "b": "2"}
    edited(ran, {"a": ("10", None)})
    with pytest.raises(EpochNotHeldError, match="does not hold epoch 2 any more") as raised:
        list(then.states(STEP))
    assert "closed epochs while this was read" in raised.value.cause
    assert "longer -b" in raised.value.remedy


def test_concurrent_edits_come_one_after_the_other(ran):
    """Of several processes each is made or refused; those that were acknowledged are all there."""
    code = """
    import sys
    from pathlib import Path
    from recovery import DirectoryLockedError
    from recovery.base.clock import SystemClock, Uptime
    from recovery.operational.steps.step_edits import edit_states
    from recovery.storage.store import Store
    sys.stdin.readline()
    try:
        store, changes = Store(Path(sys.argv[1])), {("count", sys.argv[2]): ("1", None)}
        edit_states(store, "set", lambda _: changes, clock=SystemClock())
        print(sys.argv[2])
    except DirectoryLockedError:
        pass
    """
    processes = [background(code, ran, f"new-{number}") for number in range(4)]
    made = [process.communicate("go\n", timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert {key for key in at(ran, None) if key.startswith("new")} == set(filter(None, made))


def test_rows_of_the_runs_own_are_found_by_key(store_maker):
    """Marks that epochs move are all in one partition, whatever their key."""
    directory = store_maker(4)
    keys = [f"%/m{number}" for number in range(8)]
    writer = EpochWriter(Store(directory), plan_resume(scan(directory)), "flow", SystemClock(), backup_interval_s=0)
    writer.close({("$hwm", key): ("1", None) for key in keys})
    writer.release()
    assert set(snapshot_at(directory).some("$hwm", keys)) == set(keys)


def test_an_epoch_counts_as_closed_when_all_partitions_have_it(store_maker, tmp_path, monkeypatch):
    """Copies that are closer together than the backup interval share an epoch, also when closing takes long."""
    directory, copies = store_maker(2), tmp_path / "copies"
    copies.mkdir()
    clock = SetClock()
    writer = EpochWriter(Store(directory), plan_resume(scan(directory)), "flow", clock, backup_interval_s=60)
    changes = {("s", f"k{number}"): ("1", None) for number in range(9)}
    writer.close(changes)
    clock.forward(100)
    others_done = threading.Event()
    close_partition = FilePartitions.close_partition

    def slowly(self, index, lease, request):
        if request.epoch == 2 and index == 0:
            others_done.wait()
            clock.forward(25)
            copy_plainly(directory / "part-0.sqlite3", copies / "part-0.sqlite3")
            clock.forward(5)
        done = close_partition(self, index, lease, request)
        others_done.set()
        return done

    monkeypatch.setattr(FilePartitions, "close_partition", slowly)
    writer.close(changes)
    clock.forward(30)
    writer.close(changes)
    clock.forward(10)
    copy_plainly(directory / "part-1.sqlite3", copies / "part-1.sqlite3")  # 45 s after the other
    writer.release()
    assert plan_resume(scan(copies)).window == (1,)


class SetClock(SystemClock):
    """A clock that stops until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1_000

    def wall_ms(self) -> int:
        return self.seconds * 1_000

    def elapsed_s(self) -> float:
        return float(self.seconds)

    def uptime(self) -> Uptime | None:
        return Uptime("boot", self.seconds * 1_000)

    def forward(self, seconds: int) -> None:
        self.seconds += seconds


def copy_plainly(source: Path, target: Path) -> None:
    """By SQLite's backup, as a tool of others would."""
    reader = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
    writer = apsw.Connection(str(target))
    with writer.backup("main", reader, "main") as backup:
        backup.step()
    reader.close()
    writer.close()


def test_a_value_whose_epoch_is_damaged_is_not_passed_over(store_dir):
    """A row that says it was written later than it was is damage, not a key without state."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        run.apply(1, {"a": "2", "b": "2"})
        run.close(1)
    for path in paths_of(store_dir):
        alter(path, "UPDATE superseded SET snap_epoch = snap_epoch + 64")
    with pytest.raises(CorruptPartitionError, match="'a' does not match its digest"):
        at(store_dir, 1)
    with pytest.raises(CorruptPartitionError, match="'a' does not match its digest"):
        snapshot_at(store_dir, 1).state(STEP, "a")
