"""The table of what fails in Spark: how each cause is recognised, the error that stands for it, and the way out.

docs/errors.md prints the table. To add a cause, add a row here, and its real text to
tests/spark/jvm/test_failure_table.py.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence

from recovery.errors import (
    ConfigurationError,
    ExecutorPackageError,
    FlowFailedError,
    InputUnavailableError,
    SparkFailedError,
    SparkUnavailableError,
)
from recovery.spark.jvm.failures import CLASS, Failure

_GOES_ON = "Run the same command again: it continues from the last closed epoch."
_NEEDED = ("recovery", "pyarrow", "pandas", "numpy", "msgspec", "pyspark")
_READS = re.compile(
    r"\bat \S*(?:FileStreamSource|FileScanRDD|FilePartitionReader|InMemoryFileIndex|HadoopFSUtils"
    r"|datasources\.DataSource\$?\.(?:sourceSchema|sourceInfo|resolveRelation|createSource|checkAndGlob)"
    r"|kafka010\.(?:ConsumerStrategy|SubscribeStrategy|KafkaOffsetReader|KafkaMicroBatchStream|KafkaBatchPartition"
    r"|KafkaSource\b|KafkaRelation|KafkaSourceRDD|consumer\.)"
    r"|delta\.sources\.Delta(?:Source\b|DataSource\.(?:sourceSchema|createSource|createRelation))"
    r"|iceberg\.spark\.source\.(?:SparkMicroBatchStream|SparkScan|SparkBatch|\w*Reader\b)"
    r"|jdbc\.JDBC(?:RDD|Relation))"
)
"""A place in the code of Spark, or of a connector, that reads a source."""

JVM_ENDED = Failure(
    "Spark's JVM has ended",
    SparkFailedError,
    "Spark's JVM has ended: {reason}",
    "The JVM was killed, for instance for lack of memory, or crashed.",
)
JVM_SILENT = Failure(
    "the connection to Spark's JVM has broken",
    SparkFailedError,
    "Spark's JVM has not answered: {reason}",
    "The connection to the JVM broke, or the JVM has ended.",
)
STREAM_ENDED = Failure(
    "the thread of Spark's stream has ended without a word",
    SparkFailedError,
    "the JVM has ended Spark's stream",
    "The JVM needed more memory than it may have, for the plan, for a task or for rows that were collected.",
    f"{_GOES_ON} If it happens again, raise the limit: --conf spark.driver.memory=4g.",
)
JVM_LIMIT = Failure(
    "Spark's JVM, or that of an executor, has no memory left",
    SparkFailedError,
    "an error of the JVM ended Spark's work: {reason}",
    "The JVM needed more memory than it may have, for the plan, for a task or for rows that were collected.",
    f"{_GOES_ON} If it happens again, raise the limit: --conf spark.driver.memory=4g; for executors of a cluster, "
    "spark.executor instead of spark.driver.",
    re.compile(
        r"\b(?P<reason>(?:java\.lang\.(?:OutOfMemoryError|InternalError|UnknownError|ThreadDeath)"
        r"|org\.apache\.spark\.memory\.SparkOutOfMemoryError)\b[^\n]{0,400})"
    ),
)
JVM_STACK = Failure(
    "Spark's JVM, or that of an executor, has no stack left",
    SparkFailedError,
    JVM_LIMIT.found,
    "The plan, or an expression in it, is nested deeper than the stack of the JVM allows.",
    f"{_GOES_ON} If it happens again, raise the limit: --conf spark.driver.extraJavaOptions=-Xss16m; for executors of "
    "a cluster, spark.executor instead of spark.driver.",
    re.compile(r"\b(?P<reason>java\.lang\.StackOverflowError\b[^\n]{0,400})"),
)
BAD_OPTION = Failure(
    "Kafka does not take an option of a source",
    ConfigurationError,
    "Kafka does not take the options of a source that the flow reads: {reason}",
    "An option of the source, kafka.…, has an unusable value.",
    "Correct the option in the flow.",
    re.compile(r"kafka\.common\.config\.ConfigException: (?P<reason>(?!No resolvable bootstrap)[^\n]+)"),
    _READS,
)
_LOST = r"ExecutorLostFailure \(executor (?P<executor>\S+) [^\n]*?\)"
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '(?P<module>[\w.]+)'", re.MULTILINE)
_OTHER_PYTHON = (
    "The workers run another Python, {python}, than the driver, {this}: PYSPARK_PYTHON names it, or the virtual "
    "environment was not activated before a session of your own was made."
)
_THIS_PYTHON = (
    "Set PYSPARK_PYTHON={this} before the session is made, or let recovery make the session: recovery run, "
    "recovery.run or recovery.start without spark=."
)
_INSTALL = (
    "Install the wheel of recovery {version}, with what it needs, for the Python of every executor (docs/deploying.md "
    "says how to make the wheel); or send an environment with spark.archives and PYSPARK_PYTHON."
)


def _is_needed(values: Mapping[str, str]) -> bool:
    return values["module"].partition(".")[0] in _NEEDED


def _driver_has(values: Mapping[str, str]) -> bool:
    """Whether the driver can import the module that a worker lacks."""
    try:
        return values["module"] in sys.modules or importlib.util.find_spec(values["module"]) is not None
    except Exception:
        # A package that the driver lacks, or one that cannot be imported, in which the module would be.
        return False


def _is_local(values: Mapping[str, str]) -> bool:
    return not values["host"]


RUNNING: Sequence[Failure] = (
    Failure(
        "another version of Python in the workers than in the driver",
        ExecutorPackageError,
        "Python workers run Python {theirs}, and the driver runs Python {ours}",
        "PYSPARK_PYTHON, or the python3 that comes first in the PATH of the executors, is another Python ({python}) "
        "than the driver's, {this}.",
        "Set PYSPARK_PYTHON to a Python {ours} with recovery, which all hosts have; on one host, {this}.",
        re.compile(
            r"\[PYTHON_VERSION_MISMATCH\].*?version: (?P<theirs>[\d.]+) than that in driver: (?P<ours>[\d.]*\d)"
        ),
        in_python=True,
    ),
    Failure(
        "an executor lacks recovery, or what it needs",
        ExecutorPackageError,
        "{host} lacks the Python module {module}, where recovery {version} is wanted",
        "Executors have packages of their own, and this package was not installed there.",
        f"{_INSTALL} Modules of the flow are sent with --py-files.",
        _MISSING,
        when=lambda values: _is_needed(values) and not _is_local(values),
        in_python=True,
    ),
    Failure(
        "a worker of this host lacks recovery, or what it needs",
        ExecutorPackageError,
        "Python workers of this host lack the Python module {module}, where recovery {version} is wanted",
        _OTHER_PYTHON,
        _THIS_PYTHON,
        _MISSING,
        when=lambda values: _is_needed(values) and _is_local(values) and _driver_has(values),
        in_python=True,
    ),
    Failure(
        "an executor lacks a module of the flow",
        ExecutorPackageError,
        "{host} lacks the Python module {module}, which the driver has",
        "Executors have packages of their own. The run sends them the flow's file, and no other module.",
        "Send the module with --py-files; or install its package for the Python of every executor; or send an "
        "environment with spark.archives and PYSPARK_PYTHON.",
        _MISSING,
        when=lambda values: not _is_local(values) and _driver_has(values),
        in_python=True,
    ),
    Failure(
        "a worker of this host lacks a module of the flow",
        ExecutorPackageError,
        "Python workers of this host lack the Python module {module}, which the driver has",
        "The flow's code changes sys.path, or a session of your own began with another PYTHONPATH or Python. Workers "
        "are processes of their own: they import what PYTHONPATH names, what is installed, and what lies beside the "
        "flow's file.",
        "Put {module} beside the flow's file, or install it; or name its directory in PYTHONPATH; or send it with "
        "--py-files.",
        _MISSING,
        when=lambda values: _is_local(values) and _driver_has(values),
        in_python=True,
    ),
    Failure(
        "a worker cannot import a module that it has",
        ExecutorPackageError,
        "{workers} cannot import what a step needs: {reason}",
        "A package there is incomplete, or is of another version or for another system than its Python.",
        _INSTALL,
        re.compile(r"^ImportError: (?P<reason>[^\n]*)(?=(?:\n[^\n]+)*?\non host )", re.MULTILINE),
        in_python=True,
    ),
    Failure(
        'Spark does not know format("appended") or format("recovery")',
        ExecutorPackageError,
        'Spark does not find format("{format}"): the Python that Spark starts beside the JVM lacks recovery, or what '
        "recovery needs",
        "The workers run another Python, {python}, than the driver, {this}: PYSPARK_PYTHON names it, or the virtual "
        "environment was not activated before a session of your own was made.",
        _THIS_PYTHON,
        re.compile(r"\[DATA_SOURCE_NOT_FOUND\][^\n]*?data source: (?P<format>appended|recovery)\b"),
    ),
    Failure(
        "a host can start no more Python workers",
        SparkFailedError,
        "Spark cannot start Python workers: {reason}",
        "A host has no memory left for another process, or this user may have no more processes or open files there.",
        f"{_GOES_ON} If it happens again, let fewer workers run in parallel: --master 'local[1]', or raise the limits "
        "of this user: ulimit -u, ulimit -n.",
        re.compile(
            r'(?:Cannot run program "|Error from python worker:\n)(?s:.{0,8000}?)\b(?P<reason>Cannot allocate memory'
            r"|Not enough space|Resource temporarily unavailable|Too many open files|MemoryError"
            r"|can't start new thread)"
        ),
        re.compile(r"PythonWorkerFactory|PythonUtils|PythonRunner"),
    ),
    Failure(
        "Spark cannot start the Python of its workers",
        ExecutorPackageError,
        "Spark cannot start Python workers: {program}: {reason}",
        "PYSPARK_PYTHON, or spark.pyspark.python, names no Python of this host or of an executor's.",
        "Set PYSPARK_PYTHON to the path of a Python that all hosts have, with recovery; on one host, {this}.",
        re.compile(r'Cannot run program "(?P<program>[^"\n]*)"[^\n]*?(?:: error=\d+, |: (?=\S+$))(?P<reason>[^\n]+)'),
        re.compile(r"PythonWorkerFactory|PythonUtils|PythonRunner"),
    ),
    Failure(
        "a directory for the sockets of Python workers has too long a path",
        ConfigurationError,
        "Spark cannot make a socket for its Python workers: {reason}",
        "spark.python.unix.domain.socket.enabled is true, and the directory for temporary files of an executor, or of "
        "this host, has a longer path than a socket may have, as that of a container of YARN does.",
        "Leave that setting out; or name a short directory that all hosts have: --conf "
        "spark.python.unix.domain.socket.dir=/tmp.",
        re.compile(r"Error from python worker:\n(?:[^\n]*\n)*?\s*OSError: (?P<reason>AF_UNIX path too long)"),
    ),
    Failure(
        "the Python of the workers ends while it starts",
        ExecutorPackageError,
        "the Python that Spark starts for its workers ended while it started: {reason}",
        "The workers' Python ({python}) is another one than the driver's, {this}; or it lacks PySpark; or something "
        "that it imports when it starts fails.",
        "Set PYSPARK_PYTHON to a Python with recovery, which all hosts have; on one host, {this}.",
        re.compile(r"Error from python worker:\n(?:[^\n]*\n)*?\s*(?P<reason>[^\n]+)\nPYTHONPATH was:"),
    ),
    Failure(
        "a Python worker has ended: Python worker exited unexpectedly",
        SparkFailedError,
        "a Python worker ended while it did a task{said}",
        "The worker was killed, for instance for lack of memory, or a library that the flow uses crashed.",
        f"{_GOES_ON} If it happens again, leave the workers more memory, or let fewer run in parallel: --master "
        "'local[1]'. To see where one crashed: --conf spark.sql.execution.pyspark.udf.faulthandler.enabled=true.",
        re.compile(r"Python worker exited unexpectedly \(crashed\)(?P<said>: .*?(?=\n\tat |\Z)|)", re.DOTALL),
    ),
    Failure(
        "Python worker failed to connect back",
        SparkFailedError,
        "a Python worker has not connected to Spark's JVM in time",
        "A firewall, a proxy or a security tool refuses connections of this host to itself (127.0.0.1); or "
        "PYSPARK_PYTHON ({python}) names a program that is no Python; or the host is too busy to start one.",
        f"Allow connections to 127.0.0.1, and set PYSPARK_PYTHON to a Python with recovery. {_GOES_ON}",
        re.compile(r"Python worker failed to connect back"),
    ),
    Failure(
        "an executor is lost, with Spark's exit code for a JVM without memory, 52",
        SparkFailedError,
        "executor {executor} ran out of memory: {reason}",
        "52 is Spark's exit code for OutOfMemoryError: the executor's JVM needed more memory than it may have.",
        f"{_GOES_ON} If it happens again, give executors more memory: --conf spark.executor.memory=4g.",
        re.compile(rf"{_LOST} Reason: (?P<reason>[^\n]*\b(?:code|status):? 52\b[^\n]*)"),
    ),
    Failure(
        "an executor is lost: ExecutorLostFailure",
        SparkFailedError,
        "executor {executor} was lost: {reason}",
        "The executor was killed, for instance for lack of memory, or its host or the network failed.",
        f"{_GOES_ON} If it happens again, give executors more memory: --conf spark.executor.memory=4g, "
        "spark.executor.memoryOverhead=1g.",
        re.compile(rf"{_LOST}(?: Reason: (?P<reason>[^\n]*))?"),
    ),
    Failure(
        "a stage is given up: what its executors had computed is lost again and again",
        SparkFailedError,
        "{stage} was given up, because what executors had computed for it was lost: {reason}",
        "Executors ended, or cannot reach each other.",
        f"{_GOES_ON} If it happens again, look why executors end, and whether they reach each other's ports.",
        re.compile(
            r"(?P<stage>(?:ShuffleMap|Result)Stage \d+) \([^\n]*?has failed the maximum allowable number of times: \d+"
            r"\. Most recent failure reason:\s*(?P<reason>[^\n]*)"
        ),
    ),
    Failure(
        "the rows of a micro-batch are lost with the executors that held them",
        SparkFailedError,
        "the rows of a micro-batch were lost while the sink read them: no executor has block {block} any more",
        "Up to two executors hold each block. They were killed, their hosts were lost, or dynamic allocation let them "
        "go: spark.dynamicAllocation.cachedExecutorIdleTimeout, which by default has no end, is set.",
        f"{_GOES_ON} With dynamic allocation, leave that setting out.",
        re.compile(r"Checkpoint block (?P<block>\S+) not found"),
    ),
    Failure(
        "no executor may run a task: excludeOnFailure",
        SparkFailedError,
        "Spark gave a stage up, because no executor may run a task of it: {reason}",
        "Tasks failed on each executor or host, and spark.excludeOnFailure keeps others away from there.",
        f"Look at the logs of the executors. {_GOES_ON}",
        re.compile(r"(?P<reason>Aborting TaskSet [^\n]*(?:cannot run anywhere|excludeOnFailure)[^\n]*)"),
    ),
    Failure(
        "a disk that Spark writes to is full",
        SparkFailedError,
        "a disk that Spark writes to is full: {reason}",
        "The directory for Spark's temporary files (spark.local.dir), or that of the output, has no room.",
        f"Make room, or set --conf spark.local.dir=DIRECTORY. {_GOES_ON}",
        re.compile(r"java\.io\.IOException: (?P<reason>(?:No space left on device|Disk quota exceeded)[^\n]*)"),
    ),
    Failure(
        "Spark was stopped under the flow",
        SparkFailedError,
        "Spark was stopped while the flow ran: {reason}",
        "Something called spark.stop() on the session; or the cluster ended the application.",
        f"{_GOES_ON} Let nothing stop a session before the flow has ended.",
        re.compile(
            r"(?P<reason>[^\n:]*cancelled because SparkContext was shut down"
            r"|Cannot call methods on a stopped SparkContext)"
        ),
    ),
    Failure(
        "a setting of Spark has an unusable value",
        ConfigurationError,
        "Spark does not take the value {value} of {name}{rest}",
        remedy="Correct the setting where it was made: --conf, --properties-file, spark-defaults.conf, or the flow.",
        pattern=re.compile(
            r"""\[INVALID_CONF_VALUE[^\]]*\] The value (?P<value>'[^'\n]*') in the config "(?P<name>[^"\n]+)" is """
            r"invalid(?P<rest>\. [^\n]*?(?=\. SQLSTATE| SQLSTATE|$)|)",
            re.MULTILINE,
        ),
    ),
    Failure(
        "a setting of Spark has an unusable value, before Spark 4.1",
        ConfigurationError,
        "Spark does not take the value {value} of {name}: it should be {type}",
        remedy="Correct the setting where it was made: --conf, --properties-file, spark-defaults.conf, or the flow.",
        pattern=re.compile(r"(?P<name>spark\.[\w.]+) should be (?P<type>\w+), but was (?P<value>\S+)"),
    ),
    BAD_OPTION,
    Failure(
        "a source refuses this user",
        InputUnavailableError,
        "a source that the flow reads refuses this user: {reason}{sources}",
        "The credentials are missing, wrong or out of date, or this user may not read there.",
        f"Give the flow's source credentials that may read. {_GOES_ON}",
        re.compile(
            rf"{CLASS}(?P<reason>(?:AccessDeniedException|AccessControlException|\w*AuthenticationException"
            r"|\w*AuthorizationException|NoAuthWithAWSException|CredentialInitializationException)\b[^\n]*"
            r"|\w+Exception: [^\n]*(?:\(Permission denied\)|password authentication failed|Status Code: 40[13])[^\n]*)"
        ),
        _READS,
    ),
    Failure(
        "a source does not answer",
        InputUnavailableError,
        "a source that the flow reads does not answer: {reason}{sources}",
        "The service is down or out of reach, or its address is wrong.",
        f"Look whether this host, and each executor's, reaches it. {_GOES_ON}",
        re.compile(
            rf"{CLASS}(?P<reason>(?:ConnectException|UnknownHostException|NoRouteToHostException"
            r"|SocketTimeoutException|ConnectTimeoutException|DisconnectException|BrokerNotAvailableException)\b[^\n]*"
            r"|TimeoutException: (?:Timed? ?out|Timeout|Cannot fetch|Failed to)[^\n]*"
            r"|ConfigException: No resolvable bootstrap urls[^\n]*"
            r"|SdkClientException: [^\n]*(?:Unable to execute HTTP request|Connect to|Unable to connect)[^\n]*"
            r"|\w+Exception: [^\n]*(?:Connection (?:to \S+ )?refused|connection attempt failed)[^\n]*)"
        ),
        _READS,
    ),
    JVM_STACK,
    JVM_LIMIT,
    Failure(
        "a file of the input cannot be read",
        FlowFailedError,
        "Spark cannot read the file {file}{reason}",
        "The file is damaged or unfinished, or has another format or schema than the flow says.",
        "Repair or remove the file, or correct the source's format and schema. Do not ignore corrupt files: their "
        f"rows would be lost silently. {_GOES_ON}",
        re.compile(
            r"\[FAILED_READ_FILE\.(?!FILE_NOT_EXIST)[^\]]*\][^\n]*?reading file (?P<file>\S+?)\.?\s"
            rf"(?:.*\nCaused by: {CLASS}(?P<reason>\w+(?:Exception|Error): [^\n]*))?",
            re.DOTALL,
        ),
    ),
)
"""What a text says of a flow that is built or that runs. The first row that fits counts."""

_DIED = "Spark did not start: {reason}"
SETTINGS = [row for row in RUNNING if row.kind is ConfigurationError]
STARTING: Sequence[Failure] = (
    *SETTINGS,
    Failure(
        "YARN has no container of the size that is asked for",
        SparkUnavailableError,
        _DIED,
        "The cluster has no container of this size.",
        "Ask for less: --conf spark.executor.memory, spark.executor.memoryOverhead, spark.executor.cores, "
        "spark.yarn.am.memory; or raise what the error names in the cluster.",
        re.compile(r"(?P<reason>Required \w+ (?:memory|cores)[^\n]*(?:above the max threshold|cluster)[^\n]*)"),
    ),
    Failure(
        "YARN refuses the application",
        SparkUnavailableError,
        _DIED,
        "There is no such queue, or this user may not use it.",
        "Name a queue that this user may use: --conf spark.yarn.queue=QUEUE.",
        re.compile(r"(?P<reason>Failed to submit application_\w+ to YARN ?: [^\n]*)"),
    ),
    Failure(
        "YARN ends the application before it runs",
        SparkUnavailableError,
        _DIED,
        "Somebody, or the cluster, ended the application, or its application master cannot run there: its logs say "
        "why.",
        "Look at its logs: yarn logs -applicationId ID. Then run the same command again.",
        re.compile(
            r"(?P<reason>Application application_\w+ (?:failed|was)[^\n]*(?:\n(?!\s*at )[^\n]+){0,3}"
            r"|(?:The )?(?:Yarn|YARN) application has already ended[^\n]*)"
        ),
    ),
    Failure(
        "the master of a cluster does not answer",
        SparkUnavailableError,
        _DIED,
        "Nothing listens at the master's address, or this host cannot reach it: the address, a firewall, the network, "
        "or the cluster is down.",
        "Look at --master, and for YARN at HADOOP_CONF_DIR. Then run the same command again.",
        re.compile(
            rf"{CLASS}(?P<reason>(?:ConnectException|UnknownHostException|NoRouteToHostException"
            r"|SocketTimeoutException|ConnectTimeoutException|IOException: Connection refused)\b[^\n]*)"
        ),
    ),
    Failure(
        "the cluster starts no executors, and Spark gives up",
        SparkUnavailableError,
        _DIED,
        "On Kubernetes: the driver's account may not make pods, a quota is used up, or executors end as soon as they "
        "start: their image has another entry point, or they do not reach spark.driver.host.",
        "Look at the account's rights (kubectl auth can-i create pods --as system:serviceaccount:NAMESPACE:ACCOUNT), "
        "at the events (kubectl get events), and at the executors' logs. Then run the same command again.",
        re.compile(r"(?P<reason>Spark context stopped while waiting for backend)"),
    ),
    Failure(
        "the master of a cluster does not take the application",
        SparkUnavailableError,
        "Spark did not start: no master has taken the application",
        "Nothing listens at the master's address, the master is of another version of Spark, or it ended the "
        "application.",
        "Look at --master, and at the master's log. Then run the same command again.",
        re.compile(r"Cannot call methods on a stopped SparkContext|All masters are unresponsive"),
    ),
)
"""What a text says of a session that cannot be made."""
