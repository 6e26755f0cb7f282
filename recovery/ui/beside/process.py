"""The run's side of its pages: the process that serves them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path

import msgspec

from recovery.base.addresses import host_and_port
from recovery.errors import ConfigurationError, StorageError
from recovery.host.children import end, exit_text, own_module
from recovery.owner.watch.loopback import is_loopback
from recovery.storage.store import OwnerAccess
from recovery.ui.beside.serving import PagesReady, PagesTask

READY_S = 30.0
"""How long a run that has started waits for the pages: they begin before Spark, so this wait is short."""
END_S = 2.0
"""How long to wait for the process to end by itself."""


def check_at(at: str) -> str:
    """Return HOST:PORT of "[HOST]:PORT", on the loopback interface. Raises ConfigurationError."""
    host, port = host_and_port(at)
    host = host.strip("[]") or "127.0.0.1"
    if not is_loopback(host):
        raise ConfigurationError(
            f"--ui {at}: a run shows its pages to this host only",
            cause="Another interface needs a token and a certificate.",
            remedy="Give a port (--ui :4050), or start `recovery ui DIR --at … --view-token-file …` beside the run.",
        )
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PagesProcess:
    """Serves the pages of one run in a process that ends with the run, however the run ends."""

    def __init__(self, directory: Path, at: str, access: OwnerAccess, thresholds: dict[str, str]) -> None:
        """Start the process; do not wait for it. Raises ConfigurationError for an address that is not of the loopback
        interface, and StorageError."""
        token_file, tls_ca = (None if path is None else str(path) for path in access[1:])
        task = PagesTask(str(directory), check_at(at), os.getpid(), list(access.owners), token_file, tls_ca, thresholds)
        command, environment = own_module("recovery.ui.beside")
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        except OSError as error:
            raise StorageError(f"the process of the pages cannot be started: {error}") from error
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ready(self) -> str:
        """Wait until the pages are served, at most `READY_S`; return where they are. Raises ConfigurationError, as for
        a port in use, and StorageError."""
        try:
            found = msgspec.json.decode(self._first_line(), type=PagesReady)
        except (msgspec.DecodeError, msgspec.ValidationError):
            code = self._process.poll()
            raise StorageError(
                f"the process of the pages did not start ({exit_text(code)})",
                cause="The error of the process is above; or this host is too busy, or has too little memory.",
                remedy="Run without --ui, and start `recovery ui DIR` beside the run.",
            ) from None
        if not found.url:
            raise ConfigurationError(found.found, cause=found.cause, remedy=found.remedy)
        return found.url

    def ended(self) -> str | None:
        """Return how the process has ended; None: it runs."""
        code = self._process.poll()
        return None if code is None else exit_text(code)

    def stop(self) -> None:
        """End the process. May be called again."""
        end(self._process, END_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _first_line(self) -> bytes:
        assert self._process.stdout is not None
        until_s, found = time.monotonic() + READY_S, b""
        while b"\n" not in found and (left_s := until_s - time.monotonic()) > 0:
            if select.select([self._process.stdout], [], [], left_s)[0]:
                read = os.read(self._process.stdout.fileno(), 1 << 16)
                if not read:
                    break
                found += read
        return found
