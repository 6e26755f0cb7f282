"""What a loss of the disk would cost: against the epochs that a run closed, went back over, and backed up."""

from __future__ import annotations

import pytest

from recovery.backup.note import LastBackup, LastReplica, last_backup, note_backup, note_replica
from tests.report.support import STARTED_MS, clock, run_epochs
from tests.ui.support import ask, printed, served

RUNS = ((8, None), (3, 5), (4, None), (2, 7))
"""How many epochs each execution closes, and where it resumes: the present time line is 1 to 4 of the first execution,
5 to 6 of the second, and 7 to 8 of the fourth."""


@pytest.fixture
def store(make_store):
    directory, times = make_store(2), clock()
    for seed, (epochs, resume_epoch) in enumerate(RUNS):
        run_epochs(directory, epochs, times, resume_epoch=resume_epoch, seed=seed)
    return directory


def lines(flows):
    """The measures of the epochs that count, by epoch."""
    rows = ask(flows, "epochs").facts["epochs"]
    return {each["epoch"]: each for each in rows if not each["is_abandoned"]}


@pytest.mark.parametrize(
    ("execution", "epoch", "shared"),
    [(1, 3, 3), (1, 4, 4), (1, 5, 4), (1, 8, 4), (2, 6, 6), (2, 7, 6), (3, 9, 6), (3, 11, 6), (4, 7, 7), (4, 8, 8)],
)
def test_a_copy_has_what_its_line_shares_with_the_present_one(store, execution, epoch, shared):
    """A copy may have an epoch above the newest one: a run went back over that epoch. Abandoned epochs cost
    nothing."""
    for note in (note_backup, note_replica):
        if note is note_backup:
            note(store, LastBackup(STARTED_MS, epoch, "there", execution=execution))
        else:
            (store / "last-backup.json").unlink()
            note(store, LastReplica("there", epoch, execution, STARTED_MS))
        flows = served(store)
        loss = ask(flows, "copies").facts["loss"]
        lost = [each for number, each in lines(flows).items() if number > shared]
        assert (loss["epoch"], loss["shared_epoch"], loss["epochs"]) == (epoch, shared, 8 - shared)
        assert loss["rows"] == sum(each["measure"]["input_rows"] for each in lost)
        assert (loss["seconds"] > 0) == bool(lost)


def test_the_best_copy_counts(store):
    """The one that shares most with the present time line, not the one with the highest number."""
    note_backup(store, LastBackup(STARTED_MS, 11, "old line", execution=3))
    note_replica(store, LastReplica("new line", 7, 4, STARTED_MS))
    assert ask(served(store), "copies").facts["loss"]["from"] == "new line"


def test_a_note_of_an_older_version(store):
    """Does not say which execution closed its epoch: the time of the backup does."""
    began = {each["number"]: each["started_ms"] for each in printed("status", store)["executions"]}
    for number, shared in ((1, 4), (2, 6), (4, 8)):
        note_backup(store, LastBackup(began[number] + 1, 8, "there"))
        assert ask(served(store), "copies").facts["loss"]["shared_epoch"] == shared


def test_a_backup_says_which_execution_closed_its_epoch(make_store, tmp_path):
    """So that a run that goes back later makes the copy lack something."""
    directory, times = make_store(2), clock()
    run_epochs(directory, 4, times)
    printed("backup", directory, tmp_path / "copies")
    found = last_backup(directory)
    assert found is not None
    assert (found.epoch, found.execution) == (4, 1)
    assert ask(served(directory), "copies").facts["loss"]["epochs"] == 0
    run_epochs(directory, 1, times, resume_epoch=3)
    assert ask(served(directory), "copies").facts["loss"]["epochs"] == 1


def test_growth_is_that_of_the_epochs_that_count(store):
    """Each epoch once."""
    [count] = [each for each in ask(served(store), "steps").facts["steps"] if each["step"] == "count"]
    assert [each["epoch"] for each in count["growth"]] == list(range(1, 9))
