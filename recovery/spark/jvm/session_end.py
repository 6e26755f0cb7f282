"""The end of a session that this package made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def stopping(session: SparkSession) -> Iterator[SparkSession]:
    """Within this context, a session that this package made is open; stop it then, as `stop_session` does."""
    try:
        yield session
    finally:
        stop_session(session)


def stop_session(session: SparkSession) -> None:
    """Stop a session that this package made. A JVM that is gone needs no stopping, and its failure was already
    reported.

    PySpark's server for accumulators looks once in a second whether it is to end, and PySpark would wait for that. Here
    the server ends while the JVM's session stops, or later, by itself.
    """
    context = session.sparkContext
    server: Any = context._accumulatorServer
    context._accumulatorServer = None

    def end() -> None:
        with contextlib.suppress(OSError):
            server.shutdown()

    if server is not None:
        threading.Thread(target=end, name="accumulators-end", daemon=True).start()
    with contextlib.suppress(OSError, Py4JError):
        session.stop()
    if server is not None and isinstance(server.server_address, str):
        # The server's own end removes the socket, but the process may end before.
        Path(server.server_address).unlink(missing_ok=True)
