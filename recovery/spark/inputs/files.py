"""Spark's file sources: whether files that have to be read again are still there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from recovery.base.outside import Answers, CannotTell, Checked, DoesNotApply, Moment, Question
from recovery.checkpoint.reached import LOCAL, LoggedFile
from recovery.errors import StorageError
from recovery.places.failures import Failures
from recovery.places.hadoop import HadoopFiles
from recovery.planning.lost_input import Loss, Needed, PartKind, There
from recovery.spark.clusters import Input
from recovery.spark.inputs.protocol import Looked, Resumes, SilentInput

_WILDCARD = re.compile(r"[*?\[{]")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_CAUSE = (
    "Retention, or somebody, removed or replaced files that have to be read again. A file that was put right counts as "
    "unchanged with its former modification time (touch -d)."
)


class FilesInput(SilentInput):
    """The `StreamInput` of files below a path: the files that discarded epochs have read, or micro-batches that no
    epoch closed.

    The logs of the source name the files. Files that epochs before the resume epoch have read may be removed: nobody
    reads them again.
    """

    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the modification time of each local file that epochs to be discarded have read", (Moment.GOING_BACK,)
        ),
        Question.THERE: Checked(
            "each file that epochs to be discarded, or the open micro-batches of a killed run of this host, have read",
            (Moment.START, Moment.GOING_BACK),
        ),
        Question.CHANGED: CannotTell("Spark keeps the names and times of files, and nothing of their content."),
        Question.ABLE: Checked("each of these files is looked at where Spark will read it", (Moment.GOING_BACK,)),
        Question.OWNER: DoesNotApply(),
    }

    def __init__(self, stream: Input, resumes: Resumes) -> None:
        self._path = stream.options.get("path", "")
        self._reached = resumes.reached

    def look(self) -> Looked:
        """Look for the files, and change nothing. Raises StorageError if the file system cannot be asked."""
        closed = [each for each in self._reached.files if reads(self._path, each)]
        opened = [each for each in self._reached.open_files if reads(self._path, each)]
        needed = [*self._needed(closed, timed=True), *self._needed(opened, timed=False)]
        there = dict(_there(self._path, [*closed, *opened]))
        return Looked(tuple(needed), there, causes={self._path: _CAUSE})

    def goes_on(self, lost: Sequence[Loss]) -> str | None:
        """Return None: Spark lists the files that are there."""
        return None

    def _needed(self, files: Iterable[LoggedFile], *, timed: bool) -> Iterator[Needed]:
        for each in files:
            timed_here = timed and each.file_system == LOCAL
            yield Needed(self._path, _shown(each), PartKind.FILE, 0, 1, str(each.modified_ms) if timed_here else None)


def reads(path: str, file: LoggedFile) -> bool:
    """Return whether a file lies below a path of a flow, which may have wildcards and may be relative."""
    scheme = _SCHEME.match(path)
    plain = path.removeprefix(LOCAL) if path.startswith(LOCAL) else path
    if scheme is not None and scheme[1] != "file":
        base = LoggedFile(path, 0)
        system, within = base.file_system, base.path
        if system != file.file_system:
            return False
    else:
        # Without a scheme, Spark takes its default file system, which need not be this host's.
        within = os.path.normpath(os.path.join(os.getcwd(), re.sub("^/+", "/", plain)))  # noqa: PTH109, PTH118
        if not plain.startswith("/") and file.file_system != LOCAL:
            within = "/"
    wildcard = _WILDCARD.search(within)
    if wildcard is not None:
        within = within[: wildcard.start()].rpartition("/")[0]
    within = within.rstrip("/")
    return file.path == within or file.path.startswith(f"{within}/")


def _shown(file: LoggedFile) -> str:
    return file.path if file.file_system == LOCAL else file.uri


def _there(source: str, files: Iterable[LoggedFile]) -> Iterator[tuple[tuple[str, str], There]]:
    """Yield what is there of each file that exists."""
    systems: dict[str, HadoopFiles] = {}
    for each in files:
        identity = None
        failures = Failures(StorageError, _shown(each))
        try:
            if each.file_system == LOCAL:
                with failures.of_disk(FileNotFoundError, NotADirectoryError):
                    identity = str(Path(each.path).stat().st_mtime_ns // 1_000_000)
            else:
                system = systems.setdefault(each.file_system, HadoopFiles(each.file_system))
                with failures.of_hadoop():
                    if system.size(Path(each.path)) is None:
                        continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield (source, _shown(each)), There(0, 1, identity)
