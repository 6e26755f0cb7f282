"""Errors of disks, services and Hadoop's file systems: of the caller's class, with the place and the way out."""

from __future__ import annotations

import errno

import pytest

from recovery.errors import BackupTargetError, StateBackendError, StorageError
from recovery.places.failures import Failures
from recovery.places.secrets import Secrets

KINDS = [BackupTargetError, StateBackendError, StorageError]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_failure(kind):
    """The class, the place, the text; what the caller treats itself is passed."""
    failures = Failures(kind, "s3://bucket/p", Secrets(["hunter2"]), "Its credentials are those of X.")
    for translated in (failures.of_disk, failures.of_hadoop):
        with pytest.raises(kind, match="No space left") as raised, translated():
            raise OSError(errno.ENOSPC, "No space left")
        assert (raised.value.path, bool(raised.value.cause), bool(raised.value.remedy)) == ("s3://bucket/p", True, True)
        with pytest.raises(FileNotFoundError), translated(FileNotFoundError):
            raise FileNotFoundError
        with pytest.raises(KeyError), translated():
            raise KeyError
    error = failures.of_service(OSError("denied for hunter2"))
    assert type(error) is kind
    assert error.found == "denied for ***"
    assert error.cause.endswith("Its credentials are those of X.")
    assert failures.silent(60.0).found == "no answer for 60 s"


def test_no_chain_leads_to_a_secret():
    """The error before would show it with --debug."""
    failures = Failures(StorageError, "ftp://user@host/a", Secrets(["hunter2"]))
    with pytest.raises(StorageError) as raised, failures.of_hadoop():
        raise OSError(errno.EIO, "no login for hunter2")
    assert raised.value.__cause__ is None
    assert "hunter2" not in str(raised.value)
