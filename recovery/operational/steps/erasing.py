"""Erasing keys from a store, at every epoch that it holds.

erase.1  Lock the store, check its partitions, and look where the keys are.
erase.2  Record in the run history that an erasure begins; take the keys out of the errors there, and remove documents
         of operational state.
erase.3  Begin an execution that erases. In one transaction, the partition that has a key loses all its rows, at every
         epoch, and records the execution. Before the first run there are only documents, and no execution begins.
erase.4  Rewrite all files, so that no byte of those rows is left.
erase.5  Record that the erasure is complete.

A key lies in one partition, so it is there as before or nowhere, whenever the process is killed; a run may begin after
any step. After a kill, the same call does what is left: its record in the run history is not complete.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from recovery.base import faults
from recovery.base.clock import Clock
from recovery.base.reserved import CHECKPOINT_STEP, quarantined_step
from recovery.epochs.execution import new_execution
from recovery.errors import RecoveryError, StateNotFoundError
from recovery.operational.ids import StateId
from recovery.operational.runs import EDIT, SUCCEEDED, RunHistory
from recovery.operational.steps.step_edits import audit, backend_of, check_whole, current_user
from recovery.planning.going_back import kept_interval_s
from recovery.planning.redaction import NamedAs, is_selected, named_as
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import ERASURE, PartitionDescription
from recovery.storage.connect import SCRATCH_NAME
from recovery.storage.seam import KeyToErase
from recovery.storage.store import Store

PURPOSE = "erase"
NO_FLOW = "(no flow)"
"""The name in the run history under which an erasure is recorded where no run has begun yet."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of the wanted keys in one step. waiting: they are rows in quarantine, not states. newest: some of them are
    in the newest snapshot; if not, only older snapshots have them. keys: the positions of the keys that have some."""

    step: str
    waiting: bool
    rows: int
    newest: bool
    keys: frozenset[int] = frozenset()

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {"step": self.step, "quarantine": self.waiting, "rows": self.rows, "newest": self.newest}


@dataclass(frozen=True, slots=True)
class Erased:
    """A finished erasure: what there was, its execution, how many records of the run history named a key, and how many
    documents of operational state were removed. execution: None where no run has begun yet."""

    found: tuple[Found, ...]
    execution: int | None
    records: int
    states: int = 0


class InHistory(NamedTuple):
    """What the run history has for an erasure. records: how many name a key; is_unfinished: the newest erasure did not
    come to its end, so files may still have bytes of what it has deleted."""

    records: int
    is_unfinished: bool


def look(store: Store, keys: Sequence[KeyToErase]) -> tuple[Found, ...]:
    """Return what a store holds of keys, at any epoch. Only reads; a run may be active. Raises the errors of planning,
    and CorruptPartitionError or StorageError."""
    return _look(store, plan_resume(store.found()).partitions, keys)


def _look(store: Store, partitions: Sequence[PartitionDescription], keys: Sequence[KeyToErase]) -> tuple[Found, ...]:
    found: dict[str, Found] = {}
    for partition in partitions:
        for stored, rows, newest, positions in store.reader(partition).rows_of(keys):
            step = quarantined_step(stored)
            before = found.get(stored, Found(step or stored, step is not None, 0, False))
            of_both = before.keys | frozenset(positions)
            found[stored] = replace(before, rows=before.rows + rows, newest=before.newest or newest, keys=of_both)
    return tuple(each for _, each in sorted(found.items()))


def in_history(store: Store, keys: Sequence[KeyToErase], clock: Clock) -> InHistory:
    """Return what the run history of a store, whose copies `store.found` has chosen, has for an erasure of keys. Only
    reads. Raises what the backend of the run history raises."""
    return _in_history(audit(store, clock), keys)


def _in_history(history: RunHistory, keys: Sequence[KeyToErase]) -> InHistory:
    return InHistory(history.count_naming(_words(keys)), _unfinished(history))


def _words(keys: Sequence[KeyToErase]) -> list[NamedAs]:
    return [word for text in dict.fromkeys(each.key for each in keys) for word in named_as(text)]


def documents(store: Store, patterns: Collection[str], clock: Clock) -> list[StateId]:
    """Return the ids of the documents of operational state that globs select, removed ones too. Only reads. store: its
    copies are chosen. Raises what the backend raises."""
    return [each.state_id for each in backend_of(store, clock).list() if is_selected(each.state_id, patterns)]


def erase(
    store: Store, keys: Sequence[KeyToErase], clock: Clock, *, states: Collection[str] = (), required: bool = True
) -> Erased | None:
    """Erase keys, and documents of operational state by globs; return what was erased. None: there was nothing, and no
    erasure is unfinished; then nothing was changed, and with `required` this raises StateNotFoundError.

    Raises DirectoryLockedError during a run, CorruptPartitionError for a damaged store, and what the backend of the run
    history raises: then nothing was changed. StorageError: run the call again, which completes the erasure.
    """
    # erase.1
    store.found()
    with store.locked(clock, PURPOSE) as held:
        plan = plan_resume(held.found())
        check_whole(plan, held)
        found = _look(held, plan.partitions, keys)
        history = audit(held, clock)
        ids = documents(held, states, clock)
        if not (found or ids or any(_in_history(history, keys))):
            if required:
                raise nothing_found(held, keys)
            return None
        faults.reach("erase.1")
        # erase.2
        facts = {"what": PURPOSE, "keys": len({each.key for each in keys}), "rows": sum(each.rows for each in found)}
        facts |= {"states": len(ids)} if ids else {}
        execution = None if plan.flow_id is None else plan.execution_number
        numbers = {} if execution is None else {"execution": execution, "epoch": plan.resume_epoch}
        record = history.begin(plan.flow_id or NO_FLOW, EDIT, {**numbers, **facts, "by": current_user()})
        records = history.redact(_words(keys))
        backend_of(held, clock).forget(ids)
        faults.reach("erase.2")
        # Owners take the record's end as long as they are held.
        with ExitStack() as connected:
            try:
                _erase(held, connected, plan, keys, clock)
            except BaseException as error:
                with suppress(RecoveryError):
                    record.end(error)
                raise
            # erase.5
            record.end()
    return Erased(found, execution, records, len(ids))


def _erase(store: Store, connected: ExitStack, plan: ResumePlan, keys: Sequence[KeyToErase], clock: Clock) -> None:
    partitions = store.connect(plan.partitions, store.directory / SCRATCH_NAME, clock)
    connected.callback(partitions.release)
    # erase.3
    if plan.flow_id is not None:
        kept_s = kept_interval_s(plan.partitions, None)
        execution = new_execution(plan, plan.flow_id, clock, backup_interval_s=kept_s)
        execution = replace(execution, id=f"{ERASURE}{execution.id}")
        partitions.start(execution, [], plan.partitions, erases=keys)
    faults.reach("erase.3")
    # erase.4
    partitions.scrub()
    faults.reach("erase.4")


def has_spark_state(store: Store) -> bool:
    """Return whether the newest snapshot has state of Spark's own operators, in which no key is looked for. Raises the
    errors of planning, and CorruptPartitionError or StorageError."""
    return any(name.startswith("state/") for name, _ in store.at().sizes(CHECKPOINT_STEP))


def nothing_found(store: Store, keys: Sequence[KeyToErase], copies: Sequence[str] = ()) -> StateNotFoundError:
    """Return the error for keys and documents of which a store holds nothing. copies: where nothing was found either.
    The error does not repeat the keys."""
    nor = f"; nor in {', '.join(copies)}" if copies else ""
    if not keys:
        return StateNotFoundError(
            f"no operational state matches{nor}",
            path=store.directory,
            cause="It was never there, was erased, or the glob is misspelt.",
            remedy="List the ids: python -m recovery state list DIR",
        )
    return StateNotFoundError(
        f"nothing of the key is held, at no epoch{nor}",
        path=store.directory,
        cause="The key was never there, was erased, or is misspelt: a key of several columns is a JSON array.",
        remedy="List the keys: python -m recovery state list DIR --step STEP",
    )


def _unfinished(history: RunHistory) -> bool:
    """Return whether the newest erasure did not come to its end."""
    ran = next((run for run in history.runs() if run.kind == EDIT and run.details.get("what") == PURPOSE), None)
    return ran is not None and ran.status != SUCCEEDED
