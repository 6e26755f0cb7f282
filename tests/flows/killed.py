"""A flow of all three kinds of step whose workers are killed, by lot, in first attempts of tasks."""

import os
import random
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from recovery import Flow, aggregate, stateful, stateful_arrow
from recovery.aggregates import count, max_


def make(path, notes, seed, wrong=""):
    def kill(step):
        context = TaskContext.get()
        batch = context.getLocalProperty("streaming.sql.batchId")
        lot = random.Random(f"{seed} {step} {batch} {context.partitionId()}")
        if context.attemptNumber() == 0 and lot.random() < 0.5:
            (Path(notes) / f"{step}-{batch}-{context.partitionId()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def add_up(key, rows, state):
        n, total = state.get if state.exists else (0, 0)
        if key == wrong:
            with (Path(notes) / "calls").open("a") as file:
                file.write("called\n")
            raise ValueError(f"no {key} here")
        if key.endswith("7"):
            kill("totals")
        n, total = n + len(rows), total + sum(row.value for row in rows)
        state.update([n, total])
        yield key, n, total

    def add_tables(rows, states):
        kill("tables")
        totals = np.maximum.reduceat(rows["total"].to_numpy(), states["_start"])
        new = pa.table({
            "key": states["key"],
            "n": states["n"].fill_null(0).to_numpy() + states["_rows"].to_numpy(),
            "total": states["total"].fill_null(0).to_numpy() + totals,
        })  # fmt: skip
        return new, new

    def killing(batches):
        for batch in batches:
            kill("declared")
            yield batch

    def build(spark):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
        pairs = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
        output = "key string, n long, total long"
        totals = pairs.transform(stateful("totals", key="key", update=add_up, output=output))
        tables = totals.transform(stateful_arrow(
            "tables", key="key", update=add_tables, state_schema="n bigint, total bigint", output=output
        ))  # fmt: skip
        declared = aggregate("declared", key="key", n=count(), most=max_("total"))
        return tables.mapInArrow(killing, tables.schema).transform(declared)

    return Flow("killed", build)
