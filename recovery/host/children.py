"""Processes that run a module of this package beside this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import recovery


def own_module(module: str) -> tuple[list[str], dict[str, str]]:
    """Return the command that runs a module of this very copy of the package, and the environment for it."""
    own = str(Path(recovery.__file__).resolve().parents[1])
    search = os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
    # -P: no module of the working directory takes the place of another one.
    return [sys.executable, "-P", "-m", module], {**os.environ, "PYTHONPATH": search}


def exit_text(code: int | None) -> str:
    """Return how a process ended, as an error shows it. None: it has not."""
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
