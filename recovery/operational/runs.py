"""Run history: what ran, when, and how it ended. Records are durable immediately; no rewind takes them back.

An active run records heartbeats. A run whose process is gone is dead, whatever its record says.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from recovery.base.clock import Clock
from recovery.base.intervals import Interval, parse_interval
from recovery.base.untrusted_json import MOST, is_moment
from recovery.errors import CorruptStateError, RecoveryError
from recovery.host.processes import identity, is_same, is_visible
from recovery.operational.backends.backend import Backend, Document
from recovery.operational.ids import StateId, join
from recovery.planning.redaction import NamedAs, redacted

HEARTBEAT_S = 10.0
MISSED_BEATS = 6
RUNNING, SUCCEEDED, FAILED, SKIPPED, BLOCKED, DEAD = "running", "succeeded", "failed", "skipped", "blocked", "dead"
FLOW, SAVED, EDIT = "flow", "saved", "edit"
"""Kinds of runs. An edit of a flow's state is recorded as a run, but never counts as the last run."""
KEPT_SKIPPED = 100
"""The number of runs in a row that were skipped whose records stay: one a minute would make half a million a year."""
NODE_STATUSES = (RUNNING, SUCCEEDED, FAILED, SKIPPED, BLOCKED, DEAD)
_OF_RUNS = re.compile("(@[^/]*/)?runs/")
_OUTCOME = {SUCCEEDED: True, SKIPPED: True, FAILED: False, BLOCKED: False, DEAD: False}


def is_record(state_id: StateId) -> bool:
    """Return whether a document is the record of a run, in any environment."""
    return _OF_RUNS.match(state_id) is not None


@dataclass(frozen=True, slots=True)
class NodeRun:
    """What one node of a pipeline did in one run. `why` says why the node ran or did not; times are seconds."""

    status: str
    duration_s: float | None = None
    rows: int | None = None
    definition: str | None = None
    why: str | None = None
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool | None:
        """Whether the node's result exists; None while it runs. A skipped node had made its result before."""
        return _OUTCOME.get(self.status)

    def facts(self) -> dict[str, Any]:
        """Return all facts of a node except `details`, as JSON."""
        return {
            "status": self.status,
            "duration_s": self.duration_s,
            "rows": self.rows,
            "definition": self.definition,
            "why": self.why,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a flow or a pipeline. Times are wall time in milliseconds.

    status: running, succeeded, failed; skipped: the run found no new input, and did not start Spark; or dead: the
    process is gone and did not record how the run ended.
    """

    run_id: str
    pipeline: str
    kind: str
    status: str
    started_ms: int
    ended_ms: int | None
    heartbeat_ms: int
    host: str
    pid: int
    error: str | None
    details: Mapping[str, Any]
    nodes: Mapping[str, NodeRun]
    process: str | None = None

    @property
    def succeeded(self) -> bool | None:
        """Whether the run succeeded; None while it runs."""
        return _OUTCOME.get(self.status)

    @property
    def duration_s(self) -> float | None:
        """How long the run took; None while it runs, and for a dead run, whose end is unknown."""
        return None if self.ended_ms is None else max(0, self.ended_ms - self.started_ms) / 1000

    @property
    def last_seen_ms(self) -> int | None:
        """The last heartbeat of a run that has not recorded its end; None for other runs."""
        return self.heartbeat_ms if self.status in (RUNNING, DEAD) else None

    def node_info(self, name: str) -> dict[str, Any]:
        """Return the record of one node, with the record of its run as `run`."""
        info, node = self.as_json(), self.nodes[name]
        given = node.details.get("metadata")
        return {
            **info["nodes"][name],
            "node": name,
            "run": info,
            "success": node.succeeded,
            "metadata": dict(given if isinstance(given, Mapping) else node.details),
            "timestamp": node.details.get("timestamp") or info["timestamp"],
        }

    def as_json(self) -> dict[str, Any]:
        """Return the facts of a run for programs (`--json`). timestamp: when it ended, or began if its end is
        unknown."""
        moment_ms = self.started_ms if self.ended_ms is None else self.ended_ms
        return {
            **_content(self),
            "success": self.succeeded,
            "metadata": dict(self.details),
            "timestamp": datetime.fromtimestamp(moment_ms / 1000, tz=UTC).isoformat(),
            "run_id": self.run_id,
            "duration_s": self.duration_s,
            "last_seen_ms": self.last_seen_ms,
        }


class RunHistory:
    """A backend's runs in one environment. `prefix` begins the ids of the environment's runs."""

    def __init__(self, backend: Backend, clock: Clock, prefix: str = "") -> None:
        self._backend = backend
        self._clock = clock
        self._prefix = prefix

    def runs(self, pipeline: str | None = None) -> list[Run]:
        """Return all runs, newest first."""
        found = [self._read(document) for document in self._documents(pipeline)]
        return sorted(found, key=lambda run: (run.started_ms, run.run_id), reverse=True)

    def begin(self, pipeline: str, kind: str, details: Mapping[str, Any] | None = None) -> RunRecorder:
        """Record that a run began; it is running until the recorder records its end or the process dies."""
        # A new run sorts after all earlier runs, whatever the clock says.
        last_ms = max((_parsed(each)[0].started_ms for each in self._documents(pipeline)), default=0)
        now_ms = self._clock.wall_ms()
        started_ms = max(now_ms, last_ms + 1)
        run = Run(
            run_id=f"{started_ms:014d}-{secrets.token_hex(4)}",
            pipeline=pipeline,
            kind=kind,
            status=RUNNING,
            started_ms=started_ms,
            ended_ms=None,
            heartbeat_ms=now_ms,
            host=socket.gethostname(),
            pid=os.getpid(),
            error=None,
            details=dict(details or {}),
            nodes={},
            process=identity(os.getpid()),
        )
        recorder = RunRecorder(self._backend, self._clock, self._id(pipeline, run.run_id), run)
        recorder.write()
        return recorder

    def skip(self, pipeline: str, kind: str, details: Mapping[str, Any]) -> int:
        """Record a run that found nothing to do; return how many came in a row, with this one. Of those in a row the
        newest KEPT_SKIPPED stay."""
        before = list(itertools.takewhile(lambda run: run.status == SKIPPED, self.runs(pipeline)))
        found = before[0].details.get("in_a_row") if before else 0
        in_a_row = (found if type(found) is int and found > 0 else len(before)) + 1
        recorder = self.begin(pipeline, kind, {**details, "in_a_row": in_a_row})
        recorder.skip()
        if len(before) >= KEPT_SKIPPED:
            self._backend.forget([self._id(run.pipeline, run.run_id) for run in before[KEPT_SKIPPED - 1 :]])
        return in_a_row

    def clean(self, older_than_s: Interval, *, dry_run: bool = False) -> list[Run]:
        """Forget the runs that ended longer ago than this, but never a pipeline's last run; returns the forgotten
        runs. older_than_s: seconds, or any other interval."""
        limit_ms = self._clock.wall_ms() - parse_interval(older_than_s) * 1000
        newest: set[str] = set()
        gone: list[Run] = []
        for run in self.runs():
            if run.kind != EDIT and run.pipeline not in newest:
                newest.add(run.pipeline)
            elif run.status != RUNNING and (run.ended_ms or run.heartbeat_ms) < limit_ms:
                gone.append(run)
        if gone and not dry_run:
            self._backend.forget([self._id(run.pipeline, run.run_id) for run in gone])
        return gone

    def count_naming(self, words: Collection[NamedAs]) -> int:
        """Return how many records, in all environments, have a text with one of these words."""
        return len(self._naming(words))

    def redact(self, words: Collection[NamedAs]) -> int:
        """Replace each text with one of these words, in the records of all environments; return the number of records
        that had some."""
        found = self._naming(words)
        self._backend.update({each.state_id: lambda now: _redacted(now, words) for each in found})
        return len(found)

    def _naming(self, words: Collection[NamedAs]) -> list[Document]:
        found = [each for each in self._backend.list() if is_record(each.state_id) and each.content is not None]
        return [each for each in found if redacted(each.content, words) != each.content]

    def _id(self, pipeline: str, run_id: str) -> StateId:
        return f"{self._prefix}{join('runs', pipeline, run_id)}"

    def _documents(self, pipeline: str | None) -> list[Document]:
        prefix = "runs/" if pipeline is None else f"{join('runs', pipeline)}/"
        return [d for d in self._backend.list(self._prefix + prefix) if d.content is not None]

    def _read(self, document: Document) -> Run:
        run, beat_s = _parsed(document)
        if run.status == RUNNING and is_alive(run, self._clock.wall_ms(), beat_s):
            return run
        if run.kind == SAVED and run.status != RUNNING:
            return run
        # A signal may end a run before it can record how its nodes ended.
        ended = {name: replace(n, status=DEAD) if n.status == RUNNING else n for name, n in run.nodes.items()}
        return replace(run, status=DEAD if run.status == RUNNING else run.status, nodes=ended)


class RunRecorder:
    """Writes the record of one run: on every change, and a heartbeat in between.

    A heartbeat that cannot be written is skipped; the calls that end a run raise if they cannot write.
    """

    def __init__(self, backend: Backend, clock: Clock, state_id: StateId, run: Run) -> None:
        self.run = run
        self._backend = backend
        self._clock = clock
        self._began_s = clock.elapsed_s()
        self._state_id = state_id
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self, every_s: float = HEARTBEAT_S) -> None:
        """Start a thread that records a heartbeat until the run ends."""

        def go_on() -> None:
            while not self._over.wait(every_s):
                with contextlib.suppress(RecoveryError):
                    self.write()

        self._thread = threading.Thread(target=go_on, name="heartbeat", daemon=True)
        self._thread.start()

    def node(self, name: str, node: NodeRun) -> None:
        """Record what a node did."""
        self.write(lambda run: replace(run, nodes={**run.nodes, name: node}))

    def note(self, **details: Any) -> None:
        """Add facts to the run; they are written with the next heartbeat."""
        with self._lock:
            self.run = replace(self.run, details={**self.run.details, **details})

    def end(self, error: BaseException | None = None, **details: Any) -> None:
        """Record how the run ended. Safe to repeat: the first call counts."""
        self._end(SUCCEEDED, error, details)

    def skip(self) -> None:
        """Record that the run found nothing to do."""
        self._end(SKIPPED, None, {})

    def _end(self, status: str, error: BaseException | None, details: Mapping[str, Any]) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self.run.status != RUNNING:
            return

        def ended(run: Run) -> Run:
            took_ms = round((self._clock.elapsed_s() - self._began_s) * 1000)
            return replace(
                run,
                status=status if error is None else FAILED,
                # A run that comes after one whose clock was ahead began later than this clock says.
                ended_ms=max(self._clock.wall_ms(), run.started_ms + took_ms),
                error=None if error is None else _shown(error),
                details={**run.details, **details},
            )

        self.write(ended)

    def write(self, change: Callable[[Run], Run] = lambda run: run) -> None:
        """Write the record, after `change`, with a fresh heartbeat."""
        with self._writing:
            with self._lock:
                before = self.run.details
                changed = replace(change(self.run), heartbeat_ms=max(self._clock.wall_ms(), self.run.heartbeat_ms))
            # A backend may take long to answer; callers of `note` must not wait for it.
            self._backend.update({self._state_id: lambda _: _content(changed)})
            with self._lock:
                noted = {name: value for name, value in self.run.details.items() if before.get(name) != value}
                self.run = replace(changed, details={**changed.details, **noted})


def _redacted(document: Document | None, words: Collection[NamedAs]) -> Any:
    return None if document is None else redacted(document.content, words)


def read_run(run_id: str, content: Mapping[str, Any]) -> tuple[Run, float]:
    """Return the run that a document holds, as its process wrote it, and the seconds between its heartbeats."""
    fields = dict(content)
    beat_s = fields.pop("heartbeat_s", HEARTBEAT_S)
    nodes = {name: checked_node(NodeRun(**node)) for name, node in fields.pop("nodes").items()}
    return _checked_run(Run(run_id=run_id, nodes=nodes, **fields)), float(beat_s)


def _parsed(document: Document) -> tuple[Run, float]:
    """Return the run's record in a document. Raises CorruptStateError if the document does not hold a run."""
    try:
        return read_run(document.state_id.rpartition("/")[2], document.content)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise CorruptStateError(
            f"the run {document.state_id!r:.120} is not in the form of one: {error}",
            cause="Another program than recovery wrote the record.",
            remedy="Remove the record: python -m recovery state clear DIR ID",
        ) from None


def _checked_run(run: Run) -> Run:
    """Return the run. Raises TypeError for values that no run has."""
    texts = run.pipeline, run.kind, run.status, run.host, run.error or "", run.process or ""
    moments = run.started_ms, run.heartbeat_ms, run.started_ms if run.ended_ms is None else run.ended_ms
    whole = type(run.pid) is int and isinstance(run.details, Mapping)
    if not (whole and all(isinstance(each, str) for each in texts) and all(map(is_moment, moments))):
        raise TypeError("a field has the wrong type, or a time is outside all dates")
    return run


def checked_node(node: NodeRun) -> NodeRun:
    """Return the node. Raises TypeError for values that no node has."""
    texts = node.status, node.definition or "", node.why or "", node.error or ""
    numbers = node.duration_s, node.rows
    right = all(each is None or (type(each) in (int, float) and abs(each) <= MOST) for each in numbers)
    if not (right and isinstance(node.details, Mapping) and all(isinstance(each, str) for each in texts)):
        raise TypeError("a field of a node has the wrong type")
    return node


def is_alive(run: Run, now_ms: int, beat_s: float = HEARTBEAT_S) -> bool:
    """Whether the process of a run still exists.

    If this process can see the run's process, that process is looked up. Otherwise, on another host or in another
    container, the heartbeats decide: a run that missed several counts as dead.
    """
    if run.process is not None and is_visible(run.host, run.process):
        return is_same(identity(run.pid), run.process)
    return now_ms - run.heartbeat_ms <= MISSED_BEATS * beat_s * 1000


def _content(run: Run) -> dict[str, Any]:
    return {
        "pipeline": run.pipeline,
        "kind": run.kind,
        "status": run.status,
        "started_ms": run.started_ms,
        "ended_ms": run.ended_ms,
        "heartbeat_ms": run.heartbeat_ms,
        "host": run.host,
        "pid": run.pid,
        "process": run.process,
        "error": run.error,
        "details": dict(run.details),
        "nodes": {name: {**node.facts(), "details": dict(node.details)} for name, node in run.nodes.items()},
    }


def _shown(error: BaseException) -> str:
    if isinstance(error, RecoveryError):
        return f"{type(error).__name__}: {error.found}"[:2000]
    return f"{type(error).__name__}: {error}"[:2000]
