"""Addresses of checkpoints that hold a password: it is used, and neither shown nor kept. Nothing here starts Spark."""

from __future__ import annotations

import contextlib
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError

from recovery.cli import main
from recovery.errors import StorageError
from recovery.hadoop.checkpoint import HadoopCheckpoint
from tests.operators.support import place, write_job


def session(path):
    """As much of Spark's session as naming a place takes; `path` replaces Hadoop's class of that name."""
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=path))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
    state = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: None))
    return SimpleNamespace(_jvm=jvm, _jsparkSession=state)


class Qualified:
    """A path of a file system that takes every address, and renames nothing."""

    def __init__(self, text):
        self.text = text

    def getFileSystem(self, _):  # noqa: N802 - Hadoop's name
        return SimpleNamespace(makeQualified=lambda path: path, exists=lambda _: False, rename=lambda *_: False,
                               delete=lambda *_: True)  # fmt: skip

    def __str__(self):
        return self.text


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("ftp://user:secret@host/a@b", "ftp://user@host/a@b"),
        ("s3a://key:se/cret@bucket/a", "s3a://key@bucket/a"),
        ("ftp://user:se@cret%40@host:21/a", "ftp://user@host:21/a"),
        ("ftp://:secret@host/a", "ftp://@host/a"),
        ("ftp://user@host/a", "ftp://user@host/a"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("file:/srv/a:b@c", "file:/srv/a:b@c"),
    ],
)
def test_what_is_shown(uri, shown):
    """The address without the password, and otherwise as it was given; what is asked for is the whole."""
    opened = HadoopCheckpoint(session(Qualified), uri, lambda: "test")
    assert opened.shown == shown
    assert opened.location == uri


def test_errors_hold_no_password():
    """Java repeats addresses, and so do paths made from them."""

    def refuse(uri):
        raise Py4JError(f"no login at {uri}: secret%40 or secret@ is wrong")

    with pytest.raises(StorageError) as caught:
        HadoopCheckpoint(session(refuse), "ftp://user:secret%40@host/a", lambda: "test")
    assert "secret" not in str(caught.value)
    assert "no login at ftp://user@host/: ***" in str(caught.value)
    assert caught.value.__cause__ is None
    opened = HadoopCheckpoint(session(Qualified), "ftp://user:secret@host/a", lambda: "test")
    with pytest.raises(StorageError, match="would not rename") as caught:
        opened._put(Path("/.a.draft"))
    assert "secret" not in str(caught.value)


def test_commands_and_history_hold_no_password(store_dir, tmp_path, monkeypatch):
    """What import and export say, and what is kept in the partitions of where a checkpoint came from."""
    write_job(tmp_path / "job", batch=4)

    @contextlib.contextmanager
    def opened(name, _):
        here = place(tmp_path / name.rpartition("/")[2])
        here.shown = name.replace(":secret", "")
        yield here

    monkeypatch.setattr(importlib.import_module("recovery.cli.checkpoint"), "opened", opened)

    def run(*words):
        result = CliRunner().invoke(main, ["checkpoint", *map(str, words)])
        assert result.exit_code == 0, result.output
        assert "secret" not in result.output
        return result.stdout

    facts = json.loads(run("import", "ftp://user:secret@host/job", store_dir, "--flow", "f", "--json"))
    assert facts["from"] == "ftp://user@host/job"
    assert json.loads(run("export", store_dir, "ftp://user:secret@host/one", "--json"))["to"] == "ftp://user@host/one"
    assert "to ftp://user@host/two:" in run("export", store_dir, "ftp://user:secret@host/two")
    assert not any(b":secret" in file.read_bytes() for file in store_dir.iterdir() if file.is_file())
