"""Storing what changed in a partition since the backup before, as the next link of its chain.

link.1  Choose the epoch that the link continues. Without a chain, or if the chain has grown as long or as large as it
        may, the partition is stored whole. link.2  Write the link as a changes file, which proves itself complete (see
        `recovery.storage.sqlite.transfer.changes_file`). link.3  If it completes a level of the chain, merge it with
        the changes files of that level. link.4  Write the new changes file to the target. This file replaces the merged
        ones in this backup's manifest; earlier manifests still list the merged ones.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from recovery.backup.manifest import object_name
from recovery.backup.objects import SpoiledObject, bring, fetch_object, store_file
from recovery.backup.progress import FileProgress, Observer, ignore
from recovery.backup.stored import StoredChanges, StoredCopy
from recovery.base.ids import NO_EPOCH, Epoch
from recovery.errors import CorruptPartitionError
from recovery.places.protocol import Place
from recovery.planning.chains import continues, merged_from, outgrown
from recovery.planning.held import listed_from
from recovery.storage.copies import PinnedPartition, merge, replay
from recovery.storage.verify import PartitionCheck


class NoLink(Exception):  # noqa: N818 - not an error: the partition is stored whole
    """Why a partition is stored whole."""


class Linking(NamedTuple):
    """Where links are stored, and by which backup. check: read each chain in full before a link is added to it.
    running: the name of the note that announces the backup at the target. since: an epoch that all partitions held at
    the backup before: the copies list what they hold from there on, so that their lists have an epoch in common."""

    target: Place
    identity: str
    taken_ms: int
    check: bool
    observe: Observer
    running: str = ""
    since: Epoch = NO_EPOCH


class WrittenLink(NamedTuple):
    """A link in a changes file `path`, the copy that it continues, and the number of links in each changes file of the
    chain that it ends. first: the position in the chain of the file that holds it. after: the epoch that it
    continues."""

    path: Path
    before: StoredCopy
    counts: tuple[int, ...]
    first: int
    after: Epoch


def write_link(linking: Linking, scratch: Path, before: StoredCopy | None, pinned: PinnedPartition) -> WrittenLink:
    """Write a link after the copy `before` to a file in `scratch`: link.1 and link.2.

    Raises NoLink, CorruptPartitionError if the partition is damaged, BackupTargetError or StorageError.
    """
    # link.1
    if before is None:
        raise NoLink("there is no earlier copy to continue")
    why = outgrown(before.links, before.stored_bytes, sum(each.stored_bytes for each in before.changes))
    if why is not None:
        raise NoLink(why)
    start = continues(before.description, pinned.description)
    if start.epoch is None:
        pinned.describe_from(NO_EPOCH)
        start = continues(before.description, pinned.description)
    if start.epoch is None:
        raise NoLink(start.why_not)
    # Its row says from which rows the link begins.
    pinned.describe_from(start.epoch)
    if not pinned.is_current or pinned.marks.measure < before.marks.measure:
        raise NoLink("its file was made by an older version, or its measures were lost")
    # link.2
    link, name = before.links + 1, pinned.path.name
    # After going back, measures of the same numbers may be other ones.
    went_back = start.epoch != before.description.newest_epoch
    since = before.marks._replace(measure=0) if went_back else before.marks
    made = scratch / f"{name}.changes"
    whole = pinned.write_changes(made, link, start.epoch, len(before.description.executions), since, linking.taken_ms)
    if not whole:
        raise NoLink("a run began meanwhile")
    if linking.check:
        try:
            _check_chain(linking, scratch, before, made)
        except SpoiledObject as error:
            raise NoLink(error.found) from error
    counts = (*(each.links for each in before.changes), 1)
    return WrittenLink(made, before, counts, len(before.changes), start.epoch)


def merge_link(linking: Linking, scratch: Path, link: WrittenLink) -> WrittenLink:
    """Merge a link that completes a level of its chain with the changes files of that level: link.3. Raises NoLink if
    one of them is damaged, BackupTargetError or StorageError."""
    first = merged_from(link.counts)
    if first == link.first:
        return link
    try:
        return link._replace(path=_merged(linking, scratch, link.before.changes[first:], link.path), first=first)
    except SpoiledObject as error:
        raise NoLink(error.found) from error


def store_link(linking: Linking, link: WrittenLink, pinned: PinnedPartition) -> StoredCopy:
    """Write the changes file to the target, and return the copy that the chain then is: link.4. `pinned` may be
    released. Raises BackupTargetError or StorageError."""
    path, before, counts, first, _ = link
    own = object_name(linking.identity, pinned.description.index, "changes")
    tell = partial(FileProgress, name=pinned.path.name, bytes_total=path.stat().st_size)
    stored = store_file(linking.target, own, path, lambda done: linking.observe(tell(step="store", bytes_done=done)))
    path.unlink()
    linking.observe(tell(step="linked", bytes_done=stored.size_bytes))
    new = StoredChanges(own, stored.sha256, stored.size_bytes, stored.stored_bytes, sum(counts[first:]))
    return replace(
        before,
        description=listed_from(pinned.description, min(link.after, linking.since)),
        taken_ms=linking.taken_ms,
        fingerprint=pinned.fingerprint,
        changes=(*before.changes[:first], new),
        marks=pinned.marks,
    )


def _check_chain(linking: Linking, scratch: Path, before: StoredCopy, made: Path) -> None:
    """Read the chain in full, replay the new link, and check every digest. Raises SpoiledObject."""
    path = scratch / f"{made.name}.check"
    name = before.origin
    try:
        bring(linking.target, before, path, ignore)
        replay(path, [made], before.links + 1, done=before.links)
        problems = PartitionCheck(path).run().problems
    except CorruptPartitionError as error:
        raise SpoiledObject(None, f"what changed does not follow {name}: {error.found}") from error
    finally:
        path.unlink(missing_ok=True)
    if problems:
        raise SpoiledObject(None, f"{name} and what changed since are not whole: {problems[0]}")


def _merged(linking: Linking, scratch: Path, changes: tuple[StoredChanges, ...], made: Path) -> Path:
    """Fetch changes files and merge them with the new one. Raises SpoiledObject."""
    files = [scratch / f"{made.name}.{n}" for n in range(len(changes))]
    target = scratch / f"{made.name}.merged"
    try:
        for file, each in zip(files, changes, strict=True):
            fetch_object(linking.target, each.object_name, each.sha256, each.size_bytes, file, lambda _: None)
        merge([*files, made], target)
    except CorruptPartitionError as error:
        raise SpoiledObject(None, f"its chain cannot be merged: {error.found}") from error
    finally:
        for file in (*files, made):
            file.unlink(missing_ok=True)
    return target
