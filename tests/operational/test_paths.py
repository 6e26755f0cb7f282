"""Names of objects."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from recovery.operational.backends.paths import decode_path, encode_path

ids = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1) | st.sampled_from(
    ["a/b", "a//b", "/", "//", "a/", "..", "=", "!", "a!b", "x" * 10_000, "x/" * 3_000, "A", "a", "state.json"]
)


@given(ids, ids)
def test_a_path_is_taken_by_every_store_and_means_one_id(one, other):
    """Plain characters, not too long, no dots; different ids never share a path, and short ones can be read off."""
    path = encode_path(one)
    assert re.fullmatch(r"[A-Za-z0-9_@=!-]+(/[A-Za-z0-9_@=!-]+)*", path)
    assert len(path) <= 700
    assert all(len(part) <= 255 for part in path.split("/"))
    assert (path == encode_path(other)) == (one == other)
    assert decode_path(path) in (one, None)
    if "!" not in path:
        assert decode_path(path) == one
