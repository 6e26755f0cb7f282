"""What an owner does for tasks that only read: the rows of a step, for `format("recovery")`.

This reading has a process of its own, also while a run is under way: a long reading takes neither turns nor memory from
the run's tasks, and cannot change anything.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import pyarrow

from recovery.errors import OwnerRefusedError
from recovery.owner.step_rows import step_rows
from recovery.storage.seam import TaskStore
from recovery.wire.messages import Rows
from recovery.wire.service import Aside


class ReadingService:
    """Serves the rows of partitions of this host: a `recovery.wire.service.Service` that writes nothing."""

    def __init__(self, partitions: Sequence[Path]) -> None:
        """partitions: the partitions' files, by index."""
        self._partitions = partitions

    def rows(self, call: Rows) -> Iterator[bytes]:
        """Yield each record batch as an Arrow stream. The transaction ends with the iterator."""
        batches = step_rows(self._partitions[call.partition], call.step, call.cut, call.since)
        with closing(batches):
            for batch in batches:
                stream = pyarrow.BufferOutputStream()
                with pyarrow.ipc.new_stream(stream, batch.schema) as writer:
                    writer.write_batch(batch)
                yield stream.getvalue().to_pybytes()

    @contextlib.contextmanager
    def store(self, attempt: int = 0) -> Iterator[TaskStore]:
        """Refuse: no state is changed here."""
        yield _refuse()

    @contextlib.contextmanager
    def aside(self) -> Iterator[Aside]:
        """Refuse: no state is changed here."""
        yield _refuse()


def _refuse() -> NoReturn:
    raise OwnerRefusedError(
        "the owner at this address only reads rows, and a task of a run asks for its states",
        cause="A run listened at this address before.",
        remedy="Give runs and readers on one host different ports (--serve).",
    )
