"""What it costs a run that partitions move while it goes on: rows a second meanwhile, and how long it pauses.

A run counts rows by key over two owners. When all keys have a state, `recovery owners move` brings the two partitions
of one owner to a third one. `staged`: as the command does it; `in the pause`: nothing is sent before the pause.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import apsw

from benchmarks.contenders.owners import address_of, serving
from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Rounds

PARTITIONS = 4
QUICK = ("--keys", "5_000", "--rows", "1_000", "--watch", "2")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys in all (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=50_000, help="rows of a micro-batch (default: %(default)s)")
    parser.add_argument("--watch", type=float, default=20, help="how long to count before and after, in s")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    chosen = {"staged": True, "in the pause": False}
    shape = {"keys": arguments.keys, "rows": arguments.rows, "watch_s": arguments.watch}
    contenders = [
        Contender(name, environments.own_python(), f"{__name__}:measure", {**shape, "staged": staged})
        for name, staged in chosen.items()
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    measurements = rounds.measure(contenders, check)
    rows = []
    for each in table.summarise(measurements):

        def shown(name: str, form: str, each: table.Summary = each) -> str:
            found = each.middle(lambda run: run.answer[name])
            return table.NONE if found is None else form.format(found)

        rows.append(
            (
                each.contender,
                *(shown(name, "{:,.0f}") for name in ("before_rows", "during_rows")),
                *(shown(name, "{:.2f} s") for name in ("batch_s", "pause_s", "locked_s", "seconds")),
                shown("moved_mb", "{:.0f} MB"),
                "correct" if each.problem is None else "failed",
            )
        )
    return Report(
        name="moving",
        headers=(
            "",
            "rows/s before",
            "rows/s while sending",
            "micro-batch",
            "pause",
            "locked",
            "whole",
            "moved",
            "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys in {PARTITIONS} partitions, {arguments.rows:,} rows a micro-batch; two "
            "partitions move. Pause: the longest time between the ends of two micro-batches. Locked: the part of the "
            "pause in which the partitions are compared and change place.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Run the flow with owners, move, and return what was seen."""
    import recovery
    from recovery import RecoveryConfig, aggregate, init_partitions
    from recovery.aggregates import count
    from recovery.storage.moving import mover

    if not arguments["staged"]:
        mover.MOST_PASSES = 0
    keys, rows = arguments["keys"], arguments["rows"]
    db = Path("db").absolute()
    init_partitions(db, PARTITIONS)
    ends: list[tuple[float, int]] = []

    def build(spark: Any) -> Any:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 4)
        source = source.option("startTimestamp", 1_700_000_000_000)
        frame = source.load().selectExpr(f"concat('k', value % {keys}) AS key", "value")
        return frame.transform(aggregate("totals", key="key", n=count()))

    def write(batch: Any, batch_id: int) -> None:
        batch.count()
        ends.append((time.monotonic(), batch_id))

    seen: dict[str, Any] = {}
    with serving(db, 2) as settings:
        token, third = settings["token_file"], Path("third")
        third.mkdir()
        command = [sys.executable, "-m", "recovery", "serve", str(third), "--at", ":0", "--token-file", str(token)]
        owner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            at = address_of(owner)
            driving = threading.Thread(target=_drive, args=(arguments, settings["owners"], at, token, ends, seen))
            driving.start()
            flow = recovery.Flow("totals", build, sink=write)
            config = RecoveryConfig(db, snapshot_interval=5, backup_interval="1h", **settings)
            recovery.run(flow, config, trigger=0, master="local[2]")
            driving.join()
        finally:
            owner.terminate()
            owner.communicate()
    return {**_summary(seen, ends, rows), "wrong": _wrong(db, third, ends, rows), "versions": versions("pyspark")}


def _drive(
    arguments: dict[str, Any], owners: tuple[str, ...], at: str, token: Path, ends: list[tuple[float, int]],
    seen: dict[str, Any],
) -> None:  # fmt: skip
    """Wait until all keys have a state, count, move, count, and end the run."""
    try:
        needed = -(-arguments["keys"] // arguments["rows"]) + 2
        while len(ends) < needed:
            time.sleep(0.05)
        seen["counts_s"] = time.monotonic()
        _watch(arguments["watch_s"], ends)
        seen["begins_s"] = time.monotonic()
        named = [word for owner in owners for word in ("--owner", owner)]
        done = subprocess.run(
            [sys.executable, "-m", "recovery", "owners", "move", "0", "2", "--to", at, *named,
             "--token-file", str(token), "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seen["ended_s"] = time.monotonic()
        seen["answer"] = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stdout + done.stderr}
        _watch(arguments["watch_s"], ends)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _watch(seconds: float, ends: list[tuple[float, int]]) -> None:
    """Wait so long, and for five micro-batches."""
    until_s, enough = time.monotonic() + seconds, len(ends) + 5
    while time.monotonic() < until_s or len(ends) < enough:
        time.sleep(0.05)


def _summary(seen: dict[str, Any], ends: list[tuple[float, int]], rows: int) -> dict[str, Any]:
    """The figures of the table."""
    answer = seen["answer"]
    if "error" in answer:
        raise RuntimeError(answer["error"])
    before = [end for end, _ in ends if seen["counts_s"] <= end <= seen["begins_s"]]
    after = [end for end, _ in ends if end >= seen["begins_s"]]
    gaps = [(later - earlier, earlier) for earlier, later in zip([before[-1], *after], after, strict=False)]
    pause_s, paused_s = max(gaps)
    sending = [end for end in after if end <= paused_s]
    return {
        "before_rows": rows * (len(before) - 1) / (before[-1] - before[0]),
        "during_rows": rows * len(sending) / (paused_s - before[-1]) if sending else 0.0,
        "batch_s": median(later - earlier for earlier, later in pairwise(before)),
        "pause_s": pause_s,
        "locked_s": answer["locked_s"],
        "seconds": answer["elapsed_s"],
        "moved_mb": sum(each["bytes"] for each in answer["moved"]) / 1e6,
    }


def _wrong(directory: Path, third: Path, ends: list[tuple[float, int]], rows: int) -> str:
    """What is wrong with the counts of all partitions, if anything is."""
    for path in third.glob("part-*"):
        path.rename(directory / path.name)
    seen = 0
    for path in directory.glob("part-*.sqlite3"):
        connection = apsw.Connection(str(path))
        for (value,) in connection.execute("SELECT ser_change FROM snaps WHERE step_id = 'totals'"):
            seen += sum(map(int, json.loads(value).values()))
        connection.close()
    wanted = rows * (max(batch for _, batch in ends) + 1)
    return "" if seen == wanted else f"{seen} rows were counted instead of {wanted}"
