"""Operational state from Python: high-water marks, run history, scoped state and locks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import date, datetime
from typing import Any

from recovery.base.clock import Clock, SystemClock
from recovery.errors import ConfigurationError, shown
from recovery.operational import marks, scopes
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.backends.open import Location, choose, open_backend
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.closed_marks import closed_marks, standing_marks
from recovery.operational.ids import check, escape, matches, unescape
from recovery.operational.marks import Mark
from recovery.operational.runs import EDIT, SAVED, Run, RunHistory, parse_nodes
from recovery.operational.scopes import ScopedState


class StateManager:
    """The operational state of a recovery directory.

    directory: made by `python -m recovery init DIR N`; or the URI of a backend.
    backend: the URI of a backend outside the directory: file://, s3://, azure:// or gs://; None: what the environment
        variable RECOVERY_STATE_BACKEND names, by default the directory itself.
    environment: keeps what belongs to "dev" from what belongs to "prod"; the same key in two environments are two.
    retry: how long a write waits for other writers.

    What it writes is durable when the call returns, and no rewind of a flow takes it back. Many processes may write
    at once, while a flow runs too. Raises NoPartitionsError, MissingPartitionsError, CorruptPartitionError,
    StateLockedError or StorageError; of other backends
    CorruptStateError, StateBackendError and LeaseLostError.
    """

    def __init__(
        self,
        directory: Location | None = None,
        *,
        backend: str | None = None,
        environment: str = "",
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.backend: Backend = open_backend(choose(directory, backend), self._clock, retry or RetryPolicy())
        self.environment = check(environment, "name of an environment", empty=True)
        # How the ids of this environment begin.
        self.prefix = f"@{escape(environment)}/" if environment else ""
        self._history = RunHistory(self.backend, self._clock, self.prefix)

    # ---- high-water marks

    def get_hwm(self, key: str) -> Any:
        """The high-water mark of `key`, with the type it was set with; None when there is none."""
        mark = self._marks().get(check(key, "key of a mark"))
        return None if mark is None else mark.value

    def set_hwm(self, key: str, value: Any, *, force: bool = False) -> None:
        """Move the mark of `key` forward to `value`; back only when forced.

        Raises HighWaterMarkError when it would move back or cannot be compared, StateValueError for values without an
        order.
        """
        self.set_hwm_batch([{"key": key, "value": value}], force=force)

    def set_hwm_batch(self, batch: Iterable[Mapping[str, Any]], *, force: bool = False) -> None:
        """Move several marks, `[{"key": …, "value": …}, …]`, all of them or none. Raises as `set_hwm`."""
        wanted = marks.parse_batch(batch)
        for value in wanted.values():
            marks.check_value(value)
        if wanted:
            now_ms = self._clock.wall_ms()

            def change(document: Document | None) -> dict[str, Any]:
                # Read where the document is held: an epoch that moves a mark is closed before, or after.
                closed = standing_marks(self.backend, self._marks_id)
                return marks.advance(document and document.content, wanted, now_ms, force=force, closed=closed)

            self.backend.update({self._marks_id: change})

    def remove_hwm(self, *keys: str) -> int:
        """Remove marks, all at once: the next load begins at the beginning. Returns how many there were."""
        before = self._marks()
        existing = [key for key in dict.fromkeys(keys) if check(key, "key of a mark") in before]
        if existing:
            now_ms = self._clock.wall_ms()
            self.backend.update({self._marks_id: lambda d: marks.remove(d and d.content, existing, now_ms)})
        return len(existing)

    def list_hwms(self, pattern: str | None = None) -> list[Mark]:
        """The marks whose key a glob selects, sorted by key."""
        return [mark for key, mark in self._marks().items() if matches(key, pattern)]

    # ---- run history

    def get_last_run_status(self, pipeline: str, node: str | None = None) -> bool | None:
        """How the last run of a pipeline, or of one of its nodes, ended: True, False; None: it runs, or never ran."""
        run = self._last_run(pipeline, node)
        if run is None:
            return None
        return run.succeeded if node is None else run.nodes[node].succeeded

    def get_last_run_info(self, pipeline: str, node: str | None = None) -> dict[str, Any] | None:
        """The record of the last run of a pipeline, or of the last that had this node; None when there is none."""
        run = self._last_run(pipeline, node)
        if run is None:
            return None
        info = run.as_json()
        return info if node is None else {**info["nodes"][node], "node": node, "run": info}

    def save_pipeline_run(
        self,
        pipeline: str,
        nodes: Mapping[str, Any],
        *,
        error: BaseException | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> str:
        """Record a run that has ended, of whatever kind; returns its id.

        nodes: for each node True, False, or a mapping with "status" ("succeeded", "failed", "skipped", "blocked") or
        "success", and "duration_s", "rows", "error", and more. It failed when `error` is given, or a node failed.
        """
        parsed = parse_nodes(nodes)
        failed = [name for name, node in parsed.items() if not node.succeeded]
        if error is None and failed:
            error = RuntimeError(f"{', '.join(failed)} failed")
        recorder = self._history.begin(pipeline, SAVED, details)
        for name, node in parsed.items():
            recorder.node(name, node)
        recorder.end(error)
        return recorder.run.run_id

    def list_runs(
        self,
        pipeline: str | None = None,
        *,
        node: str | None = None,
        status: str | None = None,
        days: float | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Runs, newest first: of a pipeline, with a node, with a status (of the node, when one is named), not older."""
        since_ms = None if days is None else self._clock.wall_ms() - days * 86_400_000
        found = [
            run
            for run in self._history.runs(pipeline)
            if (node is None or node in run.nodes)
            and (status is None or status == (run.status if node is None else run.nodes[node].status))
            and (since_ms is None or run.started_ms >= since_ms)
        ]
        return found[:limit]

    def epoch_row(self, key: str, value: Any) -> dict[str, Any]:
        """What an epoch holds of a mark that it moves: see `recovery.operational.marks`."""
        document = self.backend.read([self._marks_id]).get(self._marks_id)
        return marks.epoch_row(document and document.content, key, value, self._clock.wall_ms())

    @property
    def history(self) -> RunHistory:
        """The run history itself: to record a run while it goes on, and to clean up."""
        return self._history

    # ---- scoped state

    def process_state(self, namespace: str, name: str) -> ScopedState:
        """The state of a process."""
        return self._scoped(scopes.process_id(namespace, name))

    def task_state(self, dag_id: str, task_id: str) -> ScopedState:
        """The state of a task, over all its runs."""
        return self._scoped(scopes.task_id(dag_id, task_id))

    def task_instance_state(
        self, dag_id: str, task_id: str, run_or_execution_date: str | date | datetime, map_index: int | None = None
    ) -> ScopedState:
        """The state of a task in one run; a retry finds what the attempt before it wrote."""
        return self._scoped(scopes.task_instance_id(dag_id, task_id, run_or_execution_date, map_index))

    def process_states(self, namespace: str) -> dict[str, Any]:
        """The values of all processes of a namespace, by name; of no other namespace."""
        prefix = self.prefix + scopes.process_id(namespace, "").removesuffix("%")
        found = {d.state_id[len(prefix) :]: d.state_id for d in self.backend.list(prefix) if d.content is not None}
        states = {unescape(name): ScopedState(self.backend, self._clock, each) for name, each in found.items()}
        return {name: state.get() for name, state in states.items() if state.exists}

    # ---- locks

    def lock(self, name: str, purpose: str = "a lock") -> AbstractContextManager[None]:
        """Hold a lock by name: `with state.lock("orders"): …`. One process, and one thread of it, at a time.

        Raises StateLockedError naming the holder when it was not free in time.
        """
        return self.backend.lock(f"{self.prefix}{escape(name)}", purpose)

    def _scoped(self, state_id: str) -> ScopedState:
        return ScopedState(self.backend, self._clock, self.prefix + state_id)

    @property
    def _marks_id(self) -> str:
        return self.prefix + marks.DOCUMENT

    def _marks(self) -> dict[str, Mark]:
        document = self.backend.read([self._marks_id]).get(self._marks_id)
        return marks.read(document and document.content, self._closed_marks())

    def _closed_marks(self) -> dict[str, Any]:
        """The marks that epochs moved, as of the newest one that is closed."""
        return closed_marks(self.backend, self._marks_id)

    def _last_run(self, pipeline: str, node: str | None) -> Run | None:
        if not isinstance(pipeline, str):
            raise ConfigurationError(f"{shown(pipeline)} is not a pipeline's name", remedy="Use a text.")
        runs = (run for run in self._history.runs(pipeline) if run.kind != EDIT)
        return next((run for run in runs if node is None or node in run.nodes), None)


def process_state(namespace: str, name: str, *, directory: str | os.PathLike[str] | None = None) -> ScopedState:
    """The state of a process: `StateManager(directory).process_state(namespace, name)`.

    directory: by default what the environment variable RECOVERY_DIRECTORY says.
    """
    return StateManager(_default(directory)).process_state(namespace, name)


def task_state(dag_id: str, task_id: str, *, directory: str | os.PathLike[str] | None = None) -> ScopedState:
    """The state of a task, over all its runs; `directory` as for `process_state`."""
    return StateManager(_default(directory)).task_state(dag_id, task_id)


def task_instance_state(
    dag_id: str,
    task_id: str,
    run_or_execution_date: str | date | datetime,
    map_index: int | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
) -> ScopedState:
    """The state of a task in one run, over all its tries; `directory` as for `process_state`."""
    return StateManager(_default(directory)).task_instance_state(dag_id, task_id, run_or_execution_date, map_index)


def _default(directory: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    return directory or os.environ.get("RECOVERY_DIRECTORY")
