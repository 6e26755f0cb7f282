"""Addresses of the places of operational state."""

from __future__ import annotations

import os

import pytest

from recovery.errors import ConfigurationError
from recovery.state.objects import FileObjects, parse_address


@pytest.mark.parametrize("uri", ["s3://bucket/team#1", "gs://bucket#1", "azure://c/team#", "file:///srv/state#1"])
def test_a_fragment_is_refused(uri):
    """What follows a # is no part of a path: two teams would have one state. The error says how to write it."""
    with pytest.raises(ConfigurationError, match="%23"):
        parse_address(uri)


def test_a_name_may_hold_any_character():
    """Written as URIs have it."""
    assert parse_address("s3://bucket/team%231").prefix == "team#1"
    assert parse_address("file:///srv/state%231").prefix == "/srv/state#1"


def test_a_process_that_is_forked_during_a_write_does_not_keep_the_lock(tmp_path, monkeypatch):
    """It has the lock's file open for as long as it lives; others write all the same."""
    place = FileObjects(tmp_path, timeout_s=0.2)
    reading, writing = os.pipe()
    children = []

    def forks(descriptor: int) -> None:
        child = os.fork()
        if not child:
            os.read(reading, 1)
            os._exit(0)
        children.append(child)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", forks)
            place.put("a/state.json", b"1", None)
        place.put("b/state.json", b"2", None)
    finally:
        os.write(writing, b"!" * len(children))
        for child in children:
            os.waitpid(child, 0)
