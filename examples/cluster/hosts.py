"""Pretend hosts on one machine, to try a cluster: each has its own network, processes, name and disks.

Every host is a set of Linux namespaces (network, mount, UTS, PID) with an address on one bridge. `driver` sees the
machine's files. The others see its programs and this Python's environment, read-only, and have empty disks
in memory where the machine has its temporary files. Needs root, and `unshare`, `nsenter` and `ip` (packages util-linux
and iproute2).

    with Network() as network:
        host = network.add()
        host.run(["hostname"])          # host1
        host.cut()                      # its cable is pulled; both sides go on
        host.repair()
        host.crash()                    # its processes, disks and address are gone
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SUBNET = "10.77.0"
PACKAGE = "/mnt/package"
"""Where a host has the package that it was given: a value for PYTHONPATH."""
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
_ISOLATED = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
_UP = "up\n"


def impossible() -> str:
    """Why no hosts can be made here; empty if they can."""
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        return f"pretend hosts need {', '.join(missing)}"
    test = "ip link add bridge type bridge && ip link add cable type veth peer name eth0 && mount -t tmpfs t /mnt"
    done = subprocess.run([*_ISOLATED, "sh", "-c", test], capture_output=True, text=True, timeout=60, check=False)
    return f"pretend hosts need root: {done.stderr.strip()}" if done.returncode else ""


class Host:
    """One host. It lives until `crash`, or until the process that made it ends."""

    def __init__(self, name: str, address: str, setup: str, inside: str = "") -> None:
        """setup: shell commands that run inside, before any process starts. inside: the directory that commands start
        in."""
        self.name = name
        self.address = address
        self._inside = inside or "/"
        script = f"hostname {name}; ip link set lo up; {setup}; echo {_UP.strip()}; exec cat"
        # `cat` ends when nobody can write to its input any more, and everything on the host ends with it.
        self._process = subprocess.Popen(
            [*_ISOLATED, "sh", "-ec", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != _UP:
            raise RuntimeError(f"host {name} did not start")
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        self.pid = int(children.read_text())

    def command(self, arguments: Sequence[object], environment: Mapping[str, str] | None = None) -> list[str]:
        """The command that runs another one on this host, in that environment alone."""
        entered = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", "--pid", f"--wd={self._inside}"]
        given = {"PATH": os.environ["PATH"], **(environment or {})}
        return [*entered, "env", "-i", *(f"{name}={value}" for name, value in given.items()), *map(str, arguments)]

    def start(
        self, arguments: Sequence[object], environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a process on this host."""
        return subprocess.Popen(self.command(arguments, environment), **options)

    def run(self, arguments: Sequence[object], environment: Mapping[str, str] | None = None) -> str:
        """Run a command on this host; return what it prints."""
        command = self.command(arguments, environment)
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def crash(self) -> None:
        """End everything on this host immediately, as when its power fails."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class WorkerHost(Host):
    """A host whose disks are its own, on a cable that can be pulled."""

    def __init__(self, number: int, driver: Host, setup: str) -> None:
        self._driver = driver
        self._cable = f"cable{number}"
        super().__init__(f"host{number}", f"{SUBNET}.{10 + number}", setup)
        plug = f"ip link add {self._cable} type veth peer name eth0 netns {self.pid}; "
        plug += f"ip link set {self._cable} master bridge up"
        # In the driver's network, but among this machine's processes, whose numbers `ip` looks up.
        subprocess.run(["nsenter", f"--target={driver.pid}", "--net", "sh", "-ec", plug], check=True)
        address = f"ip addr add {self.address}/24 dev eth0; ip link set eth0 up; ip route add default via {SUBNET}.1"
        self.run(["sh", "-ec", address])

    def cut(self) -> None:
        """Pull the cable."""
        self._driver.run(["ip", "link", "set", self._cable, "down"])

    def repair(self) -> None:
        """Plug it in again."""
        self._driver.run(["ip", "link", "set", self._cable, "up"])

    def crash(self) -> None:
        """See `Host.crash`. The others hear nothing: a host without power closes no connection."""
        if self._process.poll() is None:
            self.cut()
        super().crash()


class Network:
    """A driver's host, which sees this machine's files, and any number of others."""

    def __init__(
        self, *, hidden: Sequence[Path] = (), shares: Sequence[Path] = (), disk_size: str = "1g", most: int = 9
    ) -> None:
        """hidden: directories that only the driver sees. shares: directories that all hosts see, under the same path.
        most: how many hosts have a name that all know."""
        self._hidden = [*hidden]
        self._shares = [*shares]
        self._disk_size = disk_size
        self._files = Path(tempfile.mkdtemp(prefix="recovery-hosts-"))
        names = [f"127.0.0.1 localhost\n{SUBNET}.1 driver\n"]
        names += [f"{SUBNET}.{10 + number} host{number}\n" for number in range(1, most + 1)]
        self._names = self._files / "hosts"
        self._names.write_text("".join(names))
        bridge = f"ip link add bridge type bridge; ip addr add {SUBNET}.1/24 dev bridge; ip link set bridge up"
        self.hosts: list[WorkerHost] = []
        self.driver = Host("driver", f"{SUBNET}.1", f"{self._known_names()}; {bridge}", str(Path.cwd()))

    def add(self, *, package: Path | None = None) -> WorkerHost:
        """Add a host. package: a directory that it has, read-only, at PACKAGE."""
        host = WorkerHost(len(self.hosts) + 1, self.driver, "; ".join(self._disks(package)))
        self.hosts.append(host)
        return host

    def close(self) -> None:
        """End all hosts."""
        for host in (*self.hosts, self.driver):
            host.crash()
        shutil.rmtree(self._files, ignore_errors=True)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _known_names(self) -> str:
        return f"mount --bind {shlex.quote(str(self._names))} /etc/hosts"

    def _disks(self, package: Path | None) -> list[str]:
        """The commands that take the machine's files away, and give the host disks of its own."""
        made = [self._known_names(), "mount -t tmpfs tmpfs /mnt", "mkdir /mnt/shares"]
        if package is not None:
            made += [f"mkdir -p {PACKAGE}/{package.name}", *_bound(package, f"{PACKAGE}/{package.name}", readonly=True)]
        for number, share in enumerate(self._shares):
            made += [f"mkdir /mnt/shares/{number}", *_bound(share, f"/mnt/shares/{number}")]
        made += ["mount -o remount,bind,ro /"]
        hidden = {path.resolve() for path in (*map(Path, PRIVATE), Path(tempfile.gettempdir()), *self._hidden)}
        programs = [path for path in _programs() if hidden.intersection(path.parents)]
        for number, path in enumerate(programs):
            made += [f"mkdir -p /mnt/programs/{number}", *_bound(path, f"/mnt/programs/{number}", readonly=True)]
        # The outermost first: what is inside it is gone with it.
        for path in sorted({*hidden, *programs}):
            quoted = shlex.quote(str(path))
            if path in hidden:
                made.append(f"if [ -d {quoted} ]; then {_disk(quoted, self._disk_size)}; fi")
            else:
                made += [f"mkdir -p {quoted}", *_bound(Path(f"/mnt/programs/{programs.index(path)}"), str(path))]
        for number, share in enumerate(self._shares):
            made += [f"mkdir -p {shlex.quote(str(share))}", *_bound(Path(f"/mnt/shares/{number}"), str(share))]
        return made


def send(started: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a process that `Host.start` started: to the child of nsenter, which ends as its child does."""
    for child in Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split():
        os.kill(int(child), number)


def _bound(source: Path, target: str, *, readonly: bool = False) -> list[str]:
    made = [f"mount --bind {shlex.quote(str(source))} {shlex.quote(target)}"]
    return [*made, f"mount -o remount,bind,ro {shlex.quote(target)}"] if readonly else made


def _disk(quoted_path: str, size: str) -> str:
    return f"mount -t tmpfs -o size={size},mode=1777 tmpfs {quoted_path}"


def _programs() -> list[Path]:
    """What every host must see to run this Python and Java, also where it lies in a directory that is hidden."""
    found = [sys.prefix, sys.base_prefix, os.environ.get("JAVA_HOME")]
    programs = {Path(path).resolve() for path in found if path}
    # Packages elsewhere, which a .pth file of this Python names.
    packages = {Path(path).resolve() for path in sys.path if Path(path).name == "site-packages"}
    return sorted(programs | {path for path in packages if not programs.intersection(path.parents)})
