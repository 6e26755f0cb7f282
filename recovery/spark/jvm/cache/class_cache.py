"""The code of this package's Java classes, kept from one start to the next, so that each source is compiled once.

Each source has a file in the cache directory, which can be removed at any time. The file's name is a digest of all that
the code depends on: the source, this package, Java, Spark and its jars. A file is not used if its content has another
digest than it says, or if another user may have written it. This process gives the JVM the code that it has checked;
the JVM never opens the file.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from recovery.base.version import VERSION
from recovery.errors import StorageError
from recovery.host.durable import make_directories, replace
from recovery.spark.jvm.cache.class_archive import COMPILED, COMPILED_FILES, cache_directory, is_trusted

KEPT = 32
"""The number of files that are kept, of some 30 kB each: a version has at most six."""
_MOST_BYTES = 4 << 20
_READABLE = 0o644


def compiled_once(jvm: Any, text: str, compiled: Callable[[], dict[str, bytes]]) -> dict[str, bytes]:
    """Return the code of the classes of the source `text`, by their names: as an earlier process has compiled them
    for such a JVM, if that is kept, or else as `compiled` returns them, and that code is then kept."""
    key = key_of(jvm, text)
    found = read(key)
    if found is None:
        found = compiled()
        write(key, found)
    return found


def key_of(jvm: Any, text: str) -> str:
    """A digest of all that the code depends on that `jvm` compiles from the source `text`."""
    java, jars = (str(jvm.System.getProperty(name)) for name in ("java.vm.version", "java.class.path"))
    facts = [VERSION, java, jars, *map(_state, jars.split(os.pathsep)), text]
    return sha256("\n".join(facts).encode("utf-8", "surrogatepass")).hexdigest()


def read(key: str) -> dict[str, bytes] | None:
    """The code of classes by their names; None if there is no such file, or one that must not be used."""
    path = _path(key)
    if path is not None:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                if is_trusted(os.fstat(descriptor)):
                    return _unpacked(file.read(_MOST_BYTES), key)
    return None


def write(key: str, classes: Mapping[str, bytes]) -> None:
    """Keep the code of classes, and remove the oldest files; do nothing if the cache cannot be written to."""
    path = _path(key)
    if path is not None:
        with contextlib.suppress(OSError, StorageError):
            make_directories(path.parent)
            # Not synced: after a power loss the digest shows what is missing.
            replace(path, _packed(key, classes), mode=_READABLE)
            found = sorted(path.parent.glob(COMPILED_FILES), key=lambda each: each.stat().st_mtime_ns)
            for each in found[:-KEPT]:
                each.unlink(missing_ok=True)


def _path(key: str) -> Path | None:
    home = cache_directory()
    return None if home is None else home / f"{COMPILED}{key[:32]}"


def _state(entry: str) -> str:
    """The size and time of an entry of the class path."""
    with contextlib.suppress(OSError, ValueError):
        found = Path(entry).stat()
        return f"{found.st_size} {found.st_mtime_ns}"
    return ""


def _packed(key: str, classes: Mapping[str, bytes]) -> bytes:
    code = {name: base64.b64encode(each).decode() for name, each in classes.items()}
    content = json.dumps({"key": key, "classes": code}).encode()
    return sha256(content).hexdigest().encode() + b"\n" + content


def _unpacked(packed: bytes, key: str) -> dict[str, bytes] | None:
    digest, _, content = packed.partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        kept = json.loads(content)
        if kept["key"] == key:
            return {name: base64.b64decode(each, validate=True) for name, each in kept["classes"].items()}
    return None
