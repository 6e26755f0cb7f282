"""Distinct types for ids, so that an epoch is never passed as a batch id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Epoch = NewType("Epoch", int)
"""The time between two snapshots; 1, 2, 3 … in one recovery directory."""

BatchId = NewType("BatchId", int)
"""Spark's number of a micro-batch; keeps growing across executions."""

PartitionIndex = NewType("PartitionIndex", int)
"""Which of the N recovery partitions: 0 … N-1."""

ExecutionNumber = NewType("ExecutionNumber", int)
"""Number of one run of a flow on a recovery directory; only grows."""

StepId = NewType("StepId", str)
"""Name of one stateful step, unique within its flow."""

FIRST_EPOCH = Epoch(1)
NO_EPOCH = Epoch(0)
NO_BATCH = BatchId(-1)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one execution to write: checked in storage, inside every writing transaction."""

    number: ExecutionNumber
    id: str
