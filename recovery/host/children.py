"""Child processes that run a module of this package beside this process."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import sys
import threading
from pathlib import Path

import recovery


def own_module(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module of this very copy of the package, and the environment for it."""
    own = str(Path(recovery.__file__).resolve().parents[1])
    search = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
    # -P: no module of the working directory takes the place of another one.
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": search}


NICE = 10
"""By as much a process that only shows something is nicer: beside a busy one, it gets a tenth of a core."""


def yield_to_others() -> None:
    """Let the busy processes of this host go before this one, from now on: an idle core still serves it fully."""
    with contextlib.suppress(OSError):
        os.nice(NICE - min(NICE, os.nice(0)))


LOOK_S = 1.0
"""How often a process looks whether its parent still runs, should something else hold its standard input open."""


def lines_of(parent: int) -> queue.SimpleQueue[bytes]:
    """Return the lines of the standard input, as they come. This process ends with its standard input, or with its
    parent."""
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(parent, asked), name="listen", daemon=True).start()
    return asked


def _listen(parent: int, asked: queue.SimpleQueue[bytes]) -> None:
    reading, found = sys.stdin.fileno(), bytearray()
    while os.getppid() == parent:
        if not select.select([reading], [], [], LOOK_S)[0]:
            continue
        read = os.read(reading, 65_536)
        if not read:
            break
        found += read
        if b"\n" in read:
            *lines, rest = bytes(found).split(b"\n")
            found = bytearray(rest)
            for line in lines:
                asked.put(line)
    sys.stderr.flush()
    os._exit(0)


def tell_parent(line: bytes) -> None:
    """Write a line to the standard output. If nobody reads the output any more, this process ends: its parent has
    ended."""
    try:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        sys.stderr.flush()
        os._exit(0)


def exit_text(code: int | None) -> str:
    """Return how a process ended, as an error shows it. None: the process has not ended."""
    if code is None:
        return "too late"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """End a process that ends by itself when its standard input does; kill it if that takes longer than `wait_s`."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
