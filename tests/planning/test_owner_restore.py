"""Which owner gets which partitions, and whether what a killed restore left counts."""

from __future__ import annotations

import pytest

from recovery.errors import AlreadyInitializedError
from recovery.planning.owner_restore import LeftRestore, allot, counts


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 100])
@pytest.mark.parametrize("owners", [1, 2, 3, 5])
def test_as_many_to_each(count, owners):
    """All partitions, in the order of the owners, none with two more than another; the first has part-0."""
    names = [f"h{number}:7337" for number in range(owners)]
    found = allot(count, names)
    assert list(found) == list(range(count))
    assert list(found.values()) == sorted(found.values())
    assert found[0] == names[0]
    sizes = [list(found.values()).count(name) for name in names]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("home", "has_first", "expected"), [
    ("h1", {"h1": True, "h2": False}, True),
    ("h1", {"h1": False, "h2": False}, False),
    ("h2", {"h1": False, "h2": True}, True),
])  # fmt: skip
def test_the_home_tells(home, has_first, expected):
    """It placed part-0 last."""
    assert counts("h2", LeftRestore(".restore-1-ab", home, ("part-1.sqlite3",), False), has_first) is expected


def test_what_a_run_has_used_counts():
    """Whoever is named."""
    assert counts("h2", LeftRestore(".restore-1-ab", "h1", ("part-1.sqlite3",), True), {"h2": False})


@pytest.mark.parametrize(("home", "words"), [("h1:7337", "h1:7337"), ("", "cannot be read")])
def test_a_home_that_was_not_named(home, words):
    """Nothing is removed by a guess."""
    with pytest.raises(AlreadyInitializedError, match=words) as error:
        counts("h2", LeftRestore(".restore-1-ab", home, ("part-1.sqlite3",), False), {"h2": False, "h3": True})
    assert error.value.path == "h2"
    assert "Name the same owners" in error.value.remedy
