"""A run without Spark: the package's own preparing, starting, closing and ending, over an input that is numbers.

What Spark does is little here: it logs where a micro-batch begins, calls back, and logs that it is done. All else is
what a real run does, in its order and with its crash points, a hundred times as fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import apsw

from recovery import RecoveryConfig
from recovery.backup.note import reads_made_keys
from recovery.base import faults
from recovery.base.clock import Clock, SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.base.ids import BatchId
from recovery.base.reserved import CHECKPOINT_STEP, DECLARATIONS_STEP
from recovery.checkpoint.capture import Capture
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.restore import restore
from recovery.epochs.closer import ClosingHooks, ClosingSettings, Contributor, DriverRows, EpochClosed, EpochCloser
from recovery.epochs.execution import new_execution, what_ended
from recovery.errors import RecoveryError
from recovery.planning.folding import FoldLimits
from recovery.planning.steps import StepPlan
from recovery.sinks import DiscardSink
from recovery.sinks.delivery import Delivery
from recovery.spark.pipelines.incremental import FlowLoads
from recovery.spark.run.position import resume_of_sink
from recovery.spark.run.prepare import Prepared
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from recovery.values.keys import partition_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from recovery.flow import SinkLike

STEP = "totals"
FLOW = "flow"
STARTS = "starts"
"""A file of the directory, to which every micro-batch that was finished adds where its input starts."""
KEYS = [f"key{number}" for number in range(24)]
START_POINTS = ["start.1", "start.2", "start.3.partition", "start.3", "start.4", "start.5.partition", "start.5"]
CLOSE_POINTS = [
    "close.1", "close.2.checked", "close.2.snaps", "close.2.logged", "close.2.driver", "close.2.epochs",
    "close.2.collected", "close.2.committed", "close.3", "close.4", "close.5",
]  # fmt: skip
FOLD_POINTS = ["fold.1", "fold.2.collected", "fold.2.snaps", "fold.2.epochs", "fold.2.committed", "fold.3", "fold.4"]


def input_of(number: int, batch: int) -> dict[str, int]:
    """What micro-batch `batch` adds to which keys, in the input with this number; 0 discards the key."""
    generator = random.Random(number * 1_000_003 + batch)
    return {key: generator.randrange(10) for key in generator.sample(KEYS, generator.randrange(1, len(KEYS)))}


def totals(number: int, batches: int) -> dict[str, str]:
    """The truth: the states after so many micro-batches, as texts."""
    found: dict[str, int] = {}
    for batch in range(batches):
        for key, value in input_of(number, batch).items():
            if value:
                found[key] = found.get(key, 0) * 3 % 1_000_003 + value
            else:
                found.pop(key, None)
    return {key: str(value) for key, value in found.items()}


class MiniRun:
    """One execution. `number` names the input; `contributors` take part in closing epochs after those of every run."""

    steps: tuple[str, ...] = (STEP,)
    """The ids under which the tasks write."""

    def __init__(
        self,
        directory: Path,
        number: int,
        *,
        clock: Clock | None = None,
        contributors: Sequence[Contributor] = (),
        sink: SinkLike | None = None,
        **config,
    ) -> None:
        clock = clock or SystemClock()
        self.number = number
        self.sink = DiscardSink() if sink is None else sink
        self._ends = False
        settings = RecoveryConfig(directory, **{"snapshot_interval": 0, **config})
        self.prepared = Prepared(settings, FLOW, clock)
        try:
            self._begin(settings, clock, contributors)
        except BaseException:
            self.prepared.parts.end()
            raise

    def _begin(self, config: RecoveryConfig, clock: Clock, contributors: Sequence[Contributor]) -> None:
        plan = self.prepared.plan
        parts, replicated = self.prepared.parts, self.prepared.replicated
        if replicated is not None:
            replicated.is_ending = self._is_ending
            replicated.ready()
        self.store = self.prepared.open_store()
        execution = new_execution(
            plan,
            FLOW,
            clock,
            snapshot_interval_s=config.snapshot_interval_s,
            backup_interval_s=config.backup_interval_s,
        )
        self.lease = execution.lease
        resume = resume_of_sink(
            plan, execution, self.store, self.prepared.origins, loses=config.lose_epochs, say=self.say
        )
        self.delivery = delivery = Delivery(self.sink, resume, recoverable=True)
        declared = self.store.driver_values(DECLARATIONS_STEP, plan.resume_epoch)
        self.checkpoint = self.store.prepare(execution) / "checkpoint"
        restored = restore(self.store.driver_rows(CHECKPOINT_STEP, plan.resume_epoch), self.checkpoint)
        rows = self.look()
        # A start keeps what is logged, however little is held.
        closing = ClosingSettings(
            snapshot_interval_s=config.snapshot_interval_s,
            backup_interval_s=config.backup_interval_s,
            may_log=True,
            limits=FoldLimits(small_rows=0, share=100.0, kept_share=100.0),
        )
        noted = config.replicate is not None or reads_made_keys(config.path, config.backup_interval_s, clock.wall_ms())
        closing = replace(closing, kept_log=closing.keeps_log(plan, (), notes_made=noted))
        self.store.start(execution, self.steps, plan.partitions, keeps_log=closing.kept_log)
        if replicated is not None:
            replicated.begun(execution)
        delivery.rollback()
        faults.reach("start.3")
        self.closed: list[int] = []

        def may_close() -> None:
            for part in parts:
                part.may_close()

        def may_publish() -> None:
            for part in parts:
                part.may_publish()

        def on_closed(closed: EpochClosed) -> None:
            self.closed.append(closed.epoch)
            for part in parts:
                part.closed()

        self.closer = EpochCloser(
            self.store,
            self.lease,
            plan,
            Capture(LocalHome(self.checkpoint), restored.held),
            (delivery, FlowLoads(None, clock), *contributors),
            closing,
            ClosingHooks(
                may_close=may_close,
                on_closed=on_closed,
                notes_made=lambda: (
                    config.replicate is not None
                    or reads_made_keys(config.path, config.backup_interval_s, clock.wall_ms())
                ),
                may_publish=may_publish,
            ),
            clock,
        )
        parts.add_end("closer", self.closer.finish)
        self.closer.begin(
            StepPlan((), {} if declared else {self.steps[0]: '{"key":[["key","string"]],"state":"plain"}'}), rows
        )
        faults.reach("start.4")
        self.start = self.store.beginning()

    def _is_ending(self) -> bool:
        """Whether the run ends, or has lost an owner: nothing here watches them beside the stream."""
        try:
            self.store.check(self.lease)
        except RecoveryError:
            return True
        return self._ends

    @property
    def next_batch(self) -> int:
        """The micro-batch that Spark would run next."""
        return self.closer.finished + 1

    def say(self, text: str) -> None:
        """What the run would print."""

    def look(self) -> DriverRows:
        """Ask the input before anything is discarded, and return what to record of it: these numbers never change."""
        return {}

    def plan(self, batch: BatchId) -> None:
        """Log where the micro-batch ends, as Spark does before it runs it."""
        self._log(f"offsets/{batch}", f'v1\n{{}}\n{{"logOffset":{batch}}}')

    def deliver(self, batch: BatchId) -> None:
        """Give the sink what the micro-batch has computed."""

    def note_start(self) -> None:
        """Note where the input starts for whoever has seen the micro-batch."""
        with (self.prepared.config.path / STARTS).open("a") as file:
            file.write(f"{self.start}\n")

    def batch(self, generator: random.Random | None = None) -> None:
        """One micro-batch. Without a generator each epoch is waited for; with one they are written in the background,
        not every one that is due is ended, and some tasks run twice."""
        number = BatchId(self.next_batch)
        self._log("metadata", '{"id":"x"}')
        self.plan(number)
        with self.closer.lock:
            self.closer.check()
            if self.start is None:
                # The input is said to start at a place of its own for every execution that nothing tells where.
                self.start = self.lease.id
                self.store.begin_input(self.lease, self.start)
                faults.reach("start.5")
            if generator is not None:
                # Epochs are logged, folded, or moved directly.
                self.closer.limits = FoldLimits(
                    generator.choice([0.0, 3600.0]), generator.choice([1, 1_000_000]), generator.choice([0, 1_000_000]),
                    share=100.0,
                )  # fmt: skip
            if self.closer.due():
                if generator is None:
                    self.closer.close(lambda: True)
                elif generator.random() < 0.6:
                    self.closer.end_epoch(lambda: True)
            self.store.open(self.lease, number)
            for index in range(self.store.partition_count):
                for _ in range(2 if generator is not None and generator.random() < 0.2 else 1):
                    self.task(index, number)
            self.deliver(number)
            self.closer.finished = number
            self.note_start()
        self._log(f"commits/{number}", "v1\n{}")

    def task(self, index: int, batch: BatchId) -> None:
        """What the step's function does in one partition: multiply, add, discard."""
        changes = input_of(self.number, batch)
        keys = tuple(sorted(key for key in changes if partition_of(key, self.store.partition_count) == index))
        task, _ = reach(self.store.address(self.lease), keep=batch % 2 == 1, task_key=task_key())
        try:
            before = task.read(STEP, batch, {index: keys})[index]
            packed = []
            for key, text in zip(keys, before, strict=True):
                value = "" if not changes[key] else str(int(text or 0) * 3 % 1_000_003 + changes[key])
                packed.append(f"{value}\x1f{key}")
            task.apply(STEP, batch, {index: [Changes(tuple(packed), False)]}, BatchCount(len(keys), len(keys)))
        finally:
            task.release()

    def _log(self, name: str, text: str) -> None:
        """A file of the checkpoint; Spark writes each once."""
        path = self.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)

    def finish(self) -> None:
        """End well: close the last epoch."""
        self._ends = True
        try:
            with self.closer.lock:
                self.closer.close(lambda: True)
            # Only now: an end without closing does not wait for the last shipping.
            for part in self.prepared.parts:
                part.started()
        finally:
            self.release()

    def why(self, error: BaseException) -> BaseException:
        """The error that a user sees when this one is noticed first."""
        return what_ended(self.store, self.lease, lambda: error)

    def release(self) -> None:
        """End without closing."""
        self._ends = True
        self.prepared.parts.end()


def run(
    directory: Path, number: int, batches: int, choices: int | None = None, *, kind: type[MiniRun] = MiniRun, **config
) -> list[int]:
    """Run to the end of an input of so many micro-batches, as an execution of `kind`; returns the epochs that were
    closed."""
    execution = kind(directory, number, **config)
    generator = None if choices is None else random.Random(choices)
    try:
        while execution.next_batch < batches:
            execution.batch(generator)
    except BaseException as error:
        cause = execution.why(error)
        execution.release()
        raise cause from None
    execution.finish()
    return execution.closed


def states(directory: Path) -> dict[str, str]:
    """The states of the newest closed epoch, those that are only logged included, read past the package."""
    found: dict[str, str | None] = {}
    for path in sorted(directory.glob("part-*.sqlite3")):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        found.update(
            connection.execute("SELECT state_key, ser_change FROM snaps WHERE step_id = ?", (STEP,)).fetchall()
        )
        for (content,) in connection.execute("SELECT content FROM changes WHERE step_id = ? ORDER BY epoch", (STEP,)):
            found.update((key, value) for key, value, _ in json.loads(content))
        connection.close()
    return {key: value for key, value in found.items() if value is not None}


def die_at(point: str, visit: int = 1) -> None:
    """Let this process be killed at a crash point."""
    faults._target, faults._count = point, str(visit)
    faults._visits.clear()


def child(work: Callable[[], object]) -> int:
    """A process of its own that does `work` and exits with 0, or 1 after an error; returns its id.

    A fork: nothing here may have a partition open, nor hold a lock.
    """
    pid = os.fork()
    if not pid:
        _become(work)
    return pid


def _become(work: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def wait(pid: int, timeout_s: float = 60) -> int:
    """The exit code of a child, negative for a signal."""
    deadline = time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"process {pid} did not end within {timeout_s} s")
        time.sleep(0.002)


def freeze(pid: int) -> None:
    """Stop a child with SIGSTOP. Its threads have stopped when this returns: on a busy machine they may run for
    milliseconds after the signal, long enough to do what is asked next."""
    os.kill(pid, signal.SIGSTOP)
    wait_until_frozen(pid)


def wait_until_frozen(pid: int) -> None:
    """Wait until all threads of a process, which somebody stops, have stopped; fail if it ends instead."""
    try:
        status = os.waitpid(pid, os.WUNTRACED)[1]
    except ChildProcessError:
        # Another process has forked it.
        threads = Path(f"/proc/{pid}/task")
        wait_until(lambda: all((each / "stat").read_text().rpartition(") ")[2][0] == "T" for each in threads.iterdir()))
        return
    assert os.WIFSTOPPED(status), f"process {pid} ended with {os.waitstatus_to_exitcode(status)}"


@contextlib.contextmanager
def killed_afterwards(*pids: int) -> Iterator[None]:
    """No child outlives the block."""
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
