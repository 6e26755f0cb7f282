"""Many partitions at many owners, without Spark: calls, bytes, processor time and memory, and what gives way first.

Each owner is real: the process that answers tasks, and beside it one that does what the driver asks of its partitions.
The tasks of all cores are simulated by their calls: in each micro-batch a task of min(partitions, cores) reads the
states of its keys and applies new ones, a call for each owner that it needs. Every core keeps a connection to every
owner, because any task may run on any core. States are checked: each is the number of its key's micro-batches.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

STEP = "counts"
KEY = "k{:010}"
KEY_CHARS = 11
CHUNK = 8192
"""Keys of a chunk of changes, as tasks make them."""
ASKING = 64
"""Threads that ask the hosts, which answer at the same time."""
QUICK = ("--partitions", "12", "--owners", "3", "--keys", "3000", "--cores", "6", "--touched", "600", "--batches", "2")
LARGE = (1_000_000_000, 50_000_000, 150_000_000)
"""What the report extrapolates to: keys, keys of a micro-batch, and keys of an epoch."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--partitions", type=int, default=120, help="in all (default: %(default)s)")
    parser.add_argument("--owners", type=int, default=6, help="with as many partitions each (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=300_000, help="with state (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=48, help="of all executors (default: %(default)s)")
    parser.add_argument("--touched", type=int, default=60_000, help="keys of a micro-batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=4, help="micro-batches after the first (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    sizes = {name: getattr(arguments, name) for name in ("partitions", "owners", "keys", "cores", "touched", "batches")}
    if arguments.partitions % arguments.owners:
        raise SystemExit("--partitions has to be a multiple of --owners")
    contender = Contender("owners", environments.own_python(), f"{__name__}:measure", sizes)

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(sizes, rounds.measure([contender], check))


def report(sizes: dict[str, int], measurements: Sequence[Measurement]) -> Report:
    """What was measured, and what it would be with a billion keys."""
    [summary] = table.summarise(measurements)

    def of(name: str) -> float:
        return summary.middle(lambda run: float(run.answer[name])) or 0.0

    keys, touched, epoch = LARGE
    owners = sizes["owners"]
    rows: list[tuple[str, str]] = [
        ("start: describe and begin all partitions, CPU s", f"{of('start_s'):.2f}"),
        ("micro-batch: calls of all tasks", f"{of('calls'):.0f}"),
        ("micro-batch: calls of the driver", f"{of('driver_calls'):.0f}"),
        ("micro-batch: bytes a key, both ways", f"{of('bytes') / sizes['touched']:.1f}"),
        ("micro-batch: task, CPU µs a key", f"{of('task_s') / sizes['touched'] * 1e6:.2f}"),
        ("micro-batch: owner, CPU µs a key", f"{of('owner_s') / sizes['touched'] * 1e6:.2f}"),
        ("micro-batch: open and counts, CPU ms of an owner", f"{of('host_s') / owners * 1e3:.1f}"),
        ("first micro-batch (all keys): owner, CPU µs a key", f"{of('fill_owner_s') / sizes['keys'] * 1e6:.2f}"),
        ("close: owner, CPU µs a key of the epoch", f"{of('close_s') / sizes['touched'] * 1e6:.2f}"),
        ("first close (all keys): owner, CPU µs a key", f"{of('fill_close_s') / sizes['keys'] * 1e6:.2f}"),
        ("memory of an owner's two processes, MB", f"{of('memory') / 1e6:.0f}"),
        ("… for a connection more, kB", f"{of('connection_memory') / 1e3:.1f}"),
        ("threads of an owner", f"{of('threads'):.0f}"),
        ("open files of an owner's two processes", f"{of('files'):.0f}"),
        ("bytes of files a key", f"{of('file_bytes') / sizes['keys']:.0f}"),
        ("state", "correct" if summary.problem is None else "failed"),
    ]

    def span(first: float, later: float, keys: int) -> str:
        """What so many keys cost one owner, by the figures of the first micro-batch and of the later ones."""
        each = sorted(found / count * keys / owners for found, count in zip((first, later), counts, strict=True))
        return " to ".join(f"{value:.1f}" for value in each)

    counts = sizes["keys"], sizes["touched"]
    return Report(
        name="scale",
        headers=("what", "measured"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{sizes['partitions']:,} partitions at {owners} owners, {sizes['keys']:,} keys of {KEY_CHARS} bytes, "
            f"{sizes['cores']} cores with a connection to every owner, {sizes['touched']:,} keys in each of "
            f"{sizes['batches']} micro-batches, with an epoch after each. Medians over the micro-batches; the first "
            "one has all keys, as new ones.",
            f"Extrapolated to {keys:,} keys at as many owners and partitions, by the first micro-batch and by the "
            f"later ones: a micro-batch of {touched:,} keys costs each owner "
            f"{span(of('fill_owner_s'), of('owner_s'), touched)} s of processor time and "
            f"{of('bytes') / sizes['touched'] * touched / owners / 1e6:,.0f} MB on the wire; the close of {epoch:,} "
            f"keys {span(of('fill_close_s'), of('close_s'), epoch)} s; its files take "
            f"{of('file_bytes') / sizes['keys'] * keys / owners / 1e9:.1f} GB.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: all of one run."""

    sizes = Sizes(**arguments)
    fleet = Fleet(sizes)
    try:
        found = fleet.run()
    finally:
        fleet.close()
    return {"versions": versions(), "wrong": fleet.wrong, "seconds": found["task_s"] + found["owner_s"], **found}


@dataclass(frozen=True, slots=True)
class Sizes:
    """See `add_arguments`."""

    partitions: int
    owners: int
    keys: int
    cores: int
    touched: int
    batches: int


class Fleet:
    """All owners and all tasks."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.wrong = ""
        self._context = multiprocessing.get_context("spawn")
        self._asking = ThreadPoolExecutor(ASKING)
        each = sizes.partitions // sizes.owners
        self._each = each
        self.hosts = [Host(self._context, number, each) for number in range(sizes.owners)]
        self.start_s = sum(self._ask("begin"))
        self._cores: list[list[Any]] = []

    def run(self) -> dict[str, float]:
        """Fill all partitions, then run micro-batches with an epoch each; return what it took."""
        sizes = self.sizes
        empty = self._usage()
        self._connect()
        connected = self._usage()
        fill = self._micro_batch(0, range(sizes.keys), 1)
        samples = []
        for batch in range(1, sizes.batches + 1):
            first = (batch - 1) * sizes.touched % max(1, sizes.keys - sizes.touched + 1)
            samples.append(self._micro_batch(batch, range(first, first + sizes.touched), None))
        full = self._usage()
        middle = {name: median(sample[name] for sample in samples) for name in samples[0]}
        return {
            **middle,
            "start_s": self.start_s,
            "fill_owner_s": fill["owner_s"],
            "fill_close_s": fill["close_s"],
            "memory": full["memory"],
            "connection_memory": (connected["memory"] - empty["memory"]) / sizes.cores,
            "threads": full["threads"],
            "files": full["files"],
            "file_bytes": sum(self._ask("file_bytes")),
        }

    def _connect(self) -> None:
        """Connect every core to every owner, and make it known there with a call that reads nothing."""
        from recovery.base.ids import BatchId, PartitionIndex, StepId
        from recovery.wire.client import Lines, OwnerTaskStore

        class OfCore(OwnerTaskStore):
            """With connections of its own, as another worker process has them."""

            def __init__(self, address: Any, key: bytes) -> None:
                super().__init__(address, key)
                self.own = Lines(address, key)

            @property
            def _lines(self) -> Lines:
                return self.own

        self._ask("open", 0)
        for _ in range(self.sizes.cores):
            stores = [OfCore(host.address, host.key) for host in self.hosts]
            for store in stores:
                store.read(StepId(STEP), BatchId(0), {PartitionIndex(0): ()})
            self._cores.append(stores)

    def _micro_batch(self, batch: int, numbers: Sequence[int], expected: int | None) -> dict[str, float]:
        """Run the tasks of a micro-batch, each on another core, and close an epoch."""
        host_s = sum(self._ask("open", batch))
        sent = self._sent()
        owner_before_s, task_s = self._owner_s(), 0.0
        calls = 0
        for number, task in enumerate(self._tasks(numbers)):
            stores = self._cores[(number + batch) % len(self._cores)]
            began_s = time.process_time()
            for owner, wanted in task.items():
                self._task(stores[owner], batch, wanted, expected)
                calls += 2
            task_s += time.process_time() - began_s
        owner_s = self._owner_s() - owner_before_s
        keys = sum(self._ask("counts", batch, of="keys"))
        if keys != len(numbers):
            self.wrong = self.wrong or f"micro-batch {batch}: {keys} keys were applied, not {len(numbers)}"
        host_s += sum(answer["cpu_s"] for answer in self._answers)
        return {
            "calls": calls,
            "driver_calls": 2 * len(self.hosts),
            "bytes": self._sent() - sent,
            "task_s": task_s,
            "owner_s": owner_s,
            "host_s": host_s,
            "close_s": sum(self._ask("close", batch)),
        }

    def _tasks(self, numbers: Sequence[int]) -> Iterator[dict[int, dict[int, tuple[str, ...]]]]:
        """Yield the keys of each task: by owner, and by the partition there."""
        sizes = self.sizes
        count = min(sizes.partitions, sizes.cores)
        tasks: list[dict[int, dict[int, list[str]]]] = [defaultdict(lambda: defaultdict(list)) for _ in range(count)]
        for key in map(KEY.format, numbers):
            index = crc32(key.encode()) % sizes.partitions
            tasks[index % count][index // self._each][index % self._each].append(key)
        for task in tasks:
            yield {owner: {part: tuple(keys) for part, keys in parts.items()} for owner, parts in task.items()}

    def _task(self, store: Any, batch: int, wanted: dict[int, tuple[str, ...]], expected: int | None) -> None:
        """Read the states of a task's keys at one owner, and apply the next ones."""
        from recovery.storage.seam import BatchCount, Changes

        found = store.read(STEP, batch, wanted)
        changes = {}
        for part, keys in wanted.items():
            states = [int(state or 0) + 1 for state in found[part]]
            if expected is not None and any(state != expected for state in states):
                self.wrong = self.wrong or f"micro-batch {batch}: not all states of partition {part} are {expected}"
            packed = tuple(f"{key}{state}" for key, state in zip(keys, states, strict=True))
            changes[part] = [
                Changes(packed[begin : begin + CHUNK], False, KEY_CHARS) for begin in range(0, len(packed), CHUNK)
            ]
        count = sum(map(len, wanted.values()))
        store.apply(STEP, batch, changes, BatchCount(count, count))

    def _ask(self, verb: str, *given: Any, of: str = "cpu_s") -> list[Any]:
        """Ask all hosts at the same time; return one number of each answer."""
        self._answers = list(self._asking.map(lambda host: host.ask(verb, *given), self.hosts))
        return [answer[of] for answer in self._answers]

    def _owner_s(self) -> float:
        return sum(_cpu_s(host.owner_pid) for host in self.hosts)

    def _sent(self) -> int:
        return sum(store.traffic()[0] for store in chain.from_iterable(self._cores))

    def _usage(self) -> dict[str, float]:
        """Memory, threads and open files of an owner, on average."""
        pids = [(host.owner_pid, host.pid) for host in self.hosts]
        count = len(pids)
        return {
            "memory": sum(_memory(pid) for pair in pids for pid in pair) / count,
            "threads": sum(_entries(owner, "task") for owner, _ in pids) / count,
            "files": sum(_entries(pid, "fd") for pair in pids for pid in pair) / count,
        }

    def close(self) -> None:
        """End all processes."""
        for host in self.hosts:
            host.close()
        self._asking.shutdown()


class Host:
    """One owner as the driver sees it: a process that has the partitions, and the owner's process beside it."""

    def __init__(self, context: Any, number: int, partitions: int) -> None:
        self.key = os.urandom(32)
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, number, partitions, self.key))
        self._process.start()
        self.pid = self._process.pid
        self.owner_pid = 0
        self.address: Any = None

    def ask(self, verb: str, *given: Any) -> dict[str, Any]:
        """Let the host do something; return its answer."""
        self._pipe.send((verb, *given))
        answer: dict[str, Any] = self._pipe.recv()
        if verb == "begin":
            from recovery.wire.address import OwnerAddress

            self.owner_pid, self.address = answer["pid"], OwnerAddress.parsed(answer["address"])
        return answer

    def close(self) -> None:
        """End both processes."""
        self._pipe.close()
        self._process.join(30)
        self._process.kill()


def _serve(pipe: Connection, number: int, partitions: int, key: bytes) -> None:
    """What a host does, until its pipe ends."""
    host = _Partitions(number, partitions, key)
    try:
        while True:
            verb, *given = pipe.recv()
            before_s = time.process_time()
            answer = getattr(host, verb)(*given)
            pipe.send({"cpu_s": time.process_time() - before_s, **answer})
    except EOFError:
        host.end()


class _Partitions:
    """The partitions of one host."""

    def __init__(self, number: int, partitions: int, key: bytes) -> None:
        self._directory = Path(f"owner-{number}")
        self._count, self._key, self._epoch = partitions, key, 0
        self._owner: Any = None

    def begin(self) -> dict[str, Any]:
        """Make the partitions, begin an execution, and start the owner's process."""
        import json

        from recovery.base.ids import ExecutionNumber, StepId
        from recovery.host.open_files import allow_open_files
        from recovery.owner.process import OwnerProcess
        from recovery.planning.resume import plan_resume
        from recovery.planning.values import Execution
        from recovery.storage.initialize import init_partitions
        from recovery.storage.scan import scan
        from recovery.storage.sqlite.store import FilePartitions

        allow_open_files(self._count * 16)
        paths = init_partitions(self._directory, self._count)
        began_s = time.process_time()
        plan = plan_resume(scan(self._directory))
        self._epoch = plan.resume_epoch
        execution = Execution(
            ExecutionNumber(1), "benchmark", "benchmark", self._epoch, 0, 1.0, 0.0, "host", os.getpid(), "0"
        )
        self._lease = execution.lease
        self._store = FilePartitions(paths, self._directory / "scratch")
        self._store.start(execution, [StepId(STEP)], plan.partitions)
        start_s = time.process_time() - began_s
        self._owner = OwnerProcess(
            self._store.address(self._lease), self._store.scratch, self._key, self._lease, self._count
        )
        return {"cpu_s": start_s, "pid": self._owner.pid, "address": json.loads(self._owner.address("127.0.0.1"))}

    def open(self, batch: int) -> dict[str, Any]:
        """The driver's call at the beginning of a micro-batch."""
        self._store.open(self._lease, batch)
        return {}

    def counts(self, batch: int) -> dict[str, Any]:
        """The driver's call at its end."""
        return {"keys": self._store.counts(self._lease, batch).keys}

    def close(self, batch: int) -> dict[str, Any]:
        """Close an epoch."""
        from recovery.storage.seam import CloseRequest

        request = CloseRequest(self._epoch, batch, batch, batch, max(0, self._epoch - 1), {})
        self._store.close(self._lease, [request] * self._count)
        self._store.checkpoint()
        self._epoch += 1
        return {}

    def file_bytes(self) -> dict[str, Any]:
        """The size of the partitions, in place of processor time."""
        return {"cpu_s": sum(path.stat().st_size for path in self._directory.glob("*.sqlite3*"))}

    def end(self) -> None:
        """End the owner's process."""
        if self._owner is not None:
            self._owner.stop()
            self._store.release()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _entries(pid: int, directory: str) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/{directory}").iterdir())
