"""Which error stands for a failure of Spark, by real texts of Spark and its connectors, cut to what matters."""

from __future__ import annotations

import sys
import time

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import AnalysisException, PySparkException

from recovery.base.version import VERSION
from recovery.errors import SparkFailedError
from recovery.spark.jvm.errors import as_recovery_error, jvm_failed
from recovery.spark.jvm.failure_table import (
    JVM_ENDED,
    JVM_LIMIT,
    JVM_SILENT,
    JVM_STACK,
    RUNNING,
    STARTING,
    STREAM_ENDED,
)
from recovery.spark.jvm.failures import Failure, documented, failure_of, reason_of

JOB = (
    "An error occurred while calling o52.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) "
)
LOCAL, REMOTE = f"{JOB}(127.0.0.1 executor driver): ", f"{JOB}(10.77.0.11 executor 3): "
CRASHED = "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
STACK = "\n\tat org.apache.spark.X.y(X.scala:1)\n\nDriver stacktrace:\n"
FILES = "\n\tat org.apache.spark.sql.execution.datasources.FileScanRDD$$anon$1.hasNext(FileScanRDD.scala:153)\n"
SCHEMA = "\n\tat org.apache.spark.sql.execution.datasources.DataSource.sourceSchema(DataSource.scala:269)\n"
KAFKA = "\n\tat org.apache.spark.sql.kafka010.ConsumerStrategy.createAdmin(ConsumerStrategy.scala:49)\n"
STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "


@pytest.fixture(autouse=True)
def no_session(monkeypatch):
    """As if this process had no session: the texts say where a worker ran."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


def raised(message: str) -> str:
    """What Spark says of a Python function in a worker that raised this."""
    frame = '  File "/opt/pyspark.zip/pyspark/worker.py", line 4207, in main\n    process()\n'
    return f"org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n{frame}{message}\n{STACK}"


RUNS = {
    "another version of Python in the workers than in the driver": (
        LOCAL
        + raised(
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions."
        ),
        51,
        "Python workers run Python 3.12, and the driver runs Python 3.11",
    ),
    "an executor lacks recovery, or what it needs": (
        REMOTE + raised("ModuleNotFoundError: No module named 'recovery'\non host host1"),
        51,
        f"host host1 lacks the Python module recovery, where recovery {VERSION} is wanted",
    ),
    "a worker of this host lacks recovery, or what it needs": (
        LOCAL + raised("ModuleNotFoundError: No module named 'pyarrow'"),
        51,
        f"Python workers of this host lack the Python module pyarrow, where recovery {VERSION} is wanted",
    ),
    "an executor lacks a module of the flow": (
        REMOTE + raised(f"ModuleNotFoundError: No module named '{__name__}'"),
        51,
        f"host 10.77.0.11 lacks the Python module {__name__}, which the driver has",
    ),
    "a worker of this host lacks a module of the flow": (
        LOCAL + raised(f"ModuleNotFoundError: No module named '{__name__}'"),
        51,
        f"Python workers of this host lack the Python module {__name__}, which the driver has",
    ),
    "a worker cannot import a module that it has": (
        REMOTE + raised("ImportError: libarrow.so.2100: cannot open shared object file\non host host1"),
        51,
        "host host1 cannot import what a step needs: libarrow.so.2100: cannot open shared object file",
    ),
    'Spark does not know format("appended") or format("recovery")': (
        "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: appended. Make sure the provider name is correct and "
        "the package is properly registered and compatible with your Spark version. SQLSTATE: 42K02",
        51,
        'Spark does not find format("appended"): the Python that Spark starts beside the JVM lacks recovery, or what '
        "recovery needs",
    ),
    "a host can start no more Python workers": (
        LOCAL
        + 'java.io.IOException: Cannot run program "/opt/python": error=11, Resource temporarily unavailable\n\tat '
        "org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:1)",
        54,
        "Spark cannot start Python workers: Resource temporarily unavailable",
    ),
    "Spark cannot start the Python of its workers": (
        LOCAL
        + 'java.io.IOException: Cannot run program "/nonexistent/python": error=2, No such file or directory\n\tat '
        "org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:1)",
        51,
        "Spark cannot start Python workers: /nonexistent/python: No such file or directory",
    ),
    "the Python of the workers ends while it starts": (
        LOCAL + "org.apache.spark.SparkException: \nError from python worker:\n  Traceback (most recent call last):\n"
        '    File "/opt/python2.7/runpy.py", line 163, in _run_module_as_main\n      mod_name, _Error)\n'
        "  SyntaxError: invalid syntax\nPYTHONPATH was:\n  /opt/pyspark.zip\norg.apache.spark.SparkException: "
        "EOFException occurred while reading the port number from pyspark.daemon's stdout.",
        51,
        "the Python that Spark starts for its workers ended while it started: SyntaxError: invalid syntax",
    ),
    "a directory for the sockets of Python workers has too long a path": (
        f"{REMOTE}org.apache.spark.SparkException: \nError from python worker:\n  Traceback (most recent call last):\n"
        '    File "/tmp/nm/container_1/pyspark.zip/pyspark/daemon.py", line 129, in manager\n'
        "  OSError: AF_UNIX path too long\nPYTHONPATH was:\n  /tmp/nm/container_1/pyspark.zip\n"
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from pyspark.daemon's "
        "stdout.",
        11,
        "Spark cannot make a socket for its Python workers: AF_UNIX path too long",
    ),
    "a Python worker has ended: Python worker exited unexpectedly": (
        f"{LOCAL}{CRASHED}. Consider setting 'spark.…faulthandler.enabled'{STACK}",
        54,
        "a Python worker ended while it did a task",
    ),
    "Python worker failed to connect back": (
        f"{LOCAL}org.apache.spark.SparkException: Python worker failed to connect back.{STACK}Caused by: "
        "java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back",
        54,
        "a Python worker has not connected to Spark's JVM in time",
    ),
    "an executor is lost, with Spark's exit code for a JVM without memory, 52": (
        f"{REMOTE.removesuffix(': ')}: ExecutorLostFailure (executor 2 exited caused by one of the running tasks) "
        "Reason: Command exited with code 52\nDriver stacktrace:",
        54,
        "executor 2 ran out of memory: Command exited with code 52",
    ),
    "an executor is lost: ExecutorLostFailure": (
        f"{REMOTE}ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited "
        "with code 137\nDriver stacktrace:",
        54,
        "executor 3 was lost: Command exited with code 137",
    ),
    "a stage is given up: what its executors had computed is lost again and again": (
        "org.apache.spark.SparkException: Job aborted due to stage failure: ShuffleMapStage 4 (start at "
        "NativeMethodAccessorImpl.java:0) has failed the maximum allowable number of times: 4. Most recent failure "
        "reason:\norg.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for shuffle 1",
        54,
        "ShuffleMapStage 4 was given up, because what executors had computed for it was lost: "
        "org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location for shuffle 1",
    ),
    "the rows of a micro-batch are lost with the executors that held them": (
        f"{REMOTE}org.apache.spark.SparkException: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_64_3 not "
        "found!\nEither the executor that originally checkpointed this partition is no longer alive, or the original "
        f"RDD is unpersisted.{STACK}",
        54,
        "the rows of a micro-batch were lost while the sink read them: no executor has block rdd_64_3 any more",
    ),
    "no executor may run a task: excludeOnFailure": (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Aborting TaskSet 0.0 because task 0 "
        "(partition 0) cannot run anywhere due to node and executor excludeOnFailure.\nMost recent failure:",
        54,
        "Spark gave a stage up, because no executor may run a task of it: Aborting TaskSet 0.0 because task 0 "
        "(partition 0) cannot run anywhere due to node and executor excludeOnFailure.",
    ),
    "a disk that Spark writes to is full": (
        f"{LOCAL}java.io.IOException: No space left on device{STACK}",
        54,
        "a disk that Spark writes to is full: No space left on device",
    ),
    "Spark was stopped under the flow": (
        "org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down\n\tat x",
        54,
        "Spark was stopped while the flow ran: Job 3 cancelled because SparkContext was shut down",
    ),
    "a setting of Spark has an unusable value": (
        "Error while instantiating 'org.apache.spark.sql.internal.SessionStateBuilder':\n\nDriver stacktrace:\nCaused "
        "by: org.apache.spark.SparkIllegalArgumentException: [INVALID_CONF_VALUE.TYPE_MISMATCH] The value 'abc' in the "
        "config \"spark.sql.shuffle.partitions\" is invalid. It should be a/an 'int' value. SQLSTATE: 22022",
        11,
        "Spark does not take the value 'abc' of spark.sql.shuffle.partitions. It should be a/an 'int' value",
    ),
    "a setting of Spark has an unusable value, before Spark 4.1": (
        "java.lang.IllegalArgumentException: spark.sql.shuffle.partitions should be int, but was abc",
        11,
        "Spark does not take the value abc of spark.sql.shuffle.partitions: it should be int",
    ),
    "Kafka does not take an option of a source": (
        f"{STREAM}Failed to create new KafkaAdminClient SQLSTATE: XXKST\n\nDriver stacktrace:\nCaused by: "
        f"org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient{KAFKA}Caused by: "
        "org.apache.kafka.common.config.ConfigException: The specified value of default.api.timeout.ms must be no "
        "smaller than the value of request.timeout.ms.",
        11,
        "Kafka does not take the options of a source that the flow reads: The specified value of "
        "default.api.timeout.ms must be no smaller than the value of request.timeout.ms.",
    ),
    "a source refuses this user": (
        "An error occurred while calling o32.text.\n: java.nio.file.AccessDeniedException: s3a://bucket/in: "
        f"org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided by …{SCHEMA}",
        55,
        "a source that the flow reads refuses this user: AccessDeniedException: s3a://bucket/in: "
        "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No AWS Credentials provided by …",
    ),
    "a source does not answer": (
        f"{STREAM}Failed to create new KafkaAdminClient SQLSTATE: XXKST\n=== Streaming Query ===\n"
        "Current Available Offsets: {KafkaV2[Subscribe[words]]: {}}\n\nDriver stacktrace:\nCaused by: "
        f"org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient{KAFKA}Caused by: "
        "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls given in bootstrap.servers",
        55,
        "a source that the flow reads does not answer: ConfigException: No resolvable bootstrap urls given in "
        "bootstrap.servers (of KafkaV2[Subscribe[words]])",
    ),
    "a file of the input cannot be read": (
        f"{LOCAL}org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
        f"file:///in/bad.parquet.  SQLSTATE: KD001{FILES}Caused by: java.lang.RuntimeException: file:/in/bad.parquet "
        "is not a Parquet file. Expected magic number at tail, but found [32, 97, 108, 108]",
        35,
        "Spark cannot read the file file:///in/bad.parquet: RuntimeException: file:/in/bad.parquet is not a Parquet "
        "file. Expected magic number at tail, but found [32, 97, 108, 108]",
    ),
    "Spark's JVM, or that of an executor, has no stack left": (
        f"{LOCAL}java.lang.StackOverflowError\n\tat java.util.regex.Pattern",
        54,
        "an error of the JVM ended Spark's work: java.lang.StackOverflowError",
    ),
    "Spark's JVM, or that of an executor, has no memory left": (
        f"{REMOTE}java.lang.OutOfMemoryError: Java heap space\n\tat x",
        54,
        "an error of the JVM ended Spark's work: java.lang.OutOfMemoryError: Java heap space",
    ),
}
CALL = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
STARTS = {
    **{name: RUNS[name] for name in (row.what for row in STARTING) if name in RUNS},
    "the master of a cluster does not answer": (
        f"{CALL}java.net.ConnectException: Call From h/127.0.0.1 to localhost:8032 failed on connection exception: "
        "java.net.ConnectException: Connection refused; For more details see: …\n\tat x",
        50,
        "Spark did not start: ConnectException: Call From h/127.0.0.1 to localhost:8032 failed on connection "
        "exception: java.net.ConnectException: Connection refused; For more details see: …",
    ),
    "the cluster starts no executors, and Spark gives up": (
        f"{CALL}java.lang.IllegalStateException: Spark context stopped while waiting for backend\n\tat x",
        50,
        "Spark did not start: Spark context stopped while waiting for backend",
    ),
    "the master of a cluster does not take the application": (
        "An error occurred while calling None.org.apache.spark.sql.classic.SparkSession.\n: "
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext …",
        50,
        "Spark did not start: no master has taken the application",
    ),
    "YARN has no container of the size that is asked for": (
        f"{CALL}java.lang.IllegalArgumentException: Required executor memory (9216 MB), offHeap memory (0) MB, "
        "overhead (921 MB), and PySpark memory (0 MB) is above the max threshold (2000 MB) of this cluster! Please "
        "check the values of 'yarn.scheduler.maximum-allocation-mb'.\n\tat x",
        50,
        "Spark did not start: Required executor memory (9216 MB), offHeap memory (0) MB, overhead (921 MB), and "
        "PySpark memory (0 MB) is above the max threshold (2000 MB) of this cluster! Please check the values of "
        "'yarn.scheduler.maximum-allocation-mb'.",
    ),
    "YARN refuses the application": (
        f"{CALL}org.apache.hadoop.yarn.exceptions.YarnException: Failed to submit application_1_0002 to YARN : "
        "Application application_1_0002 submitted by user root to unknown queue: nope\n\tat x",
        50,
        "Spark did not start: Failed to submit application_1_0002 to YARN : Application application_1_0002 submitted "
        "by user root to unknown queue: nope",
    ),
    "YARN ends the application before it runs": (
        f"{CALL}org.apache.spark.SparkException: Application application_1_0003 was killed by user root at 127.0.0.1\n"
        "\tat x",
        50,
        "Spark did not start: Application application_1_0003 was killed by user root at 127.0.0.1",
    ),
}


@pytest.mark.parametrize("row", RUNNING, ids=lambda row: row.what)
def test_what_a_running_flow_meets(row: Failure):
    """Each row of the table has its text, which no earlier row takes; the error says what was found."""
    text, code, found = RUNS[row.what]
    error = as_recovery_error(PySparkException(text))
    assert (type(error), error.exit_code) == (row.kind, code)
    assert error.found == found
    assert "{" not in str(error).replace("{}", "")


@pytest.mark.parametrize("row", STARTING, ids=lambda row: row.what)
def test_what_a_start_of_spark_meets(row: Failure):
    """The reason is Java's, not that a constructor was called."""
    text, code, found = STARTS[row.what]
    error = failure_of(text, STARTING)
    assert (type(error), error.exit_code, error.found) == (row.kind, code, found)


def test_no_text_of_a_row_that_is_gone():
    """The texts are those of the rows."""
    assert set(RUNS) == {row.what for row in RUNNING}
    assert set(STARTS) == {row.what for row in STARTING}


@pytest.mark.parametrize("row", [*RUNNING, *STARTING, JVM_ENDED, JVM_SILENT, STREAM_ENDED], ids=lambda row: row.what)
def test_each_row_says_what_to_do(row: Failure):
    """Whatever a text gives and leaves out."""
    error = documented(row)
    assert error.remedy
    assert error.cause or row.kind.exit_code == 11
    assert "{" not in str(error)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("ValueError: java.lang.OutOfMemoryError: not really", "ValueError: java.lang.OutOfMemoryError: not really"),
        (
            "requests.ConnectionError: java.net.ConnectException: Connection refused",
            "requests.ConnectionError: java.net.ConnectException: Connection refused",
        ),
        ("RuntimeError: Python worker failed to connect back", "RuntimeError: Python worker failed to connect back"),
        (
            "ValueError: bad line\nCaused by: java.lang.OutOfMemoryError: heap\n\tat com.shop.Cart.add(Cart.java:1)\n"
            "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
            "ValueError: bad line\nCaused by: java.lang.OutOfMemoryError: heap",
        ),
        (
            "ValueError: a log says recovery.errors.LeaseLostError: lost",
            "ValueError: a log says recovery.errors.LeaseLostError: lost",
        ),
        ("shop.recovery.errors.LeaseLostError: lost", "shop.recovery.errors.LeaseLostError: lost"),
        (
            f"ImportError: no plugin\nModuleNotFoundError: No module named '{__name__}'",
            f"ImportError: no plugin\nModuleNotFoundError: No module named '{__name__}'",
        ),
        ("ModuleNotFoundError: No module named 'no_such'", "ModuleNotFoundError: No module named 'no_such'"),
        ("ModuleNotFoundError: No module named 'json.nothing'", "ModuleNotFoundError: No module named 'json.nothing'"),
    ],
)  # fmt: skip
def test_what_a_function_of_the_flow_raises_is_the_flows(message, found):
    """Whatever it quotes, and what the driver lacks too."""
    error = as_recovery_error(PySparkException(LOCAL + raised(message)))
    assert error.exit_code == 35
    assert error.found == found


@pytest.mark.parametrize(
    "text",
    [
        f"{LOCAL}org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012{STACK}",
        f"{LOCAL}org.apache.spark.SparkException: [FAILED_EXECUTE_UDF] User defined function failed. SQLSTATE: 39000",
    ],
)
def test_what_spark_says_of_the_flows_sql_is_the_flows(text):
    """By the codes of the SQL standard for statements, for data and for functions."""
    assert as_recovery_error(PySparkException(text)).exit_code == 35
    assert as_recovery_error(AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] …")).exit_code == 35


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory, got 0. SQLSTATE: 53200", 54),
        ("[INTERNAL_ERROR_STORAGE] Block rdd_1_1 was not found SQLSTATE: XX000", 54),
        ("[SOME_ERROR] What the sink asked for cannot be done. SQLSTATE: 58030", 35),
    ],
)
def test_an_error_of_spark_that_a_sink_passes_on(text, code):
    """Codes for a lack of memory and for Spark's own defects are Spark's, also if a line of the flow called Spark."""
    with pytest.raises(PySparkException) as caught:
        raise PySparkException(text)
    assert as_recovery_error(caught.value).exit_code == code


def test_memory_runs_out_in_a_function():
    """The error says which limits there are."""
    error = as_recovery_error(PySparkException(REMOTE + raised("MemoryError")))
    assert (error.exit_code, "spark.executor.pyspark.memory" in error.cause) == (35, True)
    error = as_recovery_error(MemoryError())
    assert (error.exit_code, "spark.executor.pyspark.memory" in error.cause) == (35, True)
    error = as_recovery_error(PySparkException(REMOTE + raised("ValueError: no MemoryError here")))
    assert "spark.executor.pyspark.memory" not in error.cause


@pytest.mark.parametrize(
    "words",
    [
        "java.lang.OutOfMemoryError: Java heap space",
        "a\njava.io.IOException: No space left on device\n\tat com.shop.Cart.add(Cart.java:1)\n",
        "ExecutorLostFailure (executor 3 exited) Reason: x",
        "Python worker failed to connect back",
        "spark.some.number should be int, but was x",
        "[WARNING] java.lang.StackOverflowError",
    ],
)
@pytest.mark.parametrize(
    "text",
    [
        f"{LOCAL}org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value '{{words}}' of the type "
        f'"STRING" cannot be cast to "INT" because it is malformed. SQLSTATE: 22018\n== SQL (line 1, position 1) ==\n'
        f"cast(concat('{{words}}', id) as int)\n^^^^^^^^^^^^^^\n{STACK}",
        f"{LOCAL}org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] {{words}} SQLSTATE: P0001{STACK}",
        f"{LOCAL}org.apache.spark.SparkRuntimeException: [DUPLICATED_MAP_KEY] Duplicate map key {{words}} was found, "
        f"please check the input data. SQLSTATE: 23505{STACK}",
        f"{STREAM}[CAST_INVALID_INPUT] The value '{{words}}' of the type \"STRING\" cannot be cast. SQLSTATE: 22018\n"
        "=== Streaming Query ===\n SQLSTATE: XXKST",
    ],
    ids=["value", "raise_error", "key", "stream"],
)
def test_values_are_not_taken_for_failures(text, words):
    """Whatever the flow's data, and the SQL that Spark quotes, contain: many a flow reads logs of Java programs."""
    assert as_recovery_error(PySparkException(text.format(words=words))).exit_code == 35


@pytest.mark.parametrize("value", ["a", "a.", " ", "\n", "word ", "[A_B] "])
def test_a_value_of_any_size(value):
    """The time does not grow with the square of a line: this one took minutes."""
    text = f"{LOCAL}[CAST_INVALID_INPUT] The value '{value * (200_000 // len(value))}' is malformed{STACK}"
    began_s = time.process_time()
    as_recovery_error(PySparkException(text))
    assert time.process_time() - began_s < 20


@pytest.mark.parametrize(
    "text",
    [
        "[INTERNAL_ERROR] The Spark SQL phase planning failed with an internal error. SQLSTATE: XX000",
        # A sink's target, which the rows about sources must not take.
        f"{JOB}(127.0.0.1 executor driver): java.net.ConnectException: Connection refused\n\tat "
        "org.apache.spark.sql.execution.datasources.FileFormatWriter$.write(FileFormatWriter.scala:1)",
    ],
)
def test_an_error_that_nothing_knows_is_not_called_the_flows(text):
    """With what Spark says, and that nobody looked further."""
    error = as_recovery_error(PySparkException(text))
    assert type(error) is SparkFailedError
    assert "connector" in error.cause


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (". Consider setting 'spark.…faulthandler.enabled'\n\tat org.apache.spark.X.y(X.scala:1)", ""),
        (
            ': Fatal Python error: Segmentation fault\n\nStack:\n  File "flow.py", line 12 in update\n'
            "\tat org.apache.spark.X.y(X.scala:1)\n",
            ': Fatal Python error: Segmentation fault\n\nStack:\n  File "flow.py", line 12 in update',
        ),
    ],
)
def test_a_worker_that_crashed(after, expected):
    """With what it said itself, if Spark's settings keep that, and without Java's stack."""
    found = as_recovery_error(PySparkException(CRASHED + after))
    assert found.found == f"a Python worker ended while it did a task{expected}"


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), "Spark's JVM has ended: Answer from Java side is empty"),
        (ConnectionRefusedError(111, "Connection refused"), "Spark's JVM has ended: [Errno 111] Connection refused"),
        (
            Py4JError("An error occurred while calling o1.x"),
            "Spark's JVM has not answered: Py4JError: An error occurred while calling o1.x",
        ),
        (jvm_failed(""), "the JVM has ended Spark's stream"),
    ],
)
def test_a_jvm_that_is_gone(error, found):
    """By the class of the exception: no text says so."""
    typed = as_recovery_error(error)
    assert type(typed) is SparkFailedError
    assert typed.found == found


@pytest.mark.parametrize(
    ("reason", "setting"),
    [("java.lang.StackOverflowError", "-Xss16m"), ("java.lang.OutOfMemoryError: Java heap space", "driver.memory")],
)
def test_what_raises_a_limit_of_the_jvm(reason, setting):
    """The stack and the heap have settings of their own."""
    row = JVM_STACK if "Stack" in reason else JVM_LIMIT
    assert str(jvm_failed(reason)) == str(row.error({"reason": reason}))
    assert setting in jvm_failed(reason).remedy


def test_the_cause_of_causes_stands_behind_a_vague_reason():
    """As a client of Kubernetes says that an error has occurred."""
    text = (
        f"{CALL}io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.\n\tat x\n"
        "Caused by: java.io.IOException: No route\n\tat y\nCaused by: java.net.Odd$AnnotatedException: why\n"
    )
    assert reason_of(text) == "KubernetesClientException: An error has occurred. (AnnotatedException: why)"
    assert reason_of("nothing of Java's\nsecond line") == "nothing of Java's"


def test_the_python_that_workers_should_run_is_named():
    """The user can copy it."""
    text, _, _ = RUNS["a worker of this host lacks recovery, or what it needs"]
    assert f"PYSPARK_PYTHON={sys.executable} " in failure_of(text, RUNNING).remedy
