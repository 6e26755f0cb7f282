"""Bytewax's totals per key, as worker threads or processes, with recovery partitions.

Bytewax has no micro-batches: it reads the same files as a partitioned source. What gives it its best time here: lines
read in large blocks, parsed a block at a time, and the operator that all of its stateful ones are built on.
"""

# mypy: disable-error-code="import-not-found, misc"
# Bytewax is not in the environment that is checked.
from __future__ import annotations

import json
import os
import pickle
import platform
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contenders.bytewax_workers import in_processes, work

if TYPE_CHECKING:
    from benchmarks.harness.processes import Spent

BLOCK_BYTES = 1 << 20
PAUSE_S = 0.5
SAME_S = 0.1
"""By how much the processor time of pauses differs in which nothing is left to write."""
STEP = "totals"
HELD = Counter(keys=0, n=0)
"""Keys of this process at the end of the input, and the sum of their counts."""


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the flow; seconds from started workers, with all imported, to the end of all."""
    from bytewax.recovery import init_db_dir

    recovery = Path("recovery")
    recovery.mkdir()
    init_db_dir(recovery, arguments["workers"])
    seconds = _seconds(arguments)
    wrong = None
    if arguments["interval_s"] is None:
        held = _held()
        if held["keys"] * held["n"] == 0 or held["n"] != arguments["events"]:
            wrong = f"held {held}"
    else:
        _write_totals(recovery, Path(arguments["totals"]))
    return {
        "seconds": seconds,
        "wrong": wrong,
        "versions": {"python": platform.python_version(), "bytewax": version("bytewax")},
        "state_bytes": sum(path.stat().st_size for path in recovery.iterdir()),
    }


def resume(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the flow, then resumes without new input: seconds from started workers to the end of that."""
    first = measure({**arguments, "totals": "first"})
    seconds = _seconds(arguments)
    _write_totals(Path("recovery"), Path(arguments["totals"]))
    return {**first, "seconds": seconds, "closed_s": seconds, "store_bytes": first["state_bytes"]}


def written(arguments: dict[str, Any]) -> dict[str, Any]:
    """Runs the flow with each file an epoch of its own: what all processes took from file number `first` on."""
    given = {**arguments, "interval_s": 0, "backup_s": 0, "processes": True, "one_by_one": True}
    answer = measure(given)
    before, after = (json.loads(Path(f"spent-{place}.json").read_text()) for place in ("first", "end"))
    used = {name: after[name] - before[name] for name in after}
    return {
        **answer,
        "counted_cpu_s": used["cpu_s"],
        "written_bytes": used["written_bytes"],
        "kept_bytes": answer["state_bytes"],
    }


def _seconds(arguments: dict[str, Any]) -> float:
    """Runs the flow to its end."""
    return in_processes(arguments, __spec__.name).seconds if arguments["processes"] else _in_threads(arguments)


def _in_threads(arguments: dict[str, Any]) -> float:
    flow, settings = _prepare(arguments)
    from bytewax.run import cli_main

    started_s = time.perf_counter()
    cli_main(flow, workers_per_process=arguments["workers"], **settings)
    seconds = time.perf_counter() - started_s
    _tell_held(0)
    return seconds


def _prepare(arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    from bytewax.recovery import RecoveryConfig

    settings = {}
    if arguments["interval_s"] is not None:
        settings = {
            "epoch_interval": timedelta(seconds=arguments["interval_s"]),
            "recovery_config": RecoveryConfig(Path("recovery"), timedelta(seconds=arguments["backup_s"])),
        }
    first = arguments["first"] if arguments.get("one_by_one") else None
    return build(Path(arguments["files"]), first), settings


def build(files: Path, first: int | None = None) -> Any:
    """The flow. first: one worker reads all files, one after the other and each whole, and notes what all processes had
    taken before this one; None: all workers read."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import StatefulBatchLogic
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    class Lines(StatefulSourcePartition[bytes, int]):
        def __init__(self, path: Path, position: int | None) -> None:
            self._file = path.open("rb")
            self._file.seek(position or 0)

        def next_batch(self) -> list[bytes]:
            lines = self._file.readlines(BLOCK_BYTES)
            if not lines:
                raise StopIteration
            return lines

        def snapshot(self) -> int:
            return self._file.tell()

        def close(self) -> None:
            self._file.close()

    class Files(FixedPartitionedSource[bytes, int]):
        def list_parts(self) -> list[str]:
            return sorted(path.name for path in files.iterdir())

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Lines:
            return Lines(files / for_part, resume_state)

    class WholeFiles(StatefulSourcePartition[bytes, int]):
        """It notes what the processes have taken before a file and at the end, when all before that is durable: at the
        end of the input, Bytewax writes every key once more."""

        def __init__(self, done: int | None) -> None:
            self._done = done or 0
            self._left = sorted(files.iterdir())[self._done :]
            self._pauses: list[Spent] = []

        def next_batch(self) -> list[bytes]:
            place = "end" if not self._left else "first" if self._done == first else None
            if place is not None and not self._settled(place):
                return []
            if not self._left:
                raise StopIteration
            self._done, self._pauses = self._done + 1, []
            return self._left.pop(0).read_bytes().splitlines()

        def next_awake(self) -> datetime | None:
            return datetime.now(UTC) + timedelta(seconds=PAUSE_S) if self._pauses else None

        def _settled(self, place: str) -> bool:
            """Whether three pauses in turn took as much processor time: the epochs of a pause take some, too. What was
            taken up to the first of them counts."""
            from benchmarks.harness.processes import spent

            self._pauses = [*self._pauses[-3:], spent(os.getppid())]
            took_s = [after.cpu_s - before.cpu_s for before, after in pairwise(self._pauses)]
            if len(took_s) < 3 or max(took_s) - min(took_s) > SAME_S:
                return False
            Path(f"spent-{place}.json").write_text(json.dumps(asdict(self._pauses[0])))
            return True

        def snapshot(self) -> int:
            return self._done

    class OneByOne(FixedPartitionedSource[bytes, int]):
        def list_parts(self) -> list[str]:
            return ["files"]

        def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> WholeFiles:
            return WholeFiles(resume_state)

    class Totals(StatefulBatchLogic[int, tuple[int, int], list[int]]):
        __slots__ = ("n", "total")

        def __init__(self, state: list[int] | None) -> None:
            self.n, self.total = state or (0, 0)

        def on_batch(self, values: list[int]) -> tuple[Iterable[tuple[int, int]], bool]:
            n, total = self.n, self.total
            for value in values:
                n += 1
                total += value
            self.n, self.total = n, total
            return ((n, total),), False

        def on_eof(self) -> tuple[Iterable[tuple[int, int]], bool]:
            HELD["keys"] += 1
            HELD["n"] += self.n
            return (), False

        def snapshot(self) -> list[int]:
            return [self.n, self.total]

    class Discarded(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            pass

    class Discard(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Discarded:
            return Discarded()

    def parse(lines: list[bytes]) -> list[tuple[str, int]]:
        pairs = [line.decode().split(",") for line in lines]
        return [(key, int(value)) for key, value in pairs]

    flow = Dataflow("keyed")
    lines = op.input("lines", flow, Files() if first is None else OneByOne())
    totals = op.stateful_batch(STEP, op.flat_map_batch("parse", lines, parse), Totals)
    op.output("discard", totals, Discard())
    return flow


def _tell_held(number: int) -> None:
    Path(f"held-{number}.json").write_text(json.dumps(HELD))


def _held() -> Counter[str]:
    """What all processes held at the end, together."""
    told = [Counter(json.loads(path.read_text())) for path in Path.cwd().glob("held-*.json")]
    return sum(told, Counter())


def _write_totals(recovery: Path, target: Path) -> int:
    """The newest snapshot of every key, read from the recovery partitions."""
    states: dict[str, list[int]] = {}
    for path in sorted(recovery.glob("part-*.sqlite3")):
        connection = sqlite3.connect(path)
        query = "SELECT state_key, ser_change, max(snap_epoch) FROM snaps WHERE step_id LIKE ? GROUP BY state_key"
        for key, change, _ in connection.execute(query, (f"%.{STEP}%",)):
            if key in states:
                raise RuntimeError(f"two partitions hold state of {key}")
            states[key] = pickle.loads(change)
        connection.close()
    target.mkdir()
    with (target / "part-0.csv").open("w") as file:
        file.writelines(f"{key},{n},{total}\n" for key, (n, total) in states.items())
    return len(states)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    work(given, _prepare)
    _tell_held(given["number"])
