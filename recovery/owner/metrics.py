"""What an owner service tells Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

from recovery.base.version import VERSION
from recovery.metrics.exposition import Family, exposition
from recovery.metrics.memory import resident_bytes
from recovery.owner.runs import OwnedRuns
from recovery.wire.server import OwnerServer

_FAMILIES: tuple[tuple[str, Literal["gauge", "counter"], str], ...] = (
    ("held", "gauge", "1 while a run holds the partitions."),
    ("stopping", "gauge", "1 once the service is to end."),
    ("partitions", "gauge", "Partitions that the run has taken."),
    ("epoch", "gauge", "The newest epoch that a run has closed here."),
    ("epochs_closed_total", "counter", "Epochs closed here."),
    ("connections", "gauge", "Open connections."),
    ("connections_total", "counter", "Connections that have proved themselves."),
    ("refused_total", "counter", "Connections with a wrong token, key or lease."),
    ("calls_total", "counter", "Calls of tasks, runs and commands that were answered."),
    ("memory_bytes", "gauge", "Resident memory of the process."),
)


def text(runs: OwnedRuns, server: OwnerServer) -> str:
    """Return the metrics of an owner service, as text."""
    return exposition(_families(runs, server))


def _families(runs: OwnedRuns, server: OwnerServer) -> Iterator[Family]:
    holding, counts = runs.holding, server.counts
    store = None if holding is None else holding.store
    values: dict[str, float | None] = {
        "held": holding is not None,
        "stopping": runs.stops,
        "partitions": 0 if store is None else len(store.indexes),
        "epoch": runs.epoch,
        "epochs_closed_total": runs.epochs_closed,
        "connections": server.connections,
        "connections_total": counts.proven,
        "refused_total": counts.refused,
        "calls_total": counts.calls,
        "memory_bytes": resident_bytes(os.getpid()),
    }
    yield Family("recovery_owner_info", "gauge", "The service.", [({"version": VERSION}, 1)])
    for name, kind, help_text in _FAMILIES:
        value = values[name]
        yield Family(f"recovery_owner_{name}", kind, help_text, [] if value is None else [({}, float(value))])
