"""Archives of classes that runs leave: when one is left, used, adopted and removed. The JVM is a script here, but for
the long test."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

import pytest

from recovery.spark.jvm.cache import left_archive
from recovery.spark.jvm.cache.class_archive import CACHE_VARIABLE, remove_archives
from recovery.spark.jvm.java import _bundled_java
from tests.spark.test_warmup import made_java, recovery

LEAVING = re.compile(r'"-XX:DumpLoadedClassList=(.*?)"')


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The directory of archives, with a space in its name; runs leave some."""
    path = tmp_path / "a cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    monkeypatch.delenv(left_archive.VARIABLE, raising=False)
    return path


@pytest.fixture
def java(tmp_path) -> Path:
    """What looks like a Java."""
    return made_java(tmp_path / "java", "a build")


def left(options: str, content: bytes = b"magic") -> Path:
    """What Java writes for the run of these options."""
    found = LEAVING.search(options)
    assert found, options
    draft = Path(found[1].replace(".classes.", ".jsa."))
    assert draft.read_bytes() == b""
    draft.write_bytes(content)
    return draft


def test_a_run_leaves_one_and_the_next_uses_it(cache, java):
    """It gets its name when the next run begins, and its parts no name at all."""
    draft = left(left_archive.left_options(java, ""))
    top = draft.with_suffix("")
    assert f'"-XX:SharedArchiveFile={top}"' in left_archive.left_options(java, "")
    assert list(cache.iterdir()) == [top]
    assert remove_archives() == [top]


def test_one_run_at_a_time_leaves_one(cache, java):
    """From its start on: on a busy machine its JVM may take long to end."""
    assert LEAVING.search(left_archive.left_options(java, ""))
    assert left_archive.left_options(java, "") == ""


def test_a_run_that_gives_up_lets_another_leave_one(cache, java):
    """It ended before its JVM did anything."""
    left_archive.left_options(java, "")
    left_archive.give_up(java)
    assert list(cache.iterdir()) == []
    assert LEAVING.search(left_archive.left_options(java, ""))


def test_a_file_without_a_header_is_not_used(cache, java):
    """While it may still be written, no other run leaves one; a torn one is removed and left again."""
    draft = left(left_archive.left_options(java, ""), bytes(100))
    assert left_archive.left_options(java, "") == ""
    os.utime(draft, (1, 1))
    assert LEAVING.search(left_archive.left_options(java, ""))
    assert draft.read_bytes() == b""


@pytest.mark.parametrize(
    "given",
    ["-Xshare:off", "-XX:ArchiveClassesAtExit=x", "-XX:+AutoCreateSharedArchive", "-XX:StartFlightRecording=name=x"],
)
def test_the_users_own_options_win(cache, java, given):
    """Java would not start with both, or crash."""
    assert left_archive.left_options(java, f"-Xmx1g {given}") == ""


def test_it_can_be_switched_off(cache, java, monkeypatch):
    """Then none is used either; or none is left, and one that is there is used."""
    monkeypatch.setenv(left_archive.VARIABLE, "use")
    assert left_archive.left_options(java, "") == ""
    monkeypatch.delenv(left_archive.VARIABLE)
    left(left_archive.left_options(java, ""))
    monkeypatch.setenv(left_archive.VARIABLE, "use")
    assert "-XX:SharedArchiveFile=" in left_archive.left_options(java, "")
    monkeypatch.setenv(left_archive.VARIABLE, "off")
    assert left_archive.left_options(java, "") == ""


def test_a_cache_that_cannot_be_written(tmp_path, java, monkeypatch):
    """Runs start as they always did."""
    (tmp_path / "file").touch()
    monkeypatch.delenv(left_archive.VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    assert left_archive.left_options(java, "") == ""


def test_an_archive_in_a_cache_that_cannot_be_written(cache, java, monkeypatch):
    """It is used, whatever lies beside it that would be removed elsewhere."""
    left(left_archive.left_options(java, ""))
    assert "-XX:SharedArchiveFile=" in left_archive.left_options(java, "")
    [top] = cache.iterdir()
    old = top.with_name(f"{top.stem}.classes.7")
    old.touch()
    os.utime(old, (1, 1))

    def refuse(self: Path, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert f'"-XX:SharedArchiveFile={top}"' in left_archive.left_options(java, "")


def test_few_are_kept(cache, java):
    """The oldest go, of other versions too."""
    cache.mkdir()
    for number in range(left_archive.KEPT + 3):
        path = cache / f"left-4.{number}.jsa"
        path.touch()
        os.utime(path, (number, number))
    left(left_archive.left_options(java, ""))
    left_archive.left_options(java, "")
    kept = sorted(path.name for path in cache.iterdir())
    assert len(kept) == left_archive.KEPT
    assert f"left-4.{left_archive.KEPT + 2}.jsa" in kept
    assert "left-4.0.jsa" not in kept


@pytest.mark.long
@pytest.mark.parametrize("bundled", [False, True], ids=["java of runs", "java of the extra"])
def test_the_second_run_maps_the_classes_of_the_first(cache, tmp_path, monkeypatch, bundled):
    """As users run it, with nothing said about it."""
    if bundled:
        monkeypatch.setenv("JAVA_HOME", str(_bundled_java()))
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "lines").write_text("to be or not to be\n")
    loaded = tmp_path / "loaded"

    def shared_classes() -> int:
        assert recovery("init", tmp_path / "db", 2).returncode == 0
        flow = f"examples/word_count.py:make({str(tmp_path / 'input')!r})"
        option = f'spark.driver.extraJavaOptions="-Xlog:class+load:file={loaded}"'
        done = recovery("run", flow, "-r", tmp_path / "db", "-s", "1h", "--conf", option)
        assert done.returncode == 0, done.stderr
        assert "archive" not in done.stdout + done.stderr
        for file in (tmp_path / "db").iterdir():
            file.unlink()
        lines = loaded.read_text().splitlines()
        return sum("org.apache.spark" in line and "shared objects file" in line for line in lines)

    assert shared_classes() == 0
    end = time.monotonic() + 120
    while not any(map(left_archive._is_complete, cache.glob("left-*.jsa*"))):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert shared_classes() > 2_000
