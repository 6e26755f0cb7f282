"""What stands in for container images: a root directory with this machine's programs, and the entry point, the
environment and the user that the shipped Dockerfile says."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.support import EXAMPLES, ROOT

DOCKERFILE = (EXAMPLES / "Dockerfile").read_text()
PACKAGE = "/opt/package"
"""Where the image has this package, instead of in site-packages, which are this machine's."""
SYSTEM = ("usr", "bin", "sbin", "lib", "lib64")
USER_ID = int(re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)[0])
DIRECTORY = re.findall(r"^WORKDIR (\S+)$", DOCKERFILE, re.MULTILINE)[0]
ENTRYPOINT: list[str] = json.loads(re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[0])
ENVIRONMENT = dict(each.split("=", 1) for each in re.findall(r"^ENV (.*)$", DOCKERFILE, re.MULTILINE)[0].split())
[(_USER_NAME, _COPIED, _COPIED_TO)] = [
    (user, copied, target)
    for user in re.findall(rf"useradd --uid {USER_ID} --create-home (\w+)", DOCKERFILE)
    for copied, target in re.findall(r"^COPY --chmod=755 (\S+) (\S+)/$", DOCKERFILE, re.MULTILINE)
]
HOME = f"/home/{_USER_NAME}"


@dataclass(frozen=True)
class Image:
    """An image: the package `recovery` in it, and what lies in its working directory."""

    package: Path
    app: Path

    def environment(self) -> dict[str, str]:
        """What every container of the image has."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
        return {"PATH": path, "HOME": HOME, "PYTHONPATH": PACKAGE, **java, **ENVIRONMENT}

    def root(self, names: Path, mounts: Sequence[tuple[Path, str, bool]]) -> str:
        """The shell commands that make it the root directory of a mount namespace. names: the file for /etc/hosts.
        mounts: volumes: source, path in the container, whether it is read-only."""
        made = ["mount -t tmpfs -o size=1g,mode=755 tmpfs /mnt", "cd /mnt"]
        made += ["mkdir -p proc dev etc tmp var run opt mnt old .own", "chmod 1777 tmp", "mount -t proc proc proc"]
        made += ["mount --rbind /dev dev", "mount -t tmpfs tmpfs dev/shm"]
        for each in SYSTEM:
            path = Path("/", each)
            if path.is_symlink():
                made.append(f"ln -s {os.readlink(path)} {each}")  # noqa: PTH115 - the text, not the path
            elif path.exists():
                made.append(_bound(path, f"/{each}", readonly=True))
        made.append(_bound(Path("/etc"), "/etc", readonly=True))
        user = f"root:x:0:0:root:/root:/bin/sh\\n{_USER_NAME}:x:{USER_ID}:{USER_ID}::{HOME}:/bin/sh\\n"
        made += [f"printf '{user}' > .own/passwd", "touch .own/resolv.conf", f"install -d -o {USER_ID} .{HOME}"]
        made += [f"mount --bind .own/{each} etc/{each}" for each in ("passwd", "resolv.conf")]
        made.append(f"mount --bind {shlex.quote(str(names))} etc/hosts")
        for path in sorted({Path(each).resolve() for each in (sys.prefix, sys.base_prefix)}):
            if not path.is_relative_to("/usr"):
                made.append(_bound(path, str(path), readonly=True))
        made.append(_bound(self.package, f"{PACKAGE}/recovery", readonly=True))
        # By these names Spark finds the sources of this package.
        made += [_bound(path, f"{PACKAGE}/{path.name}", readonly=True) for path in ROOT.glob("pyspark_*")]
        made.append(_bound(self.app, DIRECTORY, readonly=True))
        made.append(f"install -m 755 {shlex.quote(str(ROOT / _COPIED))} .{_COPIED_TO}/")
        for source, target, readonly in mounts:
            made.append(_bound(source, target, readonly=readonly))
        return "; ".join([*made, "pivot_root . old", "cd /", "umount -l /old"])


def _bound(source: Path, target: str, *, readonly: bool = False) -> str:
    """Shell commands, in the directory that is going to be the root."""
    there = shlex.quote(f".{target}")
    made = f"mkdir -p {there}; mount --bind {shlex.quote(str(source))} {there}"
    return f"{made}; mount -o remount,bind,ro {there}" if readonly else made
