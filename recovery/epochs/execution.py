"""The record of the execution that this process begins: its identity, host, process and plan."""

from __future__ import annotations

import os
import secrets
import socket
from importlib.metadata import version

from recovery.base.clock import Clock
from recovery.planning.resume import ResumePlan
from recovery.planning.values import Execution


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
        version=version("recovery"),
    )
