"""A word count on a cluster of three hosts that share no disk, one of which loses its power. As root:

    python examples/cluster/three_hosts.py

It makes the hosts on this machine (hosts.py), starts Spark's master and workers on them (standalone.py), runs words.py
with its recovery partitions on the driver's host alone, ends one host in the midst of it, and checks the counts: all
eight words are counted equally often, whatever happened.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hosts import Network, impossible
from running import ROOT, WordCount, check
from standalone import Cluster

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
            run(network, WordCount(network, cluster, home / "db"))
        check(home / "db")


def run(network: Network, words: WordCount) -> None:
    """Run words.py on the driver's host. End a host after some micro-batches, and the run after some more."""
    words.command("init", words.db, 4)

    def after(batch: int) -> bool:
        if batch == CRASHES_AT:
            network.hosts[0].crash()
            print(f"{network.hosts[0].name} has lost its power", flush=True)
        return batch == ENDS_AT

    code = words.run(after)
    if code:
        sys.exit(f"the run ended with code {code}")


if __name__ == "__main__":
    main()
