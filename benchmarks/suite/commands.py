"""What a user waits for at the prompt: a run, a run with nothing to do, and commands on a store of many keys.

A round fills a directory by `recovery run` over a file of --keys lines, and gives the other commands one after the
other. The sink says when it is called, so the start and the end of a run are known apart.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.processes import run_command
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

QUICK = ("--keys", "1_000", "--repeat", "1")
SESSION = ((10, ("--keys", "200_000", "--repeat", "1")),)
NAME = "commands"

FLOW = """
import time
from recovery import Flow, stateful

def count(key, rows, state):
    n = (state.get if state.exists else 0) + len(rows)
    state.update(n)
    yield key, n

def build(spark):
    return spark.readStream.text("in").transform(
        stateful("counts", key="value", update=count, output="value string, n long"))

def sink(batch, number):
    print("called", time.time(), flush=True)
    batch.write.format("noop").mode("append").save()
    print("called", time.time(), flush=True)

flow = Flow("keys", build, sink)
"""
PLAIN = """
import time
from pyspark.sql import SparkSession

spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.sql.shuffle.partitions", "2").getOrCreate())

def sink(batch, number):
    print("called", time.time(), flush=True)
    batch.write.format("noop").mode("append").save()
    print("called", time.time(), flush=True)

(spark.readStream.text("in").groupBy("value").count().writeStream.outputMode("update").foreachBatch(sink)
 .option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination())
spark.stop()
"""
RUN = ("run", "flow.py", "-r", "db", "--master", "local[2]")
IDLE = "run --if-new-input, nothing new"
STEPS: dict[str, Sequence[str]] = {
    "plain Spark: a run": (),
    "--version": ("--version",),
    "init": ("init", "db", "2"),
    "run": (*RUN, "--if-new-input"),
    IDLE: (*RUN, "--if-new-input"),
    "run, nothing new": RUN,
    "status": ("status", "db"),
    "plan": ("plan", "db"),
    "verify": ("verify", "db"),
    "runs": ("runs", "db"),
    "backup": ("backup", "db", "copies"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the store (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    contender = Contender(NAME, environments.own_python(), f"{__name__}:measure", {"keys": arguments.keys})
    environment = environments.java_environment()

    def check(_: Contender, answer: dict[str, Any], __: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", environment, arguments.timeout, arguments.keep)
    return report(arguments, rounds.measure([contender], check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table: medians over the rounds."""

    def middle(step: str, what: str) -> float | None:
        found = [each.answer["steps"][step].get(what) for each in measurements if not each.problem]
        known = [value for value in found if value is not None]
        return median(known) if known else None

    columns = ("seconds", "cpu_s", "before_s", "stopped_s", "after_s")
    return Report(
        name=NAME,
        headers=(
            "command",
            "s",
            "CPU s",
            "to the first call of the sink s",
            "from the last one to the summary s",
            "from the last one to the prompt s",
            "Python MiB",
        ),
        rows=[
            (
                step,
                *(table.seconds(middle(step, each)) for each in columns),
                table.mebibytes(middle(step, "rss_bytes")),
            )
            for step in STEPS
        ],
        measurements=measurements,
        notes=[
            f"A store of {arguments.keys:,} keys in two partitions; medians over {arguments.repeat} rounds. Seconds "
            "are from the command to the prompt; processor time is that of all its processes, also of a JVM that is "
            "still ending then.",
            "`run` fills the store. Plain Spark counts the same keys with `groupBy().count()`.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one round."""
    Path("in").mkdir()
    Path("in/keys.txt").write_text("".join(f"key-{number:07}\n" for number in range(arguments["keys"])))
    Path("flow.py").write_text(FLOW)
    Path("plain.py").write_text(PLAIN)
    began_s = time.time()
    steps, wrong = {}, ""
    for name, words in STEPS.items():
        command = [sys.executable, *(("-m", "recovery", *words) if words else ("plain.py",))]
        steps[name], failed = _measured(command)
        wrong = wrong or (f"{name}: {failed}" if failed else "")
    if steps[IDLE]["calls"] or steps["run, nothing new"]["calls"]:
        wrong = wrong or "a run with nothing to do called the sink"
    if "no new input" not in steps[IDLE]["said"]:
        wrong = wrong or f"{IDLE} started Spark: {steps[IDLE]['said']}"
    return {"seconds": time.time() - began_s, "steps": steps, "wrong": wrong, "versions": versions("pyspark")}


def _measured(command: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Run a command; return its times, and what went wrong."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began_s = time.time()
    ran = run_command(command, environment)
    calls = [float(line.split()[1]) for _, line in ran.lines if line.startswith("called ")]
    times: dict[str, Any] = {
        "seconds": ran.usage.total_s, "cpu_s": ran.usage.cpu_s, "calls": len(calls), "said": ran.said[:500],
        "rss_bytes": ran.usage.python_rss_bytes,
    }  # fmt: skip
    if calls:
        times |= {"before_s": calls[0] - began_s, "after_s": began_s + ran.usage.total_s - calls[-1]}
        # The summary is the last line: then the session is stopped.
        times["stopped_s"] = ran.lines[-1][0] - calls[-1]
    return times, ran.said[-500:] if ran.code else ""
