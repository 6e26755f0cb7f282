"""A step that puts rows into quarantine by a condition, and passes the others on."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from recovery.errors import ConfigurationError
from recovery.spark.steps.definition import TICK, WHEN, Transform
from recovery.spark.steps.input_keys import KeyedInput, checked_columns
from recovery.spark.steps.replayed import replayed
from recovery.spark.steps.stateful import check_id, define, exchanged, note_step, time_zone
from recovery.spark.steps.ticks import read_ticks
from recovery.values.declaration import form_of
from recovery.values.keys import hash_of
from recovery.values.quarantine import WITHOUT_KEY


def quarantine(step_id: str, *, when: str | Column) -> Transform:
    """Return a step that puts rows into quarantine, for `DataFrame.transform`:
    `quarantine("unparsed", when="_corrupt_record IS NOT NULL")`.

    when: a condition, as a column or SQL text. Rows for which it is true wait in quarantine, durable with the epoch;
    their error is the text of the condition. The others pass, exactly once; a condition that is NULL is not true, as in
    WHERE. Rows that are replayed are looked at again, with the condition of then: those that pass go on before newer
    rows, in the order in which they came; the others stay, with one more attempt.

    The step id names the rows in quarantine: keep it when the code changes. Raises ConfigurationError.
    """
    check_id(step_id)
    if not isinstance(when, str | Column) or (isinstance(when, str) and not when.strip()):
        raise ConfigurationError(
            f"step {step_id!r}: when={when!r:.120} is not a condition",
            remedy='Use SQL text, as in when="amount < 0", or a Column.',
        )

    def transform(frame: DataFrame) -> DataFrame:
        columns = checked_columns(frame, step_id)
        condition, text = _condition(frame, step_id, when)
        bad = F.coalesce(condition, F.lit(False))
        zone = time_zone(frame)
        definition = define(
            frame, step_id, KeyedInput(columns, (), (), (), False), None, frame.schema, None, hold="no",
            inputs=(WHEN,), replayed=replayed(frame, step_id, columns, {WHEN: bad}, zone), when=text,
        )  # fmt: skip
        note_step(frame, definition, None, form_of(None), None)
        own = [F.col(f"`{name}`") for name in columns]
        rows = frame.select(*own, bad.alias(WHEN))
        # Bad rows go to one task, which has them in order; the others stay together as they come.
        place = f"cast(CASE WHEN {WHEN} THEN {hash_of(WITHOUT_KEY)} ELSE spark_partition_id() END AS bigint)"
        if definition.ticks:
            rows = rows.unionByName(read_ticks(frame.sparkSession, definition.mailbox), allowMissingColumns=True)
            place = f"coalesce(cast({TICK} AS bigint), {place})"
        passed = [*(f"`{name}`" for name in columns), WHEN]
        return exchanged(rows.selectExpr(*passed, f"{place} AS {definition.hash_column}"), definition, passed)

    return transform


def _condition(frame: DataFrame, step_id: str, when: str | Column) -> tuple[Column, str]:
    """Return the condition as a column, and its text in one line. Raises ConfigurationError if the frame cannot have
    it."""
    try:
        condition = F.expr(when) if isinstance(when, str) else when
        [field] = frame.select(condition).schema.fields
    except (AnalysisException, ParseException) as error:
        raise ConfigurationError(
            f"step {step_id!r}: when={when!s:.120}: {str(error).strip().splitlines()[0]}", cause="", remedy=""
        ) from error
    if field.dataType not in (T.BooleanType(), T.NullType()):
        raise ConfigurationError(
            f"step {step_id!r}: when={when!s:.120} has the type {field.dataType.simpleString()}",
            remedy='Use a condition, as in when="amount < 0".',
        )
    return condition, " ".join((when if isinstance(when, str) else field.name).split())
