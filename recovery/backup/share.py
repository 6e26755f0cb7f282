"""An owner's share of a backup: copies of its partitions, stored at the place by the owner's host.

The process `python -m recovery.backup.share`, which an owner service starts when a run replicates. The process gets one
line on its standard input that says where the partitions are, and then one line for each backup; it answers each line
for a backup with one line. So no secret of the place ever leaves this host: it has credentials of its own. The process
ends with its standard input.

A run ships each epoch, so both lines are as short as what changed: the process keeps the copies that it stored last,
the next request names them instead of listing them, and its answer leaves out what they say as well.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from recovery.backup.catalog import exists
from recovery.backup.heads import completed, is_same, shortened
from recovery.backup.links import Linking
from recovery.backup.make import FILES_PER_COPY, SpoiledChainError, Storing
from recovery.backup.manifest import StoredPartition, decode_copy, encode_copy
from recovery.backup.progress import ignore
from recovery.backup.stored import StoredCopy
from recovery.base.ids import Epoch
from recovery.base.printable import one_line
from recovery.errors import StorageError, with_path
from recovery.host.children import lines_of, tell_parent
from recovery.host.durable import make_directories
from recovery.host.open_files import allow_open_files
from recovery.host.scratch import scratch_directory
from recovery.places.mounted import limited
from recovery.places.opening import open_place
from recovery.places.protocol import Place
from recovery.storage.verify import damage_behind
from recovery.wire.messages import Refusal, as_refusal, as_typed
from recovery.wire.traffic import Repeats

NICENESS = 10


class OwnerDirectories(msgspec.Struct, frozen=True):
    """Where the partitions of this owner are, and its scratch directory."""

    directory: str
    scratch: str


class WantedShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """Store these partitions; without any, only look at the place. running: the name of the note that the run has
    written to the place, which proves that the place is the same one here. before: copies of them that may be listed
    again or continued. base: instead of `before`, the `identity` with which this process has stored those copies, as
    the last ones. since, in_full: see `Linking` and `Storing`."""

    destination: str
    running: str
    identity: str
    taken_ms: int
    check: bool
    incremental: bool
    store_id: str
    count: int
    indexes: list[int]
    before: list[dict[str, Any]]
    since: int = 0
    in_full: bool = True
    base: str = ""


class StoredShare(msgspec.Struct, frozen=True, omit_defaults=True):
    """The copies, each without what its copy of `WantedShare.base` says as well, or why there are none. whole_because:
    see `recovery.backup.make.Made`. spoiled: the partition whose chain before is damaged, and how. is_elsewhere: the
    address is another place on this host, and nothing was stored. lacks_base: the process does not have the copies of
    `WantedShare.base`, and nothing was stored."""

    copies: list[dict[str, Any]] = []
    whole_because: dict[str, str] = {}
    spoiled: tuple[int, str] | None = None
    refusal: Refusal | None = None
    is_elsewhere: bool = False
    lacks_base: bool = False


def encoded(copies: Sequence[StoredCopy], before: Sequence[StoredCopy] = ()) -> list[dict[str, Any]]:
    """Return copies as they are sent to a process that has those in `before`."""
    parts = {copy.description.index: encode_copy(copy) for copy in before}

    def sent(copy: dict[str, Any]) -> dict[str, Any]:
        part = parts.get(copy["index"])
        if part is None or not is_same(copy, part):
            return copy
        return {"index": copy["index"], **shortened(copy, part)}

    return [sent(encode_copy(copy)) for copy in copies]


def decoded(
    copies: list[dict[str, Any]], store_id: str, count: int, before: Sequence[StoredCopy] = ()
) -> list[StoredCopy]:
    """Return the copies of which `encoded` has made these. Raises StorageError."""
    parts = {copy.description.index: encode_copy(copy) for copy in before}
    try:
        whole = [completed(each, parts[each["index"]]) if "shared" in each else each for each in copies]
        return [decode_copy(msgspec.convert(each, StoredPartition), store_id, count) for each in whole]
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"copies that were sent cannot be read: {error}") from error


class Sharing:
    """Answers one request after the other. The object keeps the place open while nothing fails: opened again, a place
    may have other credentials, or its disk may be back."""

    def __init__(self, place: OwnerDirectories) -> None:
        self._directory, self._scratch = Path(place.directory), Path(place.scratch)
        self._last: tuple[str, list[StoredCopy]] = "", []
        """The copies that were stored last, and the identity with which they were."""
        self._targets: dict[str, Place] = {}
        self._logged = Repeats()
        self._stores = False
        """Whether the last request was done."""

    def answer(self, line: bytes) -> StoredShare:
        """Return the copies that a line of JSON (`WantedShare`) asks for, or why there are none."""
        try:
            wanted = msgspec.json.decode(line, type=WantedShare)
            target = self._targets.get(wanted.destination) or limited(open_place(wanted.destination))
            self._targets = {wanted.destination: target}
            make_directories(self._scratch)
            stored = self._share(wanted, target)
        except Exception as error:
            self._targets, self._stores = {}, False
            typed = as_typed(error, damage_behind, _log)
            self._say(f"copies were not stored: {one_line(with_path(typed.found, typed.path))}")
            return StoredShare(refusal=as_refusal(typed))
        place = one_line(target.shown)
        if stored.is_elsewhere:
            self._stores = False
            self._say(f"copies were not stored: what the run wrote to {place} is not there on this host")
        elif stored.copies and not self._stores:
            self._stores = True
            _log(f"copies are stored at {place}")
        return stored

    def _share(self, wanted: WantedShare, target: Place) -> StoredShare:
        """Store the partitions, if the run's note is at the place. Raises what `make_backup` raises for these
        partitions."""
        base, before = self._last
        if not wanted.base:
            before = decoded(wanted.before, wanted.store_id, wanted.count)
        elif wanted.base != base:
            return StoredShare(lacks_base=True)
        if not exists(target, wanted.running):
            return StoredShare(is_elsewhere=True)
        if not wanted.indexes:
            return StoredShare()
        linking = Linking(target, wanted.identity, wanted.taken_ms, wanted.check, ignore, since=Epoch(wanted.since))
        allow_open_files(len(wanted.indexes) * FILES_PER_COPY)
        paths = [self._directory / f"part-{index}.sqlite3" for index in wanted.indexes]
        with scratch_directory("backup", self._scratch) as room:
            storing = Storing(
                linking, room, before, incremental=wanted.incremental, staged=True, in_full=wanted.in_full
            )
            try:
                copies = storing.copies(paths, are_all=False)
            except SpoiledChainError as spoiled:
                return StoredShare(spoiled=(spoiled.copy.description.index, str(spoiled)))
        assert copies is not None
        self._last = wanted.identity, copies
        return StoredShare(encoded(copies, before if wanted.base else ()), storing.whole_because)

    def _say(self, text: str) -> None:
        """Log a line, unless the same one was logged lately: a run may ship many times a minute."""
        line = self._logged(text)
        if line is not None:
            _log(line)


def _log(text: str) -> None:
    # A full disk or a reader that has gone ends no shipping.
    with contextlib.suppress(OSError, ValueError):
        print(f"recovery serve: {text}", file=sys.stderr, flush=True)


def main() -> NoReturn:
    """Store what is asked for until the standard input ends."""
    # They reach all processes of a service; the owner lets a run close its epoch first.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asked = lines_of(os.getppid())
    sharing = Sharing(msgspec.json.decode(asked.get(), type=OwnerDirectories))
    os.nice(NICENESS)
    while True:
        tell_parent(msgspec.json.encode(sharing.answer(asked.get())))


if __name__ == "__main__":
    main()
