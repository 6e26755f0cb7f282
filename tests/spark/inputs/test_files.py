"""Which files a path of a flow names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from recovery.checkpoint.reached import LoggedFile
from recovery.spark.inputs.files import reads


@pytest.mark.parametrize(
    ("path", "uri", "is_read"),
    [
        ("/in", "file:///in/a.txt", True),
        ("/in/", "file:///in/deep/a.txt", True),
        ("/in", "file:///in2/a.txt", False),
        ("/in/a.txt", "file:///in/a.txt", True),
        ("/in/2026-*/x", "file:///in/2026-11/x/a.txt", True),
        ("/in/2026-*/x", "file:///on/2026-11/x/a.txt", False),
        ("file:/in", "file:///in/a.txt", True),
        ("file:///in", "file:///in/a%20b.txt", True),
        ("/a b", "file:///a%20b/c.txt", True),
        ("/x/../in", "file:///in/a.txt", True),
        ("s3a://one/in", "s3a://one/in/a.txt", True),
        ("s3a://one/in", "s3a://other/in/a.txt", False),
        ("s3a://one/in", "file:///in/a.txt", False),
        ("/in", "hdfs://nn/in/a.txt", True),
        ("in", "hdfs://nn/user/ada/in/a.txt", True),
        ("in", Path("in/a.txt").absolute().as_uri(), True),
        ("in", "file:///elsewhere/in/a.txt", False),
    ],
)
def test_files_below_a_path(path, uri, is_read):
    """By the file system and the part before any wildcard. Without a scheme, the default file system may be any."""
    assert reads(path, LoggedFile(uri, 0)) == is_read
    assert os.path.isabs(LoggedFile(uri, 0).path)  # noqa: PTH117
