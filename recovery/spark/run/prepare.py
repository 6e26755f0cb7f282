"""The part of a start before Spark: lock a recovery directory, plan, and check it in the background."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from recovery.base import faults
from recovery.base.clock import Clock
from recovery.base.credentials.task_key import task_key
from recovery.base.ids import StepId
from recovery.base.intervals import format_interval, parse_interval
from recovery.config import RecoveryConfig, given_backup_interval_s
from recovery.errors import DirectoryLockedError, OwnerUnreachableError
from recovery.host.scratch import scratch_directory
from recovery.metrics.endpoint import MetricsEndpoint
from recovery.operational.backends.owned import origins_of
from recovery.operational.steps.quarantine import WaitingRows, replayed_entries, waiting_rows
from recovery.planning.going_back import discarded, kept_interval_s
from recovery.planning.quarantine import QuarantineLimit, parse_quarantine
from recovery.planning.replacement import Replacement
from recovery.planning.resume import plan_resume
from recovery.spark.run.parts.checking import BackgroundCheck
from recovery.spark.run.parts.part import RunParts
from recovery.spark.run.parts.recording import RunRecord
from recovery.spark.run.parts.replicating import REPLICATED_KEEPS_S, ReplicatedClosing, begin_replication, take_over
from recovery.spark.run.parts.showing import RunPages
from recovery.spark.run.until import check_fork, find_until
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import DirectoryLock
from recovery.storage.seam import PartitionStore
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import OwnerAccess, Store
from recovery.values.quarantine import Entry

ATTEMPT_S = 2.0
"""How long a start tries at a time to reach an owner that it may replace."""
PAUSE_S = 0.2


class Prepared:
    """A recovery directory, locked, planned and being checked: everything that a start can do before Spark runs.

    The steps of starting; their names are also crash points:

    start.1  Take the directory's lock; then have each owner lock its own for this run (hold.1). Bring back the
             partitions of owners that are lost, if the settings say where from (`recovery.backup.missing`).
    start.2  Read every partition and plan. Nothing is written before this has succeeded.
    start.3  Make a fresh scratch checkpoint of the saved position and the state of Spark's own operators, and look at
             the input (start.3.looked). Then begin the execution in every partition, one transaction each, abandoning
             what lies beyond the plan; then the sink goes back, too.
    start.4  Close an epoch that renames, drops and converts the state of steps, if any needs it.
    start.5  In the first micro-batch that reads a source: make durable where it starts
             (`recovery.spark.run.source_starts`).

    `parts` has what holds anything. Whoever has the object ends them.
    """

    def __init__(
        self, config: RecoveryConfig | None, flow_id: str, clock: Clock, stopping: threading.Event | None = None
    ) -> None:
        """stopping: of a run that starts again; set when a signal has come, which ends a wait for an owner."""
        self._stopping, self._restarts = stopping or threading.Event(), stopping is not None
        self.parts = RunParts()
        self.flow_id = flow_id
        self.clock = clock
        self.temporary: Path | None = None
        self.replaced: Replacement | None = None
        """The partitions of lost owners that came back; None: none did."""
        self.endpoint: MetricsEndpoint | None = None
        self.record: RunRecord | None = None
        self.replicated: ReplicatedClosing | None = None
        self._waiting: dict[StepId, WaitingRows] = {}
        self._store: PartitionStore | None = None
        with self.parts.ended_on_error():
            self.config = self._without_recovery() if config is None else config
            take_over(self.config, clock)
            self.places = self._held()
            if self.config.metrics_port is not None:
                self.endpoint = MetricsEndpoint(self.config.metrics_host, self.config.metrics_port)
                self.parts.add_end("metrics", self.endpoint.close)
            if self.config.ui is not None:
                self.parts.add(RunPages(self.config, self.config.ui, self.access))
            faults.reach("start.1")
            self._plan()
            faults.reach("start.2")
            self.parts.add(BackgroundCheck(self.places.checks(self.plan.partitions)))
            self.replicated = begin_replication(self.config, self.plan, self.scratch, clock, self.access)
            if self.replicated is not None:
                self.parts.add(self.replicated)

    def _without_recovery(self) -> RecoveryConfig:
        """Return the settings of a run on partitions that nobody keeps."""
        self.temporary = Path(tempfile.mkdtemp(prefix="recovery-none-"))
        self.parts.add_end("temporary directory", partial(shutil.rmtree, self.temporary, ignore_errors=True))
        init_partitions(self.temporary, os.cpu_count() or 2, clock=self.clock)
        return RecoveryConfig(self.temporary)

    def _held(self) -> Store:
        """Lock the directory, and let the owners lock theirs; return all locations."""
        purpose = f"flow {self.flow_id}"
        lock = DirectoryLock(self.config.path, self.clock, purpose)
        self.parts.add_end("lock", lock.release)
        if self.config.path.is_dir():
            lock.acquire()
        self.access = OwnerAccess.of(self.config)
        place = self.config.replace_from if self.access.owners else None
        places = self._hold(purpose) if place is None else self._hold_those_left(purpose, os.fspath(place))
        self.parts.add_end("partitions", self._close_store)
        return places

    def _hold(self, purpose: str) -> Store:
        """Have the owners lock their directories."""
        places = Store(self.config.path, self.access.connect(self.config.owner_deadline_s))
        self.parts.add_end("owners", places.release)
        try:
            places.hold(secrets.token_hex(8), purpose, task_key())
        except BaseException:
            places.release()
            raise
        faults.reach("hold.1")
        return places

    def _hold_those_left(self, purpose: str, place: str) -> Store:
        """Have the owners lock their directories. Owners that are away for too long are lost: bring their partitions
        back at the others."""
        from recovery.backup.missing import replace_lost

        limit_s, began_s = parse_interval(self.config.replace_after), self.clock.elapsed_s()
        named, is_said, why = self.access, self._restarts, ""
        while True:
            self.access, lost = named.without_lost(ATTEMPT_S)
            is_late = self.clock.elapsed_s() - began_s >= limit_s
            if lost and not is_said:
                is_said = True
                with contextlib.suppress(OSError, ValueError):
                    waits = "" if is_late else f"; waiting for {format_interval(limit_s)}"
                    print(f"recovery: not reached: {', '.join(lost)}{waits}", file=sys.stderr, flush=True)
            try:
                if is_late or not lost:
                    places = self._hold(purpose)
                    break
            except (OwnerUnreachableError, DirectoryLockedError) as error:
                # It answered and ended: it is being started again, or it is lost after all. Or it has not noticed yet
                # that this run's last execution has ended.
                if is_late or (isinstance(error, DirectoryLockedError) and not self._restarts):
                    raise
                why = error.found
            if self._stopping.wait(PAUSE_S):
                raise OwnerUnreachableError(
                    f"the run was to stop while it waited for its owners: {', '.join(lost) or why}",
                    cause="A signal came.",
                    remedy="Run the same command again: it continues from the last closed epoch.",
                )
        with scratch_directory("replace") as scratch:
            self.replaced = replace_lost(
                place, places, lost, scratch, clock=self.clock, random_id=lambda: secrets.token_hex(4)
            )
        return places

    def _plan(self) -> None:
        """Choose where the run resumes. Raises the errors of planning."""
        config, began_s = self.config, self.clock.elapsed_s()
        self.plan = plan_resume(self.places.found(), flow_id=self.flow_id, resume_epoch=config.rewind_to)
        self._use_owners()
        if self.temporary is None:
            self.record = self.parts.add(RunRecord(self.plan, config, self.places, self.clock))
        self.origins = () if self.temporary is not None else origins_of(self.places)
        if config.no_output:
            check_fork(self.origins, config.path)
        self.until = None if config.until is None else find_until(config.until, self.places, self.plan, self.origins)
        self.discarded = discarded(self.plan)
        self.flow_quarantine: int | str | None = None
        """The limit of the quarantine that the flow has."""
        kept_s = kept_interval_s(self.plan.partitions, given_backup_interval_s(config))
        self.backup_interval_s = kept_s or (REPLICATED_KEEPS_S if config.replicate else 0.0)
        self.planned_s = self.clock.elapsed_s() - began_s

    def _use_owners(self) -> None:
        """Let the owners go that have no partition. From now on, and in the next execution of this run, its owners are
        those that have one, also those that were found by a note of a partition that moved. Where lost owners are
        replaced, one that has none stays named, as a spare."""
        if not self.places.is_spread:
            return
        for note in self.places.moved:
            print(f"recovery: {note}", file=sys.stderr, flush=True)
        spares = self.places.owners if self.config.replace_from is not None else ()
        self.places.let_go_unused()
        owners = tuple(owner.location for owner in (spares or self.places.owners))
        if owners != self.config.owners:
            self.config = replace(self.config, owners=owners)

    @property
    def quarantine_limit(self) -> QuarantineLimit:
        """Return how many rows may go to quarantine: what the run's config says, else the flow."""
        given = self.flow_quarantine if self.config.quarantine is None else self.config.quarantine
        return QuarantineLimit() if given is None else parse_quarantine(given)

    def waiting(self, step: StepId) -> WaitingRows:
        """Return what waits in quarantine for a step of the flow when the run starts."""
        found = self._waiting.get(step)
        if found is None:
            found = self._waiting[step] = waiting_rows(self._resumed(), self.config.rename_steps, step)
        return found

    def replayed(self, step: StepId) -> Iterator[tuple[str, int, Entry]] | None:
        """Return the rows in quarantine that the run replays in a step of the flow; None if there are none."""
        if not self.waiting(step).replays:
            return None
        return replayed_entries(self._resumed(), self.config.rename_steps, step)

    def _resumed(self) -> Snapshot | None:
        """Return the snapshot that the run starts from."""
        snapshot = self.plan.snapshot
        return None if snapshot is None else Snapshot.of(self.plan, snapshot.cut, self.places.reader)

    @property
    def scratch(self) -> Path:
        """The directory of this host for what need not survive the execution, Spark's checkpoint among it."""
        given = self.config.scratch_directory
        return given if isinstance(given, Path) else self.config.path / SCRATCH_NAME

    def open_store(self) -> PartitionStore:
        """Open the partitions for writing."""
        self._store = self.places.connect(self.plan.partitions, self.scratch, self.clock)
        return self._store

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.release()
