"""Inputs that others own: what arrives, what a micro-batch reads of it as Spark would, and what others do to it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recovery.spark.clusters import Input
from recovery.spark.inputs import kafka
from recovery.spark.inputs.files import FilesInput
from recovery.spark.inputs.protocol import Resumes, StreamInput
from recovery.spark.jvm.kafka_offsets import Topic

Record = tuple[str, int]
AT_ONCE = 2
"""How many files, or records of a topic, a micro-batch reads."""


@dataclass(frozen=True)
class Read:
    """What a micro-batch reads: its records, the offset after it, and what the source logs beside that, by the name of
    the log below `sources/0/`."""

    records: list[Record]
    offset: str
    logs: dict[str, str]


class FilesSource:
    """A directory of files that Spark's file source reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def grow(self, records: Iterable[Record]) -> None:
        """New records arrive, together."""
        rows = list(records)
        (self.path / f"{rows[0][1]:06}.csv").write_text(_lines(rows))

    def parts(self) -> dict[str, list[Record]]:
        """Everything that can be read now, by what a run reads once."""
        return {path.name: _records(path) for path in sorted(self.path.iterdir())}

    def next(self, checkpoint: Path, batch: int) -> Read | None:
        """What micro-batch `batch` reads, None if there is nothing."""
        new = self._unread(checkpoint)[:AT_ONCE]
        if not new:
            return None
        lines = [
            json.dumps({"path": _uri(path), "timestamp": path.stat().st_mtime_ns // 1_000_000, "batchId": batch})
            for path in new
        ]
        records = [record for path in new for record in _records(path)]
        return Read(records, f'{{"logOffset":{batch}}}', {str(batch): "\n".join(["v1", *lines])})

    def _unread(self, checkpoint: Path) -> list[Path]:
        read = {
            json.loads(line)["path"]
            for entry in checkpoint.glob("sources/0/*")
            for line in entry.read_text().splitlines()[1:]
        }
        return sorted(path for path in self.path.iterdir() if _uri(path) not in read)

    def input(self, resumes: Resumes) -> StreamInput:
        """What the package looks at before a run."""
        return FilesInput(Input("text", {"path": str(self.path)}), resumes)

    def changes(self, read: Iterable[str], new: Callable[[], Record]) -> Mapping[str, Callable[[], object]]:
        """What others may do to what was read, by its name. new: makes a record that was never there before."""
        found: dict[str, Callable[[], object]] = {}
        for number, name in enumerate([*sorted(read)][-3:]):
            path = self.path / name
            if path.exists():
                found[f"file {number} removed"] = path.unlink
                found[f"file {number} rewritten"] = lambda path=path: path.write_text(_lines([new()]))
                found[f"file {number} emptied"] = lambda path=path: path.write_text("")
        return found


class TopicSource:
    """A topic of one partition, in a file: its id, the first offset that is left, and all records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._write("first", 0, [])

    def grow(self, records: Iterable[Record]) -> None:
        """As in FilesSource."""
        identity, first, held = self._read()
        self._write(identity, first, [*held, *records])

    def parts(self) -> dict[str, list[Record]]:
        """As in FilesSource."""
        identity, first, held = self._read()
        return {f"{identity} {n}": [held[n]] for n in range(first, len(held))}

    def next(self, checkpoint: Path, batch: int) -> Read | None:
        """As in FilesSource."""
        _, first, held = self._read()
        at = self.at(checkpoint)
        begin = first if at is None else json.loads(at)["orders"]["0"]
        end = min(len(held), begin + AT_ONCE)
        return None if begin >= end else Read(held[begin:end], f'{{"orders":{{"0":{end}}}}}', {})

    @staticmethod
    def at(checkpoint: Path) -> str | None:
        """The offset of a checkpoint, None if it has none."""
        logs = sorted((checkpoint / "offsets").glob("*"), key=lambda path: int(path.name))
        return logs[-1].read_text().splitlines()[-1] if logs else None

    def input(self, resumes: Resumes) -> StreamInput:
        """As in FilesSource."""
        kafka.topics_at = self._topics
        return kafka.KafkaInput(Input("kafka", {"subscribe": "orders"}), resumes, None)

    def _topics(self, *_: object) -> dict[str, Topic]:
        identity, first, held = self._read()
        return {"orders": Topic(identity, {0: (first, len(held))})} if identity else {}

    def changes(self, read: Iterable[str], new: Callable[[], Record]) -> Mapping[str, Callable[[], object]]:
        """As in FilesSource."""
        identity, first, held = self._read()
        count = len(list(read))
        return {
            "trimmed a little": lambda: self._write(identity, max(first, count // 2), held),
            "trimmed to what was read": lambda: self._write(identity, count, held),
            "trimmed": lambda: self._write(identity, len(held), held),
            "made again": lambda: self._write(f"{identity}'", 0, [new() for _ in held]),
            "removed": lambda: self._write("", 0, []),
        }

    def _read(self) -> tuple[str, int, list[Record]]:
        identity, first, held = json.loads((self.path / "topic.json").read_text())
        return identity, first, [(key, n) for key, n in held]

    def _write(self, *topic: Any) -> None:
        (self.path / "topic.json").write_text(json.dumps(topic))


def _uri(path: Path) -> str:
    return f"file://{quote(os.fspath(path))}"


def _lines(records: Iterable[Record]) -> str:
    return "".join(f"{key},{n}\n" for key, n in records)


def _records(path: Path) -> list[Record]:
    return [(key, int(n)) for key, n in (line.split(",") for line in path.read_text().split())]
