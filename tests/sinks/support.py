"""A run as a sink sees it, without Spark and partitions: what is closed, and which note was saved with it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from pathlib import Path

from recovery.base.ids import Lease
from recovery.planning.timeline import TimelinePart
from recovery.sinks.disk import Disk
from recovery.sinks.output import OutputDirectory
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.storage.origin import How, Origin

OUT = Path("/data/out")
_ids = itertools.count(1)


@dataclass
class Closed:
    """A closed epoch, as the partitions know it."""

    execution: Lease
    batch: int
    note: str
    records: list[bytes]


@dataclass
class Store:
    """The recovery partitions, as far as a sink is concerned. Closing an epoch is atomic here.

    past: the executions that have begun, if the sink is to know them. loses, accepts: see `Resume`.
    """

    store_id: str = "5e1f"
    flow_id: str = "flow"
    closed: list[Closed] = field(default_factory=list)
    floor: int = 0
    executions: int = 0
    origins: tuple[Origin, ...] = ()
    past: list[str] | None = None
    loses: bool = False
    accepts: bool = False

    def begin(self, resume_epoch: int | None = None) -> Resume:
        """Start an execution: abandon what lies at or above the resume epoch."""
        held = (self.past[-1], len(self.closed)) if self.past else None
        if resume_epoch is not None:
            del self.closed[resume_epoch - 1 :]
        return replace(self.resume(), held=held)

    def resume(self) -> Resume:
        """The arguments for the sink of a new execution."""
        self.executions += 1
        parts = tuple(TimelinePart(each.execution, n, n) for n, each in enumerate(self.closed, 1))
        note = self.closed[-1].note if self.closed else None
        lease = Lease(self.executions, f"{next(_ids):016x}")
        where = self.store_id, self.flow_id, self.floor
        known = None if self.past is None else frozenset(self.past)
        if self.past is not None:
            self.past.append(lease.id)
        begun = len(self.closed) + 1, note, lease, *where, parts, self.origins, known, self.loses
        return Resume(*begun, accepts_loss=self.accepts)

    def edit(self) -> None:
        """Close an epoch in which no sink takes part, as an edit of states does it; not before the first one."""
        if self.closed:
            lease = self.resume().execution
            self.closed.append(replace(self.closed[-1], execution=lease, records=[]))

    def copied(self) -> Store:
        """The same on another host: each goes on by itself from here."""
        return replace(self, closed=list(self.closed), past=None if self.past is None else list(self.past))

    def repartitioned(self) -> Store:
        """The store that takes the place of this one."""
        return self._made("repartition", f"{self.store_id}x{next(_ids)}")

    def forked(self) -> Store:
        """A store of its own that begins with what this one holds."""
        return self._made("fork", f"{self.store_id}f{next(_ids)}")

    def _made(self, how: How, store_id: str) -> Store:
        newest = self.past[-1] if self.past else ""
        origin = Origin(how, self.store_id, len(self.closed), 0, 2, "/data/rec", newest, len(self.closed))
        return replace(self.copied(), store_id=store_id, origins=(origin, *self.origins))

    def records(self) -> list[bytes]:
        """Every record of the closed epochs."""
        return sorted(record for each in self.closed for record in each.records)


class Run:
    """One execution with an output directory. Each file of a micro-batch holds one record."""

    def __init__(self, store: Store, disk: Disk, *, resume_epoch: int | None = None, **options) -> None:
        settings = {"format": "json", "fresh": False, "check_all": True, **options}
        self.store, self.disk = store, disk
        self.output = OutputDirectory(OUT, disk=disk, **settings)
        self.resume = store.begin(resume_epoch)
        self.lease = self.resume.execution
        self.written: dict[int, list[bytes]] = {}
        self.closed_batch = store.closed[-1].batch if store.closed else -1
        self.output.plan(self.resume)
        self.output.rollback(self.resume)

    def write(self, batch: int, files: int = 2) -> None:
        """A micro-batch. Its records tell executions apart: a replay has other content."""
        directory = self.output.staging(self.lease.id, batch)
        self.output.clear(directory)
        records = [f"{self.lease.id} {batch} {n}\n".encode() for n in range(files)]
        for number, record in enumerate(records):
            self.disk.put(directory / f"part-{number:05}-uuid-c000.json", record)
            self.disk.put(directory / f".part-{number:05}-uuid-c000.json.crc", b"crc")
        self.disk.put(directory / "part-00009-uuid-c000.json", b"")
        reported = {name: len(data) for name, data in self.disk.text(directory).items() if name[0] != "."}
        # What an attempt left that failed.
        self.disk.put(directory / "part-00000-failed-c000.json", b"never reported")
        self.output.stage(batch, directory, reported, lambda _, size: size == 0)
        self.written[batch] = records

    def close(self, batch: int) -> None:
        """Close the epoch as of a micro-batch."""
        epoch = EpochOutput(len(self.store.closed) + 1, batch, self.lease, "5e1f", "flow", self.store.floor)
        note = self.output.prepare(epoch)
        records = [r for b, rs in self.written.items() if self.closed_batch < b <= batch for r in rs]
        self.store.closed.append(Closed(self.lease, batch, note, records))
        self.closed_batch = batch
        self.output.publish(epoch)


def visible(disk) -> list[bytes]:
    """Every record that a reader of the directory sees."""
    return sorted(data for name, data in disk.text(OUT).items() if not name.startswith(("_", ".")))
