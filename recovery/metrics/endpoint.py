"""The endpoint that Prometheus scrapes: one page of text over HTTP; and pages that probes of a service ask.

One thread answers all connections, by asyncio. So connections cost no threads, and a slow client delays nobody.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus

from recovery.errors import ConfigurationError
from recovery.metrics.exposition import CONTENT_TYPE

PATH = "/metrics"
HEALTH, READY = "/health", "/ready"
REQUEST_S = 5.0
"""The longest time from accepting a connection to closing it, with all of the request and of the answer."""
MOST_CONNECTIONS = 64
"""The most simultaneous connections. One connection more closes the oldest connection of the peer that has most: a peer
that opens many loses its own, and the newest connection, which may be a probe, is answered."""
LONGEST_REQUEST = 16 << 10
CLOSE_S = 5.0
"""How long closing waits for the thread: the function that makes the text may be at work."""


class MetricsEndpoint:
    """An HTTP endpoint that listens once it is created, and answers with a note until `serve` sets its text.

    Raises ConfigurationError when the endpoint cannot listen on the port.
    """

    def __init__(self, host: str, port: int) -> None:
        """port: 0 takes any free one."""
        self._text: Callable[[], str] = lambda: "# The run is starting.\n"
        self._reason: Callable[[], str] | None = None
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._listener = _listening(family, host, port)
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigurationError(
                f"metrics cannot be served at {_shown(host)}:{port}: {error}",
                cause="Another process listens there, or the address is not one of this machine.",
                remedy="Choose another port (--metrics-port; --metrics-at of serve); 0 takes a free one and shows it.",
            ) from error
        self.url = f"http://{_shown(host)}:{self._listener.getsockname()[1]}{PATH}"
        self._connections: dict[asyncio.Task[None], str] = {}
        self._loop = asyncio.new_event_loop()
        # Without free file descriptors asyncio logs, and accepts later.
        self._loop.set_exception_handler(lambda *_: None)
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def serve(self, text: Callable[[], str], not_ready: Callable[[], str] | None = None) -> None:
        """Answer with the result of `text` from now on; the endpoint's own threads call it. not_ready: returns why a
        service is not ready, empty if it is; then probes get answers, too."""
        self._text, self._reason = text, not_ready

    def answer(self, path: str) -> tuple[HTTPStatus, str] | None:
        """Return the present answer of any page; None if there is no such page."""
        if path == PATH:
            return HTTPStatus.OK, self._text()
        if path == "/":
            return HTTPStatus.OK, f"recovery: see {PATH}\n"
        if self._reason is None or path not in (HEALTH, READY):
            return None
        reason = self._reason() if path == READY else ""
        return HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, f"{reason or 'ok'}\n"

    def close(self) -> None:
        """Stop listening. Safe to repeat."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=LONGEST_REQUEST)
        await self._over.wait()
        self._loop.remove_reader(self._listener)
        # A connection that was just accepted takes some turns of the loop until its task has begun. asyncio would leave
        # it open if the server were closed before.
        for _ in range(5):
            await asyncio.sleep(0)
        server.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, within the time for it, and close the connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = str((writer.get_extra_info("peername") or ("",))[0])
        try:
            self._make_room()
            async with asyncio.timeout(REQUEST_S):
                writer.write(await self._answered(reader))
                await writer.drain()
                writer.write_eof()
                # Closing before the client has sent all of its request would take the answer from it.
                while await reader.read(LONGEST_REQUEST):
                    pass
        except (OSError, TimeoutError, EOFError, asyncio.CancelledError):
            # The client went away, was too slow, or made room for another one.
            pass
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    def _make_room(self) -> None:
        if len(self._connections) > MOST_CONNECTIONS:
            [(busiest, _)] = Counter(self._connections.values()).most_common(1)
            oldest = next(task for task, peer in self._connections.items() if peer == busiest)
            del self._connections[oldest]
            oldest.cancel()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        """Return the answer to a request. Raises EOFError when the client ends before it has sent one."""
        try:
            request = (await reader.readuntil(b"\n")).split()
            while (await reader.readuntil(b"\n")).strip():
                if reader.at_eof():
                    break
        except asyncio.LimitOverrunError:
            return _response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if len(request) != 3 or not request[2].startswith(b"HTTP/"):
            return _response(HTTPStatus.BAD_REQUEST)
        if request[0] not in (b"GET", b"HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            answer = self.answer(request[1].decode("latin-1").partition("?")[0])
        except Exception as error:
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)
        return _response(*(answer or (HTTPStatus.NOT_FOUND, None)), with_content=request[0] == b"GET")


def _response(status: HTTPStatus, text: str | None = None, *, with_content: bool = True) -> bytes:
    """Return an answer. text: the answer's content; None: what the status means."""
    content = (f"{status.phrase}\n" if text is None else text).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(content)}\r\n"
        f"{'Allow: GET, HEAD' + chr(13) + chr(10) if status is HTTPStatus.METHOD_NOT_ALLOWED else ''}"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if with_content else b"")


def _listening(family: int, host: str, port: int) -> socket.socket:
    """Return a socket that listens. The socket refuses a port that another process listens on, and accepts one that was
    just released."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(MOST_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
