"""What `recovery status` and the pages of `recovery ui` say of a directory, as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

from recovery.backup.drills import LastDrill, drill_text
from recovery.backup.note import last_replaced
from recovery.backup.standby.document import facts_of
from recovery.base.reserved import DECLARATIONS_STEP, RESERVED_PREFIX, quarantined_step
from recovery.base.wording import ahead_s
from recovery.errors import EpochNotHeldError, RecoveryError, StorageError
from recovery.operators.held import operators_at
from recovery.planning.explain import shown_path
from recovery.planning.health import worst
from recovery.planning.measures import StepSize, measure_json
from recovery.planning.values import FoundFile
from recovery.report.facts import Facts
from recovery.storage.hydration import HydrationProgress, hydrating
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store
from recovery.values.declaration import Declaration, shown

READ_ATTEMPTS = 5

T = TypeVar("T")


def status_json(store: Store, gathered: Facts) -> dict[str, Any]:
    """Return all facts of a directory as JSON values. gathered: what `gather` has read of the store. Raises what
    reading the newest epoch raises, if that fails again and again."""
    return {
        **_directory(store, gathered),
        "origins": [each.as_json() for each in gathered.origins],
        "standby": facts_of(store.directory),
        "owners": [each.as_json() for each in gathered.owners],
        "replaced": None if (found := last_replaced(store.directory)) is None else msgspec.structs.asdict(found),
        **_health(gathered),
    }


def newest(gathered: Facts) -> Snapshot:
    """Return the newest snapshot that all partitions held when they were read. Raises why no run could resume."""
    if gathered.at is None:
        assert gathered.problem is not None
        raise gathered.problem
    return gathered.at


def _directory(store: Store, gathered: Facts) -> dict[str, Any]:
    directory, found, described, plan = store.directory, gathered.found, gathered.described, gathered.plan
    facts: dict[str, Any] = {
        "directory": str(directory),
        "store_id": described[0].store_id if described else None,
        "flow": next((d.flow_id for d in described if d.flow_id), None),
        "lock": gathered.holder,
        "links": gathered.links,
        "hydrating": [_progress(each) for each in hydrating(directory)],
        "partitions": [_partition(store, file, gathered.sizes.get(file.path.name)) for file in found],
        "resume_epoch": None if plan is None else plan.resume_epoch,
        "resume_after": None if plan is None else plan.resume_epoch - 1,
        "window": [] if plan is None else list(plan.window),
        "steps": [],
        "schemas": {},
        "operators": [],
        "executions": _executions(found),
        "problem": None,
    }
    try:
        facts["operators"] = _read(store, gathered, operators_at) or []
        facts["schemas"] = _read(store, gathered, schemas_at) or {}
    except RecoveryError as error:
        facts["problem"] = error.as_json()
    try:
        facts["steps"] = store.newest_steps(described)
    except RecoveryError as error:
        facts["problem"] = facts["problem"] or error.as_json()
    return facts


def _progress(found: HydrationProgress) -> dict[str, Any]:
    """Return how much of a partition a lazy restore has fetched."""
    # Only such a directory needs what reaches places of backups.
    from recovery.places.secrets import shown_address

    return {
        "file": found.path.name,
        "from": shown_address(found.place),
        "there_bytes": found.there_bytes,
        "total_bytes": found.total_bytes,
    }


def schemas_at(at: Snapshot) -> dict[str, Any]:
    """Return what each step declares: its key columns, and the form of its state for programs and for people."""
    found = {}
    for key, value in at.values(DECLARATIONS_STEP).items():
        if quarantined_step(key) is not None:
            # A step that the flow does not have any more: only its rows in quarantine are left.
            continue
        # A later version may declare more; the commands that need it report it.
        with suppress(ValueError):
            declared = Declaration.from_text(value)
            found[key] = {
                "key": [{"name": name, "type": kind} for name, kind in declared.key],
                "state": declared.state,
                "text": shown(declared.state),
            }
    return found


def _read(store: Store, gathered: Facts, read: Callable[[Snapshot], T]) -> T | None:
    """Read something at the newest epoch. If a run collects that epoch meanwhile, the next epoch counts."""
    at = newest(gathered)
    for left in reversed(range(READ_ATTEMPTS)):
        try:
            return read(at)
        except EpochNotHeldError:
            pass
        except StorageError:
            # A run may have begun to write to the file that was read.
            if not left:
                raise
        at = store.at()
    return None


def _health(facts: Facts) -> dict[str, Any]:
    """Return what was measured, and how it compares with its targets."""
    last = facts.epochs[-1] if facts.epochs else None
    return {
        "level": str(worst(facts.health)),
        "health": [each.as_json() for each in facts.health],
        "state_bytes": facts.state_bytes,
        "sizes": {step: {"rows": size.rows, "bytes": size.size_bytes} for step, size in facts.steps.items()},
        "last_backup": None if facts.backup is None else _dated(facts.backup, facts.backup.finished_ms, facts.now_ms),
        "last_drill": drill_json(facts.drill, facts.now_ms),
        "replica": _replica(facts),
        "lag": None if facts.lag is None else facts.lag.as_json(),
        "quarantine": {step: asdict(each) for step, each in facts.quarantine.items()},
        "waiting": None if facts.waiting is None else msgspec.structs.asdict(facts.waiting),
        "measured_epochs": len(facts.epochs),
        "last_epoch": None if last is None else measure_json(last),
        "unreadable": list(facts.problems),
    }


def drill_json(found: LastDrill | None, now_ms: int) -> dict[str, Any] | None:
    """Return how the last drill ended, as JSON values, with the sentence that people read."""
    if found is None:
        return None
    dated = _dated(found, found.finished_ms, now_ms)
    return {**dated, "passed": found.has_passed, "text": drill_text(found, now_ms)}


def _dated(note: msgspec.Struct, at_ms: int, now_ms: int) -> dict[str, Any]:
    """Return a note as JSON values, and how far it is dated ahead of this host's clock."""
    return {**msgspec.structs.asdict(note), "ahead_s": ahead_s(at_ms, now_ms)}


def _replica(facts: Facts) -> dict[str, Any] | None:
    if facts.replica is None or facts.replica_lag is None:
        return None
    lag = facts.replica_lag
    dated = _dated(facts.replica, facts.replica.shipped_ms, facts.now_ms)
    return {**dated, "lag_epochs": lag.epochs, "lag_s": lag.seconds}


def _partition(store: Store, file: FoundFile, sizes: Mapping[str, StepSize] | None) -> dict[str, Any]:
    d = file.description
    if d is None:
        assert file.error is not None
        return {"file": file.path.name, "error": file.error.as_json()}
    newest = d.newest.live_rows if d.newest else 0
    # A file of an older version does not separate steps from the run's own rows.
    keys = newest if sizes is None else sum(s.rows for step, s in sizes.items() if not step.startswith(RESERVED_PREFIX))
    return {
        "file": shown_path(file.path, store.directory),
        "error": None,
        "index": d.index,
        "oldest_epoch": d.oldest_epoch,
        "newest_epoch": d.newest_epoch,
        "folded_epoch": d.folded_epoch,
        "last_execution": d.newest.execution.number if d.newest else None,
        "batch_id": d.newest.batch_id if d.newest else None,
        "closed_ms": d.newest.closed_ms if d.newest else None,
        "keys": keys,
        "size_bytes": d.size_bytes,
        "log_bytes": store.reader(d).log_bytes(),
    }


def _executions(found: Sequence[FoundFile]) -> list[dict[str, Any]]:
    known: dict[tuple[int, str], dict[str, Any]] = {}
    for file in found:
        for e in file.description.executions if file.description else ():
            if (e.number, e.id) in known:
                continue
            lease = e.lease
            known[e.number, e.id] = {
                "number": e.number,
                "id": e.id,
                "flow": e.flow_id,
                "started_ms": e.started_ms,
                "resume_epoch": e.resume_epoch,
                "snapshot_interval_s": e.snapshot_interval_s,
                "backup_interval_s": e.backup_interval_s,
                "host": e.host,
                "pid": e.pid,
                "version": e.version,
                "epochs": sum(c.execution == lease for c in file.description.epochs) if file.description else 0,
            }
    return [known[key] for key in sorted(known)]
