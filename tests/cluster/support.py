"""A lab: pretend hosts with Spark's standalone cluster on them, and runs from the driver's host."""

from __future__ import annotations

import os
import re
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.spark.jvm.cache import ARCHIVE_VARIABLE, CACHE_VARIABLE
from tests.flows.cluster import truth
from tests.namespaces import family
from tests.stores import paths_of, problems, query, state_at, window

if TYPE_CHECKING:
    from hosts import Host, WorkerHost

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "cluster"
FLOWS = ROOT / "tests" / "flows"
PATIENCE_S = 180.0
SMALL = ("spark.executor.memory=512m", "spark.driver.memory=1g")
IMPATIENT = ("spark.network.timeout=20s", "spark.network.timeoutInterval=10s", "spark.executor.heartbeatInterval=4s")
"""Spark notices a dead host by its silence, by default after two minutes."""


EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
WORKER = "org.apache.spark.deploy.worker.Worker"


NOBODY = "02:00:00:00:00:01"
"""A hardware address that no host has."""


def lose_packets(sender: Host, receiver: Host) -> None:
    """From now on nothing that a host sends to another one arrives there. Both reach all others, and hear nothing of
    the loss."""
    sender.run(["ip", "neigh", "replace", receiver.address, "lladdr", NOBODY, "dev", _device(sender)])


def deliver_packets(sender: Host, receiver: Host) -> None:
    """The end of `lose_packets`."""
    sender.run(["ip", "neigh", "del", receiver.address, "dev", _device(sender)])


def _device(host: Host) -> str:
    return "bridge" if host.name == "driver" else "eth0"


def words_of(pid: int) -> list[str]:
    """The command line of a process; no words if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def jvms(hosts: Iterable[WorkerHost], name: str) -> list[tuple[WorkerHost, int]]:
    """The processes on hosts whose command line has this text, without the shells that started them."""
    known = {_namespace(host.pid): host for host in hosts}
    found = []
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        words = words_of(pid)
        if words[:1] and words[0].endswith("java") and any(name in word for word in words):
            found += [(known[each], pid) for each in [_namespace(pid)] if each in known]
    return found


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def installed() -> list[Path]:
    """Where this Python finds the package by itself, besides this checkout."""
    return [path for each in site.getsitepackages() if (path := Path(each, "recovery")).is_dir()]


class Lab:
    """Hosts, a cluster on them, and a directory of the driver's."""

    def __init__(self, path: Path, **options: Any) -> None:
        from hosts import Network
        from standalone import Cluster

        self.path = path
        self.log = path / "spark.log"
        self.network = Network(hidden=[ROOT, *installed()], **options)
        self.cluster = Cluster(self.network, self.log)

    def add_host(self, package: Path | None = ROOT / "recovery", **options: Any) -> WorkerHost:
        """Add a host with a worker; package None: one without this package. options: of `Cluster.add_worker`."""
        host = self.network.add(package=package)
        self.cluster.add_worker(host, **options)
        return host

    def processes(self, name: str, host: WorkerHost | None = None) -> list[int]:
        """The JVMs on a host, or on all of them, that run this class of Spark: EXECUTOR, WORKER."""
        return [pid for on, pid in jvms(self.network.hosts, name) if host in (None, on)]

    def said(self, pattern: str) -> int:
        """How often the master and the workers have logged this."""
        return len(re.findall(pattern, self.log.read_text(errors="replace")))

    def run(self, target: str, db: Path, *options: object, settings: Iterable[str] = (), **environment: str) -> Run:
        """Start `recovery run` on the driver's host. target: file of tests/flows and flow. settings: of Spark."""
        command = [sys.executable, "-m", "recovery", "run", f"{FLOWS}/{target}", "-r", db, "--trigger", "0", *options]
        command += ["--master", self.cluster.master]
        for each in (*SMALL, *IMPATIENT, f"spark.driver.host={self.network.driver.address}", *settings):
            command += ["--conf", each]
        return self._started(command, db, environment)

    def python(self, script: str, db: Path, *arguments: object) -> Run:
        """Start a script of tests/flows on the driver's host, which makes a session of its own. Its arguments are the
        master, the driver's address and `db`, then these."""
        command = [sys.executable, FLOWS / script, self.cluster.master, self.network.driver.address, db, *arguments]
        return self._started(command, db, {})

    def _started(self, command: list[Any], db: Path, environment: dict[str, str]) -> Run:
        kept = ("PATH", "JAVA_HOME", "JAVA_TOOL_OPTIONS", "TMPDIR", CACHE_VARIABLE, ARCHIVE_VARIABLE)
        given = {name: os.environ[name] for name in kept if name in os.environ}
        given |= {"PYTHONPATH": str(ROOT), **environment}
        # Executors run `python3`: their own.
        given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{given['PATH']}"
        return Run(self.network.driver.command(command, given), db.with_suffix(".out"))

    def close(self) -> None:
        self.cluster.stop()
        self.network.close()


class Run:
    """A run under way on the driver's host."""

    def __init__(self, command: list[str], output: Path, patience_s: float = PATIENCE_S) -> None:
        self.output = output
        self._patience_s = patience_s
        with output.open("ab") as file:
            self._begin = file.tell()
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_bytes()[self._begin :].decode(errors="replace")

    def await_text(self, pattern: str) -> None:
        """Wait until it has printed this."""
        self.await_that(lambda: re.search(pattern, self.text(), re.MULTILINE), pattern)

    def await_that(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds, while the run goes on."""
        deadline_s = time.monotonic() + self._patience_s
        while not condition():
            assert self.process.poll() is None, f"ended before: {what}\n{self.text()}"
            assert time.monotonic() < deadline_s, f"never: {what}\n{self.text()}"
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait until it has ended; return its exit code."""
        try:
            return self.process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run does not end:\n{self.text()}") from None

    def stop(self) -> str:
        """Send SIGTERM; see `succeed`."""
        from hosts import send

        send(self.process, signal.SIGTERM)
        return self.succeed()

    def succeed(self) -> str:
        """Wait until it has ended without an error; return what it printed."""
        code = self.wait()
        assert code == 0, f"exit code {code}\n{self.text()}"
        return self.text()

    def processes(self, name: str) -> list[int]:
        """The processes of the run whose command line has this text."""
        return [pid for pid in family(self.process.pid) if name in " ".join(words_of(pid))]

    def kill(self) -> None:
        """End the driver and what belongs to it immediately."""
        for pid in family(self.process.pid):
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue
        self.process.wait()


def counts_in(db: Path, step: str = "counts") -> dict[str, int]:
    """The newest state of a step whose states are numbers, or texts that begin with one."""
    held = state_at(db, window(db)[-1])
    return {key: int(text.strip('"').split()[0]) for (each, key), (text, _) in held.items() if each == step}


def batches_in(db: Path) -> int:
    """The number of micro-batches that the newest epoch holds."""
    [(batch,)] = query(paths_of(db)[0], "SELECT coalesce(max(batch_id), -1) FROM epochs")
    return batch + 1


def assert_exact(db: Path, rows_per_batch: int, step: str = "counts") -> int:
    """Check that the state is that of a plain loop over the rows of the micro-batches so far; return how many those
    are."""
    batches = batches_in(db)
    assert counts_in(db, step) == truth(rows_per_batch * batches)
    assert problems(db) == []
    return batches
