"""`recovery owners` while a run with Spark goes on: the run moves partitions, and counts on in the same session."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.cluster.support import assert_exact
from tests.owner.served import Served, recovery
from tests.spark.test_owners import Fleet

ROWS = 2000


class Moves(Fleet):
    """The fleet with one more owner, which the run does not name."""

    def __init__(self, made: Path, root: Path) -> None:
        super().__init__(made, root)
        self.named = self.options
        place = root / "another"
        place.mkdir()
        self.places.append(place)
        self.owners.append(Served(place, self.token))

    def start(self, flow: str, *options: object):
        """A run that names the first owners only."""
        known, self.owners = self.owners, self.owners[:2]
        try:
            return self.run(flow, *options)
        finally:
            self.owners = known

    def command(self, *words: object) -> dict:
        """`recovery owners … --json`, as the first owners are named; its answer."""
        done = recovery("owners", *words, *self.named, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def files(self, number: int) -> list[str]:
        """The partitions of a place."""
        return sorted(path.name for path in self.places[number].glob("part-*.sqlite3"))


@pytest.fixture
def fleet(make_store, tmp_path):
    made = Moves(make_store(4), tmp_path)
    yield made
    made.close()


def newest_batch(run) -> int:
    return max(map(int, re.findall(r"^batch (\d+)$", run.text(), re.MULTILINE)), default=-1)


def test_partitions_move_while_a_run_goes_on(fleet):
    """To an owner that the run does not know, then away from another one, which may be stopped; the run goes on in one
    session, nothing is lost or counted twice, and the next run finds the partitions with the owners it named."""
    run = fleet.start("counts(2000, 99999, 0.05)")
    run.await_text(r"^batch 2$")
    moved = fleet.command("move", "part-3", "--to", fleet.owners[2].at)
    assert [each["partition"] for each in moved["moved"]] == ["part-3.sqlite3"]
    assert fleet.files(3) == ["part-3.sqlite3"]
    assert fleet.files(1) == ["part-0.sqlite3"]
    after = newest_batch(run)
    run.await_text(rf"^batch {after + 3}$")
    drained = fleet.command("drain", fleet.owners[0].at)
    assert [each["partition"] for each in drained["moved"]] == ["part-0.sqlite3"]
    assert fleet.files(1) == []
    after = newest_batch(run)
    run.await_text(rf"^batch {after + 2}$")
    assert fleet.owners[0].stop() == 0
    after = newest_batch(run)
    run.await_text(rf"^batch {after + 5}$")
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.text()
    text = run.text()
    assert text.count("starting Spark") == 1
    assert len(re.findall(r"^moving 1 partition: part-\d from \S+ to \S+$", text, re.MULTILINE)) == 2
    assert len(re.findall(r"^execution \d+ resumes at epoch", text, re.MULTILINE)) == 2
    fleet.owners[0].start()
    done = newest_batch(run)
    fleet.start(f"counts(2000, {done + 3})").succeed()
    assert assert_exact(fleet.together(), ROWS) >= done + 3
