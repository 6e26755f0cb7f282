"""Which files load a version of a state store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.checkpoint.state_stores.needed import MAX_CHANGES, Chain, needed_chain, store_files
from recovery.errors import SparkCheckpointError, UnsupportedPlanError


def chain(present, version, held=(), cost=10, gain=1):
    """What is needed of a directory called s; a base costs `cost` bytes, a change has `gain`."""
    return needed_chain("s", store_files(present), store_files(held), version, lambda _: cost, lambda _: gain)


def deltas(first, last):
    """The names of the changes first … last."""
    return [f"{number}.delta" for number in range(first, last + 1)]


def test_the_newest_base_and_what_follows_it():
    """Older bases and changes, versions after the one wanted and other names are left out."""
    names = [*deltas(1, 12), "4.snapshot", "9.snapshot", "12.snapshot", ".10.delta.crc", "10.delta.tmp", "SSTs"]
    assert chain(names, 11) == Chain("9.snapshot", ("10.delta", "11.delta"))
    assert chain(names, 9) == Chain("9.snapshot", ())
    assert chain(names, 3) == Chain(None, tuple(deltas(1, 3)))


def test_rocksdb_with_and_without_changelog():
    """Without a changelog every version is a base; with one, changes follow it."""
    assert chain(["1.zip", "2.zip", "3.zip"], 2) == Chain("2.zip", ())
    assert chain(["1.changelog", "2.changelog", "2.zip", "3.changelog"], 3) == Chain("2.zip", ("3.changelog",))


@pytest.mark.parametrize(
    ("names", "version", "missing"),
    [
        (["1.delta", "3.delta"], 3, "s/2.delta"),
        (["5.snapshot", "6.delta"], 7, "s/7.delta"),
        (["2.changelog", "4.zip"], 3, "s/3.changelog"),
        (["1.zip"], 2, "s/2.zip"),
    ],
)
def test_a_gap_is_reported(names, version, missing):
    """The error names the file that is missing."""
    with pytest.raises(SparkCheckpointError) as raised:
        chain(names, version)
    assert raised.value.path == missing


def test_names_with_a_unique_id_are_refused():
    """Which of two files of one version counts is in Spark's commit log alone."""
    with pytest.raises(UnsupportedPlanError, match="format 2"):
        chain(["1_7f0c.changelog"], 1)


def test_what_spark_removed_is_still_held():
    """Changes that are held already close the gap that Spark's maintenance made."""
    assert chain(deltas(5, 7), 7, held=deltas(1, 5)) == Chain(None, tuple(deltas(1, 7)))


def test_a_newer_base_is_taken_when_it_pays():
    """It costs no more than the changes that it makes superfluous; or there are too many of those."""
    held = ["2.snapshot", *deltas(3, 8)]
    present = [*deltas(1, 10), "2.snapshot", "9.snapshot"]
    old, new = Chain("2.snapshot", tuple(deltas(3, 10))), Chain("9.snapshot", ("10.delta",))
    assert chain(present, 10, held, cost=8, gain=1) == old
    assert chain(present, 10, held, cost=7, gain=1) == new
    many = [*deltas(1, 200), "199.snapshot"]
    assert chain(many, 200, deltas(1, MAX_CHANGES - 1), cost=10**9) == Chain("199.snapshot", ("200.delta",))
    assert chain(present, 10, cost=10**9) == new, "the first time, nothing is held that could be continued"


@given(
    st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)), st.integers(1, 30), st.integers(0, 20), st.integers(0, 20)
)
def test_any_chain_loads_the_version(bases, changes, version, cost, upto):
    """A base, or nothing, and every version after it up to the one wanted; or an error when there is none."""
    names = [*(f"{n}.snapshot" for n in bases), *(f"{n}.delta" for n in changes)]
    held = [name for name in names if int(name.split(".")[0]) <= upto]
    try:
        found = chain(names, version, held, cost)
    except SparkCheckpointError:
        possible = any(set(range(base + 1, version + 1)) <= changes for base in {0, *bases} if base <= version)
        assert not possible
        return
    base = 0 if found.base is None else int(found.base.split(".")[0])
    assert found.base is None or found.base in names
    assert list(found.changes) == deltas(base + 1, version)
    assert set(found.changes) <= set(names)
