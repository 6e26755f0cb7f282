"""Where FileSink writes and KafkaSink stages: a directory of this machine, a share of all hosts, an object store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from recovery.base.addresses import incomplete, looks_like_address
from recovery.places.address import SHARE, file_system
from recovery.sinks.disk import Disk


class OutputPlace(NamedTuple):
    """An output directory: its path on a disk. shared: whether tasks on other hosts reach it."""

    disk: Disk
    path: Path
    shared: bool
    is_local: bool
    address: str


def place_of(text: str, what: str = "FileSink") -> OutputPlace:
    """Return the place that a user's text names. what: what it is for, for errors. Raises ConfigurationError."""
    found = file_system(text, what)
    if found is None:
        if not text or looks_like_address(text) or "://" in text:
            raise incomplete(
                text, what, "Give a path, ./ before one with a colon, or a whole address: s3a://bucket/out."
            )
        return OutputPlace(Disk(), Path(text).absolute(), shared=False, is_local=True, address=text)
    system, path = found
    if system == SHARE:
        return OutputPlace(Disk(), Path(path), shared=True, is_local=True, address=text)
    # These import PySpark, which a local place does not need.
    from recovery.places.hadoop import HadoopFiles
    from recovery.sinks.hadoop_disk import HadoopDisk

    disk = HadoopDisk(HadoopFiles(system), system)
    return OutputPlace(disk, Path(path), shared=True, is_local=False, address=system + path)
