"""Jars and packages besides Spark's own: an error says what is wrong with them before the flow misses a class."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from recovery import init_partitions
from recovery.errors import ConfigurationError
from recovery.spark.jvm.jars import JARS, PACKAGES, advice, check_jars, check_loaded, with_jars
from tests.spark.support import ROOT

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tests</groupId><artifactId>word</artifactId><version>1.0</version></project>"""
IVY = """<ivysettings><settings defaultResolver="here"/>
<caches defaultCacheDir="{root}/cache"/>
<resolvers><ibiblio name="here" m2compatible="true" root="file://{root}/repository/"/></resolvers></ivysettings>"""
FLOW = """
from recovery import Flow, stateful

def build(spark):
    loader = spark._jvm.Thread.currentThread().getContextClassLoader()
    names = [name for name in ("word.txt", "other.txt") if loader.getResource(name) is not None]
    print("found:", ", ".join(names), flush=True)
    lines = spark.readStream.text("in")
    return lines.transform(stateful("n", key="value", update=lambda k, rows, s: s.update(len(rows)), output="n long"))

flow = Flow("words", build)
"""


def a_jar(path: Path) -> Path:
    """A jar with one resource."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("word.txt", "to be")
    return path


def test_options_come_besides_settings():
    """As --py-files does; without options the settings stay."""
    assert with_jars({JARS: "a.jar", "x": "1"}, "b.jar,c.jar", "g:a:1") == {
        JARS: "a.jar,b.jar,c.jar",
        "x": "1",
        PACKAGES: "g:a:1",
    }
    assert with_jars({"x": "1"}, None, None) == {"x": "1"}


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_existing_jars(tmp_path, monkeypatch, form):
    """By a path, a pattern or an address; what lies elsewhere is left to Spark."""
    jar = a_jar(tmp_path / "a b.jar")
    check_jars({JARS: form.format(str(jar).replace(" ", "%20" if form != "{}" else " "))})
    check_jars({JARS: f"{form.format(tmp_path)}/*.jar, https://host/x.jar,hdfs://host/y.jar,local:/opt/z.jar"})
    monkeypatch.chdir(tmp_path)
    check_jars({JARS: "a b.jar"})
    check_jars({})


@pytest.mark.parametrize(
    ("entry", "expected"),
    [("none.jar", "does not exist"), ("*.jar", "does not exist"), (".", "is a directory"), ("text", "is not a jar")],
)
def test_missing_jars(tmp_path, entry, expected):
    """Spark would leave them out without a word."""
    (tmp_path / "text").write_text("PK")
    path = str(tmp_path / entry)
    with pytest.raises(ConfigurationError, match=rf"the jar .*{entry.replace('*', '.')} {expected}"):
        check_jars({JARS: f"{a_jar(tmp_path / 'below' / 'good.jar')},{path}"})


def test_a_jvm_that_runs_already(tmp_path):
    """It loads no more jars; those that it has may be named in any form."""
    jar = a_jar(tmp_path / "a b.jar")
    loaded = {JARS: jar.as_uri(), PACKAGES: "g:a:1,g:b:1"}
    check_loaded({JARS: str(jar), PACKAGES: "g:b:1"}, loaded.get)
    check_loaded({"spark.x": "1"}, {}.get)
    with pytest.raises(ConfigurationError, match=r"already runs in this process, without other\.jar \(spark\.jars\)"):
        check_loaded({JARS: f"{jar},other.jar"}, loaded.get)
    with pytest.raises(ConfigurationError, match=r"without g:a:2"):
        check_loaded({PACKAGES: "g:a:2"}, loaded.get)


def test_advice_is_for_packages():
    """Other reasons for which Spark does not start have other ways out."""
    assert "--jars" in advice({PACKAGES: "g:a:1"}, "[unresolved dependency: g#a;1: not found]")[1]
    assert advice({PACKAGES: "g:a:1"}, "Too many open files") is None
    assert advice({}, "unresolved dependency") is None


@pytest.fixture
def place(tmp_path):
    """A directory with a flow, and a repository of Maven with one package."""
    at = tmp_path / "repository" / "tests" / "word" / "1.0"
    a_jar(at / "word-1.0.jar")
    (at / "word-1.0.pom").write_text(POM)
    (tmp_path / "ivy.xml").write_text(IVY.format(root=tmp_path))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("to\nbe\n")
    (tmp_path / "flow.py").write_text(FLOW)
    init_partitions(tmp_path / "db", 1)
    return tmp_path


def run(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recovery", "run", "flow.py", "-r", "db", "--master", "local[1]",
               "--conf", f"spark.jars.ivySettings={place / 'ivy.xml'}",
               "--conf", f"spark.jars.ivy={place / 'ivy'}", *options]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=place, env=environment, timeout=240)


@pytest.mark.long
def test_packages_and_jars_are_loaded(place):
    """As spark-submit takes them: a package from a repository that the settings name, and jars by a relative pattern.
    Ivy reports only what it downloads and what is wrong."""
    with zipfile.ZipFile(place / "other.jar", "w") as file:
        file.writestr("other.txt", "or not")
    done = run(place, "--packages", "tests:word:1.0", "--jars", "other*.jar")
    assert done.returncode == 0, done.stderr
    assert "found: word.txt, other.txt" in done.stdout
    assert [line for line in done.stderr.splitlines() if "::" in line or "#" in line] == []


@pytest.mark.long
def test_a_package_that_no_repository_has(place):
    """Ivy's own reason is shown."""
    done = run(place, "--packages", "tests:word:2.0")
    assert done.returncode == 50, done.stderr
    error = done.stderr[done.stderr.index("Error: Spark did not start: ") :]
    assert "tests#word;2.0: not found" in error
    assert "What to do: Name each package as GROUP:ARTIFACT:VERSION." in error
    assert "Traceback" not in done.stderr


def test_a_jar_that_is_missing(place):
    """The error comes before Spark starts, and leaves no lock behind."""
    for _ in range(2):
        done = run(place, "--jars", "word.jar")
        assert done.returncode == 11
        assert "Error: the jar word.jar does not exist" in done.stderr
