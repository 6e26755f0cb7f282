"""Names that lead to the loopback interface of this host."""

from __future__ import annotations

import socket

import pytest

from recovery.owner.watch.loopback import is_loopback, loopback_warning


@pytest.mark.parametrize(("host", "is_one"), [
    ("127.0.0.1", True), ("127.0.1.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("10.0.0.1", False), ("h1", False),
])  # fmt: skip
def test_what_a_user_means(host, is_one):
    """Who writes the loopback interface gets no warning; nor does an address."""
    assert is_loopback(host) is is_one
    if host != "h1":
        assert loopback_warning(host) is None


@pytest.mark.parametrize(("found", "warns"), [
    (["127.0.1.1"], True), (["127.0.1.1", "::1"], True), (["127.0.1.1", "10.0.0.4"], False), (["10.0.0.4"], False),
    (OSError(), False),
])  # fmt: skip
def test_a_name_in_the_hosts_file(monkeypatch, found, warns):
    """Debian maps a host's own name to 127.0.1.1. A name that is not known here is another matter."""

    def look_up(*_: object, **__: object) -> list:
        if isinstance(found, OSError):
            raise found
        return [(None, None, None, "", (each, 0)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    text = loopback_warning("h1")
    assert (text is not None) is warns
    if text is not None:
        assert text.startswith("the name h1 is 127.0.1.1 on this host")
