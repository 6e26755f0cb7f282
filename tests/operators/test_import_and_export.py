"""Checkpoints in and out, without Spark: what is taken, what is refused, and that a refusal leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal

import pytest
from click.testing import CliRunner

from recovery.base.clock import SystemClock
from recovery.checkpoint.directories import CheckpointTransfer, LocalCheckpoint
from recovery.cli import main
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    CorruptPartitionError,
    DirectoryLockedError,
    EpochNotHeldError,
    FlowMismatchError,
    NoPartitionsError,
    SparkCheckpointError,
    StorageError,
    UnsupportedPlanError,
)
from recovery.operational.steps.step_edits import edit_states
from recovery.operators.exporting import export
from recovery.operators.importing import import_checkpoint
from recovery.planning.resume import plan_resume
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import scan
from recovery.storage.snapshot import snapshot_at
from recovery.storage.store import Store
from tests.checkpoint.support import write
from tests.faults.minirun import child, die_at, wait
from tests.operators.support import IMPORT_POINTS, held, job, place, write_job
from tests.shares import one_in
from tests.stores import Driver, alter, paths_of, problems, query

CLOCK = SystemClock()


def taken(source, directory, flow="flow", **options):
    return import_checkpoint(place(source), Store(directory), flow, clock=CLOCK, **options)


@pytest.fixture
def source(tmp_path):
    """A job that was killed within micro-batch 5."""
    write_job(tmp_path / "job", batch=4)
    return tmp_path / "job"


def run(*arguments):
    """The command line: exit code and output."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_what_goes_in_comes_out(source, store_dir, tmp_path):
    """As of the newest micro-batch that is done: the one that is begun leaves no trace. The source is as it was."""
    before = held(source)
    done = taken(source, store_dir)
    assert (done.epoch, done.batch, done.begun) == (1, 4, 5)
    assert [(o.number, o.name, o.partitions, o.newest_version) for o in done.operators] == [(0, "stateStoreSave", 2, 5)]
    assert problems(store_dir) == []
    plan = plan_resume(scan(store_dir), flow_id="flow")
    assert plan.resume_epoch == 2
    assert plan.snapshot is not None
    assert plan.snapshot.batch_id == 4
    exported = export(Store(store_dir), place(tmp_path / "out"))
    assert (exported.epoch, exported.batch, exported.files) == (1, 4, done.files)
    assert held(tmp_path / "out") == job(4)
    assert held(source) == before


def test_the_import_is_in_the_run_history(source, store_dir):
    """Who took what over, and when, is kept."""
    taken(source, store_dir)
    code, output = run("runs", store_dir, "--json")
    assert code == 0
    [entry] = json.loads(output)
    assert (entry["pipeline"], entry["kind"], entry["status"]) == ("flow", "edit", "succeeded")
    assert entry["details"]["what"] == "checkpoint import"
    assert entry["details"]["from"] == str(source)


def test_long_files_are_taken_in_chunks(source, store_dir, tmp_path):
    """A file of several MiB comes back as it was, with its progress shown."""
    content = bytes(range(256)) * (3 << 12) + b"end"
    write(source, "state/0/0/5.snapshot", content)
    progress: list[CheckpointTransfer] = []
    taken(source, store_dir, observe=progress.append)
    keys = {key for path in paths_of(store_dir) for (key,) in query(path, "SELECT state_key FROM snaps")}
    assert {f"state/0/0/5.snapshot#{number:05}" for number in (1, 2, 3, 4)} <= keys
    assert progress[-1].what == "writing"
    assert progress[-1].bytes_done == progress[-1].bytes_total > len(content)
    export(Store(store_dir), place(tmp_path / "out"))
    assert held(tmp_path / "out")["state/0/0/5.snapshot"] == content


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda job: (job / "metadata").unlink(), SparkCheckpointError, "not a checkpoint of Spark"),
        (
            lambda job: [path.unlink() for path in (job / "commits").iterdir()],
            SparkCheckpointError,
            "no finished",
        ),
        (lambda job: (job / "offsets" / "4").unlink(), SparkCheckpointError, "offsets/4 is missing"),
        (lambda job: (job / "state/0/1/3.delta").unlink(), SparkCheckpointError, "3.delta is missing"),
        (lambda job: (job / "state/0/0/5.delta").unlink(), SparkCheckpointError, "5.delta is missing"),
        (lambda job: shutil.rmtree(job / "state/0/1"), SparkCheckpointError, "state/0/1 is missing"),
        (
            lambda job: [path.unlink() for path in (job / "state/0/1").iterdir()],
            SparkCheckpointError,
            "state/0/1 is mis",
        ),
        (lambda job: job.rename(job.with_name("moved")), SparkCheckpointError, "there is nothing"),
        (
            lambda job: write(job, "offsets/4", b"\xff\xfe\n\n"),
            SparkCheckpointError,
            "not in the form",
        ),
        (lambda job: write(job, "state/0/0/5_a1b2.delta"), UnsupportedPlanError, "format 2"),
    ],
    ids=[
        "no metadata",
        "nothing done",
        "no offsets",
        "gap",
        "newest missing",
        "partition missing",
        "store empty",
        "not there",
        "no text",
        "format 2",
    ],
)
def test_what_cannot_be_taken_is_refused(source, store_dir, spoil, error, message):
    """The partitions are as fresh as before, and can still be bound to any flow."""
    spoil(source)
    with pytest.raises(error, match=message):
        taken(source, store_dir)
    plan = plan_resume(scan(store_dir))
    assert (plan.window, plan.flow_id, plan.execution_number) == ((0,), None, 1)


def test_partitions_that_are_in_use_are_refused(source, store_dir, tmp_path):
    """Without partitions, locked, of another flow, damaged, or with an epoch of its own."""
    with pytest.raises(NoPartitionsError):
        taken(source, tmp_path / "none")
    with DirectoryLock(store_dir, CLOCK, "a run"), pytest.raises(DirectoryLockedError):
        taken(source, store_dir)
    with pytest.raises(ConfigurationError, match="name"):
        taken(source, store_dir, flow="")
    taken(source, store_dir)
    with pytest.raises(AlreadyInitializedError, match=f"the checkpoint at {source} after micro-batch 4 already"):
        taken(source, store_dir)
    with Driver(store_dir) as run:
        run.apply(5, {"a": "1"})
        run.close(5)
    with pytest.raises(AlreadyInitializedError, match="up to 2"):
        taken(source, store_dir)
    with pytest.raises(FlowMismatchError):
        taken(source, store_dir, flow="other")


def test_damaged_partitions_are_refused(source, store_dir):
    """Nothing is written on top of what cannot be trusted."""
    with Driver(store_dir) as driver:
        driver.apply(0, {"a": "1"})
        driver.close(0)
    for path in paths_of(store_dir):
        alter(path, "UPDATE snaps SET ser_change = '2'")
    with Driver(store_dir, resume_epoch=1):
        pass
    alter(paths_of(store_dir)[0], "INSERT INTO snaps VALUES ('x', 'y', 1, 'z', NULL, 1)")
    with pytest.raises((CorruptPartitionError, AlreadyInitializedError)):
        taken(source, store_dir)


def test_an_import_that_fails_halfway_can_be_repeated(source, store_dir, tmp_path):
    """A file that vanishes while it is read: no epoch is closed, and the next attempt begins again."""

    def vanish(_event):
        (source / "state/0/1/5.delta").unlink(missing_ok=True)
        (source / "state/0/0/5.delta").unlink(missing_ok=True)
        (source / "commits/4").unlink(missing_ok=True)
        (source / "metadata").unlink(missing_ok=True)

    kept = held(source)
    with pytest.raises(SparkCheckpointError, match="has disappeared"):
        taken(source, store_dir, observe=vanish)
    assert snapshot_at(store_dir).epoch == 0
    for path, content in kept.items():
        write(source, path, content)
    assert taken(source, store_dir).epoch == 1
    export(Store(store_dir), place(tmp_path / "out"))
    assert held(tmp_path / "out") == job(4)


@pytest.mark.parametrize(("point", "visit"), one_in(2, IMPORT_POINTS, [1, 2]))
def test_an_import_that_is_killed_can_be_repeated(source, store_dir, tmp_path, point, visit):
    """At every step, in the first and in the second partition: all of the epoch is there, or importing begins again."""

    def work():
        die_at(point, visit)
        taken(source, store_dir)

    code = wait(child(work))
    assert code == (0 if visit == 2 and point in ("close.3", "close.4") else -signal.SIGKILL)
    if snapshot_at(store_dir).epoch == 0:
        assert taken(source, store_dir).epoch == 1
    assert problems(store_dir) == []
    export(Store(store_dir), place(tmp_path / "out"))
    assert held(tmp_path / "out") == job(4)


def test_an_export_that_is_killed_leaves_a_draft_at_most(source, store_dir, tmp_path):
    """Nothing is at the place, so the next attempt finds it free."""
    taken(source, store_dir)
    code = wait(
        child(lambda: export(Store(store_dir), place(tmp_path / "out"), observe=lambda _: os.kill(os.getpid(), 9)))
    )
    assert code == -signal.SIGKILL
    assert [path.name for path in tmp_path.glob("*out*")] == [".out.draft-test"]
    export(Store(store_dir), LocalCheckpoint(tmp_path / "out", lambda: "next"))
    assert held(tmp_path / "out") == job(4)


def test_any_held_epoch_can_be_exported(source, store_dir, tmp_path):
    """An older one too, after the state was changed; what is ours and not Spark's is named."""
    taken(source, store_dir)
    edit_states(Store(store_dir), "set", lambda _: {("count", "a"): ("1", None)}, clock=CLOCK)
    newest = export(Store(store_dir), place(tmp_path / "newest"))
    assert (newest.epoch, newest.batch, newest.steps) == (2, 4, ("count",))
    assert held(tmp_path / "newest") == job(4)


def test_what_cannot_be_exported(source, store_dir, tmp_path):
    """Not there, not held, nothing in it, damaged: nothing is left at the place."""
    out = place(tmp_path / "out")
    with pytest.raises(NoPartitionsError):
        export(Store(tmp_path / "none"), out)
    with pytest.raises(EpochNotHeldError, match="before the first"):
        export(Store(store_dir), out)
    with pytest.raises(EpochNotHeldError, match="epoch 7"):
        export(Store(store_dir), out, epoch=7)
    with Driver(store_dir) as driver:
        driver.close(0)
    with pytest.raises(SparkCheckpointError, match="epoch 1 has no checkpoint"):
        export(Store(store_dir), out)
    assert not list(tmp_path.glob("*out*"))


def test_what_is_damaged_is_not_exported(source, store_dir, tmp_path):
    """Every digest is checked first."""
    taken(source, store_dir)
    for path in paths_of(store_dir):
        alter(path, "UPDATE snaps SET ser_change = ser_change || '0' WHERE state_key = 'metadata'")
    with pytest.raises(CorruptPartitionError):
        export(Store(store_dir), place(tmp_path / "out"))
    assert not list(tmp_path.glob("*out*"))


def test_a_place_that_is_taken_is_left_alone(source, store_dir, tmp_path):
    """A file, or a directory with something in it. An empty directory is a place."""
    taken(source, store_dir)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "full", "link"):
        with pytest.raises(ConfigurationError, match="not empty"):
            export(Store(store_dir), place(tmp_path / name))
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    export(Store(store_dir), place(tmp_path / "empty"))
    assert held(tmp_path / "empty") == job(4)


@pytest.mark.parametrize("when", ["in place", "writing"])
def test_a_run_that_collects_the_epoch_while_it_is_exported(source, store_dir, tmp_path, when):
    """Once the checkpoint is at its place the export has succeeded; before, nothing is there."""
    taken(source, store_dir)
    edit_states(Store(store_dir), "set", lambda _: {("count", "a"): ("1", None)}, clock=CLOCK)

    class Place(LocalCheckpoint):
        @contextlib.contextmanager
        def writing(self, observe=lambda _: None):
            with super().writing() as draft:
                if when == "writing":
                    collect()
                yield draft
            if when == "in place":
                collect()

    def collect():
        with Driver(store_dir) as run:
            for batch in (5, 6, 7):
                run.apply(batch, {"a": str(batch)})
                run.close(batch, floor=run.epoch - 1)

    out = Place(tmp_path / "out", lambda: "test")
    if when == "in place":
        assert export(Store(store_dir), out).steps == ("count",)
        assert held(tmp_path / "out") == job(4)
    else:
        with pytest.raises(EpochNotHeldError, match="does not hold epoch 2 any more") as refused:
            export(Store(store_dir), out)
        assert "longer -b" in refused.value.remedy
        assert not list(tmp_path.glob("*out*"))


def test_an_export_that_fails_leaves_nothing(source, store_dir, tmp_path):
    """Whatever goes wrong on the way, neither the place nor a draft beside it is there."""
    taken(source, store_dir)

    def full(_event):
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space"):
        export(Store(store_dir), place(tmp_path / "below" / "out"), observe=full)
    assert list((tmp_path / "below").iterdir()) == []


def test_commands(source, store_dir, tmp_path):
    """`checkpoint import`, `show`, `export` and `status` agree; --json has the same facts."""
    code, output = run("checkpoint", "import", source, store_dir, "--flow", "flow")
    assert code == 0
    assert "a run goes on after micro-batch 4" in output
    assert "micro-batch 5 was begun but not finished" in output
    code, output = run("checkpoint", "show", store_dir)
    assert code == 0
    assert "stateStoreSave" in output
    shown = json.loads(run("checkpoint", "show", store_dir, "--json")[1])
    assert shown["operators"] == json.loads(run("status", store_dir, "--json")[1])["operators"]
    [operator] = shown["operators"]
    assert (operator["operator"], operator["oldest_version"], operator["newest_version"]) == (0, 1, 5)
    assert operator["bytes"] == sum(len(content) for path, content in job(4).items() if path.startswith("state/"))
    assert "stateStoreSave" in run("status", store_dir)[1]
    assert "unknown" in run("status", store_dir)[1], "how many rows a job had is not in its checkpoint"
    assert [each["rows"] for each in shown["operators"]] == [None]
    for command in (("checkpoint", "show"), ("state", "list")):
        code, output = run(*command, store_dir, "--operator", 0, "--timers")
        assert (code, "operator 0 (stateStoreSave) has no timers" in output) == (44, True)
        assert run(*command, store_dir, "--timers")[0] == 2
    code, output = run("checkpoint", "export", store_dir, tmp_path / "out", "--json")
    assert code == 0
    assert json.loads(output)["steps_left_out"] == []
    assert held(tmp_path / "out") == job(4)
    code, output = run("checkpoint", "export", store_dir, tmp_path / "out", "--json")
    assert (code, json.loads(output)["error"]) == (11, "ConfigurationError")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("checkpoint", "show", "DIR", "--operator", 3), 44, "operator 3 has no state"),
        (("checkpoint", "show", "DIR", "--operator", 0, "--store", "left"), 44, "has no store 'left'"),
        (("checkpoint", "show", "DIR", "--operator", 0, "--variable", "n"), 44, "has no variable 'n'"),
        (("checkpoint", "show", "DIR", "--operator", 0, "--epoch", 9), 28, "epoch 9 is not held"),
        (("checkpoint", "show", "DIR", "--operator", 0, "--changes-since", 9), 28, "epoch 9 is not held"),
        (("checkpoint", "show", "DIR", "--store", "left"), 2, "need --operator"),
        (("state", "list", "DIR", "--operator", 3), 44, "operator 3 has no state"),
        (("state", "list", "DIR", "--operator", 0, "--step", "x"), 2, "cannot be combined with --step"),
        (("state", "get", "DIR", "--operator", 0), 2, "needs --key"),
        (("state", "set", "DIR", "--operator", 0, "--key", "a", "1"), 11, "cannot be changed"),
        (("state", "clear", "DIR", "--operator", 0, "--key", "a"), 11, "cannot be changed"),
        (("state", "set", "DIR", "--step", "$checkpoint", "--key", "metadata", "1", "-y"), 11, "cannot be edited"),
        (("checkpoint", "import", "DIR", "DIR"), 2, "--flow"),
    ],
)
def test_refusals_need_no_spark(source, store_dir, arguments, code, message):
    """What cannot be shown or done is an immediate error, with its own exit code."""
    taken(source, store_dir)
    found, output = run(*(store_dir if argument == "DIR" else argument for argument in arguments))
    assert found == code
    assert message in output
