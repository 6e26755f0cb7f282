"""The part of `format("recovery")` for the state of Spark's own operators: ask the driver, and read files.

This part runs in Spark's planner and tasks. `recovery.spark.sources.driver_relay` answers, and explains this design.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from recovery.base.addresses import local_path
from recovery.errors import ConfigurationError, StateValueError, error_named
from recovery.host.identity import host_name, this_host
from recovery.operators.choose import WantedState
from recovery.places.address import is_uri
from recovery.places.opening import is_place


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """The driver's socket, and the number of one of its sessions. cluster: whether tasks of the session may run on
    other hosts."""

    path: str
    session: int
    cluster: bool = False


@dataclass(frozen=True, slots=True)
class OperatorFrame:
    """A frame that the driver has made as of one moment: its number there, and its types."""

    address: DriverAddress
    number: int
    schema: StructType


@dataclass
class FilePartition(InputPartition):
    """The rows of one file; path None: no rows. host: whose file it is."""

    host: str
    path: str | None


def operator_frame(options: Mapping[str, str], address: DriverAddress | None) -> OperatorFrame:
    """Ask the driver to make the frame for the options. Raises ConfigurationError and the errors of `native_state`."""
    address = known(address, "or use recovery.native_state(spark, …)")
    if not options.get("path"):
        raise ConfigurationError(
            'format("recovery") needs the option path',
            cause="",
            remedy='spark.read.format("recovery").option("operator", 0).load("db/")',
        )
    operator = number_of(options, "operator")
    assert operator is not None
    wanted = WantedState(operator, options.get("store"), options.get("variable"), _flag(options, "timers"))
    question = {
        "session": address.session,
        "path": str(directory_of(options["path"], address)),
        "epoch": number_of(options, "epoch"),
        "since": number_of(options, "sinceepoch"),
        "wanted": asdict(wanted),
    }
    answer = ask(address, {"schema": question})
    return OperatorFrame(address, answer["frame"], StructType.fromJson(json.loads(answer["schema"])))


def known(address: DriverAddress | None, otherwise: str) -> DriverAddress:
    """Return the driver's address. Raises ConfigurationError if the source does not know the option; otherwise: what to
    do instead of registering it."""
    if address is None:
        raise ConfigurationError(
            'format("recovery") does not know the session that it is used in',
            cause="Spark found the format by its name: nobody registered it in this session.",
            remedy=f"Call recovery.register(spark) first; {otherwise}.",
        )
    return address


def directory_of(path: str, address: DriverAddress | None) -> Path:
    """Return the directory that an option names. Of a place of backups, the driver restores the newest one first.
    Raises ConfigurationError, and what the restore raises."""
    if not is_place(path):
        return local_path(path).absolute()
    place = path if is_uri(path) else str(Path(path).absolute())
    address = known(address, "or restore the backup: recovery restore SRC DIR")
    return Path(ask(address, {"place": place})["path"])


def ask(address: DriverAddress, question: dict[str, Any]) -> dict[str, Any]:
    """Return the driver's answer to a question. Raises the RecoveryError that the driver answers with, or
    ConfigurationError if it cannot be reached."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address.path)
            connection.sendall(json.dumps(question).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer: dict[str, Any] = json.loads(lines.readline())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            'format("recovery") cannot reach the Python process that registered it',
            cause="The Spark session of the frame was stopped, or the process of that session has ended.",
            remedy="Register it in a session that is alive: recovery.register(spark).",
        ) from error
    if "error" in answer:
        refused = answer["error"]
        kind = error_named(refused["error"]) or StateValueError
        raise kind(refused["found"], path=refused["path"], cause=refused["cause"], remedy=refused["remedy"])
    return answer


class OperatorReader(DataSourceReader):
    """Asks the driver to compute the frame during planning, and reads the resulting files."""

    def __init__(self, frame: OperatorFrame, schema: StructType) -> None:
        if schema.simpleString() != frame.schema.simpleString():
            raise ConfigurationError(
                "the schema that was given is not that of the state",
                cause=f"The state has the schema {frame.schema.simpleString()}.",
                remedy="Leave the schema out.",
            )
        self._frame = frame

    def partitions(self) -> list[FilePartition]:
        paths = ask(self._frame.address, {"files": self._frame.number})["files"]
        return [FilePartition(this_host(), path) for path in paths or [None]]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        assert isinstance(partition, FilePartition)
        check_is_here(partition.host)
        if partition.path is not None:
            with pyarrow.memory_map(partition.path) as file, pyarrow.ipc.open_stream(file) as stream:
                yield from stream


def check_is_here(host: str) -> None:
    """Raise ConfigurationError if a task reads files of a host, as `this_host` names it, on another host: a file of the
    same name there would belong to another directory."""
    if host != this_host():
        raise ConfigurationError(
            f'format("recovery") reads files of host {host.partition(" ")[0]}, and a task of it runs on {host_name()}',
            cause="The session's master is a cluster, whose executors do not have those files, and the format was not "
            "registered in the session: then they are sent through the driver's host.",
            remedy='Call recovery.register(spark) before spark.read.format("recovery").',
        )


def number_of(options: Mapping[str, str], name: str) -> int | None:
    """Return an option as a number; None if it is not given. Raises ConfigurationError."""
    text = options.get(name)
    if text is None:
        return None
    if not text.isdecimal():
        what, remedy = ("operator", "Operators are numbered 0, 1, 2 …") if name == "operator" else (
            "epoch", "Epochs are numbered 1, 2, 3 …"
        )  # fmt: skip
        raise ConfigurationError(f"option {name}={text!r} is no {what}", remedy=remedy)
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise ConfigurationError(f"option {name}={text!r} is neither true nor false", remedy="")
    return text == "true"
