"""All queries whose state Spark's own operators keep, in one process that is killed: one SIGKILL hits each of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from recovery import init_partitions
from recovery.base.reserved import CHECKPOINT_STEP
from recovery.checkpoint.rows import file_of
from recovery.storage.scan import scan
from tests.flows.operators import QUERIES, STORES, added_up, rows_of, unique, write_events
from tests.spark.support import ROOT, set_to
from tests.spark.test_operators import start_plainly

AHEAD = 12
"""Micro-batches of input that each query has when a run starts: more than one can do before it is killed."""
START_S = 15
"""So long it takes until the last query has started, on two cores."""
TIMEOUT_S = 300
STATE_FILES = {"hdfs": {".delta", ".snapshot"}, "rocksdb": {".zip"}, "changelog": {".zip", ".changelog"}}
NO_PROCESSES = {
    # Of Spark's two ways to write a checkpoint, the one that starts fewer processes: a third less time.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}


class Together:
    """A process that runs queries, each with what RecoveryConfig takes, and what it has printed so far."""

    def __init__(self, root: Path, queries: dict[str, dict], pause_s: float = 0.0) -> None:
        asked = json.dumps({"root": str(root), "pause_s": pause_s, "queries": queries})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.flows.together", asked],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.batches: Counter = Counter()
        self.ended: list[str] = []
        self._printed: list[str] = []
        self._jvm: int | None = None
        self._silent = False
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            with self._told:
                match line.split():
                    case ["batch", name]:
                        self.batches[name] += 1
                    case ["ended", name]:
                        self.ended.append(name)
                    case ["jvm", number]:
                        self._jvm = int(number)
                    case _:
                        self._printed.append(line)
                self._told.notify_all()
        with self._told:
            self._silent = True
            self._told.notify_all()

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *_: object) -> None:
        for group in (self._process.pid, self._jvm) if self._process.poll() is None else ():
            if group is not None:
                os.killpg(group, signal.SIGKILL)

    @property
    def printed(self) -> str:
        return "".join(self._printed)

    def wait(self, reached: Callable[[], bool]) -> None:
        """Until the process is as far as that. Fails when it does not get there, or a query has ended."""
        with self._told:
            self._told.wait_for(lambda: reached() or self.ended or self._silent, TIMEOUT_S)
            assert reached(), f"after {self.batches}, ended: {self.ended}: {self.printed}"

    def kill(self, *, jvm_too: bool) -> set[str]:
        """Kill it, and its JVM in the same moment or leave that to find out. Returns the queries that had done a
        micro-batch, none of which has ended."""
        with self._told:
            at_work, over = set(self.batches), self._silent or bool(self.ended)
            if not over:
                os.killpg(self._process.pid, signal.SIGKILL)
                if jvm_too and self._jvm is not None:
                    os.killpg(self._jvm, signal.SIGKILL)
        self._process.wait()
        assert not over, f"it ended before it was killed: {self.ended}: {self.printed}"
        return at_work

    def finish(self) -> None:
        """Wait for the end of all its queries."""
        self._process.wait(12 * TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        assert self._process.returncode == 0, self.printed
        assert sorted(self.ended) == sorted(QUERIES)


def describe(directory: Path):
    """What a partition says of itself."""
    return scan(directory)[0].description


def top_up(root: Path, seed: int) -> None:
    """See to it that no query can come to the end of its input before it is killed, and that none has."""
    for number, name in enumerate(QUERIES):
        path, closed = root / name / "events", describe(root / name / "db").newest
        done = 0 if closed is None else closed.batch_id + 1
        assert not path.exists() or done < len(list(path.iterdir())), f"{name} ran out of input before it was killed"
        write_events(path, 100 * seed + number, done + AHEAD)


def truths(spark, root: Path) -> dict[str, Counter]:
    """What plain Spark gives for each query, all together. It does not know recovery's step: that is added up here."""
    started = {}
    for name, (build, mode, store) in QUERIES.items():
        frame = (unique if name == "both" else build)(spark, str(root / name / "events"))
        with set_to(spark, {**STORES[store], **NO_PROCESSES}):
            started[name] = start_plainly(frame, root / name / "plain", mode)
    for query, _ in started.values():
        query.awaitTermination()
    return {
        name: added_up(outputs.batches) if name == "both" else outputs.merged()
        for name, (_, outputs) in started.items()
    }


def state_files(directory: Path) -> set[str]:
    """The kinds of state files that the partitions hold: they tell which state store has written them."""
    kinds = set()
    for file in scan(directory):
        connection = apsw.Connection(str(file.path), flags=apsw.SQLITE_OPEN_READONLY)
        keys = connection.execute("SELECT state_key FROM snaps WHERE step_id = ?", (CHECKPOINT_STEP,))
        kinds |= {Path(file_of(key)[0]).suffix for (key,) in keys}
        connection.close()
    return kinds & set().union(*STATE_FILES.values())


def check(root: Path, truth: dict[str, Counter], when: str) -> None:
    """Each query's files hold what plain Spark gives."""
    for name in QUERIES:
        found, wanted = rows_of(root / name / "output"), truth[name]
        assert found == wanted, f"{name}, {when}: {found - wanted} too many, {wanted - found} missing"


@pytest.mark.long
def test_random_kills(spark, tmp_path):
    """SIGKILL at random moments, Spark's maintenance busy meanwhile: the files hold what plain Spark gives. So they do
    after going back to any epoch. Half of the kills, or more, find every query at work."""
    kills = int(os.environ.get("RECOVERY_TEST_NATIVE_KILLS", "5"))
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest -m long {__file__}")
    generator = random.Random(seed)
    for name in QUERIES:
        (tmp_path / name).mkdir()
        init_partitions(tmp_path / name / "db", 3)
    at_work: Counter = Counter()
    began_s = time.monotonic()
    for number in range(kills):
        top_up(tmp_path, seed)
        at_work.update(run_and_kill(tmp_path, generator, wait_for_all=number % 2 == 0))
    print(f"{kills} kills in {time.monotonic() - began_s:.0f} s")
    top_up(tmp_path, seed)
    run_to_end(tmp_path, {name: {} for name in QUERIES})
    print(f"run to the end after {time.monotonic() - began_s:.0f} s")
    truth = truths(spark, tmp_path)
    check(tmp_path, truth, f"seed {seed}")
    print(f"plain Spark's output known after {time.monotonic() - began_s:.0f} s")
    back = {}
    for name in QUERIES:
        held = describe(tmp_path / name / "db")
        back[name] = generator.choice(held.epochs[: len(held.epochs) // 2 + 1]).epoch + 1
        places = len({execution.resume_epoch for execution in held.executions})
        print(f"{name}: at work at {at_work[name]} of {kills} kills; {places} epochs gone on from, then back to "
              f"{back[name]} of {len(held.epochs)}; {sum(truth[name].values())} rows")  # fmt: skip
    run_to_end(tmp_path, {name: {"resume_epoch": epoch} for name, epoch in back.items()})
    check(tmp_path, truth, f"seed {seed}, back to {back}")
    for name, (_, _, store) in QUERIES.items():
        assert 2 * at_work[name] >= kills, f"{name} was at work at {at_work[name]} of {kills} kills"
        files = state_files(tmp_path / name / "db")
        assert files, name
        assert files <= STATE_FILES[store], name


def run_and_kill(root: Path, generator: random.Random, *, wait_for_all: bool) -> set[str]:
    """Start the queries in any order, each with its own interval of snapshots, and kill them: most often some time
    after one of them has done some micro-batches. Returns the queries that had done one."""
    names = generator.sample(list(QUERIES), len(QUERIES))
    intervals = {name: generator.choice([0, 0.3, 1]) for name in names}
    someone, count, jvm_too = generator.choice(names), generator.randrange(1, 4), generator.random() < 0.5
    at_any_time = not wait_for_all and generator.random() < 0.2
    pause_s = generator.uniform(0, START_S if at_any_time else 0.6)
    configs = {name: {"snapshot_interval": each, "backup_interval": "1h"} for name, each in intervals.items()}
    with Together(root, configs, pause_s=0.3) as run:
        if wait_for_all:
            run.wait(lambda: len(run.batches) == len(QUERIES))
        if not at_any_time:
            run.wait(lambda: run.batches[someone] >= count)
        time.sleep(pause_s)
        return run.kill(jvm_too=jvm_too)


def run_to_end(root: Path, configs: dict[str, dict]) -> None:
    """All queries, undisturbed."""
    kept = {"snapshot_interval": 0.5, "backup_interval": "1h"}
    with Together(root, {name: {**kept, **config} for name, config in configs.items()}) as run:
        run.finish()
