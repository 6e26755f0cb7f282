"""A directory with a flow over files of two kinds and a step with timeouts; commands that run it as a user does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from recovery.idle.note import NAME
from tests.stores import ROOT
from tests.test_without_spark import BLOCKED

FLOW = """
import json, os
from pathlib import Path
import recovery
import helper

DEPTH = os.environ.get("FLOW_DEPTH", "1")
SETTINGS = json.loads(Path("settings.json").read_text())

def count(key, rows, state):
    if state.hasTimedOut:
        yield key, -state.get
        state.remove()
        return
    n = (state.get if state.exists else 0) + len(rows)
    state.update(n)
    if key == "soon":
        state.setTimeoutDuration(SETTINGS["timeout_ms"])
    yield key, n

def build(spark):
    lines = spark.readStream.text(SETTINGS["path"]).union(
        spark.readStream.format("appended").load("app/*.log").select("value"))
    step = recovery.stateful("counts", key="value", update=count, output="value string, n long", timeout=True)
    return lines.transform(helper.unchanged).transform(step)

flow = recovery.Flow("words", build, recovery.FileSink("out"))
other = recovery.Flow("others", build, recovery.FileSink("out"))
"""
OPTIONS = ("-s", "0", "--master", "local[2]", "--if-new-input")
LOOKING = """
import json, os, signal, sys
import recovery.cli.run
from recovery.__main__ import main

for line in sys.stdin:
    asked = json.loads(line)
    if (child := os.fork()) == 0:
        signal.alarm(120)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        for number in (1, 2):
            os.dup2(os.open(asked["outputs"][number - 1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["recovery", *asked["words"]]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Looker:
    """Runs commands in forks of one process that finds none of Spark's packages: a command ends well only if it needs
    none of them. Each command has the modules of the others, and nothing else of theirs."""

    def __init__(self, path: Path) -> None:
        """path: a directory for what the commands print."""
        self._outputs = [str(path / name) for name in ("stdout", "stderr")]
        self._process = subprocess.Popen(
            [sys.executable, "-c", BLOCKED + LOOKING],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def run(self, words: list[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run one command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"words": words, "cwd": str(cwd), "env": env, "outputs": self._outputs}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, code, *(Path(each).read_text() for each in self._outputs))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


class World:
    """The directory. looker: for `look`. timeout_ms: of the key "soon"."""

    def __init__(self, path: Path, looker: Looker | None = None, timeout_ms: int = 24 * 3600 * 1000) -> None:
        self.path, self.looker = path, looker
        self.db = path / "db"
        for name in ("logs", "app"):
            (path / name).mkdir(parents=True)
        (path / "flow.py").write_text(FLOW)
        (path / "helper.py").write_text("def unchanged(frame):\n    return frame\n")
        (path / "settings.json").write_text(json.dumps({"path": "logs", "timeout_ms": timeout_ms}))
        self.add("1.txt", "a", "b")
        self.append("a", "soon")
        subprocess.run([sys.executable, "-m", "recovery", "init", "db", "2"], cwd=path, env=self.env(), check=True)

    def add(self, name: str, *lines: str) -> None:
        """Add a file of lines."""
        draft = self.path / "logs" / f".{name}"
        draft.write_text("".join(f"{line}\n" for line in lines))
        draft.rename(self.path / "logs" / name)

    def append(self, *lines: str, name: str = "app.log") -> None:
        """Append lines to a growing file."""
        with (self.path / "app" / name).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def env(self, **more: str) -> dict[str, str]:
        """The variables of a command."""
        return {**os.environ, "PYTHONPATH": str(ROOT), **more}

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        """A run as a user gives the command; it starts Spark if it has to."""
        command = [sys.executable, "-m", "recovery", "run", "flow.py", "-r", "db", *OPTIONS, *options]
        return subprocess.run(command, cwd=self.path, env=self.env(), capture_output=True, text=True, timeout=300)

    def look(
        self, *options: str, target: str = "flow.py", cwd: Path | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A run by the looker: it ends well only if it needs none of Spark's packages."""
        assert self.looker is not None
        cwd = cwd or self.path
        words = ["run", target, "-r", os.path.relpath(self.db, cwd), *OPTIONS, *options]
        return self.looker.run(words, cwd, self.env(**(env or {})))

    def command(self, *arguments: str) -> str:
        """Another command on the directory; what it prints."""
        command = [sys.executable, "-m", "recovery", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=self.env(), check=True, stdout=subprocess.PIPE, text=True
        ).stdout  # fmt: skip

    def contents(self) -> dict[str, bytes]:
        """The partitions, the note and the output, byte for byte."""
        paths = [*self.db.glob("part-*"), self.db / NAME, *(self.path / "out").rglob("*")]
        return {str(path): path.read_bytes() for path in paths if path.is_file()}

    def output(self) -> list[tuple[str, int]]:
        """What the flow has written, sorted."""
        rows = [row for path in (self.path / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        return sorted((row["value"], row["n"]) for row in rows)

    def change_note(self, change: dict[str, object]) -> None:
        """Change fields of the note's input."""
        note = json.loads((self.db / NAME).read_text())
        note["input"] |= change
        (self.db / NAME).write_text(json.dumps(note))

    def saved(self, to: Path) -> None:
        """Copy the directory, to put it back later."""
        shutil.copytree(self.path, to, symlinks=True)

    def put_back(self, saved: Path) -> None:
        """Put back what `saved` has copied, at the same path."""
        shutil.rmtree(self.path)
        shutil.copytree(saved, self.path, symlinks=True)
