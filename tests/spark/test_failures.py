"""Tasks, Python workers and JVMs that fail or are killed, and tasks that Spark runs twice: state is exact. And
the errors of a flow that is wrong itself."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader

from recovery import Flow, FlowFailedError, RecoveryConfig, SparkFailedError, init_partitions, run
from recovery.spark.jvm.session import prepare_environment
from recovery.storage.scan import scan
from tests.owner.served import recovery
from tests.spark.support import ROOT, Feed, add_up, run_to_end, states, totals_step
from tests.spark.test_crashes import GONE_S, finish, json_of, recovery_command, recovery_run, wait_for_batch
from tests.stores import problems

FAILURES = ("at once", "after some keys", "exit", "killed", "after applying")


def test_what_a_flow_names_wrongly_is_reported_in_one_line(spark, tmp_path):
    """Where it is built, and in its sink."""
    init_partitions(tmp_path / "db", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\n")
    lines = lambda: spark.readStream.text(str(tmp_path / "in"))  # noqa: E731
    built = Flow("built", lambda _: lines().selectExpr("missing"))
    written = Flow("written", lambda _: lines(), lambda batch, _: batch.select("missing").collect())
    for flow, began in ((built, "building flow 'built' failed: "), (written, "")):
        with pytest.raises(FlowFailedError) as raised:
            run(flow, RecoveryConfig(tmp_path / "db"), spark=spark)
        text = r"AnalysisException: \[UNRESOLVED_COLUMN.*\[`value`\]\. \(test_failures\.py, line \d+\)"
        assert re.fullmatch(re.escape(began) + text, raised.value.found)


@pytest.mark.long
def test_a_value_that_cannot_be_stored_is_named_with_its_step_key_and_place(tmp_path):
    """As the command line says it, with Spark's settings there: the whole chain of tracebacks comes through the JVM."""
    init_partitions(tmp_path / "db", 1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\n")
    (tmp_path / "words.py").write_text(
        "from recovery import Flow, stateful\n"
        "def count(key, rows, state):\n"
        "    state.update({'n': 1, 'later': [lambda: key]})\n"
        "    yield key, 1\n"
        "def build(spark):\n"
        "    step = stateful('count', key='value', update=count, output='word string, n long')\n"
        f"    return spark.readStream.text({str(tmp_path / 'in')!r}).transform(step)\n"
        "flow = Flow('words', build)\n"
    )
    done = recovery("run", tmp_path / "words.py", "-r", tmp_path / "db", "--json")
    error = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, error["error"]) == (33, "StateValueError")
    assert error["found"].startswith(
        "step 'count', key 'a': in dict {'n': 1, 'later': [<function count.<locals>.<lambda>"
    )
    assert "at ['later'][0], function <function" in error["found"]


@pytest.mark.parametrize("where", ["step", "function"])
def test_an_error_whose_text_is_not_utf8_is_reported(spark, feed, tmp_path, where):
    """Such as one that names a file. PySpark cannot send that text, and Spark waited for it without end."""

    def fail(key, *_):
        raise ValueError(f"no file {key}\udcff")

    feed.add([("a", 1)])
    frame = feed.frame(spark)
    frame = frame.transform(totals_step(update=fail)) if where == "step" else frame.select(F.udf(fail)("key"))
    with pytest.raises(FlowFailedError, match=r"ValueError: no file a\\udcff \(test_failures.py, line \d+\)") as raised:
        run_to_end(frame, tmp_path / "db")
    assert raised.value.found.startswith("step 'totals', key 'a', micro-batch 0: ") is (where == "step")


def test_a_data_source_whose_error_is_not_utf8_is_reported(spark):
    """Spark runs other Python processes to ask a source of the user's own what there is."""

    class Reader(DataSourceReader):
        def partitions(self):
            raise ValueError("no file \udcff")

        def read(self, partition):
            yield (1,)

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "unlisted"

        def schema(self):
            return "n int"

        def reader(self, schema):
            return Reader()

    spark.dataSource.register(Source)
    with pytest.raises(AnalysisException, match=r"ValueError: no file \\udcff"):
        spark.read.format("unlisted").load().collect()


@pytest.mark.usefixtures("retries")
def test_a_worker_that_dies_is_reported_in_one_line(spark, feed, tmp_path):
    """Java's stack is no help; what to do is."""

    def die(key, rows, state):
        os._exit(9)

    feed.add_random(1)
    with pytest.raises(SparkFailedError) as raised:
        run_to_end(feed.frame(spark).transform(totals_step(update=die)), tmp_path / "db")
    assert raised.value.found == "a Python worker ended while it did a task"
    assert "memory" in raised.value.cause
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == feed.totals()


@pytest.mark.long
@pytest.mark.usefixtures("retries")
def test_every_attempt_but_the_last_fails(spark, feed, tmp_path):
    """In each micro-batch three attempts of every task fail in one way: by an immediate error, after some keys or after
    applying its changes, by leaving, by being killed. The fourth counts, alone."""
    for seed in range(len(FAILURES)):
        feed.add_random(seed, keys=60)

    def how() -> tuple[str, int]:
        from pyspark import TaskContext

        context = TaskContext.get()
        return FAILURES[int(context.getLocalProperty("streaming.sql.batchId"))], context.attemptNumber()

    def failing(key, rows, state):
        failure, attempt = how()
        yield from add_up(key, rows, state)
        if attempt == 3 or failure == "after applying" or (failure != "at once" and int(key[1:]) % 4 != attempt):
            return
        if failure == "exit":
            os._exit(3)
        if failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError(failure)

    def failing_behind(batches):
        yield from batches
        failure, attempt = how()
        if failure == "after applying" and attempt < 3:
            raise RuntimeError(failure)

    frame = feed.frame(spark).transform(totals_step(update=failing))
    summary = run_to_end(frame.mapInArrow(failing_behind, frame.schema), tmp_path / "db")
    assert summary.batches == len(FAILURES)
    assert states(tmp_path / "db", "totals") == feed.totals()
    assert problems(tmp_path / "db") == []


def java_of(pid: int) -> int:
    """The JVM of a run: the child process that is Java."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if "java" in Path(f"/proc/{child}/cmdline").read_text().split("\0")[0]:
            return int(child)
    raise AssertionError("the run has no JVM")


@pytest.mark.long
def test_a_killed_jvm(feed, tmp_path):
    """The run ends with an error and without a hang; the next one goes on exactly. RECOVERY_TEST_JVM_KILLS says how
    often."""
    for seed in range(20):
        feed.add_random(seed, count=60)
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    generator = random.Random(seed)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    for _ in range(int(os.environ.get("RECOVERY_TEST_JVM_KILLS", "2"))):
        process = recovery_run(directory, feed, "-s", "0", pause_s=0.3)
        wait_for_batch(process)
        time.sleep(generator.uniform(0, 0.6))
        os.kill(java_of(process.pid), signal.SIGKILL)
        output = finish(process, 120)
        assert process.returncode == SparkFailedError.exit_code == 54, output
        # PySpark and py4j log in their way that the JVM is gone; what the run says comes last, and is not a traceback.
        error = output[output.rindex("Error: ") :]
        assert "it continues from the last closed epoch" in error, output
        assert "Traceback" not in error, output
    process = recovery_run(directory, feed)
    output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()


@contextlib.contextmanager
def standalone(logs: Path, hosts: Sequence[str] = ("127.0.0.2", "127.0.0.3")) -> Iterator[str]:
    """A standalone master with one worker on each of some loopback addresses: hosts, as far as Spark can tell."""
    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    master = f"spark://127.0.0.1:{port}"
    quiet = ["--webui-port", "0"]
    prepare_environment()  # Java may have to come from the wheel
    common = {**os.environ, "SPARK_HOME": str(home), "SPARK_WORKER_DIR": str(logs / "work")}
    started: list[subprocess.Popen] = []

    def start(host: str, kind: str, *options: str, until: str) -> None:
        path = logs / f"{host}-{kind}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", host]
        environment = {**common, "SPARK_LOCAL_IP": host}
        with path.open("w") as log:
            started.append(
                subprocess.Popen(
                    [*command, *quiet, *options], env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )
        wait_for_text(path, until)

    try:
        start("127.0.0.1", "master.Master", "--port", port, until="I have been elected leader")
        for host in hosts:
            options = ("--cores", "2", "--memory", "1g", master)
            start(host, "worker.Worker", *options, until="Successfully registered")
        yield master
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for_text(path: Path, text: str, timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while text not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)


@pytest.mark.long
def test_speculation_on_two_hosts(feed, tmp_path):
    """A task that is slow is run a second time on the other host, at the same time: its rows count once."""
    for seed in range(4):
        feed.add_random(seed, count=200, keys=30)
    notes = tmp_path / "notes"
    notes.mkdir()
    directory = tmp_path / "db"
    init_partitions(directory, 4)
    options = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.25",
        "spark.speculation.minTaskRuntime": "50ms",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "2",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    target = f"{ROOT / 'tests' / 'flows' / 'hosts.py'}:make({str(feed.path)!r}, {str(notes)!r})"
    with standalone(tmp_path) as master:
        conf = [part for key, value in options.items() for part in ("--conf", f"{key}={value}")]
        process = recovery_command(target, directory, "-s", "0", *conf, master=master)
        output = finish(process)
    assert process.returncode == 0, output
    assert states(directory, "totals") == feed.totals()
    assert problems(directory) == []
    again = {note.name.split(".")[0] for note in notes.iterdir() if note.name.split(".")[0].endswith("-1")}
    print(f"keys that a second attempt computed: {len(again)}")
    assert again, "Spark speculated nothing"


def graceful(process: subprocess.Popen, generator: random.Random, done: int) -> tuple[list[int], float]:
    """Send one signal; returns the micro-batches that were done before the end, and the seconds to it."""
    number = generator.choice([signal.SIGTERM, signal.SIGINT])
    time.sleep(generator.uniform(0, 1.5))
    sent = time.monotonic()
    os.killpg(process.pid, number)
    output = finish(process, 120)
    seconds = time.monotonic() - sent
    assert process.returncode == 0, output
    lines = [line.split() for line in output.splitlines() if line.startswith("batch ") and " · " not in line]
    return [done, *(int(words[1]) for words in lines)], seconds


@pytest.mark.long
def test_signals_at_random_times(feed, tmp_path):
    """One signal ends a run within 10 s past the running micro-batch, and nothing of it is replayed; a second one ends
    it immediately, and nothing is lost. RECOVERY_TEST_SIGNALS says how many runs."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    generator = random.Random(seed)
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    slowest = slowest_start = 0.0
    for number in range(int(os.environ.get("RECOVERY_TEST_SIGNALS", "50"))):
        # More than are done before the signal comes: a run at its own end has no part in this.
        for _ in range(20):
            feed.add_random(generator.randrange(10**9), count=50)
        began = time.monotonic()
        process = recovery_run(directory, feed, "-s", generator.choice(["0", "0.5", "1h"]), pause_s=0.3)
        done = wait_for_batch(process)
        slowest_start = max(slowest_start, time.monotonic() - began)
        if number % 3 == 2:
            twice(process, generator, slowest_start)
            continue
        batches, seconds = graceful(process, generator, done)
        slowest = max(slowest, seconds)
        newest = {file.description.newest.batch_id for file in scan(directory)}
        assert newest == {batches[-1]}, f"seed {seed}, run {number}: the last micro-batch would be replayed"
    process = recovery_run(directory, feed, "--json")
    output = finish(process, 900)
    assert process.returncode == 0, output
    assert json_of(output)["rows"] >= 0
    assert states(directory, "totals") == feed.totals()
    print(f"slowest graceful end: {slowest:.1f} s, a micro-batch takes 0.3 s at least")
    # A machine that takes long to start Spark takes longer to end it, too.
    assert slowest < max(10 + 5, slowest_start)


def twice(process: subprocess.Popen, generator: random.Random, start_s: float) -> None:
    """Two signals, with a random time between; the run ends well if it was quick, else immediately. The second one may
    also meet a process that has done everything and is about to exit."""
    first, second = (generator.choice([signal.SIGTERM, signal.SIGINT]) for _ in range(2))
    time.sleep(generator.uniform(0, 1.0))
    os.killpg(process.pid, first)
    time.sleep(generator.uniform(0, 0.4))
    sent = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, second)
    output = finish(process, 120)
    assert process.returncode in (0, 128 + second, -second), output
    assert time.monotonic() - sent < max(10, start_s) or process.returncode == 0


def memory_and_files(pid: int) -> tuple[int, int] | None:
    """Resident kilobytes and open files of a process; None when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None
    resident = next((line for line in status.splitlines() if line.startswith("VmRSS")), None)
    return None if resident is None else (int(resident.split()[1]), files)


@pytest.mark.long
def test_soak(tmp_path):
    """Killed every two to ten epochs over many records, the state is exact; memory and open files of a run that is left
    alone stay flat. RECOVERY_TEST_SOAK_RECORDS says how many."""
    records = int(os.environ.get("RECOVERY_TEST_SOAK_RECORDS", "10000000"))
    per_file = max(1_000, min(50_000, records // 60))
    generator = random.Random(7)
    feed = Feed(tmp_path / "input")
    for _ in range(records // per_file):
        feed.add_random(generator.randrange(10**9), count=per_file, keys=20_000)
    directory = tmp_path / "db"
    init_partitions(directory, 3)
    files = records // per_file
    kills = 0
    while next_batch(directory) < files // 2:
        process = recovery_run(directory, feed, "-s", "0", "-b", "30s")
        epochs = generator.randrange(2, 11)
        for line in process.stdout:
            epochs -= line.startswith("epoch ")
            if epochs <= 0:
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=GONE_S)
        kills += 1
    process = recovery_run(directory, feed, "-s", "0", "-b", "30s")
    samples = []
    for line in process.stdout:
        if line.startswith("epoch ") and (sample := memory_and_files(process.pid)) is not None:
            samples.append(sample)
    assert process.wait(GONE_S) == 0
    assert states(directory, "totals") == feed.totals()
    assert problems(directory) == []
    third = len(samples) // 3
    early, late = samples[third : 2 * third], samples[2 * third :]
    print(
        f"{records} records, {kills} kills, then {len(samples)} epochs: memory (kB) and files {early[0]} … {late[-1]}"
    )
    # In the middle of the samples: a single one may meet whatever has files open for a moment.
    assert median(files for _, files in late) <= median(files for _, files in early) + 4
    assert median(kb for kb, _ in late) < 1.2 * median(kb for kb, _ in early)


def next_batch(directory: Path) -> int:
    """How many micro-batches all partitions have."""
    newest = [file.description.newest for file in scan(directory)]
    return 0 if None in newest else min(each.batch_id for each in newest) + 1
