"""Where the bytes come from that epochs write: by cause and by file, without Spark.

The flow of `amplification` with `-s 0`: a micro-batch that brings every key, then some that change all keys, one in a
hundred, or each of few keys. Each is closed as an epoch, by the closer of a run over partitions and deltas as a run has
them. Spark's own log, and the rows that Spark would read and shuffle, are not written here.
"""

from __future__ import annotations

import argparse
import random
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.processes import written_bytes
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

STEP = "totals"
PARTITIONS = 2
CAUSES = ("deltas", "closing", "folding", "measures", "checkpoints", "position", "end")
FILES = ("partitions", "their logs", "deltas", "the deltas' logs")
QUICK = ("--keys", "2_000", "--batches", "5")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=100_000, help="keys that are held (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=6, help="micro-batches after the first (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    keys = arguments.keys
    shapes = {
        "all keys": (keys, keys),
        "1 % of keys": (keys, max(1, keys // 100)),
        "counters": (max(1, keys // 200), max(1, keys // 200)),
    }
    contenders = [
        Contender(
            f"{name}{f', -b {kept:g} s' if kept else ''}",
            environments.own_python(),
            f"{__name__}:measure",
            {"held": held, "touched": touched, "batches": arguments.batches, "backup_interval_s": kept},
        )
        for name, (held, touched) in shapes.items()
        for kept in (0.0, 3600.0)
    ]

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(rounds.measure(contenders, check), arguments)


def report(measurements: Sequence[Measurement], arguments: argparse.Namespace) -> Report:
    """The table of what was measured: bytes for each changed key."""
    rows = []
    for each in table.summarise(measurements):

        def middle(group: str, name: str, each: table.Summary = each) -> float | None:
            return each.middle(lambda run: run.answer[group].get(name, 0) / run.answer["touched"])

        rows.append(
            (
                each.contender,
                *(table.count(middle("causes", name)) for name in ("all", *CAUSES)),
                *(table.count(middle("files", name)) for name in FILES),
                f"{(each.middle(lambda run: run.answer['close_cpu_s'] / run.answer['touched']) or 0) * 1e6:.1f}",
                f"{(each.middle(lambda run: run.answer['resume_cpu_s']) or 0) * 1e3:.0f}",
                "correct" if each.problem is None else "failed",
            )
        )
    return Report(
        name="written",
        headers=(
            "micro-batches change", "all", *CAUSES, *FILES, "CPU µs a key", "resume CPU ms", "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"Bytes for each changed key: {arguments.batches} epochs after one of all keys; medians over "
            f"{arguments.repeat} rounds; {PARTITIONS} partitions. By cause: pages that became dirty, as "
            "`write_bytes` of `/proc/self/io` counts them. By file: what SQLite wrote, in a run of its own; a page "
            "that is written twice before the system writes it to the disk counts twice there.",
            "`position`: the files of Spark's checkpoint that an epoch stores. `end`: closing the files. CPU is of "
            "deltas and epochs; resuming is planning, starting and reading a thousand states.",
        ],
    )  # fmt: skip


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child: by cause, then by file."""
    answer = _measured("by-cause", arguments, Causes())
    files = _by_file()
    with files as counted:
        again = _measured("by-file", arguments, Causes(), counted.clear)
    answer["files"] = dict(counted)
    answer["wrong"] = answer["wrong"] or again["wrong"]
    return {"seconds": answer["close_cpu_s"], "versions": versions(), **answer}


class Causes(Counter[str]):
    """Bytes written by cause."""

    @contextmanager
    def of(self, cause: str) -> Iterator[None]:
        """Count what is written meanwhile."""
        before = written_bytes()
        try:
            yield
        finally:
            self[cause] += written_bytes() - before


def _measured(
    name: str, arguments: dict[str, Any], causes: Causes, reset: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    held, touched, batches = arguments["held"], arguments["touched"], arguments["batches"]
    chance = random.Random(1)
    flow = Flow(Path(name), arguments["backup_interval_s"], causes)
    truth: dict[str, int] = {}
    flow.batch(truth, range(held))
    reset()
    causes.clear()
    began_s = _cpu_s()
    for _ in range(batches):
        flow.batch(truth, sorted(chance.sample(range(held), touched)))
    flow.end()
    close_cpu_s = _cpu_s() - began_s
    counted = dict(causes)
    began_s = _cpu_s()
    resumed = Flow(Path(name), arguments["backup_interval_s"], Causes())
    wrong = resumed.wrong(truth, held)
    resume_cpu_s = _cpu_s() - began_s
    resumed.end()
    return {
        "causes": {"all": sum(counted.values()), **counted},
        "touched": batches * touched,
        "close_cpu_s": close_cpu_s,
        "resume_cpu_s": resume_cpu_s,
        "wrong": wrong,
    }


class Flow:
    """One execution on partitions in a directory, as a run has it. What it writes is counted by cause."""

    def __init__(self, directory: Path, backup_interval_s: float, causes: Causes) -> None:
        from recovery.base.clock import SystemClock
        from recovery.base.ids import StepId
        from recovery.base.reserved import CHECKPOINT_STEP
        from recovery.checkpoint.capture import Capture
        from recovery.checkpoint.home import LocalHome
        from recovery.checkpoint.restore import restore
        from recovery.epochs.closer import ClosingHooks, ClosingSettings, EpochCloser
        from recovery.epochs.execution import new_execution
        from recovery.planning.resume import plan_resume
        from recovery.storage.initialize import init_partitions
        from recovery.storage.scan import scan
        from recovery.storage.sqlite.store import FilePartitions

        clock = SystemClock()
        if not directory.exists():
            init_partitions(directory, PARTITIONS)
        self._causes = causes
        self._step = StepId(STEP)
        plan = plan_resume(scan(directory))
        self.store = _counting(FilePartitions, causes)([each.path for each in plan.partitions], directory / "scratch")
        execution = new_execution(
            plan, "benchmark", clock, snapshot_interval_s=0.0, backup_interval_s=backup_interval_s
        )
        self._lease = execution.lease
        self._checkpoint = self.store.prepare(execution) / "checkpoint"
        restored = restore(self.store.driver_rows(CHECKPOINT_STEP, plan.resume_epoch), self._checkpoint)
        settings = ClosingSettings(snapshot_interval_s=0.0, backup_interval_s=backup_interval_s, may_log=True)
        kept_log = settings.keeps_log(plan, (), notes_made=False)
        self.store.start(execution, [self._step], plan.partitions, keeps_log=kept_log)
        self._closer = EpochCloser(
            self.store, self._lease, plan, Capture(LocalHome(self._checkpoint), restored.held), (),
            replace(settings, kept_log=kept_log),
            ClosingHooks(may_close=lambda: None, on_closed=self._closed), clock,
        )  # fmt: skip
        self._clock = clock

    def batch(self, truth: dict[str, int], keys: Iterable[int]) -> None:
        """A micro-batch that adds one to these keys, and the epoch that ends with it."""
        from recovery.base.ids import BatchId
        from recovery.storage.reach import reach
        from recovery.storage.seam import BatchCount, Changes
        from recovery.values.keys import partition_of

        batch = BatchId(self._closer.finished + 1)
        by_partition: dict[int, list[str]] = {index: [] for index in range(PARTITIONS)}
        for number in keys:
            key = f"key-{number:07}"
            truth[key] = truth.get(key, 0) + 1
            by_partition[partition_of(key, PARTITIONS)].append(f"{_state(truth[key])}\x1f{key}")
        with self._causes.of("position"):
            self._log("metadata", '{"id":"x"}')
            self._log(f"offsets/{batch}", f'v1\n{{}}\n{{"logOffset":{batch}}}')
        self.store.open(self._lease, batch)
        with self._causes.of("deltas"):
            for index, packed in by_partition.items():
                task = reach(self.store.address(self._lease), keep=True)[0]
                task.apply(self._step, batch, {index: [Changes(tuple(packed), False)]}, BatchCount(1, len(packed)))
                task.release()
        with self._causes.of("position"):
            self._log(f"commits/{batch}", "v1\n{}")
        with self._closer.lock:
            self._closer.finished = batch
            self._closer.end_epoch(lambda: True)
            self._closer.wait()
            # What follows the epoch in the background.
            self._closer._background.submit(lambda: None).result()

    def wrong(self, truth: dict[str, int], held: int) -> str:
        """Read a thousand states as a task does; what is wrong, if anything."""
        from recovery.base.ids import BatchId
        from recovery.storage.reach import reach
        from recovery.values.keys import partition_of

        chosen = random.Random(2).sample(sorted(truth), min(1000, held))
        batch = BatchId(self._closer.finished + 1)
        self.store.open(self._lease, batch)
        task = reach(self.store.address(self._lease), keep=False)[0]
        wrong = 0
        for index in range(PARTITIONS):
            keys = tuple(key for key in chosen if partition_of(key, PARTITIONS) == index)
            found = task.read(self._step, batch, {index: keys})[index]
            wrong += sum(text != _state(truth[key]) for key, text in zip(keys, found, strict=True))
        task.release()
        return f"{wrong} of {len(chosen)} states are wrong" if wrong else ""

    def end(self) -> None:
        """The end of a run."""
        with self._closer.lock:
            self._closer.close(lambda: True)
        self._closer.finish()
        with self._causes.of("end"):
            self.store.release()

    def _closed(self, closed: Any) -> None:
        """Store what was measured, as a run does after each epoch."""
        from recovery.planning.measures import Measure

        measure = Measure(
            execution=self._lease.number, epoch=closed.epoch, measured_ms=self._clock.wall_ms(),
            resume_s=0.0, written=closed.states,
            snapshot_s=closed.duration_s,
        )  # fmt: skip
        self.store.record(measure)

    def _log(self, name: str, text: str) -> None:
        path = self._checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)


def _counting(store: Any, causes: Causes) -> Any:
    """The class of a store that counts what its calls write."""

    class Counting(store):  # type: ignore[misc]
        def close(self, *given: Any) -> Any:
            with causes.of("closing"):
                return super().close(*given)

        def seal(self, *given: Any, **named: Any) -> Any:
            with causes.of("deltas"):
                return super().seal(*given, **named)

        def fold(self, *given: Any) -> Any:
            with causes.of("folding"):
                return super().fold(*given)

        def record(self, *given: Any) -> Any:
            with causes.of("measures"):
                return super().record(*given)

        def checkpoint(self, *given: Any) -> Any:
            with causes.of("checkpoints"):
                return super().checkpoint(*given)

    return Counting


@contextmanager
def _by_file() -> Iterator[Counter[str]]:
    """Count what SQLite writes, by the kind of file."""
    import apsw

    counted: Counter[str] = Counter()

    class File(apsw.VFSFile):
        def __init__(self, name: Any, flags: list[int]) -> None:
            super().__init__("unix", name, flags)
            path = str(name.filename() if hasattr(name, "filename") else name)
            whose = 0 if "part-" in Path(path).name and "scratch" not in Path(path).parts else 2
            self._kind = FILES[whose + path.endswith("-wal")]

        def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
            counted[self._kind] += len(data)
            super().xWrite(data, offset)

    class Files(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("counting", "unix", makedefault=True)

        def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
            return File(name, flags)

    files = Files()
    try:
        yield counted
    finally:
        files.unregister()


def _state(count: int) -> str:
    return f"[{count},{count * 47}]"


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
