"""Sources that start at the end of what is there: a run that is killed before it closed an epoch loses no input."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from recovery import RecoveryConfig, init_partitions, start
from recovery.storage.scan import scan
from recovery.storage.sqlite import store as storage_files
from tests.flows.topic import append, step, topic, words
from tests.shares import some
from tests.spark.support import ROOT, Feed, run_to_end, states
from tests.spark.test_crashes import finish, recovery_command
from tests.stores import paths_of, problems, query


class Run:
    """A run that goes on; `crash` is the directory that would be left if it were killed now."""

    def __init__(self, frame, directory: Path, **config) -> None:
        if not directory.exists():
            init_partitions(directory, 3)
        self.directory = directory
        self.seen: list[tuple[str, str]] = []
        settings = RecoveryConfig(directory, **{"snapshot_interval": "1h", **config})
        self.query = start(step(frame), settings, sink=self._sink, name="test", trigger=0.1)

    def _sink(self, batch, number):
        self.batches = number
        self.seen += [tuple(row) for row in batch.collect()]

    def wait_for(self, key: str, *expected: str) -> None:
        """Until the output has these words of a key."""
        wanted = (key, ",".join(sorted(expected)))
        deadline = time.monotonic() + 120
        while wanted not in self.seen:
            assert self.query.is_active, self.seen
            assert time.monotonic() < deadline, self.seen
            time.sleep(0.02)

    def wait_for_start(self) -> None:
        """Until a micro-batch began, with rows or without."""
        deadline = time.monotonic() + 120
        while not all(map(beginning_of, paths_of(self.directory))):
            assert self.query.is_active
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def crash(self, target: Path) -> Path:
        copy(self.directory, target)
        self.query.stop()
        return target


def copy(source: Path, target: Path) -> Path:
    """By another process: closing a file that this one has open elsewhere would drop its locks."""
    subprocess.run(["cp", "-r", source, target], check=True)
    return target


def beginning_of(path: Path) -> list:
    return query(path, "SELECT * FROM beginning")


def held(directory: Path) -> list[int]:
    return [file.description.newest_epoch for file in scan(directory)]


@pytest.mark.parametrize("form", some(["topic", "simple_topic"], "topic"))
def test_a_kill_before_the_first_epoch(spark, tmp_path, form):
    """The next run begins where the killed one began; so does one that goes back to before the first epoch."""
    path = tmp_path / "a"
    append(path, "old1", "old2")
    run = Run(topic(spark, path, form), tmp_path / "db")
    run.wait_for_start()
    append(path, "a1")
    run.wait_for("a", "a1")
    append(path, "a2")
    run.wait_for("a", "a1", "a2")
    left = run.crash(tmp_path / "left")
    assert held(left) == [0, 0, 0]
    assert problems(left) == []
    append(path, "a3")
    summary = run_to_end(step(topic(spark, path, form)), left, backup_interval="1h")
    assert states(left, "words") == {"a": ["a1", "a2", "a3"]}
    assert summary.resume_epoch == 1
    append(path, "a4")
    run_to_end(step(topic(spark, path, form)), left, resume_epoch=1)
    assert states(left, "words") == {"a": ["a1", "a2", "a3", "a4"]}
    assert problems(left) == []


@pytest.mark.long
@pytest.mark.parametrize("point", some(["start.5.partition", "start.5"], "start.5"))
def test_a_kill_while_the_start_is_written(spark, tmp_path, monkeypatch, point):
    """One partition that has it is enough; nothing is half done."""
    path, left = tmp_path / "a", tmp_path / "left"

    one = threading.Lock()

    def reach(name):
        # Partitions are written on several threads, and the others go on meanwhile.
        with one:
            if name == point and not left.exists():
                copy(tmp_path / "db", left)

    monkeypatch.setattr(storage_files.faults, "reach", reach)
    append(path, "old")
    run = Run(topic(spark, path), tmp_path / "db")
    run.wait_for_start()
    append(path, "a1")
    run.wait_for("a", "a1")
    run.query.stop()
    assert problems(left) == []
    for file in left.glob("*.sqlite3"):
        assert len(beginning_of(file)) <= 1
    run_to_end(step(topic(spark, path)), left)
    assert states(left, "words") == {"a": ["a1"]}


@pytest.mark.long
def test_a_source_that_is_new_in_a_flow(spark, tmp_path):
    """Its start is in a closed epoch before its first micro-batch counts."""
    a, b = tmp_path / "a", tmp_path / "b"
    append(a, "old")
    run = Run(topic(spark, a), tmp_path / "db")
    run.wait_for_start()
    append(a, "a1")
    run.wait_for("a", "a1")
    run.query.stop()
    append(b, "old")
    run = Run(topic(spark, a).union(topic(spark, b)), tmp_path / "db", backup_interval="1h")
    append(a, "a2")
    run.wait_for("a", "a1", "a2")
    append(b, "b1")
    run.wait_for("b", "b1")
    left = run.crash(tmp_path / "left")
    append(b, "b2")
    assert states(left, "words") == {"a": ["a1"]}
    assert problems(left) == []
    run_to_end(step(topic(spark, a).union(topic(spark, b))), left)
    assert states(left, "words") == {"a": ["a1", "a2"], "b": ["b1", "b2"]}


@pytest.mark.long
def test_sources_that_change_before_the_first_epoch(spark, tmp_path):
    """One goes on where it began, whatever comes beside it; one that is left out is no error, since nothing counts."""
    a, b, feed = tmp_path / "a", tmp_path / "b", Feed(tmp_path / "feed")
    for path in (a, b):
        append(path, "old")
    run = Run(topic(spark, a), tmp_path / "db")
    run.wait_for_start()
    append(a, "a1")
    run.wait_for("a", "a1")
    left = run.crash(tmp_path / "left")
    feed.add([("x", 1)])
    files = feed.frame(spark).selectExpr("'feed' AS key", "key AS value")
    run = Run(topic(spark, b).union(files).union(topic(spark, a)), left)
    run.wait_for("feed", "x")
    run.wait_for("a", "a1")
    append(b, "b1")
    run.wait_for("b", "b1")
    again = run.crash(tmp_path / "again")
    append(a, "a2")
    append(b, "b2")
    run_to_end(step(topic(spark, b)), copy(again, tmp_path / "alone"))
    assert states(tmp_path / "alone", "words") == {"b": ["b1", "b2"]}
    run_to_end(step(files.union(topic(spark, a)).union(topic(spark, b))), again)
    assert states(again, "words") == {"a": ["a1", "a2"], "b": ["b1", "b2"], "feed": ["x"]}


@pytest.mark.long
def test_a_source_that_logs_its_start(spark, tmp_path):
    """The rate source notes when it began, from which its rows' times follow; it has the same ones again."""

    def frame():
        rows = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
        return rows.selectExpr("'r' AS key", "concat(value, '@', timestamp) AS value").where("value < '3'")

    run = Run(frame(), tmp_path / "db")
    deadline = time.monotonic() + 60
    while not run.seen and time.monotonic() < deadline:
        time.sleep(0.02)
    left = run.crash(tmp_path / "left")
    first = {word for _, text in run.seen for word in text.split(",")}
    run = Run(frame(), left)
    while not run.seen and time.monotonic() < deadline + 60:
        time.sleep(0.02)
    run.query.stop()
    assert first <= set(states(left, "words")["r"])


@pytest.mark.long
def test_state_of_sparks_own_operators(spark, tmp_path):
    """Its first version is made by micro-batch 0, which comes again."""
    path, seen = tmp_path / "a", {}

    def counts():
        return topic(spark, path).groupBy("value").count()

    def note(batch, number):
        seen.update({row.value: row["count"] for row in batch.collect()})

    init_partitions(tmp_path / "db", 3)
    append(path, "old")
    running = start(counts(), RecoveryConfig(tmp_path / "db", snapshot_interval="1h"), sink=note, name="test",
                    output_mode="update", trigger=0.1)  # fmt: skip
    deadline = time.monotonic() + 120
    while not all(map(beginning_of, paths_of(tmp_path / "db"))):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    append(path, "x", "y", "x")
    while seen != {"x": 2, "y": 1}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    left = copy(tmp_path / "db", tmp_path / "left")
    running.stop()
    append(path, "y", "z")
    seen.clear()
    for word in ("x", "z"):
        run_to_end(counts(), left, note, output_mode="update")
        append(path, word)
    run_to_end(counts(), left, note, output_mode="update")
    assert seen == {"x": 3, "y": 2, "z": 2}


def test_files_write_nothing(spark, tmp_path):
    """Spark's file source starts at the beginning, so there is nothing that would have to be kept."""
    feed = Feed(tmp_path / "in")
    feed.add([("x", 1)])
    files = feed.frame(spark).selectExpr("'feed' AS key", "key AS value")
    run_to_end(step(files), tmp_path / "db")
    assert [beginning_of(path) for path in paths_of(tmp_path / "db")] == [[], [], []]
    assert held(tmp_path / "db") == [1, 1, 1]


@pytest.mark.long
def test_kills_before_and_after_the_first_epoch(tmp_path):
    """Real runs, killed one after the other: every word that came after the first one's start is there once."""
    path, directory = tmp_path / "a", tmp_path / "db"
    init_partitions(directory, 3)
    append(path, "old")
    flow = f"{ROOT / 'tests' / 'flows' / 'topic.py'}:make({str(path)!r}, 1000)"
    points = ["start.5.partition:2", "start.4", "close.1", "close.2.snaps:2", "close.2.epochs:3"]
    for point in [*points, "close.1:2", "close.3", "close.1:3"]:
        process = recovery_command(flow, directory, "-s", "0", "-b", "1h", "--trigger", "0.1s", crash_at=point)
        output = finish(process)
        assert process.returncode == -signal.SIGKILL, f"{point}: {output}"
        append(path, f"down{len(words(str(path)))}")
    process = recovery_command(flow.replace("1000", "0"), directory)
    output = finish(process)
    assert process.returncode == 0, output
    assert len(words(str(path))) > len(points)
    assert states(directory, "words") == {"a": sorted(words(str(path), 1))}
    assert problems(directory) == []
