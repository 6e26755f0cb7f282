"""Signals from the first moment of a command, also as process 1 of a container. Nothing here starts Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recovery.host.signals import STOPPING
from recovery.spark.jvm.launch import _Starting
from recovery.spark.jvm.session import _for_python
from tests.forks import run_code
from tests.namespaces import as_process_1, process_1
from tests.stores import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SLOW = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException:
    print("the flow went on")
"""


@pytest.mark.parametrize("number", STOPPING)
def test_while_a_flow_is_imported(number, store_dir, tmp_path):
    """As process 1, which gets only the signals that it has handlers for; and whatever the flow's code catches."""
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "recovery", "run", tmp_path / "slow.py", "-r", store_dir]
    process = as_process_1(*command, env=ENVIRONMENT)
    try:
        assert process.stdout.readline() == "importing\n"
        os.kill(process_1(process), number)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, printed) == (128 + number, "")


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("how", ["module", "script"])
def test_while_the_command_itself_is_imported(how, number, tmp_path):
    """No traceback, from the first thing on that the package imports."""
    package, script = tmp_path / "recovery", tmp_path / "bin" / "recovery"
    (package / "host").mkdir(parents=True)
    for name in ("__init__.py", "__main__.py", "host/__init__.py", "host/signals.py"):
        (package / name).symlink_to(ROOT / "recovery" / name)
    end = f"import os, time; os.kill(os.getpid(), {int(number)}); time.sleep(60)"
    (package / "errors.py").write_text(end)
    script.parent.mkdir()
    # As pip writes it.
    script.write_text("import sys\nfrom recovery.__main__ import main\nsys.exit(main())\n")
    command = [script] if how == "script" else ["-m", "recovery"]
    process = subprocess.run(
        [sys.executable, *command, "verify"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
    )  # fmt: skip
    assert (process.returncode, process.stdout, process.stderr) == (128 + number, "", "")


COMMAND = """
import os, signal, sys, click
from recovery.cli import main

@main.command()
def wait():
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        signal.pause()
    finally:
        print("cleaned up", flush=True)

main(["wait"])
"""


@pytest.mark.parametrize("number", STOPPING)
def test_a_command_cleans_up(number):
    """It ends with the signal's code, after its drafts and its processes are gone."""
    done = run_code(COMMAND, int(number))
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "cleaned up\n", "")


BUSY = """
import sys, apsw, click
from recovery.__main__ import main
from recovery.host import signals
from recovery.cli import main as commands

@commands.command()
def wait():
    print("busy", flush=True)
    apsw.Connection("").execute("WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n")

signals.GRACE_S = float(sys.argv[1])
sys.argv = ["recovery", "wait"]
main()
"""


ENDING = """
import sys, apsw
from recovery.host import signals

signals.GRACE_S = 1.0
signals.end_after_grace()
with signals.handled(signals.EndingAfter(lambda: print("cleaned up", flush=True))):
    print("busy", flush=True)
    if sys.argv[1] == "call":
        endless = "WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
        apsw.Connection("").execute(endless)
    else:
        sys.stdin.read()
"""


@pytest.mark.parametrize("during", ["call", "wait"])
def test_a_process_cleans_up_before_it_ends_unless_a_long_call_keeps_it(during):
    """As a run that waits for its JVM, or looks at its partitions meanwhile."""
    with subprocess.Popen(
        [sys.executable, "-c", ENDING, during],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as process:
        try:
            assert process.stdout.readline() == "busy\n"
            time.sleep(0.1)
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
        assert during == "call" or process.stdout.read() == "cleaned up\n"


ACTING = """
import signal, threading
from recovery.host.signals import acting, end_now

def get_signal():
    # It comes to this thread, and interrupts no wait of another one.
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

with acting(end_now):
    threading.Timer(0.5, get_signal).start()
    threading.Event().wait()
"""


def test_a_signal_that_another_thread_gets_is_acted_on():
    """While the main thread waits without end, as for a node of a pipeline."""
    done = run_code(ACTING)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


@pytest.mark.parametrize("twice", [False, True])
def test_a_long_call_does_not_keep_a_command(twice):
    """No handler runs during it: the process ends after a while, or at the second signal."""
    grace_s = 30.0 if twice else 1.0
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(grace_s)], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        assert process.stdout.readline() == "busy\n"
        time.sleep(0.1)
        sent_s = time.monotonic()
        if twice:
            # Another one than the second: the system keeps only one of a kind for a process that has no turn.
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert (time.monotonic() - sent_s < grace_s) == twice


def test_under_nohup_a_closed_terminal_ends_nothing():
    """What was ignored when the command began stays ignored."""
    done = run_code("""
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from recovery.host.signals import acting, end_now, handle
handle(end_now)
with acting(print):
    os.kill(os.getpid(), signal.SIGHUP)
print("goes on")
""")
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr


ANSWERED = """
import os, signal, sys
from recovery.cli.signals import answering
from recovery.host.signals import StopSignals
signals = StopSignals()
with answering("the backup under way"):
    os.kill(os.getpid(), signal.SIGINT)
    assert signals.came_within(0)
    print("goes on", flush=True)
    if sys.argv[1] == "twice":
        os.kill(os.getpid(), signal.SIGTERM)
print("ends in order", flush=True)
"""


def test_a_command_that_finishes_something_first_says_so():
    """And a second signal does not wait for it."""
    said = "stopping: waiting for the backup under way …; Ctrl-C again ends immediately\n"
    once, twice = run_code(ANSWERED, "once"), run_code(ANSWERED, "twice")
    assert (once.returncode, once.stdout, once.stderr) == (0, "goes on\nends in order\n", said)
    assert (twice.returncode, twice.stdout, twice.stderr) == (143, "goes on\n", said)


SPARKS = """
import os, signal, subprocess, sys, time
if sys.argv[1] == "daemon":
    # As pyspark/daemon.py does, whose file it seems to be in.
    code = "import signal\\nfor each in (signal.SIGTERM, signal.SIGINT): signal.signal(each, signal.SIG_DFL)"
    exec(compile(code, "/x/pyspark/daemon.py", "exec"), {})
print("ready", flush=True)
for _ in range(3):
    signal.sigtimedwait([], 0.3)
started = subprocess.run(["sh", "-c", "kill -TERM $$; sleep 9"]).returncode
print("goes on", started, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["daemon", "planner"])
def test_processes_of_spark_leave_signals_to_the_driver(kind, tmp_path, monkeypatch):
    """A supervisor's SIGTERM, and Ctrl-C, end neither Spark's daemon and its workers nor what plans a source; Spark's
    own SIGTERM, with which it closes their standard input, does. What users start in them is as ever."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    environment = {**os.environ, **_for_python()}
    process = subprocess.Popen(
        [sys.executable, "-c", SPARKS, kind], env=environment, cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "ready\n"
        for number in (signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
            time.sleep(0.1)
        assert process.stdout.readline() == f"goes on {-signal.SIGTERM}\n"
        if kind == "planner":
            process.terminate()
            process.stdin.close()
            assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_jvm_ignores_what_ends_the_driver(tmp_path):
    """From its first moment: a JVM leaves alone what was ignored when it began."""
    shown = tmp_path / "shown"
    process = _Starting(
        ["sh", "-c", f"grep SigIgn /proc/self/status > {shown}"],
        env={**os.environ, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(tmp_path / "told" / "x")}, stderr=subprocess.PIPE,
    )  # fmt: skip
    _Starting.launch = None
    assert process.wait(30) == 0
    process.output.join()
    process.stderr.close()
    ignored = int(Path(shown).read_text().split()[1], 16)
    assert all(ignored >> (number - 1) & 1 for number in STOPPING)
