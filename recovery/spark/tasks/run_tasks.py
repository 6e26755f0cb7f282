"""Tasks of Spark that run a stateful step: a `StepTask` for each recovery partition that has rows."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby
from operator import itemgetter

import pyarrow as pa
from pyspark import TaskContext

from recovery.base.ids import BatchId, PartitionIndex
from recovery.errors import UnsupportedPlanError
from recovery.spark.steps.definition import (
    ADDRESS_PROPERTY,
    BATCH_PROPERTY,
    EVERYWHERE,
    HASH_BITS,
    QUARANTINE_PROPERTY,
    ROUTE,
    TASKS_PROPERTY,
    UNHASHED,
    StepDefinition,
)
from recovery.spark.tasks.chunks import Width, partitions_of, pieces_of
from recovery.spark.tasks.retries import raised_once
from recovery.spark.tasks.sorting import sorted_by
from recovery.spark.tasks.step_task import StepTask, mixed_partitions
from recovery.storage.reach import reach
from recovery.storage.seam import TaskStore
from recovery.values.keys import partition_of
from recovery.values.quarantine import WITHOUT_KEY

_tasks = count()
"""Counts the tasks that this process has run."""


def run_step(
    definition: StepDefinition, batches: Iterator[pa.RecordBatch], kind: type[StepTask] | None = None
) -> Iterator[pa.RecordBatch]:
    """Run a step over one Spark partition of one micro-batch, as a task of `kind`: by default StepTask, with a
    quarantine what `with_quarantine` returns.

    Changes to a recovery partition are kept only if all of its rows were processed and their output was consumed.
    """
    _settle()
    context = TaskContext.get()
    address = context.getLocalProperty(ADDRESS_PROPERTY) if context else None
    tasks = context.getLocalProperty(TASKS_PROPERTY) if context else None
    batch_id = context.getLocalProperty(BATCH_PROPERTY) if context else None
    if address is None or tasks is None or batch_id is None:
        raise UnsupportedPlanError(
            f"step {definition.step_id!r} runs outside a micro-batch of a recovery run",
            cause="The streaming frame was started with writeStream, or its job was started from elsewhere.",
            remedy="Start the stream with recovery.start(frame, RecoveryConfig(...), sink=...) or recovery.run.",
        )
    most_waiting = context.getLocalProperty(QUARANTINE_PROPERTY)
    if definition.hold is not None:
        kind = with_quarantine(definition)
        definition = replace(definition, most_waiting=None if most_waiting is None else int(most_waiting))
    # In a flow without a quarantine any attempt of a task writes the same. Which rows are bad is what one attempt has
    # seen, and so is what later steps get: an attempt whose executor was cut off must not write once its retry has. The
    # ids of attempts grow with each attempt.
    attempt = 0 if most_waiting is None else 1 + context.taskAttemptId()
    connect = partial(reach, address, task_key=definition.task_key, attempt=attempt)
    with raised_once(context):
        yield from run_tasks(definition, batches, connect, BatchId(int(batch_id)), kind or StepTask, int(tasks))


def with_quarantine(definition: StepDefinition) -> type[StepTask]:
    """Return the kind of the tasks of a step with a quarantine. Other steps do not wait for these imports."""
    if definition.when is not None:
        from recovery.spark.tasks.condition_task import ConditionTask

        return ConditionTask
    if definition.state_schema is None:
        from recovery.spark.tasks.quarantine_task import QuarantineTask

        return QuarantineTask
    from recovery.spark.tasks.arrow_quarantine_task import ArrowQuarantineTask

    return ArrowQuarantineTask


def run_tasks(
    definition: StepDefinition,
    batches: Iterator[pa.RecordBatch],
    connect: Callable[[bool], tuple[TaskStore, int]],
    batch: BatchId,
    kind: type[StepTask],
    tasks: int,
) -> Iterator[pa.RecordBatch]:
    """Run a task for the recovery partitions of the given rows.

    After an exchange over `tasks` Spark partitions these are the recovery partitions whose number modulo `tasks` is
    the Spark partition's number; if rows were gathered instead, all. `connect` takes whether rows were gathered, that
    is, whether the task is one of many small ones. `connect` returns a store, which opens nothing yet, and the number
    of recovery partitions.

    A gathered task may run twice: as another attempt, or in another job that Spark runs for the same plan. The plan
    below the task also runs again and may give other keys. So the second run undoes what the first left in partitions
    that the second does not touch.
    """
    step = definition.step_id
    given = (each for each in batches if each.num_rows)
    first = next(given, None)
    spark_partition = None if first is None else int(first.column(ROUTE)[0].as_py()) >> HASH_BITS
    gathered = spark_partition in (EVERYWHERE, UNHASHED)
    store, count = connect(gathered)
    try:
        ran_before = (spark_partition is None or gathered) and store.gathered(step, batch, note=gathered)
        touched: Iterable[PartitionIndex] = ()
        if spark_partition is not None:
            rows = chain([first], given)
            del first
            if gathered or tasks == count or definition.when is not None:
                own_partition = _only_partition(definition, spark_partition, count, tasks, gathered)
                task = kind(definition, store, own_partition, count, batch, spark_partition)
                yield from task.run(rows)
                touched = task.touched
            else:
                width, own = Width(), range(spark_partition, count, tasks)
                for partition, share in _shares(definition, width.measured(rows), kind, count, own):
                    yield from kind(definition, store, partition, count, batch, spark_partition).run(share, width)
                    store.release()  # keep the files of only one partition open
        if ran_before:
            untouched = set(map(PartitionIndex, range(count))).difference(touched)
            for written in (step, definition.quarantine) if definition.hold is not None else (step,):
                store.withdraw(written, batch, untouched)
    finally:
        store.release()


def _only_partition(
    definition: StepDefinition, spark_partition: int, count: int, tasks: int, gathered: bool
) -> PartitionIndex | None:
    """Return the recovery partition that a task has alone; None: it has all. Rows without a key wait in one partition,
    and a task without it counts its rows in another one."""
    if definition.when is None:
        return None if gathered else PartitionIndex(spark_partition)
    home = partition_of(WITHOUT_KEY, count)
    return home if gathered or home % tasks == spark_partition else PartitionIndex(spark_partition)


def _shares(
    definition: StepDefinition, batches: Iterator[pa.RecordBatch], kind: type[StepTask], count: int, own: range
) -> Iterator[tuple[PartitionIndex, Iterator[pa.RecordBatch]]]:
    """Yield the rows' recovery partitions in order, each with its rows sorted by key. Consume a partition's rows before
    asking for the next one. Raises UnsupportedPlanError for a partition that is not in `own` or comes again."""
    partition_of_rows = partial(partitions_of, count=count)
    if not definition.sorted_by_spark:
        batches = sorted_by(definition.key_text, batches, kind.chunk_rows, kind.sorted_bytes, partition_of_rows)
    newest = -1
    for partition, pieces in groupby(pieces_of(batches, partition_of_rows), itemgetter(0)):
        if partition not in own:
            raise mixed_partitions(definition)
        if partition <= newest:
            raise UnsupportedPlanError(f"step {definition.step_id!r}: its rows are not sorted by partition")
        newest = partition
        yield PartitionIndex(partition), map(itemgetter(1), pieces)


def _settle() -> None:
    """Exempt imported objects from cyclic garbage collection, before a worker's first and second tasks.

    Spark's daemon runs a full collection after every task, while the driver waits for a processor. The second call
    covers what the first task imported."""
    if next(_tasks) < 2:
        gc.freeze()
