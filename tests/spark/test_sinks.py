"""Sinks in a running flow: what they are told, and that their output appears once."""

from __future__ import annotations

import json

import pytest

from recovery import SinkFailedError, current_batch
from tests.spark.support import run_to_end, states, totals_step


class Ledger:
    """An EpochSink over two text files: what was prepared, and what is visible. The smallest that is right."""

    single_action = False

    def __init__(self, path):
        self.staged, self.visible = path / "staged.json", path / "visible.json"
        self.rows, self.fail = {}, set()

    def rollback(self, resume):
        shown = [e for e in self._read(self.visible) if resume.closed(e["epoch"], e["execution"])]
        known = {e["epoch"] for e in shown}
        shown += [
            e for e in self._read(self.staged) if resume.closed(e["epoch"], e["execution"]) and e["epoch"] not in known
        ]
        self.visible.write_text(json.dumps(shown))
        self.rows = {}

    def write(self, batch, batch_id):
        self.rows[batch_id] = [list(row) for row in batch.collect()]

    def prepare(self, output):
        rows = [row for b in sorted(self.rows) if b <= output.batch for row in self.rows.pop(b)]
        entry = {"epoch": output.epoch, "execution": output.execution.id, "rows": rows}
        self.staged.write_text(json.dumps([*self._read(self.staged), entry]))
        return str(output.epoch)

    def publish(self, output):
        if output.epoch in self.fail:
            raise RuntimeError("out of order")
        entry = self._read(self.staged)[-1]
        self.visible.write_text(json.dumps([*self._read(self.visible), entry]))

    def _read(self, path):
        return json.loads(path.read_text()) if path.exists() else []

    def shown(self):
        return [tuple(row) for entry in self._read(self.visible) for row in entry["rows"]]


def test_a_sink_of_ones_own_survives_a_failed_publish_and_a_rewind(spark, feed, tmp_path):
    """Output of a closed epoch whose publishing failed comes with the next run; a rewind takes output back."""
    for seed in range(4):
        feed.add_random(seed)
    frame = feed.frame(spark).transform(totals_step())
    uninterrupted = []
    run_to_end(frame, tmp_path / "plain", lambda batch, _: uninterrupted.extend(tuple(r) for r in batch.collect()))
    sink = Ledger(tmp_path)
    sink.fail = {2}
    with pytest.raises(SinkFailedError, match=r"closed epoch 2: .*out of order"):
        run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert len(sink.shown()) < len(uninterrupted)
    sink.fail = set()
    summary = run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert summary.resume_epoch == 3
    assert sorted(sink.shown()) == sorted(uninterrupted)
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2)
    assert sorted(sink.shown()) == sorted(uninterrupted)
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_a_function_can_ask_which_batch_it_writes(spark, feed, tmp_path):
    """Micro-batch, epoch and execution; a run that comes later has another name for what it writes."""
    told = []
    for _ in range(2):
        feed.add_random(1)
        run_to_end(feed.frame(spark), tmp_path / "db", lambda batch, _: told.append(current_batch()))
    assert [(c.batch_id, c.epoch, c.execution_number) for c in told] == [(0, 1, 1), (1, 2, 2)]
    assert len({c.app_id for c in told}) == 2
