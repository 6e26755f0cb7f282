"""A session ends without waiting for PySpark's server for accumulators."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark.accumulators import _start_update_server

from recovery.spark.jvm.session_end import stop_session
from recovery.spark.jvm.versions import VERSION


@pytest.fixture
def server(tmp_path):
    """PySpark's server with a connection that stays open, as the JVM's does. Its end takes up to a second."""
    # Version 4.0 has no sockets with a path.
    server = _start_update_server("", *((True, str(tmp_path / "it.sock")) if VERSION >= (4, 1) else ()))
    with socket.socket(server.address_family) as connection:
        connection.connect(server.server_address)
        yield server


@pytest.mark.parametrize("error", [None, Py4JError("the JVM is gone"), ConnectionRefusedError()])
def test_the_server_ends_meanwhile(server, tmp_path, error):
    """The server has ended or still ends when the session has stopped; its socket is gone then, and PySpark does not
    end the server again."""
    order: list[object] = []

    def stop() -> None:
        order.append(context._accumulatorServer)
        if error is not None:
            raise error

    context = SimpleNamespace(_accumulatorServer=server)
    stop_session(SimpleNamespace(sparkContext=context, stop=stop))
    assert order == [None]
    assert list(tmp_path.iterdir()) == []
    for thread in threading.enumerate():
        if thread.name == "accumulators-end":
            thread.join(30)
            assert not thread.is_alive()
    assert server.server_shutdown


def test_a_session_that_was_stopped():
    """The flow's own code may have stopped the session."""
    context = SimpleNamespace(_accumulatorServer=None)
    stop_session(SimpleNamespace(sparkContext=context, stop=lambda: None))
    assert context._accumulatorServer is None
