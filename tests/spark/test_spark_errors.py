"""In real runs, the class of an error says what failed: Spark, Spark's workers, a source, a setting, or the flow's own
code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from recovery import Flow, RecoveryConfig, init_partitions, run
from recovery.errors import ExecutorPackageError, FlowFailedError, InputUnavailableError
from tests.spark.support import ROOT, run_to_end, states, totals_step

COUNTED = """
from recovery import Flow, stateful
{before}
def update(key, rows, state):
    {inside}
    state.update((state.getOption or 0) + len(rows))
    yield key, state.get

def build(spark):
    step = stateful("count", key="value", update=update, output="value string, n long")
    return spark.readStream.text({input!r}).transform(step)

flow = Flow("words", build)
"""


@pytest.fixture
def ran(feed, tmp_path):
    """Runs a flow as its user does: takes code before and in its function, and options."""
    feed.add_random(1)
    init_partitions(tmp_path / "db", 2)

    def ran(before="", inside="pass", *options, **environment) -> tuple[int, str]:
        flow = tmp_path / "main.py"
        flow.write_text(COUNTED.format(before=textwrap.dedent(before), inside=inside, input=str(feed.path)))
        command = [sys.executable, "-m", "recovery", "run", str(flow), "-r", str(tmp_path / "db"), *options]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=environment)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stderr

    return ran


@pytest.mark.long
def test_a_module_that_only_the_driver_finds(ran, tmp_path):
    """By a change of sys.path in the flow's file: the error says where workers look, and nothing of executors."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("def one(n): return n\n")
    before = f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r}); import only_here"
    code, error = ran(before, "only_here.one(1)")
    assert code == 51, error
    assert "Python workers of this host lack the Python module only_here, which the driver has" in error
    assert "sys.path" in error
    assert "xecutor" not in error


@pytest.mark.long
def test_a_module_that_workers_find(ran, tmp_path):
    """By PYTHONPATH, as that error says."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "only_here.py").write_text("def one(n): return n\n")
    before = f"import sys; sys.path.insert(0, {str(tmp_path / 'lib')!r}); import only_here"
    code, error = ran(before, "only_here.one(1)", PYTHONPATH=f"{tmp_path / 'lib'}{os.pathsep}{ROOT}")
    assert code == 0, error


@pytest.mark.long
def test_workers_of_another_python(ran, tmp_path):
    """One that lacks packages: the error names both, and the variable that says which."""
    python = tmp_path / "other-python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    code, error = ran(PYSPARK_PYTHON=str(python))
    assert code == 51, error
    assert "Python workers of this host lack the Python module" in error
    assert str(python) in error
    assert f"PYSPARK_PYTHON={sys.executable}" in error


@pytest.mark.long
def test_workers_of_no_python(ran):
    """The error names what was to be started."""
    code, error = ran(PYSPARK_PYTHON="/nonexistent/python")
    assert code == 51, error
    assert "Spark cannot start Python workers: /nonexistent/python: No such file or directory" in error


@pytest.mark.long
@pytest.mark.parametrize("setting", ["spark.sql.shuffle.partitions", "spark.task.cpus"])
def test_a_setting_with_an_unusable_value(ran, setting):
    """Of a session or of Spark itself: no flow and no restart could help."""
    code, error = ran("", "pass", "--conf", f"{setting}=abc")
    assert code == 11, error
    assert setting in error
    assert "abc" in error


@pytest.mark.long
def test_a_timeout_that_is_no_interval(spark, feed, tmp_path):
    """The flow's own mistake, with its step, key, text and line."""

    def update(key, rows, state):
        state.update([1, 1])
        state.setTimeoutDuration("5 minuts")
        yield key, 1, 1

    feed.add([("a", 1)])
    with pytest.raises(FlowFailedError) as raised:
        run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db")
    first = raised.value.found.splitlines()[0]
    assert first.startswith("step 'totals', key 'a', micro-batch 0: ValueError: setTimeoutDuration: '5 minuts' is not")
    assert "(test_spark_errors.py, line " in first


def test_a_module_of_a_session_of_ones_own(spark, feed, tmp_path, monkeypatch):
    """The same error as from recovery run; the next run, without the module, goes on."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "not_in_workers.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "lib")
    import not_in_workers

    def update(key, rows, state):
        state.update([not_in_workers.ONE, 1])
        yield key, 1, 1

    feed.add_random(1)
    with pytest.raises(ExecutorPackageError, match="lack the Python module not_in_workers, which the driver has"):
        run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db")
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == feed.totals()


def test_a_file_system_that_does_not_answer(spark, tmp_path):
    """Where the flow is built: its source is to blame, not its code."""
    init_partitions(tmp_path / "db", 1)
    flow = Flow("remote", lambda spark: spark.readStream.text("hdfs://127.0.0.1:1/in"))
    with pytest.raises(InputUnavailableError, match=r"does not answer: ConnectException: .*Connection refused"):
        run(flow, RecoveryConfig(tmp_path / "db"), spark=spark)


def test_a_connection_of_the_observers_own(spark, feed, tmp_path):
    """It is the observer that failed, and not Spark's JVM; the next run goes on."""

    def observer(event):
        raise ConnectionRefusedError(111, "the pager does not answer")

    feed.add_random(1)
    with pytest.raises(FlowFailedError, match=r"the pager does not answer \(test_spark_errors.py, line"):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db", observer=observer)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
def test_logs_of_java_in_the_input(spark, feed, tmp_path):
    """A value that Spark cannot cast, and a message of the flow's own function, may quote another Java program."""
    feed.add([("java.lang.OutOfMemoryError: Java heap space", 1)])
    numbers = feed.frame(spark).selectExpr("cast(key as int) as key", "value")
    with pytest.raises(FlowFailedError, match="CAST_INVALID_INPUT"):
        run_to_end(numbers.transform(totals_step()), tmp_path / "db")

    def update(key, rows, state):
        raise ValueError(f"{key}\n\tat com.shop.Cart.add(Cart.java:1)\nrecovery.errors is no module of the shop")

    with pytest.raises(FlowFailedError, match=r"ValueError: java\.lang\.OutOfMemoryError"):
        run_to_end(feed.frame(spark).transform(totals_step(update=update)), tmp_path / "db2")


@pytest.mark.long
def test_executors_that_are_killed_again_and_again(ran):
    """They are Spark's, and the next run goes on."""
    kill = """
    import os
    def kill():
        process = os.getpid()
        while process and b"ExecutorBackend" not in open(f"/proc/{process}/cmdline", "rb").read():
            process = int(open(f"/proc/{process}/stat").read().rpartition(")")[2].split()[1])
        if process:
            os.kill(process, 9)
        os._exit(1)
    """
    master = ("--master", "local-cluster[1,1,512]", "--conf", "spark.executor.memory=512m")
    code, error = ran(kill, "kill()", *master)
    assert code == 54, error
    assert "was lost: " in error
    code, error = ran()
    assert code == 0, error


@pytest.mark.long
def test_a_cluster_that_does_not_answer(ran, tmp_path):
    """Java's reason is shown, not that a constructor was called."""
    settings = {
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.resourcemanager.address": "127.0.0.1:1",
        "yarn.resourcemanager.connect.max-wait.ms": "2000",
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        "ipc.client.connect.max.retries": "1",
    }
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    Path(tmp_path / "yarn-site.xml").write_text(f"<configuration>{rows}</configuration>")
    code, error = ran("", "pass", "--master", "yarn", "--serve", "127.0.0.1:0", HADOOP_CONF_DIR=str(tmp_path))
    assert code == 50, error
    assert "Spark did not start: ConnectException: " in error
    assert "--master" in error
