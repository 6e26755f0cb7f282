"""The part of a start before Spark: lock a recovery directory, plan, and check it in the background."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recovery.base import faults
from recovery.base.clock import Clock
from recovery.base.credentials.task_key import task_key
from recovery.checkpoint.home import CheckpointHome
from recovery.config import RecoveryConfig, given_backup_interval_s
from recovery.metrics.endpoint import MetricsEndpoint
from recovery.operational.backends.backend import Backend
from recovery.operational.backends.open import StoreBackend, choose, open_backend
from recovery.operational.backends.owned import documents_of, origins_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.flows import FlowRecord
from recovery.operational.rewinds import check_start, note_start
from recovery.planning.going_back import discarded, kept_interval_s
from recovery.planning.resume import plan_resume
from recovery.planning.values import Execution
from recovery.replication.process import Replication
from recovery.spark.run.replicating import REPLICATED_KEEPS_S, begin_replication, take_over
from recovery.spark.run.until import check_fork, find_until
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import DirectoryLock
from recovery.storage.scan import log_bytes
from recovery.storage.seam import PartitionStore
from recovery.storage.store import OwnerAccess, Store
from recovery.storage.verify import FullCheck, PartitionCheck, Verdict

CHECK_NICENESS = 10
PATIENCE_S = 15.0
AT_ONCE_BYTES = 16 << 20
"""Size of all partitions together that the full check reads in a few tenths of a second."""


class Prepared:
    """A recovery directory, locked, planned and being checked: everything that a start can do before Spark runs.

    The steps of starting; their names are also crash points:

    start.1  Take the directory's lock; then have each owner lock its own for this run (hold.1).
    start.2  Read every partition and plan. Nothing is written before this has succeeded.
    start.3  Make a fresh scratch checkpoint of the saved position and the state of Spark's own operators, and look at
             the input (start.3.looked). Then begin the execution in every partition, one transaction each, abandoning
             what lies beyond the plan; then the sink goes back, too.
    start.4  Close an epoch that renames, drops and converts the state of steps, if any needs it.
    start.5  In the first micro-batch that reads a source: make durable where it starts
             (`recovery.spark.run.source_starts`).
    """

    def __init__(self, config: RecoveryConfig | None, flow_id: str, clock: Clock) -> None:
        self.temporary: Path | None = None
        if config is None:
            self.temporary = Path(tempfile.mkdtemp(prefix="recovery-none-"))
            init_partitions(self.temporary, os.cpu_count() or 2, clock=clock)
            config = RecoveryConfig(self.temporary)
        self.config = config
        self.flow_id = flow_id
        self.clock = clock
        self.lock = DirectoryLock(config.path, clock, f"flow {flow_id}")
        self.store: PartitionStore | None = None
        self.check: BackgroundCheck | None = None
        self.record: FlowRecord | None = None
        self.endpoint: MetricsEndpoint | None = None
        self.replication: Replication | None = None
        self.home: CheckpointHome | None = None
        """Where Spark writes its checkpoint; set when the run has one."""
        self.places = Store(config.path)
        take_over(config, clock)
        if config.path.is_dir():
            self.lock.acquire()
        try:
            self.places = Store(config.path, OwnerAccess.of(config).connect(config.owner_deadline_s))
            self.places.hold(secrets.token_hex(8), f"flow {flow_id}", task_key())
            faults.reach("hold.1")
            if config.metrics_port is not None:
                self.endpoint = MetricsEndpoint(config.metrics_host, config.metrics_port)
            faults.reach("start.1")
            began_s = clock.elapsed_s()
            self.plan = plan_resume(self.places.found(), flow_id=flow_id, resume_epoch=config.rewind_to)
            check_start(self.plan, config, clock, self.documents())
            self.origins = () if self.temporary is not None else origins_of(self.places)
            if config.no_output:
                check_fork(self.origins, config.path)
            self.until = (
                None if config.until is None else find_until(config.until, self.places, self.plan, self.origins)
            )
            self.discarded = discarded(self.plan)
            kept_s = kept_interval_s(self.plan.partitions, given_backup_interval_s(config))
            self.backup_interval_s = kept_s or (REPLICATED_KEEPS_S if config.replicate else 0.0)
            self.planned_s = clock.elapsed_s() - began_s
            faults.reach("start.2")
            self.replication = begin_replication(config, self.plan, self.scratch, clock, OwnerAccess.of(config))
            self.check = BackgroundCheck(self.places.checks(self.plan.partitions))
        except BaseException:
            self.release()
            raise

    @property
    def scratch(self) -> Path:
        """The directory of this host for what need not survive the execution, Spark's checkpoint among it."""
        given = self.config.scratch_directory
        return given if isinstance(given, Path) else self.config.path / SCRATCH_NAME

    def open_store(self) -> PartitionStore:
        """Open the partitions for writing."""
        self.store = self.places.connect(self.plan.partitions, self.scratch, self.clock)
        return self.store

    def record_run(self, execution: Execution, clock: Clock) -> None:
        """Record that the execution began, in the run history and, for a rewind, among the rewinds. Must come before
        the execution can close an epoch. `release` records how the run ended."""
        if self.temporary is None:
            note_start(self.plan, self.config, clock, self.documents())
            self.record = FlowRecord(self._history(), execution, clock)

    def documents(self) -> StoreBackend:
        """The operational state that lies with the partitions."""
        return documents_of(self.places, self.clock, RetryPolicy())

    def _history(self) -> Backend:
        """Where the run history is kept."""
        chosen = choose(self.config.path, self.config.state_backend)
        return self.documents() if chosen == self.config.path else open_backend(chosen, self.clock, RetryPolicy())

    def release(self, error: BaseException | None = None) -> None:
        """Release everything; safe to repeat. `error` is what ended the run."""
        if self.endpoint is not None:
            self.endpoint.close()
        if self.replication is not None:
            self.replication.stop()
        if self.check is not None:
            self.check.cancel()
        if self.record is not None:
            self.record.end(error)
        if self.home is not None:
            self.home.discard()
        if self.store is not None:
            self.store.release()
        self.places.release()
        self.lock.release()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


class BackgroundCheck:
    """A full check of all partitions beside the run. The check must pass before the first epoch is closed, and ends the
    run if it finds damage.

    The check gives way to the stream. A check that takes longer than a moment begins at `begin`, after the first
    micro-batch, when somebody waits for it, or after `PATIENCE_S`: the first output after a resume should not wait for
    a reader of everything. The check's threads have a lower priority.
    """

    def __init__(self, checks: Sequence[FullCheck]) -> None:
        self._checks = checks
        self._may_begin = threading.Event()
        # The size of a file at an owner is not known.
        if all(isinstance(each, PartitionCheck) for each in checks) and _size_bytes(checks) <= AT_ONCE_BYTES:
            self._may_begin.set()
        self._pool = ThreadPoolExecutor(max(1, min(4, len(checks))), thread_name_prefix="check", initializer=_step_back)
        self._futures = [self._pool.submit(self._run, check) for check in self._checks]

    def begin(self) -> None:
        """Begin now; harmless if the check has begun."""
        self._may_begin.set()

    def wait(self) -> None:
        """Wait for the result. Raises CorruptPartitionError naming the first damaged file."""
        self.begin()
        for future in self._futures:
            future.result().raise_if_damaged()

    def look(self) -> None:
        """Raise the damage found so far, without waiting."""
        for future in self._futures:
            if future.done():
                future.result().raise_if_damaged()

    def cancel(self) -> None:
        """Stop the checks that still run; harmless if all are done."""
        for future, check in zip(self._futures, self._checks, strict=True):
            if not future.done() and not future.cancel():
                check.cancel()
        self.begin()
        self._pool.shutdown()

    def _run(self, check: FullCheck) -> Verdict:
        self._may_begin.wait(PATIENCE_S)
        return check.run()


def _size_bytes(checks: Sequence[FullCheck]) -> int:
    """Number of bytes to read; 0 for a missing file, which is reported when it is opened."""
    size_bytes = 0
    for each in checks:
        with contextlib.suppress(OSError):
            size_bytes += each.path.stat().st_size + log_bytes(each.path)
    return size_bytes


def _step_back() -> None:
    """Lower the calling thread's priority, where threads have their own, as on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), CHECK_NICENESS)
