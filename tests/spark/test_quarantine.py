"""A flow with bad rows goes on; once its code is fixed, they count exactly once, also over kills and rewinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from recovery import FileSink, Flow, RecoveryConfig, aggregate, init_partitions, start, stateful
from recovery.aggregates import sum_
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import QuarantineError, RecoveryError, StepChangedError, UnknownStepError
from recovery.operational.steps.quarantine import WaitingRows, Wanted, replay
from recovery.storage.store import Store
from tests.flows import bad_rows
from tests.shares import first
from tests.spark.support import ROOT, states
from tests.spark.test_crashes import finish, recovery_command
from tests.stores import content, problems

FLOW = ROOT / "tests" / "flows" / "bad_rows.py"


class Job:
    """The flow of `bad_rows` with its directory, input and output."""

    def __init__(self, tmp_path: Path, feed, spark, make=bad_rows.make) -> None:
        self.directory, self.output, self.fixed = tmp_path / "db", tmp_path / "out", tmp_path / "fixed"
        self.feed, self.spark, self.make = feed, spark, make
        init_partitions(self.directory, 3)

    def run(self, given=None, **config):
        """Run to the end of the input; returns the summary. given: other arguments of the flow."""
        flow = self.make(str(self.feed.path), str(self.output), str(self.fixed), **(given or {}))
        config = {"snapshot_interval": 0, "backup_interval": "1h"} | config
        query = start(flow, RecoveryConfig(self.directory, **config), spark=self.spark, trigger="available-now")
        query.await_termination()
        return query.summary

    def waiting(self) -> WaitingRows:
        return WaitingRows.of((each.note, each.replays) for each in Wanted().keys(Store(self.directory).at()))

    def replay(self, key: str | None = None) -> None:
        replay(Store(self.directory), Wanted(key=key), SystemClock())

    def totals(self) -> dict[str, list[int]]:
        return {key: sorted(values) for key, values in states(self.directory, "totals").items()}

    def rows(self) -> list[tuple[str, int]]:
        """The output."""
        return sorted(map(tuple, self.spark.read.parquet(str(self.output)).select("key", "total").collect()))

    def truth(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for key, value in self.feed.rows:
            found.setdefault(key, []).append(value)
        return {key: sorted(values) for key, values in found.items()}


@pytest.fixture
def job(tmp_path, feed, spark):
    feed.add([("a", 1), ("b", 2), ("c", 3)])
    feed.add([("a", 1000), ("b", 4), ("d", 1001)])
    feed.add([("a", 5), ("b", 6), ("c", 7)])
    return Job(tmp_path, feed, spark)


def test_bad_rows_wait_and_count_once_when_they_are_replayed(job):
    """In their order, without any new input, and with the output of each call once."""
    summary = job.run()
    assert (summary.batches, summary.quarantined, job.waiting().rows) == (3, 3, 3)
    assert job.totals() == {"a": [1], "b": [2, 4, 6], "c": [3, 7]}
    job.replay("a")
    assert job.run().quarantined == 3, "the code is not fixed yet"
    job.fixed.touch()
    job.replay()
    summary = job.run()
    assert (summary.batches, summary.quarantined) == (1, 0)
    assert job.totals() == job.truth()
    assert job.rows() == sorted(
        [("a", 1), ("a", 1001), ("a", 1006), ("b", 2), ("b", 6), ("b", 12), ("c", 3), ("c", 10), ("d", 1001)]
    )
    assert problems(job.directory) == []
    job.feed.add([("a", 8), ("d", 9)])
    assert job.run().quarantined == 0
    assert job.totals() == job.truth()


@pytest.mark.long
def test_rows_replayed_with_newer_rows_of_their_key(job):
    """The newer ones come behind."""
    job.run()
    job.fixed.touch()
    job.replay()
    job.feed.add([("a", 8), ("e", 9)])
    job.run()
    assert states(job.directory, "totals")["a"] == [1, 1000, 5, 8]
    assert job.totals() == job.truth()


@pytest.mark.long
def test_a_rewind_takes_quarantine_and_replay_back(job):
    """Rows of input that is read again fail again, or pass: each counts once."""
    job.run()
    job.fixed.touch()
    job.replay()
    job.run()
    job.fixed.unlink()
    job.run(resume_after=1)
    assert job.waiting().rows == 3
    assert job.totals() == {"a": [1], "b": [2, 4, 6], "c": [3, 7]}
    job.fixed.touch()
    job.run(resume_after=0)
    assert job.waiting().rows == 0
    assert job.totals() == job.truth()
    assert len(job.rows()) == 9


@pytest.mark.any_spark
def test_more_rows_than_may_wait_end_the_run(job):
    """The micro-batch does not count, those before it do; a run that allows more goes on."""
    with pytest.raises(QuarantineError, match="too large: 100"):
        job.run(quarantine=1)
    assert job.waiting().rows == 0
    assert job.totals() == {"a": [1], "b": [2], "c": [3]}
    with pytest.raises(QuarantineError, match="where it may put 1;"):
        job.run({"limit": 1})
    with pytest.raises(QuarantineError, match="2 of 3 rows of micro-batch 1 would enter quarantine, where 50% may"):
        job.run(quarantine="50%")
    assert job.waiting().rows == 0
    assert job.run({"limit": "0,0%"}, quarantine="3,70%").quarantined == 3, "what the run says counts more"
    assert job.totals() == {"a": [1], "b": [2, 4, 6], "c": [3, 7]}


def up_to(path, output, fixed, most=1000):
    """The flow of `bad_rows`, for values up to `most`."""

    def add_up(key, rows, state):
        if max(row.value for row in rows) > most:
            raise ValueError("too large")
        state.update([*(state.getOption or []), *(row.value for row in rows)])
        yield key, sum(state.get)

    def build(spark):
        step = stateful("totals", key="key", update=add_up, output="key string, total long", on_error="quarantine")
        return bad_rows.pairs(spark, path).transform(step)

    return Flow("totals", build, FileSink(output))


@pytest.mark.parametrize("many", [True, False], ids=["exchanged", "gathered"])
def test_a_replay_that_leaves_fewer_rows_is_never_too_many(tmp_path, feed, spark, monkeypatch, many):
    """Whatever the limit is, and although the tasks meet new bad rows before they replay the others."""
    if many:
        monkeypatch.setenv("RECOVERY_TUNING", "-gathering")
    feed.add((f"k{number}", 1001) for number in range(9))
    job = Job(tmp_path, feed, spark, up_to)
    assert job.run().quarantined == 9
    job.replay()
    feed.add((f"new{number}", 2001) for number in range(4))
    assert job.run({"most": 2000}, quarantine=1).quarantined == 4
    assert job.totals() == {f"k{number}": [1001] for number in range(9)}
    feed.add([("newer", 2001)])
    with pytest.raises(QuarantineError, match="where 1 may"):
        job.run({"most": 2000}, quarantine=1)
    assert job.waiting().rows == 4


@pytest.mark.any_spark
def test_a_step_whose_errors_end_the_run_does_not_pass_rows_that_wait(job):
    """Refused, and nothing is changed, until the rows are dropped."""
    job.run()
    before = content(job.directory)
    with pytest.raises(QuarantineError, match="3 rows in quarantine"):
        job.run({"on_error": "fail"})
    assert content(job.directory) == before
    dropped = CliRunner().invoke(main, ["quarantine", "drop", str(job.directory), "--no-save", "--yes"])
    assert dropped.exit_code == 0, dropped.output
    job.feed.add([("a", 8)])
    job.run({"on_error": "fail"})
    assert job.totals() == {"a": [1, 8], "b": [2, 4, 6], "c": [3, 7]}


@pytest.mark.long
def test_a_renamed_step_keeps_its_quarantine(job):
    """Its rows are replayed under the new name, in the run that renames."""
    job.run()
    job.replay()
    job.fixed.touch()
    assert job.run({"step": "sums"}, rename_steps={"totals": "sums"}).quarantined == 0
    assert {key: sorted(values) for key, values in states(job.directory, "sums").items()} == job.truth()


@pytest.mark.long
def test_later_rows_pass_with_hold_no(job):
    """Only the rows that failed wait."""
    assert job.run({"hold": "no"}).quarantined == 2
    assert job.totals() == {"a": [1, 5], "b": [2, 4, 6], "c": [3, 7]}
    job.replay()
    job.fixed.touch()
    assert job.run({"hold": "no"}).quarantined == 0
    assert job.totals() == job.truth()


@pytest.mark.long
def test_timeouts_of_a_key_that_waits(job):
    """They wait, and do not wake the run again and again; those of other keys fire."""
    job.run({"timeouts": True})
    summary = job.run({"timeouts": True})
    assert summary.batches <= 1
    assert job.run({"timeouts": True}).batches == 0
    assert set(job.totals()) == {"a"}
    job.replay()
    job.fixed.touch()
    assert job.run({"timeouts": True}).quarantined == 0
    assert ("a", 1006) in job.rows()


@pytest.mark.long
def test_the_form_of_bytewax(tmp_path, feed, spark):
    """`stateful_map`: all rows of the key in the micro-batch wait."""
    feed.add([("a", 1), ("a", 1000), ("b", 2)])
    job = Job(tmp_path, feed, spark, bad_rows.make_map)
    assert job.run().quarantined == 2
    assert states(job.directory, "totals") == {"b": 2}
    job.fixed.touch()
    job.replay()
    assert job.run().quarantined == 0
    assert states(job.directory, "totals") == {"a": 1001, "b": 2}


@pytest.mark.long
def test_a_vectorised_step_is_divided_until_the_bad_keys_are_found(tmp_path, feed, spark):
    """Two bad keys among many: their rows wait, and every other key is applied once."""
    feed.add([(f"k{number}", number) for number in range(500)] + [("k7", 1000), ("k300", 2000)])
    job = Job(tmp_path, feed, spark, bad_rows.make_tables)
    assert job.run().quarantined == 4
    found = {key: each["total"] for key, each in states(job.directory, "totals").items()}
    assert found == {f"k{number}": number for number in range(500) if number not in (7, 300)}
    job.fixed.touch()
    job.replay()
    assert job.run().quarantined == 0
    found = {key: each["total"] for key, each in states(job.directory, "totals").items()}
    assert found == {key: sum(values) for key, values in job.truth().items()}


def sums(job, key=lambda key: key) -> dict[str, tuple[int, int]]:
    """The states of the aggregates: number of rows and total, in the unit of the flow."""
    found = states(job.directory, "totals")
    return {key: (each["n"], each["total"] // bad_rows.MANY) for key, each in found.items()}


@first("given", [{}, {"by": "upper(key)"}])
def test_an_aggregate_whose_sum_overflows(job, given, tuning):
    """The key's rows wait as they came, the other keys go on. A replay computes what is added from the rows again, and
    counts each once."""
    job.make = bad_rows.make_sums
    key = str.upper if given else str
    assert job.run(given).quarantined == 2
    assert sums(job) == {key("a"): (1, 1), key("b"): (3, 12), key("c"): (2, 10), key("d"): (1, 1000)}
    shown = CliRunner().invoke(main, ["quarantine", "show", str(job.directory), "--key", key("a")]).stdout
    assert "the sum of 'total' overflows" in shown
    assert '{"key":"a","value":1000}' in shown
    job.replay()
    assert job.run(given).quarantined == 2, "the code is not fixed yet"
    job.fixed.touch()
    job.replay()
    assert job.run(given, keep_steps=("totals",)).quarantined == 0
    assert sums(job) == {key("a"): (3, 6), key("b"): (3, 12), key("c"): (2, 10), key("d"): (1, 1000)}
    assert problems(job.directory) == []
    job.feed.add([("a", 8)])
    job.run(given)
    assert sums(job)[key("a")] == (4, 14)


@pytest.mark.long
def test_later_rows_of_an_aggregate_pass_with_hold_no(job):
    """Only the rows that failed wait."""
    job.make = bad_rows.make_sums
    assert job.run({"hold": "no"}).quarantined == 1
    assert sums(job) == {"a": (2, 6), "b": (3, 12), "c": (2, 10), "d": (1, 1000)}


def test_an_error_that_belongs_to_no_rows_ends_an_aggregate(tmp_path, feed, spark):
    """Spark computes what is added, before the step."""
    feed.add([("a", 0)])
    job = Job(tmp_path, feed, spark, bad_rows.make_sums)
    make = lambda path, output, fixed: Flow(  # noqa: E731
        "totals",
        lambda session: bad_rows.pairs(session, path).transform(
            aggregate("totals", key="key", total=sum_(F.expr("1 div value")), on_error="quarantine")
        ),
    )
    job.make = make
    with pytest.raises(RecoveryError, match="DIVIDE_BY_ZERO"):
        job.run()
    assert job.waiting().rows == 0


@first("make", [bad_rows.make, bad_rows.make_tables])
@pytest.mark.any_spark
def test_a_key_that_is_an_expression(tmp_path, feed, spark, make):
    """Its rows in quarantine have only the columns of the input: the key comes back from its text."""
    feed.add([("a", 1), ("b", 1000), ("a", 2)])
    job, given = Job(tmp_path, feed, spark, make), {"by": "upper(key)"}
    assert job.run(given).quarantined == 1
    job.replay()
    job.fixed.touch()
    assert job.run(given).quarantined == 0
    assert {*states(job.directory, "totals")} == {"A", "B"}
    assert job.rows()[-1] == ("B", 1000)


@pytest.mark.parametrize(
    ("given", "config", "error"),
    [
        ({"step": "sums"}, {}, UnknownStepError),
        ({"by": "value"}, {}, StepChangedError),
        ({"by": "value"}, {"drop_steps": ("totals",)}, StepChangedError),
    ],
)
@pytest.mark.any_spark
def test_rows_that_the_flow_could_not_replay_any_more(tmp_path, feed, spark, given, config, error):
    """All rows have failed, so the step has no state that would be missed. Refused, and nothing is changed."""
    feed.add([("a", 1000), ("b", 1001)])
    job = Job(tmp_path, feed, spark)
    job.run()
    before = content(job.directory)
    with pytest.raises(error, match="in quarantine"):
        job.run(given, **config)
    assert content(job.directory) == before


def read(key, rows, state):
    """Counts the rows that Spark could parse."""
    for row in rows:
        if row.unparsed is not None or (row.amount is None and row.text is not None):
            raise ValueError(f"cannot be parsed: {row}")
    state.update((state.getOption or 0) + len(rows))
    yield key, len(rows)


def test_rows_that_spark_cannot_parse(tmp_path, feed, spark):
    """The recipes of docs/bad-records.md: text that is no JSON, and text that is no number, wait with their text."""
    lines = ['{"id": 1, "text": "5"}', '{"id": 2, "text": "x5"}', '{"id": 3']
    (feed.path / "lines.txt").write_text("".join(f"{line}\n" for line in lines))

    def make(path, output, fixed):
        def build(session):
            options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "unparsed"}
            form = "id long, text string, unparsed string"
            rows = (
                session.readStream.text(path).select(F.from_json("value", form, options).alias("row")).select("row.*")
            )
            rows = rows.withColumn("amount", F.expr("try_cast(text AS int)"))
            step = stateful("counts", key="id", update=read, output="id long, n long", on_error="quarantine")
            return rows.transform(step)

        return Flow("parsed", build, FileSink(output))

    job = Job(tmp_path, feed, spark, make)
    assert job.run().quarantined == 2
    assert states(job.directory, "counts") == {"1": 1}
    shown = CliRunner().invoke(main, ["quarantine", "show", str(job.directory)]).stdout
    assert '"text":"x5"' in shown
    assert r"{\"id\": 3" in shown


@pytest.mark.long
@pytest.mark.parametrize("point", ["close.2.snaps", "close.3"])
def test_killed_while_rows_are_put_into_quarantine_and_replayed(job, point):
    """Whatever was closed counts, the rest comes again: each row once in the state and in the output."""
    target = f"{FLOW}:make({str(job.feed.path)!r}, {str(job.output)!r}, {str(job.fixed)!r})"
    options = ("-s", "0")
    finish(recovery_command(target, job.directory, *options, crash_at=f"{point}:5"))
    assert "Probable" not in finish(recovery_command(target, job.directory, *options))
    assert job.waiting().rows == 3
    assert job.totals() == {"a": [1], "b": [2, 4, 6], "c": [3, 7]}
    job.replay()
    job.fixed.touch()
    finish(
        recovery_command(target, job.directory, *options, crash_at=f"{point}:{5 if point == 'close.2.snaps' else 2}")
    )
    finish(recovery_command(target, job.directory, *options))
    assert job.waiting().rows == 0
    assert job.totals() == job.truth()
    assert len(job.rows()) == 9
    assert problems(job.directory) == []
