"""What the storage tests share: driving partitions as a run would, without Spark, and reading what they hold."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import apsw

from recovery.base.clock import SystemClock
from recovery.base.ids import Lease
from recovery.owner.process import OwnerProcess
from recovery.owner.service import OwnerService
from recovery.planning.owner_facts import OwnerFacts
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import Execution, FoundFile
from recovery.storage.reach import reach
from recovery.storage.scan import scan
from recovery.storage.seam import BatchCount, Changes, CloseRequest, TaskStore
from recovery.storage.sqlite.file.connections import open_database
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.store import Store
from recovery.storage.verify import PartitionCheck
from recovery.values.keys import partition_of
from recovery.wire.address import OwnerAddress, location
from recovery.wire.run_client import Owner
from tests.memory_store import MemoryDirectory, MemoryPartitions
from tests.wire.serving import Serving

ROOT = Path(__file__).resolve().parents[1]
KEY = bytes(range(32))
"""The task key of these tests."""
STEP = "count"
Value = tuple[str, int | None]
State = dict[tuple[str, str], Value]
_ids = itertools.count()
_tasks = itertools.count()


class OwnedDirectory(type(Path())):
    """A recovery directory whose tasks reach it through an owner's process."""


class ReachedDirectory(type(Path())):
    """A recovery directory whose tasks reach it as they reach an owner's process, which here is a server of this
    process."""


class ServedPlace:
    """A directory that a service of this process serves, perhaps among others. name: by which clients name it; empty if
    the service serves nothing else."""

    def __init__(self, service: OwnerService, number: int = 0, name: str = "") -> None:
        self.service = service
        self.runs, self.served = service.served[number]
        self.name = name
        self.port = service.port

    @property
    def at(self) -> str:
        """Its address, as users write it."""
        return location("127.0.0.1", self.port, self.name)

    def facts(self) -> OwnerFacts:
        return self.service.facts()[self.served.name]

    def client(
        self, token: str = "", *, host: str = "127.0.0.1", deadline_s: float = 30.0, tls_ca_pem: str | None = None
    ) -> Owner:
        """A run or look. token: another one than the service has."""
        key = token.encode() or self.service.credentials.tokens[0]
        return Owner(OwnerAddress(host, self.port, Lease(0, ""), 0, deadline_s, tls_ca_pem, self.name), key)

    def stop(self, wait_s: float) -> None:
        self.service.stop(wait_s)


class SpreadDirectory:
    """A store in several places: the driver's directory, and owner services of this process. `places` are their
    directories, the driver's first."""

    def __init__(
        self, made: Path, spread: Sequence[Sequence[int]] = ((), (0,), (1,)), *, together: bool = False
    ) -> None:
        """made: where all partitions are now. spread: those of each place. together: one service serves all places but
        the driver's, instead of one each."""
        self.places = [made.with_name(f"{made.name}-{number}") for number in range(len(spread))]
        for place, indexes in zip(self.places, spread, strict=True):
            place.mkdir()
            for index in indexes:
                (made / f"part-{index}.sqlite3").rename(place / f"part-{index}.sqlite3")
        self.token = made.with_name(f"{made.name}.token")
        self.token.write_text("0123456789abcdef")
        self.log: list[str] = []
        if together and len(spread) > 2:
            service = OwnerService(self.places[1:], "127.0.0.1:0", self.token, log=self.log.append)
            self.services = [ServedPlace(service, n, each.name) for n, each in enumerate(self.places[1:])]
        else:
            self.services = [self.serve(number) for number in range(1, len(spread))]

    @classmethod
    def of(cls, places: Sequence[Path], services: Sequence[ServedPlace]) -> SpreadDirectory:
        """A store whose places are served already."""
        made = cls.__new__(cls)
        made.places, made.services = list(places), list(services)
        return made

    def serve(self, number: int, port: int = 0) -> ServedPlace:
        """Start the owner service of a place."""
        return ServedPlace(OwnerService(self.places[number], f"127.0.0.1:{port}", self.token, log=self.log.append))

    def locations(self, *, run: str | None = None, deadline_s: float = 5.0) -> Store:
        """What a look asks; or what a run holds, which takes the place of an earlier run, as if that were silent."""
        owners = [each.client(deadline_s=deadline_s) for each in self.services]
        found = Store(self.places[0], owners)
        if run is not None:
            for each in self.services:
                if each.runs.holding is not None:
                    each.runs.let_go(each.runs.holding)
            found.hold(run, f"run {run}", KEY)
        return found

    def paths(self) -> list[Path]:
        """The files, in order; the names are unique here."""
        files = [path for place in self.places for path in place.glob("part-*.sqlite3")]
        return sorted(files, key=lambda path: int(path.stem[5:]))

    def close(self) -> None:
        for each in {each.service for each in self.services}:
            each.stop(0.1)


class Driver:
    """One execution on a directory, of files or in memory: what the runner does with storage, call by call.

    States are given as texts, as (text, timeout in ms), or as None to discard the key.
    """

    def __init__(
        self,
        directory: Path | MemoryDirectory | SpreadDirectory,
        steps: Sequence[str] = (STEP,),
        *,
        resume_epoch: int | None = None,
        scratch: Path | None = None,
        started_ms: int = 0,
        keeps_log: bool = False,
        backup_interval_s: float | None = None,
    ) -> None:
        self.directory = directory
        self._owner: OwnerProcess | None = None
        self._serving: Serving | None = None
        self.locations: Store | None = None
        memory = MemoryPartitions(directory) if isinstance(directory, MemoryDirectory) else None
        if memory is not None:
            found = [FoundFile(each.path, each) for each in memory.describe()]
        elif isinstance(directory, SpreadDirectory):
            self.locations = directory.locations(run=f"{next(_ids)}")
            found = self.locations.found()
        else:
            found = scan(directory)
        self.plan: ResumePlan = plan_resume(found, resume_epoch=resume_epoch)
        self.count = len(self.plan.partitions)
        self.execution = replace(new_execution(self.plan), started_ms=started_ms)
        if backup_interval_s is not None:
            self.execution = replace(self.execution, backup_interval_s=backup_interval_s)
        self.lease = self.execution.lease
        self.epoch = self.plan.resume_epoch
        if self.locations is not None:
            self.store = self.locations.connect(self.plan.partitions, directory.places[0] / "scratch", SystemClock())
        else:
            paths = [each.path for each in self.plan.partitions]
            self.store = memory or FilePartitions(paths, scratch or directory / "scratch")
        try:
            self.store.start(self.execution, steps, self.plan.partitions, keeps_log=keeps_log)
        except BaseException:
            self.store.release()
            raise

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            self._owner.stop()
        if self._serving is not None:
            self._serving.close()
        self.store.release()

    def task(self, attempt: int = 0) -> TaskStore:
        """A task's way to the partitions; release it. Every other one keeps its deltas for the next."""
        if isinstance(self.directory, OwnedDirectory):
            return reach(self.owner.address("127.0.0.1"), task_key=KEY, attempt=attempt)[0]
        if isinstance(self.directory, ReachedDirectory):
            if self._serving is None:
                self._serving = Serving(self.store.address(self.lease), self.lease, self.count, self.store.scratch)
            return reach(self._serving.address(), task_key=self._serving.key, attempt=attempt)[0]
        return reach(self.store.address(self.lease), keep=next(_tasks) % 2 == 1, task_key=KEY, attempt=attempt)[0]

    @property
    def owner(self) -> OwnerProcess:
        """The owner's process, started when it is first needed."""
        if self._owner is None:
            store = self.store.address(self.lease)
            self._owner = OwnerProcess(store, self.store.scratch, KEY, self.lease, self.count)
        return self._owner

    def apply(
        self,
        batch: int,
        changes: Mapping[str, str | tuple[str, int | None] | None],
        step: str = STEP,
        partitions: Iterable[int] | None = None,
    ) -> None:
        """Apply the changes as the tasks of one step would; partitions without changes have a task when named."""
        by_partition: dict[int, dict] = {index: {} for index in partitions or ()}
        for key, change in changes.items():
            by_partition.setdefault(partition_of(key, self.count), {})[key] = change
        for index, part in by_partition.items():
            task = self.task()
            try:
                task.apply(step, batch, {index: [pack(part)] if part else []}, BatchCount(len(part), len(part)))
            finally:
                task.release()

    def read(self, batch: int, keys: Iterable[str], step: str = STEP) -> dict[str, str | None]:
        """The states before `batch`, by key."""
        found: dict[str, str | None] = {}
        by_partition: dict[int, list[str]] = {}
        for key in keys:
            by_partition.setdefault(partition_of(key, self.count), []).append(key)
        for index, part in by_partition.items():
            task = self.task()
            try:
                found.update(zip(part, task.read(step, batch, {index: tuple(part)})[index], strict=True))
            finally:
                task.release()
        return found

    def due(self, batch: int, up_to_ms: int, step: str = STEP) -> list[str]:
        """The keys that are due, of all partitions."""
        found: list[str] = []
        for index in range(self.count):
            task = self.task()
            try:
                found += task.due(step, batch, [index], up_to_ms)[index]
            finally:
                task.release()
        return sorted(found)

    def requests(self, batch: int, **settings) -> list[CloseRequest]:
        """The requests that close the running epoch."""
        driver_rows = settings.pop("driver_rows", {})
        return [
            CloseRequest(
                epoch=settings.get("epoch", self.epoch),
                batch=batch,
                closed_ms=settings.get("closed_ms", 1_000 * self.epoch),
                clock_ms=settings.get("clock_ms", 1_000 * self.epoch),
                floor=settings.get("floor", 0),
                driver_rows={
                    step: {k: v for k, v in values.items() if partition_of(k, self.count) == index}
                    for step, values in driver_rows.items()
                },
                edits=settings.get("edits", ()),
                logged=settings.get("logged", False),
                notes_made=settings.get("notes_made", False),
            )
            for index in range(self.count)
        ]

    def close(self, batch: int, **settings) -> list[int]:
        """Close the epoch as of `batch`; the next one begins."""
        written = self.store.close(self.lease, self.requests(batch, **settings))
        self.epoch += 1
        return [each.written for each in written]

    def fold(self, floor: int | None = None) -> None:
        """Fold what is logged up to the newest epoch. floor: the oldest epoch to keep; None: the newest."""
        [batch] = {each.newest.batch_id for each in self.store.describe() if each.newest}
        self.store.seal(self.lease, batch, apart=True)
        self.store.fold(self.lease, self.epoch - 1, self.epoch - 1 if floor is None else floor)

    def move_logs(self) -> None:
        """Move write-ahead logs into the files, however short the logs are."""
        with patch("recovery.storage.sqlite.store.CHECKPOINT_BYTES", 0):
            self.store.checkpoint()


def new_execution(plan: ResumePlan, flow_id: str = "flow") -> Execution:
    """The next execution on the partitions of a plan."""
    return Execution(
        number=plan.execution_number,
        id=f"execution-{os.getpid()}-{next(_ids)}",
        flow_id=flow_id,
        resume_epoch=plan.resume_epoch,
        started_ms=0,
        snapshot_interval_s=10.0,
        backup_interval_s=0.0,
        host="host",
        pid=os.getpid(),
        version="test",
    )


def pack(changes: Mapping[str, str | tuple[str, int | None] | None]) -> Changes:
    """The changes as a task packs them."""
    timeouts = any(isinstance(change, tuple) for change in changes.values())
    packed = []
    for key, change in changes.items():
        text, timeout = change if isinstance(change, tuple) else (change or "", None)
        middle = [("" if timeout is None else str(timeout))] if timeouts else []
        packed.append("\x1f".join([text, *middle, key]))
    return Changes(tuple(packed), timeouts)


def query(path: Path, sql: str, bindings: Sequence = ()) -> list[tuple]:
    """Rows of a partition, by a connection of their own."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = open_database(path, "", lambda uri: apsw.Connection(uri, flags=flags))
    connection.set_busy_timeout(5000)
    try:
        return connection.execute(sql, bindings).fetchall()
    finally:
        connection.close()


def alter(path: Path, sql: str, bindings: Sequence = ()) -> None:
    """Change a partition behind the package's back."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute(sql, bindings).fetchall()
    finally:
        connection.close()


def paths_of(directory: Path) -> list[Path]:
    """The partition files, in order."""
    return sorted(directory.glob("part-*.sqlite3"), key=lambda path: int(path.stem[5:]))


def state_at(directory: Path, epoch: int) -> State:
    """What the files hold of an epoch: all that was written by then, and not replaced by then; and what is logged."""
    state: State = {}
    for path in paths_of(directory):
        versions = query(
            path,
            "SELECT step_id, state_key, snap_epoch, ser_change, timeout_ms, NULL FROM snaps UNION ALL"
            " SELECT step_id, state_key, snap_epoch, ser_change, timeout_ms, until_epoch FROM superseded"
            " WHERE snap_epoch IS NOT NULL",
        )
        held = [each for each in versions if each[2] <= epoch and (each[5] is None or each[5] > epoch)]
        assert len({each[:2] for each in held}) == len(held), "two values of a key at once"
        state.update({(step, key): (text, timeout) for step, key, _, text, timeout, _ in held})
        for step, content in _logged(path, epoch):
            for key, text, timeout in json.loads(content):
                state.pop((step, key), None)
                if text is not None:
                    state[step, key] = bytes.fromhex(text["hex"]) if isinstance(text, dict) else text, timeout
    return state


def _logged(path: Path, epoch: int) -> list[tuple]:
    """The chunks that lead from what `snaps` holds to an epoch; none in files of older versions."""
    if query(path, "PRAGMA user_version") < [(5,)]:
        return []
    [(folded,)] = query(
        path, "SELECT coalesce(max(epoch), 0) FROM epochs WHERE epoch NOT IN (SELECT epoch FROM logged)"
    )
    if epoch <= folded:
        return []
    return query(path, "SELECT step_id, content FROM changes WHERE epoch <= ? ORDER BY epoch", (epoch,))


def problems(directory: Path) -> list[str]:
    """What a full check finds wrong, in all files."""
    return [problem for path in paths_of(directory) for problem in PartitionCheck(path).run().problems]


def window(directory: Path) -> tuple[int, ...]:
    """The epochs that can be resumed after."""
    return plan_resume(scan(directory)).window


def content(directory: Path) -> dict:
    """Every row of every table of every file."""
    tables = ("parts", "exs", "epochs", "commits", "snaps", "changes", "logged", "superseded", "beginning")
    return {(path.name, t): query(path, f"SELECT * FROM {t}") for path in paths_of(directory) for t in tables}


def run_python(code: str, *arguments: object, timeout_s: float = 60, **options) -> subprocess.CompletedProcess:
    """Run Python source in another process, with the repository importable; its output is text."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, **options)
