"""Who is at the other end of a connection within this machine: this user and root are trusted, others are not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from recovery.host.peers import of_trusted_user, tcp_of_trusted_user

CONNECT = """
import os, socket, sys
if sys.argv[1] != "-":
    os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
where = sys.argv[2]
if where.isdigit():
    made = socket.create_connection(("127.0.0.1", int(where)))
else:
    made = socket.socket(socket.AF_UNIX); made.connect("\\0" + where)
print("connected", flush=True)
sys.stdin.read()
"""
PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
"""One that other users can start."""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not say whose it is")


def connection_of(user: str, listener: socket.socket, where: str) -> tuple[subprocess.Popen[str], socket.socket]:
    """A connection of a process of this user; "-": of this one's."""
    process = subprocess.Popen(
        [PYTHON, "-c", CONNECT, user, where], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    listener.settimeout(20)
    return process, listener.accept()[0]


USERS = [("-", True), pytest.param("54321", False, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"))]


@pytest.mark.parametrize(("user", "trusted"), USERS)
def test_of_a_unix_socket(user, trusted):
    """The operating system says it."""
    name = f"recovery-test-{os.getpid()}-{threading.get_ident()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        process, connected = connection_of(user, listener, name)
        with connected:
            assert of_trusted_user(connected) is trusted
        process.communicate("")


@pytest.mark.parametrize(("user", "trusted"), USERS)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_of_a_loopback_connection(user, trusted, family):
    """Its table says it, also where a socket for both kinds of addresses takes it."""
    with socket.socket(family) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("127.0.0.1" if family == socket.AF_INET else "::", 0))
        except OSError:
            pytest.skip("no such addresses here")
        listener.listen()
        process, connected = connection_of(user, listener, str(listener.getsockname()[1]))
        with connected:
            assert tcp_of_trusted_user(connected) is trusted
        process.communicate("")
