"""The flow of totals, with a table of a PostgreSQL server as its output."""

import psycopg

from recovery import Flow, UpsertSink, stateful


class Told(UpsertSink):
    """An UpsertSink that prints which micro-batch it writes."""

    def write(self, batch, batch_id):
        print(f"batch {batch_id}", flush=True)
        super().write(batch, batch_id)


def add_up(key, rows, state):
    count, total = state.get if state.exists else (0, 0)
    count, total = count + len(rows), total + sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


def make(path, host, user, database):
    def build(spark):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        pairs = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
        return pairs.transform(stateful("totals", key="key", update=add_up, output="key string, n long, total long"))

    def connect():
        return psycopg.connect(host=host, user=user, dbname=database)

    return Flow("totals", build, sink=Told(connect, "totals", ["key"]))
