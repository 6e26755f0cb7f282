"""The files that a run which goes back would read again: what can be seen of them without Spark and without the flow.

The run itself looks at all input, whatever the source is: `recovery.spark.inputs.look`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from recovery.appended.files import display
from recovery.appended.position import FilePosition, InputOffset
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.base.wording import counted
from recovery.checkpoint.reached import LOCAL, Reached, reached_between
from recovery.checkpoint.rows import Content
from recovery.errors import RecoveryError
from recovery.planning.lost_input import SHOWN_PARTS
from recovery.planning.resume import BEGINNING, ResumePlan
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store


@dataclass(frozen=True, slots=True)
class InputAgain:
    """Files of this host that a plan reads again. gone: files that are not there. changed: files with another
    modification time, or growing files that are shorter than what was read."""

    files: int
    gone: tuple[str, ...]
    changed: tuple[str, ...]

    def text(self) -> str:
        """Return what was found, for people."""
        what = [f"{len(names)} {found}: {_shown(names)}"
                for names, found in ((self.gone, "gone"), (self.changed, "changed since")) if names]  # fmt: skip
        return f"it would read {counted(self.files, 'file')} of this host again{'; '.join(['', *what])}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


def input_again(store: Store, plan: ResumePlan) -> InputAgain | None:
    """Return the files that a plan of a store reads again; None if it discards no epoch that all partitions hold, or
    has read no files. Only reads. Raises the errors of reading."""
    newest = max(plan.cuts)
    chosen = BEGINNING if plan.snapshot is None else plan.snapshot.cut
    if chosen == newest:
        return None
    known = () if chosen == BEGINNING else _rows(Snapshot.of(plan, chosen, store.reader))
    beyond = reached_between(_rows(Snapshot.of(plan, newest, store.reader)), known)
    found = dict(_looked(beyond))
    gone = tuple(name for name, state in found.items() if state == "gone")
    changed = tuple(name for name, state in found.items() if state == "changed")
    return InputAgain(len(found), gone, changed) if found else None


def _rows(at: Snapshot) -> Iterator[tuple[str, Content]]:
    """Yield the rows of a snapshot that say what sources have read, without the state of Spark's operators."""
    keys = [key for key, _ in at.sizes(CHECKPOINT_STEP) if key.startswith(("offsets/", "sources/"))]
    for key, state in at.some(CHECKPOINT_STEP, keys).items():
        yield key, state.value


def _looked(beyond: Reached) -> Iterator[tuple[str, str]]:
    """Yield each local file that was read, and whether it is "there", "gone" or "changed"."""
    for each in beyond.files:
        if each.file_system == LOCAL:
            modified_ns = _modified_ns(each.path)
            same = modified_ns is not None and modified_ns // 1_000_000 == each.modified_ms
            yield each.path, "gone" if modified_ns is None else "there" if same else "changed"
    for text in beyond.offsets:
        for position in _appended(text):
            if position.offset:
                size = _size(position)
                yield (
                    display(position.path),
                    "gone" if size is None else ("there" if size >= position.offset else "changed"),
                )


def _appended(text: str) -> Iterator[FilePosition]:
    """Yield the files of a position in appended files; nothing for another source's position."""
    try:
        found = msgspec.json.decode(text)
        if isinstance(found, dict) and "files" in found:
            yield from InputOffset.from_json(found).files.values()
    except (ValueError, RecursionError, RecoveryError):
        return


def _modified_ns(path: str) -> int | None:
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return None


def _size(position: FilePosition) -> int | None:
    """Return the size of a growing file, which may have another name in its directory by now."""
    path = Path(position.path)
    try:
        return path.stat().st_size
    except FileNotFoundError:
        with contextlib.suppress(OSError), os.scandir(path.parent) as found:
            return next((each.stat().st_size for each in found if each.inode() == position.inode), None)
    except (OSError, ValueError):
        pass
    return None


def _shown(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN_PARTS} more" if len(names) > SHOWN_PARTS else ""
    return f"{', '.join(names[:SHOWN_PARTS])}{more}"
