"""Readers of the pages of a flow, as processes of this host: `recovery ui`, and clients that ask like open pages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.processes import spent

READER = """
import sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
looks = 0
while True:
    with opener.open(sys.argv[1], timeout=60) as answer:
        assert b'data-part id="now"' in answer.read()
    looks += 1
    print(looks, flush=True)
    time.sleep(float(sys.argv[2]))
"""
EVERY_S = 2.0
"""How often the page of a flow looks again."""


class Watching:
    """The server of a directory's pages, and the open pages. server, readers: their processes."""

    def __init__(self) -> None:
        self.server: subprocess.Popen[str] | None = None
        self.readers: list[subprocess.Popen[str]] = []
        self.looks: list[int] = []
        """How often each page has looked; known at the end."""

    def server_cpu_s(self) -> float:
        """Processor time of the server so far."""
        return 0.0 if self.server is None else spent(self.server.pid).cpu_s

    def readers_cpu_s(self) -> float:
        """Processor time of the readers so far."""
        return sum(spent(each.pid).cpu_s for each in self.readers)


@contextmanager
def watching(directory: Path, count: int) -> Iterator[Watching]:
    """Serve the pages of a directory, with so many pages of its flow open: each has looked once, so that what begins
    now shares the machine with pages that have been open before, and not with their start. count 0: nothing is
    served."""
    found = Watching()
    if not count:
        yield found
        return
    command = [sys.executable, "-m", "recovery", "ui", str(directory), "--at", ":0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as served:
        found.server = served
        try:
            assert served.stderr is not None
            page = f"{served.stderr.readline().split()[-1]}flows/{directory.absolute().name}/"
            for _ in range(count):
                reader = [sys.executable, "-c", READER, page, str(EVERY_S)]
                found.readers.append(subprocess.Popen(reader, stdout=subprocess.PIPE, text=True))
            for each in found.readers:
                assert each.stdout is not None
                each.stdout.readline()
            yield found
        finally:
            for each in found.readers:
                each.terminate()
                found.looks.append(len(each.communicate()[0].split()))
            served.terminate()
            served.communicate()
