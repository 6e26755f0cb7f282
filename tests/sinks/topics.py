"""A topic of a real broker as the target of a KafkaSink that runs without Spark, with a reader of another library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from recovery.hadoop.reports import REPORTS
from recovery.sinks.kafka.sink import KafkaSink
from tests.kafka import Kafka

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

    def order(self) -> dict[str, list[int]]:
        """The numbers of each key, in the order in which a reader gets them."""
        found: dict[str, list[int]] = {}
        for each in self.kafka.committed(self.topic):
            found.setdefault(each.key.decode(), []).append(int(each.value))
        return found
