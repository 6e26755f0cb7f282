"""Turn the plan that a user built into the plan that runs: give exchanges their width, and refuse unfit plans.

A streaming DataFrame is immutable and does not know yet how many recovery partitions there are. So `bind` rebuilds the
frame's analysed plan from the JVM's own plan nodes: below each step's function the placeholder exchange becomes
`repartitionById(N, hash % N)`, with a sort within each partition if the rows of a key have an order. Attribute ids do
not change, so the rest of the plan still fits.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery.checkpoint.source_places import SourcePlaces, name_digest, path_in, places_of, read_for
from recovery.errors import UnsupportedPlanError
from recovery.spark.clusters import Input, task_limit
from recovery.spark.jvm.delta_schemas import keep_schema_logs
from recovery.spark.jvm.output_modes import Diagnosis, advice
from recovery.spark.jvm.plan_nodes import PlanNode
from recovery.spark.jvm.session import settings_in
from recovery.spark.jvm.stream_readers import send_starts
from recovery.spark.jvm.versions import repartition_by_id, source_name
from recovery.spark.planner.iceberg_tables import IcebergTable, iceberg_table
from recovery.spark.planner.replay import check_sources, options_of
from recovery.spark.planner.state_store import check_provider
from recovery.spark.steps.combine import PLACE_NAME
from recovery.spark.steps.definition import UDF_NAME, RegisteredStep, registered
from recovery.spark.steps.ticks import FORMAT as TICKS
from recovery.spark.tuning.tuning import Tuning

FORMAT_SETTING = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STATEFUL_NODES = {
    "Aggregate",
    "Distinct",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "GlobalLimit",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
}


SOURCE_NODES = {"StreamingRelation", "StreamingRelationV2"}
_NARROW = {"Project", "Filter", "SubqueryAlias", "MapInArrow", "MapInPandas", "EventTimeWatermark", "Generate"}
"""Nodes that pass rows on, or make other rows of each, within a stage."""


@dataclass(frozen=True)
class BoundPlan:
    """A frame ready to start, with its steps, the places where it reads sources, the number of tasks that rows are
    exchanged over, and the tactics for its micro-batches. keeps_native_state: whether Spark keeps state of its own for
    it. inputs: everything that the plan reads, also tables that do not stream. streams: the source in each place.
    tables: Iceberg tables that stream, by their places. lookups: the directories or files of the tables of files that
    do not stream. plain_is_local: whether a path without a scheme is one of the driver's host."""

    frame: DataFrame
    steps: tuple[RegisteredStep, ...]
    sources: SourcePlaces
    inputs: tuple[Input, ...]
    streams: tuple[Input, ...]
    tables: Mapping[int, IcebergTable]
    lookups: tuple[str, ...]
    output_mode: str
    tasks: int
    tuning: Tuning
    keeps_native_state: bool
    plain_is_local: bool


def bind(
    frame: DataFrame, partition_count: int, output_mode: str = "append", *, keeps_position: bool = True
) -> BoundPlan:
    """Spread the frame's steps over `partition_count` recovery partitions, with at most as many Spark tasks as can run
    simultaneously: a task takes a core some 15 ms, however little it does. keeps_position: whether a later run
    continues where this one ends.

    Raises UnsupportedPlanError for plans whose state would not be kept exactly: a step whose output is used twice,
    two steps with one id, state stores whose files have the same names, sources that cannot be read again, and plans
    that Spark itself refuses.
    """
    if not frame.isStreaming:
        raise UnsupportedPlanError(
            "the frame is not a streaming one",
            cause="The frame was made with spark.read instead of spark.readStream.",
            remedy="Build it from spark.readStream, or run it as an ordinary batch job.",
        )
    spark = frame.sparkSession
    analyzed = frame._jdf.queryExecution().analyzed()
    plan = PlanNode.read(analyzed)
    steps = _steps_of(plan)
    _check_attempts(spark, steps)
    _check_streaming(plan)
    native = any(map(_keeps_state, plan.walk()))
    if native:
        _check_native_state(spark)
    check_sources(spark, plan, keeps_position)
    reads, inputs = list(_reads(plan)), tuple(_inputs(plan))
    keep_schema_logs(spark, inputs)
    context = spark.sparkContext
    limit = task_limit(context.master, settings_in(context), context.defaultParallelism)
    tasks = min(partition_count, limit or partition_count)
    if steps:
        _check_supported(spark, analyzed, output_mode)
    tuning = Tuning(
        spark,
        [step.definition for step in steps],
        tasks,
        combined=list(_functions(plan, PLACE_NAME)) if steps else (),
        steps_only=not _gives_others_rows(spark, plan),
        lends=not native and (not steps or _is_in_last_stage(plan)),
    )
    runs = _rebuild(spark, plan, partition_count, tasks) if steps else analyzed
    runs = send_starts(spark, runs, (TICKS, "appended"))
    if runs is not analyzed:
        frame = _frame(spark, runs)
    found = {place: iceberg_table(spark, node.handle) for place, (node, _) in enumerate(reads)}
    tables = {place: table for place, table in found.items() if table is not None}
    streams, lookups = tuple(_stream(node) for node, _ in reads), tuple(_lookups(plan))
    return BoundPlan(
        frame, steps, _sources(reads), inputs, streams, tables, lookups, output_mode, tasks, tuning, native,
        _plain_is_local(spark),
    )  # fmt: skip


def steps_of(frame: DataFrame) -> tuple[RegisteredStep, ...]:
    """Return the steps of a frame. Raises UnsupportedPlanError if two have one id, or if a step's output is used
    twice."""
    return _steps_of(PlanNode.read(frame._jdf.queryExecution().analyzed()))


def _steps_of(plan: PlanNode) -> tuple[RegisteredStep, ...]:
    steps = tuple(_steps(plan))
    _check_steps(steps)
    return steps


def _sources(reads: list[tuple[PlanNode, frozenset[str]]]) -> SourcePlaces:
    """The places where the plan reads sources. Spark takes equal relations for one source; so does the comparison here,
    since py4j calls the JVM's `equals`."""
    nodes = [node.handle for node, _ in reads]
    sources = [next(i for i, each in enumerate(nodes) if each is node or each.equals(node)) for node in nodes]
    return places_of(
        sources,
        [_is_ticks(node) for node, _ in reads],
        [f"{_name(node)} {read_for(above or {''})}" for node, above in reads],
        map(source_name, nodes),
    )


def _reads(node: PlanNode, above: frozenset[str] = frozenset()) -> Iterator[tuple[PlanNode, frozenset[str]]]:
    """The nodes that read sources, and the steps above each."""
    found = _step_of(node)
    above = above if found is None else above | {found.definition.step_id}
    if node.name in SOURCE_NODES:
        yield node, above
    for child in node.children:
        yield from _reads(child, above)


def _name(node: PlanNode) -> str:
    """What a source reads, in the form of SourcePlaces: its format, a digest of its path or else of all its options,
    and a digest of all its options. Options may be secret, hence the digests."""
    read = node.handle
    if node.name == "StreamingRelationV2":
        kind, options = read.sourceName(), dict(read.extraOptions().asCaseSensitiveMap())
        if read.identifier().isDefined():
            # A table of a catalog is not among the options.
            options["table"] = str(read.identifier().get())
    else:
        kind, options = read.dataSource().className(), options_of(read.dataSource())
    options = {name.lower(): value for name, value in options.items()}
    every = json.dumps(options, sort_keys=True)
    return f"{kind} {name_digest(path_in(options) or every)} {name_digest(every)}"


def _inputs(plan: PlanNode) -> Iterator[Input]:
    """Everything that the plan reads in a format with options."""
    for node in plan.walk():
        if node.name in SOURCE_NODES:
            yield _stream(node)
        elif node.name == "DataSourceV2Relation":
            yield _input(node.handle.table().name(), node.handle.options())


def _stream(node: PlanNode) -> Input:
    if node.name == "StreamingRelationV2":
        return _input(node.handle.sourceName(), node.handle.extraOptions())
    source = node.handle.dataSource()
    return Input(source.className(), {name.lower(): value for name, value in options_of(source).items()})


def _lookups(plan: PlanNode) -> Iterator[str]:
    """The directories or files of all tables of files that the plan reads as they are, not as streams."""
    for node in plan.walk():
        if node.name == "LogicalRelation":
            # Relations of other kinds, such as JDBC's, have no files.
            with contextlib.suppress(Py4JError):
                paths = node.handle.relation().location().rootPaths()
                yield from (paths.apply(index).toString() for index in range(paths.length()))


def _input(kind: str, options: Any) -> Input:
    return Input(kind, {name.lower(): value for name, value in options.asCaseSensitiveMap().items()})


def _plain_is_local(spark: SparkSession) -> bool:
    """Return whether Spark takes a path without a scheme as one of the driver's host."""
    conf: Any = spark._jsparkSession.sessionState().newHadoopConf()
    return str(conf.get("fs.defaultFS", "file:///")).startswith("file:")


def _is_ticks(node: PlanNode) -> bool:
    return bool(node.name == "StreamingRelationV2" and node.handle.sourceName() == TICKS)


def _steps(plan: PlanNode) -> Iterator[RegisteredStep]:
    for node in plan.walk():
        step = _step_of(node)
        if step is not None:
            yield step


def _step_of(node: PlanNode) -> RegisteredStep | None:
    name = _function(node)
    return registered.get(name.removeprefix(UDF_NAME)) if name.startswith(UDF_NAME) else None


def _function(node: PlanNode) -> str:
    """The name of the function that the node maps batches by; empty for other nodes."""
    return str(node.handle.functionExpr().name()) if node.name == "MapInArrow" else ""


def _functions(plan: PlanNode, prefix: str) -> Iterator[str]:
    return (name for name in map(_function, plan.walk()) if name.startswith(prefix))


def _is_in_last_stage(plan: PlanNode) -> bool:
    """Whether the plan has a single step, whose output the last stage computes: what is above gives its rows on."""
    while _step_of(plan) is None:
        if plan.name not in _NARROW or len(plan.children) != 1:
            return False
        [plan] = plan.children
    return len(list(_steps(plan))) == 1


def _gives_others_rows(spark: SparkSession, plan: PlanNode) -> bool:
    """Whether the plan gives, or may give, rows to the user's own Python functions, besides the steps."""
    jvm = spark._jvm
    assert jvm is not None
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    calls = [patterns.PYTHON_UDF(), patterns.PLAN_EXPRESSION()]
    below = [*calls, patterns.GENERATE()]

    def found(node: PlanNode) -> bool:
        if not any(map(node.handle.containsPattern, below)):
            return False
        if not _function(node).startswith((UDF_NAME, PLACE_NAME)):
            expressions = node.handle.expressions()
            for each in map(expressions.apply, range(expressions.length())):
                if any(map(each.containsPattern, calls)) or "PythonUDTF" in each.getClass().getSimpleName():
                    return True
        return any(map(found, node.children))

    return found(plan)


def _check_streaming(plan: PlanNode) -> None:
    """Refuse steps on tables that do not stream: Spark reads such a table again in every micro-batch."""
    for node in plan.walk():
        step = _step_of(node)
        if step is not None and not node.handle.isStreaming():
            raise UnsupportedPlanError(
                f"step {step.definition.step_id!r} is applied to a table that is not a stream",
                cause="Such a table is read again in every micro-batch, and its rows would be counted each time.",
                remedy="Apply the step to the stream, or work out the table before.",
            )


def _check_steps(steps: tuple[RegisteredStep, ...]) -> None:
    for token, uses in Counter(step.definition.token for step in steps).items():
        if uses > 1:
            step_id = registered[token].definition.step_id
            raise UnsupportedPlanError(
                f"the output of step {step_id!r} is used {uses} times in the plan, so the step would run {uses} times",
                cause="A union or join of frames that all derive from the step.",
                remedy="Use the step's output once, and branch in the sink, which gets a materialised batch.",
            )
    for step_id, uses in Counter(step.definition.step_id for step in steps).items():
        if uses > 1:
            raise UnsupportedPlanError(
                f"{uses} steps are called {step_id!r}",
                cause="A step id names the state in the recovery partitions, so it is unique in a flow.",
                remedy="Give each step an id of its own.",
            )


def _check_attempts(spark: SparkSession, steps: tuple[RegisteredStep, ...]) -> None:
    """Refuse speculation for steps with a quarantine: which rows are bad must be what one attempt has seen."""
    held = [step.definition.step_id for step in steps if step.definition.hold is not None]
    if held and settings_in(spark.sparkContext).get("spark.speculation", "false").lower() == "true":
        raise UnsupportedPlanError(
            f"step {held[0]!r} has a quarantine, and spark.speculation is on",
            cause="Spark then runs slow tasks twice at the same time. If an error came in one of the two only, a row "
            "could be in quarantine and count, or neither.",
            remedy="Set it to false: --conf spark.speculation=false",
        )


def _check_native_state(spark: SparkSession) -> None:
    """Refuse a state store that Spark cannot load, and checkpoint format 2: its files carry ids, whose order only the
    commit log knows."""
    check_provider(spark)
    if spark.conf.get(FORMAT_SETTING, "1") == "1":
        return
    raise UnsupportedPlanError(
        f"Spark's state stores are set to another checkpoint format: {FORMAT_SETTING}={spark.conf.get(FORMAT_SETTING)}",
        cause="The setting was changed for this session. The setting's default is 1.",
        remedy=f"Leave it out, or set it to 1: --conf {FORMAT_SETTING}=1",
    )


def _keeps_state(node: PlanNode) -> bool:
    """Whether Spark keeps state for the node."""
    if node.name == "Join":
        return bool(node.handle.left().isStreaming() and node.handle.right().isStreaming())
    return node.name in STATEFUL_NODES and bool(node.handle.isStreaming())


def _check_supported(spark: SparkSession, plan: Any, output_mode: str) -> None:
    """Run Spark's own check on the plan as the user wrote it. Spark's check would refuse the sort that a step may need,
    so it is switched off when the bound plan starts."""
    jvm = spark._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        checker.checkForStreaming(plan, getattr(modes, output_mode.capitalize())())
    except AnalysisException as error:
        reason = str(error).splitlines()[0]
        mode = advice(reason) or Diagnosis(
            "The operation is not defined on a stream.", "Apply it to each micro-batch in the sink."
        )
        raise UnsupportedPlanError(f"Spark refuses the plan: {reason}", cause=mode.cause, remedy=mode.remedy) from error


def _rebuild(spark: SparkSession, node: PlanNode, partition_count: int, tasks: int) -> Any:
    """Return the JVM's node of the plan that runs in the place of `node`."""
    step = _step_of(node)
    if step is None:
        below = [_rebuild(spark, child, partition_count, tasks) for child in node.children]
        return node.with_children(spark._jvm, below)
    [project] = node.children
    [placeholder] = project.children
    if placeholder.name != "RepartitionByExpression":
        raise UnsupportedPlanError(f"step {step.definition.step_id!r} has lost its exchange")
    [source] = placeholder.children
    frame = _frame(spark, _rebuild(spark, source, partition_count, tasks))
    exchange = _exchange(frame, step, partition_count, tasks)
    return node.with_children(spark._jvm, [project.with_children(spark._jvm, [exchange])])


def _exchange(source: DataFrame, step: RegisteredStep, partition_count: int, tasks: int) -> Any:
    definition = step.definition
    partition = F.col(definition.hash_column) % F.expr(f"{partition_count}L")
    task = partition if tasks == partition_count else partition % F.expr(f"{tasks}L")
    spread = repartition_by_id(source, tasks, task.cast("int"))
    if definition.sorted_by_spark:
        order = [F.col(f"`{definition.key_text}`").asc_nulls_first(), *step.order_by]
        spread = spread.sortWithinPartitions(*order if tasks == partition_count else (partition, *order))
    return spread._jdf.queryExecution().analyzed()


def _frame(spark: SparkSession, plan: Any) -> DataFrame:
    jvm = spark._jvm
    assert jvm is not None
    dataset = jvm.org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(spark._jsparkSession, plan), spark)
