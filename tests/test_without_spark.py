"""What works where PySpark is missing or too old, and what is said where it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.errors import ConfigurationError, SparkUnavailableError

ROOT = Path(__file__).resolve().parents[1]
BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pyarrow", "pandas", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_without(code: str, *arguments: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run code in a process that finds none of Spark's packages; path: a directory where it looks first instead."""
    return subprocess.run(
        [sys.executable, "-c", ("" if path else BLOCKED) + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path and str(path), str(ROOT)]))},
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command without Spark's packages."""
    return run_without("from recovery.__main__ import main\nmain()", *arguments)


def test_directories_are_kept_copied_and_shown_without_spark(tmp_path):
    """Partitions, their copies, marks, scoped state, the run history and the report need three small packages."""
    here = tmp_path / "db"
    commands = (
        ["init", here, 2],
        ["hwm", "set", here, "orders", "7"],
        ["hwm", "list", here],
        ["state", "list", here],
        ["state", "export", here],
        ["status", here],
        ["plan", here],
        ["verify", here],
        ["runs", here],
        ["gc", here],
        ["report", here, "-o", tmp_path / "page.html"],
        ["restore", here, tmp_path / "restored"],
        ["verify", tmp_path / "restored"],
    )
    code = (
        "import json\n"
        "from recovery.cli import main\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as end:\n"
        "        assert not end.code, words\n"
        "    print('ended', *words)\n"
    )
    done = run_without(code, json.dumps([[*map(str, words)] for words in commands]))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert sum(line.startswith("ended ") for line in done.stdout.splitlines()) == len(commands)


def test_the_rooms_below_spark_import_without_it():
    """All of their modules, but those for the values of a step's tables and lines."""
    rooms = "base host planning checkpoint metrics storage sinks epochs operational backup operators report cli"
    found = (path.relative_to(ROOT) for room in rooms.split() for path in (ROOT / "recovery" / room).rglob("*.py"))
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in found]
    assert len(names) > 100
    done = run_without("from importlib import import_module\nfor name in sys.argv[1:]: import_module(name)", *names)
    assert (done.stdout, done.stderr) == ("", "")


def test_backups_say_that_they_need_arrow(tmp_path):
    """It compresses them."""
    assert command("init", tmp_path / "db", 2).returncode == 0
    done = command("backup", tmp_path / "db", tmp_path / "copies")
    assert done.returncode == ConfigurationError.exit_code
    assert "pyarrow is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_state_and_marks_are_used_without_spark(tmp_path):
    """In a scheduler, for instance, that only starts the jobs."""
    code = (
        "import recovery\n"
        "recovery.init_partitions(sys.argv[1], 2)\n"
        "state = recovery.StateManager(sys.argv[1])\n"
        "state.set_hwm('orders', 7)\n"
        "print(state.get_hwm('orders'))\n"
        "recovery.Flow, recovery.Pipeline, recovery.FileSink, recovery.RecoveryConfig\n"
    )
    done = run_without(code, tmp_path / "db")
    assert (done.stdout, done.stderr) == ("7\n", "")


@pytest.mark.parametrize(
    "arguments", [["run", "flow.py", "-r", "db"], ["demo"], ["warmup"], ["run", "missing.py"]], ids=" ".join
)
def test_what_needs_spark_says_that_it_is_missing(arguments, tmp_path):
    """Before anything is looked for or made."""
    done = command(*arguments, "--json") if arguments[0] == "run" else command(*arguments)
    assert done.returncode == SparkUnavailableError.exit_code
    assert "PySpark is not installed" in done.stdout + done.stderr
    assert "4.0 to 4.3" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["3.5.9", "4.4.0", "5.0.0.dev1"])
def test_other_versions_of_spark_are_refused(version, tmp_path):
    """Before any of it is imported: parts that this package imports are missing in some."""
    package = tmp_path / "pyspark"
    package.mkdir()
    package.joinpath("__init__.py").write_text("raise AssertionError('imported')\n")
    package.joinpath("version.py").write_text(f"__version__: str = {version!r}\n")
    code = (
        "import json, recovery\n"
        "try:\n    recovery.start\n"
        "except recovery.SparkUnavailableError as error:\n    print(json.dumps(error.as_json()))\n"
    )
    done = run_without(code, path=tmp_path)
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    assert facts["found"] == f"PySpark {version} is not supported: versions 4.0 to 4.3 are"
    assert "pyspark>=4.0,<4.4" in facts["remedy"]


@pytest.mark.parametrize("how", ["import", "command"])
def test_windows_is_refused_in_a_sentence(how):
    """By the import, and by the command without a traceback."""
    argv = {"import": ["flow.py"], "command": ["C:\\Scripts\\recovery"]}[how]
    done = run_without(f"import sys; sys.platform, sys.argv = 'win32', {argv!r}; import recovery")
    assert done.returncode == 1
    assert "recovery runs on Linux and macOS" in done.stderr
    assert ("Traceback" in done.stderr) == (how == "import")
    assert "fcntl" in done.stderr.splitlines()[-1]


def test_the_package_asks_pip_for_the_versions_that_it_supports():
    """What pyproject.toml says and what is checked are the same."""
    from recovery.spark.jvm.installed import NEWEST, OLDEST

    text = (ROOT / "pyproject.toml").read_text()
    assert f'"pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"' in text
