"""What a sink gets: rows that are kept for it and let go afterwards, in a session with our settings."""

from __future__ import annotations

import pytest

from recovery import FlowFailedError
from tests.spark.support import run_to_end, set_to, states, totals_step

STATELESS_ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"


def kept(spark) -> set[int]:
    """The data sets that Spark keeps."""
    return set(spark.sparkContext._jsc.getPersistentRDDs())


def test_a_batch_is_let_go_when_the_sink_returns(spark, feed, tmp_path):
    """One is kept at a time: a stream that runs for days does not fill the disks with what its sinks have seen."""
    for seed in range(3):
        feed.add_random(seed)
    before, seen = kept(spark), []

    def sink(batch, _):
        (batch.count(), batch.count())  # a sink that reads once gets no copy
        seen.append(kept(spark) - before)

    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    assert [len(each) for each in seen] == [1, 1, 1]
    assert len(set.union(*seen)) == 3
    assert kept(spark) <= before


def test_a_batch_is_let_go_when_the_sink_fails(spark, feed, tmp_path):
    """Whoever tries again and again in one session keeps nothing of it."""
    feed.add_random(1)
    before, seen = kept(spark), []

    def sink(batch, _):
        seen.append(kept(spark) - before)
        raise ValueError("no")

    with pytest.raises(FlowFailedError):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink)
    assert [len(each) for each in seen] == [1]
    assert kept(spark) <= before


def test_micro_batches_have_our_settings(spark, feed, tmp_path):
    """Whatever the session says, which keeps what it says: stages would run before the sink is called, and partitions
    without rows lose their tasks."""
    feed.add_random(1)
    seen = []
    with set_to(spark, {STATELESS_ADAPTIVE: "true"}):
        run_to_end(
            feed.frame(spark).transform(totals_step()),
            tmp_path / "db",
            lambda batch, _: seen.append(batch.sparkSession.conf.get(STATELESS_ADAPTIVE)),
        )
        assert spark.conf.get(STATELESS_ADAPTIVE) == "true"
    assert seen == ["false"]
    assert states(tmp_path / "db", "totals") == feed.totals()
