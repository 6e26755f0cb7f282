"""The wheel has what it should, and `docs/dependencies.md` names what is installed with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest

from tests.stores import ROOT

PACKAGES = ("recovery", "pyspark_recovery", "pyspark_appended", "meltano_recovery")


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(tmp_path):
    """Java sources, the page's script and style, `py.typed`; no tests, no caches; and the licence."""
    pytest.importorskip("hatchling", reason="it is not installed (the test extra has it)")
    code = f"import hatchling.build\nprint(hatchling.build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        found = set(wheel.namelist())
        [entry_points] = [wheel.read(name).decode() for name in found if name.endswith("entry_points.txt")]
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    own = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    meta = {name for name in found if re.fullmatch(r"pyspark_recovery-[^/]+\.dist-info/.+", name)}
    assert found - meta == own
    assert {name.partition("/")[2] for name in meta} >= {"METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert "recovery = " in entry_points


def test_nobody_is_sent_to_a_registry_for_this_package():
    """It is on none, and another one could get there first. What is installed is a checkout, or a wheel as a file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip(f"no list of files: {listed.stderr.strip()}")
    sent = re.compile(
        r"pip install[^\n`&|;]*[\s'\"](?:pyspark-)?recovery(\[|==|[\s'\"`]|$)|Install (?:pyspark-)?recovery==",
        re.MULTILINE,
    )
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".sh", ".yaml", ".toml", ".service") and path != Path(__file__):
            assert not sent.search(path.read_text()), name


def test_the_bill_of_materials_is_whole():
    """Every package that the run-time dependencies require, and theirs, is in the table; and no other one."""
    requirements = pytest.importorskip("packaging.requirements", reason="the test extra has it")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needed, waiting = set[str](), [requirements.Requirement(each) for each in declared]
    while waiting:
        requirement = waiting.pop()
        if requirement.name in needed or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        needed.add(requirement.name)
        try:
            waiting += [requirements.Requirement(each) for each in requires(requirement.name) or ()]
        except PackageNotFoundError:
            continue
    docs = (ROOT / "docs" / "dependencies.md").read_text()
    section = docs.split("## What is installed")[1].split("\nOf the extras")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall("`(.+?)`", row)}
    assert named - {"pyspark-recovery"} == needed
