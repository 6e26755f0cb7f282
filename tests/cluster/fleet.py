"""Owners on pretend hosts, each with partitions on a disk of its own, and runs without Spark on the driver's host. With
workers of a lab's cluster on the same hosts, the runs may be the lab's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from owners import HOME, HostOwner

from tests.cluster.support import FLOWS, PATIENCE_S, ROOT, Run
from tests.owner.served import token_file

if TYPE_CHECKING:
    from hosts import Network


class FleetOwner(HostOwner):
    """An owner whose partitions tests move."""

    def remove(self, name: str) -> None:
        """Remove a partition."""
        self.host.run(["sh", "-c", f"rm -f {HOME}/{name} {HOME}/{name}-wal {HOME}/{name}-shm"])


class Fleet:
    """Hosts that have the partitions: `spread` says which, the driver's host first."""

    def __init__(
        self, network: Network, made: Path, root: Path, spread: Sequence[Sequence[int]],
        certificates: tuple[Path, Path, Path] | None = None,
    ) -> None:  # fmt: skip
        """certificates: that of all owners, its key, and the authority's; None: no TLS."""
        self.network = network
        self._certificates = certificates
        self.root = root
        self.token = token_file(root)
        self.db = root / "db"
        self.db.mkdir()
        self.owners: list[FleetOwner] = []
        for index in spread[0]:
            shutil.copyfile(made / f"part-{index}.sqlite3", self.db / f"part-{index}.sqlite3")
        for indexes in spread[1:]:
            owner = self.add()
            for index in indexes:
                owner.put(made / f"part-{index}.sqlite3")
            owner.start()

    def add(self) -> FleetOwner:
        """Add a host with an owner without partitions, which does not serve yet."""
        host = self.network.add(package=ROOT / "recovery")
        certificate = self._certificates and self._certificates[:2]
        self.owners.append(FleetOwner(host, self.token, self.root / f"{host.name}.log", certificate))
        return self.owners[-1]

    @property
    def options(self) -> list[object]:
        """Of a command that knows all owners."""
        secured = [] if self._certificates is None else ["--tls-ca", self._certificates[2]]
        return [*(word for each in self.owners for word in ("--owner", each.at)), "--token-file", self.token, *secured]

    def run(
        self, batches: int, pause_s: float = 0.0, *more: str, token: Path | None = None, db: Path | None = None
    ) -> Run:
        """Start a run up to this number of micro-batches. more: owners besides. db: another directory, without owners
        and alone."""
        owners = [] if db is not None else [*(each.at for each in self.owners), *more]
        command = [sys.executable, FLOWS / "minidriver.py", db or self.db, batches, pause_s, token or self.token]
        started = self.network.driver.command([*command, *owners], {"PYTHONPATH": str(ROOT)})
        return Run(started, self.root / "run.out")

    def command(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command on the driver's host."""
        command = self.network.driver.command([sys.executable, "-m", "recovery", *words], {"PYTHONPATH": str(ROOT)})
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def done(self) -> int:
        """The number of micro-batches that the next run goes on behind."""
        found = self.command("plan", self.db, *self.options, "--json")
        assert found.returncode == 0, found.stderr
        return int(json.loads(found.stdout)["after_batch"]) + 1

    def together(self) -> Path:
        """All partitions, copied to one directory; ends the owners."""
        found = self.root / "together"
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        for owner in self.owners:
            owner.end()
            owner.get(found)
        for path in self.db.glob("part-*"):
            if not path.name.endswith("-shm"):
                shutil.copyfile(path, found / path.name)
        return found

    def close(self) -> None:
        """End everything."""
        self.network.close()
