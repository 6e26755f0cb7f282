"""High-water marks that move with an epoch, beside those that are set immediately."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from recovery import ConfigurationError, HighWaterMarkError, RetryPolicy, StateLockedError, StateManager, StorageError
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.epochs.writer import EpochWriter
from recovery.operational import closed_marks
from recovery.operational.backends.migrate import migrate
from recovery.operational.closed_marks import changes
from recovery.operational.targets import DocumentTarget
from recovery.planning.resume import plan_resume
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import scan
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.store import Store
from tests.operational.support import IMPATIENT
from tests.stores import problems


@contextlib.contextmanager
def execution(directory, resume_epoch=None):
    """An execution that closes epochs with marks, as a run of a pipeline does."""
    plan = plan_resume(scan(directory), resume_epoch=resume_epoch)
    writer = EpochWriter(Store(directory), plan, "nightly", SystemClock(), backup_interval_s=3600)
    try:
        yield writer
    finally:
        writer.release()


def close(directory, writer, **marks):
    """Close an epoch that moves marks."""
    state = StateManager(directory)
    return writer.close(changes("", {key: state.epoch_row(key, value) for key, value in marks.items()}), batches=1)


@contextlib.contextmanager
def half_closed(directory, monkeypatch, **marks):
    """A run that has closed an epoch which moves marks in part-0, and in part-1 closes it when the function that is
    given is called."""
    close_partition, in_part_0, go_on = FilePartitions.close_partition, threading.Event(), threading.Event()

    def in_turn(self, index, *arguments):
        assert not index or go_on.wait(60)
        closed = close_partition(self, index, *arguments)
        in_part_0.set()
        return closed

    with (
        DirectoryLock(directory, SystemClock(), "a run"),
        execution(directory) as writer,
        ThreadPoolExecutor(1) as pool,
        monkeypatch.context() as patch,
    ):
        patch.setattr(FilePartitions, "close_partition", in_turn)
        closing = pool.submit(close, directory, writer, **marks)

        def finish():
            go_on.set()
            closing.result(60)

        try:
            assert in_part_0.wait(60)
            yield finish
        finally:
            go_on.set()


@pytest.fixture
def state(store_dir):
    return StateManager(store_dir)


def test_a_mark_is_visible_with_its_epoch_and_goes_back_with_it(store_dir, state):
    """As the documentation says of its kind."""
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5, other="x")
        assert (state.get_hwm("orders"), state.get_hwm("other")) == (5, "x")
        close(store_dir, writer, orders=7)
        assert state.get_hwm("orders") == 7
    with execution(store_dir, resume_epoch=2):
        assert state.get_hwm("orders") == 5
    with execution(store_dir, resume_epoch=1):
        assert state.get_hwm("orders") is None
    assert problems(store_dir) == []


def test_the_last_who_moved_a_mark_wins_and_a_rewind_takes_back_epochs_alone(store_dir, state):
    """A mark that was set immediately stays; below it, those of epochs come and go."""
    state.set_hwm("orders", 1)
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
        assert state.get_hwm("orders") == 5
        state.set_hwm("orders", 6)
        assert state.get_hwm("orders") == 6
        close(store_dir, writer, orders=8)
        assert state.get_hwm("orders") == 8
    with execution(store_dir, resume_epoch=2):
        assert state.get_hwm("orders") == 6
    with execution(store_dir, resume_epoch=1):
        assert state.get_hwm("orders") == 6


def test_a_mark_that_is_set_while_another_is_read(store_dir, state, monkeypatch):
    """Nobody uses the partitions, so they are read alone; who writes then makes it be read again."""
    from recovery.storage import history

    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
    original, written = history._states, []

    def meddle(*arguments):
        yield from original(*arguments)
        if not written:
            written.append(True)
            StateManager(store_dir).set_hwm("other", 1)

    monkeypatch.setattr(history, "_states", meddle)
    assert state.get_hwm("orders") == 5
    assert written


def test_marks_that_do_not_change_stay_those_of_epochs(store_dir, state):
    """The document is written as a whole, with another value for one of them."""
    state.set_hwm_batch([{"key": "a", "value": 1}, {"key": "b", "value": 10}])
    with execution(store_dir) as writer:
        close(store_dir, writer, b=50)
    document = json.loads(CliRunner().invoke(main, ["state", "get", str(store_dir), "hwm"]).stdout)
    document["marks"]["a"]["value"] = 2
    CliRunner().invoke(main, ["state", "set", str(store_dir), "hwm", json.dumps(document), "--yes"])
    assert (state.get_hwm("a"), state.get_hwm("b")) == (2, 50)


@pytest.mark.parametrize("how", ["clear", "import", "set"])
def test_a_removed_mark_stays_removed(store_dir, state, tmp_path, how):
    """Also when the document of marks is written as a whole: the epoch's mark is older than the removal."""

    def call(*words):
        result = CliRunner().invoke(main, ["state", *map(str, words)])
        assert result.exit_code == 0, result.output
        return result.stdout

    file = tmp_path / "states.jsonl"
    state.set_hwm("other", 1)
    call("export", store_dir, "--output-file", file)
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
    state.set_hwm("orders", 8)
    state.remove_hwm("orders")
    if how == "clear":
        call("clear", store_dir, "hwm", "--yes")
    elif how == "import":
        call("import", store_dir, file, "--yes")
    else:
        call("set", store_dir, "hwm", json.dumps({"marks": {}}), "--yes")
    assert state.get_hwm("orders") is None
    assert state.get_hwm("other") == (1 if how == "import" else None)
    state.set_hwm("orders", 1)
    assert state.get_hwm("orders") == 1


def test_marks_of_epochs_go_with_a_migration(store_dir, state, tmp_path):
    """Where there are no epochs they are marks like others; those that were set since count more, as before."""
    state.set_hwm("b", 5)
    prod = StateManager(store_dir, environment="a/b")
    with execution(store_dir) as writer:
        writer.close(changes("a/b", {"b": prod.epoch_row("b", 3)}), batches=1)
        close(store_dir, writer, a=100, b=200, c=1)
    state.set_hwm("c", 7)
    state.remove_hwm("a")
    before = {mark.key: mark.value for mark in state.list_hwms()}
    assert before == {"b": 200, "c": 7}
    place = tmp_path.as_uri()
    for copied in ("", "0 states copied"):
        result = CliRunner().invoke(main, ["state", "migrate", str(store_dir), place])
        assert (result.exit_code, result.output.startswith(copied)) == (0, True), result.output
    there = StateManager(place)
    assert {mark.key: mark.value for mark in there.list_hwms()} == before
    assert StateManager(place, environment="a/b").get_hwm("b") == 3
    there.set_hwm("b", 201)
    assert there.get_hwm("b") == 201


def test_marks_of_epochs_are_exported(store_dir, state, make_store, tmp_path):
    """Those of the environment that was asked for; another directory has them then as its own."""
    with execution(store_dir) as writer:
        writer.close(changes("prod", {"b": state.epoch_row("b", 3)}), batches=1)
        close(store_dir, writer, a=100)
    other = make_store(1)
    for environment, expected in (("", {"a": 100}), ("prod", {"b": 3})):
        where = ["--environment", environment] if environment else []
        file = tmp_path / f"{environment}.jsonl"
        for words in (["export", store_dir, "--output-file", file], ["import", other, file, "--yes"]):
            result = CliRunner().invoke(main, ["state", *map(str, words), *where])
            assert result.exit_code == 0, result.output
        there = StateManager(other, environment=environment)
        assert {mark.key: mark.value for mark in there.list_hwms()} == expected
    assert state.get_hwm("a") == 100


def test_importing_asks_for_marks_of_epochs_too(store_dir, state, tmp_path):
    """They would move back. What is there as it was exported stays that of its epoch."""

    def call(code, *words):
        result = CliRunner().invoke(main, ["state", *map(str, words)])
        assert result.exit_code == code, result.output

    file = tmp_path / "states.jsonl"
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=100)
    call(0, "export", store_dir, "--output-file", file)
    call(0, "import", store_dir, file)
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=200)
    assert state.get_hwm("orders") == 200, "the mark is still that of epochs"
    call(11, "import", store_dir, file)
    assert state.get_hwm("orders") == 200
    call(0, "import", store_dir, file, "--yes")
    assert state.get_hwm("orders") == 100


@pytest.mark.parametrize("how", ["import", "set"])
def test_a_mark_goes_back_to_what_is_written_over_it(store_dir, state, tmp_path, how):
    """Also where the document holds that value already, below an epoch's; as often as it is done, after each load."""

    def call(*words):
        result = CliRunner().invoke(main, ["state", *map(str, words)])
        assert result.exit_code == 0, result.output
        return result.stdout

    file = tmp_path / "states.jsonl"
    state.set_hwm("orders", 5)
    call("export", store_dir, "--output-file", file)
    document = call("get", store_dir, "hwm").strip()
    for loaded in (10, 11):
        with execution(store_dir) as writer:
            close(store_dir, writer, orders=loaded, unknown=loaded)
        assert state.get_hwm("orders") == loaded
        call(*(("import", store_dir, file) if how == "import" else ("set", store_dir, "hwm", document)), "--yes")
        assert {mark.key: mark.value for mark in state.list_hwms()} == {"orders": 5}
    with execution(store_dir, resume_epoch=1):
        assert state.get_hwm("orders") == 5, "what was written stays"


def test_what_is_printed_is_what_counts(store_dir, state, tmp_path):
    """Marks of epochs are in the document that is printed and edited; writing it as it is leaves them theirs."""

    def call(*words):
        result = CliRunner().invoke(main, ["state", *map(str, words)])
        assert result.exit_code == 0, result.output
        return result.stdout

    with execution(store_dir) as writer:
        close(store_dir, writer, orders=10)
    printed = call("get", store_dir, "hwm").strip()
    assert json.loads(printed)["marks"]["orders"]["value"] == 10
    assert "orders" in call("list", store_dir, "--json")
    call("set", store_dir, "hwm", printed)
    with execution(store_dir, resume_epoch=1):
        assert state.get_hwm("orders") is None
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=10)
    call("clear", store_dir, "hwm", "--yes")
    assert state.get_hwm("orders") is None


def test_a_mark_that_an_epoch_moves_while_the_document_is_edited(store_dir, state, monkeypatch):
    """Nobody was asked whether that value may be overwritten: the edit is refused."""
    state.set_hwm("orders", 5)

    def edit(text, **_):
        with execution(store_dir) as writer:
            close(store_dir, writer, orders=10)
        return text.replace("5", "6")

    monkeypatch.setenv("EDITOR", "none")
    monkeypatch.setattr("click.edit", edit)
    result = CliRunner().invoke(main, ["state", "edit", str(store_dir), "hwm"])
    assert (result.exit_code, "changed by another process" in result.output) == (43, True), result.output
    assert state.get_hwm("orders") == 10


def test_a_removed_mark_of_an_epoch_is_not_brought_back_by_an_older_export(store_dir, state, tmp_path):
    """It was removed after the export was made; with --force it comes back."""

    def call(code, *words):
        result = CliRunner().invoke(main, ["state", *map(str, words)])
        assert result.exit_code == code, result.output
        return result.output

    file = tmp_path / "states.jsonl"
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=10)
    call(0, "export", store_dir, "--output-file", file)
    assert state.remove_hwm("orders") == 1
    assert "removed after" in call(45, "import", store_dir, file, "--yes")
    assert state.get_hwm("orders") is None
    call(0, "import", store_dir, file, "--force")
    assert state.get_hwm("orders") == 10


def test_a_mark_does_not_move_back_below_an_epoch_that_is_being_closed(store_dir, state, monkeypatch):
    """Whoever sets it waits for the epoch, and compares with what it left."""
    update = state.backend.update

    def wait(changes):
        close(store_dir, writer, orders=10)
        return update(changes)

    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
        monkeypatch.setattr(state.backend, "update", wait)
        with pytest.raises(HighWaterMarkError, match="back from 10 to 7"):
            state.set_hwm("orders", 7)
    assert state.get_hwm("orders") == 10


def test_an_epoch_that_is_closed_in_some_partitions_is_waited_for(store_dir, state, monkeypatch):
    """It is not known yet what a mark that is set has to be compared with; it is, once the epoch is closed in all."""
    impatient = StateManager(store_dir, retry=IMPATIENT)
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
    with half_closed(store_dir, monkeypatch, orders=10) as finish:
        assert state.get_hwm("orders") == 5
        with pytest.raises(StateLockedError, match="a run"):
            impatient.set_hwm("orders", 7)
        assert state.get_hwm("orders") == 5
        finish()
        with pytest.raises(HighWaterMarkError, match="back from 10 to 7"):
            impatient.set_hwm("orders", 7)
    assert state.get_hwm("orders") == 10


def test_a_mark_does_not_move_back_below_an_epoch_that_is_closed_meanwhile(store_dir, monkeypatch):
    """The wait ends with it."""
    patient = StateManager(store_dir, retry=RetryPolicy(busy=1, delays=(0.01,) * 1000, jitter=0))
    common_cuts, looked = closed_marks.common_cuts, []
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
    with half_closed(store_dir, monkeypatch, orders=10) as finish:

        def look(partitions):
            found = common_cuts(partitions)
            looked.append(max(found)[0])
            if len(looked) == 1:
                finish()
            return found

        monkeypatch.setattr(closed_marks, "common_cuts", look)
        with pytest.raises(HighWaterMarkError, match="back from 10 to 7"):
            patient.set_hwm("orders", 7)
    assert (looked[0], looked[-1]) == (1, 2)
    assert patient.get_hwm("orders") == 10


def test_the_document_of_marks_waits_for_an_epoch_as_well(store_dir, state, monkeypatch):
    """An import or an edit writes it as a whole: nobody was asked about a mark that is not there yet."""
    documents = DocumentTarget(StateManager(store_dir, retry=IMPATIENT).backend, "", SystemClock())
    state.set_hwm("other", 1)
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
    seen = documents.find_all(["hwm"])
    changed = json.loads(json.dumps(seen["hwm"].content).replace("5", "7"))
    with half_closed(store_dir, monkeypatch, orders=10) as finish:
        with pytest.raises(StateLockedError, match="a run"):
            documents.write("edit", {"hwm": changed}, seen)
        finish()
        with pytest.raises(StateLockedError, match="changed by another process"):
            documents.write("edit", {"hwm": changed}, seen)
    assert (state.get_hwm("orders"), state.get_hwm("other")) == (10, 1)


def test_an_epoch_that_a_dead_run_left_in_some_partitions_is_not_waited_for(store_dir, monkeypatch):
    """Nobody closes it any more: a mark is set immediately, and compared with those that count; also by the next run,
    before it begins."""
    impatient = StateManager(store_dir, retry=RetryPolicy(busy=1, delays=(), jitter=0))
    close_partition = FilePartitions.close_partition

    def fail(self, index, *arguments):
        if index:
            raise StorageError("no space")
        return close_partition(self, index, *arguments)

    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
        monkeypatch.setattr(FilePartitions, "close_partition", fail)
        with DirectoryLock(store_dir, SystemClock(), "a run"), pytest.raises(StorageError, match="no space"):
            close(store_dir, writer, orders=10)
    monkeypatch.undo()
    assert [file.description.newest_epoch for file in scan(store_dir)] == [2, 1]
    with pytest.raises(HighWaterMarkError, match="back from 5 to 4"):
        impatient.set_hwm("orders", 4)
    impatient.set_hwm("orders", 7)
    with DirectoryLock(store_dir, SystemClock(), "a run"):
        impatient.set_hwm("orders", 8)
    with execution(store_dir):
        assert impatient.get_hwm("orders") == 8


def test_a_mark_that_moves_while_it_is_migrated(store_dir, state, tmp_path, monkeypatch):
    """The copy would be an older one: this is an error, and the next attempt has it."""
    state.set_hwm("orders", 5)
    target = StateManager(tmp_path.as_uri())
    place = target.backend.place

    def load_meanwhile(documents):
        place(documents)
        with execution(store_dir) as writer:
            close(store_dir, writer, orders=10)

    monkeypatch.setattr(target.backend, "place", load_meanwhile)
    with pytest.raises(StateLockedError, match="changed while it was copied"):
        migrate(state.backend, target.backend)
    monkeypatch.undo()
    migrate(state.backend, target.backend, force=True)
    assert target.get_hwm("orders") == 10


def test_a_migration_to_a_directory_with_marks_of_epochs_of_its_own(store_dir, state, make_store):
    """They are not overwritten unasked; by force the marks are those of the source, and it is safe to repeat."""
    other = make_store(1)
    there = StateManager(other)
    state.set_hwm("orders", 5)
    there.set_hwm("orders", 1)
    with execution(other) as writer:
        close(other, writer, orders=100, gone=1)
    with pytest.raises(ConfigurationError, match="holds other states"):
        migrate(state.backend, there.backend)
    assert there.get_hwm("orders") == 100
    for written in (1, 0):
        assert migrate(state.backend, there.backend, force=True) == written
        assert {mark.key: mark.value for mark in there.list_hwms()} == {"orders": 5}
    assert problems(other) == []


def test_cleared_marks_are_gone(store_dir, state, tmp_path):
    """The document is removed to everybody who asks, and an older export does not bring it back unless it is forced."""

    def call(code, *words):
        result = CliRunner().invoke(main, ["state", *map(str, words)])
        assert result.exit_code == code, result.output
        return result.output

    file = tmp_path / "states.jsonl"
    state.set_hwm("k", 5)
    call(0, "export", store_dir, "--output-file", file)
    call(0, "clear", store_dir, "hwm", "--yes")
    assert "hwm" not in call(0, "list", store_dir)
    call(44, "get", store_dir, "hwm")
    call(44, "clear", store_dir, "hwm", "--yes")
    assert "removed after" in call(45, "import", store_dir, file, "--yes")
    assert state.get_hwm("k") is None
    call(0, "import", store_dir, file, "--force")
    assert state.get_hwm("k") == 5


@pytest.mark.parametrize(
    "entry", [{}, {"version": 1}, {"version": "x", "changed_ms": 1}, {"value": 5, "version": True, "changed_ms": 1}, 5]
)
def test_marks_of_another_form_are_refused(store_dir, state, entry):
    """Before anything is written, whether there were marks before or not."""
    for _ in range(2):
        written = json.dumps({"marks": {"odd": entry}})
        result = CliRunner().invoke(main, ["state", "set", str(store_dir), "hwm", written, "--yes"])
        assert result.exit_code == 33, result.output
        state.set_hwm("k", 5)
    # What an earlier version let in can be written over.
    state.backend.update({"hwm": lambda _: {"marks": {"k": {"version": "x"}}}})
    assert state.remove_hwm("k") == 0
    result = CliRunner().invoke(main, ["state", "set", str(store_dir), "hwm", '{"marks":{}}', "--yes"])
    assert result.exit_code == 0, result.output
    state.set_hwm("k", 6)
    assert state.get_hwm("k") == 6


def test_a_mark_of_an_epoch_is_moved_forward_only_and_can_be_removed(store_dir, state):
    """Also by those who set it immediately; a removed one stays removed when the run goes back."""
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
        close(store_dir, writer, orders=7)
    with pytest.raises(HighWaterMarkError):
        state.set_hwm("orders", 6)
    assert [(mark.key, mark.value) for mark in state.list_hwms()] == [("orders", 7)]
    assert state.remove_hwm("orders") == 1
    assert state.get_hwm("orders") is None
    with execution(store_dir, resume_epoch=2):
        assert state.get_hwm("orders") is None


def test_environments_do_not_meet_in_an_epoch(store_dir):
    """The same key in dev and in prod are two."""
    dev, prod = (StateManager(store_dir, environment=name) for name in ("dev", "prod"))
    with execution(store_dir) as writer:
        writer.close(changes("dev", {"k": dev.epoch_row("k", 5)}), batches=1)
    assert (dev.get_hwm("k"), prod.get_hwm("k"), StateManager(store_dir).get_hwm("k")) == (5, None, None)


def test_an_epoch_that_is_not_closed_everywhere_does_not_count(store_dir, state):
    """After a crash between two partitions its marks are not there."""
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=5)
        before = {path: path.read_bytes() for path in store_dir.glob("part-1.sqlite3*")}
    with execution(store_dir) as writer:
        close(store_dir, writer, orders=9)
    for path in store_dir.glob("part-1.sqlite3*"):
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    assert state.get_hwm("orders") in (None, 5)


def test_a_start_that_did_not_reach_all_files(make_store):
    """Of a pipeline on a directory that another one was bound to before: marks can be read, and the next start of
    either goes on."""
    directory = make_store(2)
    with execution(directory) as writer:
        close(directory, writer, orders=5)
    before = (directory / "part-1.sqlite3").read_bytes()
    plan = plan_resume(scan(directory), flow_id="other", shared=True)
    EpochWriter(Store(directory), plan, "other", SystemClock(), backup_interval_s=3600).release()
    (directory / "part-1.sqlite3").write_bytes(before)
    assert [found.description.flow_id for found in scan(directory)] == ["other", "nightly"]
    state = StateManager(directory)
    assert state.get_hwm("orders") == 5
    state.set_hwm("orders", 6)
    for pipeline in ("other", "nightly"):
        plan = plan_resume(scan(directory), flow_id=pipeline, shared=True)
        writer = EpochWriter(Store(directory), plan, pipeline, SystemClock(), backup_interval_s=3600)
        close(directory, writer, **{pipeline: 7})
        writer.release()
    assert {mark.key: mark.value for mark in state.list_hwms()} == {"nightly": 7, "orders": 6, "other": 7}
    assert not problems(directory)
