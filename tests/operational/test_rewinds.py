"""What a start on a directory is refused, and which rewinds a directory remembers. Nothing here starts Spark."""

from __future__ import annotations

import pytest

from recovery import HistoryLossError, RecoveryConfig, RewindRepeatedError
from recovery.base.clock import SystemClock
from recovery.epochs.execution import new_execution
from recovery.operational.rewinds import note_start, read_rewinds
from recovery.spark.run.prepare import Prepared
from recovery.storage.scan import scan
from tests.backup.support import work

CLOCK = SystemClock()


def start(directory, **config):
    """Begin an execution as a run does, and end it."""
    prepared = Prepared(RecoveryConfig(directory, **config), "flow", CLOCK)
    try:
        store = prepared.open_store()
        execution = new_execution(prepared.plan, "flow", CLOCK, backup_interval_s=prepared.backup_interval_s)
        store.start(execution, [], prepared.plan.partitions)
        note_start(prepared.plan, prepared.config, CLOCK)
        return prepared
    finally:
        prepared.parts.end()


@pytest.fixture
def store(make_store):
    """A directory that holds all of its four epochs."""
    directory = make_store(2)
    work(directory, 4)
    return directory


def newest(directory):
    """The newest epoch."""
    return max(file.description.newest_epoch for file in scan(directory))


@pytest.mark.parametrize("option", [{"resume_after": 2}, {"resume_epoch": 3}])
def test_a_service_goes_back_once(store, option):
    """The same command line a second time discards nothing, also when the first run closed nothing."""
    assert start(store, **option).discarded.first == 3
    assert newest(store) == 2
    assert start(store, **option).discarded is None
    work(store, 2)
    assert newest(store) == 4
    with pytest.raises(RewindRepeatedError, match="execution 3 went back to after epoch 2 already"):
        start(store, **option)
    assert newest(store) == 4
    start(store)
    start(store, **option, rewind_again=3)
    assert newest(store) == 2


def test_the_beginning_is_gone_back_to_once(store):
    """And another snapshot still may be."""
    start(store, resume_after=0)
    work(store, 3)
    with pytest.raises(RewindRepeatedError, match="before epoch 1"):
        start(store, resume_after=0)
    start(store, resume_after=2)
    # The snapshot after epoch 1 is one that nobody went back to.
    start(store, resume_after=1)
    assert [each.cut[0] for each in read_rewinds(store, CLOCK)] == [0, 2, 1]


def test_history_is_not_discarded_without_a_word(store):
    """The interval of the last run applies; a shorter one is confirmed, and is the last run's then."""
    start(store, backup_interval="1d")
    assert start(store).backup_interval_s == 86400
    with pytest.raises(HistoryLossError, match="discards snapshots that the last run kept for 1 d"):
        start(store, backup_interval="1h")
    assert start(store, backup_interval="2d").backup_interval_s == 2 * 86400
    assert start(store, backup_interval=0, discard_history=True).backup_interval_s == 0
    assert start(store).backup_interval_s == 0
    assert start(store, backup_interval=0).backup_interval_s == 0


def test_a_directory_that_holds_nothing_loses_nothing(store_dir):
    """The first runs may choose any interval."""
    start(store_dir, backup_interval="1d")
    assert start(store_dir, backup_interval=0).backup_interval_s == 0
