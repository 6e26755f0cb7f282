"""Two snapshots compared: `recovery diff`."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import diff, fork
from recovery.appended.position import FilePosition, InputOffset
from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.checkpoint.source_places import places_of
from recovery.checkpoint.sources import PLACES_KEY
from recovery.cli import main
from recovery.operational.steps.comparison import CHANGED, ONLY_A, ONLY_B, StepCounts, compare
from recovery.operational.steps.epoch_input import FileRead
from recovery.planning.comparing import Comparison
from recovery.storage.snapshot import snapshot_at
from tests.stores import ROOT, STEP, Driver

KEYS = ["a", "b/c", "'", "🙂", "z"]
OFFSETS = 'v1\n{"batchWatermarkMs":0}\n'


def run_diff(*words, code):
    """Run the command; what it prints."""
    done = CliRunner().invoke(main, ["diff", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


@settings(max_examples=5)
@given(seed=st.integers(0, 10**9), counts=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_differences_are_those_of_a_model(store_maker, seed, counts):
    """Of directories with any numbers of partitions, and of one directory at any two epochs."""
    generator = random.Random(seed)
    directories = [store_maker(count) for count in counts]
    models: list[list[dict]] = [[{}], [{}]]
    for directory, model in zip(directories, models, strict=True):
        logged = generator.random() < 0.5
        with Driver(directory) as run:
            for batch in range(3):
                changes = {key: generator.choice([None, "1", "2"]) for key in generator.sample(KEYS, 3)}
                run.apply(batch, changes)
                run.close(batch, logged=logged)
                state = {**model[-1], **changes}
                model.append({key: value for key, value in state.items() if value is not None})
    pairs = [((directories[0], e), (directories[1], f)) for e in range(4) for f in range(4)]
    pairs += [((directories[0], e), (directories[0], f)) for e in range(4) for f in range(4)]
    for (a, e), (b, f) in pairs:
        one, other = models[0][e], (models[0] if b == a else models[1])[f]
        expected = dict.fromkeys(one.keys() - other.keys(), ONLY_A) | dict.fromkeys(other.keys() - one.keys(), ONLY_B)
        expected |= {key: CHANGED for key in one.keys() & other.keys() if one[key] != other[key]}
        found = list(compare(snapshot_at(a, e), snapshot_at(b, f), STEP, Comparison(), StepCounts()))
        assert {each.key: each.what for each in found} == expected
        assert [each.key for each in found] == sorted(expected)


@pytest.fixture
def pair(make_store):
    """Two directories that differ in a key of each kind, in a float's last digit, and in the position of a source."""
    made = []
    for count, values, position in ((2, ("1", "0.3", "5"), 7), (3, ("2", "0.30000000000000004", None), 9)):
        directory = make_store(count)
        changed, close, only = values
        with Driver(directory) as run:
            run.apply(0, {"same": "0", "changed": changed, "close": close} | ({"only": only} if only else {}))
            run.close(0, driver_rows={CHECKPOINT_STEP: {"offsets/0": f'{OFFSETS}{{"logOffset":{position}}}'}})
        made.append(directory)
    return made


def test_the_command(pair, tmp_path):
    """Positions first, counts by step, then the keys; all of them in a file."""
    text = run_diff(*pair, code=1)
    assert "A and B are at different positions" in text
    assert '{"logOffset":7}' in text
    found = json.loads(run_diff(*pair, "--json", code=1))
    assert found["steps"] == {STEP: {"equal": 1, "changed": 2, "only_in_a": 1, "only_in_b": 0}}
    assert [each["key"] for each in found["differences"]] == ["changed", "close", "only"]
    assert not found["same_position"]
    run_diff(*pair, "--output-file", tmp_path / "out.csv", "--limit", 0, code=1)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    run_diff(*pair, "--output-file", tmp_path / "out.parquet", code=1)
    assert pq.read_table(tmp_path / "out.parquet").select(["key", "what"]).to_pylist() == [
        {"key": row["key"], "what": row["what"]} for row in rows
    ]
    written = sorted(each for each in tmp_path.iterdir() if each.is_file())
    assert [each.name for each in written] == ["out.csv", "out.parquet"]
    assert {each.stat().st_mode & 0o777 for each in written} == {0o600}


def test_the_file_of_differences(make_store, tmp_path):
    """Both values, the fields that differ in them, and the timeouts, which may be all that differs."""
    made = []
    for changes in (
        {"only": "1", "late": ("2", 5000), "fields": '{"n":1,"seen":[1,2]}'},
        {"late": ("2", 6000), "fields": '{"n":1,"seen":[1,3]}'},
    ):
        directory = make_store(2)
        with Driver(directory) as run:
            run.apply(0, changes)
            run.close(0)
        made.append(directory)
    expected = [
        ("fields", CHANGED, '{"n":1,"seen":[1,2]}', '{"n":1,"seen":[1,3]}', '["seen[1]"]', None, None),
        ("late", CHANGED, "2", "2", "[]", 5000, 6000),
        ("only", ONLY_A, "1", None, "[]", None, None),
    ]
    run_diff(*made, "--output-file", tmp_path / "out.parquet", code=1)
    assert [tuple(row.values())[1:] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()] == expected
    run_diff(*made, "--output-file", tmp_path / "out.csv", code=1)
    header, *rows = csv.reader((tmp_path / "out.csv").open())
    assert header == ["step", "key", "what", "a", "b", "fields", "timeout_ms_a", "timeout_ms_b"]
    assert [row[1:] for row in rows] == [["" if each is None else str(each) for each in row] for row in expected]


def test_long_positions(make_store):
    """The text shows where they differ, not where they begin."""
    made = []
    for offset in (19, 71):
        directory = make_store(1)
        with Driver(directory) as run:
            run.apply(0, {"same": "0"})
            position = f'{{"path":"{"x" * 300}","offset":{offset},"after":"{"y" * 300}"}}'
            run.close(0, driver_rows={CHECKPOINT_STEP: {"offsets/0": OFFSETS + position}})
        made.append(directory)
    text = run_diff(*made, code=0)
    assert '"offset":19,' in text
    assert '"offset":71,' in text
    assert max(map(len, text.splitlines())) < 130


def test_progress(pair, monkeypatch):
    """Keys that were read, on standard error, while a long comparison goes on; nothing with --json."""
    monkeypatch.setattr("recovery.cli.status_line.LINE_S", -1)
    monkeypatch.setattr("recovery.operational.steps.comparison.KEYS_PER_EVENT", 2)
    done = CliRunner().invoke(main, ["diff", *map(str, pair)])
    assert done.stderr.splitlines() == [f"{STEP}: 2 keys read", f"{STEP}: 4 keys read"]
    assert CliRunner().invoke(main, ["diff", *map(str, pair), "--json"]).stderr == ""


KILLED = """
import os, signal, sys
from recovery.cli.diff_output import differences_file
with differences_file(Path(sys.argv[1])):
    print("writing", flush=True)
    os.kill(os.getpid(), int(sys.argv[2]))
"""


def test_a_killed_attempt(pair, tmp_path):
    """The next one removes its draft, but not that of one that is still writing, nor files of others."""
    file, other = tmp_path / "out.csv", tmp_path / ".out.csv.diff-mine"
    other.touch()
    command = [sys.executable, "-c", f"from pathlib import Path{KILLED}", str(file)]
    killed = subprocess.run([*command, str(int(signal.SIGKILL))], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    [left] = set(tmp_path.glob(".out.csv.*")) - {other}
    with subprocess.Popen([*command, str(int(signal.SIGSTOP))], cwd=ROOT, stdout=subprocess.PIPE) as stopped:
        stopped.stdout.readline()
        assert not left.exists()
        run_diff(*pair, "--output-file", file, code=1)
        [held] = set(tmp_path.glob(".out.csv.*")) - {other}
        stopped.kill()
    run_diff(*pair, "--output-file", file, code=1)
    assert not held.exists()
    assert sorted(each for each in tmp_path.iterdir() if each.is_file()) == sorted([file, other])


def read(**files):
    """A position in growing files: of each its number, its name and the bytes that were read; what is behind differs
    at each call."""
    later = next(_seen)
    positions = {
        number: FilePosition(f"/in/{name}", first, end, end + later, later, 7, f"{first}:{end}")
        for name, (number, first, end) in files.items()
    }
    return json.dumps(InputOffset(positions, len(files) + 1, since_ns=later + 1).to_json())


_seen = itertools.count(100)


@pytest.mark.parametrize(
    ("one", "other", "rows"),
    [
        ({"a": (1, "a", 9)}, {"a": (1, "a", 9)}, []),
        ({"a": (1, "a", 9), "b": (2, "b", 0)}, {"a": (2, "a", 9)}, []),
        ({"a": (1, "a", 9), "b": (2, "b", 4)}, {"a": (1, "a", 12)}, [("/in/a", 9, 12), ("/in/b", 4, 0)]),
        # Renamed between the two, and another one of the old name.
        ({"a": (1, "a", 9)}, {"a.1": (1, "a", 12), "a": (2, "a", 3)}, [("/in/a.1", 9, 12), ("/in/a", 0, 3)]),
        # Numbered in another order, as by two stores that share nothing.
        ({"a": (1, "a", 9), "b": (2, "b", 4)}, {"b": (1, "b", 4), "a": (2, "a", 8)}, [("/in/a", 9, 8)]),
        # As many bytes of another content.
        ({"a": (1, "a", 9)}, {"a": (1, "x", 9)}, [("/in/a", 9, 9)]),
    ],
)  # fmt: skip
def test_positions_in_growing_files(make_store, one, other, rows):
    """Equal if the same bytes were read, whatever was written behind; else each file that differs is named."""
    made = []
    for files in (one, other):
        directory = make_store(1)
        with Driver(directory) as run:
            run.apply(0, {"same": "0"})
            run.close(0, driver_rows={CHECKPOINT_STEP: {"offsets/0": OFFSETS + read(**files)}})
        made.append(directory)
    text, found = run_diff(*made, code=0), json.loads(run_diff(*made, "--json", code=0))
    [source] = found["sources"]
    assert [(each["path"], each["a"], each["b"]) for each in source["files"]] == rows
    assert found["same_position"] is source["same"] is (not rows)
    assert ("A and B are at the same position" in text) is (not rows)
    for path, mine, theirs in rows:
        assert ["0", path, str(mine), str(theirs)] in [line.split() for line in text.splitlines()]
    assert [each.same for each in diff(*made).sources] == [not rows]
    [begun] = diff(made[0], made[0], epoch_a=0).sources
    assert begun.files == tuple(FileRead(f"/in/{name}", 0, end) for name, (_, _, end) in one.items() if end)


def test_many_files_at_other_positions(make_store):
    """The text shows the first of them, and says how many there are."""
    made = []
    for end in (3, 4):
        directory = make_store(1)
        with Driver(directory) as run:
            run.apply(0, {"same": "0"})
            files = {f"f{number:02}": (number, f"f{number:02}", end) for number in range(15)}
            run.close(0, driver_rows={CHECKPOINT_STEP: {"offsets/0": OFFSETS + read(**files)}})
        made.append(directory)
    text = run_diff(*made, code=0)
    assert "/in/f09" in text
    assert "/in/f10" not in text
    assert "and 5 other files" in text


def test_what_counts_as_equal(pair):
    """Tolerance for floats, ignored fields, and a choice of keys."""
    found = json.loads(run_diff(*pair, "--tolerance", "1e-9", "--json", code=1))
    assert [each["key"] for each in found["differences"]] == ["changed", "only"]
    run_diff(*pair, "--tolerance", "nan", code=11)
    run_diff(*pair, "--tolerance", "-1", code=2)
    assert "Both" not in run_diff(*pair, "--pattern", "s*", code=0)


def test_a_copy_is_equal(pair, tmp_path):
    """Another place with the same content; the exit code says so."""
    shutil.copytree(pair[0], tmp_path / "copy")
    assert "A and B are at the same position" in run_diff(pair[0], tmp_path / "copy", code=0)


@pytest.mark.long
@settings(max_examples=5)
@given(seed=st.integers(0, 10**9))
def test_a_fork_is_compared_since_it_was_made(store_maker, seed):
    """Equal histories are equal, one changed key is exactly that key, and all else is as when all keys are read."""
    generator = random.Random(seed)
    directory = store_maker(generator.randrange(1, 4))

    def write(place, batches, changes):
        with Driver(place) as run:
            for _ in range(batches):
                changed = changes()
                run.apply(run.epoch, changed)
                run.close(run.epoch)

    def anything():
        return {key: generator.choice([None, '"1"', '"2"']) for key in generator.sample(KEYS, 3)}

    write(directory, generator.randrange(1, 4), anything)
    with tempfile.TemporaryDirectory() as name:
        forked = Path(name) / "fork"
        epoch = fork(directory, forked, generator.choice([None, 1])).origin.epoch
        assert run_json(directory, forked, "--epoch-a", epoch) == (epoch, {})
        write(directory, generator.randrange(0, 3), anything)
        write(forked, generator.randrange(0, 3), anything)
        for words in ((), ("--epoch-a", epoch), ("--epoch-b", epoch)):
            since, found = run_json(directory, forked, *words)
            assert (since, found) == (epoch, run_json(directory, forked, *words, "--every-key")[1])
            assert counts_of(directory, forked, *words) == counts_of(directory, forked, *words, "--every-key")
            swapped = [{"--epoch-a": "--epoch-b", "--epoch-b": "--epoch-a"}.get(word, word) for word in words]
            assert run_json(forked, directory, *swapped)[1] == {key: (b, a) for key, (a, b) in found.items()}
        # Either goes back behind the other, and computes something else: that belongs to one of them only.
        back = generator.randrange(1, epoch + 1)
        place = generator.choice([directory, forked])
        with Driver(place, resume_epoch=back) as run:
            run.apply(99, {"z": '"again"'})
            run.close(99)
        since, found = run_json(directory, forked)
        assert (since, found) == (back - 1 or None, run_json(directory, forked, "--every-key")[1])
        assert counts_of(directory, forked) == counts_of(directory, forked, "--every-key")
        one, other = Path(name) / "one", Path(name) / "other"
        fork(directory, one)
        fork(directory, other)
        write(other, 1, lambda: {"z": '"changed"'})
        assert run_json(one, other)[1].keys() == {"z"}


def test_a_key_that_both_removed(make_store, tmp_path):
    """Since the snapshot that they share: it is in neither, so nothing differs."""
    directory, forked = make_store(1), tmp_path / "fork"
    for place in (directory, forked):
        with Driver(place) as run:
            if place == directory:
                run.apply(run.epoch, {"a": "1", "b": "1"})
                run.close(run.epoch)
                fork(directory, forked)
            run.apply(run.epoch, {"a": None})
            run.close(run.epoch)
    assert run_json(directory, forked) == (1, {})
    assert counts_of(directory, forked)[STEP]["equal"] == 1
    # With a pattern, the keys that did not change are not looked at.
    assert "equal" not in counts_of(directory, forked, "--pattern", "*")[STEP]


def test_a_failure_is_no_difference(pair, monkeypatch):
    """An unforeseen one has a code of its own, and shows its traceback."""

    def broken(*_, **__):
        raise AssertionError("unforeseen")

    monkeypatch.setattr(importlib.import_module("recovery.cli.diff"), "diff_snapshots", broken)
    assert "AssertionError: unforeseen" in run_diff(*pair, code=70)
    assert run_diff(pair[0], "nowhere", code=20)


def counts_of(*words):
    """How many keys are equal or differ, by step."""
    return json.loads(CliRunner().invoke(main, ["diff", *map(str, words), "--json"]).stdout)["steps"]


def run_json(a, b, *words):
    """Since which epoch two directories are compared, and what differs, by key."""
    done = CliRunner().invoke(main, ["diff", str(a), str(b), *map(str, words), "--json"])
    found = json.loads(done.output)
    assert done.exit_code == (0 if found["equal"] else 1), done.output
    return found["compared_since_epoch"], {each["key"]: (each.get("a"), each.get("b")) for each in found["differences"]}


def test_positions_without_ticks(make_store):
    """A step with timeouts adds a tick source, and moves the numbers of the others: it is not part of the input."""
    made = []
    for ticks in ((False,), (True, False)):
        lines = ['{"tick_ms": 5}' if tick else '{"logOffset":7}' for tick in ticks]
        places = places_of(range(len(ticks)), ticks)
        directory = make_store(2)
        with Driver(directory) as run:
            run.apply(0, {"same": "0"})
            position = {CHECKPOINT_STEP: {"offsets/0": OFFSETS + "\n".join(lines)}}
            run.close(0, driver_rows={**position, SOURCES_STEP: {PLACES_KEY: places.to_text()}})
        made.append(directory)
    assert "A and B are at the same position" in run_diff(*made, code=0)


def test_positions_of_sources_with_names(make_store):
    """Names that the flow's code gives sources are in the log of offsets alone."""
    made = []
    for read in (7, 9):
        lines = ["v2", "{}", '0:{"tick_ms": 5}', f'orders:{{"logOffset":{read}}}']
        directory = make_store(2)
        with Driver(directory) as run:
            run.apply(0, {"same": "0"})
            places = {PLACES_KEY: places_of(range(2), [True, False]).to_text()}
            run.close(0, driver_rows={CHECKPOINT_STEP: {"offsets/0": "\n".join(lines)}, SOURCES_STEP: places})
        made.append(directory)
    text = run_diff(*made, code=0)
    assert "A and B are at different positions" in text
    assert "orders" in text
    assert "tick_ms" not in text


def test_mistakes(pair, tmp_path):
    """Each an error of its own exit code; nothing is written."""
    run_diff(*pair, "--step", "other", code=44)
    run_diff(*pair, "--output-file", tmp_path / "out.txt", code=11)
    run_diff(*pair, "--output-file", tmp_path / "missing" / "out.csv", code=12)
    run_diff(pair[0], tmp_path / "nothing", code=20)
    run_diff(*pair, "--epoch-a", 9, code=28)
