"""A run with --if-new-input ends without Spark if there is nothing to do, and starts Spark if that is in doubt."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable

import pytest

from recovery.base.clock import SystemClock
from recovery.idle.note import NAME
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.deltas.scratch import _prefix
from recovery.storage.lock import DirectoryLock
from tests.idle.world import Looker, World
from tests.shares import first, one_in

SKIPPED = "no new input since epoch"


def not_as(what: str) -> str:
    """A pattern of what a look says of another option or variable. A note keeps one byte of each, so one in 256 notes
    does not tell which one differs."""
    return rf"({re.escape(what)}|an option or a variable) is not as"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A world after a first run, and a copy of it."""
    path = tmp_path_factory.mktemp("idle")
    looker = Looker(path)
    world = World(path / "world", looker)
    first = world.run()
    assert first.returncode == 0, first.stderr
    assert "no earlier run" in first.stderr
    world.saved(path / "saved")
    yield world, path / "saved"
    looker.close()


@pytest.fixture
def world(prepared):
    """The world as after its first run."""
    found, saved = prepared
    yield found
    found.put_back(saved)


def nothing(_: World) -> None:
    pass


def write(name: str, text: str) -> Callable[[World], object]:
    return lambda world: (world.path / name).write_text(text)


def hidden_names(world: World) -> None:
    for name in ("_SUCCESS", ".1.crc", "x._COPYING_"):
        (world.path / "logs" / name).write_text("x\n")


def unfinished(world: World) -> None:
    with (world.path / "app/app.log").open("a") as file:
        file.write("no end yet")


def touched(world: World) -> None:
    for name in ("flow.py", "helper.py", "settings.json"):
        (world.path / name).touch()


@first("change", [nothing, hidden_names, unfinished, touched])
def test_what_does_not_need_spark(world, change):
    """Nothing new; names that Spark leaves out; a line without its end; files with the same content."""
    change(world)
    before = world.contents()
    found = world.look()
    assert found.returncode == 0, found.stderr
    assert SKIPPED in found.stderr
    # Operational state, with the run history, is in part-0.
    after = world.contents()
    assert {name for name in after if after[name] != before.get(name)} <= {str(world.db / "part-0.sqlite3")}
    assert after.keys() == before.keys()


def rewritten(world: World) -> None:
    (world.path / "app/app.log").write_text("something else\nsoon\n")


def removed_partition(world: World) -> None:
    (world.db / "part-1.sqlite3").unlink()


def edited(world: World) -> None:
    world.command("state", "set", "db", "7", "--step", "counts", "--key", "a", "--yes")


def killed(world: World) -> None:
    (world.db / SCRATCH_NAME / f"{_prefix(world.db)}7-abc").mkdir(parents=True)


def circle(world: World) -> None:
    (world.path / "logs/again").symlink_to(world.path / "logs", target_is_directory=True)


def other_form(world: World) -> None:
    note = json.loads((world.db / NAME).read_text())
    (world.db / NAME).write_text(json.dumps(note | {"form": 99}))


def deeper(world: World) -> None:
    (world.path / "logs/more/still").mkdir(parents=True)
    (world.path / "logs/more/still/2.txt").write_text("x\n")


CHANGES = {
    "a file": (lambda world: world.add("2.txt", "c"), "1 new file, such as .*/logs/2.txt"),
    "a file in a directory": (deeper, "1 new file"),
    "a circle of links": (circle, "levels|new files"),
    "a line": (lambda world: world.append("c"), r"new lines in app/\*\.log"),
    "another growing file": (lambda world: world.append("c", name="b.log"), "new lines"),
    "an empty file": (lambda world: world.append(name="b.log"), "new lines"),
    "content that was read": (rewritten, "."),
    "a directory that is gone": (lambda world: shutil.rmtree(world.path / "app"), "."),
    "the flow": (lambda world: (world.path / "flow.py").open("a").write("#\n"), "flow.py has changed"),
    "a module of the flow": (write("helper.py", "unchanged = lambda frame: frame\n"), "helper.py has changed"),
    "a file that the flow reads": (write("settings.json", '{"path": "app"}'), "settings.json has changed"),
    "a file of settings that is gone": (lambda world: (world.path / "settings.json").unlink(), "settings.json has"),
    "a module that hides another": (write("mailbox.py", ""), "has other files"),
    "a timeout that is due": (lambda world: world.change_note({"due_ms": 1}), "a timeout is due"),
    "a reason of the last run": (lambda world: world.change_note({"why_not": "records wait"}), "records wait"),
    "another execution": (lambda world: world.change_note({"execution": "x"}), "was changed after that run"),
    "another epoch": (lambda world: world.change_note({"epoch": 7}), "other epochs"),
    "an edit of the state": (edited, "other epochs|was changed"),
    "a partition that is gone": (removed_partition, "part-1.sqlite3"),
    "a run that was killed": (killed, "left files behind"),
    "a restore": (lambda world: (world.db / "restored.json").write_text("{}"), "was restored"),
    "a partition that moved away": (lambda world: (world.db / ".moved-part-1.json").write_text("x"), "."),
    "no note": (lambda world: (world.db / NAME).unlink(), "no earlier run"),
    "a damaged note": (lambda world: (world.db / NAME).write_text('{"form": 1'), "no earlier run"),
    "a note of another version": (other_form, "no earlier run"),
}


@pytest.mark.parametrize("name", one_in(3, CHANGES))
def test_what_needs_spark_in_the_world(world, name):
    """What has changed since the last run. The command says why it starts Spark, and has written nothing by then."""
    change, why = CHANGES[name]
    change(world)
    before = world.contents()
    found = world.look()
    assert found.returncode != 0, found.stderr
    assert re.match(f"--if-new-input: .*({why})", found.stderr), found.stderr
    assert world.contents() == before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--resume-after", "0"), "--resume-after goes back"),
        (("--resume-epoch", "1"), "--resume-epoch goes back"),
        (("--lose-epochs",), "--lose-epochs"),
        (("--lose-input", "logs"), "--lose-input"),
        (("--drop-step", "old"), "--drop-step"),
        (("--rename-step", "old=new"), "--rename-step"),
        (("--no-output",), "--no-output"),
        (("--until", "9"), "--until"),
        (("--conf", "spark.sql.session.timeZone=CET"), not_as("--conf")),
        (("-b", "1h"), not_as("--backup-interval")),
    ],
)
def test_what_needs_spark_by_its_options(world, options, why):
    """Options by which a start changes something, and options that the last run did not have."""
    found = world.look(*options)
    assert found.returncode != 0
    assert re.match(f"--if-new-input: {why}", found.stderr), found.stderr


def test_the_environment(world):
    """Variables that the flow's code has read count, and those of Spark and Java; others do not."""
    assert SKIPPED in world.look(env={"HOSTNAME": "other", "ANYTHING": "1"}).stderr
    assert re.search(not_as("the variable FLOW_DEPTH"), world.look(env={"FLOW_DEPTH": "2"}).stderr)
    assert re.search(not_as("the variable JAVA_HOME"), world.look(env={"JAVA_HOME": "/elsewhere"}).stderr)
    assert re.search(not_as("MODULE_OR_FILE[:FLOW]"), world.look(target="flow.py:other").stderr)
    assert "is not as" in world.look(target="../flow.py", cwd=world.path / "logs").stderr


def test_a_run_that_has_the_directory(world):
    """Another run excludes this one, as without the option."""
    lock = DirectoryLock(world.db, SystemClock(), "a test")
    lock.acquire()
    try:
        found = world.look()
    finally:
        lock.release()
    assert found.returncode == 40
    assert "in use by" in found.stderr


def test_what_a_program_reads(world):
    """With --json the summary of a run that did nothing, and why; the run history has each such run."""
    assert SKIPPED in world.look().stderr
    found = json.loads(world.run("--json").stdout)
    assert (found["flow"], found["skipped"], found["batches"], found["execution"]) == ("words", "no new input", 0, 0)
    runs = json.loads(world.command("runs", "db", "--json"))
    assert [(run["status"], run["success"]) for run in runs] == [
        ("skipped", True),
        ("skipped", True),
        ("succeeded", True),
    ]
    assert [run["metadata"]["in_a_row"] for run in runs[:2]] == [2, 1]


@pytest.mark.long
def test_a_history_of_runs(tmp_path):
    """Runs with input, without, and with a timeout that is due: each line counts once, and only runs with something to
    do start Spark."""
    world = World(tmp_path / "world", timeout_ms=3000)
    began_s = time.monotonic()
    started = [SKIPPED not in world.run().stderr]
    expected = [("a", 2), ("b", 1), ("soon", 1)]
    time.sleep(max(0.0, 4 - (time.monotonic() - began_s)))
    started.append(SKIPPED not in world.run().stderr)
    expected.append(("soon", -1))
    for _ in range(2):
        started.append(SKIPPED not in world.run().stderr)
    world.add("2.txt", "b")
    world.append("a")
    started.append(SKIPPED not in world.run().stderr)
    started.append(SKIPPED not in world.run().stderr)
    expected += [("a", 3), ("b", 2)]
    assert started == [True, True, False, False, True, False]
    assert world.output() == sorted(expected)
