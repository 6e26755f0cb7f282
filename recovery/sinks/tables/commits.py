"""What the commits of a table say: whose they are, what they did, and which marks outlast them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

RECORD = "recovery"
"""The field of a commit's metadata that holds its record."""
_PATH = re.compile(r"recovery-([^/]+)/([^/]+)/([0-9]+)-[^/]+/")


class AddedFile(msgspec.Struct, frozen=True):
    """A Parquet file of the table. path: below the table. modified_ms: milliseconds since 1970."""

    path: str
    size_bytes: int
    rows: int
    modified_ms: int
    partition: dict[str, str | None] = {}


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one of the sink's commits did: it committed an epoch, began an execution, or took epochs back.

    first_batch, last_batch: the micro-batches of the epoch. files: how many files it added; 0 if it merged rows. total:
    how many the execution has added up to this epoch; one that merged rows counts as one. taken_back: execution and
    epoch of each commit whose rows this one removed. accepts: whether the run goes on although rows of closed epochs
    that were committed before are no longer in the table. formers: the stores whose place `store` takes; older versions
    recorded none.
    """

    store: str
    execution: str
    epoch: int = 0
    first_batch: int = 0
    last_batch: int = 0
    files: int = 0
    taken_back: tuple[tuple[str, int], ...] = ()
    total: int = 0
    accepts: bool = False
    formers: tuple[str, ...] = ()

    def has(self, path: str) -> bool:
        """Whether a file, named by its path below the table, is of the epoch."""
        found = written_by(path)
        if found is None:
            return False
        store, execution, batch = found
        return (store, execution) == (self.store, self.execution) and self.first_batch <= batch <= self.last_batch


class Commit(msgspec.Struct, frozen=True):
    """A version of the table, which grows along its history.

    record: None if somebody else made it. operation: what it did, in the format's words. harmless: it changed no row.
    replaces: it put other rows in the place of all. undone_by: the operation that left it out of the table later.
    """

    version: int
    record: Record | None
    operation: str = ""
    harmless: bool = False
    replaces: bool = False
    undone_by: str | None = None


@dataclass(frozen=True, slots=True)
class CommitHistory:
    """The commits of a table that are still known, newest first.

    whole: whether the oldest of them is the table's first. lost: how it is known, without the commit itself, that the
    newest commit of the store is not in the table any more; empty: it is not.
    """

    commits: tuple[Commit, ...]
    whole: bool
    lost: str = ""


Change: TypeAlias = Callable[[Any, Any], None]
"""Makes a commit, from an open table or transaction, and the metadata of the commit."""
Mark: TypeAlias = tuple[str, int]
"""An application and its version, which the table keeps when it forgets the commit that set it."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to commit to a version of a table. marks: to be set beside the one that names the commit."""

    record: Record
    change: Change
    marks: tuple[Mark, ...] = ()


def app_of(store_id: str, execution_id: str) -> str:
    """Return the application in whose name an execution commits epochs; see `EpochOutput.app_id`."""
    return f"recovery-{store_id}-{execution_id}-epoch"


def execution_of(application: str) -> tuple[str, str] | None:
    """Return store and execution of the application in whose name epochs are committed; None if the application is not
    a store's."""
    store, _, execution = application.removeprefix("recovery-").removesuffix("-epoch").rpartition("-")
    return (store, execution) if store and app_of(store, execution) == application else None


def files_of(store_id: str, execution_id: str) -> str:
    """Return the application whose version is how many files an execution has added; see `Record.total`."""
    return f"recovery-{store_id}-{execution_id}-files"


def start_of(store_id: str, execution_id: str) -> str:
    """Return the application in whose name an execution begins; its version is the number under which it does."""
    return f"recovery-{store_id}-{execution_id}-start"


def written_by(path: str) -> tuple[str, str, int] | None:
    """Return the store, execution and micro-batch that wrote a file, by its path below the table; None if none did."""
    found = _PATH.match(path)
    return None if found is None else (found[1], found[2], int(found[3]))
