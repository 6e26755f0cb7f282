"""`recovery erase DIR`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.untrusted_paths import read_named
from recovery.base.wording import counted
from recovery.cli.asking import ask
from recovery.cli.common import DIRECTORY, directory_argument, json_option, print_json, say, tell, tell_error
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import option
from recovery.cli.owners import looked_at, owner_options, store_at
from recovery.cli.tables import table
from recovery.errors import ConfigurationError, ErasureIncompleteError, RecoveryError
from recovery.operational.steps.erasing import Erased, Found, documents, erase, has_spark_state, look, nothing_found
from recovery.planning.resume import plan_resume
from recovery.storage.copied import files_of
from recovery.storage.erasing import SoughtKeys
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.seam import KeyToErase
from recovery.storage.store import OwnerAccess

if TYPE_CHECKING:
    # These import Arrow, which other commands need not wait for.
    from recovery.backup.erase import ErasedCopy
    from recovery.backup.make import Made
    from recovery.places.protocol import Place

NAMED = "a file of this machine"
MOST_BYTES = 64 << 20
"""The most bytes of a file of keys."""


@click.command(name="erase")
@directory_argument
@option("--key", "given", metavar="KEY", multiple=True, without="those of --key-file",
        help="Erase this [key](file-format.md#keys).")  # fmt: skip
@option("--key-file", metavar="FILE|-",
        help="Erase the keys in this file, one a line; `-` is standard input. So no list of processes and no history "
             "of a shell shows them.")  # fmt: skip
@option("--step", "steps", metavar="STEP", multiple=True, without="every step that has the key",
        help="Only in this step and its quarantine.")  # fmt: skip
@option("--state", "states", metavar="GLOB", multiple=True, without="no operational state",
        help="Also the [operational state](operational-state.md) whose id matches, in all environments, with what "
             "removed state has left: `*` any characters, `?` one, `[abc]` one of these.")  # fmt: skip
@option("--place", "places", metavar="DEST", multiple=True,
        help="Also in this [place of backups](backup.md), which `backup` or --replicate fills: make a backup without "
             "the key, and remove those that hold it.")  # fmt: skip
@option("--standby", "standbys", metavar="STANDBY_DIR", type=DIRECTORY, multiple=True,
        help="Also in this [standby](backup.md#a-standby), by following its place once. No `follow` may be "
             "active.")  # fmt: skip
@dry_run_option("Only show where the key is found, in the places and standbys too. Works during a run.")
@option("--yes", "-y", is_flag=True, help="Do not ask.")
@owner_options
@json_option
def erase_command(
    directory: Path,
    given: tuple[str, ...],
    key_file: str | None,
    steps: tuple[str, ...],
    states: tuple[str, ...],
    places: tuple[str, ...],
    standbys: tuple[Path, ...],
    dry_run: bool,
    yes: bool,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Erase a key, such as a person's, at every epoch that is held; asks first.

    Erases the key's states, their history, and its rows in quarantine, and rewrites the files so that no byte is left.
    Nothing brings the key back but input that has it. End the run first. Ends with 44 if nothing of the key is found,
    and with 19 if a copy that was named still holds it.
    """
    texts = list(dict.fromkeys((*given, *_read(key_file))))
    keys = tuple(KeyToErase(step, text) for text in texts for step in (steps or (None,)))
    if not (keys or states):
        raise click.UsageError("Give --key, --key-file or --state.")
    refuse_hydrating(directory, "erase")
    store = store_at(directory, access)
    first, *others = plan_resume(store.found()).partitions
    wanted = SoughtKeys(keys, first.store_id, len(others) + 1, states)
    found, native = look(store, keys), has_spark_state(store)
    ids = documents(store, states, SystemClock()) if states else []
    copies = _Copies(directory, access, wanted, places, standbys)
    if dry_run:
        there = copies.searched()
        if not (found or ids or any(each.held or each.left for each in there)):
            raise nothing_found(store)
        _report(directory, found, ids, None, there, True, as_json, native, keys)
        return
    store.check_free()
    if found or ids:
        if found:
            tell(_table(found))
        also = " and of the named copies" if places or standbys else ""
        ask(f"Erase {_counts(found, ids)} of {directory}{also}, at every epoch? Nothing brings them back.", yes)
    done = erase(store, keys, SystemClock(), states=states, required=not (places or standbys))
    there = copies.erased()
    if done is None and not any(each.held or each.left for each in there):
        raise nothing_found(store)
    _report(directory, found if done is None else done.found, ids, done, there, False, as_json, native, keys)
    if any(each.left for each in there):
        error = _incomplete(there)
        if not as_json:
            tell_error(error)
        raise SystemExit(error.exit_code)


def _read(key_file: str | None) -> list[str]:
    if key_file is None:
        return []
    try:
        if key_file == "-":
            text = sys.stdin.read(MOST_BYTES)
        else:
            text = read_named(local_path(key_file, NAMED), MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the keys in {key_file} cannot be read: {error}", cause="", remedy="Give a file with a key on each line."
        ) from None
    return [line for line in text.split("\n") if line]


class _Copies(NamedTuple):
    """The copies that the command names."""

    directory: Path
    access: OwnerAccess
    wanted: SoughtKeys
    places: tuple[str, ...]
    standbys: tuple[Path, ...]

    def searched(self) -> list[ErasedCopy]:
        """Return what the copies hold. Raises what searching raises."""
        if not (self.places or self.standbys):
            return []
        from recovery.backup.erase import search_place, search_standby
        from recovery.places.opening import open_place

        found = [search_place(open_place(each), self.wanted) for each in self.places]
        return [*found, *(search_standby(each, self.wanted) for each in self.standbys)]

    def erased(self) -> list[ErasedCopy]:
        """Erase the keys from the copies, and return what was done at each. A copy that fails is one that still may
        hold the keys."""
        if not (self.places or self.standbys):
            return []
        from recovery.backup.erase import erase_place, erase_standby
        from recovery.places.opening import open_place

        clock = SystemClock()

        def at_place(address: str) -> ErasedCopy:
            place = open_place(address)
            return erase_place(place, self.wanted, lambda: self.backed_up(place, address), clock)

        def at_standby(standby: Path) -> ErasedCopy:
            return erase_standby(standby, self.wanted, clock)

        found = [_tried(each, partial(at_place, each)) for each in self.places]
        return [*found, *(_tried(str(each), partial(at_standby, each)) for each in self.standbys)]

    def backed_up(self, place: Place, address: str) -> Made:
        """Make a backup of whole partitions."""
        from recovery.backup.make import make_backup
        from recovery.backup.writer import Writer

        clock, random_id = SystemClock(), lambda: token_hex(4)
        writer = Writer(self.directory, place, clock, random_id, place=address)
        with looked_at(self.directory, self.access) as store, files_of(store) as files:
            return make_backup(files, place, clock=clock, random_id=random_id, writer=writer, home=self.directory)


def _tried(location: str, work: Callable[[], ErasedCopy]) -> ErasedCopy:
    from recovery.backup.erase import ErasedCopy

    try:
        return work()
    except RecoveryError as error:
        return ErasedCopy(location, left=(location,), why=error.found)


def _report(
    directory: Path,
    found: Sequence[Found],
    ids: Sequence[str],
    done: Erased | None,
    copies: Sequence[ErasedCopy],
    dry_run: bool,
    as_json: bool,
    native: bool,
    keys: Sequence[KeyToErase],
) -> None:
    texts = list(dict.fromkeys(each.key for each in keys))
    there = {keys[position].key for each in found for position in each.keys}
    missing = [number for number, text in enumerate(texts, 1) if text not in there]
    unnamed = _unnamed(directory, [each.location for each in copies])
    if as_json:
        facts: dict[str, Any] = {
            "directory": str(directory),
            "dry_run": dry_run,
            "rows": sum(each.rows for each in found),
            "found": [each.as_json() for each in found],
            "keys": len(texts),
            "keys_not_found": missing,
            "states": len(ids),
            "state_ids": list(ids) if dry_run else [],
            "execution": None if done is None else done.execution,
            "records": 0 if done is None else done.records,
            "copies": [each.as_json() for each in copies],
            "not_named": unnamed,
            "spark_state": native,
            "complete": not dry_run and not any(each.left for each in copies),
        }
        print_json(facts)
        return
    if dry_run and found:
        say(_table(found))
    if dry_run:
        for state_id in ids:
            say(one_line(f"operational state {state_id}"))
    if found or ids:
        say(one_line(f"{'would erase' if dry_run else 'erased'} {_counts(found, ids)} of {directory}, at every epoch"))
    else:
        say(one_line(f"{directory}: nothing of the key is left"))
    if done is not None and done.records:
        say(f"{counted(done.records, 'record')} of the run history named the key, and no longer does")
    for each in copies:
        say(one_line(_copy_text(each, dry_run)))
    if found and missing:
        numbers = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
        tell(f"of {counted(len(texts), 'key')}, {directory} had nothing of number {numbers} in the order given")
    for place in unnamed:
        tell(one_line(f"{place} has copies of {directory}: erase there too, a place with --place"))
    if native:
        tell("the flow has state of Spark's own operators, which was not looked at: see docs/erase.md")


def _copy_text(copy: ErasedCopy, dry_run: bool) -> str:
    if not copy.held and not copy.left:
        return f"{copy.location}: nothing of the key is there"
    held = counted(len(copy.held), "object" if copy.is_place else "file")
    if dry_run:
        would = f", of {counted(len(copy.removed), 'backup')}, which would be removed" if copy.removed else ""
        unread = f"; {counted(len(copy.left), 'object')} cannot be read" if copy.left else ""
        return f"{copy.location}: {held} with the key{would}{unread}"
    if copy.left:
        return f"{copy.location}: not erased: {copy.why}; left: {', '.join(copy.left[:3])}{' …' * (len(copy.left) > 3)}"
    replaced = "" if copy.backup is None else f"; backup {copy.backup} takes the place of "
    replaced += "" if copy.backup is None else counted(len(copy.removed), "removed backup")
    return f"{copy.location}: erased from {held}{replaced}"


def _table(found: Sequence[Found]) -> str:
    rows = (
        (one_line(each.step), "rows in quarantine" if each.waiting else "states", each.rows,
         "newest and older" if each.newest else "older only")
        for each in found
    )  # fmt: skip
    return table(("step", "what", "rows", "epochs"), rows)


def _counts(found: Sequence[Found], ids: Sequence[str]) -> str:
    steps = len({each.step for each in found})
    rows = f"{counted(sum(each.rows for each in found), 'row')} in {counted(steps, 'step')}"
    states = counted(len(ids), "operational state")
    return " and ".join(text for text, there in ((rows, found), (states, ids)) if there)


def _unnamed(directory: Path, named: Sequence[str]) -> list[str]:
    """Return other copies of the directory that are known: the places to which it was backed up or replicated last, if
    they were not named, and directories of the store before it was repartitioned."""
    from recovery.backup.note import last_backup, last_replica

    notes = (last_backup(directory), last_replica(directory))
    places = sorted({note.destination for note in notes if note is not None} - set(named))
    return [*places, *map(str, sorted(directory.absolute().parent.glob(f"{escape(directory.name)}.*.old")))]


def _incomplete(copies: Sequence[ErasedCopy]) -> ErasureIncompleteError:
    held = [each for each in copies if each.left]
    whys = "; ".join(dict.fromkeys(f"{each.location}: {each.why}" for each in held))
    return ErasureIncompleteError(f"{counted(len(held), 'copy', 'copies')} may still hold the key: {one_line(whys)}")
