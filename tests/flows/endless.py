"""A flow whose source never says what it has: its planning is somewhere in the user's code, for ever."""

from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from recovery import Flow


class EndlessReader(DataSourceStreamReader):
    def __init__(self, note):
        self._note = Path(note)

    def initialOffset(self):  # noqa: N802 (its name in Spark)
        return {"n": 0}

    def latestOffset(self):  # noqa: N802 (its name in Spark)
        self._note.touch()
        while True:
            pass

    def partitions(self, start, end):
        return [InputPartition(0)]

    def read(self, partition):
        yield (1,)


class Endless(DataSource):
    @classmethod
    def name(cls):
        return "endless"

    def schema(self):
        return "value long"

    def streamReader(self, schema):  # noqa: N802 (its name in Spark)
        return EndlessReader(self.options["note"])


def make(note):
    def build(spark):
        spark.dataSource.register(Endless)
        return spark.readStream.format("endless").option("note", note).load()

    return Flow("endless", build)
