"""The metrics endpoint under connections without end."""

from __future__ import annotations

import socket
import urllib.request

from recovery.metrics.endpoint import MOST_CONNECTIONS, MetricsEndpoint


def test_idle_connections_take_no_more_than_their_share():
    """More are closed unanswered; when they are gone, it answers again."""
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    try:
        port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_CONNECTIONS)]
        more = socket.create_connection(("127.0.0.1", port))
        more.settimeout(5)
        assert more.recv(1) == b""
        for each in (*idle, more):
            each.close()
        for _ in range(50):
            try:
                with urllib.request.urlopen(endpoint.url, timeout=5) as answer:
                    assert answer.status == 200
                break
            except OSError:
                continue
        else:
            raise AssertionError("it does not answer any more")
    finally:
        endpoint.close()
