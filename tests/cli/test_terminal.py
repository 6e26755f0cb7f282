"""What a terminal gets, in a real pseudo terminal: colours, a line that is redrawn, tables of its width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import termios
import time

import pytest

from recovery.cli.status_line import StatusLine
from tests.forks import Forked, run
from tests.stores import Driver

SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SECONDS = 60


def at_terminal(command, *, columns=80, **environment):
    """Return what a process writes to a terminal that is its standard output and error."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    base = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    process = Forked(command, stdin=other, stdout=other, stderr=other, env={**base, "TERM": "xterm", **environment})
    os.close(other)
    written, end_s = b"", time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        if select.select([main], [], [], 0.1)[0]:
            try:
                read = os.read(main, 65536)
            except OSError:  # All writers have closed it.
                break
            if not read:
                break
            written += read
    os.close(main)
    assert process.wait(SECONDS) in (0, 20, 23, 25)
    return written.decode().replace("\r\n", "\n")


def recovery(*words, **options):
    return at_terminal(["-m", "recovery", *words], **options)


@pytest.fixture
def ran(store_dir):
    """A store with a key and a value that are long."""
    with Driver(store_dir) as run:
        run.apply(0, {"a" * 150: '"' + "word " * 30 + '"', "b": "2"})
        run.close(0)
    return store_dir


def test_colours(ran, tmp_path):
    """A terminal gets them; with NO_COLOR or TERM=dumb it gets text only; an empty NO_COLOR is none."""
    assert SEQUENCE.search(recovery("verify", ran, NO_COLOR=""))
    for words in (("status", ran), ("status", tmp_path / "nowhere")):
        assert SEQUENCE.search(recovery(*words))
        for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}):
            assert "\x1b" not in recovery(*words, **environment)


def test_colours_in_a_pipe(ran):
    """None, unless FORCE_COLOR asks for them; JSON never has any."""

    def piped(*words, **environment):
        base = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        done = run(["-m", "recovery", *words], timeout_s=SECONDS, env={**base, **environment})
        assert done.returncode == 0
        return done.stdout

    assert "\x1b" not in piped("status", ran)
    assert "\x1b" not in piped("status", ran, FORCE_COLOR="0")
    assert "\x1b" not in piped("status", ran, FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b" not in piped("status", ran, "--json", FORCE_COLOR="1")
    assert SEQUENCE.search(piped("status", ran, FORCE_COLOR="1"))


PROGRESS = """
import sys, time
from recovery.backup.progress import FileProgress
from recovery.cli.backup_progress import CopyProgress
from recovery.cli.progress import RunProgress
from recovery.cli.status_line import StatusLine
from recovery.spark.run.reporting.events import Stopping
kind = sys.argv[1]
if kind == "line":
    with StatusLine() as line:
        for at in range(3):
            time.sleep(0.3)
            line.show(f"read {at}")
elif kind == "copies":
    progress = CopyProgress()
    for step in ("copy", "copied"):
        time.sleep(0.3)
        progress.observe(FileProgress(step, "part-0.sqlite3", 1, 2))
else:
    with RunProgress("words") as progress:
        time.sleep(1.2)
        progress.observe(Stopping(2, None))
print("done")
"""


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        pytest.param("line", "", marks=pytest.mark.long),
        ("copies", "part-0.sqlite3: copied, 1 B"),
        pytest.param("run", "words: starting Spark …", marks=pytest.mark.long),
    ],
)
def test_lines_that_are_redrawn(kind, said):
    """They move the cursor of a terminal only, and none with NO_COLOR or TERM=dumb: those get what a file gets."""
    command = ["-c", PROGRESS, kind]
    live = at_terminal(command)
    assert "\x1b[K" in live
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = at_terminal(command, **environment)
        assert "\x1b" not in plain
        assert "\r" not in plain
        assert said in plain
        assert plain.endswith("done\n")


@pytest.mark.parametrize("columns", [50, 64])
def test_tables_fit(ran, tmp_path, columns):
    """Long texts are shortened, numbers are whole, and a pipe gets everything."""
    copy = tmp_path / "copy"
    shutil.copytree(ran, copy)
    (copy / "part-1.sqlite3").rename(copy / "part-1 of another store which somebody has copied here.sqlite3")
    for words in (("state", "list", ran, "--step", "count"), ("verify", copy)):
        shown = SEQUENCE.sub("", recovery(*words, columns=columns)).partition("Error: ")[0].splitlines()
        assert max(map(len, shown)) <= columns
        assert any("…" in line for line in shown)
        whole = run(["-m", "recovery", *words], timeout_s=SECONDS).stdout
        assert "…" not in whole
        assert len(whole.splitlines()) == len(shown)


def test_a_closed_stream(tmp_path):
    """Progress on a stream that is gone is plain."""
    with (tmp_path / "out").open("w") as stream:
        pass
    assert StatusLine(stream=stream)._live is False
