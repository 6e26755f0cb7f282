"""The process that serves the pages of a run, and the messages between the run and that process.

The process reads partitions with SQLite's own locks, as `recovery ui` does: it never shares the interpreter of the run,
so a request takes no time from a micro-batch but on the processor. It ends with its standard input, or with the run.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import msgspec

from recovery.errors import ConfigurationError, RecoveryError
from recovery.host.children import lines_of, tell_parent, yield_to_others
from recovery.storage.store import OwnerAccess


class PagesTask(msgspec.Struct, frozen=True):
    """What the process is to show, and where. parent: the process that it ends with."""

    directory: str
    at: str
    parent: int
    owners: list[str]
    token_file: str | None
    tls_ca: str | None
    thresholds: dict[str, str]


class PagesReady(msgspec.Struct, frozen=True):
    """Where the pages are; or why there are none: what was found, its cause, and the way out."""

    url: str = ""
    found: str = ""
    cause: str = ""
    remedy: str = ""


def main() -> int:
    """Serve what the first line of the standard input says, until the input ends. The first line of the standard output
    is a `PagesReady`."""
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=PagesTask)
    yield_to_others()
    # Its thread ends the process.
    lines_of(task.parent)
    try:
        ready = PagesReady(url=_begin(task))
    except RecoveryError as error:
        tell_parent(msgspec.json.encode(PagesReady("", error.found, error.cause, error.remedy)))
        return error.exit_code
    tell_parent(msgspec.json.encode(ready))
    threading.Event().wait()
    return 0


def _begin(task: PagesTask) -> str:
    """Begin to serve; return where. Raises ConfigurationError."""
    try:
        from recovery.ui.facts.flows import Flows, FlowSource
        from recovery.ui.server.app import application
        from recovery.ui.server.service import UiService, UiSettings
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"--ui needs the package {error.name}",
            cause="This package was installed without its extra ui.",
            remedy="Install it with its extra ui, or run without --ui.",
        ) from error
    paths = (None if path is None else Path(path) for path in (task.token_file, task.tls_ca))
    source = FlowSource(Path(task.directory), OwnerAccess(tuple(task.owners), *paths), None, task.thresholds)
    flows = Flows([source])
    # The signals of a terminal reach this process, too: the run decides when it ends.
    _ignore_signals()
    try:
        service = UiService(lambda admission: application(flows, admission), UiSettings(task.at), _say)
    except ConfigurationError as error:
        remedy = "Give another port (--ui :PORT; :0 takes a free one), or run without --ui."
        raise ConfigurationError(error.found, cause=error.cause, remedy=remedy) from error
    return service.url


def _ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    print(f"recovery ui: {text}", file=sys.stderr, flush=True)
