"""Recovery partitions for PySpark.

A Structured Streaming job's keyed state and input positions, kept in SQLite files: epoch-numbered snapshots that are
consistent across all files, that a run resumes from, and that can be read, copied and rewound.
"""

# ruff: noqa: E402 - signals count before anything that takes time is imported
import sys

_name = (getattr(sys, "argv", []) or [""])[0]
if _name.endswith("/recovery") or (_name == "-m" and sys.orig_argv[-len(sys.argv)] in ("recovery", "-mrecovery")):
    # The command imports this first: from here on a signal ends it without a traceback, also as process 1.
    from recovery.signals import end_now, handle

    handle(end_now)
    del end_now, handle

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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
    FileReplacedError,
    FlowFailedError,
    FlowLoadError,
    FlowMismatchError,
    ForeignPartitionError,
    HighWaterMarkError,
    HistoryLossError,
    InconsistentPartitionsError,
    InputRewrittenError,
    LeaseLostError,
    LinkedPartitionError,
    MissingPartitionsError,
    NoBackupError,
    NoPartitionsError,
    OutputMismatchError,
    RecoveryError,
    RewindRepeatedError,
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

if TYPE_CHECKING:
    from recovery.config import RecoveryConfig
    from recovery.flow import Flow
    from recovery.group_state import GroupState
    from recovery.pipeline import Node, Pipeline
    from recovery.runner import run
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
    from recovery.state.manager import StateManager, process_state, task_instance_state, task_state
    from recovery.state.retry import RetryPolicy
    from recovery.state.scopes import ScopedState
    from recovery.storage.initialize import init_partitions

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
    "FileReplacedError",
    "FileSink",
    "Flow",
    "FlowFailedError",
    "FlowLoadError",
    "FlowMismatchError",
    "ForeignPartitionError",
    "GroupState",
    "HighWaterMarkError",
    "HistoryLossError",
    "InconsistentPartitionsError",
    "InputRewrittenError",
    "LeaseLostError",
    "LinkedPartitionError",
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
    "RewindRepeatedError",
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

# Imported when it is first asked for, as the package's modules are: looking at a directory needs no Spark, and a Python
# worker of Spark's neither sinks nor state managers.
_LATER = {
    "AllKeysSink": "recovery.sinks",
    "BatchContext": "recovery.sinks",
    "ConsoleSink": "recovery.sinks",
    "DiscardSink": "recovery.sinks",
    "EpochOutput": "recovery.sinks",
    "EpochSink": "recovery.sinks",
    "FileSink": "recovery.sinks",
    "Flow": "recovery.flow",
    "GroupState": "recovery.group_state",
    "MetricsListener": "recovery.spark.listener",
    "Node": "recovery.pipeline",
    "Pipeline": "recovery.pipeline",
    "PipelineSummary": "recovery.spark.pipeline",
    "RecoveryConfig": "recovery.config",
    "RecoveryQuery": "recovery.spark.query",
    "Resume": "recovery.sinks",
    "RetryPolicy": "recovery.state.retry",
    "RunSummary": "recovery.spark.events",
    "ScopedState": "recovery.state.scopes",
    "StateManager": "recovery.state.manager",
    "UpsertSink": "recovery.sinks",
    "aggregate": "recovery.spark.aggregate",
    "current_batch": "recovery.sinks",
    "incremental": "recovery.spark.incremental",
    "init_partitions": "recovery.storage.initialize",
    "native_operators": "recovery.spark.native_state",
    "native_state": "recovery.spark.native_state",
    "process_state": "recovery.state.manager",
    "query_metrics": "recovery.spark.listener",
    "register": "recovery.spark.formats",
    "run": "recovery.runner",
    "run_pipeline": "recovery.spark.pipeline",
    "start": "recovery.spark.starting",
    "stateful": "recovery.spark.step",
    "stateful_arrow": "recovery.spark.arrow_step",
    "stateful_map": "recovery.spark.step",
    "task_instance_state": "recovery.state.manager",
    "task_state": "recovery.state.manager",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        value = getattr(import_module(_LATER[name]), name)
    elif not name.startswith("_") and find_spec(f"recovery.{name}") is not None:
        value = import_module(f"recovery.{name}")
    else:
        raise AttributeError(f"module 'recovery' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, those that are not imported yet too, and what the module has."""
    return sorted({*__all__, *globals()})
