"""The examples of clusters, run as their docstrings say, and the commands of docs/clusters.md."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.support import EXAMPLES, ROOT, Lab, Run, batches_in, counts_in
from tests.stores import problems
from tests.wire.certificates import make_certificates

LOST = {
    "three_hosts.py": "host1 has lost its power",
    "lost_owner.py": "host1 has lost its power and its disk",
}
PATIENCE_S = 600


@pytest.mark.long
@pytest.mark.parametrize("example", LOST)
def test_a_host_is_lost_and_the_counts_are_exact(possible, example):
    """One command lays out the hosts, loses one, goes on and checks the counts."""
    [command] = re.findall(r"^    python (\S+)$", (EXAMPLES / example).read_text(), re.MULTILINE)
    done = subprocess.run(
        [sys.executable, command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"\n{LOST[example]}\n" in done.stdout
    assert re.search(r"^\d+ micro-batches, in which every word is equally often: exact$", done.stdout, re.MULTILINE)


PAGE = (ROOT / "docs" / "clusters.md").read_text()
WORDS, ROWS = 8, 4000
"""Of words.py: different ones, and all of a micro-batch."""


def commands(heading: str) -> list[str]:
    """The lines of the first block of commands in a section of the page, without their comments."""
    [block] = re.findall(rf"^#+ {heading}\n.*?^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line for line in (re.sub(r"\s+# .*|^# .*", "", each) for each in lines) if line]


class Typist:
    """Types commands on the driver's host, in a directory with the word count as flow.py."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab = lab
        self.home = home
        shutil.copyfile(EXAMPLES / "words.py", home / "flow.py")

    def command(self, line: str) -> list[str]:
        """The command of a line, whose `m` is the master's host."""
        line = line.replace("spark://m:7077", self.lab.cluster.master)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "PYTHONPATH": str(ROOT), "JAVA_HOME": os.environ.get("JAVA_HOME", "")}
        script = f"cd {self.home} && exec {line}"
        return self.lab.network.driver.command(["sh", "-c", script], {k: v for k, v in environment.items() if v})

    def type(self, line: str) -> None:
        """Run a command to its end."""
        done = subprocess.run(self.command(line), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def runs_for(self, batches: int, line: str) -> None:
        """Start a run, and end it by SIGTERM behind that many micro-batches."""
        run = Run(self.command(line), self.home / "run.out")
        run.await_that(lambda: run.text().count("micro-batch ") >= batches, f"{batches} micro-batches")
        run.stop()


def assert_counted(db: Path) -> None:
    """Check the state of the word count."""
    batches = batches_in(db)
    assert set(counts_in(db, "count").values()) == {batches * ROWS // WORDS}
    assert len(counts_in(db, "count")) == WORDS
    assert problems(db) == []


@pytest.mark.long
def test_the_first_commands_of_the_page(lab, tmp_path):
    """Without a setting; then with certificates, to the end of the input."""
    typist = Typist(lab, tmp_path)
    make, run = commands("Clusters")
    [secured] = commands("Ports and names")
    typist.type(make)
    typist.runs_for(5, run)
    certificate, key, authority = make_certificates(tmp_path, names=("driver",))
    for made, name in ((certificate, "driver.pem"), (key, "driver.key"), (authority, "authority.pem")):
        shutil.copyfile(made, tmp_path / name)
    (tmp_path / "driver.key").chmod(0o600)
    typist.type(secured)
    assert_counted(tmp_path / "db")


@pytest.mark.long
def test_the_commands_of_partitions_on_several_hosts(make_lab, tmp_path):
    """Typed on three hosts, two of which have the partitions; the last command twice."""
    from hosts import PACKAGE

    lab = make_lab(0)
    typist = Typist(lab, tmp_path)
    token, serve, owners, make, run = commands("Partitions on several hosts")
    typist.type(f"sh -c {shlex.quote(token)}")
    hosts = {f"h{number}": lab.network.add(package=ROOT / "recovery") for number in (1, 2)}
    certificate, key, _ = make_certificates(tmp_path, names=tuple(host.name for host in hosts.values()))
    serving = []
    for name, host in hosts.items():
        for source, target in ((tmp_path / "token", "token"), (certificate, f"{name}.pem"), (key, f"{name}.key")):
            with source.open("rb") as file:
                command = f"umask 077; mkdir -p /tmp/db; cat > /tmp/{target}"
                subprocess.run(host.command(["sh", "-c", command]), stdin=file, check=True)
        # The page's host has its disk at /data, and its name is h1 where all know it.
        line = serve.replace("h1", name).replace(f"{name}:", f"{host.name}:").replace("/data/db", "/tmp/db")
        words = ["sh", "-c", f"cd /tmp && exec {line}"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        serving.append(Run(host.command(words, {"PATH": path, "PYTHONPATH": PACKAGE}), tmp_path / f"{name}.out"))
    for each in serving:
        each.await_text("^.*serving ")
    for name, host in hosts.items():
        owners = owners.replace(f"{name}:", f"{host.name}:")
    typist.type(f"sh -c {shlex.quote(f'{owners}; exec {make}')}")
    for _ in range(2):
        typist.type(f"sh -c {shlex.quote(f'{owners}; exec {run}')}")
    for each, host in zip(serving, hosts.values(), strict=True):
        each.stop()
        for name in host.run(["ls", "/tmp/db"]).split():
            if name.startswith("part-") and not name.endswith("-shm"):
                with (tmp_path / "db" / name).open("wb") as file:
                    subprocess.run(host.command(["cat", f"/tmp/db/{name}"]), stdout=file, check=True)
    assert_counted(tmp_path / "db")
