"""Bytewax's page on recovery, from top to bottom; where Bytewax is installed, beside it.

docs/coming-from-bytewax.md has the names that differ.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter

import pytest
from click.testing import CliRunner

from recovery import FlowFailedError, stateful_map
from recovery.cli import main
from tests import others
from tests.importing.theirs import run as run_module
from tests.importing.theirs import word_count
from tests.shares import first
from tests.spark.support import run_to_end
from tests.stores import ROOT

WORDS = ["one", "two", "one", "three", "one", "two"]
LATER = ["two", "four", "one"]

FLOW = """
import bytewax.operators as op
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow


def count(state, _):
    if _ == "bad" and BAD:
        raise RuntimeError("a bug")
    n = (state or 0) + 1
    return n, n


BAD = False
flow = Dataflow("words")
lines = op.input("lines", flow, FileSource("words.txt", batch_size=1))
counted = op.stateful_map("count", op.key_on("word", lines, str), count)
op.output("out", op.map("text", counted, lambda pair: (pair[0], f"{pair[0]},{pair[1]}")), FileSink("out.txt"))
"""


def invoke(*words):
    """What a command prints."""
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def counts_of(words):
    """What comes out: each word with its number so far."""
    so_far, out = Counter(), []
    for word in words:
        so_far[word] += 1
        out.append((word, so_far[word]))
    return out


@pytest.fixture
def feed(tmp_path):
    """Adds lines to the file that the flow reads."""

    def add(words):
        with (tmp_path / "words.txt").open("a") as file:
            file.writelines(f"{word}\n" for word in words)

    add(WORDS)
    return add


@pytest.fixture
def words(spark, tmp_path, feed):
    """Runs the flow on a directory; returns what came out in this execution, and the summary."""

    def mapper(state, value, bad):
        if value == bad:
            raise RuntimeError("a bug")
        n = (state or 0) + 1
        return n, n

    def run(directory, bad=None, **config):
        lines = spark.readStream.format("appended").option("path", str(tmp_path / "words.txt")).load()
        step = stateful_map(
            "count", key="value", value="value", mapper=lambda s, v: mapper(s, v, bad), output="word string, n long"
        )
        out = []
        summary = run_to_end(
            lines.select("value").transform(step),
            directory,
            lambda batch, _: out.extend(map(tuple, batch.collect())),
            name="words",
            **config,
        )
        return sorted(out), summary

    return run


@pytest.mark.long
def test_the_page(words, feed, tmp_path):
    """Setup, execution, resume after a bug is fixed, continuation with new data, restart, and copies of two times."""
    directory = tmp_path / "db_dir"
    directory.mkdir()
    invoke("init", f"{directory}/", "4")
    assert sorted(path.name for path in directory.glob("part-*")) == [f"part-{n}.sqlite3" for n in range(4)]
    # Execution, with the intervals of -s and -b; the end of the input is snapshotted.
    assert words(directory, snapshot_interval=0, backup_interval="1h")[0] == sorted(counts_of(WORDS))
    # Continuation: only the new lines are read.
    feed(LATER)
    continued, summary = words(directory, snapshot_interval=0)
    assert continued == sorted(counts_of(WORDS + LATER)[len(WORDS) :])
    assert (summary.rows, summary.execution) == (len(LATER), 2)
    # A backup process of its own for each partition: here two copies are of one time, two of a later one.
    copies = tmp_path / "copies"
    copies.mkdir()
    for path in sorted(directory.glob("part-[01].*")):
        shutil.copy(path, copies)
    # A bug: the run fails, the bug is fixed, and the same directory resumes.
    feed(["bad"])
    with pytest.raises(FlowFailedError, match="a bug"):
        words(directory, bad="bad")
    resumed, summary = words(directory)
    assert resumed == [("bad", 1)]
    for path in sorted(directory.glob("part-[23].*")):
        shutil.copy(path, copies)
    # All partitions move together; the newest snapshot that exists in all of them is resumed from.
    shutil.rmtree(directory)
    invoke("restore", copies, directory)
    assert words(directory)[0] == [("bad", 1)]
    # A full restart: delete the partitions.
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    invoke("init", directory, "2")
    assert words(directory)[0] == sorted(counts_of([*WORDS, *LATER, "bad"]))


def test_beside_bytewax(words, feed, tmp_path):
    """The same dataflow there and here: the same output in each execution, also with another number of workers."""
    python = others.python_with("bytewax")
    (tmp_path / "flow.py").write_text(FLOW)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()

    def bytewax(*command):
        done = subprocess.run([python, "-m", *command], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    bytewax("bytewax.recovery", f"{theirs}/", "4")
    assert json.loads(invoke("init", ours, "4", "--json"))["partitions"] == [
        str(ours / path.name) for path in sorted(theirs.iterdir())
    ]
    before = 0
    for lines, workers in (([], 1), (LATER, 2), (["five"], 1)):
        feed(lines)
        bytewax("bytewax.run", "flow.py", "-r", str(theirs), "-s", "0", "-b", "0", "-w", str(workers))
        out = [line.split(",") for line in (tmp_path / "out.txt").read_text().splitlines()]
        assert sorted((word, int(n)) for word, n in out[before:]) == words(ours)[0]
        before = len(out)


def output_of_bytewax(directory):
    """Each word with its number, in order."""
    return [
        (word, int(n)) for word, n in (line.split(",") for line in (directory / "out.txt").read_text().splitlines())
    ]


@first("real", [False, True], ids=["forged", "Bytewax"])
def test_a_word_count_continues(words, feed, tmp_path, monkeypatch, real):
    """Begun in Bytewax and taken over: the first run reads the next byte of the file, and counts on from its totals.
    So do later runs, and one that goes back."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    monkeypatch.chdir(tmp_path)
    if real:
        python = others.python_with("bytewax")
        (tmp_path / "flow.py").write_text(FLOW)
        theirs.mkdir()
        run_module(python, tmp_path, "bytewax.recovery", "theirs", "3")
        run_module(python, tmp_path, "bytewax.run", "flow.py", "-r", "theirs", "-s", "0", "-b", "0")
        assert output_of_bytewax(tmp_path) == counts_of(WORDS)
    else:
        word_count(theirs, dict(Counter(WORDS)), (tmp_path / "words.txt").stat().st_size, 3)
    invoke("import", "bytewax", theirs, ours, "--rename-step", "count=count", *(["--drop-step", "out"] if real else []))
    feed(LATER)
    continued, summary = words(ours, backup_interval="1h")
    assert continued == sorted(counts_of(WORDS + LATER)[len(WORDS) :])
    assert (summary.rows, summary.execution) == (len(LATER), 2)
    feed(["one"])
    assert words(ours, backup_interval="1h")[0] == [("one", 5)]
    # Back to Bytewax's totals, and its position.
    assert words(ours, resume_after=1)[0] == sorted(counts_of([*WORDS, *LATER, "one"])[len(WORDS) :])


def test_the_example(tmp_path):
    """Both flows, run as their docstrings say."""
    python = others.python_with("bytewax")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "words.txt").write_text("one\ntwo\none\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run(name):
        text = ast.get_docstring(ast.parse((ROOT / "examples/bytewax" / name).read_text()))
        commands = "\n".join(line.strip() for line in text.splitlines() if line.startswith("    "))
        commands = commands.replace("python -m bytewax", f"{python} -m bytewax")
        commands = commands.replace("python -m recovery", f"{sys.executable} -m recovery")
        return others.run(["bash", "-ec", commands], tmp_path, environment)

    run("words.py")
    assert sorted((tmp_path / "counts.txt").read_text().splitlines()) == ["one 1", "one 2", "two 1"]
    with (tmp_path / "words.txt").open("a") as file:
        file.write("one\nthree\n")
    printed = run("go_on.py")
    assert all(line in printed for line in ("word=one  total=3", "word=three  total=1"))
    assert "word=two" not in printed
