"""Moving a checkpoint to another location.

Only one kind of file in a checkpoint names the checkpoint's own location: `transformWithState` notes its schemas with
absolute paths, in `state/<operator>/_metadata/v2/<batch>`. Everything else is relative.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from recovery.base.untrusted_paths import objection
from recovery.errors import SparkCheckpointError, shown

_METADATA = re.compile(r"state/\d+/_metadata/v2/\d+")


def names_location(path: str) -> bool:
    """Return whether a file of a checkpoint may name the checkpoint's own location."""
    return _METADATA.fullmatch(path) is not None


def relocated(path: str, content: bytes, location: str) -> bytes:
    """Return the content of such a file for a checkpoint at `location`, a URI. Raises SparkCheckpointError when the
    content's form is not the one that Spark 4.3 writes."""
    try:
        version, text = content.decode().split("\n", 1)
        described = msgspec.json.decode(text)
        for store in described["stateStoreInfo"]:
            paths = store.get("stateSchemaFilePaths")
            if paths is not None:
                store["stateSchemaFilePaths"] = [_moved(path, each, location) for each in paths]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SparkCheckpointError(f"it is not in the form that Spark writes: {error}", path=path) from error
    return f"{version}\n{msgspec.json.encode(described).decode()}".encode()


def _moved(path: str, named: Any, location: str) -> str:
    """Return the path `named`, moved below `location`. Raises ValueError when the path is not in the checkpoint."""
    operator = path.rpartition("/_metadata/")[0]
    _, found, within = str(named).rpartition(f"/{operator}/")
    wrong = objection(within) if found else f"is not below {operator}"
    if wrong is not None:
        raise ValueError(f"the path {shown(named)} {wrong}")
    return f"{location.rstrip('/')}/{operator}/{within}"
