"""Runs words.py on pretend hosts (hosts.py) with Spark's standalone cluster (standalone.py), and checks its counts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
from hosts import Network, send
from standalone import Cluster
from words import ROWS, WORDS

ROOT = Path(__file__).resolve().parents[2]
# Spark notices a dead host by its silence, by default after two minutes.
SETTINGS = (
    "spark.executor.memory=512m",
    "spark.network.timeout=20s",
    "spark.network.timeoutInterval=10s",
    "spark.executor.heartbeatInterval=4s",
)


class WordCount:
    """The commands of `recovery` on the driver's host, for one recovery directory."""

    def __init__(self, network: Network, cluster: Cluster, db: Path) -> None:
        self.db = db
        self._network = network
        self._cluster = cluster
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}

    def command(self, *words: object) -> None:
        """Run `recovery` with these words."""
        self._network.driver.run([sys.executable, "-m", "recovery", *words], self._environment)

    def run(self, after: Callable[[int], bool], *options: object) -> int:
        """Run the word count, and return its exit code. after: called with the number of each micro-batch that is
        done; the run ends when it returns True. options: of `recovery run`."""
        command = [sys.executable, "-m", "recovery", "run", ROOT / "examples/cluster/words.py", "-r", self.db]
        command += ["-s", "0", "--trigger", "0", *options, "--master", self._cluster.master]
        for setting in (*SETTINGS, f"spark.driver.host={self._network.driver.address}"):
            command += ["--conf", setting]
        started = self._network.driver.start(command, self._environment, stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        for line in started.stdout:
            print(line, end="", flush=True)
            found = re.match(r"micro-batch (\d+):", line)
            if found is not None and after(int(found[1])):
                send(started, signal.SIGTERM)
        return started.wait()


def check(directory: Path) -> None:
    """Compare the state in all partitions with what a plain loop over the micro-batches gives."""
    counts: dict[str, int] = {}
    batches = set()
    for path in directory.glob("part-*.sqlite3"):
        connection = apsw.Connection(str(path))
        rows = connection.execute("SELECT state_key, ser_change FROM snaps WHERE step_id = 'count'")
        counts.update((word, int(n)) for word, n in rows)
        batches.update(connection.execute("SELECT max(batch_id) + 1 FROM epochs"))
        connection.close()
    print(f"in the recovery partitions: {counts}")
    [(done,)] = batches
    if counts != dict.fromkeys(WORDS, done * ROWS // len(WORDS)):
        sys.exit(f"the counts are wrong after {done} micro-batches")
    print(f"{done} micro-batches, in which every word is equally often: exact")
