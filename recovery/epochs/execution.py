"""The record of the execution that this process begins: its identity, host, process and plan."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable

from recovery.base.clock import Clock
from recovery.base.ids import Lease
from recovery.base.version import installed_version
from recovery.errors import (
    BackupTargetError,
    FileReplacedError,
    LeaseLostError,
    MissingPartitionsError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
)
from recovery.planning.resume import ResumePlan
from recovery.planning.values import Execution
from recovery.storage.seam import PartitionStore

OF_A_LOST_OWNER = (OwnerRefusedError, MissingPartitionsError, BackupTargetError)
"""Errors that the loss of an owner causes."""


def new_execution(
    plan: ResumePlan,
    flow_id: str,
    clock: Clock,
    *,
    snapshot_interval_s: float = 0.0,
    backup_interval_s: float = 0.0,
    identity: str | None = None,
) -> Execution:
    """Return an execution that follows `plan`. identity: its unique id; drawn at random by default."""
    return Execution(
        number=plan.execution_number,
        id=secrets.token_hex(8) if identity is None else identity,
        flow_id=flow_id,
        resume_epoch=plan.resume_epoch,
        started_ms=clock.wall_ms(),
        snapshot_interval_s=float(snapshot_interval_s),
        backup_interval_s=float(backup_interval_s),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=installed_version(),
    )


def what_ended(store: PartitionStore, lease: Lease, found: Callable[[], BaseException]) -> BaseException:
    """Return the error that says why an execution ended, of all that its end has caused.

    A later execution, or a file that is not in its place any more, is the cause of whatever else went wrong. A task
    that an owner refuses cannot know whether the owner was restarted; the driver can. Nor can the process that ships
    epochs, which finds partitions missing, or ships nothing. found: returns the error that was noticed first; called if
    neither is the cause.
    """
    lost: RecoveryError | None = None
    try:
        store.check(lease)
    except (FileReplacedError, LeaseLostError) as error:
        return error
    except RecoveryError as error:
        lost = error
    noticed = found()
    if isinstance(noticed, OF_A_LOST_OWNER) and isinstance(lost, OwnerUnreachableError):
        return lost
    return noticed
