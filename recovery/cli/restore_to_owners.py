"""Partitions go to owners on other hosts: `recovery restore SRC --owner …`, and what imports into new partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

from recovery.base.clock import SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.base.ids import PartitionIndex
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import format_size, print_json, say
from recovery.cli.owners import LOOK_S
from recovery.cli.restore_output import announcing, plan_facts, plan_text, reads_facts, reads_text
from recovery.host.scratch import scratch_directory
from recovery.planning.going_back import after_text
from recovery.planning.owner_restore import allot
from recovery.storage.initialize import refuse_existing
from recovery.storage.store import OwnerAccess
from recovery.wire.calls import OwnerCalls
from recovery.wire.run_client import Owner


class RestoreOptions(NamedTuple):
    """What the options say."""

    epoch: int | None
    at_ms: int | None
    umask: bool
    dry_run: bool


class ByOwner(NamedTuple):
    """The owner that each partition is at; or, with `held`, would go to; nothing if no owner was named. held: the
    partitions that owners have now."""

    owner_of: Mapping[PartitionIndex, str]
    held: Mapping[str, list[str]] | None = None

    def facts(self) -> dict[str, Any]:
        """Return the owners for programs."""
        if not self.owner_of:
            return {}
        owners = {f"part-{index}.sqlite3": location for index, location in self.owner_of.items()}
        return {"owners": owners} if self.held is None else {"owners": owners, "held": self.held}

    def text(self) -> str:
        """Return a line for each owner that gets partitions, and for each that has some."""
        verb = "are at" if self.held is None else "would go to"
        lines = [
            f"{', '.join(f'part-{index}' for index, at in self.owner_of.items() if at == location)} {verb} {location}"
            for location in dict.fromkeys(self.owner_of.values())
        ]
        lines += [
            f"{location} holds {', '.join(names)}: it is refused, unless a killed restore left that"
            for location, names in (self.held or {}).items()
        ]
        return "\n".join(map(one_line, lines))


class StoreToBring:
    """Where a command makes all partitions of a new store, and where they go then: see `new_store`."""

    def __init__(self, directory: Path, made: Path, access: OwnerAccess) -> None:
        self.made = made
        """The directory in which to make the partitions."""
        self._directory = directory
        self._access = access

    def bring(self, count: int, *, umask: bool = False, dry_run: bool = False, quiet: bool = False) -> ByOwner:
        """Bring all `count` partitions to the owners, which have none, all or none; without owners, do nothing.
        dry_run: only ask the owners; nothing need be made. Raises what `restore_to_owners` raises."""
        from recovery.backup.at_owners import restore_to_owners
        from recovery.backup.sources import open_source
        from recovery.places.opening import open_place

        clock, owners = SystemClock(), self._access.connect(LOOK_S)
        if not owners:
            return ByOwner({})
        if dry_run:
            refuse_existing(self._directory)
            return _planned(count, owners)
        with scratch_directory("restore") as scratch:
            done = restore_to_owners(
                open_source(open_place(str(self.made)), scratch, clock), owners, self._directory, scratch, clock=clock,
                random_id=lambda: token_hex(4), task_key=task_key(), umask=umask,
                observe=CopyProgress(quiet=quiet).observe,
            )  # fmt: skip
        return ByOwner(done.owner_of)


@contextlib.contextmanager
def new_store(directory: Path, access: OwnerAccess) -> Iterator[StoreToBring]:
    """Yield where to make a new store: in `directory`; with owners in a directory that is removed afterwards, from
    which `StoreToBring.bring` brings the partitions to them. `directory` is then that of the run."""
    if not access.owners:
        yield StoreToBring(directory, directory, access)
        return
    with scratch_directory("made") as scratch:
        yield StoreToBring(directory, scratch / "made", access)


def to_owners(source: str, directory: Path | None, access: OwnerAccess, wanted: RestoreOptions, as_json: bool) -> None:
    """Restore to the owners, or show what would be restored. directory: the run's directory; None: not looked at."""
    from recovery.backup.at_owners import restore_to_owners
    from recovery.backup.restore import look_into_chains, plan_from
    from recovery.backup.sources import open_source
    from recovery.places.opening import open_place

    clock, owners = SystemClock(), access.connect(LOOK_S)
    shown = None if directory is None else str(directory)
    with scratch_directory("restore") as scratch:
        found = open_source(open_place(source), scratch, clock)
        if wanted.dry_run:
            look_into_chains(found, wanted.epoch, wanted.at_ms)
            plan = plan_from(found, epoch=wanted.epoch, at_ms=wanted.at_ms)
            planned = _planned(len(plan.copies), owners)
            if as_json:
                facts = {**plan_facts(plan, found, clock.wall_ms()), "directory": shown, "dry_run": True}
                print_json({**facts, **reads_facts(plan, found, lazy=False), **planned.facts()})
                return
            say(plan_text(plan, found, clock.wall_ms()))
            say(reads_text(plan, found, lazy=False))
            say(planned.text())
            return
        progress = CopyProgress(quiet=as_json)
        done = restore_to_owners(
            found, owners, directory, scratch, clock=clock, random_id=lambda: token_hex(4),
            task_key=task_key(), epoch=wanted.epoch,
            at_ms=wanted.at_ms, umask=wanted.umask, announce=announcing(progress, found, clock),
            observe=progress.observe,
        )  # fmt: skip
    restored = done.restored
    if as_json:
        print_json(
            {
                **plan_facts(restored.plan, found, clock.wall_ms()),
                "directory": shown,
                "dry_run": False,
                **ByOwner(done.owner_of).facts(),
                "left_out": list(restored.left_out),
                "rows": restored.rows,
                "bytes": restored.size_bytes,
                "elapsed_s": done.elapsed_s,
            }
        )
        return
    say(ByOwner(done.owner_of).text())
    say(
        f"restored the state {after_text(restored.plan.epoch)}, {counted(len(done.owner_of), 'partition')}, to "
        f"{counted(len(set(done.owner_of.values())), 'owner')}: {counted(restored.rows, 'row')}, "
        f"{format_size(restored.size_bytes)} in {done.elapsed_s:.1f} s; the next run with these owners resumes at "
        f"epoch {restored.plan.resume.resume_epoch}"
    )


def _planned(count: int, owners: Sequence[Owner]) -> ByOwner:
    """Return where `count` partitions would go, and those that are at owners already."""
    owner_of = allot(count, [owner.location for owner in owners])
    try:
        found = {owner.location: [each.name for each in owner.ask(OwnerCalls.found, {})] for owner in owners}
    finally:
        for owner in owners:
            owner.release()
    return ByOwner(owner_of, {location: names for location, names in found.items() if names})
