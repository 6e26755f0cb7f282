"""Addresses of the places of operational state."""

from __future__ import annotations

import pytest

from recovery.errors import ConfigurationError
from recovery.state.objects import parse_address


@pytest.mark.parametrize("uri", ["s3://bucket/team#1", "gs://bucket#1", "azure://c/team#", "file:///srv/state#1"])
def test_a_fragment_is_refused(uri):
    """What follows a # is no part of a path: two teams would have one state. The error says how to write it."""
    with pytest.raises(ConfigurationError, match="%23"):
        parse_address(uri)


def test_a_name_may_hold_any_character():
    """Written as URIs have it."""
    assert parse_address("s3://bucket/team%231").prefix == "team#1"
    assert parse_address("file:///srv/state%231").prefix == "/srv/state#1"
