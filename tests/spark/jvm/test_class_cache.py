"""Compiled Java classes that are kept from one start to the next: when they are used, and when they are not."""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from recovery.spark.jvm.cache import class_cache
from recovery.spark.jvm.cache.class_archive import CACHE_VARIABLE, remove_archives

KEY = "a" * 64
CLASSES = {"recovery.One": b"\xca\xfe\xba\xbe\0\1", "recovery.One$Two": bytes(range(256))}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The cache directory, which is missing at first."""
    path = tmp_path / "home" / "a cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(path))
    return path


@pytest.fixture
def kept(cache) -> Path:
    """The file of some classes."""
    class_cache.write(KEY, CLASSES)
    [path] = cache.iterdir()
    return path


def machine(java: str, jars: str) -> SimpleNamespace:
    """A JVM that has these properties."""
    given = {"java.vm.version": java, "java.class.path": jars}
    return SimpleNamespace(System=SimpleNamespace(getProperty=given.get))


def test_what_was_kept_is_read(kept):
    assert class_cache.read(KEY) == CLASSES
    assert class_cache.read("b" * 64) is None
    assert stat.S_IMODE(kept.stat().st_mode) & 0o022 == 0


def test_the_key_is_of_all_that_the_code_depends_on(tmp_path, monkeypatch):
    """The source, Java, the jars' names, and what they are; and the package's version."""
    jar = tmp_path / "spark.jar"
    jar.write_text("one")

    def keys() -> list[str]:
        machines = [("17", str(jar)), ("25", str(jar)), ("17", f"{jar}{os.pathsep}other.jar")]
        return [class_cache.key_of(machine(*each), text) for each in machines for text in ("class A {}", "class B {}")]

    first = keys()
    assert len(set(first)) == len(first)
    assert keys() == first
    jar.write_text("another")
    assert not set(keys()) & set(first)
    jar.write_text("one")
    second = keys()
    monkeypatch.setattr(class_cache, "VERSION", "another")
    assert not set(keys()) & {*first, *second}


def test_a_damaged_file_is_not_used(kept):
    """At whatever byte it is cut or changed, be it text or not; and it is replaced."""
    whole = kept.read_bytes()
    for place in range(0, len(whole), 7):
        kept.write_bytes(whole[:place])
        assert class_cache.read(KEY) is None
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert class_cache.read(KEY) is None
    class_cache.write(KEY, CLASSES)
    assert class_cache.read(KEY) == CLASSES


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b'{"key": 1}', b'{"classes": {}}', b"\xff", b'{"key": "%s"}'])
def test_a_file_of_another_kind_is_not_used(kept, content):
    """Although its digest is right."""
    content = content.replace(b"%s", KEY.encode())
    kept.write_bytes(sha256(content).hexdigest().encode() + b"\n" + content)
    assert class_cache.read(KEY) is None


def test_a_file_of_another_key_is_not_used(kept):
    """Under the name of this one: somebody has renamed it."""
    class_cache.write("b" * 64, {"recovery.One": b"other"})
    kept.with_name(f"java-{'b' * 32}").replace(kept)
    assert class_cache.read(KEY) is None


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_to_is_not_used(kept, mode):
    kept.chmod(mode)
    assert class_cache.read(KEY) is None


def test_a_file_of_another_user_is_not_used(kept, monkeypatch):
    """Root's is, as in an image that root made."""
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    owner = kept.stat().st_uid
    assert class_cache.read(KEY) == (CLASSES if owner == 0 else None)
    if owner == 0:
        os.chown(kept, 4712, -1)
        assert class_cache.read(KEY) is None
        os.chown(kept, 4711, -1)
        assert class_cache.read(KEY) == CLASSES


def test_a_link_a_pipe_and_a_directory_are_not_used(kept):
    moved = kept.with_name("moved")
    kept.replace(moved)
    kept.symlink_to(moved)
    assert class_cache.read(KEY) is None
    class_cache.write(KEY, CLASSES)
    assert class_cache.read(KEY) == CLASSES
    assert not kept.is_symlink()
    kept.unlink()
    os.mkfifo(kept)
    assert class_cache.read(KEY) is None
    kept.unlink()
    kept.mkdir()
    assert class_cache.read(KEY) is None
    class_cache.write(KEY, CLASSES)
    assert sorted(kept.parent.iterdir()) == [kept, moved]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    """Nothing is kept, and nothing fails."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    class_cache.write(KEY, CLASSES)
    assert class_cache.read(KEY) is None
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "a:colon"))
    class_cache.write(KEY, CLASSES)
    assert class_cache.read(KEY) is None
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_few_are_kept(cache, kept):
    """The newest, and no drafts of processes that were killed. Archives of classes, and what others have in the same
    directory, stay."""
    others = [cache / f"java-{number:032x}" for number in range(class_cache.KEPT + 3)]
    others += [cache / f".java-{number:032x}.7-a" for number in range(3)]
    foreign = [cache / name for name in ("left-4.3.0.jsa", "java-notes.txt", "my-java-heap.hprof")]
    for number, path in enumerate([*foreign, *others]):
        path.touch()
        os.utime(path, (number, number))
    class_cache.write("b" * 64, CLASSES)
    assert class_cache.read("b" * 64) == class_cache.read(KEY) == CLASSES
    assert all(path.exists() for path in foreign)
    assert len(list(cache.iterdir())) == class_cache.KEPT + len(foreign)


def test_they_are_removed_with_the_archives(kept):
    """With the drafts of killed processes, and without the files of others."""
    draft, foreign = kept.with_name(f".{kept.name}.7-a"), kept.with_name("java-notes.txt")
    draft.touch()
    foreign.touch()
    assert remove_archives() == [draft, kept]
    assert list(kept.parent.iterdir()) == [foreign]


def test_they_are_compiled_once(spark, cache, monkeypatch):
    """A second process would read what the first has compiled, and load it."""
    from recovery.spark.jvm import java_sources

    first = java_sources.bytecodes(spark, "tuning/Collecting.java")
    assert [path.name.startswith("java-") for path in cache.iterdir()] == [True]
    monkeypatch.setattr(class_cache, "write", lambda *_: pytest.fail("it was compiled again"))
    assert java_sources.bytecodes(spark, "tuning/Collecting.java") == first
    loaded = java_sources.compiled(spark, "tuning/Collecting.java").loadClass("recovery.Collecting")
    assert loaded.getName() == "recovery.Collecting"
    assert java_sources.new(spark, "Collecting").getClass().getName() == "recovery.Collecting"
