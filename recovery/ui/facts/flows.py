"""The flows that are shown, and one look at each, which requests of the same moment share."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from recovery.base.clock import Clock, SystemClock
from recovery.base.threads import limited
from recovery.errors import (
    ConfigurationError,
    EpochNotHeldError,
    LookLimitError,
    RecoveryError,
    StateNotFoundError,
)
from recovery.planning.health import HealthTarget, parse_targets
from recovery.planning.measures import Measure
from recovery.planning.resume import Cut
from recovery.planning.values import ClosedEpoch
from recovery.report.facts import Facts, gather
from recovery.report.status import newest, status_json
from recovery.storage.glance import Glances
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import OwnerAccess, Store
from recovery.wire.looking import seen_owners

VERSION = 1
"""The version of the answers: a later one may drop or change a field; a field that is added keeps the version."""
LOOK_S = 180.0
"""How long one look may take, and how long a request waits for it."""
PLACE_S = 30.0
"""How long a list of backups serves."""
FRESH_S = 1.0
"""A look serves the requests of so many seconds."""
SHARE = 20
"""Looks take at most one part in so many of a core: a look that took a second serves for this many."""
NO_OWNERS = OwnerAccess()
OWNER_S = 10.0
"""How long a look tries to reach an owner."""
ATTEMPTS = 5
"""How often a newest epoch is looked for that a run then collects."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FlowSource:
    """Where a flow's partitions are: its directory, its owners, and its place of backups, if one is given. thresholds:
    targets of health, as `status` takes them."""

    directory: Path
    access: OwnerAccess = NO_OWNERS
    place: str | None = None
    thresholds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What was read of a store at one time. status: what `status --json` prints."""

    store: Store
    gathered: Facts
    status: Mapping[str, Any]
    took_s: float
    ended_s: float

    @property
    def at(self) -> Snapshot | None:
        """The newest snapshot that all partitions hold; None: no run can resume, and `status` says why."""
        return self.gathered.at

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot. Raises the error for which no run can resume."""
        return newest(self.gathered)

    @property
    def measures(self) -> list[Measure]:
        """The measures of the epochs that count, the oldest first: without those that a run abandoned."""
        parts = () if self.at is None else self.at.timeline

        def counts(each: Measure) -> bool:
            return any(p.execution.number == each.execution and p.first <= each.epoch <= p.last for p in parts)

        return [each for each in self.gathered.epochs if counts(each)]

    def at_epoch(self, epoch: int | None) -> Snapshot:
        """Return the snapshot of a held epoch; None: the newest. Raises EpochNotHeldError."""
        return self.snapshot if epoch is None else self.snapshot.at(epoch, self.store.directory)


class ShownFlow:
    """One flow: its name, and the look that its requests share. Any thread may call it."""

    def __init__(self, name: str, source: FlowSource, clock: Clock | None = None) -> None:
        self.name = name
        self.source = source
        self.clock = clock or SystemClock()
        self._targets: Sequence[HealthTarget] = parse_targets(source.thresholds)
        self._owners: list[Any] | None = None
        self._lock, self._place_lock = threading.Lock(), threading.Lock()
        self._look: Look | None = None
        self._failure: tuple[RecoveryError, float] | None = None
        self._place: dict[str, Any] | None = None
        self._place_s = 0.0
        self._glances = Glances(self.clock)
        self._gathered: Facts | None = None

    def place_facts(self) -> dict[str, Any] | None:
        """Return what `backup --list --json` prints of the place of backups, listed at most every `PLACE_S`; the error
        as {"problem"}, if the place cannot be read; None: no place was given."""
        if self.source.place is None:
            return None
        with self._waiting(self._place_lock):
            if self._place is None or self.clock.elapsed_s() - self._place_s > PLACE_S:
                self._place = listed(self.source.place)
                self._place_s = self.clock.elapsed_s()
            return self._place

    def look(self) -> Look:
        """Return a look that is fresh: no older than `FRESH_S`, or `SHARE` times what it took. Callers at the same time
        wait for one look, also for one that fails. Raises NoPartitionsError, StorageError, and what `Store.found` does.
        """
        asked_s = self.clock.elapsed_s()
        with self._waiting(self._lock):
            if self._look is None or self._age_s(self._look) > max(FRESH_S, SHARE * self._look.took_s):
                if self._failure is not None and self._failure[1] > asked_s:
                    raise self._failure[0].with_traceback(None)
                self._look = self._new()
            return self._look

    def look_again(self, after: Look) -> Look:
        """Return a look that is newer than `after`, whose epochs a run has collected meanwhile."""
        with self._waiting(self._lock):
            if self._look is None or self._look is after:
                self._look = self._new()
            return self._look

    def reading(self, epoch: int | None, read: Callable[[Look, Snapshot], T]) -> T:
        """Read at an epoch, None: the newest. If a run collects the newest epoch meanwhile, the next one counts; an
        epoch that the look does not know may have been closed since. Raises EpochNotHeldError, and what `read` does."""
        look = self.look()
        for _ in range(ATTEMPTS):
            try:
                return read(look, look.at_epoch(epoch))
            except EpochNotHeldError:
                again = self.look_again(look)
                if again.status["window"] == look.status["window"]:
                    raise
                look = again
        return read(look, look.at_epoch(epoch))

    def release(self) -> None:
        """End the connections to owners."""
        for owner in self._owners or ():
            owner.release()

    @contextlib.contextmanager
    def _waiting(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock while one caller reads what all wait for. Raises LookLimitError after `LOOK_S`, also for that
        caller."""
        with limited(LOOK_S):
            if not lock.acquire(timeout=LOOK_S):
                raise LookLimitError("another look has not ended yet", path=self.source.directory)
            try:
                yield
            finally:
                lock.release()

    def _age_s(self, look: Look) -> float:
        return self.clock.elapsed_s() - look.ended_s

    def _new(self) -> Look:
        try:
            return self._read()
        except RecoveryError as error:
            self._failure = error, self.clock.elapsed_s()
            raise

    def _read(self) -> Look:
        if self._owners is None:
            self._owners = self.source.access.connect(OWNER_S)
        began_s = self.clock.elapsed_s()
        store = Store(self.source.directory, self._owners, self._glances)
        seen = seen_owners(store.owners, self.clock)
        gathered = gather(store, self._targets, self.clock.wall_ms(), owners=seen, before=self._gathered)
        self._gathered = gathered
        status = status_json(store, gathered)
        ended_s = self.clock.elapsed_s()
        return Look(store, gathered, status, ended_s - began_s, ended_s)

    def answer(self, look: Look, facts: Mapping[str, Any], cut: Cut | None = None) -> dict[str, Any]:
        """Return facts with what every answer has: the version, the flow, the epoch that is shown and its age. cut: of
        the epoch; None: the newest."""
        shown = look.at.cut if cut is None and look.at is not None else cut
        closed = None if shown is None else closed_of(look, shown)
        now_ms = self.clock.wall_ms()
        return {
            "version": VERSION,
            "flow": self.name,
            "epoch": None if shown is None else shown[0],
            "closed_ms": None if closed is None else closed.closed_ms,
            "age_s": None if closed is None else max(0, now_ms - closed.closed_ms) / 1000,
            "looked_ms": look.gathered.now_ms,
            **facts,
        }


def listed(place: str) -> dict[str, Any]:
    """Return what `backup --list --json` prints of a place, with the number of each backup's objects in place of their
    names; {"problem"}: the error if the place cannot be read."""
    # These import Arrow, which a look without a place does not need.
    from recovery.backup.repository import list_backups
    from recovery.places.opening import open_place

    try:
        target = open_place(place)
        facts = list_backups(target).as_json(target.shown)
    except RecoveryError as error:
        return {"problem": error.as_json()}
    backups = [{**each, "objects": len(each["objects"])} for each in facts["backups"]]
    return {**facts, "backups": backups, "problem": None}


def closed_of(look: Look, cut: Cut) -> ClosedEpoch | None:
    """Return the closed epoch of a cut; None for the beginning."""
    epochs = () if look.at is None else look.at.epochs
    return next((each for each in epochs if each.cut == cut), None)


def name_of(directory: Path) -> str:
    """Return the last part of a directory's path, as addresses can have it: bytes that are no UTF-8 are escaped."""
    name = directory.name
    if name in ("", ".", ".."):
        # Browsers would follow these parts of an address themselves.
        name = directory.resolve().name or "flow"
    return os.fsencode(name).decode(errors="backslashreplace")


class Flows:
    """The flows by name, which is that of the directory; a name that is there twice gets a number."""

    def __init__(self, sources: Sequence[FlowSource], clock: Clock | None = None) -> None:
        """Raises ConfigurationError without a source, and for thresholds that are no targets. The directories are not
        read."""
        if not sources:
            raise ConfigurationError("no directory is given", cause="", remedy="Name at least one recovery directory.")
        self._flows: dict[str, ShownFlow] = {}
        for source in sources:
            base = name_of(source.directory)
            name, number = base, 1
            while name in self._flows:
                number += 1
                name = f"{base}-{number}"
            self._flows[name] = ShownFlow(name, source, clock)

    def __iter__(self) -> Iterator[ShownFlow]:
        return iter(self._flows.values())

    def __len__(self) -> int:
        return len(self._flows)

    def named(self, name: str | None) -> ShownFlow:
        """Return a flow; None: the only one. Raises StateNotFoundError with the names that there are."""
        if name is None and len(self._flows) == 1:
            return next(iter(self._flows.values()))
        if name is None or name not in self._flows:
            found = "several flows are served" if name is None else f"there is no flow {name!r:.80}"
            names = ", ".join(f"/api/flows/{each}" for each in self._flows)
            raise StateNotFoundError(found, cause="Each flow is under its name.", remedy=f"Ask for one of {names}")
        return self._flows[name]

    def list_facts(self) -> dict[str, Any]:
        """Return the flows: name, directory, what flow it is bound to, epoch, age and health; of one that cannot be
        read, the error."""
        return {"version": VERSION, "flows": [_line(flow) for flow in self]}

    def release(self) -> None:
        """End all connections."""
        for flow in self:
            flow.release()


def _line(flow: ShownFlow) -> dict[str, Any]:
    """Return one flow in the list of all."""
    named = {"name": flow.name, "directory": str(flow.source.directory)}
    try:
        look = flow.look()
    except RecoveryError as error:
        return {**named, "problem": error.as_json()}
    status = look.status
    running = status["lock"] is not None
    shown = flow.answer(look, {})
    return {
        **named,
        "id": status["flow"], "is_running": running, "level": status["level"], "problem": status["problem"],
        **{each: shown[each] for each in ("epoch", "closed_ms", "age_s", "looked_ms")},
    }  # fmt: skip
