"""Errors of this machine's disks: of the package's class, with the path; others stay what they are."""

from __future__ import annotations

import errno

import pytest

from recovery.errors import StorageError
from recovery.host.storage_errors import storage_errors


def test_what_is_raised(tmp_path):
    """With the system's own words, and the error before for --debug."""
    with pytest.raises(StorageError, match="No space left") as raised, storage_errors(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.path == str(tmp_path)
    assert isinstance(raised.value.__cause__, OSError)
    with pytest.raises(KeyError), storage_errors(tmp_path):
        raise KeyError
