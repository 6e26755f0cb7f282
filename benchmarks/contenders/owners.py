"""Owners of partitions as processes of this host, for a run that reaches them as it reaches those of others."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def serving(directory: Path, count: int) -> Iterator[dict[str, Any]]:
    """Move the partitions in a directory to so many owners, one each in turn; yield the settings of a run that reaches
    them there. At the end the partitions are back. count 0: nothing is moved."""
    if not count:
        yield {}
        return
    token = Path("token").absolute()
    token.touch(0o600)
    token.write_text(secrets.token_hex())
    homes = [Path(f"owner-{number}") for number in range(count)]
    for number, path in enumerate(sorted(directory.glob("part-*.sqlite3"))):
        home = homes[number % count]
        home.mkdir(exist_ok=True)
        path.rename(home / path.name)
    started: list[subprocess.Popen[str]] = []
    try:
        for home in homes:
            command = [sys.executable, "-m", "recovery", "serve", str(home), "--at", ":0", "--token-file", str(token)]
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        yield {"owners": tuple(map(address_of, started)), "token_file": token}
    finally:
        for owner in started:
            owner.terminate()
            owner.communicate()
    for home in homes:
        for path in home.glob("part-*"):
            path.rename(directory / path.name)


def address_of(owner: subprocess.Popen[str]) -> str:
    """Where it serves, which it says in its first line."""
    assert owner.stderr is not None
    line = owner.stderr.readline()
    found = re.search(r"serving .* at (\S+:\d+),", line)
    if found is None:
        raise RuntimeError(f"the owner does not serve: {line}{owner.communicate()[1]}")
    return found[1]
