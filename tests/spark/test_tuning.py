"""The switches of the tactics that make micro-batches faster."""

from __future__ import annotations

import pytest

from recovery import ConfigurationError, aggregate
from recovery.aggregates import count, sum_
from recovery.spark.tuning import gathering, merging
from recovery.spark.tuning.back_off import BackOff
from recovery.spark.tuning.tuning import TACTICS, VARIABLE, switched_on
from tests.shares import first, some
from tests.spark.support import run_to_end, states, totals_step


@pytest.fixture(autouse=True)
def never_slow(monkeypatch):
    """A busy machine does not pause the gathering."""
    monkeypatch.setattr(gathering, "LONG_S", 60)


@pytest.mark.parametrize("text", ["", " ", "-gathering", "-gathering, -merging", "-combining,-row-width"])
def test_the_variable_names_what_is_off(text):
    assert switched_on(text) == {name for name in TACTICS if f"-{name}" not in text}


@pytest.mark.parametrize("text", ["gathering", "-speed", "-", "-gathering,merging", "-gathering merging"])
def test_other_words_are_refused(text):
    """A switch that does nothing would show in no result."""
    with pytest.raises(ConfigurationError, match="does not name tactics"):
        switched_on(text)


def test_pauses_double_up_to_a_limit():
    """And are short again after a reset."""
    back_off = BackOff(2, 5)
    lengths = []
    for _ in range(4):
        back_off.pause()
        lengths.append(sum(iter(back_off.count, False)))
        assert not back_off.is_paused
    back_off.reset()
    back_off.pause()
    assert (lengths, sum(iter(back_off.count, False))) == ([2, 4, 5, 5], 2)


ALL_OFF = "-combining,-merging,-gathering,-row-width"


class Plans:
    """A sink that keeps the plan of each micro-batch."""

    def __init__(self, spark) -> None:
        self._spark = spark
        self.seen: list[str] = []

    def __call__(self, batch, _) -> None:
        batch.collect()
        [query] = self._spark.streams.active
        self.seen.append(query._jsq.streamingQuery().lastExecution().executedPlan().toString())


@first("off", ["", "-gathering"])
def test_gathering(spark, feed, tmp_path, monkeypatch, off):
    """Without it, every micro-batch is exchanged."""
    monkeypatch.setenv(VARIABLE, off)
    for seed in range(3):
        feed.add_random(seed)
    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", plans)
    assert ["Coalesce 1" in plan for plan in plans.seen] == [off == ""] * 3
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.parametrize("off", some(["", "-combining", "-merging", ALL_OFF], "", ALL_OFF))
def test_aggregates(spark, feed, tmp_path, monkeypatch, off):
    """Results do not depend on who adds up."""
    monkeypatch.setenv(VARIABLE, off)
    merged = []
    run_tasks = merging.run_tasks
    monkeypatch.setattr(merging, "run_tasks", lambda *given: merged.append(1) or run_tasks(*given))
    for offset in range(2):
        feed.add((f"k{number % 40}", number + offset) for number in range(30_000))
    step = aggregate("totals", key="key", n=count(), total=sum_("value"))
    plans = Plans(spark)
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db", plans)
    assert {key: [s["n"], s["total"]] for key, s in states(tmp_path / "db", "totals").items()} == feed.totals()
    assert {"HashAggregate" in plan for plan in plans.seen} == {"-combining" not in off}
    if "-merging" in off:
        assert merged == []
    elif "-combining" not in off:
        assert len(merged) == 2
