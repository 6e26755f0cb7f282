"""Flows on a real YARN with HDFS, over hosts that share no disk, also when executors, hosts and the driver fail."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recovery import init_partitions
from tests.cluster.fleet import FleetOwner
from tests.cluster.operator_counts import FEW, assert_counts
from tests.cluster.support import assert_exact, batches_in
from tests.cluster.test_allocation import DYNAMIC
from tests.cluster.test_tables import shown
from tests.cluster.yarn import EXECUTOR, HDFS, MASTER, Yarn, needs_jars
from tests.owner.served import token_file
from tests.stores import paths_of, problems, query

pytestmark = [needs_jars, pytest.mark.long]
OFTEN = ("-s", "0", "-b", "1h")


@pytest.fixture(scope="module")
def make_yarn(possible, tmp_path_factory):
    """Makes clusters; ends them all."""
    made: list[Yarn] = []

    def make() -> Yarn:
        made.append(Yarn(tmp_path_factory.mktemp("yarn")))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def two_hosts(make_yarn) -> Yarn:
    """Two hosts, for tests that leave them alive."""
    return make_yarn()


@pytest.fixture
def yarn(two_hosts) -> Iterator[Yarn]:
    """Two hosts, without a run when the test is over."""
    yield two_hosts
    two_hosts.end_runs()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A recovery directory on the driver's disk."""
    init_partitions(tmp_path / "db", 4)
    return tmp_path / "db"


def test_executors_and_drivers_are_killed(yarn, db):
    """An executor, then the driver: with the environment that the example sends, every row counts once."""
    run = yarn.run("cluster.py:counts(2000, 99, 0.3)", db, *OFTEN)
    run.await_text("^batch 1$")
    _, executor = yarn.processes(EXECUTOR)[0]
    os.kill(executor, signal.SIGKILL)
    run.await_text("^batch 4$")
    run.kill()
    closed = batches_in(db)
    assert closed >= 4
    yarn.run(f"cluster.py:counts(2000, {closed + 1})", db, *OFTEN).succeed()
    assert assert_exact(db, 2000) == closed + 2


def test_files_in_hdfs(yarn, db, tmp_path):
    """A driver is killed, then the flow goes back: the files are those of a plain loop each time."""

    def flow(last: int, pause_s: float = 0.0) -> str:
        return f"cluster.py:table('files', '{HDFS}/out', 500, {last}, {pause_s})"

    def check(name: str) -> int:
        batches = assert_exact(db, 500)
        yarn.files("-get", f"{HDFS}/out/table", tmp_path / name)
        rows = [row for path in (tmp_path / name).glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        assert Counter((row["key"], row["n"]) for row in rows) == shown(500, batches)
        return batches

    run = yarn.run(flow(99, 0.3), db, *OFTEN)
    run.await_text("^batch 3$")
    run.kill()
    last = batches_in(db) + 2
    yarn.run(flow(last), db, *OFTEN).succeed()
    assert check("after-a-kill") == last + 1
    yarn.run(flow(4), db, *OFTEN, "--resume-after", "2").succeed()
    assert check("gone-back") == 5


def test_state_of_sparks_own_operators_in_hdfs(yarn, db):
    """A driver is killed, and the next run counts on. Nothing is left in HDFS."""
    options = [*OFTEN, "--scratch", f"{HDFS}/scratch", *FEW]
    run = yarn.run("cluster.py:native(500, 99, 0.3)", db, *options)
    run.await_text("^batch 3$")
    run.kill()
    assert assert_counts(run.text(), 500)[0] == 0
    closed = batches_in(db)
    output = yarn.run(f"cluster.py:native(500, {closed + 1})", db, *options).succeed()
    assert assert_counts(output, 500) == [closed, closed + 1]
    assert problems(db) == []
    assert yarn.files("-ls", f"{HDFS}/scratch") == ""


def test_owners_on_the_hosts_of_executors(yarn, make_store, tmp_path):
    """Three partitions at owners on two hosts, one in the driver's directory. An owner that is killed ends the run, and
    the next one goes on."""
    made, db, token = make_store(4), tmp_path / "db", token_file(tmp_path)
    db.mkdir()
    owners = [FleetOwner(host, token, tmp_path / f"{host.name}.log") for host in yarn.network.hosts]
    shutil.move(made / "part-1.sqlite3", db)
    for owner, indexes in zip(owners, ((0, 3), (2,)), strict=True):
        for index in indexes:
            owner.put(made / f"part-{index}.sqlite3")
        owner.start()
    options = [*OFTEN, "--token-file", token, *(word for owner in owners for word in ("--owner", owner.at))]
    run = yarn.run("cluster.py:counts(2000, 99, 0.3)", db, *options)
    run.await_text("^batch 2$")
    owners[0].end(signal.SIGKILL)
    owners[0].start()
    assert run.wait() == 47, run.text()
    yarn.run("cluster.py:counts(2000, 6)", db, *options).succeed()
    for owner in owners:
        owner.end()
        owner.get(db)
    assert assert_exact(db, 2000) == 7


def test_dynamic_allocation(yarn, db):
    """YARN's containers come and go between micro-batches."""
    began, ended = (
        r"Transitioned from ACQUIRED to RUNNING",
        r"Transitioned from RUNNING to (?:COMPLETED|RELEASED|KILLED)",
    )

    def containers(pattern: str) -> int:
        return len(re.findall(pattern, yarn.said("ResourceManager")))

    before = containers(began), containers(ended)
    run = yarn.run("cluster.py:paced(2000, 99, 1.0)", db, *OFTEN, "--trigger", "8s", settings=DYNAMIC)
    run.await_that(
        lambda: containers(began) >= before[0] + 6 and containers(ended) >= before[1] + 5, "five containers have gone"
    )
    run.stop()
    assert assert_exact(db, 2000) >= 2


def test_the_resource_manager_is_restarted(yarn, db):
    """Killed, and started again with what it keeps; the run's containers go on, and an executor that is killed
    afterwards is replaced."""
    run = yarn.run("cluster.py:counts(2000, 99, 0.3)", db, *OFTEN)
    run.await_text("^batch 1$")
    yarn.restart_resource_manager()
    batch = len(re.findall("^batch ", run.text(), re.MULTILINE))
    run.await_text(f"^batch {batch + 2}$")
    before = [pid for _, pid in yarn.processes(EXECUTOR)]
    os.kill(before[0], signal.SIGKILL)
    run.await_that(lambda: any(pid not in before for _, pid in yarn.processes(EXECUTOR)), "another executor")
    run.stop()
    assert assert_exact(db, 2000) >= batch + 2


def test_no_room_for_the_application_master(yarn, db, tmp_path):
    """The start says that it waits, and why, and ends at its limit; YARN keeps nothing in the queue. Of two starts of
    one flow, each withdraws its own application."""
    init_partitions(tmp_path / "other", 4)
    settings = ("spark.yarn.queue=tiny", "spark.yarn.am.memory=1500m")
    before = yarn.said("ResourceManager").count("Storing application with id ")
    runs = {}
    for directory, limit in ((db, "35s"), (tmp_path / "other", "70s")):
        runs[directory] = yarn.run("cluster.py:counts(100, 1)", directory, "--wait-limit", limit, settings=settings)
        yarn.await_said("ResourceManager", rf"(?s)(?:Storing application with id .*?){{{before + len(runs)}}}")
    waited = []
    for directory, run in runs.items():
        assert run.wait() == 50, run.text()
        waited += re.findall(
            r"Error: the start has waited for .+?: YARN has no container for (application_\w+) yet: \S+", run.text()
        )
        assert re.search(rf"^waiting for 3\d s: YARN has no container for {waited[-1]} yet: ", run.text(), re.MULTILINE)
        assert query(paths_of(directory)[0], "SELECT count(*) FROM exs") == [(0,)]
    assert len(set(waited)) == 2
    killed = re.findall(r"(application_\w+) State change from \w+ to KILLED ", yarn.said("ResourceManager"))
    assert [each for each in killed if each in waited] == waited


def test_no_room_for_executors(yarn, db):
    """The queue has room for the application master alone: the run says what it waits for, and ends at its limit. The
    partitions stay as they were."""
    settings = ("spark.yarn.queue=tiny", "spark.executor.memory=1g")
    run = yarn.run("cluster.py:counts(100, 1)", db, "--wait-limit", "20s", settings=settings)
    assert run.wait() == 50, run.text()
    assert re.search(r"Error: the run has waited for \d+ s: no task of micro-batch 0 runs", run.text())
    assert "(master yarn)" in run.text()
    assert query(paths_of(db)[0], "SELECT count(*) FROM epochs WHERE epoch > 0") == [(0,)]


REFUSED = {
    "no such queue": (("spark.yarn.queue=none",), "Failed to submit application_.*none", "spark.yarn.queue"),
    "too large": (("spark.executor.memory=9g",), "Required executor memory", "spark.executor.memory"),
    "its master fails": (
        ("spark.yarn.am.extraJavaOptions=-javaagent:/none.jar",),
        "application_.*",
        "yarn logs -applicationId",
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_yarn_does_not_run_the_application(yarn, db, reason):
    """The start ends with 50, with YARN's reason and with what to do."""
    settings, found, remedy = REFUSED[reason]
    run = yarn.run("cluster.py:counts(100, 1)", db, settings=settings)
    assert run.wait() == 50, run.text()
    assert re.search(f"Error: Spark did not start: .*{found}", run.text()), run.text()
    assert remedy in run.text()
    assert "Traceback" not in run.text()


def test_a_host_is_lost(make_yarn, db):
    """A host loses its power with the application master, and with an executor if that is there; YARN starts both on
    the other host, and the run goes on."""
    yarn = make_yarn()
    run = yarn.run("cluster.py:counts(2000, 12, 0.3)", db, *OFTEN)
    run.await_text("^batch 1$")
    [(lost, _)] = yarn.processes(MASTER)
    lost.crash()
    run.succeed()
    assert assert_exact(db, 2000) == 13
