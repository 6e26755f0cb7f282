"""How long a source has been behind, from looks at it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from recovery.planning.lag import MOST_SAMPLES, InputLag, LagHistory, PartLag, SourceLag, growth, together


def part(read, end, partition="0", topic="t", behind=None):
    """What a look has found of a partition."""
    return PartLag("b:1", topic, partition, "record", read, end, end - read if behind is None else behind)


def seconds(history, now_s, *parts):
    """The lag of the one source."""
    [found] = history.add(parts, now_s)
    return found.seconds


def test_since_when():
    """From the look that saw input which the newest epoch still lacks; nothing while each epoch takes what the look
    before has seen, however long its interval is."""
    history = LagHistory()
    assert seconds(history, 0, part(0, 10)) == 0
    assert seconds(history, 100, part(10, 30)) == 0
    assert seconds(history, 200, part(20, 40)) == 100
    assert seconds(history, 300, part(29, 50)) == 200
    assert seconds(history, 400, part(35, 60)) == 200
    assert seconds(history, 500, part(60, 60)) == 0
    assert seconds(history, 600, part(60, 61)) == 0


def test_partitions_count_by_themselves():
    """One that stands still is behind, whatever others read; one that is gone or new is not."""
    history = LagHistory()
    assert seconds(history, 0, part(0, 5), part(0, 5, "1")) == 0
    assert seconds(history, 10, part(5, 9), part(0, 5, "1")) == 10
    assert seconds(history, 20, part(9, 9)) == 0
    assert seconds(history, 30, part(9, 9), part(0, 7, "2")) == 0


def test_a_source_that_does_not_answer():
    """The lag of that source goes on where it was; a topic that is gone while its source answers begins again."""
    history, other = LagHistory(), PartLag("files", "", "", "byte", 5, 5, 0)
    assert seconds(history, 0, part(0, 5)) == 0
    assert history.add([], 10) == ()
    assert seconds(history, 15, other) == 0
    assert seconds(history, 20, part(0, 9)) == 20
    assert seconds(history, 30, part(0, 1, topic="u")) == 0
    assert seconds(history, 40, part(0, 9)) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=MOST_SAMPLES * 3))
def test_many_looks(steps):
    """Never more than the truth, which looks through all looks; what is remembered is bounded."""
    history, ends, read, end = LagHistory(), [], 0, 0
    for now_s, (comes, takes) in enumerate(steps):
        end += comes
        read = min(end, read + takes)
        ends.append(end)
        truth = now_s - next((at for at, seen in enumerate(ends) if seen > read), now_s)
        found = seconds(history, now_s, part(read, end))
        assert found <= truth
        assert (found > 0) == (truth > 0) or len(steps) > MOST_SAMPLES
        assert all(len(looks) <= MOST_SAMPLES for looks in history._seen.values())


def test_the_sum_of_a_topic():
    """The topic as a whole, and its partition that is furthest behind; the worst source first."""
    history = LagHistory()
    first, second = history.add([part(0, 3), part(0, 7, "1"), part(5, 5, topic="other")], 0)
    assert (first.name, first.behind, first.parts, first.most, first.most_behind) == ("t", 10, 2, "1", 7)
    assert (str(first), str(second)) == ("t 10 records", "other 0 records")


def test_a_part_in_two_places():
    """It is as far behind as the place that lacks most."""
    assert together([part(5, 9), part(3, 9), part(8, 9, "1")]) == (part(3, 9), part(8, 9, "1"))


def test_growth():
    """Sources that lack more than before, and none at the first look."""

    def lag(**behind):
        found = tuple(SourceLag(source=name, unit="byte", behind=count) for name, count in behind.items())
        return InputLag(execution=1, epoch=1, seen_ms=0, sources=found)

    assert growth(None, lag(a=5)) == ""
    assert growth(lag(a=5, b=2), lag(a=5, b=1)) == ""
    assert growth(lag(a=5, b=2), lag(a=6, b=20)) == "b 20 bytes, a 6 bytes"
    assert lag().seconds is None
    assert lag(a=5).as_json()["seconds"] == 0
