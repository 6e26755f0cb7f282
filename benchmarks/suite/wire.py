"""What it costs that tasks reach their partitions through an owner's process: processor time beside local files.

Each case runs the tasks of micro-batches of a step in Python, one row a key, without Spark: reading, calling `update`,
applying. With an owner, its process counts as well. What Spark does around a task, and closing, are the same in both.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

STEP = "totals"
PARTITIONS = 2
QUICK = ("--keys", "400", "--batches", "5")


@dataclass(frozen=True, slots=True)
class Case:
    """keys: of a task."""

    name: str
    kind: str
    keys: int
    batches: int


def cases(keys: Sequence[int], batches: int | None) -> list[Case]:
    """All of them: each number of keys with files, and with an owner."""
    return [
        Case(f"{count:,} keys, {kind}", kind, count, batches or max(10, min(300, 1_000_000 // count)))
        for count in keys
        for kind in ("files", "owner")
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[100_000, 20_000, 400], help="keys of a task (default: %(default)s)"
    )
    parser.add_argument("--batches", type=int, help="micro-batches (default: a million keys, at least 10)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    chosen = cases(arguments.keys, arguments.batches)
    contenders = [
        Contender(
            case.name,
            environments.own_python(),
            f"{__name__}:measure",
            {"kind": case.kind, "keys": case.keys, "batches": case.batches},
        )
        for case in chosen
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(chosen, rounds.measure(contenders, check), arguments.repeat)


def report(chosen: Sequence[Case], measurements: Sequence[Measurement], repeat: int) -> Report:
    """The table of what was measured."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    files = {case.keys: summaries[case.name].seconds for case in chosen if case.kind == "files"}
    rows = []
    for case in chosen:
        summary = summaries[case.name]

        def a_key(name: str, summary: table.Summary = summary, case: Case = case) -> str:
            found = summary.middle(lambda run: run.answer[name])
            return table.NONE if found is None else f"{found / case.keys * 1e6:.2f}"

        sent = summary.middle(lambda run: run.answer["sent_bytes"])
        least = summary.middle(lambda run: run.answer["least_bytes"])
        rows.append(
            (
                case.name,
                a_key("task_s"),
                a_key("owner_s"),
                table.ratio(summary.seconds, files[case.keys]),
                f"{sent / case.keys:.1f}" if sent else table.NONE,
                table.ratio(sent, least) if sent else table.NONE,
                f"{summary.middle(lambda run: run.answer['calls']) or 0:.0f}",
                "correct" if summary.problem is None else "failed",
            )
        )
    return Report(
        name="wire",
        headers=("case", "task µs a key", "owner µs a key", "× files", "bytes a key", "× least", "calls", "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"Medians over {repeat} interleaved rounds of the processor time of a task, of its process and the "
            "owner's; in a round the median over its micro-batches. State `[n,total]`, keys of 11 bytes, two "
            "partitions; tasks of fewer than 1,000 keys are gathered ones, which have the keys of both.",
            "`× least` compares the bytes on the wire with twice the key, twice the state and three bytes.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one case."""
    found = _Tasks(arguments["kind"], arguments["keys"])
    try:
        samples = [found.run_batch(batch) for batch in range(arguments["batches"])]
    finally:
        found.close()
    # The first ones open files and fill caches.
    later = samples[len(samples) // 5 :]

    middle = {name: median(each[name] for each in later) for name in later[0]}
    return {
        "versions": versions(),
        "seconds": middle["task_s"] + middle["owner_s"],
        "wrong": found.wrong,
        **middle,
    }


class _Tasks:
    """The tasks of one step on partitions, which they reach as files or through an owner."""

    def __init__(self, kind: str, keys: int) -> None:
        from pyspark.sql import types as T

        from recovery.base.ids import ExecutionNumber, StepId
        from recovery.owner.process import OwnerProcess
        from recovery.planning.resume import plan_resume
        from recovery.planning.values import Execution
        from recovery.spark.steps.definition import StepDefinition
        from recovery.storage.initialize import init_partitions
        from recovery.storage.scan import scan
        from recovery.storage.sqlite.store import FilePartitions

        paths = init_partitions("recovery", PARTITIONS)
        plan = plan_resume(scan(Path("recovery")))
        self.store = FilePartitions(paths, Path("recovery/scratch"))
        execution = Execution(
            ExecutionNumber(1), "benchmark", "benchmark", plan.resume_epoch, 0, 1.0, 0.0, "host", os.getpid(), "0"
        )
        self.store.start(execution, [StepId(STEP)])
        self.lease = execution.lease
        self.task_key = os.urandom(32)
        self.owner: OwnerProcess | None = None
        self.address = self.store.address(self.lease)
        if kind == "owner":
            self.owner = OwnerProcess(self.address, self.store.scratch, self.task_key, self.lease, PARTITIONS)
            self.address = self.owner.address("127.0.0.1")
        self.gathered = keys < 1000
        self.keys = _keys(keys, None if self.gathered else 0)
        self.wrong = ""
        self.calls = 0
        self.definition = StepDefinition(
            step_id=StepId(STEP),
            token="token",
            update=_update,
            state_type=None,
            state_schema=None,
            timeouts=False,
            needs_time=False,
            columns=("key", "value"),
            key_columns=(0,),
            key_names=("key",),
            key_types=(T.StringType(),),
            key_in_place=True,
            sorted_by_spark=True,
            output=T.StructType([T.StructField("n", T.LongType())]),
            time_zone="UTC",
        )

    def run_batch(self, batch: int) -> dict[str, float]:
        """Run one task; what it took."""
        import pyarrow as pa

        from recovery.base.ids import BatchId
        from recovery.spark.steps.definition import EVERYWHERE, HASH_BITS, ROUTE
        from recovery.spark.tasks.run_tasks import run_tasks
        from recovery.spark.tasks.step_task import StepTask

        self.store.open(self.lease, BatchId(batch))
        place = EVERYWHERE if self.gathered else 0
        places = [place << HASH_BITS | crc32(key.encode()) for key in self.keys]
        rows = pa.table(
            {"key": self.keys, "value": pa.array([7] * len(self.keys)), ROUTE: pa.array(places, pa.int64())}
        )
        batches = rows.to_batches(max_chunksize=10_000)
        bytes_before, calls_before = self._sent()
        owner_before_s, began_s = self._owner_s(), time.process_time()
        output = 0
        for found in run_tasks(self.definition, iter(batches), self._connect, BatchId(batch), StepTask, PARTITIONS):
            output += sum(found.column(0).to_pylist())
        task_s = time.process_time() - began_s
        if output != len(self.keys) * (batch + 1):
            self.wrong = f"micro-batch {batch}: the counts of the keys add up to {output}"
        sent_bytes, calls = self._sent()
        state = len(f"[{batch},{7 * batch}]")
        return {
            "task_s": task_s,
            "owner_s": self._owner_s() - owner_before_s,
            "sent_bytes": sent_bytes - bytes_before,
            "least_bytes": sum(2 * len(key) + 2 * state + 3 for key in self.keys),
            "calls": calls - calls_before,
        }

    def _connect(self, keep: bool) -> Any:
        from recovery.storage.reach import reach

        return reach(self.address, keep, self.task_key)

    def _sent(self) -> tuple[int, int]:
        """Bytes and calls on the wire so far."""
        if self.owner is None:
            return 0, 0
        from recovery.storage.reach import reach

        return reach(self.address, False, self.task_key)[0].traffic()  # type: ignore[attr-defined]

    def _owner_s(self) -> float:
        """Processor time of the owner's process so far."""
        if self.owner is None:
            return 0.0
        tasks = Path(f"/proc/{self.owner.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def close(self) -> None:
        """End the owner."""
        if self.owner is not None:
            self.owner.stop()
        self.store.release()


def _keys(count: int, partition: int | None) -> list[str]:
    """Sorted keys, of one partition or of any."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        key = f"key{number * 7919 % 100_000_000:08}"
        number += 1
        if partition is None or crc32(key.encode()) % PARTITIONS == partition:
            found.append(key)
    return sorted(found)


def _update(key: Any, rows: list[Any], state: Any) -> Any:
    """Count a key's rows and add up their values."""
    n, total = state.get if state.exists else (0, 0)
    for row in rows:
        n, total = n + 1, total + row.value
    state.update([n, total])
    return [(n,)]
