"""What lies in a recovery directory: what this package puts there, and what others do."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from recovery.planning.strays import ASIDE
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.lock import LOCK_NAME
from recovery.storage.sqlite.file.log_files import ENDS, draft_of
from recovery.storage.sqlite.file.statements import translated

_PARTITION = re.compile(rf"part-\d+.*\.sqlite3|\.sqlite3{re.escape(ASIDE)}", re.DOTALL)
"""What the name of a copy has in it. Any file that is a partition by its content may have been put aside."""
_DOCUMENT = (
    r"((last-(backup|replica|replaced|lag|drill|input)|waiting|lease|replica-unseen|restored)|\.moved-part-\d+)\.json"
)
_OWN = re.compile(
    "|".join((
        # Partitions with their own files, and the copies that a replacement of owners put aside.
        rf"part-\d+\.sqlite3(\.replaced)?({'|'.join(ENDS)})?|\.part-\d+\.sqlite3\.draft",
        rf"{re.escape(LOCK_NAME)}|recovery-.*\.lock|locks|{SCRATCH_NAME}",
        # Documents, also those that a killed process had not written to their end.
        rf"{_DOCUMENT}|\.({_DOCUMENT}|standby\.json)\.\d+-[0-9a-f]{{8}}",
        # What killed moves, `init` and restores left.
        r"\.move-[0-9a-f]{16}|\.(init|restore-\d+)-[0-9a-f]+",
    ))
)  # fmt: skip
"""The names of all that recovery itself puts into a recovery directory. A directory that follows a place has more."""


def others_in(directory: Path) -> list[str]:
    """Return the names in a directory that this package does not give, sorted. Raises StorageError."""
    with translated(directory):
        return sorted(name for name in os.listdir(directory) if not _OWN.fullmatch(name))  # noqa: PTH208


def others_beside(directory: Path) -> list[Path]:
    """Return files and directories that carry the name of a partition, and that this package does not make, sorted: in
    a recovery directory, and beside the file to which a link in it leads. Each may hold anything that a partition has
    held. Raises StorageError."""
    found = {directory / name for name in others_in(directory) if _PARTITION.search(name)}
    for path in filter(Path.is_symlink, directory.glob("part-*.sqlite3")):
        real = Path(os.path.realpath(path))
        own = {draft_of(real).name, *(f"{real.name}{end}" for end in ("", *ENDS))}
        # A directory on another disk may be closed to whoever only reads.
        with contextlib.suppress(OSError):
            there = {each for each in real.parent.iterdir() if not _OWN.fullmatch(each.name) and each.name not in own}
            found |= {each for each in there if path.name in each.name or real.name in each.name}
    return sorted(found)
