"""The numbers of a run in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from recovery.base.ids import StepId
from recovery.metrics.meter import RunTotals
from recovery.planning.health import Finding, HealthTarget, Level, finding_now
from recovery.planning.lag import InputLag, PartLag
from recovery.planning.measures import Measure, OperatorWork
from recovery.planning.owner_facts import SeenOwner, owner_findings
from recovery.planning.replica import ReplicaState
from recovery.planning.sink_work import SinkWork

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]

_OF_OPERATORS: tuple[tuple[str, Literal["gauge", "counter"], str, str], ...] = (
    ("updated_rows_total", "counter", "Rows of their state that Spark's own operators updated.", "updated"),
    ("update_seconds_total", "counter", "Time of these updates, summed over tasks.", "update_s"),
    ("removed_rows_total", "counter", "Rows that Spark's own operators removed from their state.", "removed"),
    ("removal_seconds", "gauge", "Time of the slowest removal, summed over tasks.", "remove_s"),
    ("memory_bytes", "gauge", "Memory of their state stores, a part of the JVM's.", "memory_bytes"),
)
"""Metrics of Spark's own operators, and the fields of OperatorWork that they show."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; its samples are pairs of labels and value."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Sequence[tuple[Labels, float]]


@dataclass(frozen=True, slots=True)
class About:
    """The facts that do not change during a run."""

    flow: str
    execution: int
    resume_epoch: int
    version: str
    targets: tuple[HealthTarget, ...]


def families(
    about: About,
    totals: RunTotals,
    *,
    resume_s: float,
    epoch_age_s: float | None,
    backup_age_s: float | None,
    backup_objects: int | None = None,
    replica: ReplicaState | None = None,
    wait_s: float = 0.0,
    lag: InputLag | None = None,
    lag_parts: Sequence[PartLag] = (),
    owners: Sequence[SeenOwner] = (),
    certificate_end_s: float | None = None,
    replaced: int | None = None,
    sink: SinkWork | None = None,
    quarantined: Mapping[StepId, int] | None = None,
) -> Iterator[Family]:
    """Yield all metrics of a run. Metrics without a value yet have no sample."""
    info = {"flow": about.flow, "execution": str(about.execution), "version": about.version}
    yield Family("recovery_info", "gauge", "The run that these metrics describe.", [(info, 1)])
    yield _gauge("resume_epoch", "The epoch that this execution started with.", about.resume_epoch)
    yield _gauge("resume_seconds", "Time to read, plan and restore the position, without Spark's start.", resume_s)
    for field, counter in RunTotals.counters().items():
        yield _counter(counter.metric, counter.help, getattr(totals, field))
    yield _counter("epochs_closed", "Epochs closed.", totals.epochs)
    yield _gauge("last_batch_seconds", "Time of the newest micro-batch.", totals.last_batch_s)
    yield from _newest(totals.last_epoch, epoch_age_s)
    yield from _states(totals.last_epoch)
    yield from _operators(totals.operators, totals.native)
    yield _memory(totals)
    yield from _backups(backup_age_s, backup_objects)
    if replica is not None:
        yield from _replica(replica)
    if sink is not None:
        yield from _sink(sink)
    yield _gauge(
        "certificate_end_seconds", "Time until the certificate of --tls-cert ends; negative: it has.", certificate_end_s
    )
    yield _gauge("wait_seconds", "Time that the run has waited for executors or a source; 0: it does not.", wait_s)
    yield Family(
        "recovery_partitions_replaced_total",
        "counter",
        "Partitions that --replace-from brought back at other owners, in all runs on this directory.",
        [] if replaced is None else [({}, replaced)],
    )
    yield from _lag(lag, lag_parts)
    yield Family(
        "recovery_quarantined_rows",
        "gauge",
        "Rows in quarantine after the newest micro-batch, by step that has a quarantine.",
        [({"step": step}, rows) for step, rows in sorted((quarantined or {}).items())],
    )
    # An owner is seen more often than an epoch is closed.
    epochs = [each for each in totals.findings if each.where is None and each.target.name != "source-lag"]
    lags = [] if lag is None or lag.seconds is None else [finding_now(about.targets, "source-lag", lag.seconds)]
    now = (finding_now(about.targets, "wait", wait_s), *lags, *owner_findings(owners, about.targets, certificate_end_s))
    yield from _targets(about.targets, (*epochs, *now))


def _memory(totals: RunTotals) -> Family:
    memory = {name.removesuffix("_bytes"): size for name, size in asdict(totals.memory).items()}
    resident = [({"process": name}, float(size)) for name, size in memory.items() if size is not None]
    return Family(
        "recovery_memory_bytes",
        "gauge",
        "Resident memory of the run's processes: driver, workers, jvm, and on a cluster owner and executors.",
        resident,
    )


def _gauge(name: str, help_text: str, value: float | None) -> Family:
    return Family(f"recovery_{name}", "gauge", help_text, [] if value is None else [({}, value)])


def _counter(name: str, help_text: str, value: float) -> Family:
    return Family(f"recovery_{name}_total", "counter", help_text, [({}, value)])


def _newest(last: Measure | None, epoch_age_s: float | None) -> Iterator[Family]:
    yield _gauge("epoch", "The newest closed epoch.", last.epoch if last else None)
    yield _gauge("epoch_age_seconds", "Time since this execution closed an epoch; none before the first.", epoch_age_s)
    yield _gauge("last_snapshot_seconds", "Time of writing the newest snapshot.", last.snapshot_s if last else None)
    yield _gauge("last_snapshot_bytes", "Keys and values in the newest snapshot.", last.written_bytes if last else None)
    yield _gauge("last_collection_seconds", "Time of the newest collection.", last.collect_s if last else None)


def _states(last: Measure | None) -> Iterator[Family]:
    latency = last.update_latency_s if last else None
    yield _gauge("state_update_latency_seconds", "Task time in storage per key, in the newest epoch.", latency)
    steps = sorted(last.steps.items()) if last else []
    rows = [({"step": step}, float(size.rows)) for step, size in steps]
    yield Family("recovery_state_rows", "gauge", "Live rows, as of the newest epoch.", rows)
    sizes = [({"step": step}, float(size.size_bytes)) for step, size in steps]
    yield Family("recovery_state_bytes", "gauge", "Keys and values of the live rows.", sizes)


def _backups(age_s: float | None, objects: int | None) -> Iterator[Family]:
    yield _gauge(
        "backup_age_seconds",
        "Time since `recovery backup` finished, negative if dated more than a minute ahead; other copies do not count. "
        "No value without a backup.",
        age_s,
    )
    yield _gauge(
        "backup_chain_objects",
        "Objects of the last backup's longest chain, which a restore of that partition reads; 1: a whole copy.",
        objects,
    )


def _replica(replica: ReplicaState) -> Iterator[Family]:
    yield _gauge("replica_epoch", "The newest epoch that the replica holds.", replica.shipped.epoch)
    yield _gauge("replica_lag_epochs", "Closed epochs that the replica lacks.", replica.lag.epochs)
    yield _gauge("replica_lag_seconds", "Age of the oldest closed epoch that it lacks.", replica.lag.seconds)
    yield _counter("replica_shipped_bytes", "Bytes written to the replica's place.", replica.shipped_bytes)
    yield _counter("replica_shippings", "Successful shippings to the replica.", replica.shippings)
    yield _counter("replica_failures", "Failed attempts to ship an epoch.", replica.failures)


def _lag(lag: InputLag | None, parts: Sequence[PartLag]) -> Iterator[Family]:
    yield Family(
        "recovery_source_lag", "gauge",
        "What the newest epoch lacks of a source: records, bytes, versions or snapshots, as the label unit says.",
        [(each.labels, each.behind) for each in parts],
    )  # fmt: skip
    since = [] if lag is None else [({"source": s.source, "topic": s.topic}, s.seconds) for s in lag.sources]
    yield Family(
        "recovery_source_lag_seconds", "gauge", "How long ago input was seen that the newest epoch still lacks.", since
    )
    shown = [] if lag is None or lag.group is None else [({"group": lag.group}, float(lag.problem is None))]
    yield Family(
        "recovery_kafka_group_shown", "gauge", "Whether the consumer group shows the newest epoch's offsets: 1 or 0.",
        shown,
    )  # fmt: skip


def _sink(work: SinkWork) -> Iterator[Family]:
    yield _counter("sink_staged_records", "Records that the sink keeps aside until their epoch is closed.", work.staged)
    yield _counter("sink_produced_records", "Records that the sink has produced.", work.produced)
    yield _counter("sink_compensated_keys", "Keys that got an earlier value after going back.", work.compensated)
    yield _counter("sink_transactions", "Transactions that the sink has committed.", work.transactions)
    yield _counter("sink_transaction_seconds", "Time of these transactions.", work.transaction_s)
    yield _gauge("sink_last_transaction_seconds", "Time of the newest transaction.", work.last_transaction_s)
    yield _gauge("sink_waiting_records", "Records that are staged and not produced.", work.waiting)


def _targets(targets: Sequence[HealthTarget], findings: Sequence[Finding]) -> Iterator[Family]:
    limits = [
        ({"target": target.name, "level": level}, value)
        for target in targets
        for level, value in (("warning", target.warning), ("critical", target.critical))
        if value is not None
    ]
    yield Family(
        "recovery_threshold", "gauge", "Warning and critical levels of the targets, in seconds or bytes.", limits
    )
    values = [(_target(each), each.value) for each in findings if each.value is not None]
    yield Family("recovery_target", "gauge", "Values of the targets, in seconds or bytes; newest epoch.", values)
    levels = [(_target(each), _level(each.level)) for each in findings]
    yield Family(
        "recovery_health", "gauge", "0 ok, 1 warning, 2 critical, -1 not measured or without a level; newest epoch.",
        levels,
    )  # fmt: skip


def _operators(rows: Mapping[int, int], native: Mapping[int, OperatorWork]) -> Iterator[Family]:
    """Yield the metrics of Spark's own operators; without one they have no sample."""

    def of_each(name: str, kind: Literal["gauge", "counter"], help_text: str, values: Mapping[int, float]) -> Family:
        samples = [({"operator": str(number)}, float(value)) for number, value in sorted(values.items())]
        return Family(f"recovery_operator_{name}", kind, help_text, samples)

    yield of_each("rows", "gauge", "Rows in the state of Spark's own operators, newest micro-batch.", rows)
    for name, kind, help_text, field in _OF_OPERATORS:
        yield of_each(name, kind, help_text, {number: getattr(work, field) for number, work in native.items()})


def exposition(found: Iterator[Family]) -> str:
    """Return the metrics as text."""
    lines: list[str] = []
    for family in found:
        lines += [f"# HELP {family.name} {_escaped(family.help)}", f"# TYPE {family.name} {family.kind}"]
        for labels, value in family.samples:
            named = ",".join(f'{name}="{_quoted(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{named}}} {_number(value)}" if named else f"{family.name} {_number(value)}")
    return "\n".join([*lines, ""])


def _target(finding: Finding) -> Labels:
    name = {"target": finding.target.name}
    return name if finding.where is None else {**name, "where": finding.where}


def _level(level: Level) -> float:
    return -1 if level is Level.UNKNOWN else level.severity


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    # Invalid Unicode, which file names may contain, would make the whole answer unreadable.
    return _escaped(text).replace('"', '\\"').encode(errors="backslashreplace").decode()
