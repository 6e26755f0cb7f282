"""Real processes of `recovery serve`, on the loopback interface."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner

from recovery.cli import main
from tests import forks
from tests.forks import Forked

TOKEN = "0123456789abcdef0123456789abcdef"
PATIENCE_S = 30.0


class Served:
    """An owner of a directory, perhaps beside others. Started again, it has the same port."""

    def __init__(
        self, directory: Path, token: Path, *options: object, beside: Sequence[Path] = (), crash_at: str = ""
    ) -> None:
        self.directory = directory
        self.beside = beside
        self._token = token
        self._options = options
        self.log = directory.with_name(f"{directory.name}.log")
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start(crash_at)

    @property
    def at(self) -> str:
        return self.at_of(self.directory)

    def at_of(self, directory: Path) -> str:
        """The address of a directory, as users write it."""
        return f"127.0.0.1:{self.port}" + (f"/{directory.name}" if self.beside else "")

    def start(self, crash_at: str = "") -> None:
        """Start the process; return when it serves. crash_at: see `recovery.base.faults`."""
        with self.log.open("ab") as log:
            begin = log.tell()
            self.process = Forked(
                ["-m", "recovery", "serve", self.directory, *self.beside, "--at", f"127.0.0.1:{self.port}",
                 "--token-file", self._token, *self._options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "RECOVERY_CRASH_AT": crash_at},
            )  # fmt: skip
        until_s = time.monotonic() + PATIENCE_S
        while (found := re.search(r"serving .* at \S+:(\d+)[/,]", self.text(begin))) is None:
            assert self.process.poll() is None, self.text(begin)
            assert time.monotonic() < until_s, self.text(begin)
            time.sleep(0.01)
        self.port = int(found[1])

    def text(self, begin: int = 0) -> str:
        """What it has printed."""
        return self.log.read_bytes()[begin:].decode()

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End it immediately."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """End it as an init system does; return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def spread(made: Path, places: Sequence[Sequence[int]]) -> list[Path]:
    """Move partitions of a directory to others, those of each place; return these. Places may have none."""
    directories = [made.with_name(f"{made.name}-{number}") for number in range(len(places))]
    for directory, indexes in zip(directories, places, strict=True):
        directory.mkdir()
        for index in indexes:
            (made / f"part-{index}.sqlite3").rename(directory / f"part-{index}.sqlite3")
    return directories


def token_file(directory: Path) -> Path:
    """A file with the token."""
    path = directory / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


def invoked(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call a command in this process, which takes a tenth of a process's time: one that neither starts Spark nor is
    killed."""
    words = [*map(str, arguments)]
    done = CliRunner().invoke(main, words, env=environment, prog_name="python -m recovery")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def recovery(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call a command in a process of its own; see `invoked`."""
    return forks.run(["-m", "recovery", *arguments], env={**os.environ, **environment}, timeout_s=PATIENCE_S * 4)
