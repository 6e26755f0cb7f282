"""The Python API of operational state: high-water marks, run history, scoped state and locks."""

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
from recovery.operational.backends.custom import StateStore
from recovery.operational.backends.open import Location, StoreBackend, choose_backend
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.closed_marks import changing_marks, closed_marks, standing_marks
from recovery.operational.ids import check, escape, matches, unescape
from recovery.operational.keyed import KeyedState, Scope, scopes_of
from recovery.operational.marks import Mark
from recovery.operational.results import also_named, parse_results, status_of
from recovery.operational.runs import EDIT, NODE_STATUSES, SAVED, Run, RunHistory
from recovery.operational.scopes import Retention, ScopedState


class StateManager:
    """The operational state of a recovery directory.

    directory: made by `python -m recovery init DIR N`; or the URI of a backend.
    backend: the URI of a backend outside the directory: file://, s3://, azure:// or gs://; or an object with the
        methods of StateStore. None: the environment variable RECOVERY_STATE_BACKEND names it, by default the directory
        itself.
    environment: separates for example "dev" from "prod"; the same key in two environments is two keys.
    default_retention: how long the state of a task instance is kept if `set` does not say; None or 0: for ever.
    retry: how long a write waits for other writers.

    A write is durable when the call returns, and no rewind of a flow takes it back. Many processes may write
    concurrently, also while a flow runs. Raises NoPartitionsError, MissingPartitionsError, CorruptPartitionError,
    StateLockedError or StorageError; with other backends CorruptStateError, StateBackendError and LeaseLostError.
    """

    def __init__(
        self,
        directory: Location | None = None,
        *,
        backend: str | StateStore | StoreBackend | None = None,
        environment: str = "",
        default_retention: Retention | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self.backend: Backend = choose_backend(directory, backend, self._clock, retry or RetryPolicy())
        scopes.lasts(default_retention, 0)
        self._default_retention = default_retention
        self.environment = check(environment, "name of an environment", empty=True)
        # The prefix of this environment's ids.
        self.prefix = f"@{escape(environment)}/" if environment else ""
        self._history = RunHistory(self.backend, self._clock, self.prefix)

    def __repr__(self) -> str:
        environment = f", environment={self.environment!r}" if self.environment else ""
        return f"StateManager({self.backend.location!r}{environment})"

    # ---- high-water marks

    def get_hwm(self, key: str, default: Any = None) -> Any:
        """Return the high-water mark of `key`, with the type it was set with; `default` if it has none."""
        mark = self.find_mark(key)
        return default if mark is None else mark.value

    def find_mark(self, key: str) -> Mark | None:
        """Return the high-water mark of `key` with its facts; None if it has none."""
        return self._marks().get(check(key, "key of a mark"))

    def set_hwm(self, key: str, value: Any, *, force: bool = False) -> None:
        """Move the mark of `key` forward to `value`; `force` also moves it back.

        Raises HighWaterMarkError if the mark would move back or cannot be compared, StateValueError for values without
        an order.
        """
        self.set_hwm_batch([{"key": key, "value": value}], force=force)

    @also_named(updates="batch")
    def set_hwm_batch(
        self, batch: Iterable[Mapping[str, Any]], *, force: bool = False, pipeline: str | None = None
    ) -> None:
        """Move several marks, `[{"key": …, "value": …}, …]`: all or none. Raises as `set_hwm`.

        pipeline: the pipeline whose loads move the marks; loads of other pipelines then refuse these marks.
        """
        wanted = marks.parse_batch(batch)
        for value in wanted.values():
            marks.check_value(value)
        if wanted:
            now_ms = self._clock.wall_ms()

            def change(document: Document | None) -> dict[str, Any]:
                # Read this under the document's lock: an epoch that moves a mark is closed before or after, not
                # meanwhile.
                closed = standing_marks(self.backend, self._marks_id)
                content = document and document.content
                return marks.advance(content, wanted, now_ms, force=force, closed=closed, pipeline=pipeline)

            with changing_marks(self.backend, self._clock):
                self.backend.update({self._marks_id: change})

    def remove_hwm(self, *keys: str) -> int:
        """Remove marks in one step, so that the next load starts from the beginning. Returns how many existed."""
        before = self._marks()
        existing = [key for key in dict.fromkeys(keys) if check(key, "key of a mark") in before]
        if existing:
            now_ms = self._clock.wall_ms()
            self.backend.update({self._marks_id: lambda d: marks.remove(d and d.content, existing, now_ms)})
        return len(existing)

    def list_hwms(self, pattern: str | None = None) -> list[Mark]:
        """Return the marks whose key the glob selects, sorted by key."""
        return [mark for key, mark in self._marks().items() if matches(key, pattern)]

    # ---- run history

    @also_named(pipeline_name="pipeline", node_name="node")
    def get_last_run_status(self, pipeline: str, node: str | None = None) -> bool | None:
        """Whether the last run of a pipeline, or of one of its nodes, succeeded; None if it is running or never ran."""
        run = self._last_run(pipeline, node)
        if run is None:
            return None
        return run.succeeded if node is None else run.nodes[node].succeeded

    @also_named(pipeline_name="pipeline", node_name="node")
    def get_last_run_info(self, pipeline: str, node: str | None = None) -> dict[str, Any] | None:
        """Return the record of the last run of a pipeline, or of a node in the last run that had it; None without such
        a run. The record has `success`, `metadata` and `timestamp` among others."""
        run = self._last_run(pipeline, node)
        if run is None:
            return None
        return run.as_json() if node is None else run.node_info(node)

    @also_named(pipeline_name="pipeline", results="nodes")
    def save_pipeline_run(
        self,
        pipeline: str,
        nodes: Any,
        *,
        error: BaseException | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> str:
        """Record a run that has ended, of any kind; returns its id.

        nodes: for each node True, False, or a mapping with "status" ("succeeded", "failed", "skipped", "blocked") or
        "success", and "duration_s", "rows", "error", and more; or an object with such `nodes`, or with Odibi's
        `node_results`; or Odibi's stored form, or what its `to_dict()` returns. The run failed if `error` is given or a
        node failed. Raises
        ConfigurationError or StateValueError for anything else.
        """
        parsed, facts = parse_results(nodes)
        details = {**facts, **(details or {})}
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
        """Return runs, newest first. Filters: the pipeline, a node, a status (of the node, if one is named), an age in
        days. Raises ConfigurationError for a status that no run has."""
        wanted = None if status is None else status_of(status)
        if status is not None and wanted is None:
            raise ConfigurationError(f"there is no status {shown(status)}", remedy=f"Use {', '.join(NODE_STATUSES)}.")
        since_ms = None if days is None else self._clock.wall_ms() - days * 86_400_000
        found = [
            run
            for run in self._history.runs(pipeline)
            if (node is None or node in run.nodes)
            and (wanted is None or wanted == (run.status if node is None else run.nodes[node].status))
            and (since_ms is None or run.started_ms >= since_ms)
        ]
        return found[:limit]

    def epoch_row(self, key: str, value: Any, pipeline: str | None = None) -> dict[str, Any]:
        """Return the row that an epoch holds for a mark that it moves: see `recovery.operational.marks`."""
        document = self.backend.read([self._marks_id]).get(self._marks_id)
        return marks.epoch_row(document and document.content, key, value, self._clock.wall_ms(), pipeline)

    @property
    def history(self) -> RunHistory:
        """The run history, to record a run from its beginning, and to clean up."""
        return self._history

    # ---- scoped state

    def process_state(self, namespace: str, name: str) -> ScopedState:
        """Return the state of a process."""
        return self._scoped(scopes.process_id(namespace, name))

    def task_state(self, dag_id: str, task_id: str) -> ScopedState:
        """Return the state of a task, shared by all its runs."""
        return self._scoped(scopes.task_id(dag_id, task_id))

    def task_instance_state(
        self, dag_id: str, task_id: str, run_or_execution_date: str | date | datetime, map_index: int | None = None
    ) -> ScopedState:
        """Return the state of a task in one run; a retry sees what earlier attempts wrote."""
        scope_id = scopes.task_instance_id(dag_id, task_id, run_or_execution_date, map_index)
        return self._scoped(scope_id, self._default_retention)

    def process_states(self, namespace: str) -> dict[str, Any]:
        """Return the values of all processes of exactly this namespace, by name."""
        prefix = self.prefix + scopes.process_id(namespace, "").removesuffix("%")
        found = scopes.values_of(self.backend.list(prefix), self._clock.wall_ms())
        return {unescape(state_id.removeprefix(prefix)): value for state_id, value in found.items()}

    def task_state_store(
        self,
        dag_id: str,
        task_id: str,
        run_or_execution_date: str | date | datetime | None = None,
        map_index: int | None = None,
        *,
        clear_on_success: bool = False,
    ) -> KeyedState:
        """Return the values by key of a task in one run; without a run, those that all runs of the task share."""
        if run_or_execution_date is None:
            return self._keyed(scopes.task_id(dag_id, task_id), clear_on_success)
        scope_id = scopes.task_instance_id(dag_id, task_id, run_or_execution_date, map_index)
        return self._keyed(scope_id, clear_on_success, self._default_retention)

    def asset_state_store(self, name: Any = None, *, uri: str | None = None, asset_id: int | None = None) -> KeyedState:
        """Return the values by key of an asset, which is named by exactly one of its name, URI and id; or by Airflow's
        Asset, which stands for its name."""
        return self._keyed(scopes.asset_scope_id(name, uri, asset_id))

    def list_scopes(self, pattern: str | None = None) -> list[Scope]:
        """Return the scopes that have state, sorted. pattern: a glob of ids such as "task-instance/nightly/*"."""
        found = [
            document for kind in scopes.KINDS for document in self.backend.list(f"{self.prefix}{kind}/")
        ]  # fmt: skip
        return scopes_of(found, self._clock.wall_ms(), pattern)

    def clean_expired(self, *, dry_run: bool = False) -> int:
        """Remove scoped state whose retention has passed, of all environments; returns how much. Any backend, also
        beside a run."""
        now_ms = self._clock.wall_ms()
        return len(scopes.expired(self.backend, now_ms)) if dry_run else scopes.remove_expired(self.backend, now_ms)

    # ---- locks

    def lock(self, name: str, purpose: str = "a lock") -> AbstractContextManager[None]:
        """Hold a named lock: `with state.lock("orders"): …`. One thread of one process holds the lock at a time.

        Raises StateLockedError naming the holder if the lock was not free in time.
        """
        return self.backend.lock(f"{self.prefix}{escape(name)}", purpose)

    def _scoped(self, state_id: str, retention: Retention | None = None) -> ScopedState:
        return ScopedState(self.backend, self._clock, self.prefix + state_id, retention)

    def _keyed(self, scope_id: str, clear: bool = False, retention: Retention | None = None) -> KeyedState:
        return KeyedState(self.backend, self._clock, self.prefix + scope_id, retention, clear)

    @property
    def _marks_id(self) -> str:
        return self.prefix + marks.DOCUMENT

    def _marks(self) -> dict[str, Mark]:
        document = self.backend.read([self._marks_id]).get(self._marks_id)
        return marks.read(document and document.content, self._closed_marks())

    def _closed_marks(self) -> dict[str, Any]:
        """Return the marks that epochs moved, as of the newest closed epoch."""
        return closed_marks(self.backend, self._marks_id)

    def _last_run(self, pipeline: str, node: str | None) -> Run | None:
        if not isinstance(pipeline, str):
            raise ConfigurationError(f"{shown(pipeline)} is not a pipeline's name", remedy="Use text.")
        runs = (run for run in self._history.runs(pipeline) if run.kind != EDIT)
        return next((run for run in runs if node is None or node in run.nodes), None)


def process_state(namespace: str, name: str, *, directory: str | os.PathLike[str] | None = None) -> ScopedState:
    """Return the state of a process: `StateManager(directory).process_state(namespace, name)`.

    directory: by default the value of the environment variable RECOVERY_DIRECTORY.
    """
    return StateManager(_default(directory)).process_state(namespace, name)


def task_state(dag_id: str, task_id: str, *, directory: str | os.PathLike[str] | None = None) -> ScopedState:
    """Return the state of a task, shared by all its runs; `directory` as for `process_state`."""
    return StateManager(_default(directory)).task_state(dag_id, task_id)


def task_instance_state(
    dag_id: str,
    task_id: str,
    run_or_execution_date: str | date | datetime,
    map_index: int | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
) -> ScopedState:
    """Return the state of a task in one run, shared by all its tries; `directory` as for `process_state`."""
    return StateManager(_default(directory)).task_instance_state(dag_id, task_id, run_or_execution_date, map_index)


def _default(directory: str | os.PathLike[str] | None) -> str | os.PathLike[str] | None:
    return directory or os.environ.get("RECOVERY_DIRECTORY")
