"""Which topics a source's options name, as Spark's connector takes them, and what a position says."""

from __future__ import annotations

import pytest

from recovery.planning.topics import Subscription, lowest, offsets_in


def test_what_options_say():
    """Names are cut at commas and trimmed, a pattern is trimmed; assigned partitions are numbers."""
    assert Subscription.of({"subscribe": " a, b ,,"}) == Subscription(frozenset("ab"))
    assert Subscription.of({"subscribepattern": " a.* "}) == Subscription(pattern="a.*")
    found = Subscription.of({"assign": '{"a": [0, 2]}'})
    assert (found.names, found.partitions) == ({"a"}, {"a": {0, 2}})
    for nothing in ({}, {"assign": "x"}, {"assign": '["a"]'}):
        assert Subscription.of(nothing) == Subscription()


@pytest.mark.parametrize(
    ("pattern", "topic", "covers"),
    [
        # Spark searches for a pattern in a name, and does not compare the whole name.
        ("orders", "eu-orders-1", True),
        ("^orders$", "orders", True),
        ("^orders$", "orders-1", False),
        ("a|b", "xbx", True),
        ("(eu|us)-[a-z]{2}", "us-x", False),
    ],
)
def test_patterns(pattern, topic, covers):
    """A pattern is searched for in the name."""
    assert Subscription(pattern=pattern).covers(topic) is covers


def test_topics_that_are_named():
    """Only they are covered."""
    assert [Subscription(frozenset({"a"})).covers(topic) for topic in ("a", "ab")] == [True, False]


@pytest.mark.parametrize(
    "pattern",
    [
        "orders",
        "orders.*",
        "^orders-.+$",
        r"orders\.v\d",
        "(eu|us)-orders",
        "[a-z_]+-[^0-9]",
        "(?:a)?b",
        "a{2,3}",
        "[a-]",
    ],
)
def test_patterns_that_mean_the_same_in_java(pattern):
    """Which topics match is known without Spark."""
    assert Subscription(pattern=pattern).is_certain


@pytest.mark.parametrize(
    "pattern",
    [r"\p{Alpha}+", "[a-z&&[^b]]", "(?i)orders", "(?<name>a)", r"\Qa.b\E", "a++", "a*?", "(a+)+", "(", "[z-a]",
     "a{3,2}", "[a-c-e]", r"\h", "ä", "a b", ".*.*.*.*.*", "x(?=y)", r"(a)\1"],
)  # fmt: skip
def test_patterns_that_only_java_knows(pattern):
    """What Python lacks or takes otherwise, or what may take long to search."""
    assert not Subscription(pattern=pattern).is_certain


def test_positions():
    """A position by topic and number; another source's is none."""
    assert offsets_in('{"a":{"0":5,"1":0}}') == {"a": {0: 5, 1: 0}}
    for other in (None, "", '{"logOffset":0}', '{"a":{"x":1}}', "[" * 100_000):
        assert offsets_in(other) is None
    assert lowest([{"a": {0: 5}}, {"a": {0: 3, 1: 9}, "b": {0: 1}}]) == {"a": {0: 3, 1: 9}, "b": {0: 1}}
