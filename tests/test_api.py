"""What the package offers, and what importing it costs."""

from __future__ import annotations

import pytest

import recovery
from recovery.errors import all_errors
from tests.stores import run_python

PUBLIC = [
    "NEVER_EXPIRE",
    "AllKeysSink", "AlreadyInitializedError", "BackupDamagedError", "BackupTargetError", "BackupTooOldError",
    "BatchContext", "BatchDone", "ConfigurationError", "ConsoleSink", "CorruptPartitionError", "CorruptStateError",
    "DeltaSink", "Diff", "DirectoryLockedError", "DiscardSink", "DuplicatePartitionError", "EpochClosed",
    "EpochNotHeldError", "EpochOutput", "EpochSink", "ErasureIncompleteError", "ExecutorPackageError",
    "FileReplacedError", "FileSink",
    "Flow", "FlowFailedError", "FlowLoadError", "FlowMismatchError", "ForeignPartitionError", "Forked",
    "GroupState", "HighWaterMarkError", "History", "HistoryLossError", "HydratingError", "IcebergSink",
    "ImportedBytewax",
    "InconsistentPartitionsError", "InputCounted", "InputLostError", "InputRewrittenError", "InputUnavailableError",
    "KafkaSink", "KeyedState",
    "LeaseLostError", "LinkedPartitionError", "LookLimitError", "MetricsListener", "MissingPartitionsError",
    "NoBackupError", "NoPartitionsError", "Node", "OutputLostError", "OutputMismatchError", "OwnerRefusedError",
    "OwnerUnreachableError", "Pipeline", "PipelineSummary", "QuarantineError", "RecoveryConfig", "RecoveryError",
    "RecoveryQuery",
    "RepartitionPlan", "Repartitioned", "Resume", "Resumed", "RetryPolicy", "RewindRepeatedError", "RunSummary",
    "ScopedState", "SinkFailedError", "SinkRefusedError", "SparkCheckpointError", "SparkFailedError",
    "SparkUnavailableError", "StaleDirectoryError",
    "StandbyDirectoryError",
    "StateBackendError", "StateLockedError", "StateManager", "StateNotFoundError", "StateStore", "StateValueError",
    "StepChangedError", "Stopping", "StorageError", "TakenOverError", "UnknownStepError", "UnsupportedPlanError",
    "UnsupportedVersionError", "UpsertSink", "aggregate", "current_batch", "diff", "drop_old", "fork", "history",
    "import_bytewax", "incremental", "init_partitions", "native_history", "native_operators", "native_state",
    "process_state", "quarantine", "query_metrics", "register", "repartition", "run", "run_pipeline", "start",
    "stateful", "stateful_arrow", "stateful_map", "task_instance_state", "task_state",
]  # fmt: skip


def test_the_public_names_are_these():
    """A name that is added or taken away is a decision, not an accident."""
    assert recovery.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_exists_and_is_documented(name):
    """Also those that are imported when they are first asked for."""
    assert getattr(recovery, name).__doc__


def test_every_error_is_public():
    """What can be raised can be caught by name."""
    assert {kind.__name__ for kind in all_errors()} <= set(PUBLIC)


def test_other_names_do_not_exist():
    """A misspelt name is an AttributeError that says so."""
    with pytest.raises(AttributeError, match="'stateless'"):
        _ = recovery.stateless


@pytest.mark.parametrize(
    "imports",
    [
        "import recovery",
        "from recovery.cli import main\nlist(main.commands.values())",
        "import recovery.storage.sqlite.store",
        "import recovery.planning.resume",
    ],
)
def test_looking_at_a_directory_needs_no_spark(imports):
    """Importing the package, every command or storage imports neither PySpark nor pandas nor Arrow."""
    code = (
        f"import sys\n{imports}\nprint(sorted({{'pyspark', 'py4j', 'pandas', 'pyarrow', 'numpy'}} & set(sys.modules)))"
    )
    result = run_python(code)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_a_command_imports_no_other():
    """Of each start of a run this would take 0.2 s, before its JVM starts."""
    code = (
        "import sys\nfrom recovery.cli import COMMANDS, main\nassert main.commands['init'].name == 'init'\n"
        "files = {name.partition(':')[0] for name in COMMANDS.values()}\n"
        "print(sorted({f'recovery.cli.{name}' for name in files} & set(sys.modules)))"
    )
    result = run_python(code)
    assert (result.stdout, result.stderr) == ("['recovery.cli.init']\n", "")


def test_python_workers_import_what_their_tasks_need():
    """Each worker of a run imports it again, while the first micro-batch waits."""
    code = (
        "import sys, recovery.spark.tasks.arrow_task\n"
        "unwanted = 'recovery.sinks', 'recovery.operational.', 'pandas'\n"
        "print(sorted(name for name in sys.modules if name.startswith(unwanted)))"
    )
    result = run_python(code)
    assert (result.stdout, result.stderr) == ("[]\n", "")


def test_modules_are_there_without_an_import_of_their_own():
    """Whatever was asked for before."""
    result = run_python(
        "import recovery\nprint(recovery.sinks.FileSink is recovery.FileSink, recovery.aggregates.count())"
    )
    assert result.stdout.startswith("True "), result.stderr


def test_the_light_names_stay_light():
    """Making and naming partitions by the public names imports no Spark either."""
    code = (
        "import sys\n"
        "from recovery import Flow, GroupState, RecoveryConfig, RecoveryError, init_partitions\n"
        "assert 'pyspark' not in sys.modules\n"
        "from recovery import stateful\n"
        "assert 'pyspark' in sys.modules"
    )
    result = run_python(code)
    assert result.returncode == 0, result.stderr
