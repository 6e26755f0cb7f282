"""All partitions of a store as files of this host: whole copies of those that are elsewhere, for commands that read."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from recovery.base.clock import Clock
from recovery.base.threads import each, is_stopped
from recovery.errors import InconsistentPartitionsError, StorageError
from recovery.host.durable import create
from recovery.host.scratch import scratch_directory
from recovery.host.storage_errors import storage_errors
from recovery.planning.resume import plan_resume
from recovery.planning.values import PartitionDescription
from recovery.storage.copies import pin
from recovery.storage.scan import scan
from recovery.storage.store import AT_ONCE, Store
from recovery.storage.verify import naming
from recovery.wire.calls import OwnerCalls, Piece

ATTEMPTS = 3


@contextlib.contextmanager
def files_of(store: Store) -> Iterator[Path]:
    """Yield a directory of this host with all partitions as files: that of the store; with owners, what `copies_of`
    yields."""
    if not store.owners:
        yield store.directory
        return
    with copies_of(store) as directory:
        yield directory


@contextlib.contextmanager
def copies_of(store: Store) -> Iterator[Path]:
    """Yield a directory with copies of all partitions, which is removed afterwards. Errors of the block name the files
    that were copied. Raises what `copied` raises."""
    with scratch_directory("read") as room:
        directory = copied(store, room)
        with naming(directory, str(store.directory), store.shown):
            yield directory


@contextlib.contextmanager
def locked_files_of(store: Store, clock: Clock, purpose: str) -> Iterator[Path]:
    """Yield what `files_of` yields; with owners, all locations are locked until the block ends. Without owners, the
    block locks the directory. Raises what `Store.locked` raises."""
    if not store.owners:
        yield store.directory
        return
    with store.locked(clock, purpose) as held, copies_of(held) as directory:
        yield directory


def copied(store: Store, room: Path) -> Path:
    """Copy the partitions of a store to a new directory in `room`, and return it. Works during a run.

    The copies are of one moment, so they hold the newest epoch that was closed in all partitions. Raises the errors of
    planning, StorageError, and what the owners refuse with.
    """
    for attempt in range(ATTEMPTS):
        directory = room / f"copies-{attempt}"
        directory.mkdir()
        _copy(store, plan_resume(store.found()).partitions, directory)
        try:
            plan_resume(scan(directory))
        except InconsistentPartitionsError:
            shutil.rmtree(directory)
        else:
            return directory
    raise StorageError(
        "no consistent copies could be taken",
        path=store.directory,
        cause="Meanwhile runs started and ended, or a run closed epochs faster than its backup interval keeps them.",
        remedy="Run the command again; if it fails again, give the run a longer backup interval, such as -b 10m.",
    )


def _copy(store: Store, partitions: Sequence[PartitionDescription], directory: Path) -> None:
    """Copy these partitions. The copies' transactions begin within milliseconds of each other, wherever they are."""
    with contextlib.ExitStack() as held:
        coming: list[tuple[Generator[Piece, None, None], list[str]]] = []
        for owner in store.owners:
            names = [each.path.name for each in partitions if store.owner_of(each.index) is owner]
            if names:
                pieces = owner.stream(OwnerCalls.copies, names)
                held.enter_context(contextlib.closing(pieces))
                coming.append((pieces, names))
        each(lambda source: next(source[0]), coming, at_once=AT_ONCE, name="owner")
        pinned = pin(each.path for each in partitions if store.owner_of(each.index) is None)
        for one in pinned:
            held.callback(one.release)
        takes: list[Callable[[], object]] = [partial(_receive, pieces, names, directory) for pieces, names in coming]
        takes += [partial(one.copy_to, directory / one.path.name) for one in pinned]
        each(lambda take: take(), takes, at_once=AT_ONCE, name="copy")


def _receive(pieces: Generator[Piece, None, None], names: Collection[str], directory: Path) -> None:
    """Write what an owner sends to files of these names. Raises StorageError if the owner sends anything else."""
    came: list[str] = []
    with contextlib.ExitStack() as opened:
        for piece in pieces:
            if is_stopped():
                return
            with storage_errors(directory):
                if not came or came[-1] != piece.name:
                    if piece.name not in names or piece.name in came:
                        raise StorageError(f"an owner sent {piece.name!r:.80}, which is not due")
                    came.append(piece.name)
                    opened.close()
                    file = opened.enter_context(os.fdopen(create(directory / piece.name), "wb"))
                file.write(piece.data)
    if sorted(came) != sorted(names):
        raise StorageError(f"an owner sent {', '.join(came) or 'nothing'} instead of {', '.join(names)}")
