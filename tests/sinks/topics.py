"""A topic of a real broker as the target of a KafkaSink that runs without Spark, with a reader of another library."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from recovery.errors import RecoveryError
from recovery.hadoop.reports import REPORTS
from recovery.sinks.kafka.sink import KafkaSink
from recovery.sinks.protocol import EpochOutput
from recovery.storage.initialize import init_partitions
from tests.faults.sources import FilesSource
from tests.faults.worlds import attempt
from tests.kafka import Kafka
from tests.sinks.support import Closed, Store
from tests.sinks.tables import Batch

SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "partition": pa.int32(),
        "timestamp": pa.int64(),
        "size": pa.int32(),
    }
)


def record(key: bytes | None, value: bytes | None, **more: Any) -> dict[str, Any]:
    """A record as a task of Spark stages it."""
    return {"key": key, "value": value, "size": len(key or b"") + len(value or b""), **more}


def write_records(batch: Any, _columns: object, address: str) -> None:
    """Write rows as Spark does, in the place of `recovery.sinks.kafka.rows.write_records`. A row is a record, or a key
    with a number."""
    directory = Path(address.removeprefix("file:"))
    directory.mkdir(parents=True)
    rows = [row if isinstance(row, dict) else record(row[0].encode(), b"%d" % row[1]) for row in batch.rows]
    lines = ["v1"]
    middle = len(rows) // 2
    for number, part in enumerate([rows[:middle], rows[middle:], []]):
        path = directory / f"part-{number:05}-uuid-c000.snappy.parquet"
        pq.write_table(pa.Table.from_pylist(part, SCHEMA), path)
        lines.append(json.dumps({"path": f"file://{quote(str(path))}", "size": path.stat().st_size, "action": "add"}))
    (directory / "part-00000-failed-c000.snappy.parquet").write_bytes(b"of an attempt that failed")
    (directory / REPORTS).mkdir()
    (directory / REPORTS / "0").write_text("\n".join(lines))


class TopicTarget:
    """A topic with the directory of staged rows. options: those of the sink."""

    def __init__(self, kafka: Kafka, path: Path, topic: str, **options: Any) -> None:
        path.mkdir(exist_ok=True)
        self.kafka, self.path, self.topic, self.options = kafka, path, topic, options

    def sink(self, **options: Any) -> KafkaSink:
        """A sink of the target."""
        settings = {"servers": self.kafka.servers, "staging": self.path, "control": f"{self.topic}-markers"}
        return KafkaSink(self.topic, **{**settings, **self.options, **options})

    def shown(self) -> list[tuple[str, int]]:
        """Every record that a reader of committed records sees, sorted."""
        found = self.kafka.committed(self.topic)
        return sorted((each.key.decode(), int(each.value)) for each in found)

    def latest(self) -> dict[str, int]:
        """The last number of each key that has one."""
        found = {each.key.decode(): each.value for each in self.kafka.committed(self.topic)}
        return {key: int(value) for key, value in found.items() if value is not None}

    def marker(self) -> dict[str, Any]:
        """The newest committed marker."""
        newest: dict[str, Any] = json.loads(self.kafka.committed(f"{self.topic}-markers")[-1].value)
        return newest

    def order(self) -> dict[str, list[Any]]:
        """The numbers of each key, in the order in which a reader gets them; None: a tombstone."""
        found: dict[str, list[Any]] = {}
        for each in self.kafka.committed(self.topic):
            found.setdefault(each.key.decode(), []).append(None if each.value is None else int(each.value))
        return found


class Run:
    """One execution with a KafkaSink, in this process."""

    def __init__(self, store: Store, sink: KafkaSink, *, resume_epoch: int | None = None) -> None:
        self.store, self.sink = store, sink
        self.resume = store.begin(resume_epoch)
        self.batch = store.closed[-1].batch if store.closed else -1
        self.said: list[str] = []
        self.resume = replace(self.resume, say=self.said.append)
        sink.check(self.resume)
        sink.rollback(self.resume)

    def write(self, *rows: Any) -> None:
        """One micro-batch."""
        self.batch += 1
        self.sink.write(Batch(list(rows)), self.batch)

    def close(self, *, publish: bool = True) -> None:
        """Close the epoch of what was written."""
        output = EpochOutput(
            len(self.store.closed) + 1, self.batch, self.resume.execution, "5e1f", "flow", self.store.floor
        )
        self.store.closed.append(Closed(self.resume.execution, self.batch, self.sink.prepare(output), []))
        if publish:
            self.sink.publish(output)

    def epoch(self, *rows: Any) -> None:
        """An epoch of one micro-batch."""
        self.write(*rows)
        self.close()


class World:
    """A flow over files that produces into a topic, in processes that may be killed."""

    def __init__(self, home: Path, target: TopicTarget, partitions: int = 2) -> None:
        self.directory, self.source, self.target = home / "db", FilesSource(home / "in"), target
        self.numbers = 0
        self.wanted: list[tuple[str, int]] = []
        init_partitions(self.directory, partitions)

    def grow(self, count: int) -> None:
        """New input arrives."""
        new = [(f"k{number % 3}", number) for number in range(self.numbers, self.numbers + count)]
        self.numbers += count
        self.wanted += new
        self.source.grow(new)

    def run(self, point: str = "", visit: int = 1, **config: Any) -> RecoveryError | int:
        """Run to the end of the input, or to a crash point."""
        config = {"backup_interval": 3600, **config}
        # A fork lacks the threads of the clients that it inherits, and dies if it destroys one of them.
        gc.collect()
        gc.freeze()
        try:
            return attempt(self.directory, self.source, self.target, point=point, visit=visit, **config)
        finally:
            gc.unfreeze()

    def check(self) -> None:
        """A reader sees each record once, and those of one key in their order."""
        assert self.target.shown() == sorted(self.wanted)
        order = self.target.order()
        assert order == {key: sorted(numbers) for key, numbers in order.items()}
