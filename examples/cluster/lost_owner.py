"""A word count whose recovery partitions lie on two hosts that share no disk, one of which is lost for good. As root:

    python examples/cluster/lost_owner.py

It makes the hosts on this machine (hosts.py). Each has a Spark worker (standalone.py), and two of the four partitions
on its own disk, for which it runs `recovery serve` (owners.py). `recovery run` starts words.py with both as owners, and
`recovery backup` makes a backup beside the run. Then one host loses its power and its disk, and the run ends with 47.
A third host gets the lost partitions from the backup, and the same command, which now names this host, goes on from the
epoch of the backup. In the end every word has been counted as often as a plain loop counts it.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hosts import Network, impossible
from owners import HostOwner
from running import ROOT, WordCount, check
from standalone import Cluster

BACKUP_AT, CRASHES_AT = 3, 8
"""Micro-batches of the first run."""
MORE = 5
"""Micro-batches of the second one."""
OWNER_LOST = 47


class Fleet:
    """Hosts with executors and partitions, and the word count over all of them."""

    def __init__(self, network: Network, cluster: Cluster, home: Path) -> None:
        self._network = network
        self._cluster = cluster
        self._home = home
        self._token = home / "token"
        self._token.touch(0o600)
        self._token.write_text(secrets.token_hex())
        self.owners: list[HostOwner] = []
        # The driver's own directory has no partition: only the lock of the run, and Spark's checkpoint.
        (home / "db").mkdir()
        self.words = WordCount(network, cluster, home / "db")

    @property
    def options(self) -> list[object]:
        """Of all commands that need the partitions."""
        return [*(word for owner in self.owners for word in ("--owner", owner.at)), "--token-file", self._token]

    def add(self, partitions: Iterable[Path]) -> None:
        """Add a host with a Spark worker, and an owner of these partitions."""
        host = self._network.add(package=ROOT / "recovery")
        self._cluster.add_worker(host)
        owner = HostOwner(host, self._token, self._home / f"{host.name}.log")
        names = []
        for path in partitions:
            owner.put(path)
            names.append(path.name)
        owner.start()
        self.owners.append(owner)
        print(f"{host.name} at {host.address}: a Spark worker, and an owner of {', '.join(names)}", flush=True)

    def lose(self) -> None:
        """End the first host, with its executor, its owner and its disk."""
        lost = self.owners.pop(0)
        lost.host.crash()
        print(f"{lost.host.name} has lost its power and its disk", flush=True)

    def together(self) -> Path:
        """End the owners; return a directory with copies of all partitions."""
        found = self._home / "together"
        found.mkdir()
        for owner in self.owners:
            owner.end()
            owner.get(found)
        return found


def main() -> None:
    """Run the word count twice, and check it."""
    reason = impossible()
    if reason:
        sys.exit(reason)
    with tempfile.TemporaryDirectory(prefix="recovery-lost-owner-") as name:
        home = Path(name)
        with Network(hidden=[ROOT]) as network, Cluster(network, home / "spark.log") as cluster:
            check(play(Fleet(network, cluster, home), home))


def play(fleet: Fleet, home: Path) -> Path:
    """Do what the beginning of this file says; return a directory with all partitions."""
    fleet.words.command("init", home / "made", 4)
    made = sorted((home / "made").glob("part-*.sqlite3"))
    fleet.add(made[:2])
    fleet.add(made[2:])
    backups = home / "backups"

    def loses_a_host(batch: int) -> bool:
        if batch == BACKUP_AT:
            fleet.words.command("backup", fleet.words.db, backups, *fleet.options)
            print("a backup was made", flush=True)
        if batch == CRASHES_AT:
            fleet.lose()
        return False

    # -b: epochs stay for an hour, so that partitions of different moments fit together.
    code = fleet.words.run(loses_a_host, "-b", "1h", *fleet.options)
    if code != OWNER_LOST:
        sys.exit(f"the run ended with code {code}, not with {OWNER_LOST}")
    fleet.words.command("restore", backups, home / "restored")
    fleet.add(home / "restored" / path.name for path in made[:2])
    seen: list[int] = []

    def ends(batch: int) -> bool:
        seen.append(batch)
        return len(seen) == MORE

    code = fleet.words.run(ends, "-b", "1h", *fleet.options)
    if code:
        sys.exit(f"the second run ended with code {code}")
    if seen[0] < BACKUP_AT:
        sys.exit(f"the second run began with micro-batch {seen[0]}")
    return fleet.together()


if __name__ == "__main__":
    main()
