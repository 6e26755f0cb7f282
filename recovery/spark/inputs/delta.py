"""Delta tables: whether the log still has the versions that have to be read, and the files that they add."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import msgspec
from pyspark.sql import SparkSession

from recovery.base.outside import Answers, CannotTell, Checked, DoesNotApply, Moment, Question
from recovery.checkpoint.offsets import NOTHING_READ, delta_offset
from recovery.errors import ConfigurationError, InputLostError, StorageError
from recovery.places.address import file_system
from recovery.places.failures import Failures
from recovery.places.hadoop import HadoopFiles
from recovery.planning.lag import PartLag
from recovery.planning.lost_input import Change, Loss, Needed, PartKind, There
from recovery.spark.clusters import Input
from recovery.spark.inputs.protocol import Looked, Resumes
from recovery.spark.jvm.tables import delta_table_id

_VERSION = re.compile(r"(\d{20})\.json")
_LOOKS = (Moment.START, Moment.GOING_BACK)
_CAUSE = "The retention of the table's log removed them, or the table was deleted and made again."
MOST_ENTRIES = 100
"""The number of entries beyond a position that are read, to tell which of them add rows."""
IGNORE_MISSING = "spark.sql.files.ignoreMissingFiles"


class DeltaInput:
    """The `StreamInput` of one Delta table. The name of a loss is the table's path."""

    answers: ClassVar[Answers] = {
        Question.SAME: Checked("the id of the table", _LOOKS),
        Question.THERE: Checked(
            "the entries of the log from the position on; the files that versions to be read again have added", _LOOKS
        ),
        Question.CHANGED: CannotTell(
            "Rows that a later version removes are an error of Delta's source when it reads it."
        ),
        Question.ABLE: Checked("the log begins at or before the position", _LOOKS),
        Question.OWNER: DoesNotApply(),
    }

    tells_lag: ClassVar[bool] = True

    def __init__(self, stream: Input, resumes: Resumes, spark: SparkSession) -> None:
        self._name = stream.options.get("path", "")
        self._options = stream.options
        self._spark = spark
        self._text = resumes.at
        self._at = delta_offset(resumes.at)
        self._reads = [found for text in resumes.reached.offsets if (found := delta_offset(text)) is not None]
        self._adds: dict[int, bool] = {}
        """Whether each version beyond the position adds rows, as far as its entry was read."""

    def look(self) -> Looked:
        """Look at the table's log, and change nothing. Raises StorageError if the log cannot be listed."""
        if not self._name or (self._at is None and not self._reads):
            # A table that a catalog names by something else than its path.
            return Looked()
        found = delta_table_id(self._spark, self._name)
        reads = [each for each in self._reads if self._at is None or each.reservoirId == self._at.reservoirId]
        if self._at is None:
            # The run reads the whole table: older versions are not needed, but the table is.
            known = {each.reservoirId for each in reads}
            if found is None or found in known or len(known) != 1:
                return Looked()
            [identity] = known
            needed = Needed(self._name, "", PartKind.TABLE, 0, max(each.read_up_to for each in reads), identity)
            return Looked((needed,), {(self._name, ""): There(0, 0, found)}, causes={self._name: _CAUSE})
        begin = self._at.reservoirVersion
        reached = max([begin, *(each.read_up_to for each in reads)])
        needed = Needed(self._name, "", PartKind.TABLE, begin, reached, self._at.reservoirId)
        versions = self._versions()
        if not versions:
            # A catalog keeps the log, or its newest entries, elsewhere.
            return Looked()
        # A table of the same id does not become shorter: a catalog may keep its newest entries elsewhere.
        end = max(versions[-1] + 1, reached) if found == self._at.reservoirId else versions[-1] + 1
        there = {(self._name, ""): There(versions[0], end, found)}
        loses = self._options.get("failondataloss", "true").strip().lower() == "false"
        if loses and found in (None, self._at.reservoirId):
            return Looked()
        if self._at.reservoirId == found and versions[0] <= begin:
            self._check_files(range(begin, min(reached, versions[-1] + 1)))
        return Looked((needed,), there, causes={self._name: _CAUSE})

    def goes_on(self, lost: Sequence[Loss]) -> str | None:
        """Return the offset from which Spark reads on without the lost versions; of another table, its beginning."""
        [loss] = lost
        if loss.change is Change.REPLACED:
            return NOTHING_READ
        if loss.goes_on_at is None or loss.change is Change.SHORTENED:
            return None
        position = msgspec.json.decode(self._text or "{}")
        position |= {"reservoirVersion": loss.goes_on_at, "index": -1, "isStartingVersion": False}
        return msgspec.json.encode(position).decode()

    def behind(self, at: str) -> Sequence[PartLag]:
        """Return the versions that add rows and were not read to their end. Others do not move Delta's position."""
        position = delta_offset(at)
        if not self._name or position is None:
            return ()
        begin = position.reservoirVersion
        files, path = self._place()
        self._adds = {version: adds for version, adds in self._adds.items() if version >= begin}
        newest: int | None = None
        with self._failures():
            for version in range(max([begin - 1, *self._adds]) + 1, sys.maxsize):
                if len(self._adds) >= MOST_ENTRIES:
                    newest = max([version - 1, *self._versions()])
                    break
                entry = files.read(path / "_delta_log" / f"{version:020}.json")
                if entry is None:
                    break
                self._adds[version] = any(True for _ in _added(entry))
        adding = [version for version, adds in self._adds.items() if adds]
        end, behind = max([begin - 1, *adding]) + 1, len(adding)
        if newest is not None:
            # Entries beyond these are not read: each counts as one that adds rows.
            end, behind = newest + 1, behind + newest - max(self._adds)
        return (PartLag(self._name, "", "", "version", begin, end, behind),)

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _place(self) -> tuple[HadoopFiles, Path]:
        """Return the file system of the table, and the table's path in it."""
        found = file_system(self._name, "the path of a Delta table")
        if found is not None:
            return HadoopFiles(found[0]), Path(found[1])
        plain = self._name.removeprefix("file:")
        return HadoopFiles("file://" if plain != self._name else ""), Path(os.path.abspath(plain))  # noqa: PTH100

    def _failures(self) -> contextlib.AbstractContextManager[None]:
        return Failures(StorageError, self._name).of_hadoop()

    def _versions(self) -> list[int]:
        """Return the versions that the log has as entries, without those before a gap."""
        try:
            files, path = self._place()
            with self._failures():
                names = files.sizes(path / "_delta_log")
        except ConfigurationError:
            # An address that nothing but Spark is to see.
            return []
        numbers = sorted(int(found[1]) for name in names if (found := _VERSION.fullmatch(name)))
        for place in range(len(numbers) - 1, 0, -1):
            if numbers[place] - numbers[place - 1] != 1:
                return numbers[place:]
        return numbers

    def _check_files(self, versions: range) -> None:
        """Raise InputLostError if files that these versions have added are gone, unless Spark is to leave them out."""
        if str(self._spark.conf.get(IGNORE_MISSING, "false")).lower() == "true":
            return
        files, path = self._place()
        with self._failures():
            gone = [
                name
                for version in versions
                for name in _added(files.read(path / "_delta_log" / f"{version:020}.json") or b"")
                if "://" not in name and files.size(path / name) is None
            ]
        if gone:
            more = f", and {len(gone) - 1} more" if len(gone) > 1 else ""
            raise InputLostError(
                f"the Delta table {self._name} no longer has a file that the flow has to read again, of versions "
                f"{versions.start} to {versions.stop - 1}: {gone[0]}{more}. Nothing was changed",
                cause="VACUUM removed files of older versions, after the flow had read them.",
                remedy="Put the files back. To go on without the files' rows, run once with --conf "
                f"{IGNORE_MISSING}=true. "
                "Keep VACUUM's retention longer than runs may go back.",
            )


def _added(entry: bytes) -> Iterator[str]:
    """Yield the files that a version adds with rows that a stream reads, by their paths in the table."""
    for line in entry.splitlines():
        try:
            action = msgspec.json.decode(line)
        except ValueError:
            continue
        added = action.get("add") if isinstance(action, Mapping) else None
        if isinstance(added, Mapping) and added.get("dataChange") and isinstance(added.get("path"), str):
            yield unquote(added["path"])
