"""State of jobs in Scala as that of a step: what the encoders of Scala and Java have written goes on in Python, or is
refused by name. grouped_jobs.scala has the jobs, which the compiler among PySpark's jars compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import functions as F

from recovery import StepChangedError, stateful
from recovery.errors import ConfigurationError
from recovery.storage.snapshot import snapshot_at
from recovery.values.keys import encode_key
from tests.spark.support import Feed, run_to_end
from tests.spark.test_operator_keys import HOUR_MS, OUTPUT, added_later, imported, totals_in
from tests.stores import problems

pytestmark = pytest.mark.long

SOURCE = Path(__file__).with_name("grouped_jobs.scala")
AVRO = ("processor", "several")
"""Spark encodes only the state of these in Avro."""
KINDS = ("case class", "two key columns", "number", "timeout", "bean", "kryo", "processor", "several")
COLUMNS = (
    "n long, total long, range struct<least: long, most: long>, last string, seen array<long>, often map<string, int>"
)
TURNED = COLUMNS.replace("least: long, most: long", "most: long, least: long")


@dataclass(frozen=True)
class Jobs:
    """Where the jobs' checkpoints are; what they have read, and the whole input, with a file that came later."""

    checkpoints: Path
    half: dict[str, list[int]]
    feed: Feed

    def of(self, kind: str) -> Path:
        """The checkpoint of a job."""
        if not (self.checkpoints / kind).exists():
            pytest.skip("Spark has Avro for transformWithState only")
        return self.checkpoints / kind


@pytest.fixture(scope="module", params=["unsaferow", "avro"])
def jobs(request, tmp_path_factory) -> Jobs:
    """All jobs have run over the first half of the input, in one JVM."""
    root = tmp_path_factory.mktemp("scala")
    home = Path(pyspark.__file__).parent
    java = shutil.which("java") or str(Path(os.environ.get("JAVA_HOME", "/"), "bin", "java"))
    classes = f"{home}/jars/*"
    compiled = subprocess.run(
        [java, "-cp", classes, "scala.tools.nsc.Main", "-nowarn", "-cp", classes, "-d", root / "jobs.jar", SOURCE],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    feed = Feed(root / "input")
    for seed in (1, 2):
        feed.add_random(seed, count=60, keys=12)
    feed.add([("only early", 7), ("", 5), ("nul\0inside", 6), ("😀", 7), ("é␀", 8)])
    ran = subprocess.run(
        [home / "bin" / "spark-submit", "--class", "GroupedJobs", root / "jobs.jar", root / "input", root / "jobs",
         request.param, *(AVRO if request.param == "avro" else KINDS)],
        capture_output=True, text=True, check=False, timeout=900, env={**os.environ, "SPARK_HOME": str(home)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-5000:]
    half = feed.totals()
    feed.add_random(3, count=60, keys=20)
    return Jobs(root / "jobs", half, feed)


def encoded(totals):
    """Totals by state key."""
    return {encode_key(key): total for key, total in totals.items()}


def with_range(key, rows, state):
    """The step that goes on with all of a case class."""
    before = state.get if state.exists else (0, 0, None, None, [], {})
    n, total, seen, often = before[0], before[1], list(before[4]), Counter(before[5])
    assert n == 0 or (n, total, tuple(before[2])) == (len(seen), sum(seen), (min(seen), max(seen)))
    assert n == 0 or before[3] == str(seen[-1])
    assert often == Counter(map(str, seen))
    values = [row.value for row in rows]
    seen += values
    often.update(map(str, values))
    state.update((len(seen), sum(seen), (min(seen), max(seen)), str(seen[-1]), seen, dict(often)))
    yield key if isinstance(key, str) else key[0], len(seen), sum(seen)


def moved(key, state):
    """Several variables of a processor as one state."""
    every = [value for (value,) in state["every"]]
    assert state["count"].value == len(every)
    assert {int(each.value): (each.value, n) for each, (_, n) in state["often"].items()} or not every
    return {"n": len(every), "total": sum(every)}


def plain_later(key, rows, state):
    before = state.getOption or {"n": 0, "total": 0}
    n, total = before["n"] + len(rows), before["total"] + sum(row.value for row in rows)
    state.update({"n": n, "total": total})
    yield key, n, total


CASES = {
    "case class": (COLUMNS, {}, with_range),
    "two key columns": (COLUMNS, {}, with_range),
    "timeout": ("n long, total long", {"function": lambda key, state: {"n": state.least, "total": state.most},
                                       "processing_time": True}, added_later),
    "bean": ("n long, total long", {}, added_later),
    "processor": (COLUMNS, {}, with_range),
    "several": (None, {"function": moved}, plain_later),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_a_flow_goes_on_exactly_behind_a_job_in_scala(spark, jobs, tmp_path, kind):
    """The columns of a case class or a bean are those of the step; a key has the name that Spark gives it."""
    state, options, update = CASES[kind]
    named = {} if state is None else {"state": state}
    done = imported(spark, jobs.of(kind), tmp_path / "db", **options, **named)
    assert (done.keys, done.timeouts > 0) == (len(jobs.half), kind == "timeout")
    if kind != "two key columns":
        assert {key: total[:2] for key, total in totals_in(tmp_path / "db").items()} == encoded(jobs.half)
    if kind == "timeout":
        ends = {each.timeout_ms for each in snapshot_at(tmp_path / "db").states("totals")}
        assert all(each is not None and each > HOUR_MS for each in ends)
    keys = [F.col("key").alias("_1"), F.length("key").alias("_2")] if kind == "two key columns" else []
    step = stateful(
        "totals", key=keys or F.col("key").alias("value"), update=update, output=OUTPUT, state=state,
        timeout=kind == "timeout",
    )  # fmt: skip
    run_to_end(jobs.feed.frame(spark).transform(step), tmp_path / "db")
    found = totals_in(tmp_path / "db")
    if keys:
        found = {json.loads(key)[0]: total for key, total in found.items()}
        assert {key: total[:2] for key, total in found.items()} == jobs.feed.totals()
    else:
        assert {key: total[:2] for key, total in found.items()} == encoded(jobs.feed.totals())
    assert problems(tmp_path / "db") == []


def test_parts_within_a_part_go_by_their_names(spark, jobs, tmp_path):
    """A step that names the same columns in another order gets each value under its name; a step that says nothing at
    the import is refused by its first run, which changes nothing."""
    imported(spark, jobs.of("case class"), tmp_path / "db", state=TURNED)
    ranges = {each.key: json.loads(each.value)[2] for each in snapshot_at(tmp_path / "db").states("totals")}
    assert any(most != least for most, least in ranges.values())
    assert all(most >= least for most, least in ranges.values())
    imported(spark, jobs.of("case class"), tmp_path / "kept")
    step = stateful("totals", key=F.col("key").alias("value"), update=with_range, output=OUTPUT, state=TURNED)
    with pytest.raises(StepChangedError, match=r"'range' of the state was struct\(least, most\)"):
        run_to_end(jobs.feed.frame(spark).transform(step), tmp_path / "kept")
    assert snapshot_at(tmp_path / "kept").epoch == 1


def test_a_state_without_names_is_one_column(spark, jobs, tmp_path):
    """A number is the column `value`, as Spark calls it. What Kryo has written is bytes, which no step in Python can
    read: they stay as they are, and a step with other columns is refused by its first run."""
    imported(spark, jobs.of("number"), tmp_path / "number")
    states = {each.key: json.loads(each.value) for each in snapshot_at(tmp_path / "number").states("totals")}
    assert states == {key: [total] for key, (_, total) in encoded(jobs.half).items()}
    imported(spark, jobs.of("kryo"), tmp_path / "kryo")
    for name in ("number", "kryo"):
        step = stateful("totals", key=F.col("key").alias("value"), update=added_later, output=OUTPUT,
                        state="n long, total long")  # fmt: skip
        with pytest.raises(StepChangedError, match="position 0 of the state was 'value' and is 'n'"):
            run_to_end(jobs.feed.frame(spark).transform(step), tmp_path / name)
    with pytest.raises(ConfigurationError, match="the variables count, every, often"):
        imported(spark, jobs.of("several"), tmp_path / "number-2")


def test_a_key_has_the_name_that_spark_gives_it(spark, jobs, tmp_path):
    """A key that is no class is the column `value`: a step with another name is refused by its first run, and the error
    says both."""
    imported(spark, jobs.of("bean"), tmp_path / "db")
    step = stateful("totals", key="key", update=added_later, output=OUTPUT, state="n long, total long")
    with pytest.raises(StepChangedError, match="its key was value string and is key string"):
        run_to_end(jobs.feed.frame(spark).transform(step), tmp_path / "db")
