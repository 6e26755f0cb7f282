"""Other tools that this package meets: Meltano, Airflow, Odibi, Bytewax. They need environments of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stores import ROOT


def python_with(package: str) -> str:
    """A Python that has this package, besides what this package needs: this one, or the one that a variable names.
    Skips the test if there is none."""
    if find_spec(package) is not None:
        return sys.executable
    variable = f"RECOVERY_TEST_{package.upper()}"
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"{package} is not installed; .ci/tools makes a Python that has it, to be named in {variable}")
    return found


def environment(directory: Path, **variables: str) -> dict[str, str]:
    """The variables with which such a Python finds this package, and its entry points, as if it was installed."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = directory / "pyspark_recovery-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-recovery\nVersion: 0\n")
    lines = [
        line for group, named in entries.items() for line in (f"[{group}]", *(f"{n} = {v}" for n, v in named.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RECOVERY_")}
    return {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{directory}", **variables}


def run(command: list[str], directory: Path, environ: dict[str, str], given: str | None = None, code: int = 0) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=directory, env=environ, input=given, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout
