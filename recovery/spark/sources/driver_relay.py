"""The driver's side of a Python data source: answer its questions in the session where it is used.

Spark plans a Python source in a process beside the driver, without a session. With the address and the token of the
driver's JVM the source could do anything, and it would have to reimplement `native_state` in calls of the JVM. So the
source asks the process that registered it, over a socket that only this user can open, and `native_state` itself
answers:

1. `schema`: the driver makes the frame of native state, keeps it under a number, and returns its types.
2. `files`: the driver computes the frame, once. The frame's tasks write its rows as Arrow, which has all of Spark's
   types. The source's own tasks read these files.
3. `rows`, on a cluster: the driver starts a process that sends the rows of a directory's steps to tasks on other hosts,
   and returns its address and key. That process runs until the driver ends, or another Spark context is used.
4. `place`: the driver restores the newest backup at a place of backups, once, and returns the directory of the copy.

The files are in the temporary directory of Spark's driver, which Spark removes when its JVM ends. The socket is in a
directory that only this process uses.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql import DataFrame, SparkSession

from recovery.base.credentials.task_key import task_key
from recovery.base.ids import ExecutionNumber, Lease
from recovery.errors import RecoveryError, StateValueError
from recovery.host import private
from recovery.host.durable import PRIVATE
from recovery.host.peers import of_trusted_user
from recovery.operators.choose import WantedState
from recovery.owner.process import OwnerProcess
from recovery.spark.clusters import TaskServing, is_cluster
from recovery.spark.jvm.session import settings_in
from recovery.spark.jvm.versions import as_type, to_arrow_schema
from recovery.spark.sources.operator_source import DriverAddress
from recovery.spark.sources.operator_state import first_line, state_frame
from recovery.spark.sources.restored_places import RestoredPlaces
from recovery.storage.snapshot import snapshots_at


@dataclass(slots=True)
class _Kept:
    """A requested frame. files: None until the frame is computed."""

    frame: DataFrame
    files: list[str] | None = None
    computing: threading.Lock = field(default_factory=threading.Lock)


class Relay:
    """A server, on threads of its own, that answers for the sessions of one Spark context."""

    def __init__(self, spark: SparkSession, sockets: Path) -> None:
        """sockets: a directory that only this user can access, with a path short enough for sockets."""
        self.context = spark.sparkContext
        self.serving = TaskServing()
        self._readers: dict[tuple[Path, ...], tuple[OwnerProcess, str]] = {}
        self._home = Path(tempfile.mkdtemp(prefix="recovery-", dir=self.context._temp_dir))
        self._places = RestoredPlaces(self._home, self._end_readers)
        self._sessions: list[SparkSession] = []
        self._frames: dict[object, int] = {}
        self._kept: list[_Kept] = []
        self._lock = threading.Lock()
        self._path = sockets / f"driver-{secrets.token_hex(4)}"
        self._server = _server(self._path, self._answer)

    def address(self, spark: SparkSession) -> DriverAddress:
        """Return the address of this relay for sources that are registered in a session."""
        with self._lock:
            found = (
                number
                for number, known in enumerate(self._sessions)
                if known is spark or known._jsparkSession.equals(spark._jsparkSession)
            )
            number = next(found, len(self._sessions))
            if number == len(self._sessions):
                self._sessions.append(spark)
        return DriverAddress(str(self._path), number, is_cluster(self.context.master))

    def close(self) -> None:
        """Stop answering, remove the socket and copies, and end the processes; called once Spark was stopped."""
        self._places.close()
        for owner, _ in self._readers.values():
            owner.stop()
        self._server.shutdown()
        self._server.server_close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            if "rows" in asked:
                return self._rows(**asked["rows"])
            if "place" in asked:
                return {"path": str(self._places.restored(asked["place"]))}
            return self._files(asked["files"]) if "files" in asked else self._schema(**asked["schema"])
        except RecoveryError as error:
            return {"error": error.as_json()}
        except Exception as error:
            return {"error": StateValueError(f"Spark cannot read this state: {first_line(error)}").as_json()}

    def _schema(
        self, session: int, path: str, epoch: int | None, since: int | None, wanted: dict[str, Any]
    ) -> dict[str, Any]:
        state, directory = WantedState(**wanted), Path(path)
        now, before = snapshots_at(directory, epoch, since)
        key = (session, os.path.realpath(directory), now.cut, before and before.cut, state)
        with self._lock:
            if key not in self._frames:
                self._kept.append(_Kept(state_frame(self._sessions[session], directory, now, before, state)))
                self._frames[key] = len(self._kept) - 1
            number = self._frames[key]
        return {"frame": number, "schema": self._kept[number].frame.schema.json()}

    def _files(self, number: int) -> dict[str, Any]:
        kept = self._kept[number]
        with kept.computing:
            if kept.files is None:
                target = self._home / str(number)
                target.mkdir(PRIVATE.directory, exist_ok=True)
                written = kept.frame.mapInArrow(_writer(target, kept.frame), "path string").collect()
                kept.files = [row.path for row in written]
            return {"files": kept.files}

    def _rows(self, path: str, epoch: int | None, since: int | None) -> dict[str, Any]:
        now, before = snapshots_at(Path(path), epoch, since)
        with self._lock:
            # Copies of partitions at owners are removed when they were read.
            for paths in [paths for paths in self._readers if not paths[0].exists()]:
                self._readers.pop(paths)[0].stop()
            if now.paths not in self._readers:
                # No execution: only this process's tasks have the key and this id.
                lease = Lease(ExecutionNumber(0), secrets.token_hex(8))
                make = partial(OwnerProcess, "", self._home, task_key(), lease, len(now.paths), reads=now.paths)
                self._readers[now.paths] = self.serving.start(settings_in(self.context), make)
            address = self._readers[now.paths][1]
        return {
            "address": address,
            "task_key": task_key().hex(),
            "cut": now.cut,
            "since": before and before.cut,
            "partitions": len(now.paths),
        }

    def _end_readers(self, directory: Path) -> None:
        """End the process that sends the rows of a directory."""
        with self._lock:
            gone = [paths for paths in self._readers if paths[0].is_relative_to(directory)]
            owners = [self._readers.pop(paths)[0] for paths in gone]
        for owner in owners:
            owner.stop()


QUESTION_S = 30.0
"""How long a process that asks may take to send its question, and to take the answer."""
_relay: Relay | None = None
_relay_lock = threading.Lock()


def address_for(spark: SparkSession, serving: TaskServing | None = None) -> DriverAddress | None:
    """Return the driver's address for a source that is registered in this session; None if no socket can be made.
    serving: how tasks of a cluster reach the driver's host; None: as before, or by default."""
    global _relay
    sockets = private.sockets() if hasattr(socket, "AF_UNIX") else None
    if sockets is None:
        return None
    with _relay_lock:
        if _relay is None or _relay.context is not spark.sparkContext:
            if _relay is not None:
                _relay.close()
            _relay = Relay(spark, sockets)
        if serving is not None:
            _relay.serving = serving
        return _relay.address(spark)


def _server(path: Path, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> socketserver.ThreadingUnixStreamServer:
    class Handler(socketserver.StreamRequestHandler):
        timeout = QUESTION_S

        def handle(self) -> None:
            # Spark may end the asking process at any time.
            with contextlib.suppress(OSError, ValueError):
                self.wfile.write(json.dumps(answer(json.loads(self.rfile.readline()))).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        def verify_request(self, request: Any, client_address: Any) -> bool:
            return of_trusted_user(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore the error: the asking process has ended, or reports that the serving process had no thread to
            answer."""

    server = Server(str(path), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="recovery-relay", daemon=True).start()
    return server


def _writer(target: Path, frame: DataFrame) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """Return a function for tasks that writes a partition's rows to a file, in the form that a data source must yield,
    and returns its path. A task that runs again writes another file; only the returned path counts."""
    schema = to_arrow_schema(frame.schema, "UTC")

    def write(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return
        path = str(target / secrets.token_hex(8))
        with pyarrow.OSFile(path, "wb") as file, pyarrow.ipc.new_stream(file, schema) as stream:
            for batch in chain((first,), batches):
                columns = [as_type(column, each.type) for column, each in zip(batch.columns, schema, strict=True)]
                stream.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))
        yield pyarrow.RecordBatch.from_pydict({"path": [path]})

    return write
