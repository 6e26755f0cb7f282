"""The metrics endpoint under slow, many and half-open connections: probes are answered."""

from __future__ import annotations

import contextlib
import socket
import time
import urllib.error
import urllib.request

import pytest

from recovery.metrics import endpoint as module
from recovery.metrics.endpoint import LONGEST_REQUEST, MOST_CONNECTIONS, MetricsEndpoint

PAGES = ("/health", "/ready", "/metrics")
SOON_S = 30.0


@pytest.fixture
def endpoint():
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    endpoint.serve(lambda: "recovery_x 1\n", lambda: "")
    yield endpoint
    endpoint.close()


def port_of(endpoint: MetricsEndpoint) -> int:
    return int(endpoint.url.rpartition(":")[2].partition("/")[0])


def connect(endpoint: MetricsEndpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(endpoint)), timeout=SOON_S)


def ask(endpoint: MetricsEndpoint, request: bytes) -> bytes:
    """All that it answers to these bytes."""
    with connect(endpoint) as sock, sock.makefile("rb") as answer:
        sock.sendall(request)
        return answer.read()


def expect_answers(endpoint: MetricsEndpoint) -> None:
    for page in PAGES:
        with urllib.request.urlopen(endpoint.url.replace("/metrics", page), timeout=SOON_S) as answer:
            assert answer.status == 200


def test_slow_and_half_open_connections_do_not_make_probes_fail(endpoint, monkeypatch):
    """Fewer than there may be, exactly as many, and more: each probe is answered, and the oldest ones make room."""
    monkeypatch.setattr(module, "REQUEST_S", 1000.0)
    with contextlib.ExitStack() as held:
        for _ in range(3):
            slow = [held.enter_context(connect(endpoint)) for _ in range(MOST_CONNECTIONS - 10)]
            for each in slow[::2]:
                each.sendall(b"G")
            expect_answers(endpoint)
        first = held.enter_context(connect(endpoint))
        expect_answers(endpoint)
        for _ in range(MOST_CONNECTIONS):
            held.enter_context(connect(endpoint))
        assert first.recv(1) == b""


def test_a_client_that_sends_a_byte_now_and_then_has_a_limit_for_all_of_its_request(endpoint, monkeypatch):
    """Its bytes do not make the time longer."""
    monkeypatch.setattr(module, "REQUEST_S", 0.5)
    with connect(endpoint) as slow:
        slow.settimeout(0.1)
        until_s = time.monotonic() + 30
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < until_s:
                slow.send(b"G")
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1) == b"":
                        break
        assert time.monotonic() < until_s
    expect_answers(endpoint)


def test_a_client_that_sends_without_end(endpoint):
    """It is refused at a limit of its size."""
    assert ask(endpoint, b"GET /" + b"a" * 4 * LONGEST_REQUEST).startswith(b"HTTP/1.1 431 ")
    expect_answers(endpoint)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /health HTTP/1.1", 200),
        (b"HEAD /health HTTP/1.0", 200),
        (b"GET /nothing HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"GET", 400),
        (b"\x16\x03\x01\x02", 400),
        (b"GET /health nothing", 400),
    ],
)
def test_requests_of_all_kinds(endpoint, request_line, status):
    """Each gets one answer, with its length, and the connection ends."""
    head, _, content = ask(endpoint, request_line + b"\r\nHost: x\r\n\r\n").partition(b"\r\n\r\n")
    first, *fields = head.decode().split("\r\n")
    assert first.startswith(f"HTTP/1.1 {status} ")
    length = int(dict(each.split(": ") for each in fields)["Content-Length"])
    assert len(content) == (0 if request_line.startswith(b"HEAD") else length)


def test_a_service_that_is_not_ready(endpoint):
    """Only /ready says so, with the reason."""
    endpoint.serve(lambda: "", lambda: "stopping")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(endpoint.url.replace("/metrics", "/ready"), timeout=SOON_S)
    assert (refused.value.code, refused.value.read()) == (503, b"stopping\n")
    assert ask(endpoint, b"GET /health HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\nok\n")


def test_closing_with_open_connections(endpoint):
    """It does not wait for them."""
    with connect(endpoint) as idle:
        began_s = time.monotonic()
        endpoint.close()
        assert time.monotonic() - began_s < SOON_S
        with contextlib.suppress(ConnectionResetError):
            assert idle.recv(1) == b""
