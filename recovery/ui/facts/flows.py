"""The flows that are shown, and one look at each, which requests of the same moment share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from recovery.base.clock import Clock, SystemClock
from recovery.base.wording import age_s
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
from recovery.report.status import drill_json, newest, status_json
from recovery.storage.glance import Glances
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import OwnerAccess, Store
from recovery.ui.facts.limits import patience_s
from recovery.ui.facts.shared import Shared
from recovery.wire.looking import seen_owners

VERSION = 1
"""The version of the answers: a later one may drop or change a field; a field that is added keeps the version."""
LOOK_S = 600.0
"""How long one look may take. No request waits for that: see `recovery.ui.facts.limits.patience_s`."""
HANGS_S = 30.0
"""A look that has come no further for so long hangs."""
PLACE_S = 30.0
"""How long a list of backups serves."""
FRESH_S = 1.0
"""A look serves the requests of so many seconds."""
SHARE = 20
"""Looks take at most one part in so many of a core: a look that took a second serves for this many, but for the first
one, after which the next look comes soon."""
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
    """What was read of a store at one time. status: what `status --json` prints. serves_s: for how long it serves."""

    store: Store
    gathered: Facts
    status: Mapping[str, Any]
    serves_s: float
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


class _Listed(NamedTuple):
    """What a place of backups has, and when it was listed."""

    facts: dict[str, Any]
    ended_s: float


class ShownFlow:
    """One flow: its name, and the look that its requests share. Any thread may call it."""

    def __init__(self, name: str, source: FlowSource, clock: Clock | None = None) -> None:
        self.name = name
        self.source = source
        self.clock = clock or SystemClock()
        self._targets: Sequence[HealthTarget] = parse_targets(source.thresholds)
        self._owners: list[Any] | None = None
        self._glances = Glances(self.clock)
        self._gathered: Facts | None = None
        self._look = Shared(self._read, self._is_fresh, self.clock, LOOK_S)
        self._place = Shared(self._list, lambda listed: self._age_s(listed.ended_s) <= PLACE_S, self.clock, LOOK_S)

    def place_facts(self) -> dict[str, Any] | None:
        """Return what `backup --list --json` prints of the place of backups, listed at most every `PLACE_S`, with
        "listed_ms", when that was; {"problem"}: the error, if the place cannot be read or is slow to answer; None: no
        place was given."""
        if self.source.place is None:
            return None
        found = self._place.get(patience_s())
        if found is not None:
            return found.facts
        late = LookLimitError("the list of backups is not there yet", path=None, cause="The place is slow to answer.",
                              remedy="Look again; see whether the place can be reached.")  # fmt: skip
        return {"problem": late.as_json()}

    def begin(self) -> None:
        """Begin a look, if there is none that is fresh, and do not wait for it."""
        self._look.begin()

    @property
    def is_known(self) -> bool:
        """Whether there was a look."""
        return self._look.is_there

    def look(self, least_s: float | None = None) -> Look:
        """Return a look that is fresh, as its `serves_s` says; or an older one while the next takes longer than this
        request waits, which is at least `least_s`, None: the least of every request. Raises LookLimitError if there is
        none yet, or if a disk hangs; NoPartitionsError, StorageError, and what `Store.found` does."""
        return self._waited(None, least_s)

    def look_again(self, after: Look) -> Look:
        """Return a look that is newer than `after`, whose epochs a run has collected meanwhile. Raises as `look`."""
        return self._waited(after, None)

    def _waited(self, after: Look | None, least_s: float | None) -> Look:
        found = self._look.get(patience_s(least_s), after)
        began_s = self._look.began_s
        hangs = began_s is not None and self._age_s(max(began_s, self._glances.moved_s)) > HANGS_S
        if found is not None and not hangs:
            return found
        raise self._under_way(hangs)

    def _under_way(self, hangs: bool) -> LookLimitError:
        """Return the error for a look that has not ended."""
        done, count = self._glances.done, self._glances.count
        if hangs:
            return LookLimitError(
                f"reading it has not come further for {HANGS_S:.0f} s",
                path=self.source.directory,
                cause="The disk or the owner of the directory does not answer.",
                remedy="Look at the disk (dmesg, mount); what waits for it ends by itself once the disk answers.",
            )
        return LookLimitError(
            f"partition {min(done + 1, count):,} of {count:,} is being read" if done < count else "it is being read",
            path=self.source.directory,
            cause="The first look reads all partitions; later ones read what has changed.",
            remedy="Ask again in a second.",
        )

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

    def _age_s(self, since_s: float) -> float:
        return self.clock.elapsed_s() - since_s

    def _is_fresh(self, look: Look) -> bool:
        return self._age_s(look.ended_s) <= look.serves_s

    def _list(self) -> _Listed:
        assert self.source.place is not None
        now_ms = self.clock.wall_ms()
        facts = {**listed(self.source.place, now_ms), "listed_ms": now_ms}
        return _Listed(facts, self.clock.elapsed_s())

    def _read(self) -> Look:
        if self._owners is None:
            self._owners = self.source.access.connect(OWNER_S)
        began_s = self.clock.elapsed_s()
        store = Store(self.source.directory, self._owners, self._glances)
        seen = seen_owners(store.owners, self.clock)
        before = self._gathered
        gathered = self._gathered = gather(store, self._targets, self.clock.wall_ms(), owners=seen, before=before)
        status = status_json(store, gathered)
        ended_s = self.clock.elapsed_s()
        # The first look reads everything, so what it took says nothing of the next one.
        serves_s = FRESH_S if before is None else max(FRESH_S, SHARE * (ended_s - began_s))
        return Look(store, gathered, status, serves_s, ended_s)

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
            "age_s": None if closed is None else age_s(closed.closed_ms, now_ms),
            "looked_ms": look.gathered.now_ms,
            **facts,
        }


def listed(place: str, now_ms: int) -> dict[str, Any]:
    """Return what `backup --list --json` prints of a place, with the number of each backup's objects in place of their
    names, and the last drill; {"problem"}: the error if the place cannot be read."""
    # These import Arrow, which a look without a place does not need.
    from recovery.backup.drills import last_drill_at
    from recovery.backup.repository import list_backups
    from recovery.places.opening import open_place

    try:
        target = open_place(place)
        drill = drill_json(last_drill_at(target), now_ms)
        facts = {**list_backups(target).as_json(target.shown), "last_drill": drill}
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


def names_of(directories: Sequence[Path]) -> list[str]:
    """Return the name of each flow: that of its directory, which gets a number if it is there twice."""
    names: list[str] = []
    for directory in directories:
        base = name_of(directory)
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base}-{number}"
        names.append(name)
    return names


class Flows:
    """The flows by name, which is that of the directory; a name that is there twice gets a number."""

    def __init__(self, sources: Sequence[FlowSource], clock: Clock | None = None) -> None:
        """Raises ConfigurationError without a source, and for thresholds that are no targets. The directories are not
        read."""
        if not sources:
            raise ConfigurationError("no directory is given", cause="", remedy="Name at least one recovery directory.")
        names = names_of([each.directory for each in sources])
        self.clock = clock or SystemClock()
        self._flows = {name: ShownFlow(name, source, self.clock) for name, source in zip(names, sources, strict=True)}

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
        for flow in self:
            flow.begin()
        return {"version": VERSION, "flows": [_line(flow) for flow in self]}

    def release(self) -> None:
        """End all connections."""
        for flow in self:
            flow.release()


def _line(flow: ShownFlow) -> dict[str, Any]:
    """Return one flow in the list of all."""
    named = {"name": flow.name, "directory": str(flow.source.directory)}
    try:
        # All looks have begun. Each flow that hangs would otherwise keep the list for a while of its own.
        look = flow.look(0)
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
