"""What the Spark tests share: an input of small files, a plain computation of the truth, and a look into the state."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from recovery import DiscardSink, RecoveryConfig, init_partitions, start, stateful
from recovery.base.clock import SystemClock
from recovery.base.ids import Epoch
from recovery.operational.rewinds import read_rewinds
from recovery.planning.going_back import cut_of
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.owner.served import invoked
from tests.stores import paths_of, query, state_at

ROOT = Path(__file__).resolve().parents[2]
ODD_KEYS = ["", " ", "a/b*..", "quote'\"", "😀", "␀", "␀0", "nul\0inside", "é", "x" * 10_000, "[null]", None]


class Feed:
    """A directory of numbered text files of `key,value` lines: one file is one micro-batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(parents=True)
        self.rows: list[tuple[str, int]] = []
        self._files = 0

    def add(self, rows) -> None:
        """Write one file, atomically."""
        rows = list(rows)
        draft = self.path / f".{self._files:04}"
        draft.write_text("".join(f"{key},{value}\n" for key, value in rows))
        # The file source takes files in order of their time of change.
        os.utime(draft, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        draft.rename(self.path / f"{self._files:04}.txt")
        self.rows += rows
        self._files += 1

    def add_random(self, seed: int, count: int = 300, keys: int = 40) -> None:
        """A file of random rows."""
        generator = random.Random(seed)
        self.add((f"k{generator.randrange(keys)}", generator.randrange(100)) for _ in range(count))

    def frame(self, spark):
        """The stream: key string, value long."""
        return stream_of(spark, self.path)

    def totals(self) -> dict[str, list[int]]:
        """The truth: count and sum per key."""
        totals: dict[str, list[int]] = {}
        for key, value in self.rows:
            entry = totals.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += value
        return totals

    def counts(self) -> Counter:
        return Counter(key for key, _ in self.rows)


def add_up(key, rows, state):
    """Count and sum per key."""
    count, total = state.get if state.exists else (0, 0)
    count += len(rows)
    total += sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


def totals_step(step_id="totals", update=add_up, **options):
    """The step most tests use."""
    return stateful(step_id, key="key", update=update, output="key string, n long, total long", **options)


def stream_of(spark, path: Path):
    """The stream of a feed's directory: key string, value long."""
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(path))
    return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")


def run_to_end(
    frame, directory: Path, sink=None, *, name="test", partitions=3, output_mode=None, observer=None, **config
):
    """Run a stream on recovery partitions until its input ends; returns the summary."""
    if not directory.exists():
        init_partitions(directory, partitions)
    config.setdefault("snapshot_interval", 0)
    query = start(
        frame,
        RecoveryConfig(directory, **config),
        sink=DiscardSink() if sink is None else sink,
        name=name,
        output_mode=output_mode,
        trigger="available-now",
        observer=observer,
    )
    query.await_termination()
    return query.summary


def run_here(spark, *words: str) -> subprocess.CompletedProcess[str]:
    """`recovery run` in this process, on the shared session. In a process of its own, starting Spark takes most of the
    time of a run."""
    with pytest.MonkeyPatch.context() as patch:
        for room in ("recovery.spark.run.blocking", "recovery.spark.pipelines.run"):
            patch.setattr(f"{room}.create_session", lambda *_, **__: spark)
        for room in ("recovery.spark.run.blocking", "recovery.spark.jvm.session_end"):
            patch.setattr(f"{room}.stop_session", lambda _: None)
        # Where the flow's file is: a process of its own forgets that when it ends.
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        return invoked("run", *words)


def states(directory: Path, step: str) -> dict:
    """All states of a step as of the newest closed epoch, also those that are only logged."""
    newest = min(query(path, "SELECT max(epoch) FROM epochs")[0][0] or 0 for path in paths_of(directory))
    held = state_at(directory, newest)
    return {key: json.loads(text) for (name, key), (text, _) in held.items() if name == step}


def going_back(directory: Path, flow_id: str, epoch: int) -> list[str]:
    """The options of a run that goes back to the snapshot after this epoch, also if another has done so before."""
    plan = plan_resume(scan(directory), flow_id=flow_id, resume_epoch=Epoch(epoch + 1))
    made = [each.execution for each in read_rewinds(directory, SystemClock()) if each.cut == cut_of(plan)]
    return ["--resume-after", str(epoch), *(["--rewind-again", str(made[-1])] if made else [])]


@contextlib.contextmanager
def set_to(spark, values):
    """Settings of the shared session, for a while; it has its own back afterwards."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, value)
