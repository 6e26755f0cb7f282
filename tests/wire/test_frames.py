"""`recovery.wire.frames`: messages over one connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.wire import frames
from recovery.wire.frames import FRAME_BYTES, HEADER, MORE, Channel, Kind, WireError, settle


@pytest.fixture
def pair():
    """Two connected channels."""
    a, b = socket.socketpair()
    yield Channel(a), Channel(b)
    a.close()
    b.close()


@given(st.lists(st.binary(max_size=2000), max_size=8), st.integers(1, 700))
def test_messages_arrive_as_they_were_sent(bodies, frame_bytes):
    """In order, whatever their size, and however they are cut into frames."""
    a, b = socket.socketpair()
    with a, b, pytest.MonkeyPatch.context() as patched:
        patched.setattr(frames, "FRAME_BYTES", frame_bytes)
        sender, receiver = Channel(a), Channel(b)
        for body in bodies:
            sender.put(Kind.CHANGES, body)
        sender.flush()
        assert [receiver.message(2000)[1] for _ in bodies] == bodies


def test_a_large_message_is_several_frames(pair):
    """The receiver gets them one by one."""
    sender, receiver = pair
    body = bytes(range(256)) * 4096
    sending = threading.Thread(target=sender.send, args=(Kind.CHANGES, body), daemon=True)
    sending.start()
    parts = [receiver.part(len(body)) for _ in range(4)]
    # The sender counts its bytes after the last of them has arrived here.
    sending.join()
    assert [part.more for part in parts] == [True, True, True, False]
    assert b"".join(part.body for part in parts) == body
    assert sender.sent_bytes == receiver.received_bytes == len(body) + 4 * HEADER.size


@pytest.mark.parametrize("length", [101, FRAME_BYTES + 1, 0xFFFFFFFF])
def test_a_frame_that_claims_too_much_is_refused_before_it_comes(pair, length):
    sender, receiver = pair
    sender.sock.sendall(HEADER.pack(length, Kind.CALL))
    with pytest.raises(WireError, match=f"a frame of {length} bytes"):
        receiver.message(100)


def test_a_message_of_many_frames_has_the_same_limit(pair):
    sender, receiver = pair
    for _ in range(11):
        sender.sock.sendall(HEADER.pack(10, Kind.CALL | MORE) + b"x" * 10)
    with pytest.raises(WireError, match="a frame of 10 bytes, where 0 are allowed"):
        receiver.message(100)


def test_a_message_without_end_and_content_is_refused(pair):
    """Empty frames would keep a receiver busy."""
    sender, receiver = pair
    sender.sock.sendall(HEADER.pack(1, Kind.CALL | MORE) + b"x" + HEADER.pack(0, Kind.CALL | MORE))
    with pytest.raises(WireError, match="is cut"):
        receiver.message(100)


def test_another_message_within_one_is_refused(pair):
    sender, receiver = pair
    sender.sock.sendall(HEADER.pack(1, Kind.CALL | MORE) + b"x" + HEADER.pack(1, Kind.END) + b"x")
    with pytest.raises(WireError, match="kind 5 is cut by one of kind 7"):
        receiver.message(100)


@pytest.mark.parametrize("sent", [b"", b"\0\0", HEADER.pack(5, 1) + b"x"])
def test_an_end_within_a_message_is_an_error(pair, sent):
    sender, receiver = pair
    sender.sock.sendall(sent)
    sender.sock.close()
    with pytest.raises(ConnectionResetError):
        receiver.message(100)


def test_silence_within_a_message_is_an_error(pair, monkeypatch):
    """Between messages it is not, if the receiver may be idle."""
    monkeypatch.setattr(frames, "SILENCE_S", 0.1)
    sender, receiver = pair
    frames.wait_at_most(receiver.sock, 0.1)
    with pytest.raises(TimeoutError):
        receiver.message(100)
    threading.Timer(0.4, sender.sock.sendall, [HEADER.pack(5, 1) + b"x"]).start()
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        receiver.message(100, idle=True)
    assert time.monotonic() - began_s > 0.4


def test_a_deadline_ends_a_trickle(pair):
    """Whoever sends a byte now and then does not hold a connection that has to be proven."""
    sender, receiver = pair
    receiver.until_s = time.monotonic() + 0.3

    def trickle():
        with contextlib.suppress(OSError):
            for byte in HEADER.pack(100, 1) + b"x" * 95:
                time.sleep(0.05)
                sender.sock.sendall(bytes([byte]))

    threading.Thread(target=trickle, daemon=True).start()
    with pytest.raises(TimeoutError):
        receiver.message(100)


def test_has_ended(pair):
    """Known without waiting, and without taking what came."""
    sender, receiver = pair
    frames.wait_at_most(receiver.sock, 5)
    assert not receiver.has_ended()
    sender.send(Kind.CALL, b"x")
    assert not receiver.has_ended()
    assert receiver.message(10) == (Kind.CALL, b"x")
    sender.close()
    assert receiver.has_ended()
    receiver.close()
    assert receiver.has_ended()


def test_the_kernel_finds_a_dead_host():
    """Keep-alive is on, and small messages leave immediately."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as found:
        settle(found)
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_silence_is_an_error_with_tls_too(tls_files):
    """There Python measures it: its TLS would repeat what the kernel gave up."""
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(*tls_files[:2])
    client_side = ssl.create_default_context(cafile=tls_files[2])
    a, b = socket.socketpair()
    made = []
    thread = threading.Thread(target=lambda: made.append(server_side.wrap_socket(a, server_side=True)))
    thread.start()
    secured = client_side.wrap_socket(b, server_hostname="localhost")
    thread.join()
    channel = Channel(secured)
    frames.wait_at_most(secured, 0.2)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.message(10)
    assert time.monotonic() - began_s < 5
    threading.Thread(target=Channel(made[0]).send, args=(Kind.CALL, b"x" * 600_000), daemon=True).start()
    assert channel.message(600_000)[1] == b"x" * 600_000
    assert not channel.has_ended()
    secured.close()
    made[0].close()
