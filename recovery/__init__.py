"""Recovery partitions for PySpark.

A Structured Streaming job's keyed state and input positions, kept in SQLite files: epoch-numbered snapshots that are
consistent across all files, that a run resumes from, and that can be read, copied and rewound.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recovery.config import RecoveryConfig
from recovery.errors import (
    AlreadyInitializedError,
    BackupDamagedError,
    BackupTargetError,
    BackupTooOldError,
    ConfigurationError,
    CorruptPartitionError,
    CorruptStateError,
    DirectoryLockedError,
    DuplicatePartitionError,
    EpochNotHeldError,
    FlowFailedError,
    FlowLoadError,
    FlowMismatchError,
    ForeignPartitionError,
    HighWaterMarkError,
    InconsistentPartitionsError,
    InputRewrittenError,
    LeaseLostError,
    MissingPartitionsError,
    NoBackupError,
    NoPartitionsError,
    OutputMismatchError,
    RecoveryError,
    SinkFailedError,
    SparkCheckpointError,
    SparkUnavailableError,
    StateBackendError,
    StateLockedError,
    StateNotFoundError,
    StateValueError,
    StepChangedError,
    StorageError,
    UnknownStepError,
    UnsupportedPlanError,
    UnsupportedVersionError,
)
from recovery.flow import Flow
from recovery.group_state import GroupState
from recovery.pipeline import Node, Pipeline
from recovery.sinks import (
    AllKeysSink,
    BatchContext,
    ConsoleSink,
    DiscardSink,
    EpochOutput,
    EpochSink,
    FileSink,
    Resume,
    UpsertSink,
    current_batch,
)
from recovery.state.manager import StateManager, process_state, task_instance_state, task_state
from recovery.state.retry import RetryPolicy
from recovery.state.scopes import ScopedState
from recovery.storage.initialize import init_partitions

if TYPE_CHECKING:
    from recovery.runner import run
    from recovery.spark.aggregate import aggregate
    from recovery.spark.arrow_step import stateful_arrow
    from recovery.spark.events import RunSummary
    from recovery.spark.formats import register
    from recovery.spark.incremental import incremental
    from recovery.spark.listener import MetricsListener, query_metrics
    from recovery.spark.native_state import native_operators, native_state
    from recovery.spark.pipeline import PipelineSummary, run_pipeline
    from recovery.spark.query import RecoveryQuery
    from recovery.spark.starting import start
    from recovery.spark.step import stateful, stateful_map

__all__ = [
    "AllKeysSink",
    "AlreadyInitializedError",
    "BackupDamagedError",
    "BackupTargetError",
    "BackupTooOldError",
    "BatchContext",
    "ConfigurationError",
    "ConsoleSink",
    "CorruptPartitionError",
    "CorruptStateError",
    "DirectoryLockedError",
    "DiscardSink",
    "DuplicatePartitionError",
    "EpochNotHeldError",
    "EpochOutput",
    "EpochSink",
    "FileSink",
    "Flow",
    "FlowFailedError",
    "FlowLoadError",
    "FlowMismatchError",
    "ForeignPartitionError",
    "GroupState",
    "HighWaterMarkError",
    "InconsistentPartitionsError",
    "InputRewrittenError",
    "LeaseLostError",
    "MetricsListener",
    "MissingPartitionsError",
    "NoBackupError",
    "NoPartitionsError",
    "Node",
    "OutputMismatchError",
    "Pipeline",
    "PipelineSummary",
    "RecoveryConfig",
    "RecoveryError",
    "RecoveryQuery",
    "Resume",
    "RetryPolicy",
    "RunSummary",
    "ScopedState",
    "SinkFailedError",
    "SparkCheckpointError",
    "SparkUnavailableError",
    "StateBackendError",
    "StateLockedError",
    "StateManager",
    "StateNotFoundError",
    "StateValueError",
    "StepChangedError",
    "StorageError",
    "UnknownStepError",
    "UnsupportedPlanError",
    "UnsupportedVersionError",
    "UpsertSink",
    "aggregate",
    "current_batch",
    "incremental",
    "init_partitions",
    "native_operators",
    "native_state",
    "process_state",
    "query_metrics",
    "register",
    "run",
    "run_pipeline",
    "start",
    "stateful",
    "stateful_arrow",
    "stateful_map",
    "task_instance_state",
    "task_state",
]

# What needs Spark is imported when it is first asked for, so that looking at a directory starts at once.
_WITH_SPARK = {
    "RecoveryQuery": "recovery.spark.query",
    "MetricsListener": "recovery.spark.listener",
    "RunSummary": "recovery.spark.events",
    "aggregate": "recovery.spark.aggregate",
    "query_metrics": "recovery.spark.listener",
    "register": "recovery.spark.formats",
    "PipelineSummary": "recovery.spark.pipeline",
    "incremental": "recovery.spark.incremental",
    "native_operators": "recovery.spark.native_state",
    "native_state": "recovery.spark.native_state",
    "run": "recovery.runner",
    "run_pipeline": "recovery.spark.pipeline",
    "start": "recovery.spark.starting",
    "stateful": "recovery.spark.step",
    "stateful_arrow": "recovery.spark.arrow_step",
    "stateful_map": "recovery.spark.step",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module 'recovery' has no attribute {name!r}")
    value = getattr(import_module(_WITH_SPARK[name]), name)
    globals()[name] = value
    return value
