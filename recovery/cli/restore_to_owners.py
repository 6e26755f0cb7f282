"""`recovery restore SRC --owner …`: partitions go to owners on other hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import NamedTuple

from recovery.base.clock import SystemClock
from recovery.base.ids import PartitionIndex
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.common import format_size, print_json, say
from recovery.cli.owners import LOOK_S
from recovery.cli.restore_output import announcing, plan_facts, plan_text, reads_facts, reads_text
from recovery.planning.going_back import after_text
from recovery.planning.owner_restore import allot
from recovery.storage.locations import OwnerAccess
from recovery.wire.calls import OwnerCalls
from recovery.wire.run_client import Owner


class RestoreOptions(NamedTuple):
    """What the options say."""

    epoch: int | None
    at_ms: int | None
    umask: bool
    dry_run: bool


def to_owners(source: str, directory: Path | None, access: OwnerAccess, wanted: RestoreOptions, as_json: bool) -> None:
    """Restore to the owners, or show what would be restored. directory: the run's directory; None: not looked at."""
    from recovery.backup.at_owners import restore_to_owners
    from recovery.backup.restore import look_into_chains, plan_from
    from recovery.backup.sources import open_source
    from recovery.host.scratch import scratch_directory
    from recovery.places.opening import open_place

    clock, owners = SystemClock(), access.connect(LOOK_S)
    shown = None if directory is None else str(directory)
    with scratch_directory("restore") as scratch:
        found = open_source(open_place(source), scratch, clock)
        if wanted.dry_run:
            look_into_chains(found, wanted.epoch, wanted.at_ms)
            plan = plan_from(found, epoch=wanted.epoch, at_ms=wanted.at_ms)
            owner_of = allot(len(plan.copies), [owner.location for owner in owners])
            holds = _holds(owners)
            if as_json:
                facts = {**plan_facts(plan, found, clock.wall_ms()), "directory": shown, "dry_run": True}
                facts |= reads_facts(plan, found, lazy=False)
                print_json({**facts, "owners": _by_file(owner_of), "held": holds})
                return
            say(plan_text(plan, found, clock.wall_ms()))
            say(reads_text(plan, found, lazy=False))
            say(_places_text("would go to", owner_of))
            for location, names in holds.items():
                say(f"{location} holds {', '.join(names)}: it is refused, unless a killed restore left that")
            return
        progress = CopyProgress(quiet=as_json)
        done = restore_to_owners(
            found, owners, directory, scratch, clock=clock, random_id=lambda: token_hex(4),
            task_key=token_bytes(32), epoch=wanted.epoch,
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
                "owners": _by_file(done.owner_of),
                "left_out": list(restored.left_out),
                "rows": restored.rows,
                "bytes": restored.size_bytes,
                "elapsed_s": done.elapsed_s,
            }
        )
        return
    say(_places_text("are at", done.owner_of))
    say(
        f"restored the state {after_text(restored.plan.epoch)}, {counted(len(done.owner_of), 'partition')}, to "
        f"{counted(len(set(done.owner_of.values())), 'owner')}: {counted(restored.rows, 'row')}, "
        f"{format_size(restored.size_bytes)} in {done.elapsed_s:.1f} s; the next run with these owners resumes at "
        f"epoch {restored.plan.resume.resume_epoch}"
    )


def _holds(owners: Sequence[Owner]) -> dict[str, list[str]]:
    """Return the partitions that are at owners already."""
    try:
        found = {owner.location: [each.name for each in owner.ask(OwnerCalls.found)] for owner in owners}
    finally:
        for owner in owners:
            owner.release()
    return {location: names for location, names in found.items() if names}


def _by_file(owner_of: Mapping[PartitionIndex, str]) -> dict[str, str]:
    return {f"part-{index}.sqlite3": location for index, location in owner_of.items()}


def _places_text(verb: str, owner_of: Mapping[PartitionIndex, str]) -> str:
    """Return a line for each owner that gets partitions."""
    return "\n".join(
        one_line(f"{', '.join(f'part-{index}' for index, at in owner_of.items() if at == location)} {verb} {location}")
        for location in dict.fromkeys(owner_of.values())
    )
