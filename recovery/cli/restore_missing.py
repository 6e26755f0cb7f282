"""`recovery restore SRC DIR --missing --owner …`: partitions that no location of a store has any more come back at
owners."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from recovery.base.clock import SystemClock
from recovery.base.ids import PartitionIndex
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import format_size, print_json, say
from recovery.cli.owners import LOOK_S
from recovery.cli.restore_output import announcing, plan_facts, plan_text, reads_facts, reads_text
from recovery.cli.restore_to_owners import ByOwner, RestoreOptions
from recovery.host.durable import PRIVATE, UMASK, make_directories
from recovery.host.scratch import scratch_directory
from recovery.host.storage_errors import storage_errors
from recovery.planning.backups import RestorePlan
from recovery.storage.store import OwnerAccess, Store

if TYPE_CHECKING:
    from recovery.backup.sources import Source


def missing_to_owners(place: str, directory: Path, access: OwnerAccess, wanted: RestoreOptions, as_json: bool) -> None:
    """Bring back the partitions that neither `directory` nor an owner has, or show which those are."""
    from recovery.backup.missing import bring_missing
    from recovery.backup.sources import open_source
    from recovery.places.opening import open_place, refuse_itself

    refuse_itself(place, directory, "backup")
    clock = SystemClock()
    look = Store(directory, access.connect(LOOK_S))
    with scratch_directory("restore") as scratch:
        found = open_source(open_place(place), scratch, clock)
        try:
            if wanted.dry_run:
                _show(found, look, as_json)
                return
            with storage_errors(directory):
                make_directories(directory, UMASK if wanted.umask else PRIVATE)
            progress = CopyProgress(quiet=as_json)
            announce = announcing(progress, found, clock)

            def announce_brought(plan: RestorePlan, left_out: Sequence[str]) -> None:
                announce(_only_from(found, plan), left_out)

            with look.locked(clock, "a restore of missing partitions") as held:
                done = bring_missing(
                    found, held, (), scratch, clock=clock, random_id=lambda: token_hex(4), umask=wanted.umask,
                    announce=announce_brought, observe=progress.observe,
                )  # fmt: skip
                # Also if an earlier attempt, which was killed, has brought back all.
                held.forget_departed(held.lost)
                lost = list(held.lost)
        finally:
            look.release()
    if done is None:
        _say_nothing(directory, found, lost, as_json, dry_run=False)
        return
    plan = _only(done.plan.restore, done.plan.owner_of)
    if as_json:
        facts = {"directory": str(directory), "dry_run": False, "lost": lost, **ByOwner(done.plan.owner_of).facts()}
        print_json({**plan_facts(plan, found, clock.wall_ms()), **facts, "bytes": done.size_bytes})
        return
    _say_lost(lost)
    say(ByOwner(done.plan.owner_of).text())
    say(
        f"{counted(len(plan.copies), 'partition')} came back as of epoch {plan.epoch}, "
        f"{format_size(done.size_bytes)}; the others stay; the next run with these owners resumes at epoch "
        f"{plan.resume.resume_epoch}"
    )


def _show(found: Source, store: Store, as_json: bool) -> None:
    from recovery.backup.missing import plan_missing, shortage

    clock = SystemClock()
    planned = plan_missing(found, shortage(store, (), clock), clock)
    if planned is None:
        _say_nothing(store.directory, found, store.lost, as_json, dry_run=True)
        return
    plan = _only(planned.restore, planned.owner_of)
    goes = ByOwner(planned.owner_of, {})
    if as_json:
        facts = {"directory": str(store.directory), "dry_run": True, "lost": list(store.lost), **goes.facts()}
        print_json({**plan_facts(plan, found, clock.wall_ms()), **reads_facts(plan, found, lazy=False), **facts})
        return
    say(plan_text(plan, found, clock.wall_ms()))
    say(reads_text(plan, found, lazy=False))
    say(goes.text())


def _say_lost(lost: Sequence[str]) -> None:
    for location in lost:
        say(one_line(f"{location}, to which partitions had moved, was not reached; its copies do not count any more"))


def _say_nothing(directory: Path, found: Source, lost: Sequence[str], as_json: bool, *, dry_run: bool) -> None:
    if as_json:
        facts = {"source": found.shown, "directory": str(directory), "dry_run": dry_run, "lost": list(lost)}
        print_json({**facts, "owners": {}, "copies": []})
        return
    if not dry_run:
        _say_lost(lost)
    say("no partition is missing; nothing was restored")


def _only(plan: RestorePlan, indexes: Collection[PartitionIndex]) -> RestorePlan:
    """Return the plan as far as it is about these partitions."""
    return replace(plan, copies=tuple(copy for copy in plan.copies if copy.index in indexes))


def _only_from(found: Source, plan: RestorePlan) -> RestorePlan:
    """Return the plan as far as it is about copies of a source."""
    return _only(plan, [copy.index for copy in plan.copies if copy in found.copies])
