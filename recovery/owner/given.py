"""Rows of an epoch that a run sends ahead of its close: kept in a file, and read when they are written."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from recovery.base.ids import Epoch, PartitionIndex, StepId
from recovery.errors import StorageError
from recovery.host.storage_errors import storage_errors
from recovery.planning.values import StepEdit
from recovery.storage.seam import CloseRequest
from recovery.wire.calls import CONVERTED, DRIVER, EDITED, Closing, Edit, RowsAhead


class _Extent(NamedTuple):
    offset: int
    size_bytes: int


Extents = dict[tuple[str, StepId], dict[str, _Extent]]
"""Where the value of each key is, by the kind of the rows and their step."""


class GivenRows:
    """The rows of one epoch, by partition. Parts come one after the other; they may be read in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._epoch: Epoch | None = None
        self._size_bytes = 0
        self._extents: dict[PartitionIndex, Extents] = {}
        self._parts: dict[PartitionIndex, int] = {}

    def add(self, epoch: Epoch, part: RowsAhead, directory: Path) -> None:
        """Keep a part of the rows. directory: for a temporary file without a name. Raises StorageError."""
        with self._lock:
            if epoch != self._epoch:
                self._clear()
                self._epoch = epoch
            extents = self._extents.setdefault(part.index, {}).setdefault((part.what, part.step), {})
            with storage_errors(directory):
                if self._file is None:
                    self._file = tempfile.TemporaryFile(prefix="given-", dir=directory, buffering=0)  # noqa: SIM115
                body = bytearray()
                for key, value, timeout_ms in part.rows:
                    row = msgspec.msgpack.encode((value, timeout_ms))
                    extents[key] = _Extent(self._size_bytes + len(body), len(row))
                    body += row
                _write(self._file, body)
            self._size_bytes += len(body)
            self._parts[part.index] = self._parts.get(part.index, 0) + 1

    def of(self, index: PartitionIndex, closing: Closing) -> Given:
        """Return what came for a partition. Raises StorageError if the file does not hold what was sent."""
        with self._lock:
            mine = self._epoch == closing.epoch
            parts = self._parts.get(index, 0) if mine else 0
            if parts != closing.parts:
                raise StorageError(f"{parts} of {closing.parts} parts of epoch {closing.epoch} came for part-{index}")
            return Given(self._extents.get(index, {}) if mine else {}, self._file)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    def _clear(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._epoch, self._size_bytes = None, None, 0
        self._extents, self._parts = {}, {}


class Given(NamedTuple):
    """What came for one partition."""

    extents: Extents
    file: IO[bytes] | None

    def driver_rows(self, closing: Closing) -> Mapping[StepId, Mapping[str, Any]]:
        """Return the driver's rows, with those that came with the close."""
        steps = {*closing.driver_rows, *(step for what, step in self.extents if what == DRIVER)}
        return {step: SpilledRows(closing.driver_rows.get(step, {}), self, (DRIVER, step)) for step in steps}

    def state_rows(self, closing: Closing) -> Mapping[StepId, Mapping[str, Any]]:
        """Return the edited states, with those that came with the close."""
        steps = {*closing.state_rows, *(step for what, step in self.extents if what == EDITED)}
        return {step: SpilledRows(closing.state_rows.get(step, {}), self, (EDITED, step)) for step in steps}

    def converted(self, step: StepId, last: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Return the new values of an edited step. last: the values that came with the close."""
        return SpilledRows(last, self, (CONVERTED, step))


class SpilledRows(Mapping[str, Any]):
    """Rows of one step: the last rows from memory, all earlier rows from the file."""

    def __init__(self, last: Mapping[str, Any], given: Given, which: tuple[str, StepId]) -> None:
        self._last = last
        self._file = given.file
        self._extents = given.extents.get(which, {})
        self._has_timeouts = which[0] == EDITED

    def __getitem__(self, key: str) -> Any:
        if key in self._last:
            return self._last[key]
        extent = self._extents[key]
        assert self._file is not None
        value, timeout_ms = msgspec.msgpack.decode(os.pread(self._file.fileno(), extent.size_bytes, extent.offset))
        return (value, timeout_ms) if self._has_timeouts else value

    def __iter__(self) -> Iterator[str]:
        yield from self._extents
        yield from self._last

    def __len__(self) -> int:
        return len(self._extents) + len(self._last)


def request_of(closing: Closing, given: Given) -> CloseRequest:
    """Return what a run has sent as the seam has it. given: what came ahead."""
    return CloseRequest(
        epoch=closing.epoch,
        batch=closing.batch,
        closed_ms=closing.closed_ms,
        clock_ms=closing.clock_ms,
        floor=closing.floor,
        driver_rows=given.driver_rows(closing),
        edits=_edits(closing.edits, given),
        state_rows=given.state_rows(closing),
        logged=closing.logged,
        notes_made=closing.notes_made,
    )


def _edits(edits: Sequence[Edit], given: Given) -> list[StepEdit]:
    def converter(converted: Mapping[str, Any]) -> Callable[[str, str], str | None]:
        return lambda key, _text: converted[key]

    return [
        StepEdit(
            each.old,
            each.new,
            None if each.converted is None else converter(given.converted(each.old, each.converted)),
        )
        for each in edits
    ]


def _write(file: IO[bytes], body: bytearray) -> None:
    """Write everything: without a buffer, a file takes at most 2 GiB at a time."""
    rest = memoryview(body)
    while rest:
        rest = rest[file.write(rest) :]
