"""Where a store comes from: the document of part-0 that `fork` and `repartition` write into the store that they make.

The document lists the store's origin, then the origin of that store, and so on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from recovery.base.untrusted_json import Count, Moment, decode_json
from recovery.base.wording import counted
from recovery.errors import AlreadyInitializedError, CorruptPartitionError, ForeignPartitionError, RecoveryError
from recovery.planning.resume import ResumePlan
from recovery.planning.values import FoundFile
from recovery.storage.documents import StoredState, change_states, home, read_states

DOCUMENT = "origin"
KEPT = 1000
BUSY_MS = 60_000

How = Literal["fork", "repartition"]
_VERBS: dict[str, str] = {"fork": "forked", "repartition": "repartitioned"}


@dataclass(frozen=True, slots=True)
class Origin:
    """The store that a store was made from.

    epoch: the newest one that came along. made_ms: when, wall time. partitions: how many the origin had. directory:
    where it was then. execution: the id of the origin's newest execution; "" if none had begun, or an older version
    made the record. newest: the newest epoch that any partition of the origin held.
    """

    how: How
    store_id: str
    epoch: Count
    made_ms: Moment
    partitions: Count
    directory: str
    execution: str = ""
    newest: Count = 0

    @property
    def verb(self) -> str:
        """How the store was made: `forked` or `repartitioned`."""
        return _VERBS[self.how]

    def as_json(self) -> dict[str, Any]:
        """Return the origin as JSON."""
        return asdict(self)

    def text(self, show_time: Callable[[int], str]) -> str:
        """Return the origin as a line for people; `show_time` formats milliseconds since 1970."""
        return (
            f"{self.verb} after epoch {self.epoch} from store {self.store_id} in {self.directory} "
            f"({counted(self.partitions, 'partition')}), {show_time(self.made_ms)}"
        )


@dataclass(frozen=True, slots=True)
class _Origins:
    """The document."""

    origins: tuple[Origin, ...]


def read_origins(directory: Path) -> tuple[Origin, ...]:
    """Return the stores that the store of a directory was made from, the nearest first; empty for one made by `init`.

    Raises CorruptPartitionError, also for a document that no version up to this one writes, NoPartitionsError,
    MissingPartitionsError or StorageError.
    """
    return _read(home(directory))


def add_origin(directory: Path, origin: Origin) -> None:
    """Record the store that the store of a directory was made from, before those that its part-0 already lists; durable
    when it returns. Raises CorruptPartitionError or StorageError."""
    path = home(directory)

    def change(stored: StoredState | None) -> str:
        origins = [origin, *origins_in(stored, path)][:KEPT]
        return json.dumps({"origins": [each.as_json() for each in origins]}, ensure_ascii=False, separators=(",", ":"))

    change_states(path, {DOCUMENT: change}, origin.made_ms, busy_ms=BUSY_MS)


def origin_of(directory: Path, how: How, plan: ResumePlan, made_ms: int) -> Origin:
    """Return the record of an origin in `directory`, whose name may hold bytes that are not text. plan: where a run
    would resume from it."""
    name = os.fsencode(directory.absolute()).decode(errors="replace")
    execution, newest = plan.held or ("", 0)
    return Origin(how, plan.store_id, plan.resume_epoch - 1, made_ms, len(plan.partitions), name, execution, newest)


def refuse_made(directory: Path, origin_store: str) -> None:
    """Raise AlreadyInitializedError if a directory holds a store that was made from the store of this id: the command
    that made it was repeated, as the error says."""
    for made in _read_quietly(directory / "part-0.sqlite3")[:1]:
        if made.store_id == origin_store:
            raise AlreadyInitializedError(
                f"it holds what was {made.verb} from store {origin_store} after epoch {made.epoch} already",
                path=directory,
                cause="The same command was run before.",
                remedy="Use the directory as it is; to make another one, name a new directory.",
            )


def continued(origins: Sequence[Origin]) -> tuple[str, ...]:
    """Return the ids of the stores whose place this store takes: from them to this store there were only
    repartitionings."""
    return tuple(each.store_id for each in takewhile(lambda each: each.how == "repartition", origins))


def name_relatives(found: Sequence[FoundFile]) -> list[FoundFile]:
    """Return the files of a directory; of two stores in it, where one was made from the other, the files of the origin
    become errors that say so."""
    described = [file.description for file in found if file.description is not None]
    if len({d.store_id for d in described}) < 2:
        return list(found)
    origins: dict[str, tuple[str, Origin]] = {}
    for d in described:
        if d.index == 0:
            origins |= {each.store_id: (d.store_id, each) for each in _read_quietly(d.path)}
    return [_named(file, origins) for file in found]


def _named(file: FoundFile, origins: dict[str, tuple[str, Origin]]) -> FoundFile:
    if file.description is None or file.description.store_id not in origins:
        return file
    store_id, origin = origins[file.description.store_id]
    error = ForeignPartitionError(
        f"a copy of the store that this one was {origin.verb} from: the file belongs to store {origin.store_id}, and "
        f"this is store {store_id}",
        path=file.path,
        cause=f"The file was copied here from {origin.directory}, or from a backup of it.",
        remedy="Put back this store's own file, from a backup made since.",
    )
    return replace(file, description=None, error=error)


def _read_quietly(path: Path) -> tuple[Origin, ...]:
    # The files of two stores are refused anyway; the origin only makes that clearer.
    try:
        return _read(path)
    except RecoveryError:
        return ()


def _read(path: Path) -> tuple[Origin, ...]:
    return origins_in(read_states(path, [DOCUMENT]).get(DOCUMENT), path)


def is_readable(content: Any) -> bool:
    """Return whether the content of the document is a record of origins, or none."""
    try:
        origins_in(None if content is None else StoredState(DOCUMENT, 1, json.dumps(content), 0), Path())
    except CorruptPartitionError:
        return False
    return True


def origins_in(stored: StoredState | None, path: Path) -> tuple[Origin, ...]:
    """Return the stores that a document lists. path: of part-0, for errors. Raises CorruptPartitionError."""
    if stored is None or stored.content is None:
        return ()

    def refuse(why: str) -> CorruptPartitionError:
        return CorruptPartitionError(
            f"its record of the store's origin cannot be read: {why}",
            path=path,
            cause="Another program wrote the record, or a newer version of recovery.",
            remedy=f"Remove the record: python -m recovery state clear DIR {DOCUMENT}",
        )

    return decode_json(stored.content, refuse, _Origins).origins
