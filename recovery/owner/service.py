"""`recovery serve`: an owner that runs of other hosts hold, one run at a time for each directory."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from recovery.base.addresses import host_and_port, is_directory_name, local_path
from recovery.base.clock import Clock, SystemClock
from recovery.base.threads import each
from recovery.base.wording import counted
from recovery.errors import ConfigurationError, NoPartitionsError, RecoveryError
from recovery.host.open_files import allow_open_files
from recovery.host.signals import StopSignals
from recovery.metrics.endpoint import HEALTH, READY, MetricsEndpoint
from recovery.owner.runs import OwnedRuns
from recovery.owner.serving import FILES_OF_DELTAS, STACK_BYTES, listening, port_of
from recovery.owner.spool import ALL_BYTES, SpoolMemory
from recovery.owner.watch.credentials import CredentialFiles
from recovery.owner.watch.facts import facts_of, status_of, text
from recovery.owner.watch.loopback import is_loopback, loopback_warning
from recovery.planning.owner_facts import OwnerFacts
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.moving.arriving import clear as clear_arrivals
from recovery.storage.verify import damage_behind
from recovery.wire.address import location
from recovery.wire.calls import OwnerStatus
from recovery.wire.served import ServedDirectory
from recovery.wire.server import MOST_CONNECTIONS, MOST_UNPROVEN, OwnerServer
from recovery.wire.turns import TurnPool

CLOSING_S = 25.0
"""How long a service that is to stop lets a run close its epoch. Kubernetes kills after 30 s."""


def _say(text: str) -> None:
    """Print a line of log. A full disk or a reader that has gone must not leave a run's hold half ended."""
    with contextlib.suppress(OSError, ValueError):
        print(f"recovery serve: {text}", file=sys.stderr, flush=True)


Directories = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A directory, or several, each under the last part of its path; a text "NAME=DIR" gives another name."""


class OwnerService:
    """Serves the partitions of directories, until `stop`."""

    def __init__(
        self,
        directories: Directories,
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
        """at: "HOST:PORT" or ":PORT", which is the loopback interface. scratch: gets a directory of each name, if there
        are several; None: inside each directory. insecure: listen elsewhere without TLS. metrics_at: where to serve
        metrics and probes, in the same form; None: nowhere.

        Raises ConfigurationError, NoPartitionsError if there is none of the directories.
        """
        named = named_directories(directories)
        self._files = CredentialFiles(token_file, tls_cert, tls_key)
        self.credentials = self._files.read()
        host, port = host_and_port(at)
        host = host.strip("[]") or "127.0.0.1"
        if self.credentials.tls is None and not insecure and not is_loopback(host):
            raise _plain_text(location(host, port))
        allow_open_files(MOST_CONNECTIONS + MOST_UNPROVEN + FILES_OF_DELTAS * len(named))
        self._log, self._clock = log, clock or SystemClock()
        self._listener = listening(host, port)
        self.port = port_of(self._listener.fileno())
        self.served = self._directories(named, scratch)
        """The runs of each directory, and what the server has of it."""
        self._server = OwnerServer(
            self._listener,
            [served for _, served in self.served],
            tokens=lambda: self.credentials.tokens,
            tls=lambda: self.credentials.tls,
            log=log,
        )
        self._endpoint = None if metrics_at is None else _endpoint(metrics_at)
        self._server.start()
        if self._endpoint is not None:
            self._endpoint.serve(lambda: text(self.facts()), self._not_ready)
            log(f"metrics at {self._endpoint.url}, probes at {HEALTH} and {READY}")
        self._say_where(host)

    def _directories(self, named: Mapping[str, Path], scratch: Path | None) -> list[tuple[OwnedRuns, ServedDirectory]]:
        pool, share_bytes = TurnPool(), ALL_BYTES // len(named)
        found = []
        for name, directory in named.items():
            if directory.is_dir():
                clear_arrivals(directory)
            room = directory / SCRATCH_NAME
            if scratch is not None:
                # Where a store has its scratch files for itself, it removes those of others.
                room = scratch if len(named) == 1 else scratch / name
            line = self._log if len(named) == 1 else partial(_say_of, name, self._log)
            served = ServedDirectory(name, pool=pool, explain=partial(damage_behind, within=directory), log=line)
            served.runs = runs = OwnedRuns(
                directory, room, self._clock, served.serve_tasks, line, SpoolMemory(share_bytes)
            )
            runs.serving = partial(self._status, runs, served)
            found.append((runs, served))
        return found

    def _say_where(self, host: str) -> None:
        """Log where the service listens, and a warning if no other host reaches it there by its name."""
        listens = location(*self._listener.getsockname()[:2])
        also = "" if listens == location(host, self.port) else f"listening at {listens}, "
        several = len(self.served) > 1
        for runs, served in self.served:
            at = location(host, self.port, served.name if several else "")
            there = (
                counted(len(runs.scan()), "partition")
                if runs.directory.is_dir()
                else "warning: there is no such directory; the others are served"
            )
            served.log(f"serving {runs.directory} at {at}, {also}{self.credentials.text(self._clock)}; {there}")
        warning = loopback_warning(host)
        if warning is not None:
            self._log(f"warning: {warning}")

    def facts(self) -> dict[str, OwnerFacts]:
        """Return the facts of each directory at this moment, by its name."""
        return {served.name: self._facts(runs, served) for runs, served in self.served}

    def _facts(self, runs: OwnedRuns, served: ServedDirectory) -> OwnerFacts:
        return facts_of(runs, self._server, served, self.credentials, self._clock)

    def _status(self, runs: OwnedRuns, served: ServedDirectory) -> OwnerStatus:
        return status_of(runs, self._facts(runs, served))

    def reload(self) -> None:
        """Read the token and the certificate again, for connections that come from now on. If one of the files cannot
        be used, everything stays in use."""
        try:
            self.credentials = self._files.read()
        except RecoveryError as error:
            self._log(f"not reloaded, the token and the certificate from before stay in use: {error.parts()[0]}")
            return
        self._log(f"reloaded: {self.credentials.text(self._clock)}")

    def stop(self, wait_s: float = CLOSING_S) -> None:
        """Let no further run in; let those that close an epoch finish that, for `wait_s` together; then end all
        connections."""
        until_s = time.monotonic() + wait_s
        holds = [(runs, holding) for runs, _ in self.served if (holding := runs.begin_to_stop()) is not None]
        for runs, holding in holds:
            if not holding.wait_closed(max(0.0, until_s - time.monotonic())):
                runs.log(f"the epoch was not closed in {wait_s:.0f} s")
        self._server.stop()
        # Each in a thread: a disk that hangs keeps only its own directory.
        each(OwnedRuns.end, [runs for runs, _ in self.served], at_once=len(self.served), name="owner-stop")
        self._listener.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._log("stopped")

    def _not_ready(self) -> str:
        return "the owner is being stopped" if any(runs.stops for runs, _ in self.served) else ""


def serve(
    directories: Directories,
    at: str,
    *,
    token_file: str | os.PathLike[str],
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    scratch_directory: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    metrics_at: str | None = None,
) -> None:
    """Serve the partitions in a directory, or in several, to runs of other hosts, until SIGTERM or Ctrl-C. SIGHUP reads
    the token and the certificate again; on a terminal SIGHUP, too, ends the service. Call `serve` in the main thread.

    directories: runs name each of several by the last part of its path, as in "h1:7337/words"; a text "NAME=DIR"
    gives another name. at: "HOST:PORT", or ":PORT" for the loopback interface. token_file: has the secret that runs
    have, too. tls_cert, tls_key: PEM files. scratch_directory: for what need not survive an execution; None: inside
    each directory.
    insecure: listen on another interface without TLS. metrics_at: where to serve metrics for Prometheus and probes,
    without a secret: "HOST:PORT" or ":PORT". Raises ConfigurationError or NoPartitionsError.
    """
    threading.stack_size(STACK_BYTES)
    signals = StopSignals(None if os.isatty(0) else lambda: service.reload())
    service = OwnerService(
        directories,
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


def named_directories(given: Directories) -> dict[str, Path]:
    """Return the directories by their names; the name of an only one may be empty. Raises ConfigurationError for two
    equal names, for a directory that is given twice, and for a name that no address can have; NoPartitionsError if
    there is none of the directories."""
    listed = [given] if isinstance(given, str | os.PathLike) else list(given)
    named: dict[str, Path] = {}
    for one in listed:
        name, directory = _named(one)
        if not is_directory_name(name):
            if len(listed) > 1:
                raise _no_name(f"no address can have the name {name!r:.80} of a directory", directory)
            name = ""
        if name in named:
            raise _no_name(f"{named[name]} has the same name {name}", directory)
        named[name] = directory
    if not named:
        raise ConfigurationError("no directory is given", cause="", remedy="Give one: recovery serve DIR")
    there: dict[tuple[int, int], Path] = {}
    for directory in named.values():
        if directory.is_dir():
            found = directory.stat()
            same = there.setdefault((found.st_dev, found.st_ino), directory)
            if same is not directory:
                raise ConfigurationError(
                    f"it is the directory {same}", path=directory, cause="", remedy="Give each directory once."
                )
    if not there:
        raise NoPartitionsError("there is no such directory", path=next(iter(named.values())))
    return named


def _named(given: str | os.PathLike[str]) -> tuple[str, Path]:
    """Return name and path of a directory, as a user gave it."""
    if isinstance(given, str):
        name, is_named, rest = given.partition("=")
        if is_named and is_directory_name(name):
            return name, local_path(rest).absolute()
    directory = local_path(given).absolute()
    return directory.name, directory


def _no_name(found: str, directory: Path) -> ConfigurationError:
    return ConfigurationError(
        found,
        path=directory,
        cause="Runs name a directory of an owner as in HOST:PORT/NAME: by the last part of its path, or by NAME.",
        remedy="Give it a name of letters, digits, '.', '-' and '_' that no other one has: NAME=DIR",
    )


def _say_of(name: str, log: Callable[[str], None], line: str) -> None:
    log(f"{name}: {line}")


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
