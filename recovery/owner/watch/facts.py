"""What an owner's service says of itself, to runs, to commands and to Prometheus."""

from __future__ import annotations

import os
from collections.abc import Mapping

from recovery.base.clock import Clock
from recovery.base.version import VERSION
from recovery.host.processes import describe_holder
from recovery.metrics.exposition import Family, exposition
from recovery.metrics.memory import resident_bytes
from recovery.metrics.owners import PREFIX, owner_families
from recovery.owner.runs import OwnedRuns
from recovery.owner.watch.credentials import Credentials
from recovery.planning.owner_facts import OwnerFacts
from recovery.storage.lock import lock_holder
from recovery.wire.calls import OwnerStatus
from recovery.wire.served import ServedDirectory
from recovery.wire.server import OwnerServer


def facts_of(
    runs: OwnedRuns, server: OwnerServer, served: ServedDirectory, credentials: Credentials, clock: Clock
) -> OwnerFacts:
    """Return the facts of a directory of an owner's service at this moment."""
    holding, counts, turns = runs.holding, served.counts, served.turns
    store = None if holding is None else holding.store
    p50_s, p99_s = turns.times.percentiles(0.5, 0.99)
    received_bytes, sent_bytes = server.traffic(served)
    return OwnerFacts(
        clock_ms=clock.wall_ms(),
        held=holding is not None,
        stopping=runs.stops,
        partitions=0 if store is None else len(store.indexes),
        epoch=runs.epoch,
        epochs_closed=runs.epochs_closed,
        close_s=runs.close_s,
        connections=len(server.connections(served)),
        proven=counts.proven,
        reconnections=counts.reconnections,
        refused=counts.refused,
        second_token=counts.second_token,
        calls=counts.calls,
        call_p50_s=p50_s,
        call_p99_s=p99_s,
        waiting_calls=turns.waiting,
        received_bytes=received_bytes,
        sent_bytes=sent_bytes,
        file_errors=counts.file_errors,
        disk_free_bytes=runs.disk_free(),
        memory_bytes=resident_bytes(os.getpid()),
        certificate_end_s=credentials.certificate_left_s(clock),
    )


def status_of(runs: OwnedRuns, facts: OwnerFacts) -> OwnerStatus:
    """Return what `OwnerCalls.serving` returns."""
    holding = runs.holding
    if holding is not None:
        return OwnerStatus(VERSION, holding.purpose, runs.stops, facts)
    other = lock_holder(runs.directory)
    return OwnerStatus(VERSION, "" if other is None else describe_holder(other), runs.stops, facts)


def text(facts: Mapping[str, OwnerFacts]) -> str:
    """Return the metrics of an owner's service, as text. facts: of each directory, by its name."""
    info = Family(f"{PREFIX}_info", "gauge", "The service.", [({"version": VERSION}, 1)])
    labelled = [({"directory": name}, each) for name, each in facts.items()]
    return exposition(iter([info, *owner_families(labelled)]))
