"""The backups at one place: listing them, making a new backup count, and removing unwanted backups.

Backups share objects: a partition that did not change is not stored again, and of one that changed a backup may store
only the changes; its manifest lists all objects of the chain. So removing a backup must not remove objects
that another backup needs, or that a backup being made on another machine will need. No store has locks, so:

Making a backup
    make.1  Take the newest manifest as the base. Write `running/<id>`, with the names of the base's objects.
    make.2  Check that the base's manifest is still there. If not, take another base (make.1).
    make.3  Write the objects of partitions that changed, each under a name of this backup's own.
    make.4  Check that `running/<id>` is still there. Write the manifest: from now on the backup counts. Check again: if
            a pruning has removed the note meanwhile, remove the manifest.
    make.5  Remove `running/<id>`.

Removing backups
    prune.1 List the objects, then read all manifests, and choose which to keep.
    prune.2 Remove all other manifests, and files under `running/` that are older than a day, or whose process has
            certainly ended: only this host can know that. Remove unreadable manifests that are older than a day and
            that the rules would not keep if they were readable.
    prune.3 Read `running/`, and then list the manifests again and read those that are new.
    prune.4 Remove the objects listed in prune.1, except those that a manifest lists that was kept in prune.1 or found
            in prune.3, those that `running/` names, and those whose name has the id of a backup that is running or
            whose manifest is unreadable. If no manifest is readable, remove none.

All steps consider only names that backups give: the place may be shared with other programs' files.

Why pruning is safe: a backup that prune.3 does not see running is either finished, and then its manifest is seen; or it
began later, and then its objects are not in the list of prune.1, and make.2 finds that a removed base is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from recovery.backup.bundle import Manifests
from recovery.backup.catalog import Backup, Catalog, entries_of, exists, identity_of, read_manifest, stage
from recovery.backup.heads import Heads
from recovery.backup.manifest import (
    MANIFESTS,
    OBJECTS,
    RUNNING,
    SUFFIX,
    Maker,
    Manifest,
    OtherFormatError,
    decode,
    decode_announced,
    encode,
    manifest_name,
)
from recovery.base.wording import moment_text
from recovery.errors import BackupTargetError, ForeignPartitionError, UnsupportedVersionError
from recovery.host.processes import describe_holder, has_ended
from recovery.places.directory import DirectoryPlace
from recovery.places.packed import packed
from recovery.places.protocol import DRAFT, NO_FILE, Place, PlaceEntry
from recovery.planning.backups import KeepRule, backups_to_keep
from recovery.planning.following import age, lines
from recovery.storage.origin import Origin

READERS = 8
STALE_AFTER_S = 24 * 3600.0
SHOWN = 3
"""How many stores an error names."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The backups at a place, the latest one last, and the unreadable manifests."""

    manifests: tuple[Manifest, ...]
    unreadable: tuple[PlaceEntry, ...]

    @property
    def newest(self) -> Manifest | None:
        """The latest backup."""
        return self.manifests[-1] if self.manifests else None

    @property
    def lines(self) -> list[Manifest]:
        """The last backup of each line, the latest backup last: see `recovery.planning.following.lines`."""
        known = {manifest.id: manifest for manifest in self.manifests}
        return [known[each.name] for each in lines([stage(manifest) for manifest in self.manifests])]

    @property
    def unread(self) -> list[str]:
        """The names of the unreadable manifests that were written after the latest backup: each backup has an id after
        those of all that its writer found."""
        newest = "" if self.newest is None else self.newest.id
        return [entry.name for entry in self.unreadable if identity_of(entry.name) > newest]

    def as_json(self, shown: str) -> dict[str, Any]:
        """Return the backups as JSON values. shown: how the place is named."""
        return {
            "destination": shown,
            "backups": [manifest_json(manifest) for manifest in self.manifests],
            "unfinished": [entry.name for entry in self.unreadable],
            "unread": self.unread,
            "lines": lines_json(self.lines),
        }


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """Return a finished backup as JSON values."""
    return {
        "id": manifest.id,
        "store_id": manifest.store_id,
        "flow": manifest.flow_id,
        "taken_ms": manifest.started_ms,
        "finished_ms": manifest.finished_ms,
        "epoch": manifest.epoch,
        "term": manifest.term,
        "partitions": len(manifest.copies),
        "bytes": sum(copy.description.size_bytes for copy in manifest.copies),
        "objects": [name for copy in manifest.copies for name, _ in copy.objects],
    }


def lines_json(lines: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return the last backup of each line as JSON values; the last of them is the latest backup, which counts."""
    return [
        {
            "backup": each.id,
            "epoch": each.epoch,
            "term": each.term,
            "host": each.host,
            "taken_ms": each.started_ms,
        }
        for each in lines
    ]


@dataclass(frozen=True, slots=True)
class Running:
    """A backup that is being made, or was being made when it was killed, the objects of others that it may need, and
    the process that makes it, if one process makes all of it."""

    id: str
    needs: frozenset[str] = frozenset()
    maker: Maker | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the process that made it has certainly ended, so that nothing of it is written any more."""
        return self.maker is not None and has_ended(msgspec.structs.asdict(self.maker))


class BackupUnderWay(NamedTuple):
    """A note of a backup that may still be being made: its name at the place, and what people read."""

    name: str
    shown: str


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a pruning removed, or would remove. leftovers: the names of files of unfinished and unreadable backups."""

    kept: tuple[str, ...]
    removed: tuple[str, ...]
    leftovers: tuple[str, ...]
    objects: int
    stored_bytes: int


def list_backups(target: Place, besides: Container[str] = (), *, bundled: bool = True) -> Listing:
    """Read all manifests but those of the names in `besides`. bundled: False: read each one itself; see
    `recovery.backup.bundle`. Raises BackupTargetError."""
    entries = [
        entry for entry in entries_of(target, MANIFESTS) if entry.name.endswith(SUFFIX) and entry.name not in besides
    ]
    stored = Manifests(target, bundled=bundled)
    heads = Heads(stored)
    with stored.expecting(entries), ThreadPoolExecutor(READERS) as pool:
        found = list(pool.map(lambda entry: read_manifest(stored, entry, heads), entries))
    manifests = sorted((each for each in found if isinstance(each, Manifest)), key=lambda each: age(stage(each)))
    return Listing(tuple(manifests), tuple(entry for entry in found if isinstance(entry, PlaceEntry)))


def check_store(
    backups: Iterable[Backup | Manifest], store_id: str, shown: str, origins: Callable[[], Sequence[Origin]] = tuple
) -> None:
    """Check that these backups at a place are of this store. origins: what the store was made from. Raises
    ForeignPartitionError."""
    for backup in backups:
        if backup.store_id == store_id:
            continue
        made_from = {origin.store_id: origin for origin in origins()}
        found = f"it holds backups of store {backup.store_id}, and this is store {store_id}"
        if backup.store_id in made_from:
            raise ForeignPartitionError(
                f"{found}, which was {made_from[backup.store_id].verb} from it",
                path=shown,
                cause="Copies of both do not fit together.",
                remedy="Give this store a place of its own, where its first backup begins a new chain; keep the old "
                "place as long as you may go back to the old store.",
            )
        raise ForeignPartitionError(
            found,
            path=shown,
            cause="Another recovery directory is backed up there, or this directory was created a second time.",
            remedy="Give each recovery directory a backup destination of its own.",
        )


def begin(
    target: Place,
    identity: str,
    choose_base: Callable[[], Manifest | None],
    started_ms: int,
    maker: Mapping[str, Any] | None = None,
) -> Manifest | None:
    """Steps make.1 and make.2: announce the backup; returns the base, whose copies the backup may list again. maker:
    this process (`recovery.host.processes.as_holder`), if it alone writes to the place for this backup."""
    while True:
        base = choose_base()
        note = {
            "id": identity,
            "started_ms": started_ms,
            "needs": sorted(() if base is None else base.objects),
            **({} if maker is None or maker["process"] is None else {"maker": maker}),
        }
        target.write(running_name(identity), [packed(json.dumps(note).encode())])
        if base is None or exists(target, manifest_name(base.id)):
            return base
        target.delete(running_name(identity))


def finish(target: Place, manifest: Manifest) -> None:
    """Steps make.4 and make.5: make the backup count. Raises BackupTargetError if the backup was given up meanwhile."""
    running, written = running_name(manifest.id), False
    if exists(target, running):
        target.write(manifest_name(manifest.id), [encode(manifest)])
        written = True
    if not exists(target, running):
        if written:
            target.delete(manifest_name(manifest.id))
        raise BackupTargetError(
            f"backup {manifest.id} was treated as abandoned",
            path=target.shown,
            cause=f"The backup took longer than {STALE_AFTER_S / 3600:.0f} h, or the clock of a host is wrong, "
            "and old backups "
            "were pruned meanwhile.",
            remedy="Run it again, with more bandwidth, or more often so that each backup has less to copy.",
        )
    give_up(target, manifest.id)


def give_up(target: Place, identity: str) -> None:
    """Withdraw the announcement of this backup. The next pruning removes what the backup stored."""
    target.delete(running_name(identity))


def prune(
    target: Place,
    rules: Sequence[KeepRule],
    now_ms: int,
    catalog: Catalog | None = None,
    made: Manifest | None = None,
    *,
    dry_run: bool = False,
) -> Pruned:
    """Remove the backups that no rule keeps, and objects that no backup needs. The latest backup always stays.

    The next pruning completes one that was cut off. catalog: what this process knows of the place. made: the backup
    after which the directory prunes; it stays too, and so do backups of a later term: another directory has taken over.
    dry_run: write and remove nothing, and return what a pruning would remove now.

    Raises ForeignPartitionError for backups of several stores, or UnsupportedVersionError, and has removed nothing
    then; BackupTargetError.
    """
    catalog = catalog or Catalog(target)
    # prune.1
    objects = entries_of(target, OBJECTS)
    contents = catalog.look()
    _refuse_several_stores(contents.backups, target.shown)
    taken = [(each.id, each.started_ms) for each in contents.backups]
    kept_ids = backups_to_keep(taken, rules, now_ms)
    if made is not None:
        kept_ids |= {each.id for each in contents.backups if each.id == made.id or each.stage.term > made.term}
    kept = [each for each in contents.backups if each.id in kept_ids]
    removed = [each.id for each in contents.backups if each.id not in kept_ids]
    refuse_other_versions(target, contents.unreadable)
    # prune.2
    # The objects behind a damaged manifest are unchanged, and may be needed to recover data.
    torn = [
        entry
        for entry in contents.unreadable
        if entry.name not in backups_to_keep(_with_unreadable(taken, entry), rules, now_ms)
    ]
    leftovers = _leftovers(target, torn, now_ms)
    going = [*map(manifest_name, removed), *leftovers]
    # What a dry run leaves in place, and a pruning would no longer find.
    left = set(going) if dry_run else set()
    if not dry_run:
        for name in going:
            target.delete(name)
    # prune.3
    running = [_read_running(target, e) for e in _without(left, entries_of(target, RUNNING)) if e.size_bytes != NO_FILE]
    contents = catalog.look()
    kept += [each for each in contents.backups if manifest_name(each.id) not in left]
    # prune.4
    garbage = _unneeded(objects, kept, running, _without(left, contents.unreadable))
    if not dry_run:
        _delete_all(target, garbage)
        catalog.keep_bundle()
    return Pruned(
        kept=tuple(sorted({each.id for each in kept})),
        removed=tuple(removed),
        leftovers=tuple(leftovers),
        objects=len(garbage),
        stored_bytes=sum(entry.size_bytes for entry in garbage),
    )


def _delete_all(target: Place, entries: Iterable[PlaceEntry]) -> None:
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda entry: target.delete(entry.name), entries))


def _leftovers(target: Place, torn: Sequence[PlaceEntry], now_ms: int) -> list[str]:
    """Return the names of files of unfinished and unreadable backups that are older than a day, and of notes of backups
    whose process has ended: prune.2. torn: the unreadable manifests that no rule keeps."""
    drafts = [entry for entry in entries_of(target, MANIFESTS) if entry.name.endswith(DRAFT)]
    notes = entries_of(target, RUNNING)
    old = [entry.name for entry in (*drafts, *torn, *notes) if _is_stale(entry, now_ms)]
    return [*old, *(e.name for e in _without(set(old), notes) if _is_of_ended(target, e))]


def _is_stale(entry: PlaceEntry, now_ms: int) -> bool:
    return entry.written_ms < now_ms - STALE_AFTER_S * 1000


def _is_of_ended(target: Place, entry: PlaceEntry) -> bool:
    running = None if entry.size_bytes == NO_FILE else _read_running(target, entry)
    return running is not None and running.has_ended


def under_way(target: Place, now_ms: int) -> list[BackupUnderWay]:
    """Return the backups that may still be being made at a place. Raises BackupTargetError."""
    fresh = [entry for entry in entries_of(target, RUNNING) if not _is_stale(entry, now_ms)]
    found = []
    for entry in fresh:
        running = None if entry.size_bytes == NO_FILE else _read_running(target, entry)
        maker = None if running is None else running.maker
        if running is None or not running.has_ended:
            by = "" if maker is None else f", {describe_holder(msgspec.structs.asdict(maker))}"
            found.append(BackupUnderWay(entry.name, f"{entry.name} of {moment_text(entry.written_ms)}{by}"))
    return found


def _without(names: Container[str], entries: Iterable[PlaceEntry]) -> list[PlaceEntry]:
    """Return the entries that have none of these names."""
    return [entry for entry in entries if entry.name not in names]


def _unneeded(
    objects: Sequence[PlaceEntry],
    kept: Sequence[Backup],
    running: Sequence[Running | None],
    unreadable: Iterable[PlaceEntry],
) -> list[PlaceEntry]:
    """Return the objects that no backup needs, whether it is kept, running or unreadable: prune.4."""
    if None in running or not kept:
        # Either a backup is being announced now, and its needs are unknown yet; or no manifest is readable, which more
        # likely means a problem with the place than that nobody needs its objects.
        return []
    needed = {name for each in kept for name in each.objects}
    needed |= {name for each in running if each is not None for name in each.needs}
    ids = [each.id for each in running if each is not None]
    # Without its manifest, it is unknown which older objects a backup shares, so all older ones stay. Names sort by
    # age.
    for identity in (identity_of(entry.name) for entry in unreadable):
        ids.append(identity)
        needed |= {o.name for o in objects if o.name < f"{_folder(o.name)}{identity}"}
    return [
        o
        for o in objects
        if o.size_bytes != NO_FILE and o.name not in needed and not any(identity in o.name for identity in ids)
    ]


def _with_unreadable(taken: Sequence[tuple[str, int]], entry: PlaceEntry) -> list[tuple[str, int]]:
    """Return the backups and an unreadable one among them, which stands after all backups with an earlier id."""
    before = [each for each in taken if each[0] < identity_of(entry.name)]
    return [*before, (entry.name, entry.written_ms), *(each for each in taken if each not in before)]


def _refuse_several_stores(backups: Sequence[Backup], shown: str) -> None:
    stores = sorted({each.store_id for each in backups})
    if len(stores) > 1:
        raise ForeignPartitionError(
            f"it holds backups of {len(stores)} stores: {', '.join(stores[:SHOWN])}",
            path=shown,
            cause="Two places were copied into one.",
            remedy="Copy the manifests and objects of each store to a place of its own.",
        )


def refuse_other_versions(target: Place, unreadable: Iterable[PlaceEntry]) -> None:
    """Raises UnsupportedVersionError for a backup of a newer version, whose needs are unknown."""
    for entry in unreadable:
        try:
            decode(target.read(entry.name), identity_of(entry.name), Heads(target))
        except OtherFormatError as error:
            raise UnsupportedVersionError(f"{entry.name} has {error}", path=target.shown) from None
        except (ValueError, FileNotFoundError):
            continue


def is_damaged(target: Place, entry: PlaceEntry, now_ms: int) -> bool:
    """Return whether an unreadable manifest is damaged. In a directory a manifest appears whole. In a bucket an
    unreadable one may be a partial or interrupted upload, until it is a day old."""
    return isinstance(target, DirectoryPlace) or entry.written_ms < now_ms - STALE_AFTER_S * 1000


def is_listed(target: Place, identity: str) -> bool:
    """Return whether a backup's manifest is still there. Raises BackupTargetError."""
    return exists(target, manifest_name(identity))


def _read_running(target: Place, entry: PlaceEntry) -> Running | None:
    """Return what a running backup announced; None if it is not readable yet."""
    identity = identity_of(entry.name)
    try:
        found = decode_announced(target.read(entry.name))
        return Running(identity, frozenset(found.needs), found.maker)
    except FileNotFoundError:
        # It ended since it was listed; the caller reads its manifest next.
        return Running(identity)
    except ValueError:
        return None


def _folder(name: str) -> str:
    return name[: name.rindex("/") + 1]


def running_name(identity: str) -> str:
    """Return the name of the note that announces a backup."""
    return f"{RUNNING}{identity}{SUFFIX}"
