"""A trial of a replay says what the replay then does, and changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from recovery import FileSink, Flow, RecoveryConfig, init_partitions, start, stateful, stateful_arrow
from recovery.base.clock import SystemClock
from recovery.errors import FlowFailedError, QuarantineError, StepChangedError, UnknownStepError
from recovery.operational.steps.quarantine import Wanted, replay
from recovery.spark.run.replay_trial import TriedKey, try_replay
from recovery.storage.store import Store
from tests.flows import bad_rows
from tests.flows.bad_rows import keyed, pairs
from tests.owner.served import Served, recovery, spread, token_file
from tests.shares import some
from tests.spark.support import ROOT, Feed, states
from tests.stores import content


def most(limit: str) -> float:
    """The largest value that the code takes now."""
    return float(Path(limit).read_text())


def make(path, output, limit, kind="key", step="totals", by="key", on_error="quarantine", migrate=None):
    """A flow that keeps the values of each key, and takes those up to a limit. kind: of its step."""

    def keep(key, rows, state):
        if state.hasTimedOut:
            raise ValueError(f"late: {state.get}")
        values = state.getOption or []
        for row in rows:
            values.append(row.value)
            yield key, row.value
            if row.value > most(limit):
                raise ValueError(f"too large: {row.value}")
        state.update(values)
        if kind == "timeouts":
            state.setTimeoutDuration(3_600_000)

    def add_up(rows, states):
        if pc.max(rows["value"]).as_py() > most(limit):
            raise ValueError("too large")
        sums = rows.group_by("_group").aggregate([("value", "sum")]).sort_by("_group")["value_sum"]
        total = pc.add(pc.fill_null(states["total"], 0), sums)
        new = pa.table({states.column_names[0]: states.column(0), "total": total})
        return new, new.rename_columns(["key", "total"])

    def build(spark):
        output = "key string, total long"
        if kind == "tables":
            made = stateful_arrow(
                step, key=keyed(by), update=add_up, state_schema="total long", output=output, on_error=on_error
            )
        else:
            made = stateful(
                step, key=keyed(by), update=keep, output=output, on_error=on_error, timeout=kind == "timeouts",
                hold="no" if kind == "no" else "key", migrate=migrate,
                **({"state": list[str]} if migrate is not None else {}),
            )  # fmt: skip
        return pairs(spark, path).transform(made)

    return Flow("totals", build, FileSink(output))


class Job:
    """A flow with rows in quarantine, its directory and its input."""

    def __init__(self, tmp_path, feed, spark) -> None:
        self.directory, self.limit, self.output = tmp_path / "db", tmp_path / "limit", tmp_path / "out"
        self.feed, self.spark = feed, spark
        self.limit.write_text("1000")
        feed.add([("a", 1), ("b", 2)])
        feed.add([("a", 1500), ("c", 2500), ("d", 1200)])
        feed.add([("a", 2600), ("b", 3000), ("c", 4), ("e", 5)])
        feed.add([("a", 7), ("d", 8)])
        init_partitions(self.directory, 3)
        self.keep: tuple[str, ...] = ()

    def flow(self, **given) -> Flow:
        return make(str(self.feed.path), str(self.output), str(self.limit), **given)

    def run(self, **given) -> None:
        config = RecoveryConfig(self.directory, snapshot_interval=0, backup_interval="1h", keep_steps=self.keep)
        start(self.flow(**given), config, spark=self.spark, trigger="available-now").await_termination()

    def tried(self, wanted=Wanted(), **given) -> list[TriedKey]:  # noqa: B008 - it is frozen
        """What a trial says; it changes nothing."""
        before = content(self.directory)
        at = Store(self.directory).at()
        try:
            flow, keys = self.flow(**given), wanted.keys(at)
            return list(try_replay(at, keys, flow, self.spark, self.directory, SystemClock(), self.keep))
        finally:
            assert content(self.directory) == before

    def waiting(self) -> dict[str, int]:
        return {each.key: each.note.rows for each in Wanted().keys(Store(self.directory).at())}


@pytest.fixture
def job(tmp_path, feed, spark):
    return Job(tmp_path, feed, spark)


@pytest.fixture(scope="module")
def module_job(spark, tmp_path_factory):
    """The job of `ran`."""
    root = tmp_path_factory.mktemp("job")
    made = Job(root, Feed(root / "input"), spark)
    made.run()
    return made


@pytest.fixture
def ran(module_job):
    """A job that has run, which trials leave as it is: it is made once."""
    module_job.limit.write_text("1000")
    return module_job


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("key", 2000),
        *(pytest.param("key", limit, marks=pytest.mark.long) for limit in (1000, 9000)),
        *(pytest.param(kind, 2000, marks=pytest.mark.long) for kind in ("no", "timeouts", "tables")),
    ],
)
@pytest.mark.any_spark
def test_it_says_what_the_replay_does(job, kind, limit):
    """Which rows pass, and with which errors the others fail, of every kind of step."""
    job.run(kind=kind)
    assert job.waiting() == (
        {"a": 2, "b": 1, "c": 1, "d": 1} if kind == "no" else {"a": 3, "b": 1, "c": 2, "d": 2}
    )  # fmt: skip
    job.limit.write_text(str(limit))
    tried = job.tried(kind=kind)
    replay(Store(job.directory), Wanted(), SystemClock())
    job.run(kind=kind)
    left = {each.key: each.note for each in Wanted().keys(Store(job.directory).at())}
    said = {each.key.key: each.rows("fails") + each.rows("waits") for each in tried}
    assert {key: rows for key, rows in said.items() if rows} == {key: note.rows for key, note in left.items()}
    assert {each.key.key: each.error for each in tried if each.error and kind != "no"} == (
        {key: note.error for key, note in left.items()} if kind != "no" else {}
    )
    assert bool(left) == (limit < 9000)


@pytest.mark.any_spark
def test_only_the_wanted_keys_are_tried(job):
    """And a key that is an expression gets its value back."""
    job.run(by="upper(key)")
    job.limit.write_text("2000")
    [tried] = job.tried(Wanted(key="A"), by="upper(key)")
    assert [(each.outcome, each.rows) for each in tried.entries] == [("passes", 1), ("fails", 1), ("waits", 1)]
    assert tried.error.startswith("ValueError: too large: 2600 (test_replay_trial.py, line ")


@pytest.mark.any_spark
def test_states_of_another_form_are_converted_first(ran):
    """As the start would do it: the new code gets states of its own form."""
    given = {"migrate": lambda old: [str(each) for each in old]}
    tried = {each.key.key: each for each in ran.tried(**given)}
    assert tried["a"].error.startswith("ValueError: too large: 1500")
    ran.limit.write_text("9000")
    # The new code would keep numbers among the texts.
    assert all("int" in each.error for each in ran.tried(**given))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"step": "sums"}, UnknownStepError),
        ({"by": "value"}, StepChangedError),
        ({"on_error": "fail"}, QuarantineError),
    ],
)
@pytest.mark.any_spark
def test_a_flow_that_would_not_start(ran, given, error):
    """The trial says why, as the start does."""
    with pytest.raises(error, match="in quarantine"):
        ran.tried(**given)


def test_an_error_that_says_nothing_about_a_row(ran, monkeypatch):
    """Ends the trial, as it would end the run."""
    for failure in (ImportError("no module"), MemoryError(), SystemExit(3)):

        def fail(limit, failure=failure):
            raise failure

        monkeypatch.setattr(f"{__name__}.most", fail)
        with pytest.raises(FlowFailedError, match="not because of a row"):
            ran.tried()


@pytest.mark.long
def test_the_command_at_owners(job, tmp_path):
    """With the partitions at two owners, it prints the same facts; nothing changes there."""
    job.run()
    job.limit.write_text("2000")
    target = f"{ROOT / 'tests/spark/test_replay_trial.py'}:make({str(job.feed.path)!r}, 'out', {str(job.limit)!r})"
    there, *away = spread(Path(shutil.copytree(job.directory, tmp_path / "made")), [(), (0, 2), (1,)])
    token = token_file(tmp_path)
    owners = [Served(each, token) for each in away]
    try:
        before = [content(each) for each in away]
        options = [word for each in owners for word in ("--owner", each.at)]
        words = ("quarantine", "replay", there, target, "--dry-run", "--json", "--token-file", token, *options)
        done = recovery(*words)
        assert done.returncode == 0, done.stderr
        assert [content(each) for each in away] == before
    finally:
        for each in owners:
            each.stop()
    facts = json.loads(done.stdout)
    assert facts["dry_run"]
    assert {each["key"]: (each["passes"], each["fails"], each["waits"]) for each in facts["keys"]} == {
        "a": (1, 1, 1), "b": (0, 1, 0), "c": (0, 1, 1), "d": (2, 0, 0),
    }  # fmt: skip
    assert states(job.directory, "totals")


@pytest.mark.parametrize("make_flow", some([bad_rows.make_condition, bad_rows.make_sums], bad_rows.make_sums))
def test_steps_for_which_spark_computes_columns(job, tmp_path, make_flow):
    """A condition, which lets only some rows of an entry pass, and sums: Spark computes both for the trial."""
    fixed = tmp_path / "fixed"
    job.flow = lambda **given: make_flow(str(job.feed.path), str(job.output), str(fixed))
    job.feed.add([("a", 1 << 62), ("a", 1 << 62)])
    job.run()
    assert job.waiting()
    fixed.touch()
    job.keep = ("totals",) if make_flow is bad_rows.make_sums else ()
    tried = job.tried()
    replay(Store(job.directory), Wanted(), SystemClock())
    job.run()
    said = {each.key.key: each.rows("fails") + each.rows("waits") for each in tried}
    assert {key: rows for key, rows in said.items() if rows} == job.waiting()
