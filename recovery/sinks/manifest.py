"""The content of an output directory, and what to do about it when a run starts: values and pure functions.

The manifest has one entry per published epoch. Each entry carries the digest of the one before, so the last digest
identifies the whole output. The recovery partitions keep that digest as the note: after a crash, a rewind or a restored
backup, it connects a snapshot with the output that belongs to it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from recovery.base.untrusted_json import Count, Number, decode_json
from recovery.base.untrusted_paths import name_objection
from recovery.errors import OutputMismatchError, shown
from recovery.sinks.protocol import Resume

VERSION = 1
VISIBLE_NAME = re.compile(r"epoch-\d{8,}-[0-9a-f]+-\d{8,}-\d{5,}\.[\w.]+")
"""The names of published files: epoch, execution, micro-batch, and a number within it."""


@dataclass(frozen=True, slots=True)
class OutputOwner:
    """The owner of a directory's output. `sink` is a random id, drawn when the directory is first used.

    execution, number, host: of the run that may publish, the last one that began. formers: the stores whose place
    `store` takes. Older versions wrote none of these fields.
    """

    sink: str
    store: str
    flow: str
    format: str
    version: int = VERSION
    execution: str = ""
    number: Count = 0
    host: str = ""
    formers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file of the output. sha256: "" where it is not known, because only executors read the file."""

    name: str
    bytes: Count
    sha256: str


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """The output of one epoch; `previous` is the previous entry's digest, or the owner's sink id."""

    epoch: Count
    execution: str
    batch: Number
    files: tuple[OutputFile, ...]
    previous: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class FileSinkNote:
    """What the partitions keep of the output: the entry of their newest epoch. `path` is for people."""

    sink: str
    epoch: Count
    digest: str
    path: str


@dataclass(frozen=True, slots=True)
class OutputContent:
    """The content of the output directory. entries: the manifest's, each once; torn: it contains more than those.

    visible: sizes by name of the files that readers see. prepared: entries that are not published, or not certainly;
    waiting: sizes by name of the files of those entries.
    """

    owner: OutputOwner | None
    entries: tuple[ManifestEntry, ...]
    torn: bool
    visible: Mapping[str, int]
    prepared: tuple[ManifestEntry, ...]
    waiting: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How to leave exactly the output of the closed epochs.

    keep: entries of the manifest that stay. cut: whether the manifest must be rewritten for that.
    publish: entries to publish after those. remove: visible files to remove.
    """

    keep: tuple[ManifestEntry, ...]
    cut: bool
    publish: tuple[ManifestEntry, ...]
    remove: tuple[str, ...]


_EXECUTION = re.compile(r"[0-9A-Za-z-]+")
_ENTRY = msgspec.json.Decoder(ManifestEntry)
_DIGEST = b',"digest":"'


def visible_name(epoch: int, execution: str, batch: int, number: int, suffix: str) -> str:
    """Return the name that a file is published under; no other execution ever uses it."""
    return f"epoch-{epoch:08}-{execution}-{batch:08}-{number:05}{suffix}"


def sealed(entry: ManifestEntry) -> ManifestEntry:
    """Return the entry with its digest: the SHA-256 of its JSON up to the digest field, which is the last one."""
    head, _, _ = msgspec.json.encode(entry).rpartition(_DIGEST)
    return replace(entry, digest=hashlib.sha256(head).hexdigest())


def encode(value: OutputOwner | ManifestEntry | FileSinkNote) -> bytes:
    """Return the value as one line of JSON, without the line end."""
    return msgspec.json.encode(value)


def decode_note(text: str) -> FileSinkNote:
    """Decode a note. Raises OutputMismatchError for the note of another kind of sink."""

    def refuse(_why: str) -> OutputMismatchError:
        return OutputMismatchError(
            "the flow's output so far was written by another kind of sink",
            cause="The sink of the flow was changed.",
            remedy="Use the former sink, or begin a new output in an empty directory with FileSink(..., fresh=True).",
        )

    return decode_json(text, refuse, FileSinkNote)


def decode_owner(text: bytes | None, path: str) -> OutputOwner | None:
    """Decode the owner; None for a missing file. Raises OutputMismatchError if the file was changed, or written by a
    newer version."""
    if text is None:
        return None
    owner = decode_json(text, lambda why: OutputMismatchError(f"it cannot be read: {why}", path=path), OutputOwner)
    if owner.version != VERSION:
        raise OutputMismatchError(
            f"it is of version {owner.version}, and this package knows {VERSION}",
            path=path,
            cause="A newer version of recovery wrote this output.",
            remedy="Run with that version or a later one.",
        )
    return owner


def decode_entry(line: bytes, path: str) -> ManifestEntry | None:
    """Decode an entry; None if it is not whole. Raises OutputMismatchError for names that no run gives: they would lead
    out of the output directory."""
    head, _, rest = line.rpartition(_DIGEST)
    if rest != f'{hashlib.sha256(head).hexdigest()}"}}'.encode():
        return None
    try:
        entry = _ENTRY.decode(line)
    except (ValueError, RecursionError):
        return None
    odd = [name for name in (file.name for file in entry.files) if not VISIBLE_NAME.fullmatch(name)]
    if odd or name_objection(entry.execution) is not None:
        raise OutputMismatchError(
            f"an entry names {shown(odd[0] if odd else entry.execution)}, which is not a name that a run uses",
            path=path,
            cause="Something other than recovery wrote the entry, with a valid digest.",
            remedy="Do not use this output directory; restore the one that the flow wrote.",
        )
    return entry if entry.epoch >= 0 else None


def decode_manifest(data: bytes, path: str) -> tuple[tuple[ManifestEntry, ...], bool]:
    """Return the entries, each once, and whether the manifest holds more: a partial entry, or a repeated one.

    Raises OutputMismatchError for a damaged line before other lines: no crash does that.
    """
    entries: dict[str, ManifestEntry] = {}
    *lines, rest = data.split(b"\n")
    more = bool(rest)
    for number, line in enumerate(lines, 1):
        entry = decode_entry(line, path)
        if entry is not None:
            # A process that was stopped while publishing may wake up and append an entry that its successor has
            # appended.
            more = more or entry.digest in entries
            entries.setdefault(entry.digest, entry)
        elif number == len(lines) and not rest:
            more = True
        else:
            raise OutputMismatchError(f"line {number} of the manifest is damaged", path=path)
    return tuple(entries.values()), more


def chain(entries: Iterable[ManifestEntry], start: str, digest: str) -> tuple[ManifestEntry, ...] | None:
    """Return the entries after `start` up to the one with this digest; None if one of them is missing."""
    by_digest = {entry.digest: entry for entry in entries}
    found: list[ManifestEntry] = []
    while digest != start:
        if digest not in by_digest:
            return None
        found.append(by_digest.pop(digest))
        digest = found[-1].previous
    return tuple(reversed(found))


def plan_output(
    found: OutputContent, resume: Resume, *, format: str, path: str, fresh: bool, check_from: int
) -> OutputPlan:
    """Decide what a run does with the output directory when it starts. Raises OutputMismatchError.

    fresh: the flow's earlier output may be elsewhere. check_from: published files of earlier epochs may be missing.
    """
    try:
        note = None if resume.note is None else decode_note(resume.note)
    except OutputMismatchError:
        if not fresh:
            raise
        note = None
    if found.owner is None:
        _check_unused(found, note, path, fresh)
        return OutputPlan((), found.torn, (), ())
    _check_owner(found.owner, resume, format, path)
    _check_known(found, found.owner, resume, path)
    if note is not None and note.sink != found.owner.sink and fresh:
        note = None
    closed = _closed(found, found.owner, note, resume, path)
    # An entry that is still prepared may already be listed, but perhaps not durably.
    done = {entry.digest for entry in found.entries} - {entry.digest for entry in found.prepared}
    keep = tuple(itertools.takewhile(lambda entry: entry.digest in done, closed))
    publish = closed[len(keep) :]
    _check_files(keep, found, path, check_from)
    for entry in publish:
        check_waiting(entry, {**found.visible, **found.waiting}, path)
    names = {file.name for entry in closed for file in entry.files}
    remove = sorted(name for name in found.visible if VISIBLE_NAME.fullmatch(name) and name not in names)
    return OutputPlan(keep, found.torn or keep != found.entries, publish, tuple(remove))


def _check_unused(found: OutputContent, note: FileSinkNote | None, path: str, fresh: bool) -> None:
    if found.visible or found.entries or found.prepared:
        names = ", ".join(sorted(found.visible)[:3]) or "a manifest"
        raise OutputMismatchError(
            f"it holds {names}, and is not an output directory of a flow",
            path=path,
            cause="Another program uses the directory.",
            remedy="Give the sink a directory of its own that is empty or does not exist.",
        )
    if note is not None and not fresh:
        raise OutputMismatchError(
            f"the output of the epochs up to {note.epoch} is not here; it was written to {note.path}",
            path=path,
            cause="The directory was moved or deleted, or its disk is not mounted.",
            remedy="Put it back, or leave that output where it is and begin a new one here: FileSink(..., fresh=True).",
        )


def _check_owner(owner: OutputOwner, resume: Resume, format: str, path: str) -> None:
    resume.check_origin(path, owner.store, owner.formers, own="FileSink(NEW_DIRECTORY, fresh=True)")
    if not resume.shares(owner.store, owner.formers) or owner.flow != resume.flow_id:
        raise OutputMismatchError(
            f"it holds the output of flow {owner.flow!r} on recovery directory {owner.store}, "
            f"not of {resume.flow_id!r} on {resume.store_id}",
            path=path,
            cause="Two flows use one directory, or the recovery directory was created a second time, or repartitioned "
            "with an older version of recovery.",
            remedy="Give the sink a directory of its own that is empty or does not exist.",
        )
    if owner.format != format:
        raise OutputMismatchError(
            f"it holds {owner.format}, and the sink writes {format}",
            path=path,
            cause="The format was changed.",
            remedy=f"Keep {owner.format}, or begin a new output in an empty directory with FileSink(..., fresh=True).",
        )


def _check_known(found: OutputContent, owner: OutputOwner, resume: Resume, path: str) -> None:
    """Check that what would be taken back was written by executions that began on these partitions."""
    known = partial(resume.check_known, target=path, store=owner.store, formers=owner.formers)
    if owner.execution:
        # What others wrote before that, it was about to take back, or it came late.
        last = max((entry.epoch for entry in found.entries if entry.execution == owner.execution), default=0)
        known(owner.execution, number=owner.number, host=owner.host, epoch=last)
        return
    for entry in found.entries:
        if not resume.closed(entry.epoch, entry.execution):
            known(entry.execution, epoch=entry.epoch)
    for entry in found.prepared:
        # A run that was killed while it closed an epoch leaves its entry, and has not shown it.
        if not resume.closed(entry.epoch, entry.execution):
            known(entry.execution)


def _closed(
    found: OutputContent, owner: OutputOwner, note: FileSinkNote | None, resume: Resume, path: str
) -> tuple[ManifestEntry, ...]:
    """Return the entries of the closed epochs, published or prepared: the entries that lead to the note."""
    if note is None:
        older = next((entry for entry in found.entries if entry.epoch < resume.epoch), None)
        if older is not None:
            raise OutputMismatchError(
                f"it holds output of epoch {older.epoch}; the snapshot before epoch {resume.epoch} has no record of it",
                path=path,
                cause="The recovery partitions are older than this output, or belong to another timeline.",
                remedy="Give the sink an empty directory, or restore partitions and output from the same backup.",
            )
        return ()
    closed = chain((*found.entries, *found.prepared), owner.sink, note.digest)
    if closed is None:
        last = max((entry.epoch for entry in found.entries), default=0)
        raise OutputMismatchError(
            f"it does not hold all output up to epoch {note.epoch}, to which the snapshot belongs; its last is of "
            f"epoch {last}",
            path=path,
            cause="The output directory was restored from an older copy, or the partitions from another timeline.",
            remedy="Restore partitions and output from the same backup.",
        )
    return closed


def _check_files(kept: Sequence[ManifestEntry], found: OutputContent, path: str, check_from: int) -> None:
    """Check that every published file exists with its size."""
    files = [file for entry in kept if entry.epoch >= check_from for file in entry.files]
    wrong = _wrong(files, found.visible)
    if wrong:
        raise OutputMismatchError(
            wrong,
            path=path,
            cause="Published files were deleted, moved or changed.",
            remedy="Put them back. Old output may go only with FileSink(..., check='resumable').",
        )


def check_waiting(entry: ManifestEntry, sizes: Mapping[str, int], path: str) -> None:
    """Check that every file of a closed epoch that is about to be published exists with its size, whatever the sink
    checks of older output: no other file has its rows. sizes: by name, of prepared files and visible ones."""
    wrong = _wrong(entry.files, sizes)
    if wrong:
        raise OutputMismatchError(
            f"closed epoch {entry.epoch} is not published yet, and {wrong}",
            path=path,
            cause="Files below _recovery/prepared were deleted or changed.",
            remedy="Put them back. Or have the epoch computed again, as long as the one before is held: "
            f"--resume-after {entry.epoch - 1}.",
        )


def _wrong(files: Iterable[OutputFile], sizes: Mapping[str, int]) -> str:
    """Return what is wrong with files, empty if nothing is."""
    wrong = [
        f"{file.name} is {'missing' if size is None else f'{size} bytes long instead of {file.bytes}'}"
        for file in files
        if (size := sizes.get(file.name)) != file.bytes
    ]
    more = f", and {len(wrong) - 1} more have changed" if len(wrong) > 1 else ""
    return f"{wrong[0]}{more}" if wrong else ""
