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

SHARE = "file://"
"""The file system of a share that all hosts have mounted under the same path."""
_FILE_SYSTEM = re.compile(r"(?P<system>(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<authority>[^/?#]*))(?P<path>[^?#]*)")
_HOST_AND_PORT = re.compile(r"(?P<host>[\w.-]*|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})", re.ASCII)


def looks_like_address(path: str | os.PathLike[str]) -> bool:
    """Whether a text begins like an address: `s3:/x`, `s3://x`, `file:/x`, `s3//x`, `host:/x`."""
    text = os.fspath(path)
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None


def local_path(path: str | os.PathLike[str], what: str = "a directory of this machine") -> Path:
    """Return the path that a user means. Raises ConfigurationError if it looks like an address."""
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


def file_system(text: str, what: str) -> tuple[str, str] | None:
    """Return the file system and the path of a complete address, such as `s3a://bucket` and `/out`; None for any other
    text. what: names it in an error. Raises ConfigurationError for an address with a password, or without a place."""
    if text.lower().startswith(SHARE):
        path = text[len(SHARE) :]
        if not path.startswith("/") or path.strip("/") == "":
            raise incomplete(text, what, "Write file:///mnt/share/out, with three slashes, for a share of all hosts.")
        return SHARE, path
    found = _FILE_SYSTEM.fullmatch(text)
    if found is None:
        return None
    authority, path = found["authority"], "/" + found["path"].strip("/")
    user, at, _ = authority.rpartition("@")
    if at and ":" in user:
        # Show no more of it: it contains a password.
        raise ConfigurationError(
            f"{what}: the address contains a password",
            cause="Addresses are written to logs and to the recovery partitions.",
            remedy="Give credentials as settings of Spark, such as spark.hadoop.fs.s3a.access.key in a "
            "--properties-file.",
        )
    if not authority and found["scheme"].lower() != "hdfs":
        raise incomplete(text, what, "Name the bucket or host: s3a://bucket/out.")
    return found["system"], path


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


def has_backups(directory: Path) -> bool:
    """Return whether a directory is a place of backups."""
    return (directory / "manifests").is_dir()
