"""`recovery erase DIR`."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from recovery.backup.erase_state import StateVersions
from recovery.backup.erased import ErasedCopy
from recovery.backup.note import forget_last_drill, is_in_last_drill
from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.untrusted_paths import read_named
from recovery.base.wording import counted
from recovery.cli.asking import ask
from recovery.cli.common import DIRECTORY, directory_argument, json_option, print_json, say, tell, tell_error
from recovery.cli.dry_run import dry_run_option
from recovery.cli.erase_copies import NamedCopies, beside, known_copies
from recovery.cli.option import option, yes_option
from recovery.cli.owners import owner_options, store_at
from recovery.cli.tables import table
from recovery.errors import ConfigurationError, ErasureIncompleteError
from recovery.operational.steps.erasing import (
    Erased,
    Found,
    InHistory,
    documents,
    erase,
    has_spark_state,
    in_history,
    look,
    nothing_found,
)
from recovery.operational.steps.step_edits import backend_of
from recovery.planning.resume import plan_resume
from recovery.storage.erasing import SoughtKeys
from recovery.storage.hydration import refuse_hydrating
from recovery.storage.seam import KeyToErase
from recovery.storage.store import OwnerAccess, Store

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
@option("--place", "places", metavar="PLACE", multiple=True,
        help="Also in this [place of backups](backup.md), which `backup` or --replicate fills: make a backup without "
             "the key, and remove those that hold it.")  # fmt: skip
@option("--standby", "standbys", metavar="STANDBY_DIR", type=DIRECTORY, multiple=True,
        help="Also in this [standby](backup.md#a-standby), by following its place once. No `follow` may be "
             "active.")  # fmt: skip
@option("--killed-backups", is_flag=True,
        help="Take the backups that are announced at the places as killed. Of this host the command knows that itself; "
             "say it of another host if nothing of the backup runs there any more.")  # fmt: skip
@dry_run_option("Only show where the key is found, in the places and standbys too. Works during a run.")
@yes_option
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
    killed_backups: bool,
    dry_run: bool,
    yes: bool,
    access: OwnerAccess,
    as_json: bool,
) -> None:
    """Erase a key, such as a person's, at every held epoch.

    Erases the key's states, their history, and its rows in quarantine, and rewrites the files so that no byte is left.
    Nothing brings the key back but input that has it. End the run first. The command searches all named copies before
    it changes anything, and asks before it erases. Ends with 44 if nothing of the key is found, and with 19 if a copy
    that was named still holds it.
    """
    keys = _keys([*given, *_read(key_file)], steps, states)
    refuse_hydrating(directory, "erase")
    store = store_at(directory, access)
    first, *others = plan_resume(store.found()).partitions
    wanted = SoughtKeys(keys, first.store_id, len(others) + 1, states)
    seen = _Seen(
        directory,
        wanted.store_id,
        keys,
        look(store, keys),
        documents(store, states, SystemClock()) if states else [],
        in_history(store, keys, SystemClock()),
        is_in_last_drill(directory, wanted.are_named_in),
        has_spark_state(store),
        known_copies(directory, [*places, *map(str, standbys)]),
    )
    copies = NamedCopies(directory, access, wanted, places, standbys, killed=killed_backups)
    versions = StateVersions(backend_of(store, SystemClock()), wanted)
    if not dry_run:
        store.check_free()
    there = [*copies.searched(dry_run=dry_run), *versions.found(seen.ids), *beside(store, wanted, copies.standbys)]
    if dry_run:
        _check_found(store, keys, bool(seen), there)
        _report(seen, None, there, dry_run, as_json)
        return
    if not yes:
        _ask(seen, there, has_named=bool(copies or versions))
    elsewhere = copies or versions or seen.drill or any(each.left for each in there)
    done = erase(store, keys, SystemClock(), states=states, required=not elsewhere)
    there = [*copies.erased(), *versions.erased(), *beside(store, wanted, copies.standbys)]
    _check_found(store, keys, done is not None or seen.drill, there)
    # The backup of a place has brought a note to the directory before the place lost it.
    forget_last_drill(directory, wanted.are_named_in)
    _report(seen if done is None else replace(seen, found=done.found), done, there, dry_run, as_json)
    if not all(each.is_done for each in there):
        error = _incomplete(there)
        if not as_json:
            tell_error(error)
        raise SystemExit(error.exit_code)


def _keys(texts: Sequence[str], steps: Sequence[str], states: Sequence[str]) -> tuple[KeyToErase, ...]:
    """Return what the options name, each key once. Raises UsageError for nothing, and for an empty key of any step."""
    texts = list(dict.fromkeys(texts))
    if not (texts or states):
        raise click.UsageError("Give --key, --key-file or --state.")
    if "" in texts and not steps:
        # A variable of a script that is not set.
        raise click.UsageError("The key is empty: that of the rows that a condition puts aside. Name their --step.")
    return tuple(KeyToErase(step, text) for text in texts for step in (steps or (None,)))


@dataclass(frozen=True, slots=True)
class _Seen:
    """What there is of the keys besides copies. ids: of documents of operational state that are to go. drill: the
    note of the last drill names a key. native: there is state of Spark's own operators. unnamed: known copies that the
    command does not name."""

    directory: Path
    store_id: str
    keys: Sequence[KeyToErase]
    found: Sequence[Found]
    ids: Sequence[str]
    recorded: InHistory
    drill: bool
    native: bool
    unnamed: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.found or self.ids or self.named)

    @property
    def named(self) -> str:
        """What names a key besides rows, or is to be completed, in words; empty: nothing."""
        records, is_unfinished = self.recorded
        told = (
            f"the run history names the key in {counted(records, 'record')}" if records else "",
            "an erasure that did not come to its end is to be completed" if is_unfinished else "",
            "the note of the last drill names the key" if self.drill else "",
        )
        return "; ".join(filter(None, told))


def _ask(seen: _Seen, copies: Sequence[ErasedCopy], *, has_named: bool) -> None:
    """Show what would be erased, and ask. has_named: some of the copies are named, and erased from too."""
    also = " and of the named copies" if has_named else ""
    held = [each for each in copies if each.held]
    for each in copies:
        if each.held or each.left or each.why:
            tell(one_line(_copy_text(each, True)))
    if seen.found or seen.ids:
        if seen.found:
            tell(_table(seen.found))
        what = f"{_counts(seen.found, seen.ids)} of {seen.directory}{also}"
        question = f"Erase {what}, at every epoch? Nothing brings them back."
    elif seen:
        question = f"{seen.named}. Erase the rest of the key in {seen.directory}{also}?"
    elif held:
        question = f"{seen.directory} has nothing of the key. Erase it from {'; '.join(at.location for at in held)}?"
    else:
        return
    ask(question, False)


def _read(key_file: str | None) -> list[str]:
    if key_file is None:
        return []
    try:
        content = _piped() if key_file == "-" else read_named(local_path(key_file, NAMED), MOST_BYTES)
        # Some editors begin a file with a mark, and end lines in two characters.
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the keys in {key_file} cannot be read: {error}", cause="", remedy="Give a file with a key on each line."
        ) from None
    return [line for line in text.split("\n") if line]


def _piped() -> bytes:
    """Return what standard input has. Raises OSError for more than `MOST_BYTES`: half a key is another key."""
    content = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES:,} bytes")
    return content


def _report(seen: _Seen, done: Erased | None, copies: Sequence[ErasedCopy], dry_run: bool, as_json: bool) -> None:
    found, ids, recorded, directory = seen.found, seen.ids, seen.recorded, seen.directory
    texts = list(dict.fromkeys(each.key for each in seen.keys))
    there = {seen.keys[position].key for each in found for position in each.keys}
    missing = [number for number, text in enumerate(texts, 1) if text not in there]
    records = recorded.records if dry_run else 0 if done is None else done.records
    if as_json:
        facts: dict[str, Any] = {
            "directory": str(directory),
            "store_id": seen.store_id,
            "finished_ms": SystemClock().wall_ms(),
            "dry_run": dry_run,
            "rows": sum(each.rows for each in found),
            "found": [each.as_json() for each in found],
            "keys": len(texts),
            "keys_not_found": missing,
            "states": len(ids),
            "state_ids": list(ids) if dry_run else [],
            "execution": None if done is None else done.execution,
            "records": records,
            "unfinished": recorded.is_unfinished,
            "last_drill": seen.drill,
            "copies": [each.as_json() for each in copies],
            "not_named": list(seen.unnamed),
            "spark_state": seen.native,
            "complete": not dry_run and all(each.is_done for each in copies),
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
    elif not (dry_run and seen):
        say(one_line(f"{directory}: nothing of the key is left"))
    if dry_run and seen.named:
        say(seen.named)
    elif records:
        say(f"the key is taken out of {counted(records, 'record')} of the run history")
    for each in copies:
        say(one_line(_copy_text(each, dry_run)))
    if found and missing:
        numbers = ", ".join(map(str, missing[:20])) + (", …" if len(missing) > 20 else "")
        tell(f"of {counted(len(texts), 'key')}, {directory} had nothing of number {numbers} in the order given")
    for place in seen.unnamed:
        tell(one_line(f"{place} has copies of {directory}: erase there too, a place with --place"))
    tell("not reached, if they have the key: the flow's input and output, and copies by others; see docs/erase.md")
    if seen.native:
        tell("the flow has state of Spark's own operators, which was not looked at: see docs/erase.md")


def _check_found(store: Store, keys: Sequence[KeyToErase], is_seen: bool, copies: Sequence[ErasedCopy]) -> None:
    """Raise StateNotFoundError if no copy has, or may have, a key. is_seen: the directory had one."""
    if not (is_seen or any(each.held or each.left for each in copies)):
        unseen = (f" (not looked at: {each.unseen})" if each.unseen else "" for each in copies)
        raise nothing_found(store, keys, [f"{each.location}{but}" for each, but in zip(copies, unseen, strict=True)])


def _copy_text(copy: ErasedCopy, dry_run: bool) -> str:
    unseen = f"; not looked at: {copy.unseen}" if copy.unseen else ""
    if not (copy.held or copy.left or copy.why):
        return f"{copy.location}: nothing of the key is there{unseen}"
    held = counted(len(copy.held), "object" if copy.is_place else "file")
    if dry_run:
        would = f", of {counted(len(copy.removed), 'backup')}, which would be removed" if copy.removed else ""
        found = f"{held} with the key{would}" if copy.held else ""
        return f"{copy.location}: {'; '.join(filter(None, (found, copy.why)))}{unseen}"
    if copy.left:
        return f"{copy.location}: not erased: {copy.why}; left: {', '.join(copy.left[:3])}{' …' * (len(copy.left) > 3)}"
    replaced = "" if copy.backup is None else f"; backup {copy.backup} takes the place of "
    replaced += "" if copy.backup is None else counted(len(copy.removed), "removed backup")
    return f"{copy.location}: erased from {held}{replaced}{unseen}"


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


def _incomplete(copies: Sequence[ErasedCopy]) -> ErasureIncompleteError:
    held = [each for each in copies if not each.is_done]
    whys = "; ".join(dict.fromkeys(f"{each.location}: {each.why or f'not looked at: {each.unseen}'}" for each in held))
    ends = [each.until for each in held]
    until = max(filter(None, ends), default=None) if all(ends) else None
    return ErasureIncompleteError(
        f"{counted(len(held), 'copy', 'copies')} may still hold the key: {one_line(whys)}",
        remedy=f"Run the same command again after {until}, when the last lock has ended." if until else None,
    )
