"""`recovery serve`: an owner that runs of other hosts hold, one run at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from recovery.base.addresses import host_and_port
from recovery.base.clock import Clock, SystemClock
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, NoPartitionsError, RecoveryError
from recovery.host.open_files import allow_open_files
from recovery.host.signals import StopSignals
from recovery.metrics.endpoint import HEALTH, READY, MetricsEndpoint
from recovery.owner.process import WAITING
from recovery.owner.runs import OwnedRuns
from recovery.owner.serving import FILES_OF_DELTAS, STACK_BYTES, port_of
from recovery.owner.watch.credentials import CredentialFiles
from recovery.owner.watch.facts import facts_of, status_of, text
from recovery.owner.watch.loopback import is_loopback, loopback_warning
from recovery.planning.owner_facts import OwnerFacts
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.moving.arriving import clear as clear_arrivals
from recovery.storage.verify import damage_behind
from recovery.wire.address import location
from recovery.wire.server import MOST_CONNECTIONS, OwnerServer

CLOSING_S = 25.0
"""How long a service that is to stop lets a run close its epoch. Kubernetes kills after 30 s."""


def _say(text: str) -> None:
    """Print a line of log. A full disk or a reader that has gone must not leave a run's hold half ended."""
    with contextlib.suppress(OSError, ValueError):
        print(f"recovery serve: {text}", file=sys.stderr, flush=True)


class OwnerService:
    """Serves the partitions of one directory, until `stop`."""

    def __init__(
        self,
        directory: Path,
        at: str,
        token_file: Path,
        *,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        scratch: Path | None = None,
        insecure: bool = False,
        metrics_at: str | None = None,
        clock: Clock | None = None,
        log: Callable[[str], None] = _say,
    ) -> None:
        """at: "HOST:PORT" or ":PORT", which is the loopback interface. insecure: listen elsewhere without TLS.
        metrics_at: where to serve metrics and probes, in the same form; None: nowhere.

        Raises ConfigurationError, NoPartitionsError if there is no such directory.
        """
        if not directory.is_dir():
            raise NoPartitionsError("there is no such directory", path=directory)
        directory = directory.absolute()
        clear_arrivals(directory)
        self._files = CredentialFiles(token_file, tls_cert, tls_key)
        self.credentials = self._files.read()
        host, port = host_and_port(at)
        host = host.strip("[]") or "127.0.0.1"
        if self.credentials.tls is None and not insecure and not is_loopback(host):
            raise _plain_text(location(host, port))
        allow_open_files(MOST_CONNECTIONS + FILES_OF_DELTAS)
        self._log, self._clock = log, clock or SystemClock()
        self._listener = _listening(host, port)
        self.port = port_of(self._listener.fileno())
        self.runs = OwnedRuns(
            directory,
            scratch or directory / SCRATCH_NAME,
            self._clock,
            lambda tasks: self._server.serve_tasks(tasks),
            log,
        )
        self._server = OwnerServer(
            self._listener,
            None,
            runs=self.runs,
            tokens=self.credentials.tokens,
            tls=self.credentials.tls,
            explain=partial(damage_behind, within=directory),
            log=log,
        )  # fmt: skip
        self.runs.serving = lambda: status_of(self.runs, self.facts())
        self._endpoint = None if metrics_at is None else _endpoint(metrics_at)
        self._server.start()
        if self._endpoint is not None:
            self._endpoint.serve(lambda: text(self.facts()), self._not_ready)
            log(f"metrics at {self._endpoint.url}, probes at {HEALTH} and {READY}")
        self._say_where(host)

    def _say_where(self, host: str) -> None:
        """Log where the service listens, and a warning if no other host reaches it there by its name."""
        at, listens = location(host, self.port), location(*self._listener.getsockname()[:2])
        self._log(
            f"serving {self.runs.directory} at {at}, {'' if listens == at else f'listening at {listens}, '}"
            f"{self.credentials.text(self._clock)}; {counted(len(self.runs.scan()), 'partition')}"
        )
        warning = loopback_warning(host)
        if warning is not None:
            self._log(f"warning: {warning}")

    def facts(self) -> OwnerFacts:
        """Return the facts of the service at this moment."""
        return facts_of(self.runs, self._server, self.credentials, self._clock)

    def reload(self) -> None:
        """Read the token and the certificate again, for connections that come from now on. If one of the files cannot
        be used, everything stays in use."""
        try:
            self.credentials = self._files.read()
        except RecoveryError as error:
            self._log(f"not reloaded, the token and the certificate from before stay in use: {error.parts()[0]}")
            return
        self._server.tokens, self._server.tls = self.credentials.tokens, self.credentials.tls
        self._log(f"reloaded: {self.credentials.text(self._clock)}")

    def stop(self, wait_s: float = CLOSING_S) -> None:
        """Let no further run in; let one that closes an epoch finish that; then end all connections."""
        self.runs.stops = True
        holding = self.runs.holding
        if holding is not None:
            self._log(f"stopping, when the epoch of {holding.purpose} is closed")
            if not holding.wait_closed(wait_s):
                self._log(f"the epoch was not closed in {wait_s:.0f} s")
        self._server.stop()
        if holding is not None:
            self.runs.let_go(holding)
        self.runs.shipping.end()
        self._listener.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._log("stopped")

    def _not_ready(self) -> str:
        return "the owner is being stopped" if self.runs.stops else ""


def serve(
    directory: str | os.PathLike[str],
    at: str,
    *,
    token_file: str | os.PathLike[str],
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    scratch_directory: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    metrics_at: str | None = None,
) -> None:
    """Serve the partitions in a directory to runs of other hosts, until SIGTERM or Ctrl-C. SIGHUP reads the token and
    the certificate again; on a terminal SIGHUP, too, ends the service. Call `serve` in the main thread.

    at: "HOST:PORT", or ":PORT" for the loopback interface. token_file: has the secret that runs have, too. tls_cert,
    tls_key: PEM files. scratch_directory: for what need not survive an execution; None: inside the directory.
    insecure: listen on another interface without TLS. metrics_at: where to serve metrics for Prometheus and probes,
    without a secret: "HOST:PORT" or ":PORT". Raises ConfigurationError or NoPartitionsError.
    """
    threading.stack_size(STACK_BYTES)
    signals = StopSignals(None if os.isatty(0) else lambda: service.reload())
    service = OwnerService(
        Path(directory),
        at,
        Path(token_file),
        tls_cert=_path(tls_cert),
        tls_key=_path(tls_key),
        scratch=_path(scratch_directory),
        insecure=insecure,
        metrics_at=metrics_at,
    )
    signals.wait()
    service.stop()


def _endpoint(at: str) -> MetricsEndpoint:
    host, port = host_and_port(at)
    return MetricsEndpoint(host.strip("[]") or "127.0.0.1", port)


def _path(given: str | os.PathLike[str] | None) -> Path | None:
    return None if given is None else Path(given)


def _plain_text(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where} is open to other hosts, and states would cross the network in plain text",
        cause="No certificate was given.",
        remedy="Give one (--tls-cert FILE --tls-key FILE), or listen on the loopback interface; or say "
        "that the network is yours alone: --insecure",
    )


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(place, family=family, backlog=WAITING)
    except OSError as error:
        raise ConfigurationError(
            f"nothing can listen at {location(host, port)}: {error.strerror or error}",
            cause="The port is in use, or the address is not one of this host.",
            remedy="Give another address: --at HOST:PORT",
        ) from error
