"""Hadoop on pretend hosts: a NameNode and a ResourceManager beside the driver, a DataNode and a NodeManager on each
other host, and runs as examples/cluster/yarn.sh has them.

`.ci/run` fetches the jars. Without them, what needs Hadoop is skipped.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from recovery.spark.jvm.cache import ARCHIVE_VARIABLE, CACHE_VARIABLE
from recovery.spark.jvm.java import java_home
from tests.cluster.support import EXAMPLES, FLOWS, IMPATIENT, ROOT, Run, installed, jvms

if TYPE_CHECKING:
    from hosts import Host, WorkerHost

JARS = Path(os.environ.get("RECOVERY_TEST_YARN_JARS", ROOT / ".ci" / "yarn-jars"))
needs_jars = pytest.mark.skipif(
    not any(JARS.glob("hadoop-yarn-*.jar")), reason="no jars of YARN: mvn -f .ci/yarn/pom.xml, as .ci/run does"
)
PATIENCE_S = 480.0
"""A run starts three JVMs, one after the other, beside four to six others."""
HDFS = "hdfs://driver:9000"
SPARK_JARS = f"local:{Path(pyspark.__file__).parent}/jars/*"
EXECUTOR, MASTER = "YarnCoarseGrainedExecutorBackend", "yarn.ExecutorLauncher"
"""In the command lines of an executor, and of the application master."""
RESOURCE_MANAGER = "yarn.server.resourcemanager.ResourceManager"
_HADOOP = "org.apache.hadoop"
SMALL = (
    "spark.executor.instances=2", "spark.executor.cores=1", "spark.executor.memory=512m", "spark.yarn.am.memory=400m",
    "spark.driver.memory=1g", "spark.driver.host=driver",
    # The hosts have this Spark: without this setting, each start would send them its jars.
    f"spark.yarn.jars={SPARK_JARS}",
)  # fmt: skip
_CORE = {"fs.defaultFS": HDFS}
_HDFS = {
    "dfs.replication": 2,
    "dfs.blocksize": 16 << 20,
    "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": 0,
    "dfs.namenode.name.dir": "${lab.home}/name",
    "dfs.datanode.data.dir": "${lab.home}/data",
    "dfs.namenode.safemode.extension": 0,
    "dfs.client.use.datanode.hostname": "true",
    "dfs.datanode.hostname": "${lab.host}",
    "dfs.heartbeat.interval": 1,
    "dfs.namenode.heartbeat.recheck-interval": 2000,
}
_YARN = {
    "yarn.resourcemanager.hostname": "driver",
    "yarn.nodemanager.hostname": "${lab.host}",
    "yarn.nodemanager.local-dirs": "${lab.home}/local",
    "yarn.nodemanager.log-dirs": "${lab.home}/log",
    "yarn.nodemanager.resource.memory-mb": 2200,
    "yarn.nodemanager.resource.cpu-vcores": 3,
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.scheduler.minimum-allocation-mb": 128,
    "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
    "yarn.resourcemanager.recovery.enabled": "true",
    "yarn.resourcemanager.store.class": "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore",
    "yarn.resourcemanager.fs.state-store.uri": "file://${lab.home}/resourcemanager",
    "yarn.nm.liveness-monitor.expiry-interval-ms": 60_000,
    "yarn.am.liveness-monitor.expiry-interval-ms": 300_000,
}
_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default,tiny",
    "yarn.scheduler.capacity.root.default.capacity": 60,
    "yarn.scheduler.capacity.root.default.maximum-capacity": 100,
    "yarn.scheduler.capacity.root.default.user-limit-factor": 10,
    "yarn.scheduler.capacity.root.default.maximum-am-resource-percent": 0.9,
    # Room for an application master of SMALL, and not for an executor.
    "yarn.scheduler.capacity.root.tiny.capacity": 40,
    "yarn.scheduler.capacity.root.tiny.maximum-capacity": 40,
    "yarn.scheduler.capacity.root.tiny.maximum-am-resource-percent": 1,
}
_LOG = """
log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1} %m%n
"""


class Yarn:
    """Hosts with HDFS and YARN on them, and runs from the driver's host."""

    master = "yarn"

    def __init__(self, path: Path, hosts: int = 2) -> None:
        """path: a directory of the driver's, for everything."""
        from hosts import Network

        self.path = path
        self.conf = path / "conf"
        self.conf.mkdir()
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._runs: list[Run] = []
        for name, settings in (("core", _CORE), ("hdfs", _HDFS), ("yarn", _YARN)):
            _write(self.conf / f"{name}-site.xml", settings)
        self._classes = path / "classes"
        for name in ("hdfs", "datanode"):
            # The daemons of HDFS look for their pages, which the jars do not have.
            (self._classes / "webapps" / name).mkdir(parents=True)
        (self._classes / "log4j.properties").write_text(_LOG)
        _write(self._classes / "capacity-scheduler.xml", _QUEUES)
        self.network = Network(hidden=[ROOT, *installed()], shares=[JARS, self.conf, self._classes])
        self.work = path / "work"
        self.work.mkdir()
        make_environment(self.work / "environment.tar.gz", path)
        try:
            self._start(hosts)
        except BaseException:
            self.close()
            raise

    def _start(self, hosts: int) -> None:
        driver, name_node = self.network.driver, "hdfs.server.namenode.NameNode"
        self._daemon(driver, name_node, "-format", "-force", "-nonInteractive").wait(PATIENCE_S)
        self._daemon(driver, name_node)
        self._resource_manager = self._daemon(driver, RESOURCE_MANAGER)
        for _ in range(hosts):
            self.add_node()
        for host in self.network.hosts:
            self.await_said("ResourceManager", self._known(host))
            self.await_said("NameNode", rf"registerDatanode: from DatanodeRegistration\({host.address}")

    def add_node(self) -> WorkerHost:
        """Add a host with a DataNode and a NodeManager; its partitions, if it gets any, have this package."""
        host = self.network.add(package=ROOT / "recovery")
        self._daemon(host, "hdfs.server.datanode.DataNode")
        self._daemon(host, "yarn.server.nodemanager.NodeManager")
        return host

    def restart_resource_manager(self) -> None:
        """Kill it, and start it again; return when the nodes have come back to it."""
        from hosts import send

        self._daemons.remove(self._resource_manager)
        send(self._resource_manager, signal.SIGKILL)
        self._resource_manager.wait()
        known = [len(re.findall(self._known(host), self.said("ResourceManager"))) for host in self.network.hosts]
        self._resource_manager = self._daemon(self.network.driver, RESOURCE_MANAGER)
        for host, times in zip(self.network.hosts, known, strict=True):
            self.await_said("ResourceManager", rf"(?s)(?:{self._known(host)}.*?){{{times + 1}}}")

    def run(self, target: str, db: Path, *options: object, settings: tuple[str, ...] = (), **environment: str) -> Run:
        """Start a flow of tests/flows with examples/cluster/yarn.sh on the driver's host."""
        command = ["sh", EXAMPLES / "yarn.sh", f"{FLOWS}/{target}", db, "--trigger", "0", *options]
        for each in (*SMALL, *IMPATIENT, *settings):
            command += ["--conf", each]
        self._runs.append(Run(self.command(command, **environment), db.with_suffix(".out"), PATIENCE_S))
        return self._runs[-1]

    def command(self, words: list[object], **environment: str) -> list[str]:
        """The command that runs another one on the driver's host, in the directory of the environment."""
        kept = ("JAVA_HOME", "JAVA_TOOL_OPTIONS", "TMPDIR", CACHE_VARIABLE, ARCHIVE_VARIABLE)
        given = {name: os.environ[name] for name in kept if name in os.environ}
        given |= {"PYTHONPATH": str(ROOT), "HADOOP_CONF_DIR": str(self.conf), "PYTHONUNBUFFERED": "1", **environment}
        # `python` is the driver's own.
        given["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return self.network.driver.command(["env", "-C", self.work, *words], given)

    def processes(self, name: str) -> list[tuple[WorkerHost, int]]:
        """See `jvms`."""
        return jvms(self.network.hosts, name)

    def end_runs(self) -> None:
        """End what still runs."""
        while self._runs:
            self._runs.pop().kill()

    def files(self, *words: object) -> str:
        """Run a command of Hadoop's shell for files, `-ls` for example, on the driver's host; return what it prints."""
        command = [java_home() / "bin" / "java", "-Xmx128m", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", f"{self.conf}:{self._classes}:{JARS}/*", "org.apache.hadoop.fs.FsShell", *words]
        done = subprocess.run(self.command(command), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def said(self, daemon: str) -> str:
        """What daemons of this name have logged."""
        return self._log(daemon).read_text(errors="replace")

    def close(self) -> None:
        """End everything."""
        self.end_runs()
        for process in self._daemons:
            process.kill()
            process.wait()
        self.network.close()

    @staticmethod
    def _known(host: Host) -> str:
        return rf"NodeManager from node {host.name}\("

    def _daemon(self, host: Host, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = str(self.path / "disk") if host is self.network.driver else "/tmp/hadoop"
        options = [f"-Dlab.home={home}", f"-Dlab.host={host.name}", "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        for package in ("java.lang", "java.util"):
            options += ["--add-opens", f"java.base/{package}=ALL-UNNAMED"]
        command = [java_home() / "bin" / "java", *options, "-cp", f"{self.conf}:{self._classes}:{JARS}/*"]
        environment = {"JAVA_HOME": str(java_home()), "USER": "root", "LANG": "C.UTF-8"}
        with self._log(name).open("ab") as log:
            started = host.start(
                [*command, f"{_HADOOP}.{name}", *arguments], environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._daemons.append(started)
        return started

    def _log(self, name: str) -> Path:
        return self.path / f"{name.rpartition('.')[2]}.log"

    def await_said(self, name: str, pattern: str) -> None:
        """Wait until a daemon of this name has logged this."""
        until_s = time.monotonic() + PATIENCE_S
        while re.search(pattern, self.said(name)) is None:
            ended = [" ".join(each.args) for each in self._daemons[1:] if each.poll() is not None]  # the first formats
            assert not ended, f"ended: {ended}; see {self.path}"
            assert time.monotonic() < until_s, f"{self._log(name)} does not say: {pattern}"
            time.sleep(0.1)


def make_environment(archive: Path, scratch: Path) -> None:
    """Make the archive that examples/cluster/yarn.sh describes: a virtual environment with this package's wheel. In the
    place of what that needs, the archive has links to the packages of this Python, which all hosts see."""
    env = scratch / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    [packages] = env.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"(pyspark|py4j|recovery|__pycache__|_distutils|distutils)|.*\.(pth|egg-link)$", path.name):
            (packages / path.name).symlink_to(path)
    code = f"import hatchling.build; hatchling.build.build_wheel({str(scratch)!r})"
    subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, check=True, capture_output=True)
    [wheel] = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(packages)
    subprocess.run(["tar", "-C", env, "-czf", archive, "."], check=True)


def _write(path: Path, settings: Mapping[str, object]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{rows}</configuration>\n")
