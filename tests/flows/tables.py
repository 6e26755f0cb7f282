"""The flow of totals, with a Delta or an Iceberg table as its output, or as its input."""

from recovery import DeltaSink, Flow, IcebergSink, stateful

NAME = "db.totals"


def properties(path) -> dict[str, str]:
    """A catalog in a SQLite file, whose tables are in a directory beside it."""
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}


def add_up(key, rows, state):
    count, total = state.get if state.exists else (0, 0)
    count, total = count + len(rows), total + sum(row.value for row in rows)
    state.update([count, total])
    yield key, count, total


STEP = stateful("totals", key="key", update=add_up, output="key string, n long, total long")


def lines(path):
    def read(spark):
        found = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        return found.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")

    return read


def totals(read, sink):
    def build(spark):
        return read(spark).transform(STEP)

    return Flow("totals", build, sink=sink)


def make_delta(path, table, storage_options=None):
    return totals(lines(path), DeltaSink(table, storage_options=storage_options))


def make_iceberg(path, directory, more=None):
    return totals(lines(path), IcebergSink(NAME, properties=properties(directory) | (more or {})))


def make_delta_from_delta(path, table):
    """The input is a Delta table too: one of its files is a micro-batch."""
    return totals(
        lambda spark: spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(path), DeltaSink(table)
    )


def read_iceberg(table, how="load"):
    """A micro-batch reads all snapshots that there are. how: "load", or "table" for the name of a table."""
    return Flow("totals", lambda spark: getattr(spark.readStream.format("iceberg"), how)(table).transform(STEP))
