"""Recovery partitions for PySpark.

Keeps the keyed state and input positions of a Structured Streaming job in SQLite files: epoch-numbered snapshots that
are consistent across all files. A run resumes from its partitions; commands can read, copy and rewind partitions.
"""

# ruff: noqa: E402 - handle signals before slow imports
import sys

_name = (getattr(sys, "argv", []) or [""])[0]
_command = _name.endswith(("/recovery", "\\recovery")) or (
    _name == "-m" and sys.orig_argv[-len(sys.argv)] in ("recovery", "-mrecovery")
)
if sys.platform == "win32":
    _why = (
        "recovery runs on Linux and macOS, also in WSL 2; Windows lacks fcntl, which keeps two runs off one directory"
    )
    raise SystemExit(f"Error: {_why}") if _command else ImportError(_why)
if _command:
    # The command imports this first: from here on a signal ends it without a traceback, also as process 1.
    from recovery.host.signals import end_now, handle

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
    ErasureIncompleteError,
    ExecutorPackageError,
    FileReplacedError,
    FlowFailedError,
    FlowLoadError,
    FlowMismatchError,
    ForeignPartitionError,
    HighWaterMarkError,
    HistoryLossError,
    HydratingError,
    InconsistentPartitionsError,
    InputLostError,
    InputRewrittenError,
    InputUnavailableError,
    LeaseLostError,
    LinkedPartitionError,
    LookLimitError,
    MissingPartitionsError,
    NoBackupError,
    NoPartitionsError,
    OutputLostError,
    OutputMismatchError,
    OwnerRefusedError,
    OwnerUnreachableError,
    QuarantineError,
    RecoveryError,
    RewindRepeatedError,
    SinkFailedError,
    SinkRefusedError,
    SparkCheckpointError,
    SparkFailedError,
    SparkUnavailableError,
    StaleDirectoryError,
    StandbyDirectoryError,
    StateBackendError,
    StateLockedError,
    StateNotFoundError,
    StateValueError,
    StepChangedError,
    StorageError,
    TakenOverError,
    UnknownStepError,
    UnsupportedPlanError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from recovery.backup.fork import Forked, fork
    from recovery.config import RecoveryConfig
    from recovery.epochs.closer import EpochClosed
    from recovery.flow import Flow
    from recovery.group_state import GroupState
    from recovery.importing.bytewax import ImportedBytewax, import_bytewax
    from recovery.operational.backends.custom import StateStore
    from recovery.operational.backends.retry import RetryPolicy
    from recovery.operational.keyed import KeyedState
    from recovery.operational.manager import StateManager, process_state, task_instance_state, task_state
    from recovery.operational.scopes import NEVER_EXPIRE, ScopedState
    from recovery.operational.steps.comparison import Diff, diff
    from recovery.operational.steps.step_history import History, history
    from recovery.partitioning.in_place import drop_old
    from recovery.partitioning.repartition import Repartitioned, RepartitionPlan, repartition
    from recovery.pipeline import Node, Pipeline
    from recovery.sinks import (
        AllKeysSink,
        BatchContext,
        ConsoleSink,
        DeltaSink,
        DiscardSink,
        EpochOutput,
        EpochSink,
        FileSink,
        IcebergSink,
        KafkaSink,
        Resume,
        UpsertSink,
        current_batch,
    )
    from recovery.spark.pipelines.incremental import incremental
    from recovery.spark.pipelines.run import PipelineSummary, run_pipeline
    from recovery.spark.run.blocking import run
    from recovery.spark.run.query import RecoveryQuery
    from recovery.spark.run.reporting.events import BatchDone, InputCounted, Resumed, RunSummary, Stopping
    from recovery.spark.run.reporting.listener import MetricsListener, query_metrics
    from recovery.spark.run.start import start
    from recovery.spark.sources.formats import register
    from recovery.spark.sources.operator_history import native_history
    from recovery.spark.sources.operator_state import native_operators, native_state
    from recovery.spark.steps.aggregate import aggregate
    from recovery.spark.steps.arrow import stateful_arrow
    from recovery.spark.steps.quarantine import quarantine
    from recovery.spark.steps.stateful import stateful, stateful_map
    from recovery.storage.initialize import init_partitions

__all__ = [
    "NEVER_EXPIRE",
    "AllKeysSink",
    "AlreadyInitializedError",
    "BackupDamagedError",
    "BackupTargetError",
    "BackupTooOldError",
    "BatchContext",
    "BatchDone",
    "ConfigurationError",
    "ConsoleSink",
    "CorruptPartitionError",
    "CorruptStateError",
    "DeltaSink",
    "Diff",
    "DirectoryLockedError",
    "DiscardSink",
    "DuplicatePartitionError",
    "EpochClosed",
    "EpochNotHeldError",
    "EpochOutput",
    "EpochSink",
    "ErasureIncompleteError",
    "ExecutorPackageError",
    "FileReplacedError",
    "FileSink",
    "Flow",
    "FlowFailedError",
    "FlowLoadError",
    "FlowMismatchError",
    "ForeignPartitionError",
    "Forked",
    "GroupState",
    "HighWaterMarkError",
    "History",
    "HistoryLossError",
    "HydratingError",
    "IcebergSink",
    "ImportedBytewax",
    "InconsistentPartitionsError",
    "InputCounted",
    "InputLostError",
    "InputRewrittenError",
    "InputUnavailableError",
    "KafkaSink",
    "KeyedState",
    "LeaseLostError",
    "LinkedPartitionError",
    "LookLimitError",
    "MetricsListener",
    "MissingPartitionsError",
    "NoBackupError",
    "NoPartitionsError",
    "Node",
    "OutputLostError",
    "OutputMismatchError",
    "OwnerRefusedError",
    "OwnerUnreachableError",
    "Pipeline",
    "PipelineSummary",
    "QuarantineError",
    "RecoveryConfig",
    "RecoveryError",
    "RecoveryQuery",
    "RepartitionPlan",
    "Repartitioned",
    "Resume",
    "Resumed",
    "RetryPolicy",
    "RewindRepeatedError",
    "RunSummary",
    "ScopedState",
    "SinkFailedError",
    "SinkRefusedError",
    "SparkCheckpointError",
    "SparkFailedError",
    "SparkUnavailableError",
    "StaleDirectoryError",
    "StandbyDirectoryError",
    "StateBackendError",
    "StateLockedError",
    "StateManager",
    "StateNotFoundError",
    "StateStore",
    "StateValueError",
    "StepChangedError",
    "Stopping",
    "StorageError",
    "TakenOverError",
    "UnknownStepError",
    "UnsupportedPlanError",
    "UnsupportedVersionError",
    "UpsertSink",
    "aggregate",
    "current_batch",
    "diff",
    "drop_old",
    "fork",
    "history",
    "import_bytewax",
    "incremental",
    "init_partitions",
    "native_history",
    "native_operators",
    "native_state",
    "process_state",
    "quarantine",
    "query_metrics",
    "register",
    "repartition",
    "run",
    "run_pipeline",
    "start",
    "stateful",
    "stateful_arrow",
    "stateful_map",
    "task_instance_state",
    "task_state",
]

# Imported on first use, as are the package's modules: reading a directory needs no Spark, and Spark's Python workers
# need neither sinks nor state managers.
_LATER = {
    "NEVER_EXPIRE": "recovery.operational.scopes",
    "AllKeysSink": "recovery.sinks",
    "BatchContext": "recovery.sinks",
    "BatchDone": "recovery.spark.run.reporting.events",
    "ConsoleSink": "recovery.sinks",
    "DeltaSink": "recovery.sinks",
    "Diff": "recovery.operational.steps.comparison",
    "DiscardSink": "recovery.sinks",
    "EpochClosed": "recovery.epochs.closer",
    "EpochOutput": "recovery.sinks",
    "EpochSink": "recovery.sinks",
    "FileSink": "recovery.sinks",
    "Flow": "recovery.flow",
    "Forked": "recovery.backup.fork",
    "GroupState": "recovery.group_state",
    "History": "recovery.operational.steps.step_history",
    "IcebergSink": "recovery.sinks",
    "ImportedBytewax": "recovery.importing.bytewax",
    "KafkaSink": "recovery.sinks",
    "KeyedState": "recovery.operational.keyed",
    "InputCounted": "recovery.spark.run.reporting.events",
    "MetricsListener": "recovery.spark.run.reporting.listener",
    "Node": "recovery.pipeline",
    "Pipeline": "recovery.pipeline",
    "PipelineSummary": "recovery.spark.pipelines.run",
    "RecoveryConfig": "recovery.config",
    "RecoveryQuery": "recovery.spark.run.query",
    "RepartitionPlan": "recovery.partitioning.repartition",
    "Repartitioned": "recovery.partitioning.repartition",
    "Resume": "recovery.sinks",
    "Resumed": "recovery.spark.run.reporting.events",
    "RetryPolicy": "recovery.operational.backends.retry",
    "RunSummary": "recovery.spark.run.reporting.events",
    "ScopedState": "recovery.operational.scopes",
    "StateManager": "recovery.operational.manager",
    "StateStore": "recovery.operational.backends.custom",
    "Stopping": "recovery.spark.run.reporting.events",
    "UpsertSink": "recovery.sinks",
    "aggregate": "recovery.spark.steps.aggregate",
    "current_batch": "recovery.sinks",
    "diff": "recovery.operational.steps.comparison",
    "drop_old": "recovery.partitioning.in_place",
    "fork": "recovery.backup.fork",
    "history": "recovery.operational.steps.step_history",
    "import_bytewax": "recovery.importing.bytewax",
    "incremental": "recovery.spark.pipelines.incremental",
    "init_partitions": "recovery.storage.initialize",
    "native_history": "recovery.spark.sources.operator_history",
    "native_operators": "recovery.spark.sources.operator_state",
    "native_state": "recovery.spark.sources.operator_state",
    "process_state": "recovery.operational.manager",
    "quarantine": "recovery.spark.steps.quarantine",
    "query_metrics": "recovery.spark.run.reporting.listener",
    "register": "recovery.spark.sources.formats",
    "repartition": "recovery.partitioning.repartition",
    "run": "recovery.spark.run.blocking",
    "run_pipeline": "recovery.spark.pipelines.run",
    "start": "recovery.spark.run.start",
    "stateful": "recovery.spark.steps.stateful",
    "stateful_arrow": "recovery.spark.steps.arrow",
    "stateful_map": "recovery.spark.steps.stateful",
    "task_instance_state": "recovery.operational.manager",
    "task_state": "recovery.operational.manager",
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
    """Return the public names, also those not imported yet, and the module's other names."""
    return sorted({*__all__, *globals()})
