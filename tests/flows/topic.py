"""A flow on a source that starts at the end of what is there: the words of a file, collected by the file's name."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from recovery import Flow, stateful


class Topic(DataSource):
    """The words of a file; a stream starts with those that come after its start."""

    @classmethod
    def name(cls):
        return "topic"

    def schema(self):
        return "value string"

    def streamReader(self, schema):  # noqa: N802
        return Reader(self.options["path"])


class SimpleTopic(Topic):
    """The same by the simple form of reader."""

    @classmethod
    def name(cls):
        return "simple_topic"

    def streamReader(self, schema):  # noqa: N802
        return super(Topic, self).streamReader(schema)

    def simpleStreamReader(self, schema):  # noqa: N802
        return SimpleReader(self.options["path"])


def words(path: str, first: int = 0, last: int | None = None) -> list[str]:
    return Path(path).read_text().split()[first:last]


class Reader(DataSourceStreamReader):
    def __init__(self, path):
        self.path = path

    def initialOffset(self):  # noqa: N802
        return {"n": len(words(self.path))}

    def latestOffset(self):  # noqa: N802
        return {"n": len(words(self.path))}

    def partitions(self, start, end):
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition):
        return iter([(word,) for word in words(self.path, *partition.value)])


class SimpleReader(SimpleDataSourceStreamReader):
    def __init__(self, path):
        self.path = path

    def initialOffset(self):  # noqa: N802
        return {"n": len(words(self.path))}

    def read(self, start):
        found = words(self.path, start["n"])
        return iter([(word,) for word in found]), {"n": start["n"] + len(found)}

    def readBetweenOffsets(self, start, end):  # noqa: N802
        return iter([(word,) for word in words(self.path, start["n"], end["n"])])


def collect(key, rows, state):
    """All words of a key, in their order."""
    found = sorted([*(state.get if state.exists else []), *(row.value for row in rows)])
    state.update(found)
    yield key, ",".join(found)


def topic(spark, path: Path, form: str = "topic"):
    """The stream of a topic; its key is the topic's name."""
    spark.dataSource.register(Topic)
    spark.dataSource.register(SimpleTopic)
    return spark.readStream.format(form).load(str(path)).selectExpr(f"'{path.name}' AS key", "value")


def step(frame):
    return frame.transform(stateful("words", key="key", update=collect, output="key string, words string"))


def append(path: Path, *more: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{word} " for word in more))


def make(path, last=None):
    """The sink adds a word to the input after each micro-batch, until there are so many."""

    def grow(batch, batch_id):
        batch.count()
        count = len(words(path))
        if last is not None and count < last:
            append(Path(path), f"w{count}")

    return Flow("topic", lambda spark: step(topic(spark, Path(path))), sink=grow)
