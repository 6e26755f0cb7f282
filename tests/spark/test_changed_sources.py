"""Flows that read other sources than before, or the same in other places: each goes on where it was."""

from __future__ import annotations

from collections import Counter

import pytest

from recovery.errors import FlowMismatchError
from recovery.storage.files import scan
from tests.spark.support import Feed, add_up, run_to_end, states, totals_step


def add_up_and_wait(key, rows, state):
    """The same, with a timeout that nobody waits for."""
    yield from add_up(key, rows, state)
    state.setTimeoutDuration(1_000_000)


def totals_of(*feeds):
    """The truth over several inputs."""
    truth = {}
    for feed in feeds:
        for key, (count, total) in feed.totals().items():
            held = truth.setdefault(key, [0, 0])
            truth[key] = [held[0] + count, held[1] + total]
    return truth


def read(spark, feed, kind):
    """The feed by Spark's file source, or by ours."""
    if kind == "files":
        return feed.frame(spark)
    lines = spark.readStream.format("appended").load(str(feed.path / "*.txt"))
    return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")


@pytest.mark.parametrize("kind", ["files", "appended"])
def test_sources_that_change_their_order_and_one_more(spark, tmp_path, kind):
    feeds = [Feed(tmp_path / name) for name in "abc"]
    for number, feed in enumerate(feeds):
        feed.add_random(number)
    orders = [[0, 1], [1, 0], [2, 1, 0], [0, 2, 1]]
    for number, order in enumerate(orders):
        frame = read(spark, feeds[order[0]], kind)
        for each in order[1:]:
            frame = frame.union(read(spark, feeds[each], kind))
        update = add_up_and_wait if number % 2 else add_up
        run_to_end(frame.transform(totals_step(update=update)), tmp_path / "db", backup_interval="1h")
        assert states(tmp_path / "db", "totals") == totals_of(*(feeds[each] for each in sorted(order)))
        for each, feed in enumerate(feeds):
            feed.add_random(10 * number + each)
    frame = read(spark, feeds[0], kind).union(read(spark, feeds[1], kind))
    run_to_end(frame.transform(totals_step()), tmp_path / "db", resume_epoch=1)
    assert states(tmp_path / "db", "totals") == totals_of(*feeds[:2]), "back, before there was a third one"


def test_a_source_that_is_gone(spark, tmp_path):
    """It would begin anew if it came back. Nothing is given up before it is refused."""
    feeds = [Feed(tmp_path / name) for name in "ab"]
    for seed in range(3):
        for feed in feeds:
            feed.add_random(seed)
        frame = feeds[0].frame(spark).union(feeds[1].frame(spark))
        run_to_end(frame.transform(totals_step()), tmp_path / "db", backup_interval="1h")

    def held():
        return [file.description.newest_epoch for file in scan(tmp_path / "db")]

    before = held()
    with pytest.raises(FlowMismatchError, match=r"reads 1 sources.*position is one in 2"):
        run_to_end(feeds[1].frame(spark).transform(totals_step()), tmp_path / "db", resume_epoch=2)
    with pytest.raises(FlowMismatchError):
        run_to_end(feeds[1].frame(spark).transform(totals_step("other")), tmp_path / "db", drop_steps=["totals"])
    assert held() == before


@pytest.mark.parametrize("waits", [False, True])
def test_steps_side_by_side_come_and_go(spark, tmp_path, waits):
    """The frame is read in one place more, or less; the source is one."""
    feed, other = Feed(tmp_path / "in"), Feed(tmp_path / "other")
    seen = Counter()

    def run(*steps, drop=()):
        feed.add_random(len(seen))
        other.add_random(len(seen))
        seen.update(steps)
        lines = feed.frame(spark)
        update = add_up_and_wait if waits and len(steps) == 1 else add_up
        frame = lines.transform(totals_step(steps[0], update=update))
        for each in steps[1:]:
            frame = frame.union(lines.transform(totals_step(each)))
        frame = frame.union(other.frame(spark).transform(totals_step("beside")))
        run_to_end(frame, tmp_path / "db", drop_steps=drop)
        assert states(tmp_path / "db", steps[0]) == feed.totals()
        assert states(tmp_path / "db", "beside") == other.totals()

    run("one")
    before = feed.totals()
    run("one", "two")
    found = states(tmp_path / "db", "two")
    assert found == {
        key: [n - before.get(key, [0, 0])[0], total - before.get(key, [0, 0])[1]]
        for key, (n, total) in feed.totals().items()
        if n != before.get(key, [0])[0]
    }, "a new step begins at the present position"
    run("one", drop=["two"])
    run("one", "two")
