"""A flow over a directory of files, one a micro-batch, that cannot take values from 1000 on until a file exists."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.functions import expr

from recovery import FileSink, Flow, aggregate, quarantine, stateful, stateful_arrow, stateful_map
from recovery.aggregates import count, sum_


def make(path, output, fixed, hold="key", on_error="quarantine", step="totals", timeouts=False, by="key", limit=None):
    """The flow. fixed: the file with which the code takes all values. by: the key, as SQL. limit: of the quarantine."""

    def add_up(key, rows, state):
        if timeouts and state.hasTimedOut:
            yield key, -1
            state.remove()
            return
        values = state.getOption or []
        for row in rows:
            values.append(row.value)
            yield key, sum(values)
            if row.value >= 1000 and not Path(fixed).exists():
                raise ValueError(f"too large: {row.value}")
        state.update(values)
        if timeouts:
            state.setTimeoutDuration(1)

    def build(spark):
        return pairs(spark, path).transform(
            stateful(
                step, key=keyed(by), update=add_up, output="key string, total long", on_error=on_error, hold=hold,
                timeout=timeouts,
            )
        )  # fmt: skip

    return Flow("totals", build, FileSink(output), quarantine=limit)


def make_map(path, output, fixed):
    """The step of `make` in Bytewax's form."""

    def mapper(total, value):
        if value >= 1000 and not Path(fixed).exists():
            raise ValueError(f"too large: {value}")
        return (total or 0) + value, (total or 0) + value

    def build(spark):
        step = stateful_map(
            "totals", key="key", value="value", mapper=mapper, output="key string, total long", on_error="quarantine"
        )
        return pairs(spark, path).transform(step)

    return Flow("totals", build, FileSink(output))


def make_tables(path, output, fixed, by="key"):
    """Totals by key, many keys in a call."""

    def add_up(rows, states):
        if pc.max(rows["value"]).as_py() >= 1000 and not Path(fixed).exists():
            raise ValueError("too large")
        sums = rows.group_by("_group").aggregate([("value", "sum")]).sort_by("_group")["value_sum"]
        total = pc.add(pc.fill_null(states["total"], 0), sums)
        new = pa.table({states.column_names[0]: states.column(0), "total": total})
        return new, new.rename_columns(["key", "total"])

    def build(spark):
        step = stateful_arrow(
            "totals", key=keyed(by), update=add_up, state_schema="total long", output="key string, total long",
            on_error="quarantine",
        )  # fmt: skip
        return pairs(spark, path).transform(step)

    return Flow("totals", build, FileSink(output))


def make_sums(path, output, fixed, by="key", hold="key", step="totals", on_error="quarantine"):
    """Totals by key in an aggregate, in a unit of which a bigint has a thousand. Greater values count as a thousand."""

    def build(spark):
        value = "if(value >= 1000, 0, value)" if Path(fixed).exists() else "least(value, 1000)"
        step_ = aggregate(
            step, key=keyed(by), n=count(), total=sum_(expr(f"cast({value} * {MANY} AS bigint)")), on_error=on_error,
            hold=hold,
        )  # fmt: skip
        return pairs(spark, path).transform(step_)

    return Flow("totals", build, FileSink(output))


MANY = (2**63 - 1) // 1000


def make_condition(path, output, fixed, step="large", then=None):
    """Puts values from 1000 on aside, and adds the others up in a step behind. then: applied in its place."""

    def add_up(key, rows, state):
        state.update([*(state.getOption or []), *(row.value for row in rows)])
        return [(key, sum(state.get))]

    def build(spark):
        least = 2000 if Path(fixed).exists() else 1000
        rows = pairs(spark, path).transform(quarantine(step, when=f"value >= {least}"))
        return rows.transform(then or stateful("totals", key="key", update=add_up, output="key string, total long"))

    return Flow("totals", build, FileSink(output))


def keyed(by):
    return by if by.isidentifier() else expr(by)


def pairs(spark, path):
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(path)
    return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
