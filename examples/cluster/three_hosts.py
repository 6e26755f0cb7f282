"""A word count on a cluster of three hosts that share no disk, one of which loses its power. As root:

    python examples/cluster/three_hosts.py

It makes the hosts on this machine (hosts.py), starts Spark's master and workers on them (standalone.py), runs words.py
with its recovery partitions on the driver's host alone, ends one host in the midst of it, and checks the counts: all
eight words are counted equally often, whatever happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
from hosts import Network, impossible
from standalone import Cluster

ROOT = Path(__file__).resolve().parents[2]
CRASHES_AT, ENDS_AT = 3, 8
"""Micro-batches."""


def main() -> None:
    """Run the word count, and check it."""
    reason = impossible()
    if reason:
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="recovery-three-hosts-") as name:
        home = Path(name)
        with Network(hidden=[ROOT]) as network, Cluster(network, home / "spark.log") as cluster:
            for _ in range(3):
                host = network.add(package=ROOT / "recovery")
                cluster.add_worker(host)
                print(f"{host.name} at {host.address}: a disk, a Spark worker and the package of its own", flush=True)
            run(network, cluster, home / "db")
        check(home / "db")


def run(network: Network, cluster: Cluster, db: Path) -> None:
    """Run words.py on the driver's host. End a host after some micro-batches, and the run after some more."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    recovery = [sys.executable, "-m", "recovery"]
    network.driver.run([*recovery, "init", db, 4], environment)
    command = [*recovery, "run", ROOT / "examples/cluster/words.py", "-r", db, "-s", "0", "--trigger", "0"]
    command += ["--master", cluster.master, "--conf", f"spark.driver.host={network.driver.address}"]
    command += ["--conf", "spark.executor.memory=512m"]
    # Spark notices a dead host by its silence, by default after two minutes.
    for setting in ("timeout=20s", "timeoutInterval=10s"):
        command += ["--conf", f"spark.network.{setting}"]
    command += ["--conf", "spark.executor.heartbeatInterval=4s"]
    started = network.driver.start(command, environment, stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    for line in started.stdout:
        print(line, end="", flush=True)
        if line.startswith(f"micro-batch {CRASHES_AT}:"):
            network.hosts[0].crash()
            print(f"{network.hosts[0].name} has lost its power", flush=True)
        if line.startswith(f"micro-batch {ENDS_AT}:"):
            # To the child of nsenter, which is the run.
            children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
    if started.wait():
        sys.exit(f"the run ended with code {started.returncode}")


def check(db: Path) -> None:
    """Compare the state with what a plain loop gives."""
    counts: dict[str, int] = {}
    for path in db.glob("part-*.sqlite3"):
        rows = "SELECT state_key, ser_change FROM snaps WHERE step_id = 'count'"
        counts.update(apsw.Connection(str(path)).execute(rows))
    each = {int(n) for n in counts.values()}
    print(f"in the recovery partitions: {counts}")
    if len(counts) != 8 or len(each) != 1 or each.pop() % 500:
        sys.exit("the counts are wrong")
    print("every word was counted equally often: exact")


if __name__ == "__main__":
    main()
