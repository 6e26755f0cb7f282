"""State ids and the glob that selects them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import StateManager
from recovery.errors import ConfigurationError
from recovery.operational.ids import check, escape, join, matches, unescape

parts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])) | st.sampled_from(
    ["/", "%", "..", ".", "", "%2F", "a/b", "x" * 10_000, "🙂", "'\"", "*"]
)


@given(st.lists(parts, min_size=1, max_size=4), st.lists(parts, min_size=1, max_size=4))
def test_different_parts_give_different_ids(one, other):
    """No part can reach into another scope, whatever it holds."""
    assert (join(*one) == join(*other)) == (one == other)
    assert [unescape(part) for part in join(*one).split("/")] == one


@given(parts, parts)
def test_no_id_of_one_namespace_begins_like_another(one, other):
    """What is listed by a prefix is of that namespace alone."""
    if one != other:
        assert not join("process", other, "name").startswith(join("process", one) + "/")


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800", 5, None])
def test_what_cannot_be_an_id(text):
    """It is refused, not altered."""
    with pytest.raises(ConfigurationError, match="cannot be a state id"):
        check(text)


def test_the_glob():
    """A slash is a character like any other, and case counts."""
    assert matches("runs/a/b", "runs/*")
    assert matches("a", None)
    assert matches("a/b", "a?b")
    assert matches("ab", "a[bc]")
    assert not matches("A", "a")
    assert not matches("xa", "a")
    assert matches("a*b", "a[*]b")
    assert not matches("axb", "a[*]b")
    assert matches("line\nbreak", "line*")
    assert escape("") == "%"


def test_what_cannot_even_be_shown_is_refused(store_dir):
    """A list thousands deep in the place of a name, an entry, a result or an index ends in a typed error."""
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    state = StateManager(store_dir)
    for refused in (
        lambda: state.get_hwm(deep),
        lambda: state.set_hwm_batch([deep]),
        lambda: state.save_pipeline_run("p", {"n": deep}),
        lambda: state.get_last_run_status(deep),
        lambda: state.task_instance_state("d", "t", "r", deep),
    ):
        with pytest.raises(ConfigurationError):
            refused()
