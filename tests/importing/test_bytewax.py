"""Recovery directories of Bytewax, taken over: what is read, what is refused, and that it is all or nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery import (
    AlreadyInitializedError,
    ConfigurationError,
    DirectoryLockedError,
    EpochNotHeldError,
    ForeignPartitionError,
    ImportedBytewax,
    InconsistentPartitionsError,
    InputRewrittenError,
    StateValueError,
    StorageError,
    UnknownStepError,
    import_bytewax,
)
from recovery.cli import main
from recovery.importing.positions import is_position, offset_of, their_input
from recovery.storage.snapshot import snapshot_at
from recovery.values.keys import encode_key
from tests import forks, others
from tests.forks import run_code
from tests.importing.theirs import COUNT, LINES, Theirs, run, word_count
from tests.stores import problems

STATES = {"one": 2, "two": 1, "three": 1}
SINK = "words.out"


@dataclasses.dataclass
class Session:
    """A state of a user's class."""

    user: str
    at: datetime


@pytest.fixture
def target(tmp_path):
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A word count that has read the first two of three lines."""
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("one\none\ntwo\n")
    return word_count(tmp_path / "theirs", STATES, 8)


def states(directory, step="count"):
    """The states of a step by key, decoded."""
    return {each.key: json.loads(each.value) for each in snapshot_at(directory).states(step)}


def attempt(source, target, **more):
    """What an import would take over, or why it is refused."""
    try:
        return import_bytewax(source, target, steps={"count": "count"}, dry_run=True, **more)
    except InconsistentPartitionsError as error:
        return error


def test_states_and_positions(theirs, target):
    """Epoch 1 of new partitions has the state, the position, and the flow's name. Bytewax's files do not change."""
    before = theirs.contents()
    done = import_bytewax(theirs.directory, target, steps={"count": "count"}, partitions=3)
    assert (done.flow, done.epoch, done.partitions, done.written, done.unclear) == ("words", 3, 3, True, 0)
    assert [(each.ours, each.theirs, each.keys, each.discarded) for each in done.steps] == [("count", COUNT, 3, 0)]
    assert [(each.path, each.files) for each in done.sources] == [("words.txt", ((Path.cwd() / "words.txt", 8),))]
    assert (states(target), snapshot_at(target).cut[2], problems(target)) == (STATES, 0, [])
    assert len(list(target.glob("part-*.sqlite3"))) == 3
    assert theirs.contents() == before
    assert sorted(Path.cwd().iterdir()) == [Path.cwd() / each for each in ("ours", "theirs", "words.txt")]
    with pytest.raises(AlreadyInitializedError):
        import_bytewax(theirs.directory, target, steps={"count": "count"})


def test_what_is_newest_below_the_frontier(tmp_path, target):
    """Of each key the newest snapshot that is counted; a discarded key is gone; epochs that are not counted yet are not
    read. Two workers: the slower one counts."""
    theirs = Theirs(tmp_path / "theirs", 1)
    theirs.execution(0, 1, 0, workers=2)
    theirs.snapshot(1, {"a": 1, "b": 1}, 1)
    theirs.snapshot(2, {"a": 2, "b": None, "c": 5}, 2)
    theirs.snapshot(3, {"a": 3, "d": 1}, 3)
    theirs.counted(0, 4, 0)
    theirs.counted(0, 3, 1)
    done = import_bytewax(theirs.directory, target, steps={"count": "n"}, flow="mine")
    assert (done.epoch, done.flow, states(target, "n")) == (2, "mine", {"a": 2, "c": 5})
    assert done.steps[0].discarded == 1
    assert snapshot_at(target).cut[2] == -1


def test_a_log_beside_a_file_is_read(theirs, target, tmp_path):
    """As after a kill: a file alone would be too old, and its index is not needed."""
    code = """
import apsw, os, sys
connection = apsw.Connection(sys.argv[1])
connection.pragma("journal_mode", "wal")
connection.execute("UPDATE snaps SET ser_change = x'80044B092E' WHERE state_key = 'one'")
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", code, theirs.paths[theirs.home(COUNT, "one")]], check=False)
    assert done.returncode == 0
    for index in theirs.directory.glob("*-shm"):
        index.unlink()
    before = theirs.contents()
    assert any(name.endswith("-wal") for name in before)
    import_bytewax(theirs.directory, target, steps={"count": "count"})
    assert states(target)["one"] == 9
    assert theirs.contents() == before


def test_keys_that_a_flow_writes_in_another_form(tmp_path, target, monkeypatch):
    """A key with NUL, or with the character that stands for it, is found by the flow."""
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("one\n")
    odd = {"a\0b": 1, "a\u2400b": 2, "\u2400": 3}
    made = word_count(tmp_path / "theirs", odd, 4)
    import_bytewax(made.directory, target, steps={"count": "count"})
    assert states(target) == {encode_key(key): value for key, value in odd.items()}


def test_everything_has_to_be_named(theirs, target):
    """State that nobody named, sinks and other sources are listed with an example; nothing is written."""
    theirs.snapshot(3, {"out.txt": 5}, 5, SINK)
    theirs.snapshot(3, {"0": 17}, 5, "words.kafka")
    with pytest.raises(UnknownStepError) as raised:
        import_bytewax(theirs.directory, target, steps={})
    assert all(each in raised.value.found for each in (COUNT, SINK, "'out.txt': 5", "words.kafka, for example '0': 17"))
    assert "startingOffsets" in raised.value.remedy
    assert f"--rename-step {COUNT}=NAME" in raised.value.remedy
    assert "--drop-step words.kafka," in raised.value.remedy
    for wrong in ({"cuont": "count"}, {"count": "$x"}, {"count": "a", "words.count": "a"}):
        with pytest.raises((UnknownStepError, ConfigurationError)):
            import_bytewax(theirs.directory, target, steps=wrong, drop_steps=["out", "kafka"])
    with pytest.raises(UnknownStepError, match="'cuont' means no step of Bytewax") as raised:
        import_bytewax(theirs.directory, target, steps={"cuont": "count"}, drop_steps=["out", "kafka"])
    assert "misspelt" in raised.value.cause
    assert COUNT in raised.value.remedy
    assert not target.exists()
    done = import_bytewax(theirs.directory, target, steps={COUNT: "count"}, drop_steps=["out", "words.kafka"])
    assert [(each.theirs, each.keys) for each in done.left_out] == [("words.kafka", 1), (SINK, 1)]


def test_values_that_are_not_plain(theirs, target):
    """Tuples and the like become JSON that a declared type reads, and are counted; classes need to be allowed; what
    has no form is listed with its step, and nothing is written."""
    at = datetime(2026, 1, 1)  # noqa: DTZ001 - as users have them
    theirs.snapshot(3, {"one": {"t": (1, 2.5), "s": {1}}, "two": Session("u", at)}, 5)
    theirs.snapshot(3, {"x": float("nan"), "y": print}, 5, "words.other")
    names = f"{__name__}.Session", "datetime.datetime"
    with pytest.raises(StateValueError) as raised:
        import_bytewax(theirs.directory, target, steps={"count": "count", "other": "other"})
    assert all(each in raised.value.found for each in (COUNT, names[0], "words.other", "nan", "builtins.print"))
    assert f"--allow {names[0]}" in raised.value.remedy
    assert not target.exists()
    chosen = {"steps": {"count": "count"}, "drop_steps": ["other"], "allow": names}
    done = import_bytewax(theirs.directory, target, **chosen)
    assert states(target)["one"] == {"t": [1, 2.5], "s": [1]}
    assert states(target)["two"] == {"user": "u", "at": "2026-01-01T00:00:00"}
    assert done.steps[0].converted == {"tuple": 1, "set": 1, "Session": 1, "datetime": 1}
    with pytest.raises(ConfigurationError, match="not a class"):
        import_bytewax(theirs.directory, target.with_name("b"), steps={"count": "count"}, allow=["os.system"])


def test_a_pickle_runs_nothing(theirs, target, tmp_path):
    """One that would write a file is refused by the name that it calls."""

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    theirs.snapshot(3, {"one": pickle.dumps(Evil())}, 5, pickled=True)
    with pytest.raises(StateValueError, match="needs posix"):
        import_bytewax(theirs.directory, target, steps={"count": "count"})
    assert not (tmp_path / "ran").exists()


def test_directories_from_which_bytewax_resumes_wrongly(theirs, target):
    """An older copy among newer ones, of any partition, whose frontier or state is older: it is named."""
    older = theirs.contents()
    theirs.execution(1, 4, 60)
    theirs.snapshot(4, {"one": 3, "two": 2, "three": 2, "four": 1}, 65)
    theirs.counted(1, 5)
    newer = theirs.contents()
    import_bytewax(theirs.directory, target, steps={"count": "count"}, dry_run=True)
    refused = set()
    for path in theirs.paths:
        path.write_bytes(older[path.name])
        found = attempt(theirs.directory, target)
        if isinstance(found, InconsistentPartitionsError):
            refused.add(path.name)
            assert (path.name in found.found, "--no-older-copies" in found.remedy) == (True, True)
        else:
            assert found.epoch == 3
        path.write_bytes(newer[path.name])
    assert refused
    assert not target.exists()


def test_abandoned_epochs(theirs, target):
    """A snapshot that a killed execution wrote and never counted, which the next one did not write again, is refused:
    Bytewax counts it."""
    theirs.snapshot(4, {"two": 100}, 20)
    theirs.execution(1, 4, 60)
    theirs.snapshot(4, {"one": 3, "three": 2}, 65)
    theirs.snapshot(4, {"0xfe00::words.txt": 12}, 65, LINES)
    theirs.counted(1, 5)
    with pytest.raises(InconsistentPartitionsError, match=r"abandoned epochs.*'two'"):
        import_bytewax(theirs.directory, target, steps={"count": "count"}, no_older_copies=True)
    # In the second in which the next execution begins, nobody can tell.
    theirs.do(theirs.home("ex", 1), "UPDATE exs SET created_at = '2026-01-01 00:00:20' WHERE ex_num = 1")
    assert import_bytewax(
        theirs.directory, target, steps={"count": "count"}, dry_run=True, no_older_copies=True
    ).unclear


def test_files_that_do_not_fit(theirs, target):
    """Missing, shorter, or without a line end there: named, and nothing is written. --input names another place."""
    chosen = {"steps": {"count": "count"}}
    file = Path("words.txt")
    for content, kind in ((b"one\n", InputRewrittenError), (b"one\nonetwo\nx", InputRewrittenError)):
        file.write_bytes(content)
        with pytest.raises(kind, match="8 bytes"):
            import_bytewax(theirs.directory, target, **chosen)
    file.rename("moved.txt")
    with pytest.raises(ConfigurationError, match="no such file") as raised:
        import_bytewax(theirs.directory, target, **chosen)
    assert f"--input {LINES}=PATH" in raised.value.remedy
    Path("moved.txt").write_text("one\none\ntwo\n")
    done = import_bytewax(theirs.directory, target, inputs={"lines": "moved.txt"}, **chosen)
    assert done.sources[0].path == "moved.txt"


def test_positions_of_a_directory(tmp_path):
    """A DirSource has a position for each file, and does not say where its directory is."""
    for name, content in (("a", "1\n2\n"), ("b", "3\n4")):
        (tmp_path / name).write_text(content)
    positions = {"0x1::a": 2, "0x1::b": 3}
    with pytest.raises(ConfigurationError, match="directory that its position does not name"):
        their_input("in", positions, None, tmp_path)
    found = offset_of(their_input("in", positions, str(tmp_path), Path("/")))
    files = [(each.path, each.offset, each.seen, each.unfinished) for each in found.files.values()]
    # Bytewax took the last line without its end.
    assert files == [(f"{tmp_path}/a", 2, 4, False), (f"{tmp_path}/b", 3, 3, True)]
    with pytest.raises(StateValueError, match="not a number of bytes"):
        their_input("in", {"0x1::a": 1 << 70}, None, tmp_path)
    assert is_position("0x1::a", 0)
    assert not any(map(is_position, ("a", "0x1::a", "0x1::a"), (1, True, "1")))


def test_a_directory_in_use(theirs, target):
    """The process that has it open is named."""
    code = "import apsw, sys, time; c = apsw.Connection(sys.argv[1]); c.pragma('journal_mode', 'wal'); "
    code += "c.execute('UPDATE parts SET part_count = 2'); print('open', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", code, theirs.paths[1]], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DirectoryLockedError, match=f"in use by process {holder.pid}"):
            import_bytewax(theirs.directory, target, steps={"count": "count"})
    finally:
        holder.kill()
        holder.wait()


def test_the_place(theirs, target):
    """An empty directory is one. What others have put beside it is not used, and not removed."""
    target.mkdir()
    outside = target.with_name("outside")
    outside.mkdir()
    (outside / "part-0.sqlite3").write_text("mine")
    left, foreign, link = (target.with_name(f".ours.import{end}") for end in ("-" + "0" * 16, "-" + "1" * 16, ""))
    for each in (left, foreign):
        each.mkdir()
        (each / "part-0.sqlite3").write_text("half")
    (left / "scratch").mkdir()
    (foreign / "mine").touch()
    link.symlink_to(outside)
    import_bytewax(theirs.directory, target, steps={"count": "count"})
    assert states(target) == STATES
    assert (left.exists(), len(list(foreign.iterdir())), link.readlink()) == (False, 2, outside)
    assert (outside / "part-0.sqlite3").read_text() == "mine"
    with pytest.raises(ForeignPartitionError, match="a recovery partition of this package already"):
        import_bytewax(target, target.with_name("other"), steps={"count": "count"})
    with pytest.raises(StorageError, match="Not a directory"):
        import_bytewax(theirs.directory, Path("words.txt"), steps={"count": "count"})


KILLS = """
import shutil, sys
from pathlib import Path
from recovery import AlreadyInitializedError, import_bytewax
from recovery.storage.snapshot import snapshot_at
from tests.stores import problems
from tests.syscalls import killed_at
source, target, stride, twice = Path("theirs"), Path("ours"), int(sys.argv[1]), sys.argv[2] == "twice"
before = {path.name: path.read_bytes() for path in source.iterdir()}

def work():
    import_bytewax(source, target, steps={"count": "count"}, partitions=1)

def check(number):
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before, number
    if target.exists():
        assert len(list(snapshot_at(target).states("count"))) == 3 and problems(target) == [], number

number, there = 1 + stride // 2, 0
while killed_at(work, number):
    check(number)
    if twice and not target.exists():
        killed_at(work, number * 7 % 900 + 1)
        check(number)
    if target.exists():
        there += 1
    else:
        work()
        check(number)
        assert target.exists()
        assert sorted(path.name for path in Path().iterdir()) == ["ours", "theirs", "words.txt"], number
    shutil.rmtree(target)
    number += stride
print(number, there)
"""


def kills(stride, twice):
    done = run_code(KILLS, stride, twice, timeout_s=3000)
    assert done.returncode == 0, done.stderr
    print("system calls, stride, whole after the kill:", done.stdout, stride)
    return int(done.stdout.split()[0])


def test_killed_at_some_system_calls(theirs):
    """The source is untouched, and the target absent or whole; the next import clears what was left."""
    assert kills(150, "once") > 300


@pytest.mark.long
@pytest.mark.parametrize("times", ["once", "twice"])
def test_killed_at_any_system_call(theirs, times):
    """The same at every call of the main thread, and a second time; RECOVERY_TEST_IMPORT_STRIDE tries one in so
    many."""
    kills(int(os.environ.get("RECOVERY_TEST_IMPORT_STRIDE", "1")), times)


POINTS = [
    "import.3",
    "start.3.partition",
    "close.2.snaps",
    "close.2.driver",
    "close.2.committed",
    "close.3",
    "import.4",
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_the_steps_of_the_protocol(theirs, target, point):
    """Also in the threads that close the epoch."""
    command = ["-m", "recovery", "import", "bytewax", "theirs", "ours", "--rename-step", "count=count"]
    assert forks.run(command, env={**os.environ, "RECOVERY_CRASH_AT": point}).returncode == -signal.SIGKILL
    assert not target.exists()
    [left] = target.parent.glob(".ours.import-*")
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    import_bytewax(theirs.directory, target, steps={"count": "count"})
    assert (states(target), left.exists()) == (STATES, False)


def test_the_command(theirs, target):
    """Text and --json, a dry run, and errors with their exit codes."""

    def invoke(*words, code=0):
        done = CliRunner().invoke(main, ["import", "bytewax", "theirs", "ours", *words])
        assert done.exit_code == code, done.output
        return done.stdout

    facts = json.loads(invoke("--rename-step", "count=count", "--dry-run", "--json"))
    assert (facts["written"], facts["steps"][0]["keys"], facts["sources"][0]["files"][0]["offset"]) == (False, 3, 8)
    assert not target.exists()
    invoke(code=31)
    invoke("--rename-step", "count", code=2)
    printed = invoke("--rename-step", "count=count", "--partitions", "1")
    assert "imported epoch 3 of theirs into ours: flow words, 1 partition" in printed
    assert "Next: python -m recovery run flow.py -r ours" in printed
    assert states(target) == STATES


FLOW = """
import sys
import bytewax.operators as op
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow


def count(state, word):
    n = (state or 0) + 1
    return n, n


def some(state, word):
    # Every fifth time the key is discarded.
    state = [*(state or []), word]
    return (None if len(state) == 5 else state), len(state)


def pairs(state, word):
    state = (state or (0, {}))
    state[1][word] = state[0]
    return (state[0] + 1, state[1]), state[0]


flow = Dataflow("words")
lines = op.input("lines", flow, FileSource("words.txt", batch_size=BATCH))
keyed = op.key_on("word", lines, str)
for number, step in enumerate([STEPS]):
    out = op.stateful_map(step.__name__, keyed, step)
    op.output(f"out{number}", op.map(f"text{number}", out, lambda pair: (pair[0], str(pair))), FileSink(f"out{number}"))
"""
FORGET = """
import sqlite3, sys, glob
for path in glob.glob(sys.argv[1] + "/*.sqlite3"):
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM snaps WHERE snap_epoch >= ?", [sys.argv[2]])
    connection.commit()
"""
NEWEST = """
import json, pickle, sqlite3, sys, glob
found, resumed = {}, {}
for path in glob.glob(sys.argv[1] + "/*.sqlite3"):
    connection = sqlite3.connect(path)
    resumed.update(connection.execute("SELECT ex_num, resume_epoch FROM exs"))
    for step, key, change in connection.execute("SELECT step_id, state_key, ser_change FROM snaps ORDER BY snap_epoch"):
        found[step, key] = None if change is None else pickle.loads(change)
states = [[step, key, value] for (step, key), value in found.items() if value is not None]
print(json.dumps([resumed[max(resumed)], states]))
"""


def resumed(python: str, work: Path, read: int, epoch: int) -> dict[str, dict[str, object]]:
    """What Bytewax itself has when it resumes without new input: at the end of the input it writes every key. It does
    not read snapshots from the epoch on at which it resumes, so these are removed before: only its own are there."""
    oracle = work.with_name("oracle")
    shutil.copytree(work, oracle)
    os.truncate(oracle / "words.txt", read)
    subprocess.run([python, "-c", FORGET, oracle / "db", str(epoch)], check=True)
    run(python, oracle, "bytewax.run", "flow.py", "-r", "db", "-s", "3600", "-b", "0")
    printed = subprocess.run([python, "-c", NEWEST, oracle / "db"], capture_output=True, text=True, check=True).stdout
    resumed_at, every = json.loads(printed)
    assert resumed_at == epoch
    found: dict[str, dict[str, object]] = {}
    for step, key, value in every:
        found.setdefault(step.split(".")[1], {})[key] = value
    return found


def random_directory(python: str, work: Path, draw: random.Random) -> list[str]:
    """Run a random dataflow several times, with kills in between; returns its steps."""
    words = [f"w{draw.randrange(draw.choice([3, 40]))}" for _ in range(draw.choice([20, 300, 1500]))]
    (work / "words.txt").write_text("".join(f"{word}\n" for word in words))
    steps = draw.sample(["count", "some", "pairs"], draw.randint(1, 3))
    (work / "flow.py").write_text(FLOW.replace("BATCH", str(draw.choice([1, 3]))).replace("STEPS", ", ".join(steps)))
    (work / "db").mkdir()
    run(python, work, "bytewax.recovery", "db", str(draw.randint(1, 4)))
    for _ in range(draw.randint(1, 3)):
        command = [python, "-m", "bytewax.run", "flow.py", "-r", "db", "-s", draw.choice(["0", "0.01"])]
        command += ["-b", draw.choice(["0", "3600"]), "-w", str(draw.choice([1, 1, 2]))]
        before = (work / "out0").stat().st_size if (work / "out0").exists() else 0
        process = subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Some are killed while they write output, the others end by themselves.
        while process.poll() is None and ((work / "out0").stat().st_size if (work / "out0").exists() else 0) == before:
            time.sleep(0.01)
        try:
            process.wait(draw.choice([60, draw.uniform(0.05, 0.5), draw.uniform(0.1, 1.5)]))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return steps


def taken_over(work: Path, steps: list[str], **more: bool) -> ImportedBytewax:
    """Import what there is: steps, sinks and the source may have nothing yet."""
    chosen = {"steps": {step: step for step in steps}, "inputs": {"lines": str(work / "words.txt")}}
    chosen["drop_steps"] = {f"out{number}": "" for number in range(len(steps))}
    while True:
        try:
            return import_bytewax(work / "db", work / "ours", **chosen, **more)
        except UnknownStepError as error:
            missing, what = error.found.split("'")[1:]
            if "means no step" not in what or not any(
                named.pop(missing, None) is not None for named in chosen.values()
            ):
                raise


def compare(python: str, work: Path, draw: random.Random) -> str:
    """Take over a random directory; returns "equal", or why it was refused."""
    steps = random_directory(python, work, draw)
    why = "equal"
    try:
        try:
            done = taken_over(work, steps)
        except InconsistentPartitionsError as error:
            if "has nothing of" not in error.found:
                raise
            # No file is an older copy here.
            why = "equal, a partition was quiet"
            done = taken_over(work, steps, no_older_copies=True)
    except InconsistentPartitionsError as error:
        if "abandoned epochs" not in error.found:
            raise
        return "refused: abandoned epochs"
    except EpochNotHeldError:
        return "refused: nothing counted"
    read = done.sources[0].files[0][1] if done.sources else 0
    shutil.move(work / "ours", work.with_name("ours"))
    expected = resumed(python, work, read, done.epoch + 1)
    found = {each.ours: states(work.with_name("ours"), each.ours) for each in done.steps}
    assert {step: found.get(step, {}) for step in steps} == {step: expected.get(step, {}) for step in steps}, done
    assert problems(work.with_name("ours")) == []
    return why if any(found.values()) else "equal, without a key"


@pytest.mark.long
def test_random_directories_of_bytewax(tmp_path):
    """What is taken over is what Bytewax has when it resumes without new input, after random steps, workers and kills;
    or it is refused, for a reason. RECOVERY_TEST_BYTEWAX_DIRECTORIES sets their number; half are of 0.20 where it is
    installed."""
    pythons = [others.python_with("bytewax"), os.environ.get("RECOVERY_TEST_BYTEWAX_0_20")]
    pythons = [each for each in pythons if each]
    seed = os.environ.get("RECOVERY_TEST_SEED", str(random.randrange(10**6)))
    count = int(os.environ.get("RECOVERY_TEST_BYTEWAX_DIRECTORIES", "60"))
    print("replay: RECOVERY_TEST_SEED =", seed)
    results: Counter[str] = Counter()
    for number in range(count):
        work = tmp_path / str(number) / "work"
        work.mkdir(parents=True)
        try:
            results[compare(pythons[number % len(pythons)], work, random.Random(f"{seed}-{number}"))] += 1
        except BaseException:
            print("directory", number)
            raise
        shutil.rmtree(work.parent)
    print(results)
    assert results["equal"] >= count / 3


@pytest.mark.parametrize(
    "words", [["--rename-step", "count=n"], ["--rename-step", "count=n", "--dry-run"], ["--drop-step", "count"]]
)
@pytest.mark.parametrize("data", [b"}K\x01" + b"2\x86" * 45 + b"K\x01s.", b"(" * 26 + b"K\x01" + b"2l" * 26 + b"."])
def test_states_of_endless_work(tmp_path, target, words, data):
    """Somebody made pickles of a hundred bytes that would take a year, or all memory. A step that is left out is shown
    without its value."""
    theirs = word_count(tmp_path / "theirs", {"one": 2})
    theirs.snapshot(3, {"two": data}, 6, pickled=True)
    began_s = time.process_time()
    result = CliRunner().invoke(main, ["import", "bytewax", str(theirs.directory), str(target), *words])
    assert time.process_time() - began_s < 10
    assert result.exit_code == (0 if "--drop-step" in words else 33), result.output
    assert target.exists() == ("--drop-step" in words)
