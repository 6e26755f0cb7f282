"""The flow of totals, with a Delta table as its output."""

from recovery import DeltaSink, Flow, stateful


def add_up(key, rows, state):
    count, total = state.get if state.exists else (0, 0)
    count, total = count + len(rows), total + sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


def make(path, table):
    def build(spark):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        pairs = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
        return pairs.transform(stateful("totals", key="key", update=add_up, output="key string, n long, total long"))

    return Flow("totals", build, sink=DeltaSink(table))
