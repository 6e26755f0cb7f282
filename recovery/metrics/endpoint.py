"""The endpoint that Prometheus scrapes: one page of text over HTTP; and pages that probes of a service ask."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from recovery.errors import ConfigurationError
from recovery.metrics.exposition import CONTENT_TYPE

PATH = "/metrics"
HEALTH, READY = "/health", "/ready"
TIMEOUT_S = 10.0
MOST_CONNECTIONS = 16
"""The most simultaneous connections. More are closed unanswered, so clients cannot exhaust files and threads."""


class MetricsEndpoint:
    """An HTTP endpoint that listens once it is created, and answers with a note until `serve` sets its text.

    Raises ConfigurationError when it cannot listen on the port.
    """

    def __init__(self, host: str, port: int) -> None:
        """port: 0 takes any free one."""
        self._text: Callable[[], str] = lambda: "# The run is starting.\n"
        self._reason: Callable[[], str] | None = None
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._server = _Server(self, family, host, port)
        except (OSError, OverflowError, UnicodeError) as error:
            raise ConfigurationError(
                f"metrics cannot be served at {_shown(host)}:{port}: {error}",
                cause="Another process listens there, or the address is not one of this machine.",
                remedy="Choose another port (--metrics-port; --metrics-at of serve); 0 takes a free one and shows it.",
            ) from error
        self.url = f"http://{_shown(host)}:{self._server.server_address[1]}{PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)
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
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        try:
            answer = self.server.endpoint.answer(self.path.partition("?")[0])
        except Exception as error:
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=type(error).__name__)
            return
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        status, content = answer[0], answer[1].encode()
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log scrapes."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Refuse a port that another process listens on, but accept one that was just released.
    allow_reuse_address = True

    def __init__(self, endpoint: MetricsEndpoint, family: int, host: str, port: int) -> None:
        self.endpoint = endpoint
        self.address_family = socket.AddressFamily(family)
        self._host = host
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((host, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error: the client went away."""

    def server_bind(self) -> None:
        """Bind without HTTPServer's lookup of its own name, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self._host, self.server_address[1]


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
