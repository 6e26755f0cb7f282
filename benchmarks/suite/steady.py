"""A steady stream over many held keys, while epochs close and are folded, backed up and replicated: every pause of it.

A program appends lines to one file all the time; `format("appended")` reads what is there, a micro-batch each interval.
A duration is what Spark reports for the whole trigger. A pause is a duration of more than three times the median: the
JSON of a round says what went on then. What was kept is compared with what was written.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks import keyed
from benchmarks.harness import environments, table
from benchmarks.harness.processes import spent
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

CORES = 2
QUICK = ("--keys", "2_000", "--rows", "100", "--minutes", "0.5", "--skip-s", "10")
SESSION = (
    (12, (
        "--keys", "200_000", "--minutes", "2", "--skip-s", "30", "--backups", "20", "--repeat", "1", "--contenders",
        "-s 10s,-s 10s -b 10m --replicate and backups",
    )),
)  # fmt: skip
PAUSE = 3
"""A micro-batch is a pause if it takes more than so many medians."""
WRITES_S = 0.1
CONTENDERS: dict[str, dict[str, Any]] = {
    "-s 10s": {"interval_s": 10, "backup_s": 0, "copied": False},
    "-s 10s -b 10m --replicate and backups": {"interval_s": 10, "backup_s": 600, "copied": True},
    "-s 0": {"interval_s": 0, "backup_s": 0, "copied": False},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys that are held (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=2_000, help="lines in a second (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=20, help="of the stream (default: %(default)s)")
    parser.add_argument("--skip-s", type=float, default=120, help="seconds not counted (default: %(default)s)")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between micro-batches (default: %(default)s)")
    parser.add_argument("--backups", type=float, default=60, help="seconds between backups (default: %(default)s)")
    keyed.add_contenders(parser, tuple(CONTENDERS))


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    given = {name: getattr(arguments, name) for name in ("keys", "rows", "minutes", "skip_s", "every", "backups")}
    contenders = [
        Contender(name, environments.own_python(), f"{__name__}:measure", {**CONTENDERS[name], **given})
        for name in arguments.contenders
    ]

    def check(_: Contender, answer: dict[str, Any], __: Path) -> str | None:
        return answer["wrong"] or None

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured."""
    rows = []
    for each in table.summarise(measurements):

        def shown(name: str, each: table.Summary = each) -> str:
            return table.milliseconds(each.middle(lambda run: run.answer[name]))

        rows.append(
            (
                each.contender,
                shown("seconds"),
                shown("p99_s"),
                shown("most_s"),
                table.count(each.middle(lambda run: len(run.answer["pauses"]))),
                table.count(each.middle(lambda run: len(run.answer["durations_s"]))),
                shown("cpu_s"),
                table.count(each.middle(lambda run: run.answer["epochs"])),
                "correct" if each.problem is None else "failed",
            )
        )
    return Report(
        name="steady",
        headers=("run", "median ms", "99 % ms", "most ms", "pauses", "micro-batches", "CPU ms", "epochs", "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys are held, {arguments.rows:,} lines a second at random keys, a micro-batch each "
            f"{arguments.every:g} s for {arguments.minutes:g} minutes; the first {arguments.skip_s:g} s do not "
            f"count; a backup each {arguments.backups:g} s. Medians over {arguments.repeat} rounds. CPU ms: all "
            f"processes, the writer and the backups included, for each micro-batch. A pause takes more than {PAUSE} "
            "medians.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: runs one of the contenders."""
    from benchmarks.contenders.recovery_totals import appended_flow, versions, write_totals
    from recovery import RecoveryConfig, init_partitions, start
    from recovery.spark.jvm.session import create_session

    directory, lines, writer = Path("recovery"), Path("lines.txt"), _Writer(arguments["keys"], arguments["rows"])
    init_partitions(directory, CORES)
    writer.begin(lines)
    conf = {
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.streaming.numRecentProgressUpdates": "1000000",
    }
    spark = create_session("steady", master=f"local[{CORES}]", conf=conf)
    config = RecoveryConfig(
        directory, snapshot_interval=arguments["interval_s"], backup_interval=arguments["backup_s"],
        replicate="replica" if arguments["copied"] else None,
    )  # fmt: skip
    flow = appended_flow(str(lines), 1 << 30)
    running = start(flow, config, spark=spark, trigger=arguments["every"])
    query, ends_s = running.streaming_query, time.time() + arguments["minutes"] * 60
    while time.time() < ends_s and not query.recentProgress:
        time.sleep(0.1)
    counted_s = time.time() + arguments["skip_s"]
    writing = threading.Thread(target=writer.write, args=(lines,), name="writer")
    writing.start()
    backups: list[tuple[float, float, int]] = []
    before = None
    next_s = time.time() + arguments["backups"]
    while time.time() < ends_s and running.is_active:
        if before is None and time.time() >= counted_s:
            before = spent()
        if arguments["copied"] and time.time() >= next_s:
            next_s, began_s = time.time() + arguments["backups"], time.time()
            done = subprocess.run([sys.executable, "-m", "recovery", "backup", str(directory), "copies"])
            backups.append((began_s, time.time(), done.returncode))
        time.sleep(0.1)
    used = None if before is None else spent() - before
    writer.over.set()
    writing.join()
    # What was written last is read before the end.
    query.processAllAvailable()
    running.stop()
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    epochs, found = running.summary.epochs, versions(spark)
    spark.stop()
    write_totals(directory, Path("totals"))
    timed = [each for each in progress if counted_s <= _began_s(each) < ends_s]
    durations_s = [each["durationMs"]["triggerExecution"] / 1000 for each in timed]
    wrong = writer.wrong(Path("totals")) or next((f"a backup ended with {code}" for _, _, code in backups if code), "")
    if used is None or len(durations_s) < 2:
        return {"seconds": 0.0, "wrong": "the time was over before the stream was steady"}
    middle = median(durations_s)
    pauses = [
        {
            **each["durationMs"],
            "at_s": _began_s(each),
            "rows": each["numInputRows"],
            "in_backup": _within(each, backups),
        }
        for each in timed
        if each["durationMs"]["triggerExecution"] > PAUSE * middle * 1000
    ]
    return {
        "seconds": middle,
        "p99_s": quantiles(durations_s, n=100, method="inclusive")[-1],
        "most_s": max(durations_s),
        "pauses": pauses,
        "durations_s": durations_s,
        "cpu_s": used.cpu_s / len(durations_s),
        "epochs": epochs,
        "backups": backups,
        "wrong": wrong,
        "versions": found,
    }


def _began_s(progress: Any) -> float:
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def _within(progress: Any, backups: Sequence[tuple[float, float, int]]) -> bool:
    """Whether a backup ran during a micro-batch."""
    began_s = _began_s(progress)
    ended_s = began_s + progress["durationMs"]["triggerExecution"] / 1000
    return any(begin_s < ended_s and end_s > began_s for begin_s, end_s, _ in backups)


class _Writer:
    """Appends lines `key,value` to a file, and knows what must come out."""

    def __init__(self, keys: int, rows: int) -> None:
        """rows: in a second."""
        self._keys, self._rows = keys, rows
        self._counts: Counter[int] = Counter()
        self._totals: Counter[int] = Counter()
        self._chance = random.Random(1)
        self.over = threading.Event()

    def begin(self, path: Path) -> None:
        """Write every key once."""
        self._append(path, range(self._keys))

    def write(self, path: Path) -> None:
        """Append lines until it is over."""
        next_s = time.time()
        while not self.over.wait(max(0.0, next_s - time.time())):
            next_s += WRITES_S
            self._append(path, (self._chance.randrange(self._keys) for _ in range(int(self._rows * WRITES_S))))

    def wrong(self, totals: Path) -> str:
        """What is wrong with the totals that were kept; empty: nothing."""
        found = {}
        for line in (totals / "part-0.csv").read_text().splitlines():
            key, count, total = line.split(",")
            found[int(key.removeprefix("key-"))] = int(count), int(total)
        differing = sum(found.get(key) != (count, self._totals[key]) for key, count in self._counts.items())
        return f"{differing} keys are wrong" if differing or len(found) != len(self._counts) else ""

    def _append(self, path: Path, keys: Any) -> None:
        lines = []
        for key in keys:
            value = self._chance.randrange(10, 100)
            self._counts[key] += 1
            self._totals[key] += value
            lines.append(f"key-{key:07},{value}\n")
        with path.open("a") as file:
            file.write("".join(lines))
