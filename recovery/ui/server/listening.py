"""Listening: the socket, TLS, and the thread that answers, by uvicorn."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256
REQUEST_S = 10.0
"""How long a connection may take to send a request."""
ANSWER_S = 60.0
"""How long a client may take to read what was sent, once its connection is to be closed."""
IDLE_S = 5
"""How long a connection stays open after an answer."""
START_S = 10.0
STOP_S = 2.0
"""How long a stop waits for answers that are under way."""
LONGEST_REQUEST = 64 << 10
"""Bytes of the head of a request: keys are in addresses."""


class BoundedConnection(H11Protocol):
    """A connection that is closed if it sends no whole request in time, or does not read its answers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to count."""
        super().connection_made(transport)
        self._looked_at: object = None
        self._look = self.loop.call_later(REQUEST_S, self._close_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting."""
        self._look.cancel()
        super().connection_lost(exc)

    def _close_slow(self) -> None:
        if self.transport.is_closing() or self.cycle is None or (self.cycle is self._looked_at and self._is_client_due):
            # This waits until the client has read everything.
            self.transport.close()
            self._look = self.loop.call_later(ANSWER_S, self.transport.abort)
            return
        self._looked_at = self.cycle
        self._look = self.loop.call_later(REQUEST_S, self._close_slow)

    @property
    def _is_client_due(self) -> bool:
        """Whether the client has to send the rest of its request or another one, or to read; else the server has to
        answer. A cycle is a request with its answer."""
        return self.cycle.response_complete or self.cycle.more_body or self.flow.write_paused


class ListeningServer:
    """Answers requests that come to a socket, in a thread, until `stop`."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: Callable[[], ssl.SSLContext | None]) -> None:
        """tls: what serves TLS to a new connection; None: no TLS, which then holds for all connections."""
        config = uvicorn.Config(
            app,
            http=BoundedConnection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            # Clients could fill a log with what is no request. `Gate` logs errors of the application.
            log_level="critical",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=int(STOP_S),
            h11_max_incomplete_event_size=LONGEST_REQUEST,
        )
        config.load()
        config.ssl = _changing(tls)
        self._server = uvicorn.Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._run, name="ui", daemon=True)

    def start(self) -> None:
        """Return when requests are answered."""
        self._thread.start()
        until_s = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until_s:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop listening; answers under way get `STOP_S`. May be called again."""
        self._server.should_exit = True
        self._thread.join(STOP_S + START_S)
        self._listener.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])


def _changing(tls: Callable[[], ssl.SSLContext | None]) -> ssl.SSLContext | None:
    """Return a context that hands each connection over to the one that `tls` returns then."""
    first = tls()
    if first is None:
        return None

    def hand_over(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = tls() or first

    # Called for every connection, also for one that names no host.
    first.sni_callback = hand_over
    return first
