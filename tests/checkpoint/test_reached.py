"""How far input was read beyond a position: from rows of partitions, and from checkpoints that killed runs left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recovery.checkpoint.reached import LoggedFile, reached

HEADER = '{"batchWatermarkMs":0,"batchTimestampMs":17,"conf":{}}'


def log(*names: str, modified_ms: int = 7) -> str:
    entries = [json.dumps({"path": f"file:///in/{name}", "timestamp": modified_ms, "batchId": 0}) for name in names]
    return "\n".join(["v1", *entries])


def checkpoint(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(files) -> list[str]:
    return [Path(each.path).name for each in files]


def test_what_later_epochs_have_logged(tmp_path):
    """Files that the position does not have, each once, with its later time; and offsets of all sources."""
    restored = checkpoint(tmp_path / "now", {"sources/0/0": log("a")})
    rows = {
        "sources/0/0": log("a"),
        "sources/0/1": log("b", "c"),
        "sources/0/2": log("b", modified_ms=9),
        "offsets/2": f'v1\n{HEADER}\n{{"logOffset":2}}\n{{"orders":{{"0":5}}}}\n-',
        "commits/2": "v1\n{}",
        "state/0/0/1.delta": "x",
    }
    found = reached(rows.items(), [], restored)
    assert names(found.files) == ["b", "c"]
    assert [each.modified_ms for each in found.files] == [9, 7]
    assert found.offsets == ('{"logOffset":2}', '{"orders":{"0":5}}')
    assert (found.open_files, found.entries_lack) == ((), False)


def test_what_killed_runs_have_logged(tmp_path):
    """It is kept apart, without what epochs have logged; unfinished and unreadable files are left out."""
    restored = checkpoint(tmp_path / "now", {"sources/0/0": log("a")})
    left = checkpoint(
        tmp_path / "left",
        {
            "sources/0/0": log("a"),
            "sources/0/1": log("b"),
            "sources/0/2": log("c"),
            "sources/0/.3.tmp": log("d"),
            "sources/0/4": "v1\nnot JSON\n" + "[" * 10_000 + '\n{"path":7}',
            "offsets/3": "v1",
        },
    )
    (left / "sources" / "0" / "5").symlink_to("/dev/zero")
    found = reached({"sources/0/1": log("b")}.items(), [left, tmp_path / "none"], restored)
    assert names(found.files) == ["b"]
    assert names(found.open_files) == ["c"]


@pytest.mark.parametrize(
    ("keys", "lack"),
    [
        (["0", "1", "2"], False),
        (["0", "2"], True),
        (["1", "2"], True),
        (["9.compact", "10", "11"], False),
        (["7", "9.compact", "11"], True),
        ([], False),
    ],
)
def test_entries_that_an_older_copy_held(tmp_path, keys, lack):
    """A log without gaps is whole; one that begins with all earlier entries in one file is, too."""
    assert reached({f"sources/0/{key}": log("a") for key in keys}.items(), [], tmp_path).entries_lack is lack


def test_pieces_of_a_long_log(tmp_path):
    """A file of more than a MiB comes in rows, in any order."""
    text = log(*(f"{number:06}" for number in range(30_000)))
    size = 1 << 20
    rows = [(f"sources/0/0#{n + 1:05}", text[n * size : (n + 1) * size]) for n in range(-(-len(text) // size))]
    assert len(rows) > 1
    assert len(reached(reversed(rows), [], tmp_path).files) == 30_000


@pytest.mark.parametrize(
    ("uri", "system", "path"),
    [
        ("file:///in/a%20b%25é.txt", "file:", "/in/a b%é.txt"),
        ("s3a://bucket/in/a%3Fb", "s3a://bucket", "/in/a?b"),
        ("hdfs://nn:8020/in/a", "hdfs://nn:8020", "/in/a"),
    ],
)
def test_where_a_file_is(uri, system, path):
    """Spark writes URIs with some characters escaped."""
    found = LoggedFile(uri, 0)
    assert (found.file_system, found.path) == (system, path)
