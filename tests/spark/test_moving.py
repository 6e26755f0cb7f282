"""`recovery owners` while a run with Spark goes on: the run moves partitions, and counts on in the same session."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recovery import RecoveryConfig, start
from recovery.storage.store import OwnerAccess, Store
from recovery.wire.calls import OwnerCalls
from tests.cluster.support import assert_exact
from tests.flows.cluster import counts
from tests.owner.served import Served, invoked
from tests.shares import seeds
from tests.spark.test_owners import Fleet
from tests.stores import ROOT
from tests.waiting import wait_until

pytestmark = pytest.mark.any_spark

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
        done = invoked("owners", *words, *self.named, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def files(self, number: int) -> list[str]:
        """The partitions of a place."""
        return sorted(path.name for path in self.places[number].glob("part-*.sqlite3"))

    def is_let_go(self) -> bool:
        """Whether nobody holds any owner."""
        return not any(each.holder for each in self.looks())

    def looks(self):
        access = OwnerAccess(tuple(owner.at for owner in self.owners), self.token).connect(5.0)
        try:
            return [owner.ask(OwnerCalls.serving) for owner in access]
        finally:
            for owner in access:
                owner.release()

    def newest(self) -> Path:
        """The copies that count, in one directory; ends the owners."""
        store = Store(self.places[0], OwnerAccess(tuple(o.at for o in self.owners), self.token).connect(5.0))
        try:
            used = [each.path for each in store.found()]
        finally:
            store.release()
        at = {owner.at: place for owner, place in zip(self.owners, self.places[1:], strict=True)}
        together = self.root / "newest"
        together.mkdir()
        for owner in self.owners:
            owner.stop()
        for path in used:
            shutil.copyfile(at.get(str(path.parent), self.places[0]) / path.name, together / path.name)
        return together


@pytest.fixture
def fleet(make_store, tmp_path):
    made = Moves(make_store(4), tmp_path)
    yield made
    made.close()


def newest_batch(run) -> int:
    return max(map(int, re.findall(r"^batch (\d+)$", run.text(), re.MULTILINE)), default=-1)


@pytest.mark.long
def test_partitions_move_while_a_run_goes_on(fleet):
    """To an owner that the run does not know, then away from another one, which may be stopped; the run goes on in one
    session, and nothing is lost or counted twice."""
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
    assert assert_exact(fleet.together(), ROWS) > newest_batch(run)


def test_a_query_of_start_refuses(fleet, spark):
    """Its caller has the query: the command says what to do, nothing has changed, and the query goes on."""
    names = tuple(owner.at for owner in fleet.owners[:2])
    config = RecoveryConfig(fleet.places[0], snapshot_interval=0, owners=names, token_file=fleet.token)
    flow = counts(ROWS, 99999)
    seen = []
    query = start(flow, config, spark=spark, sink=lambda batch, number: seen.append(batch.count()), trigger=0)
    try:
        wait_until(lambda: len(seen) >= 2, 60)
        done = invoked("owners", "move", "3", "--to", fleet.owners[2].at, *fleet.named)
        assert done.returncode == 11, done.stderr
        assert "was started with `start`" in done.stderr
        assert "Stop the query, run the same command again" in done.stderr
        assert (fleet.files(1), fleet.files(3)) == (["part-0.sqlite3", "part-3.sqlite3"], [])
        count = len(seen)
        wait_until(lambda: len(seen) >= count + 2, 60)
    finally:
        query.stop()


@pytest.mark.long
def test_a_refused_move_does_not_end_a_run(fleet):
    """A target that is not there, or has a partition of another store; a partition that is in the run's directory."""
    run = fleet.start("counts(2000, 99999, 0.05)")
    run.await_text(r"^batch 1$")
    gone = fleet.owners[2].at
    fleet.owners[2].kill()
    done = invoked("owners", "move", "3", "--to", gone, *fleet.named)
    assert done.returncode == 47, done.stderr
    fleet.owners[2].start()
    done = invoked("owners", "move", "1", "--to", gone, *fleet.named)
    assert done.returncode == 21, done.stderr
    assert "the directory of the run, which is no owner" in done.stderr
    after = newest_batch(run)
    run.await_text(rf"^batch {after + 2}$")
    assert run.text().count("execution ") == 1
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0
    assert_exact(fleet.together(), ROWS)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(8))
def test_whoever_is_killed_during_a_move(fleet, seed):
    """The command, the run, or one of the owners, at a random moment of moves: the next run is exact."""
    generator = random.Random(f"moves {seed}")
    run = fleet.start("counts(2000, 99999, 0.02)")
    run.await_text(r"^batch 1$")
    target = generator.choice([0, 1, 2])
    words = ["move", "0", "2", "3", "--to", fleet.owners[target].at, *fleet.named]
    command = subprocess.Popen(
        [sys.executable, "-m", "recovery", "owners", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(0.5 + generator.random() * 7)
    victim = generator.choice(["command", "run", "source", "target"])
    killed = {
        "command": command,
        "run": run.process,
        "source": fleet.owners[1 if target == 0 else 0].process,
        "target": fleet.owners[target].process,
    }[victim]
    killed.kill()
    # A run ends that uses the owner; else the run goes on, and comes further.
    after, until_s = newest_batch(run), time.monotonic() + 20
    while run.process.poll() is None and time.monotonic() < until_s:
        time.sleep(0.1)
    if run.process.poll() is None:
        run.await_text(rf"^batch {after + 4}$")
        run.process.send_signal(signal.SIGTERM)
    code = run.wait()
    said = command.communicate(timeout=120)[1]
    assert code in {"command": (0,), "run": (-9,), "source": (47, 0)}.get(victim, (47, 0)), (code, run.text(), said)
    for owner in fleet.owners:
        if not owner.running():
            owner.start()
    wait_until(fleet.is_let_go, 60)
    found = invoked("plan", fleet.places[0], *fleet.named, "--json")
    done = json.loads(found.stdout)["after_batch"] + 1
    fleet.start(f"counts(2000, {done + 2})").succeed()
    assert assert_exact(fleet.newest(), ROWS) == done + 3
