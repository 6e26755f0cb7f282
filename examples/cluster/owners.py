"""Owners on pretend hosts (hosts.py): `recovery serve` on each, for partitions on a disk of its own.

owner = HostOwner(network.add(package=Path("recovery")), token_file, log)
owner.put(Path("db/part-0.sqlite3"))
owner.start()                   # recovery run … --owner host1:7337
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from hosts import PACKAGE, WorkerHost, send

PORT = 7337
HOME = "/tmp/db"
"""Where a host has its partitions."""
TOKEN, CERTIFICATE, KEY = "/tmp/token", "/tmp/owner.pem", "/tmp/owner.key"
PATIENCE_S = 90.0


class HostOwner:
    """`recovery serve` on a host, whose disk is gone with it."""

    def __init__(self, host: WorkerHost, token: Path, log: Path, certificate: tuple[Path, Path] | None = None) -> None:
        """log: a file for what it prints. certificate: that and its key; None: no TLS."""
        self.host = host
        self.at = f"{host.name}:{PORT}"
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log
        host.run(["mkdir", HOME])
        self.put(token, TOKEN)
        host.run(["chmod", "600", TOKEN])
        # Without TLS: the hosts' network is ours alone.
        self._tls = ["--insecure"] if certificate is None else ["--tls-cert", CERTIFICATE, "--tls-key", KEY]
        for source, target in zip(certificate or (), (CERTIFICATE, KEY), strict=False):
            self.put(source, target)

    def put(self, source: Path, target: str = "") -> None:
        """Copy a file to the host: among its partitions, unless another place is named."""
        where = target or f"{HOME}/{source.name}"
        with source.open("rb") as file:
            subprocess.run(self.host.command(["sh", "-c", f"cat > {where}"]), stdin=file, check=True)

    def get(self, target: Path) -> None:
        """Copy its partitions, with their logs, to a directory of the driver's host. Nobody has them open."""
        for name in self.host.run(["ls", HOME]).split():
            if name.startswith("part-") and not name.endswith("-shm"):
                with (target / name).open("wb") as file:
                    subprocess.run(self.host.command(["cat", f"{HOME}/{name}"]), stdout=file, check=True)

    def start(self) -> None:
        """Start the service; return when it serves."""
        command = [sys.executable, "-m", "recovery", "serve", HOME, "--at", f"{self.host.address}:{PORT}"]
        with self._log.open("ab") as log:
            begin = log.tell()
            self.process = self.host.start(
                [*command, "--token-file", TOKEN, *self._tls], {"PYTHONPATH": PACKAGE},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until_s = time.monotonic() + PATIENCE_S
        while b"serving" not in self._log.read_bytes()[begin:]:
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"the owner does not serve: {self._log.read_text()}")
            time.sleep(0.05)

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        send(self.process, number)
        if number == signal.SIGCONT:
            # nsenter stopped as its child did.
            self.process.send_signal(number)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it, if it runs."""
        if self.process is not None:
            self.send(number)
            self.process.wait()
            self.process = None
