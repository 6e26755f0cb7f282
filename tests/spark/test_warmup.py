"""An archive of the JVM's classes: who uses it, and that it changes nothing but the time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.errors import StorageError
from recovery.spark.jvm.cache.class_archive import (
    CACHE_VARIABLE,
    COMPILED_FILES,
    archive_options,
    archive_path,
    make_archive,
    remove_archives,
)
from recovery.spark.jvm.java import _bundled_java, java_home
from recovery.spark.jvm.session import prepare_environment
from tests.spark.support import ROOT


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The directory of archives, empty, with a space in its name."""
    path = tmp_path / "a cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    return path


def recovery(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """The command line, as a user calls it."""
    command = [sys.executable, "-m", "recovery", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, **options)


def made_java(root: Path, content: str, version: str = "17.0.15") -> Path:
    """A directory that looks like a Java's."""
    (root / "lib" / "server").mkdir(parents=True)
    (root / "lib" / "server" / "libjvm.so").write_text(content)
    (root / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\n')
    return root


def test_each_java_has_its_own(cache, tmp_path):
    """Another build, or the same in another place, has another name; what is not a Java installation has none."""
    one, other = made_java(tmp_path / "one", "a build"), made_java(tmp_path / "other", "another build")
    assert archive_path(one) == archive_path(one)
    assert archive_path(one) != archive_path(other)
    assert archive_path(one).parent == cache
    assert archive_path(tmp_path / "none") is None


def test_the_kind_is_that_of_the_java(cache, tmp_path):
    """Java 25 and newer keeps profiles too, also when it is reached through a directory of links; a Java that does not
    tell its version has classes alone."""
    new, old = made_java(tmp_path / "new", "a build", "25"), made_java(tmp_path / "old", "a build")
    links = tmp_path / "links"
    links.mkdir()
    (links / "lib").symlink_to(new / "lib")
    silent = made_java(tmp_path / "silent", "a build")
    (silent / "release").unlink()
    assert [archive_path(java).suffix for java in (new, links, old, silent)] == [".aot", ".aot", ".jsa", ".jsa"]


def test_no_place(tmp_path, monkeypatch):
    """The JVM would take a name with a colon for two archives, so none is made or used there."""
    java = made_java(tmp_path / "java", "a build")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a:b"))
    assert archive_path(java) is None
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive_path(java).parent == tmp_path / "recovery"


RECORDED = ("-XX:StartFlightRecording", "-XX:+FlightRecorder")


@pytest.mark.parametrize(("name", "option"), [("an archive.jsa", "SharedArchiveFile"), ("one.aot", "AOTCache")])
def test_the_users_own_options_win(tmp_path, monkeypatch, name, option):
    """Without an archive, and where the user shares classes otherwise, nothing is added: Java would not start."""
    path = tmp_path / name
    assert archive_options(None, "") == archive_options(path, "") == ""
    path.touch()
    assert f'"-XX:{option}={path}"' in archive_options(path, "-Xmx1g")
    assert ("Tier4" in archive_options(path, "-Xmx1g")) == (path.suffix == ".aot")
    for given in (
        "-Xshare:off",
        "-XX:SharedArchiveFile=mine.jsa",
        "-XX:AOTCache=mine.aot",
        "-XX:AOTMode=off",
        "-XX:+FlightRecorder",
    ):
        assert archive_options(path, f"-Xmx1g {given}") == ""
        with monkeypatch.context() as changed:
            changed.setenv("JAVA_TOOL_OPTIONS", given)
            assert archive_options(path, "") == ""


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    """An error names it before any work."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(StorageError, match=r"(?s)file/cache.*RECOVERY_CACHE"):
        make_archive(made_java(tmp_path / "java", "a build"))


def test_removing(cache):
    """Archives of all versions go, and nothing else does."""
    assert remove_archives() == []
    cache.mkdir()
    for name in ("spark-4.3.0-0123456789ab.aot", "spark-4.2.0-0123456789ab.jsa", "other.txt"):
        (cache / name).touch()
    done = recovery("warmup", "--remove", "--json")
    assert {Path(path).name[:11] for path in json.loads(done.stdout)["removed"]} == {"spark-4.3.0", "spark-4.2.0"}
    assert [path.name for path in cache.iterdir()] == ["other.txt"]
    assert recovery("warmup", "--remove").stdout == "There is nothing to remove.\n"


@pytest.mark.long
@pytest.mark.parametrize("bundled", [False, True], ids=["java of runs", "java of the extra"])
def test_a_run_maps_its_classes(cache, tmp_path, monkeypatch, bundled):
    """Made as a user makes it, used by the next run; damaged, the run does the same without it, and says nothing."""
    prepare_environment()
    java = java_home()
    if bundled:
        java = _bundled_java()
        if archive_path(java) == archive_path(java_home()):
            pytest.skip("runs start with it anyway")
    monkeypatch.setenv("JAVA_HOME", str(java))
    made = recovery("warmup")
    assert made.returncode == 0, made.stderr
    archive = archive_path(java)
    assert f"Made {archive}, " in made.stdout
    compiled = set(cache.glob(COMPILED_FILES))
    assert set(cache.iterdir()) - compiled == {archive}
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "lines").write_text("to be or not to be\n")

    def shared_classes() -> int:
        assert recovery("init", tmp_path / "db", 2).returncode == 0
        loaded = tmp_path / "loaded"
        flow = f"examples/word_count.py:make({str(tmp_path / 'input')!r})"
        option = f'spark.driver.extraJavaOptions="-Xlog:class+load:file={loaded}"'
        done = recovery("run", flow, "-r", tmp_path / "db", "-s", "1h", "--conf", option)
        assert done.returncode == 0, done.stderr
        assert "2  be" in done.stdout
        assert "archive" not in done.stdout + done.stderr
        lines = loaded.read_text().splitlines()
        assert len(lines) > 5_000
        for file in (tmp_path / "db").iterdir():
            file.unlink()
        return sum("org.apache.spark" in line and "shared objects file" in line for line in lines)

    assert shared_classes() > 2_000
    archive.chmod(0o600)
    archive.write_bytes(archive.read_bytes()[:100_000_000])
    assert shared_classes() == 0
