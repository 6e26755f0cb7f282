"""Why each file of a directory is used or not, and how to fix it: a pure function for files in any condition.

`plan_resume` decides; this module reports for every file how old it is, whether it limits the other files, and which
copy could replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.base.intervals import format_interval
from recovery.base.wording import counted
from recovery.errors import ForeignPartitionError, LinkedPartitionError, RecoveryError
from recovery.planning.resume import Cut, ResumePlan, common_cuts, cut_off
from recovery.planning.strays import Members, file_name, strays
from recovery.planning.values import ClosedEpoch, Execution, FoundFile, PartitionDescription

ShowTime = Callable[[int], str]
"""Formats a time, in milliseconds since 1970, for people."""


class Role(StrEnum):
    """A file's role in the directory."""

    CURRENT = "current"
    HOLDS_BACK = "holds back"
    AHEAD = "ahead"
    TOO_OLD = "too old"
    LEFT_BEHIND = "left behind"
    MISSING = "missing"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    DUPLICATE = "duplicate"


_ROLES: dict[type[RecoveryError], Role] = {
    LinkedPartitionError: Role.DUPLICATE,
    ForeignPartitionError: Role.FOREIGN,
}
"""The roles of files that cannot be used, by the error; files with any other error are damaged."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One file: its role, the reason, and the fix ("" when it needs none).

    newest: its newest complete epoch. behind_ms: how much older, in wall time, that is than the newest of any file;
    None: unknown.
    """

    path: Path
    role: Role
    oldest: Epoch | None
    newest: ClosedEpoch | None
    behind_ms: int | None
    note: str
    fix: str

    @property
    def newest_epoch(self) -> Epoch | None:
        """The number of its newest epoch; 0 when it has none, None when the file is unreadable."""
        if self.oldest is None:
            return None
        return self.newest.epoch if self.newest is not None else NO_EPOCH

    def as_json(self, directory: Path) -> dict[str, Any]:
        """Return the explanation as JSON values. directory: that of the store."""
        return {
            "file": shown_path(self.path, directory),
            "role": self.role.value,
            "oldest_epoch": self.oldest,
            "newest_epoch": self.newest_epoch,
            "closed_ms": self.newest.closed_ms if self.newest else None,
            "behind_ms": self.behind_ms,
            "note": self.note,
            "fix": self.fix,
        }


def shown_path(path: Path, directory: Path) -> str:
    """Return a file's name; with its location if it is elsewhere."""
    return path.name if path.parent == directory else str(path)


def explain(found: Sequence[FoundFile], show_time: ShowTime, plan: ResumePlan | None = None) -> tuple[Explanation, ...]:
    """Return an explanation of every found and every missing file: first the partitions, in order of their indexes.
    plan: that of these files, which knows what all of them share."""
    described = [file.description for file in found if file.description is not None]
    if not described:
        return tuple(_unreadable(file) for file in found)
    members = Members.of(described)
    broken = [file for file in found if file.error is not None]
    astray = strays(found)
    elsewhere = {file_name(d.index): d.path.name for d in described if _is_renamed(d, members)}
    explained: list[Explanation] = []
    needed: dict[str, str] = {}
    if members.in_place:
        shared = None if plan is None or len(plan.partitions) != len(members.in_place) else plan.cuts
        directory = _Directory([members.in_place[index] for index in sorted(members.in_place)], show_time, shared)
        explained = [directory.explain(d) for d in members.in_place.values()]
        needed = {name: directory.needed_copy(name) for name in members.names() if name not in elsewhere}
        names = {file.path.name for file in found}
        for index in sorted(set(range(members.count)) - set(members.in_place)):
            path = described[0].path.with_name(file_name(index))
            if path.name not in names:
                held = f": by its content {elsewhere[path.name]} is it" if path.name in elsewhere else ""
                fix = needed.get(path.name, "")
                explained.append(Explanation(path, Role.MISSING, None, None, None, f"it is missing{held}", fix))
    explained.sort(key=lambda e: (len(e.path.name), e.path.name))
    explained += [_stray(d, astray[d.path]) for d in described if d.path in astray]
    explained += [_unreadable(file, needed.get(file.path.name, "")) for file in broken]
    return tuple(explained)


class _Directory:
    """The correctly named partitions of one store, and the snapshots that they share."""

    def __init__(
        self, proper: Sequence[PartitionDescription], show_time: ShowTime, shared: AbstractSet[Cut] | None
    ) -> None:
        self.store_id, self.count = proper[0].store_id, proper[0].count
        self._files = proper
        self._show = show_time
        self._shared = common_cuts(proper) if shared is None else shared
        self._shared_epoch = max((cut[0] for cut in self._shared), default=NO_EPOCH)
        self._pending = cut_off(proper, self._shared)
        closed = {e.cut: e for e in proper[0].epochs}
        self._shared_epochs = sorted((closed[cut] for cut in self._shared if cut in closed), key=lambda e: e.epoch)
        counted = [d.newest for d in proper if d.newest and d.path not in self._pending]
        self._newest_epoch = max((d.newest_epoch for d in proper if d.path not in self._pending), default=NO_EPOCH)
        self._newest = max(counted, key=lambda e: e.clock_ms, default=None)
        self._horizon = max(proper, key=lambda d: d.collected)
        self._executions = list(dict.fromkeys(execution for d in proper for execution in d.executions))
        newest = max(self._executions, key=lambda e: e.number, default=None)
        self._interval_s = 0.0 if newest is None else newest.backup_interval_s

    def explain(self, d: PartitionDescription) -> Explanation:
        """Return the explanation of a readable partition."""
        behind_ms = None
        if self._newest is not None:
            behind_ms = max(0, self._newest.closed_ms - d.newest.closed_ms) if d.newest is not None else None
        role, note, fix = self._judge(d)
        return Explanation(d.path, role, d.oldest_epoch, d.newest, behind_ms, note, fix)

    def needed_copy(self, name: str) -> str:
        """Return text about which copy of a missing partition fits the other files."""
        if not self._shared:
            return f"put a copy of {name} there, once the other files fit together"
        if not self._shared_epochs:
            return f"any copy of {name} of this store would do"
        first, last = self._shared_epochs[0], self._shared_epochs[-1]
        enough = f"newer than {self._show(first.closed_ms)} (epoch {first.epoch})"
        if any(cut[0] == NO_EPOCH for cut in self._shared):
            enough = "of this store"
        lossless = "" if first is last else f"; with one newer than {self._show(last.closed_ms)} nothing is lost"
        return f"a copy of {name} {enough} would do{lossless}"

    def _judge(self, d: PartitionDescription) -> tuple[Role, str, str]:
        begun = self._pending.get(d.path)
        if begun is not None:
            count = d.newest_epoch - begun.resume_epoch + 1
            note = (
                f"execution {begun.number} began at epoch {begun.resume_epoch} and was cut off: the next one abandons "
                f"{counted(count, 'epoch')} here too"
            )
            return Role.AHEAD, note, ""
        rewind = self._rewind_unknown_to(d)
        if rewind is not None:
            note = (
                f"it was copied before execution {rewind.number} went back to epoch {rewind.resume_epoch}: "
                f"of its epochs those before {rewind.resume_epoch} count"
            )
            fix = f"a copy newer than {self._show(rewind.started_ms)} would do"
            return Role.LEFT_BEHIND, note, fix
        if d.newest_epoch < self._horizon.collected:
            return Role.TOO_OLD, *self._too_old(d)
        shared, newest = self._shared_epoch, self._newest_epoch
        if self._shared and d.newest_epoch == shared and newest > shared:
            return Role.HOLDS_BACK, *self._holds_back(d)
        if self._shared and d.newest_epoch > shared:
            ahead = d.newest_epoch - shared
            return Role.AHEAD, f"{counted(ahead, 'epoch')} after the newest shared one will be abandoned", ""
        return Role.CURRENT, "current", ""

    def _too_old(self, d: PartitionDescription) -> tuple[str, str]:
        needed = next((e for e in self._horizon.epochs if e.epoch == self._horizon.collected), None)
        limit = f"{self._horizon.path.name} goes back no further than epoch {self._horizon.collected}"
        when = f"newer than {self._show(needed.closed_ms)} " if needed is not None else ""
        fix = f"a copy {when}(epoch {self._horizon.collected}) would do"
        if needed is None or d.newest is None:
            return f"it ends at epoch {d.newest_epoch}, and {limit}", fix
        over = format_interval(max(0, needed.closed_ms - d.newest.closed_ms) / 1000)
        allowed = f"the backup interval of {format_interval(self._interval_s)} allows"
        return f"it is {over} older than {allowed}; {limit}", fix

    def _holds_back(self, d: PartitionDescription) -> tuple[str, str]:
        note = "holds back the other files: its newest epoch is the newest that all share"
        if self._newest is None or d.newest is None:
            return note, ""
        late = format_interval(max(0, self._newest.closed_ms - d.newest.closed_ms) / 1000)
        fix = (
            f"it fits, {late} behind; a copy newer than {self._show(self._newest.closed_ms)} "
            f"(epoch {self._newest.epoch}) would lose nothing"
        )
        return note, fix

    def _rewind_unknown_to(self, d: PartitionDescription) -> Execution | None:
        """Return the first execution, known to other files only, that abandoned this file's newest epochs."""
        newest, known = d.newest, {execution.id for execution in d.executions}
        if newest is None:
            return None
        later = [
            execution
            for execution in self._executions
            if execution.id not in known
            and execution.number > newest.execution.number
            and execution.resume_epoch <= newest.epoch
        ]
        return min(later, key=lambda execution: (execution.resume_epoch, execution.number), default=None)


def _is_renamed(d: PartitionDescription, members: Members) -> bool:
    """Whether a file is a partition of the store under another name, and no file has the right name and content."""
    return d.store_id == members.store_id and d.count == members.count and d.index not in members.in_place


def _stray(d: PartitionDescription, error: RecoveryError) -> Explanation:
    role = Role.FOREIGN if isinstance(error, ForeignPartitionError) else Role.DUPLICATE
    return Explanation(d.path, role, d.oldest_epoch, d.newest, None, error.found, error.remedy)


def _unreadable(file: FoundFile, needed: str = "") -> Explanation:
    """Return the explanation of an unreadable file. needed: which copy would take its place."""
    assert file.error is not None
    role = _ROLES.get(type(file.error), Role.DAMAGED)
    fix = needed if needed and role is not Role.DUPLICATE else file.error.remedy
    return Explanation(file.path, role, None, None, None, file.error.found, fix)
