"""What takes part in closing an epoch, and when."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from recovery.backup.note import LastBackup, note_backup
from recovery.base.clock import SystemClock
from recovery.base.ids import NO_EPOCH
from recovery.base.reserved import EPOCH_STEP
from recovery.cli import main
from recovery.epochs.closer import SHORT_S, ClosingSettings
from recovery.planning.folding import KEPT_SHARE
from recovery.storage.scan import scan
from tests.faults.minirun import KEYS, STEP, MiniRun, run, states, totals
from tests.stores import problems, state_at, window

INPUT = 3
PROBE = "$probe"
"""A reserved step that no other code stores rows under."""


def held(directory) -> list[int]:
    """The newest epoch of each partition."""
    newest = (file.description.newest for file in scan(directory))
    return [NO_EPOCH if each is None else each.epoch for each in newest]


class Recorder:
    """A contributor that notes its calls, with the epochs that the partitions hold at that moment. It stores `rows`
    and raises `error` when it is asked to do `fails`."""

    def __init__(self, directory, rows=None, fails: str = "") -> None:
        self.calls: list[tuple] = []
        self.rows = rows or {}
        self.fails = fails
        self._directory = directory

    def prepare(self, epoch, batch, floor):
        self._note("prepare", epoch, batch, floor)
        return self.rows

    def closed(self, batch):
        self._note("closed", batch)

    def publish(self, epoch, batch, floor):
        self._note("publish", epoch, batch, floor)

    def _note(self, name, *arguments):
        self.calls.append((name, *arguments, held(self._directory)))
        if self.fails == name:
            raise RuntimeError(f"cannot {name}")


def begin(directory, *contributors) -> MiniRun:
    """A run with one finished micro-batch, and these contributors beside its own."""
    execution = MiniRun(directory, INPUT, snapshot_interval="1h", contributors=contributors)
    execution.batch()
    return execution


def test_contributors_act_before_and_after_the_partitions(store_dir):
    """They prepare while no partition holds the epoch, and learn that it is closed, and publish, when all hold it."""
    recorder = Recorder(store_dir)
    execution = begin(store_dir, recorder)
    execution.finish()
    assert recorder.calls == [
        ("prepare", 1, 0, 0, [0, 0]), ("closed", 0, [1, 1]), ("publish", 1, 0, 0, [1, 1])
    ]  # fmt: skip


def test_the_row_of_the_later_contributor_counts(store_dir):
    """Rows are stored with the epoch; of two contributors' rows of one step, those of the later one."""
    first = Recorder(store_dir, {PROBE: {"a": "1", "b": "2"}, EPOCH_STEP: {"mark": "3"}})
    second = Recorder(store_dir, {PROBE: {"a": "4"}})
    execution = begin(store_dir, first, second)
    try:
        with execution.closer.lock:
            execution.closer.close(lambda: True)
        assert execution.store.driver_values(PROBE) == {"a": "4"}
        assert execution.store.driver_values(EPOCH_STEP) == {"mark": "3"}
    finally:
        execution.release()


@pytest.mark.parametrize(("phase", "epochs"), [("prepare", [0, 0]), ("closed", [1, 1]), ("publish", [1, 1])])
def test_the_error_of_a_contributor_ends_closing(store_dir, phase, epochs):
    """What it raises is raised to whoever waits for the epoch, and later contributors are not called for it."""
    later = Recorder(store_dir)
    execution = begin(store_dir, Recorder(store_dir, fails=phase), later)
    try:
        with execution.closer.lock, pytest.raises(RuntimeError, match=f"cannot {phase}"):
            execution.closer.close(lambda: True)
        with pytest.raises(RuntimeError):
            execution.closer.check()
    finally:
        execution.release()
    assert held(store_dir) == epochs
    assert phase not in [name for name, *_ in later.calls]
    assert execution.closed == ([1] if phase == "publish" else [])


@pytest.mark.parametrize(
    ("interval_s", "kept_s", "may_log", "noted", "changed", "logs"),
    [
        (0, 0, True, False, 1.0, True),
        (SHORT_S - 0.1, 0, True, False, 1.0, True),
        (SHORT_S, 0, True, False, 0.0, False),
        (0, 1, True, False, KEPT_SHARE, True),
        (0, 1, True, False, KEPT_SHARE + 0.01, False),
        (0, 1, True, True, 0.0, False),
        (0, 0, True, True, 0.0, True),
        (0, 0, False, False, 0.0, False),
    ],
)
def test_which_epochs_are_logged(interval_s, kept_s, may_log, noted, changed, logs):
    """Epochs that follow closely are logged. The run may rule that out. So do, where epochs are kept, backups that
    read what each epoch has changed, and epochs that change much of the state."""
    assert ClosingSettings(interval_s, kept_s, may_log).logs(notes_made=noted, changed=changed) is logs


def logged_epochs(directory) -> list[int]:
    """How many epochs each partition holds that are only logged."""
    return [sum(each.is_logged for each in file.description.epochs) for file in scan(directory)]


@pytest.mark.parametrize("kept", [0, 3600])
def test_what_is_little_of_much_stays_logged(store_dir, kept):
    """A run leaves it, the next one goes on over it and may go back within it, and an edit of the state folds it."""
    assert run(store_dir, INPUT, 3, backup_interval=kept) == [1, 2, 3]
    assert logged_epochs(store_dir) == [2, 2]
    assert run(store_dir, INPUT, 5, backup_interval=kept) == [4, 5]
    assert logged_epochs(store_dir) == [4, 4]
    assert states(store_dir) == totals(INPUT, 5)
    assert problems(store_dir) == []
    first = MiniRun(store_dir, INPUT, backup_interval=kept, resume_after=2)
    assert first.next_batch == 2
    first.batch()
    first.finish()
    assert states(store_dir) == totals(INPUT, 3)
    assert window(store_dir) == (0, 1, 2, 3)
    result = CliRunner().invoke(main, ["state", "set", str(store_dir), "--step", STEP, "--key", "new", "7", "--yes"])
    assert result.exit_code == 0, result.output
    assert logged_epochs(store_dir) == [0, 0]
    assert states(store_dir) == totals(INPUT, 3) | {"new": "7"}
    assert window(store_dir) == ((0, 1, 2, 3, 4) if kept else (3, 4))
    for epoch in window(store_dir)[:4] if kept else [3]:
        assert {key: text for (_, key), (text, _) in state_at(store_dir, epoch).items() if key in KEYS} == totals(
            INPUT, epoch
        )
    assert problems(store_dir) == []


def test_backups_that_read_changes_end_logging(store_dir):
    """Once a backup has stored what changed, what is logged is folded, and epochs are moved, noted for the next one."""
    run(store_dir, INPUT, 2, backup_interval=3600)
    note_backup(store_dir, LastBackup(SystemClock().wall_ms(), 2, "dest", incremental=True))
    run(store_dir, INPUT, 4, backup_interval=3600)
    assert logged_epochs(store_dir) == [0, 0]
    assert window(store_dir) == (0, 1, 2, 3, 4)
    assert states(store_dir) == totals(INPUT, 4)


def test_a_backup_during_a_run_ends_logging(store_dir):
    """The epoch that ends next is still logged; then all are folded."""
    execution = MiniRun(store_dir, INPUT, backup_interval=3600)
    for _ in range(3):
        execution.batch()
    assert logged_epochs(store_dir) == [1, 1]
    note_backup(store_dir, LastBackup(SystemClock().wall_ms(), 2, "dest", incremental=True))
    execution.batch()
    assert logged_epochs(store_dir) == [0, 0]
    execution.finish()
    assert window(store_dir) == (0, 1, 2, 3, 4)
    assert states(store_dir) == totals(INPUT, 4)
    assert problems(store_dir) == []
