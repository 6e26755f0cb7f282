"""Logs that the real logrotate rotates, from a first scan at which they have lines, are empty, or are not there yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.appended.files import LocalFiles
from recovery.appended.planner import Planner
from recovery.errors import InputRewrittenError
from tests.appended.test_rotation import Query, tick
from tests.shares import one_in

LOGROTATE = shutil.which("logrotate", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
pytestmark = pytest.mark.skipif(LOGROTATE is None, reason="logrotate is not installed")

STYLES = {
    "create": "create",
    "empty ones stay": "create notifempty",
    "copytruncate": "copytruncate",
    "delaycompress": "create compress delaycompress",
    "copytruncate and delaycompress": "copytruncate compress delaycompress",
    "compress": "create compress",
    "postrotate": "create postrotate",
    "postrotate and delaycompress": "create compress delaycompress postrotate",
    "dateext": "create dateext",
    "dateext, copytruncate": "copytruncate dateext",
    "dateext and delaycompress": "create dateext compress delaycompress",
    "the last one is removed": "create rotate1",
    "nothing is created": "nocreate",
}
PATHS: dict[str, Callable[[Path], Path | str]] = {
    "path": lambda log: log,
    "directory": lambda log: log.parent,
    "glob of names": lambda log: f"{log.parent}/*.log",
    "glob of generations": lambda log: f"{log.parent}/app.log*",
}
FIRST = ["with lines", "empty", "absent"]
"""The log when the first run begins."""
SCHEDULES = {
    "filled and rotated": "write rotate run write run",
    "rotated twice": "write rotate write rotate write run write run",
    "rotated while it is empty": "rotate run rotate run rotate rotate run write run",
    "filled, then rotated while it is empty": "write run rotate run rotate run rotate run write rotate run",
    "rotated every time": "write rotate run write rotate run write rotate run write run",
    "written to late": "write rotate late run write rotate run late write run",
}


class Log:
    """A log with its daemon and its rotation."""

    def __init__(self, path: Path, style: str) -> None:
        self.path = path
        self.style = style.split()
        self.written: list[str] = []
        self.rotations = 0
        self._held: list[int] = []
        directives = [word for word in self.style if word not in ("postrotate", "rotate1")]
        if "dateext" in self.style:
            directives.append("dateformat -%Y%m%d-%s")
        directives.append("rotate 1" if "rotate1" in self.style else "rotate 9")
        self._config = path.parent.parent / "logrotate.conf"
        lines = "\n".join(f"    {each}" for each in (*directives, "ifempty" * ("notifempty" not in directives)))
        self._config.write_text(f"{path} {{\n{lines}\n}}\n")
        self._config.chmod(0o644)

    def write(self) -> None:
        """Write two lines, where the daemon with `postrotate` has the file open since its last signal."""
        with self.path.open("ab") as out:
            self._line(out.fileno(), 2)
        self.tick()

    def rotate(self) -> None:
        """Let logrotate rotate; with `postrotate` the daemon keeps the old file open."""
        if "postrotate" in self.style:
            self.close()
            self._held.append(os.open(self.path, os.O_WRONLY | os.O_APPEND))
        self.rotations += 1
        if "dateext" in self.style and self.rotations > 1:
            # A generation has the second in its name, and is not overwritten. logrotate's clock, time(2), may be behind
            # this process's: on a busy machine it advances late.
            time.sleep(int(time.time()) + 1.25 - time.time())
        state = self._config.with_name("state")
        command = [str(LOGROTATE), "-f", "-s", str(state), str(self._config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        self.tick()

    def late(self) -> None:
        """Write a line to the file that was rotated, before the daemon opens the new one."""
        for descriptor in self._held:
            self._line(descriptor, 1)
        self.close()
        self.tick()

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def tick(self) -> None:
        tick(self._config.parent)

    def _line(self, descriptor: int, count: int) -> None:
        for _ in range(count):
            self.written.append(f"line {len(self.written)} {os.urandom(4).hex()}")
            os.write(descriptor, f"{self.written[-1]}\n".encode())


def run(query: Query) -> list[str]:
    """A run to the end of the input, a few minutes later."""
    query.planner = Planner(query.options, LocalFiles(), cores=2, clock_ns=lambda: time.time_ns() + 300 * 10**9)
    query.planner.fix_end()
    values = []
    while (pair := query.plan(max_bytes=40))[0] != pair[1]:
        values += [value for value, _, _ in query.read(*pair)]
    return values


def may_be_compressed_unseen(log: Log, rotations: int) -> bool:
    """Whether so many rotations may compress or remove a generation that the last run knew as the log."""
    if "delaycompress" in log.style or "rotate1" in log.style:
        return rotations >= 2
    return rotations >= 1 and "compress" in log.style


@pytest.mark.parametrize(("style", "first", "path_of", "schedule"), one_in(6, STYLES, FIRST, PATHS, SCHEDULES))
def test_every_line_comes_once_or_the_run_is_refused(
    tmp_path: Path, style: str, first: str, path_of: str, schedule: str
) -> None:
    """The lines of all runs are the lines written, each once; or a run says which file it cannot follow, and only where
    a generation was compressed or removed before any run could see that it was one."""
    if "dateext" in style and schedule != "filled and rotated" and (schedule, path_of) != ("rotated twice", "path"):
        pytest.skip("a second rotation by date waits for the next second; the others show the same")
    if (style, first, schedule) == ("the last one is removed", "absent", "rotated twice"):
        pytest.skip("the first generation is removed before any run could see it")
    directory = tmp_path / "logs"
    directory.mkdir(mode=0o755)
    log = Log(directory / "app.log", STYLES[style])
    if first == "with lines":
        log.write()
    if first == "empty" or path_of == "path":
        log.path.touch()
    query = Query(PATHS[path_of](log.path), lastLine="take" if len(schedule) % 2 else "hold")
    got = run(query)
    log.path.touch()
    log.tick()
    rotations = 0
    try:
        for step in schedule_of(schedule):
            if step == "run":
                got += run(query)
                rotations = 0
            else:
                getattr(log, step)()
                rotations += step == "rotate"
                if "nocreate" in log.style:
                    log.path.touch()
    except InputRewrittenError:
        assert may_be_compressed_unseen(log, rotations)
        assert not Counter(got) - Counter(log.written)
        return
    finally:
        log.close()
    assert Counter(got) == Counter(log.written)


def schedule_of(name: str) -> list[str]:
    return SCHEDULES[name].split()
