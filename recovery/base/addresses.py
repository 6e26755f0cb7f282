"""Paths from users: text that looks like an address is not taken for a directory of this machine.

Otherwise `s3:/bucket/path`, with one slash, would create a directory `s3:`, and every command would report success.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from recovery.errors import ConfigurationError

_KNOWN = (
    "s3|s3a|s3n|gs|gcs|azure|az|abfs|abfss|adl|wasb|wasbs|file|hdfs|webhdfs|viewfs|dbfs|oss|https?|ftps?|sftp|ssh|rsync"
)
# At least two letters, so that Windows drives do not match. An unknown scheme needs a slash or nothing after it.
_ADDRESS = re.compile(rf"(?:(?P<known>{_KNOWN})(?::|//).*|(?P<other>[a-z][a-z0-9+.-]+):(?:[/\\].*)?)", re.DOTALL | re.I)

_HOST_AND_PORT = re.compile(r"(?P<host>[\w.-]*|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})", re.ASCII)


_DIRECTORY_NAME = re.compile(r"(?!\.{1,2}$)[\w.-]{1,64}", re.ASCII)


def looks_like_address(path: str | os.PathLike[str]) -> bool:
    """Whether a text begins like an address: `s3:/x`, `s3://x`, `file:/x`, `s3//x`, `host:/x`."""
    text = os.fspath(path)
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


def local_path(path: str | os.PathLike[str], what: str = "a directory of this machine") -> Path:
    """Return the path that a user means. Raises ConfigurationError if the text looks like an address."""
    text = os.fspath(path)
    match = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return Path(path)
    scheme = match["known"] or match["other"]
    # Show no more of it: it may contain credentials.
    raise ConfigurationError(
        f"{scheme}:… looks like an address, and is not a path",
        cause=f"Addresses are written {scheme}://…; this needs {what}, or a complete address.",
        remedy=f"Give a path; where an address can be given, write {scheme}://…. A path of this name is ./{scheme}:…",
    )


def incomplete(text: str, what: str, remedy: str) -> ConfigurationError:
    """Return the error for a text that is neither a path nor a complete address."""
    return ConfigurationError(
        f"{what}: {text!r:.200} is neither a directory of this machine nor a whole address", remedy=remedy
    )


def is_cut_off(text: str) -> bool:
    """Whether a bucket's address has only one slash. In other addresses one slash means a file system without a
    host."""
    scheme, _, rest = text.partition(":")
    return not rest.startswith("//") and scheme.lower() not in ("file", "hdfs", "webhdfs", "viewfs")


def host_and_port(text: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or ":PORT", where the host is empty. An IPv6 address is in brackets. Raises
    ConfigurationError."""
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ConfigurationError(
            f"{text!r:.80} is no address to listen at",
            cause="The port is missing, or no number up to 65535; or an IPv6 address lacks its brackets.",
            remedy="Write HOST:PORT, or :PORT. Port 0 takes a free one.",
        )
    return match["host"], int(match["port"])


def owner_place(text: str) -> tuple[str, int, str]:
    """Return host, port and name of "HOST:PORT/NAME", where the name is that of a directory; empty without "/NAME".
    Raises ConfigurationError."""
    at, slash, name = text.partition("/")
    match = _HOST_AND_PORT.fullmatch(at)
    if match is None or not match["host"] or int(match["port"]) > 65535 or (slash and not is_directory_name(name)):
        raise ConfigurationError(
            f"{text!r:.120} is no address of an owner",
            cause="The host or the port is missing; an IPv6 address lacks its brackets; or the name of a directory has "
            "other characters than letters, digits, '.', '-' and '_'.",
            remedy="Write HOST:PORT; for an owner that serves several directories, HOST:PORT/NAME.",
        )
    return match["host"].strip("[]"), int(match["port"]), name


def is_directory_name(text: str) -> bool:
    """Whether an owner may serve a directory under this name: letters, digits, '.', '-' and '_', at most 64."""
    return _DIRECTORY_NAME.fullmatch(text) is not None


def has_backups(directory: Path) -> bool:
    """Return whether a directory is a place of backups."""
    return (directory / "manifests").is_dir()
