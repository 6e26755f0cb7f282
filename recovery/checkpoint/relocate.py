"""A checkpoint that stands somewhere else than where it was written.

Of all files of a checkpoint one kind names the checkpoint's own place: what `transformWithState` notes of its schemas,
in `state/<operator>/_metadata/v2/<batch>`, has absolute paths. Everything else is relative.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from recovery.base.untrusted_paths import objection
from recovery.errors import SparkCheckpointError, shown

_METADATA = re.compile(r"state/\d+/_metadata/v2/\d+")


def names_places(path: str) -> bool:
    """Whether a file of a checkpoint may name the checkpoint's own place."""
    return _METADATA.fullmatch(path) is not None


def relocated(path: str, content: bytes, location: str) -> bytes:
    """The content of such a file in a checkpoint at `location`, a URI. Raises SparkCheckpointError when it has another
    form than Spark 4.3 writes."""
    try:
        version, text = content.decode().split("\n", 1)
        described = msgspec.json.decode(text)
        for store in described["stateStoreInfo"]:
            paths = store.get("stateSchemaFilePaths")
            if paths is not None:
                store["stateSchemaFilePaths"] = [_moved(path, each, location) for each in paths]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SparkCheckpointError(f"it has not the form that Spark writes: {error}", path=path) from error
    return f"{version}\n{msgspec.json.encode(described).decode()}".encode()


def _moved(path: str, named: Any, location: str) -> str:
    """The place that `named` has within the checkpoint, below `location`."""
    operator = path.rpartition("/_metadata/")[0]
    _, found, within = str(named).rpartition(f"/{operator}/")
    wrong = objection(within) if found else f"is not below {operator}"
    if wrong is not None:
        raise ValueError(f"the path {shown(named)} {wrong}")
    return f"{location.rstrip('/')}/{operator}/{within}"
