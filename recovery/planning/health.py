"""Targets: measured values compared with a warning and a critical level. Pure functions of values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from recovery.base.intervals import format_interval, parse_interval
from recovery.base.wording import age_s, ahead_text, counted
from recovery.errors import ConfigurationError
from recovery.planning.measures import Measure
from recovery.planning.replica import ReplicaLag
from recovery.planning.values import Execution

RECENT = 10
"""The number of newest epochs that a target covers: of each value the highest counts."""
MEANINGFUL_KEYS = 100
"""Keys per micro-batch below which an update latency has no level: most of the time is opening the files."""
NOT_MEASURED = "not measured"
NOT_KNOWN = "not known"
MOST_DIGITS = 9
"""The most digits of a number of epochs: no replica is further behind."""
DAY_S = 24 * 3600.0

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[kMGT]i?B|B)?", re.ASCII)
_BYTES = {"": 1.0, "B": 1.0}
_BYTES |= {f"{p}B": 1000.0**n for n, p in enumerate("kMGT", 1)}
_BYTES |= {f"{p}iB": 1024.0**n for n, p in enumerate("kMGT", 1)}


class Level(StrEnum):
    """The level of a value by its target. Unknown: the value was not measured or means little, or the target has no
    levels."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"

    @property
    def severity(self) -> int:
        """0 for ok and unknown, 1 for a warning, 2 for critical."""
        return {Level.WARNING: 1, Level.CRITICAL: 2}.get(self, 0)


@dataclass(frozen=True, slots=True)
class HealthTarget:
    """A measured quantity with levels. unit: s, bytes or epochs. Without levels (None) the quantity is watched only on
    request. optional: many directories have nothing of the kind, and then there is no finding. low: a value at or below
    a level reaches the level, as free space does. A negative age (see `age_s`) is a warning: how long it is, nobody
    knows."""

    name: str
    title: str
    unit: Literal["s", "bytes", "epochs"]
    warning: float | None
    critical: float | None
    optional: bool = False
    low: bool = False

    def shown(self, value: float | None) -> str:
        """Return a value as text for people."""
        if value is None:
            return NOT_MEASURED
        if self.is_ahead(value):
            return NOT_KNOWN
        if self.unit == "epochs":
            return counted(int(value), "epoch")
        # A certificate that has ended says so by its level.
        return format_bytes(value) if self.unit == "bytes" else format_seconds(max(0.0, value))

    def is_ahead(self, value: float) -> bool:
        """Whether a value is the age of something that is dated ahead of this host's clock."""
        return value < 0 and not self.low

    @property
    def reached(self) -> str:
        """How a text says that a value reaches a level: "warning from 10 s", "warning up to 2.0 GB"."""
        return "up to" if self.low else "from"

    def level(self, value: float | None) -> Level:
        """Return the level of a value. A value equal to a limit reaches that level."""
        if value is None or self.warning is None or self.critical is None:
            return Level.UNKNOWN
        if self.is_ahead(value):
            return Level.WARNING
        sign = -1 if self.low else 1
        if sign * value >= sign * self.critical:
            return Level.CRITICAL
        return Level.WARNING if sign * value >= sign * self.warning else Level.OK


@dataclass(frozen=True, slots=True)
class Finding:
    """A target with its value and its level. note: why a value has no level, is missing, or is not known; None: it has
    one. where: the owner that has the value; None: the run as a whole."""

    target: HealthTarget
    value: float | None
    level: Level
    note: str | None = None
    where: str | None = None

    def __str__(self) -> str:
        t = self.target
        if self.level.severity and self.note:
            return f"{self.title} {t.shown(self.value)} ({self.level}: {self.note})"
        if self.level.severity:
            limit = t.critical if self.level is Level.CRITICAL else t.warning
            return f"{self.title} {t.shown(self.value)} ({self.level} {t.reached} {t.shown(limit)})"
        note = f" ({self.note})" if self.note and self.value is not None else ""
        return f"{self.title} {t.shown(self.value)}{note}"

    @property
    def title(self) -> str:
        """What has the value."""
        return self.target.title if self.where is None else f"{self.target.title} {self.where}"

    def is_worse(self, other: Finding) -> bool:
        """Whether the value is worse than that of another finding of this target."""
        mine, its = self.value or 0, other.value or 0
        return mine < its if self.target.low else mine > its

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        t = self.target
        return {
            "target": t.name,
            "value": self.value,
            "unit": t.unit,
            "text": t.shown(self.value),
            "level": str(self.level),
            "note": self.note,
            "where": self.where,
            "warning": t.warning,
            "critical": t.critical,
        }


DEFAULTS = (
    HealthTarget("state-size", "state size", "bytes", 1e9, 5e9),
    HealthTarget("snapshot-duration", "snapshot duration", "s", 10, 30),
    HealthTarget("update-latency", "state update latency", "s", 0.010, 0.050),
    HealthTarget("cleanup-time", "clean-up time", "s", 5, 15),
    HealthTarget("memory", "memory", "bytes", 2e9, 4e9),
    HealthTarget("backup-lag", "backup lag", "s", None, None),
    HealthTarget("replica-lag", "replica lag", "s", 60, 300, optional=True),
    HealthTarget("replica-epochs", "replica behind by", "epochs", 4, 60, optional=True),
    HealthTarget("source-lag", "source lag", "s", 600, 3600, optional=True),
    HealthTarget("wait", "waiting for Spark", "s", 30, 300, optional=True),
    HealthTarget("quarantine", "oldest row in quarantine", "s", 0, 7 * DAY_S, optional=True),
    HealthTarget("owner-call", "call of owner", "s", 1, 10, optional=True),
    HealthTarget("owner-closing", "closing at owner", "s", 10, 30, optional=True),
    HealthTarget("owner-clock", "clock difference of owner", "s", 5, 60, optional=True),
    HealthTarget("owner-disk", "free disk of owner", "bytes", 2e9, 500e6, optional=True, low=True),
    HealthTarget("certificate", "end of certificate of", "s", 14 * DAY_S, 3 * DAY_S, optional=True, low=True),
)


def parse_targets(given: Mapping[str, Any]) -> tuple[HealthTarget, ...]:
    """Return all targets, with `given` ones replacing defaults: name: "WARNING/CRITICAL", a pair, or "off".

    Sizes are numbers of bytes, or have a unit (500MB, 1GB, 2GiB); times are intervals. Raises ConfigurationError.
    """
    known = {target.name: target for target in DEFAULTS}
    for name in given:
        if name not in known:
            raise ConfigurationError(
                f"{name!r:.80} is not a target that a threshold can apply to",
                cause="It is misspelt.",
                remedy=f"Use one of {', '.join(known)}.",
            )
    return tuple(_parsed(t, given[t.name]) if t.name in given else t for t in DEFAULTS)


class TargetReading(NamedTuple):
    """One epoch's value of a target. partly: a part was not measured, so the value is a lower bound.
    few: it is a mean over too few keys to mean anything."""

    value: float | None
    partly: bool = False
    few: bool = False


def findings(
    measures: Sequence[Measure],
    targets: Sequence[HealthTarget],
    *,
    state_bytes: float | None,
    backup_lag_s: float | None,
    unsaved_s: float | None = None,
    replica: ReplicaLag | None = None,
    source_lag_s: float | None = None,
    wait_s: float | None = None,
    quarantine_s: float | None = None,
) -> tuple[Finding, ...]:
    """Return the newest measures compared with the targets.

    Each value is the highest of the newest ten epochs that the newest execution closed; the size of the state is the
    present one. If a part of a value was not measured, the value counts only if the rest reaches a level.
    state_bytes: None: unknown. backup_lag_s: the age of the newest backup; without one (None), `unsaved_s` counts if
    the lag is watched: backups that never succeeded are no better than old ones. replica: None: no run replicates
    the directory. source_lag_s: how long ago input was seen that the newest epoch lacks; None: no source says how much
    there is. wait_s: how long the run has waited for executors or a source; None: it does not. quarantine_s: how long
    the oldest row in quarantine has waited; None: there is none.
    """
    watched = {target.name for target in targets if target.warning is not None}
    epochs = [each for each in measures if each.epoch]
    recent = [each for each in epochs[-RECENT:] if each.execution == epochs[-1].execution]
    lag_s = unsaved_s if backup_lag_s is None and "backup-lag" in watched else backup_lag_s
    readings = {
        "state-size": [TargetReading(state_bytes)],
        "snapshot-duration": [TargetReading(each.snapshot_s) for each in recent],
        "update-latency": [reading for each in recent for reading in _latencies(each)],
        "cleanup-time": [_cleanup(each) for each in recent],
        "memory": [_memory(each) for each in recent],
        "backup-lag": [TargetReading(lag_s)],
        "replica-lag": [TargetReading(None if replica is None else replica.seconds)],
        "replica-epochs": [TargetReading(None if replica is None else replica.epochs)],
        "source-lag": [TargetReading(source_lag_s)],
        "wait": [TargetReading(wait_s)],
        "quarantine": [TargetReading(quarantine_s)],
    }
    found = (_finding(target, readings[target.name]) for target in targets if target.name in readings)
    return tuple(each for each in found if each.value is not None or not each.target.optional)


def _latencies(measure: Measure) -> list[TargetReading]:
    """Return the update latency of the steps and that of Spark's own operators, as far as measured."""
    enough = MEANINGFUL_KEYS * max(1, measure.batches)
    partly = not measure.native_is_measured
    return [
        TargetReading(measure.update_latency_s, partly, measure.looked_up < enough),
        TargetReading(measure.native_latency_s, partly, measure.native_updated < enough),
    ]


def _cleanup(measure: Measure) -> TargetReading:
    """Return the time to collect superseded rows or to remove rows from native state, whichever is longer."""
    return TargetReading(max(measure.collect_s, measure.native_remove_s), not measure.native_is_measured)


def _memory(measure: Measure) -> TargetReading:
    """Return the memory of the run. Every run has a driver and a JVM; not every one has workers and an owner."""
    return TargetReading(measure.memory_bytes, None in (measure.memory_driver_bytes, measure.memory_jvm_bytes))


def _finding(target: HealthTarget, readings: Sequence[TargetReading]) -> Finding:
    """Return the highest value. If only means over few keys were measured, the value has no level."""
    counting = [each for each in readings if not each.partly or target.level(each.value).severity]
    value = _highest([each.value for each in counting if not each.few])
    if value is not None:
        note = f"dated {ahead_text(value)}" if target.is_ahead(value) else None
        return Finding(target, value, target.level(value), note)
    value = _highest([each.value for each in counting])
    return Finding(target, value, Level.UNKNOWN, NOT_MEASURED if value is None else "no level for so few keys")


def finding_now(targets: Sequence[HealthTarget], name: str, value: float) -> Finding:
    """Return the present value of a target, for what changes between two epochs."""
    [target] = [each for each in targets if each.name == name]
    return _finding(target, [TargetReading(value)])


def unsaved_s(executions: Iterable[Execution], now_ms: int) -> float | None:
    """Return the time since the first execution began, when data to back up appeared; None before it. See `age_s`."""
    first_ms = min((execution.started_ms for execution in executions), default=None)
    return None if first_ms is None else age_s(first_ms, now_ms)


def of_epoch(
    measure: Measure,
    targets: Sequence[HealthTarget],
    backup_lag_s: float | None = None,
    replica: ReplicaLag | None = None,
    source_lag_s: float | None = None,
    quarantine_s: float | None = None,
) -> tuple[Finding, ...]:
    """Return one epoch compared with the targets; the other values as for `findings`."""
    return findings(
        [measure], targets, state_bytes=measure.state_bytes, backup_lag_s=backup_lag_s, replica=replica,
        source_lag_s=source_lag_s,
        quarantine_s=quarantine_s,
    )  # fmt: skip


def worst(found: Sequence[Finding]) -> Level:
    """Return the worst level of all findings; unknown when none has a level."""
    levels = [each.level for each in found if each.level is not Level.UNKNOWN]
    return max(levels, key=lambda level: level.severity, default=Level.UNKNOWN)


def parse_size(value: Any) -> float:
    """Parse a number of bytes, or text such as "500MB", "1GB", "2GiB". Raises ConfigurationError."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = float(match["number"]) * _BYTES[match["unit"] or ""]
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ConfigurationError(
        f"{value!r:.80} is not a size", cause="", remedy="Write it as a number of bytes, or like 500MB, 1GB, 2GiB."
    )


def format_bytes(size_bytes: float) -> str:
    """Return a size as text like "1.2 MB"."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Return a time as text like "12 µs", "3.4 ms", "10 s" or "5 min"."""
    if 0 < seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if 0 < seconds < 1 else format_interval(seconds)


def _parsed(target: HealthTarget, given: Any) -> HealthTarget:
    if given is None or given == "off":
        return replace(target, warning=None, critical=None)
    parts = given.split("/") if isinstance(given, str) else given
    parse = {"bytes": parse_size, "s": parse_interval, "epochs": _parse_epochs}[target.unit]
    try:
        warning, critical = map(parse, parts)
    except (TypeError, ValueError) as error:
        found = error.found if isinstance(error, ConfigurationError) else f"{given!r:.80} is not a pair of levels"
        raise ConfigurationError(
            f"threshold {target.name}: {found}",
            cause="A threshold is two levels, for a warning and for critical.",
            remedy=f"Write it like {target.name}={_example(target)}, or {target.name}=off.",
        ) from error
    if (warning < critical) if target.low else (warning > critical):
        side = "below" if target.low else "above"
        raise ConfigurationError(
            f"threshold {target.name}: the warning level {target.shown(warning)} is {side} {target.shown(critical)}",
            cause="The levels are in the wrong order.",
            remedy="Write the warning level first.",
        )
    return replace(target, warning=warning, critical=critical)


def _parse_epochs(value: Any) -> float:
    text = str(value).strip()
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise ConfigurationError(f"{value!r:.80} is not a number of epochs", cause="", remedy="Write it like 10.")
    return float(text)


def _example(target: HealthTarget) -> str:
    levels = {"bytes": ("1GB", "5GB"), "s": ("10s", "30s"), "epochs": ("10", "100")}[target.unit]
    return "/".join(reversed(levels) if target.low else levels)


def _highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
