"""Both ends of a connection over which a task reads the rows of a step, for `format("recovery")`."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator

from recovery.errors import OwnerUnreachableError
from recovery.wire import messages
from recovery.wire.address import OwnerAddress
from recovery.wire.frames import VALUE_BYTES, WireError
from recovery.wire.line import Line, RefusedError, ask
from recovery.wire.messages import TASK_CALLS, TaskCalls


def read_rows(address: OwnerAddress, task_key: bytes, call: messages.Rows) -> Iterator[bytes]:
    """Yield the rows that a call asks for, as the bytes of Arrow streams. The function asks for the next rows when the
    caller has taken the rows before. Until the first have arrived, it repeats the call on new connections, for the
    address's deadline. After that, a broken connection raises OwnerUnreachableError, and Spark runs the task again:
    rows have no order in which reading could continue. Raises the error with which the owner refuses.
    """
    line = Line(address, task_key)
    try:
        body = line.call(lambda channel: ask(channel, TASK_CALLS, TaskCalls.rows, call))
        while body:
            yield body
            assert line.channel is not None
            body = ask(line.channel, TASK_CALLS, TaskCalls.more)
    except RefusedError as refused:
        raise messages.as_error(refused.refusal, address.location) from None
    except (OSError, WireError) as error:
        raise OwnerUnreachableError(
            f"the owner of the partitions at {address.location} was lost while {socket.gethostname()} read rows of "
            f"step {call.step!r}: {error or type(error).__name__}",
        ) from error
    finally:
        line.drop()


class RowsUnderWay:
    """The owner's end: the rows that a connection reads. The read transaction stays open until the connection has asked
    for all rows."""

    def __init__(self) -> None:
        self._rows: Iterator[bytes] | None = None

    def begin(self, rows: Iterator[bytes]) -> None:
        """Begin to read these rows."""
        self.end()
        self._rows = rows

    def next(self) -> bytes:
        """Return the next message; empty at the end. Raises the error of the rows."""
        if self._rows is None:
            raise WireError("more rows are asked for, and none were before")
        try:
            body = next(self._rows, b"")
            if len(body) > VALUE_BYTES:
                raise messages.too_large(len(body))
        except BaseException:
            self.end()
            raise
        return body

    def end(self) -> None:
        """End the transaction; may be called again."""
        rows, self._rows = self._rows, None
        if isinstance(rows, Generator):
            rows.close()
