"""`recovery run --replace-from`: an owner is lost, its partitions come back at another one, and the run goes on in its
process and Spark session. Owners are processes of their own; the state is compared with that of a plain loop."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.cluster.support import assert_exact
from tests.cluster.test_tables import file_rows, shown
from tests.faults.minirun import freeze
from tests.owner.histories import age_of
from tests.owner.served import invoked
from tests.spark.test_owners import Fleet
from tests.waiting import wait_until

AWAY = "2s"


class ReplacingFleet(Fleet):
    """The same store, whose runs replicate, and replace owners from the replica."""

    @property
    def replica(self) -> Path:
        return self.root / "replica"

    @property
    def replacing(self) -> list[object]:
        return ["--replicate", self.replica, "--replace-from", self.replica, "--replace-after", AWAY]

    def together(self) -> Path:
        """The newest copy of each partition, in one directory; ends the owners."""
        for each in self.owners:
            if each.running():
                each.stop()
        found = self.root / "together"
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        for name in (f"part-{index}.sqlite3" for index in range(4)):
            newest = max((place / name for place in self.places if (place / name).exists()), key=age_of)
            for path in newest.parent.glob(f"{name}*"):
                if not path.name.endswith("-shm"):
                    shutil.copyfile(path, found / path.name)
        return found

    def shipped(self, epochs: int) -> bool:
        """Whether the replica holds so many epochs."""
        note = self.places[0] / "last-replica.json"
        return note.exists() and json.loads(note.read_text())["epoch"] >= epochs


@pytest.fixture
def fleet(make_store, tmp_path):
    made = ReplacingFleet(make_store(4), tmp_path)
    yield made
    made.close()


@pytest.mark.long
def test_an_owner_is_lost_for_good(fleet):
    """With its disk. The run goes on in its session to the end of its input, says what it did, and `status` shows it.
    The owner's partitions are in the next runs' places."""
    lost, stays = fleet.owners[0], fleet.owners[1]
    run = fleet.run("counts(500, 12, 0.2)", *fleet.replacing)
    run.await_text(r"^batch 3$")
    wait_until(lambda: fleet.shipped(2), 60)
    lost.kill()
    shutil.rmtree(fleet.places[1])
    fleet.places[1].mkdir()
    run.await_text(r"owner \S+ is lost; partitions 0, 3 come back at ")
    text = run.succeed()
    said = re.search(r"owner (\S+) is lost; partitions 0, 3 come back at (\S+) from (\S+), epoch (\d+)", text)
    assert (said[1], said[2], said[3]) == (lost.at, stays.at, str(fleet.replica))
    assert text.count("Starting Spark") <= 1
    assert re.search(r"^batch 12$", text, re.MULTILINE)
    options = ["--owner", stays.at, "--token-file", fleet.token]
    shown = json.loads(invoked("status", fleet.places[0], *options, "--json").stdout)
    assert shown["replaced"]["lost"] == [lost.at]
    assert shown["replaced"]["owners"] == {"part-0.sqlite3": stays.at, "part-3.sqlite3": stays.at}
    assert shown["executions"][-1]["number"] == 2
    assert assert_exact(fleet.together(), 500) == 13


@pytest.mark.long
def test_output_after_the_copies_is_taken_back(fleet, tmp_path):
    """The copies are some epochs older than what the sink has shown: a backup that was made during the run. Input from
    there on is read again, and every row of output is there once."""
    share, backups = tmp_path / "share", tmp_path / "backups"
    share.mkdir()
    run = fleet.run(f"table('files', {str(share)!r}, 500, 25, 0.1)", "--replace-from", backups, "--replace-after", AWAY)
    run.await_text(r"^batch 2$")
    made = invoked("backup", fleet.places[0], backups, *fleet.options)
    assert made.returncode == 0, made.stderr
    run.await_text(r"^batch 8$")
    fleet.owners[0].kill()
    text = run.succeed()
    epoch = int(re.search(r"partitions 0, 3 come back at \S+ from \S+, epoch (\d+)", text)[1])
    assert 2 <= epoch < 8
    assert len(re.findall(rf"^batch {epoch}$", text, re.MULTILINE)) == 2
    batches = assert_exact(fleet.together(), 500)
    assert batches == 26
    assert Counter((row["key"], row["n"]) for row in file_rows(share)) == shown(500, batches)


@pytest.mark.long
def test_a_frozen_owner_wakes_up(fleet):
    """While it is frozen, others get its partitions. What it still does when it wakes up, to its own copies, does not
    count: neither during the run nor when it is named again."""
    frozen = fleet.owners[0]
    run = fleet.run("counts(2000, 60, 0.2)", *fleet.replacing)
    run.await_text(r"^batch 3$")
    wait_until(lambda: fleet.shipped(2), 60)
    freeze(frozen.process.pid)
    try:
        run.await_text(r"is lost; partitions 0, 3 come back at ")
        run.await_text(r"^batch 30$")
    finally:
        os.kill(frozen.process.pid, signal.SIGCONT)
    run.succeed()
    text = fleet.run("counts(2000, 62)", *fleet.replacing).succeed()
    assert "is lost" not in text
    assert assert_exact(fleet.together(), 2000) == 63


@pytest.mark.long
def test_a_start_without_an_owner_that_comes_back_stale(fleet):
    """The run begins without it after the limit. The owner is back for the next one, with its old files, which do not
    count; then the other owner is lost, and the partitions come back at the first one."""
    for number, (lost, stays) in enumerate((fleet.owners, fleet.owners[::-1])):
        fleet.run(f"counts(2000, {number * 10 + 4})", *fleet.replacing, "--replicate-sync").succeed()
        lost.kill()
        text = fleet.run(f"counts(2000, {number * 10 + 7})", *fleet.replacing, "--replicate-sync").succeed()
        assert f"owner {lost.at} is lost" in text
        assert f"come back at {stays.at}" in text or f"comes back at {stays.at}" in text
        lost.start()
    assert assert_exact(fleet.together(), 2000) == 18


@pytest.mark.long
def test_an_owner_that_is_back_in_time(fleet):
    """Nothing comes from the replica: the run waits, and goes on with the owner's own files."""
    run = fleet.run("counts(2000, 30, 0.2)", *fleet.replacing[:-2], "--replace-after", "60s")
    run.await_text(r"^batch 3$")
    fleet.owners[0].kill()
    run.await_text("its partitions come back at other owners if it is away for 1 min")
    fleet.owners[0].start()
    text = run.succeed()
    assert "is lost; partitions" not in text
    assert assert_exact(fleet.together(), 2000) == 31


@pytest.mark.long
def test_a_place_that_cannot_be_used(fleet, tmp_path):
    """The run ends with the place's error; when the owner is back, the same command goes on."""
    run = fleet.run("counts(2000, 30, 0.2)", "--replace-from", tmp_path / "nowhere", "--replace-after", AWAY)
    run.await_text(r"^batch 3$")
    fleet.owners[0].kill()
    assert run.wait() == 61, run.text()
    fleet.owners[0].start()
    fleet.run("counts(2000, 30)", "--replace-from", tmp_path / "nowhere").succeed()
    assert assert_exact(fleet.together(), 2000) == 31
