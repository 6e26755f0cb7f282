"""What runs discard: only what somebody asked to discard, and once."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from recovery import HistoryLossError, RewindRepeatedError
from recovery.cli.progress import RunProgress, summary_text
from recovery.planning.resume import plan_resume
from recovery.spark.run.reporting.events import InputCounted, Resumed
from recovery.storage.scan import scan
from tests.spark.support import run_to_end, totals_step

pytestmark = pytest.mark.any_spark


def window(directory):
    """The snapshots that runs can go back to."""
    return plan_resume(scan(directory)).window


@pytest.mark.long
def test_history_is_kept_as_long_as_before(spark, feed, tmp_path):
    """A run without a backup interval keeps what earlier runs kept; a shorter one needs to be confirmed."""
    frame = feed.frame(spark).transform(totals_step())
    for number in range(3):
        feed.add([("a", number)])
        run_to_end(frame, tmp_path / "db", **({"backup_interval": "1d"} if number == 0 else {}))
    assert window(tmp_path / "db") == (0, 1, 2, 3)
    feed.add([("b", 1)])
    with pytest.raises(HistoryLossError, match="before epoch 1 to 2") as refused:
        run_to_end(frame, tmp_path / "db", backup_interval=0)
    assert "--discard-history" in refused.value.remedy
    assert window(tmp_path / "db") == (0, 1, 2, 3)
    run_to_end(frame, tmp_path / "db", backup_interval=0, discard_history=True)
    assert window(tmp_path / "db")[-1] == 4
    assert 0 not in window(tmp_path / "db")


def test_a_rewind_is_made_once(spark, feed, tmp_path, capsys):
    """It says what it discards; the same again is refused, unless it names the execution that made it."""
    frame = feed.frame(spark).transform(totals_step())
    for number in range(3):
        feed.add([("a", number)])
        run_to_end(frame, tmp_path / "db", backup_interval="1d")
    events = []
    summary = run_to_end(frame, tmp_path / "db", resume_after=1, observer=events.append)
    assert (summary.discarded["first_epoch"], summary.discarded["last_epoch"]) == (2, 3)
    [resumed] = [event for event in events if isinstance(event, Resumed)]
    RunProgress("test").observe(resumed)
    said = capsys.readouterr().err
    assert "execution 4 rewinds: it resumes at epoch 2, after epoch 1 (micro-batch 0)" in said
    assert "has discarded epochs 2 to 3 of executions 2 to 3, closed" in said
    for again in ({"resume_after": 1}, {"resume_epoch": 2}, {"resume_after": 1, "rewind_again": 3}):
        with pytest.raises(RewindRepeatedError, match="execution 4 went back to after epoch 1 already") as refused:
            run_to_end(frame, tmp_path / "db", **again)
        assert "--rewind-again 4" in refused.value.remedy
    assert run_to_end(frame, tmp_path / "db").resume_after == 3
    assert run_to_end(frame, tmp_path / "db", resume_after=1, rewind_again=4).discarded is not None
    # Nothing is there to discard: another rewind is one to the beginning.
    assert run_to_end(frame, tmp_path / "db", resume_epoch=1).resume_after == 0


@pytest.mark.long
def test_rows_are_those_of_the_sources(spark, feed, tmp_path, capsys):
    """Batch lines and the summary count the same, whatever the flow makes of the rows."""
    frame = feed.frame(spark).where(F.col("key") != "none").transform(totals_step())
    feed.add([("a", 1), ("none", 1), ("none", 2)])
    feed.add([("none", 3)])
    counts = []
    with RunProgress("test") as progress:

        def observe(event):
            progress.observe(event)
            if isinstance(event, InputCounted):
                counts.append(event.rows)

        summary = run_to_end(frame, tmp_path / "db", observer=observe)
    said = capsys.readouterr().err
    assert (counts, summary.rows) == ([3, 1], 4)
    assert "batch 0 · epoch 1 · 3 rows" in said
    assert "batch 1 · epoch 2 · 4 rows" in said or "batch 1 · epoch 1 · 4 rows" in said
    assert "4 rows" in summary_text(summary)
    assert said.index("batch 0 ·") < said.index("epoch 1 closed")
