"""Spark's standalone cluster on pretend hosts: the master beside the driver, a worker on each other host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pyspark
from hosts import PACKAGE, Host, Network, WorkerHost

SPARK_HOME = Path(pyspark.__file__).parent
MASTER_PORT = 7077
PATIENCE_S = 90.0
LOST_AFTER_S = 20
"""How long the master waits for a silent worker: 60 s by default, and a lost host costs that much."""


class Cluster:
    """A standalone master at the driver's host, and workers on the others.

    with Cluster(network, log) as cluster:
        cluster.add_worker(network.add(package=Path("recovery")))
        network.driver.run(["python", "job.py", cluster.master], cluster.environment)
    """

    def __init__(self, network: Network, log: Path) -> None:
        """log: a file for everything that the master and the workers print."""
        self._network = network
        self._log: IO[bytes] = log.open("ab")
        self._log_path = log
        self.master = f"spark://{network.driver.address}:{MASTER_PORT}"
        arguments = ["org.apache.spark.deploy.master.Master", "--host", network.driver.address]
        self._processes = [self._daemon(network.driver, [*arguments, "--port", MASTER_PORT, "--webui-port", 0])]

    def add_worker(
        self, host: WorkerHost, *, cores: int = 1, python_path: str = PACKAGE, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a worker on a host, and return when the master knows it. python_path: where its Python finds packages
        besides those of this Python. environment: further variables of the worker and its executors."""
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", host.address, "--cores", cores]
        options = ["--memory", "1g", "--work-dir", "/tmp/work", "--webui-port", 0, self.master]
        worker = self._daemon(host, [*arguments, *options], PYTHONPATH=python_path, **environment)
        self._processes.append(worker)
        self._await(f"Registering worker {re.escape(host.address)}:")
        return worker

    def stop(self) -> None:
        """End the master and the workers."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _daemon(self, host: Host, arguments: list[object], **environment: str) -> subprocess.Popen[bytes]:
        # `python3` is this Python there: what Spark runs unless PYSPARK_PYTHON names another.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "JAVA_TOOL_OPTIONS") if name in os.environ}
        given = {**kept, "PATH": path, "SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", **environment}
        given["SPARK_MASTER_OPTS"] = f"-Dspark.worker.timeout={LOST_AFTER_S}"
        command = [SPARK_HOME / "bin" / "spark-class", *arguments]
        return host.start(command, given, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)

    def _await(self, text: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while re.search(text, self._log_path.read_text(errors="replace")) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{self._log_path} does not say: {text}")
            time.sleep(0.1)
