"""The directories that a glob matches: each directory once, whatever links lead to it."""

# Paths are plain strings, as in recovery.appended.files.
# ruff: noqa: PTH112, PTH116, PTH118, PTH120

from __future__ import annotations

import errno
import fnmatch
import glob
import os
from collections.abc import Iterator

GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP}
"""The error numbers of a path that no longer exists or leads nowhere."""

_ANY_DEPTH = "**"
_Identity = tuple[int, int]


def matching_directories(pattern: str) -> list[str]:
    """Return the directories that an absolute pattern matches, sorted: *, ? and […] within a name, ** for any depth.

    Names that begin with a dot match only a part of the pattern that begins with one. ** finds each directory once: by
    its own path if that path is below, otherwise by a link that leads to the directory. `**` does not follow a link to
    a directory above itself, a cycle. Raises OSError for a directory that cannot be listed.
    """
    found = ["/"]
    for part in pattern.strip("/").split("/"):
        found = [each for base in found for each in _matching(base, part)]
    return sorted(dict.fromkeys(found))


def _matching(base: str, part: str) -> Iterator[str]:
    if part == _ANY_DEPTH:
        yield from _below(base)
    elif not glob.has_magic(part):
        path = os.path.join(base, part)
        if os.path.isdir(path):
            yield path
    else:
        matches = fnmatch.filter((entry.name for entry in _directories(base)), part)
        yield from (os.path.join(base, name) for name in matches if not _is_hidden(name) or _is_hidden(part))


def _below(base: str) -> Iterator[str]:
    """Yield a directory and the directories below it. Links come last, so real directories keep their own paths."""
    seen: set[_Identity] = set()
    waiting = [base]
    while waiting:
        links: list[str] = []
        for path in waiting:
            yield from _tree(path, seen, links)
        waiting = [link for link in sorted(links) if not _leads_up(link)]


def _tree(top: str, seen: set[_Identity], links: list[str]) -> Iterator[str]:
    """Yield a directory and the real ones below it, except those in `seen`; add links to directories to `links`."""
    waiting = [top]
    while waiting:
        path = waiting.pop()
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno in GONE:
                continue
            raise
        identity = found.st_dev, found.st_ino
        if identity in seen:
            continue
        seen.add(identity)
        yield path
        for entry in _directories(path):
            if not _is_hidden(entry.name):
                (links if entry.is_symlink() else waiting).append(entry.path)


def _directories(path: str) -> list[os.DirEntry[str]]:
    """Return the directories in `path`, and its links to directories."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if _is_directory(entry)]
    except OSError as error:
        if error.errno in GONE:
            return []
        raise


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        # Links may form a cycle.
        if error.errno in GONE:
            return False
        raise


def _leads_up(link: str) -> bool:
    """Return whether a link leads to its own directory, or to one above."""
    target, here = os.path.realpath(link), os.path.realpath(os.path.dirname(link))
    return here == target or here.startswith(target.rstrip("/") + "/")


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
