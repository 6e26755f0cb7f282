"""The options of the `appended` format, checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from recovery.appended.files import absolute
from recovery.errors import ConfigurationError
from recovery.places.address import split_uri

COLUMNS = {"value": "string", "file": "string", "offset": "bigint"}
"""The columns of the source and their Spark types, in the order they have by default."""

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+)\s*([bkmgt]?)(?:i?b)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Options:
    """What to read and how. Sizes are bytes; None: no limit, or for partition_bytes a size chosen by the batch.
    shared_files: all hosts of a cluster see the files under the same path."""

    path: str
    max_bytes_per_trigger: int | None = None
    partition_bytes: int | None = None
    last_line: Literal["hold", "take"] = "hold"
    encoding_errors: Literal["replace", "fail"] = "replace"
    on_rewrite: Literal["fail", "restart"] = "fail"
    on_missing: Literal["fail", "ignore"] = "fail"
    shared_files: Literal["false", "true"] = "false"


_CHOICES = {
    "lastLine": ("hold", "take"),
    "encodingErrors": ("replace", "fail"),
    "onRewrite": ("fail", "restart"),
    "onMissing": ("fail", "ignore"),
    "sharedFiles": ("false", "true"),
}
_SIZES = ("maxBytesPerTrigger", "partitionBytes")
_KNOWN = {name.lower(): name for name in ("path", *_SIZES, *_CHOICES)}


def parse_options(given: Mapping[str, str]) -> Options:
    """Parse the options of a reader from Spark's strings; names are case-insensitive.

    Raises ConfigurationError for a missing path, an unknown name or an invalid value.
    """
    named: dict[str, str] = {}
    for key, value in given.items():
        name = _KNOWN.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), _KNOWN, n=1)
            raise ConfigurationError(
                f"The appended format has no option {key!r}.",
                cause="A misspelt name." if near else "",
                remedy=f"Did you mean {_KNOWN[near[0]]}? " * bool(near)
                + f"The options are: {', '.join(_KNOWN.values())}.",
            )
        named[name] = value
    choices = {name: _choice(name, named.get(name, allowed[0])) for name, allowed in _CHOICES.items()}
    sizes = {name: parse_size(name, named[name]) if name in named else None for name in _SIZES}
    return Options(
        path=_local_path(named.get("path", "")),
        max_bytes_per_trigger=sizes["maxBytesPerTrigger"],
        partition_bytes=sizes["partitionBytes"],
        last_line=cast("Literal['hold', 'take']", choices["lastLine"]),
        encoding_errors=cast("Literal['replace', 'fail']", choices["encodingErrors"]),
        on_rewrite=cast("Literal['fail', 'restart']", choices["onRewrite"]),
        on_missing=cast("Literal['fail', 'ignore']", choices["onMissing"]),
        shared_files=cast("Literal['false', 'true']", choices["sharedFiles"]),
    )


def parse_size(name: str, text: str) -> int:
    """Return the bytes of a size such as "1048576", "512k", "10m" or "1g" (powers of 1024), at least 1.

    Raises ConfigurationError.
    """
    match = _SIZE.fullmatch(text)
    size_bytes = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if size_bytes < 1:
        raise ConfigurationError(
            f"The option {name} is {text!r}, which is not a size.",
            cause="",
            remedy="Give a positive number of bytes, such as 1048576, 512k, 10m or 1g.",
        )
    return size_bytes


def _choice(name: str, text: str) -> str:
    value = text.strip().lower()
    if value not in _CHOICES[name]:
        raise ConfigurationError(
            f"The option {name} is {text!r}.", cause="", remedy=f"Give one of: {', '.join(_CHOICES[name])}."
        )
    return value


def _local_path(text: str) -> str:
    """Return the absolute local path of a path or a file: URI."""
    if not text.strip():
        raise ConfigurationError(
            "The appended format needs a path.",
            cause="",
            remedy='Name a file, a directory or a glob: .option("path", "logs/") or .load("logs/").',
        )
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if scheme is None:
        return absolute(text)
    if scheme[1].lower() != "file":
        raise ConfigurationError(
            f"The path {text!r} is not local.",
            cause="",
            remedy="The appended format reads files that this machine's file system shows.",
        )
    return absolute(split_uri(text)[1])
