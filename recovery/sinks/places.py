"""Where FileSink writes: a directory of this machine, a share that all hosts have mounted, or another file system."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from recovery.base.addresses import looks_like_address
from recovery.errors import ConfigurationError
from recovery.sinks.disk import Disk

_SHARE = "file://"
_ADDRESS = re.compile(r"(?P<system>[A-Za-z][A-Za-z0-9+.-]+://(?P<authority>[^/?#]*))(?P<path>[^?#]*)")


class Place(NamedTuple):
    """An output directory: its path on a disk. shared: whether tasks on other hosts reach it."""

    disk: Disk
    path: Path
    shared: bool
    is_local: bool
    address: str


def place_of(text: str) -> Place:
    """Return the place that a user's text names. Raises ConfigurationError."""
    if text.lower().startswith(_SHARE):
        path = text[len(_SHARE) :]
        if not path.startswith("/") or path.strip("/") == "":
            raise _refused(text, "Write file:///mnt/share/out, with three slashes, for a share that all hosts have.")
        return Place(Disk(), Path(path), shared=True, is_local=True, address=text)
    found = _ADDRESS.fullmatch(text)
    if found is not None:
        authority, path = found["authority"], "/" + found["path"].strip("/")
        user, at, _ = authority.rpartition("@")
        if at and ":" in user:
            # Show no more of it: it contains a password.
            raise ConfigurationError(
                "FileSink: the address contains a password",
                cause="Addresses are written to logs and to the recovery partitions.",
                remedy="Give credentials as settings of Spark, such as spark.hadoop.fs.s3a.access.key in a "
                "--properties-file.",
            )
        if not authority and found["system"].lower().split(":")[0] != "hdfs":
            raise _refused(text, "Name the bucket or host: s3a://bucket/out.")
        # These import PySpark, which a local place does not need.
        from recovery.hadoop.files import HadoopFiles
        from recovery.sinks.hadoop_disk import HadoopDisk

        disk = HadoopDisk(HadoopFiles(found["system"]), found["system"])
        return Place(disk, Path(path), shared=True, is_local=False, address=found["system"] + path)
    if not text or looks_like_address(text) or "://" in text:
        raise _refused(text, "Give a path, ./ before one with a colon, or a whole address: s3a://bucket/out.")
    return Place(Disk(), Path(text).absolute(), shared=False, is_local=True, address=text)


def _refused(text: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"FileSink: {text!r:.200} is neither a directory of this machine nor a whole address", remedy=remedy
    )
