"""Databases of every kind that UpsertSink is tested with; topics of Kafka."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka import Kafka
from tests.sinks import postgresql, tables, topics

_numbers = itertools.count(1)


class Real:
    """A database of a module, in a file."""

    def __init__(self, module: str, path: Path) -> None:
        self._connect, self._path = pytest.importorskip(module).connect, str(path)

    def connect(self):
        return self._connect(self._path)

    def execute(self, *statements: str) -> list[tuple]:
        with contextlib.closing(self.connect()) as connection:
            for statement in statements:
                found = connection.execute(statement).fetchall()
            connection.commit()
        return found


@pytest.fixture(autouse=True)
def files_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pyarrow write the files of tables in place of Spark."""
    monkeypatch.setattr("recovery.sinks.tables.sink.write_files", tables.write_files)


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.Server]:
    """The PostgreSQL server of all tests that leave it running."""
    with postgresql.running() as started:
        yield started


@pytest.fixture
def real(request, tmp_path):
    """A function that makes an empty database of a module."""

    def make(module: str) -> Any:
        if module in postgresql.MODULES:
            return request.getfixturevalue("server").database(module)
        return Real(module, tmp_path / "db")

    return make


@pytest.fixture(autouse=True)
def rows_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pyarrow write the staged rows of a KafkaSink in place of Spark, in forks too."""
    monkeypatch.setattr("recovery.sinks.kafka.sink.write_records", topics.write_records)


@pytest.fixture
def topic(kafka: Kafka) -> Callable[..., str]:
    """A function that makes topics of names that no other test has."""
    return lambda partitions=2, **settings: kafka.create(f"topic-{next(_numbers)}", partitions, **settings)


@pytest.fixture
def target(kafka, topic, tmp_path) -> topics.TopicTarget:
    return topics.TopicTarget(kafka, tmp_path / "staged", topic())
