"""Readers of the pages of a flow, as processes of this host: `recovery ui`, and clients that ask like open pages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def watching(directory: Path, count: int) -> Iterator[list[int]]:
    """Serve the pages of a directory, with so many pages of its flow open; yield a list that has at the end how often
    each looked. count 0: nothing is served."""
    looks: list[int] = []
    if not count:
        yield looks
        return
    command = [sys.executable, "-m", "recovery", "ui", str(directory), "--at", ":0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as served:
        readers: list[subprocess.Popen[str]] = []
        try:
            assert served.stderr is not None
            page = f"{served.stderr.readline().split()[-1]}flows/{directory.absolute().name}/"
            for _ in range(count):
                reader = [sys.executable, "-c", READER, page, str(EVERY_S)]
                readers.append(subprocess.Popen(reader, stdout=subprocess.PIPE, text=True))
            yield looks
        finally:
            for each in readers:
                each.terminate()
                looks.append(len(each.communicate()[0].split()))
            served.terminate()
            served.communicate()
