"""Addresses of the places of operational state."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.cli import main
from recovery.errors import ConfigurationError, StateBackendError
from recovery.operational.backends.open import STATE
from recovery.places.address import parse_address
from recovery.places.directory import DirectoryDocuments
from recovery.places.documents import BucketDocuments
from recovery.places.protocol import Conflict


@pytest.mark.parametrize("uri", ["s3://bucket/team#1", "gs://bucket#1", "azure://c/team#", "file:///srv/state#1"])
def test_a_fragment_is_refused(uri):
    """What follows a # is no part of a path: two teams would have one state. The error says how to write it."""
    with pytest.raises(ConfigurationError, match="%23"):
        parse_address(uri, STATE)


def test_a_name_may_hold_any_character():
    """Written as URIs have it."""
    assert parse_address("s3://bucket/team%231", STATE).path == "team#1"
    assert parse_address("file:///srv/state%231", STATE).path == "/srv/state#1"


VERBS = [
    lambda state: state.get_hwm("k"),
    lambda state: state.list_hwms(),
    lambda state: state.set_hwm("k", 1),
    lambda state: state.process_states("n"),
    lambda state: state.backend.forget(["hwm"]),
    lambda state: state.lock("l").__enter__(),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("name", "found"),
    [("file", "is not a directory"), ("file/below", "is not a directory"), ("missing", "there is no such directory"),
     ("missing/below", "there is no such directory"), ("link", "there is no such directory")],
)  # fmt: skip
def test_a_root_that_is_no_directory_is_never_taken_for_empty(tmp_path, name, found, verb):
    """A share that is not mounted would make the next load begin at the beginning; and nothing is made there."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with pytest.raises(StateBackendError, match=found) as caught:
        verb(StateManager(f"file://{tmp_path}/{name}"))
    assert str(tmp_path / name) in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {"file", "link"}


def test_a_write_to_an_object_that_was_removed_since_it_was_read():
    """S3 answers 404: another writer was faster, as where it answers 412. Of a new object, 404 is an error."""
    obstore = pytest.importorskip("obstore")

    def put(*_, **__):
        raise FileNotFoundError("Object at location p/x not found: 404 Not Found")

    documents = BucketDocuments(parse_address("s3://bucket/p?region=x", STATE), 5.0, StateBackendError, "s3://bucket/p")
    documents._api = SimpleNamespace(put=put, exceptions=obstore.exceptions)
    with pytest.raises(Conflict):
        documents.put("x", b"", {"e_tag": "1"})
    with pytest.raises(StateBackendError):
        documents.put("x", b"", None)


@pytest.mark.parametrize("said", [
    "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist.</Message></Error>",
    "<Error>\n  <Code>ContainerNotFound</Code>\n  <Message>The specified container does not exist.\n</Message></Error>",
])  # fmt: skip
def test_a_bucket_that_is_missing(said):
    """As Google and Azure say it; an object of that name may be missing like any other."""
    obstore = pytest.importorskip("obstore")

    def get(_, path):
        reason = said if path == "p/x" else "<Error><Code>NoSuchKey</Code></Error>"
        raise FileNotFoundError(f"Object at location {path} not found: 404 Not Found: {reason}")

    documents = BucketDocuments(parse_address("s3://bucket/p?region=x", STATE), 5.0, StateBackendError, "s3://bucket/p")
    documents._api = SimpleNamespace(get=get, exceptions=obstore.exceptions)
    assert documents.get("NoSuchBucket") is None
    assert documents.get("ContainerNotFound") is None
    with pytest.raises(StateBackendError):
        documents.get("x")


def test_a_root_is_made_as_the_error_says(tmp_path):
    """With a blank in its name, too; the command line shows it by its exit code."""
    uri = f"file://{tmp_path}/a%20b/state"
    done = CliRunner().invoke(main, ["hwm", "list", uri])
    assert done.exit_code == StateBackendError.exit_code
    subprocess.run(["/bin/sh", "-c", done.stderr.partition("make it: ")[2]], check=True)
    assert CliRunner().invoke(main, ["hwm", "list", uri, "--json"]).stdout == "[]\n"
    StateManager(uri).set_hwm("k", 1)
    assert StateManager(uri).get_hwm("k") == 1


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path):
    """What is damaged is not missing."""
    (tmp_path / "hwm").touch()
    with pytest.raises(StateBackendError, match="Not a directory"):
        StateManager(f"file://{tmp_path}").get_hwm("k")


def test_a_process_that_is_forked_during_a_write_does_not_keep_the_lock(tmp_path, monkeypatch):
    """It has the lock's file open for as long as it lives; others write all the same."""
    place = DirectoryDocuments(tmp_path, timeout_s=0.2)
    reading, writing = os.pipe()
    children = []

    def forks(descriptor: int) -> None:
        child = os.fork()
        if not child:
            os.read(reading, 1)
            os._exit(0)
        children.append(child)

    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", forks)
            place.put("a/state.json", b"1", None)
        place.put("b/state.json", b"2", None)
    finally:
        os.write(writing, b"!" * len(children))
        for child in children:
            os.waitpid(child, 0)
