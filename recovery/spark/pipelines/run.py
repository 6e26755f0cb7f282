"""Run a pipeline: run its nodes one after the other, record each, and close an epoch for the marks that each moved."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from recovery.base.clock import Clock, SystemClock
from recovery.base.notebooks import html_table
from recovery.base.reserved import CLOCK_STEP, EPOCH_STEP
from recovery.config import DEFAULT_MASTER, RecoveryConfig, given_backup_interval_s
from recovery.epochs.writer import EpochWriter
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError
from recovery.host.signals import InterruptedBySignal, acting, end_now
from recovery.operational.backends.open import StoreBackend, choose
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.closed_marks import changes
from recovery.operational.manager import StateManager
from recovery.operational.rewinds import check_start, note_start
from recovery.operational.runs import BLOCKED, EDIT, FAILED, RUNNING, SKIPPED, SUCCEEDED, NodeRun, Run, RunRecorder
from recovery.pipeline import Node, Pipeline
from recovery.places.address import is_uri
from recovery.planning.going_back import kept_interval_s
from recovery.planning.pipeline import LastNode, NodePlan, plan_nodes
from recovery.planning.resume import ResumePlan, plan_resume
from recovery.planning.values import FoundFile
from recovery.runnable import check_config, check_pipeline
from recovery.spark.clusters import check_master
from recovery.spark.jvm.errors import failure_behind, in_short
from recovery.spark.jvm.launch import abandon_launch
from recovery.spark.jvm.session import create_session
from recovery.spark.jvm.session_end import stopping
from recovery.spark.pipelines.incremental import Load, Loading, _current, moved
from recovery.storage.store import OwnerAccess, Store
from recovery.storage.verify import run_all
from recovery.values.functions import check_runs, not_run

PIPELINE = "pipeline"
COUNTED_WITHIN_S = 2.0
NOTED_WITHIN_S = 3.0
NodeObserver = Callable[[str, NodeRun], None]


@dataclass(frozen=True, slots=True)
class PipelineSummary:
    """The result of a pipeline run: its id in the run history, and the outcome of each node."""

    pipeline: str
    run_id: str
    nodes: Mapping[str, NodeRun]

    def _repr_html_(self) -> str:
        rows = [(name, node.status, node.error or "") for name, node in self.nodes.items()]
        return html_table(f"pipeline {self.pipeline}, run {self.run_id}", rows)


def run_pipeline(
    pipeline: Pipeline,
    config: RecoveryConfig,
    *,
    spark: SparkSession | None = None,
    resume: bool = False,
    full_refresh: bool = False,
    no_state_update: bool = False,
    environment: str = "",
    master: str = DEFAULT_MASTER,
    conf: Mapping[str, str] | None = None,
    observer: NodeObserver | None = None,
    retry: RetryPolicy | None = None,
    clock: Clock | None = None,
) -> PipelineSummary:
    """Run the nodes of a pipeline in the order of their dependencies; return the outcome of each.

    Of `config`, a pipeline uses directory, backup_interval, discard_history, resume_after or resume_epoch (go back:
    marks as after that epoch), rewind_again, and state_backend. After the write, each node that moved marks closes an
    epoch of the directory; with a state backend elsewhere the run sets the marks there. With `resume`, a node is
    skipped if it succeeded in the last run, its definition is unchanged, and no node that it needs runs again. If a
    node fails, those that need it are blocked and the others run. With `full_refresh`, loads begin as if there were no
    marks, and then move them. With `no_state_update`, no mark moves, and a later run with `resume` ignores this run.
    The directory's lock, or a lease of the state backend, allows one run at a time. Without `spark`, SIGTERM, SIGINT or
    SIGHUP end the process immediately; the run history shows the running node as failed.

    Raises FlowFailedError at the end if a node failed, or what `all_nodes` says; and the directory's errors before.
    """
    clock = clock or SystemClock()
    check_runs("the observer", observer)
    check_master(master, conf)
    _check_given(pipeline, config, resume, full_refresh, no_state_update)
    elsewhere = is_uri(choose(config.directory, config.state_backend))
    with ExitStack() as held:
        ending = _Ending()
        if spark is None:
            held.enter_context(acting(ending.by))
        at = None if elsewhere else held.enter_context(_planned(pipeline, config, clock, retry))
        state = StateManager(
            config.directory, backend=config.state_backend if at is None else at.documents, environment=environment,
            retry=retry, clock=clock,
        )  # fmt: skip
        if elsewhere:
            held.enter_context(state.lock(f"pipelines/{pipeline.name}", f"pipeline {pipeline.name}"))
        plans = _plan(pipeline, state, resume)
        session = spark or held.enter_context(stopping(create_session(pipeline.name, master=master, conf=conf)))
        with _recording(state, pipeline, _facts(resume, full_refresh, no_state_update)) as record:
            writer = None
            if at is not None and not no_state_update:
                writer = held.enter_context(_writing(at, pipeline, config, clock))
            run = _PipelineRun(
                session, state, writer, record, clock, observer if observer is not None else _unobserved,
                full_refresh=full_refresh, moves_marks=not no_state_update,
            )  # fmt: skip
            ending.note = run.note_stopped
            failed = run.all_nodes({node.name: node for node in pipeline.nodes}, plans)
        record.end(failed)
        if failed is not None:
            raise failed
        return PipelineSummary(pipeline.name, record.run.run_id, record.run.nodes)


def _facts(resume: bool, full_refresh: bool, no_state_update: bool) -> dict[str, bool]:
    """Return what the run history records of the options of a run."""
    facts = {"resume": resume}
    facts |= {"full_refresh": True} if full_refresh else {}
    facts |= {"state_update": False} if no_state_update else {}
    return facts


@contextlib.contextmanager
def _writing(at: _Planned, pipeline: Pipeline, config: RecoveryConfig, clock: Clock) -> Iterator[EpochWriter]:
    """Begin the execution that closes the epochs of a run."""
    backup_s = kept_interval_s(at.plan.partitions, given_backup_interval_s(config))
    writer = EpochWriter(at.store, at.plan, pipeline.name, clock, backup_interval_s=backup_s)
    try:
        note_start(at.plan, config, clock, at.documents)
        yield writer
    finally:
        writer.release()


@contextlib.contextmanager
def _recording(state: StateManager, pipeline: Pipeline, facts: dict[str, bool]) -> Iterator[RunRecorder]:
    """Begin a record in the run history. An error is recorded as its end; the caller records success."""
    record = state.history.begin(pipeline.name, PIPELINE, facts)
    try:
        record.beat()
        yield record
    except BaseException as error:
        with contextlib.suppress(RecoveryError):
            record.end(error)
        raise


def _unobserved(_node: str, _run: NodeRun) -> None:
    """Observe nothing."""


class _PipelineRun:
    """One run of a pipeline, node by node."""

    def __init__(
        self,
        spark: SparkSession,
        state: StateManager,
        writer: EpochWriter | None,
        record: RunRecorder,
        clock: Clock,
        observer: NodeObserver,
        *,
        full_refresh: bool,
        moves_marks: bool,
    ) -> None:
        self._spark = spark
        self._state = state
        self._writer = writer
        self._record = record
        self._clock = clock
        self._observer = observer
        self._full_refresh = full_refresh
        self._moves_marks = moves_marks
        self._failures: dict[str, RecoveryError | None] = {}
        """What Spark, or a source, was to blame for, by node."""

    def all_nodes(self, nodes: Mapping[str, Node], plans: list[NodePlan]) -> RecoveryError | None:
        """Run the planned nodes; return an error that names the failed ones, or None."""
        errors: dict[str, str] = {}
        blocked: set[str] = set()
        for plan in plans:
            node = nodes[plan.name]
            missing = [each for each in node.needs if each in errors or each in blocked]
            if missing:
                blocked.add(node.name)
                why = f"{', '.join(missing)}, which it needs, did not succeed"
                self._note(node, NodeRun(BLOCKED, definition=node.definition, why=why))
            elif not plan.runs:
                self._note(node, NodeRun(SKIPPED, definition=node.definition, why=plan.why))
            else:
                done = self._run(node, plan.why)
                if done.error is not None:
                    errors[node.name] = done.error
        if not errors:
            return None
        failures = "; ".join(f"node {name!r}: {error}" for name, error in errors.items())
        again = "run the same command again with --resume: what succeeded is skipped."
        blamed = [self._failures.get(name) for name in errors]
        first = blamed[0]
        if first is not None and all(type(each) is type(first) for each in blamed):
            # The kind says whether to start again without a person.
            return type(first)(failures, cause=first.cause, remedy=f"What to do is said above; then {again}")
        return FlowFailedError(
            failures, cause="An error in the node's code, its input or its output.", remedy=f"Fix it and {again}"
        )

    def note_stopped(self, number: int) -> None:
        """Record that a signal ends the run, and that the running node failed."""
        stopped = InterruptedBySignal(number)
        for name, node in self._record.run.nodes.items():
            if node.status == RUNNING:
                failed = replace(node, status=FAILED, error=str(stopped))
                self._record.node(name, failed)
                self._observer(name, failed)
        self._record.end(stopped)

    def _run(self, node: Node, why: str) -> NodeRun:
        self._note(node, NodeRun(RUNNING, definition=node.definition, why=why))
        began_s = self._clock.elapsed_s()
        loading = Loading(self._spark, self._mark_of, self._clock, node.name, self._full_refresh)
        observation = Observation()
        error, details, rows = None, {}, None
        try:
            frame = self._frame(node, loading).observe(observation, F.count(F.lit(1)).alias("rows"))
            left = not_run(node.write(frame))
            if left is not None:
                raise ConfigurationError(
                    f"write of node {node.name!r} returned {left}: it has written nothing",
                    cause="A call of such a function only makes that object. Nobody runs it.",
                    remedy="Let write do the work before it returns",
                )
            rows = _observed(observation)
            details = self._commit(loading.loads)
        except (Exception, SystemExit) as raised:
            failure = failure_behind(raised)
            found = raised if failure is None else failure
            if found is not raised:
                self._failures[node.name] = failure
            error = in_short(found)[:2000]
            if isinstance(found, RecoveryError) and found.remedy:
                error += f". {found.remedy}"
            details = {"data_written": isinstance(found, _MarksNotMovedError)}
            if isinstance(found, _MarksNotMovedError):
                error = str(found)
        done = NodeRun(
            SUCCEEDED if error is None else FAILED,
            duration_s=round(self._clock.elapsed_s() - began_s, 3),
            rows=rows,
            definition=node.definition,
            why=why,
            error=error,
            details=details,
        )
        self._note(node, done)
        return done

    def _frame(self, node: Node, loading: Loading) -> DataFrame:
        token = _current.set(loading)
        try:
            frame = node.read(self._spark)
            frame = frame if node.transform is None else node.transform(frame)
        finally:
            _current.reset(token)
        if not isinstance(frame, DataFrame) or frame.isStreaming:
            what = "a streaming DataFrame" if isinstance(frame, DataFrame) else type(frame).__name__
            raise ConfigurationError(f"node {node.name!r} gives {what}, not a batch DataFrame")
        return frame

    def _commit(self, loads: list[Load]) -> dict[str, Any]:
        """Move the marks after the write, and return details for the record. Raises _MarksNotMovedError."""
        marks = moved(loads) if self._moves_marks else {}
        emptied = [load.key for load in loads if load.emptied and self._moves_marks]
        details: dict[str, Any] = {"nulls": {load.key: load.nulls for load in loads}} if loads else {}
        future = [load.key for load in loads if load.future]
        if future:
            details["future_marks"] = future
        if marks or emptied:
            try:
                self._state.remove_hwm(*emptied)
                if marks and self._writer is None:
                    batch = [{"key": key, "value": value} for key, value in marks.items()]
                    self._state.set_hwm_batch(batch, force=self._full_refresh, pipeline=self._name)
                elif marks and self._writer is not None:
                    rows = {key: self._state.epoch_row(key, value, self._name) for key, value in marks.items()}
                    details["epoch"] = self._writer.close(changes(self._state.environment, rows), batches=1)
            except RecoveryError as error:
                names = ", ".join(map(repr, (*marks, *emptied)))
                raise _MarksNotMovedError(
                    f"its data were written, but the high-water mark of {names} could not be moved: "
                    f"{type(error).__name__}: {error.found}. The next run loads them again."
                ) from error
        return details

    @property
    def _name(self) -> str:
        return self._record.run.pipeline

    def _mark_of(self, key: str) -> Any:
        """Return the mark of a load. Raises ConfigurationError if another pipeline moves the mark."""
        mark = self._state.find_mark(key)
        if mark is not None and mark.pipeline not in (None, self._name):
            raise ConfigurationError(
                f"pipeline {mark.pipeline!r:.80} moves the high-water mark {key!r:.80}, and {self._name!r:.80} uses it",
                cause="Each pipeline would skip what the other has loaded; or the pipeline was renamed.",
                remedy="Give the load a key of its own; or, after renaming, set the mark to its value again: "
                "python -m recovery hwm set --force DIR KEY VALUE",
            )
        return None if mark is None else mark.value

    def _note(self, node: Node, done: NodeRun) -> None:
        self._record.node(node.name, done)
        self._observer(node.name, done)


class _Ending:
    """The reaction to a signal during a pipeline run: call `note`, wait for it at most NOTED_WITHIN_S, and end the
    process. A run with the caller's session leaves signals to the caller."""

    def __init__(self) -> None:
        self.note: Callable[[int], None] = lambda _: None

    def by(self, number: int) -> None:
        """End the process by a signal."""
        abandon_launch()
        noting = threading.Thread(target=self._try, args=(number,), name="note-end", daemon=True)
        noting.start()
        noting.join(NOTED_WITHIN_S)
        end_now(number)

    def _try(self, number: int) -> None:
        with contextlib.suppress(Exception):
            self.note(number)


class _MarksNotMovedError(Exception):
    """A node's data were written, but its marks could not be moved."""


class _Planned(NamedTuple):
    """The locked store of a run, the plan to resume from it, and the operational state that lies with it."""

    store: Store
    plan: ResumePlan
    documents: StoreBackend


@contextlib.contextmanager
def _planned(pipeline: Pipeline, config: RecoveryConfig, clock: Clock, retry: RetryPolicy | None) -> Iterator[_Planned]:
    """Lock and check the partitions; yield the plan to resume from them."""
    look = Store(config.path, OwnerAccess.of(config).connect(config.owner_deadline_s))
    with contextlib.ExitStack() as held:
        held.callback(look.release)
        # Where no partitions are, no lock file is left.
        look.found()
        store = held.enter_context(look.locked(clock, f"pipeline {pipeline.name}"))
        found = store.found()
        shared = _is_shared(store, found, pipeline.name)
        plan = plan_resume(found, flow_id=pipeline.name, shared=shared, resume_epoch=config.rewind_to)
        documents = documents_of(store, clock, retry or RetryPolicy())
        check_start(plan, config, clock, documents)
        for verdict in run_all(store.checks(plan.partitions, lazy=True)):
            verdict.raise_if_damaged()
        yield _Planned(store, plan, documents)


def _is_shared(store: Store, found: Sequence[FoundFile], pipeline: str) -> bool:
    """Whether a directory that is bound to another name holds only marks, and nothing of a flow."""
    files = [file.description for file in found if file.description is not None]
    if all(file.flow_id in (None, pipeline) for file in files):
        return False
    return {step for file in files for step in store.reader(file).steps()} <= {EPOCH_STEP, CLOCK_STEP}


def _check_given(
    pipeline: Pipeline, config: RecoveryConfig, resume: bool, full_refresh: bool, no_state_update: bool
) -> None:
    """Refuse what is no pipeline or config, options that contradict each other, and those of flows."""
    check_pipeline(pipeline, "run_pipeline")
    check_config(config, "run_pipeline", needed=True)
    if config.no_output or config.until is not None:
        raise ConfigurationError(
            "no_output and until are for flows: a pipeline's nodes write by themselves", remedy="Leave them out."
        )
    if config.rewind_to is not None and is_uri(choose(config.directory, config.state_backend)):
        raise ConfigurationError(
            "resume_after or resume_epoch puts back marks of epochs, and those in a state backend belong to none",
            remedy="Set them back one by one: python -m recovery hwm set --force; or leave the state backend out.",
        )
    if resume and config.rewind_to is not None:
        raise ConfigurationError(
            "resume would skip nodes whose marks resume_after or resume_epoch puts back",
            remedy="Leave --resume out: what was loaded since that epoch is then loaded again.",
        )
    if resume and full_refresh:
        raise ConfigurationError(
            "resume would skip nodes that full_refresh loads again", remedy="Run the pipeline with one of them."
        )
    if no_state_update and config.rewind_to is not None:
        raise ConfigurationError(
            "resume_after or resume_epoch puts marks back, which no_state_update forbids",
            remedy="Run the pipeline with one of them.",
        )


def _plan(pipeline: Pipeline, state: StateManager, resume: bool) -> list[NodePlan]:
    runs = (run for run in state.list_runs(pipeline.name) if run.kind != EDIT)
    last = next((run for run in runs if run.details.get("state_update") is not False), None)
    return plan_nodes(
        {node.name: node.needs for node in pipeline.nodes},
        {node.name: node.definition for node in pipeline.nodes},
        None if last is None else _last(last),
        resume=resume,
    )


def _last(run: Run) -> dict[str, LastNode]:
    return {name: LastNode(node.succeeded is True, node.status, node.definition) for name, node in run.nodes.items()}


def _observed(observation: Observation) -> int | None:
    """Return the number of written rows, which the first action on the frame counted; None without an action.

    Spark reports the number of rows a moment after the action. If the number is not available, a node that has written
    must not fail.
    """
    with contextlib.suppress(Exception):
        counted = observation._jo.future()
        deadline_s = time.monotonic() + COUNTED_WITHIN_S
        while not counted.isCompleted() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        if counted.isCompleted():
            return int(observation.get["rows"])
    return None
