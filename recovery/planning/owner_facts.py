"""What an owner of partitions says of itself, and which of that an operator should look at.

Each fact is declared once: with its name and help text for Prometheus, which the metrics of the owner and of a run and
the documentation follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec

from recovery.planning.health import Finding, HealthTarget, format_bytes, format_seconds


class ShownFact(NamedTuple):
    """How metrics show a fact: the name without its prefix, the help text, and the quantile if it is one of several."""

    kind: Literal["gauge", "counter"]
    metric: str
    help: str
    quantile: str = ""


def _gauge(metric: str, text: str, quantile: str = "") -> msgspec.Meta:
    return msgspec.Meta(extra={"shown": ShownFact("gauge", metric, text, quantile)})


def _counter(metric: str, text: str) -> msgspec.Meta:
    return msgspec.Meta(extra={"shown": ShownFact("counter", f"{metric}_total", text)})


_CALL = "Time of a task's call, its wait for a turn included: of the newest 1,000."


class OwnerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An owner's service at one moment. Counts are since the service began; times are seconds, None: not known."""

    clock_ms: int
    held: Annotated[bool, _gauge("held", "1 while a run holds the partitions.")] = False
    stopping: Annotated[bool, _gauge("stopping", "1 once the service is to end.")] = False
    partitions: Annotated[int, _gauge("partitions", "Partitions that the run has taken.")] = 0
    epoch: Annotated[int | None, _gauge("epoch", "The newest epoch that a run has closed here.")] = None
    epochs_closed: Annotated[int, _counter("epochs_closed", "Epochs closed here.")] = 0
    close_s: Annotated[float | None, _gauge("close_seconds", "Time of closing the newest epoch here.")] = None
    connections: Annotated[int, _gauge("connections", "Open connections.")] = 0
    proven: Annotated[int, _counter("connections", "Connections that have proved themselves.")] = 0
    reconnections: Annotated[
        int, _counter("reconnections", "Connections of tasks that had lost one: each repeats a call.")
    ] = 0
    refused: Annotated[int, _counter("refused", "Connections with a wrong token, key or lease.")] = 0
    second_token: Annotated[
        int, _counter("second_token", "Connections that used the second token of the file, not the first.")
    ] = 0
    calls: Annotated[int, _counter("calls", "Calls of tasks, runs and commands that were answered.")] = 0
    call_p50_s: Annotated[float | None, _gauge("call_seconds", _CALL, "0.5")] = None
    call_p99_s: Annotated[float | None, _gauge("call_seconds", _CALL, "0.99")] = None
    waiting_calls: Annotated[int, _gauge("waiting_calls", "Calls of tasks that wait for a turn.")] = 0
    received_bytes: Annotated[int, _counter("received_bytes", "Bytes that came in on all connections.")] = 0
    sent_bytes: Annotated[int, _counter("sent_bytes", "Bytes that went out on all connections.")] = 0
    file_errors: Annotated[
        int, _counter("file_errors", "Calls that ended with an error of the disk or of a file here.")
    ] = 0
    disk_free_bytes: Annotated[int | None, _gauge("disk_free_bytes", "Free space where the partitions are.")] = None
    memory_bytes: Annotated[int | None, _gauge("memory_bytes", "Resident memory of the process.")] = None
    certificate_end_s: Annotated[
        float | None, _gauge("certificate_end_seconds", "Time until the certificate ends; negative: it has ended.")
    ] = None

    @classmethod
    def shown(cls) -> Mapping[str, ShownFact]:
        """Return how metrics show each fact, by its field."""
        hints = get_type_hints(cls, include_extras=True)
        metas = {name: getattr(hints[name], "__metadata__", ()) for name in cls.__struct_fields__}
        return {name: found[0].extra["shown"] for name, found in metas.items() if found}


OWNER_ADVICE: Mapping[str, str] = {
    "owner-call": "Tasks wait for this owner: look at its disk and processors, or move partitions to another host.",
    "owner-closing": "Epochs wait for this owner: look at its disk, or move partitions to another host.",
    "owner-clock": "Have both hosts set their clocks by NTP: certificates, times of epochs and metrics depend on them.",
    "owner-disk": "No epoch closes on a full disk: make room, shorten -b and run gc, or move partitions.",
    "certificate": "Renew the certificate and send the owner SIGHUP: nobody gets in once it has ended.",
}
"""What to do about each target about owners."""


class SeenOwner(NamedTuple):
    """What an owner answered to this host. location: as it was named. clock_difference_s: how far the owner's clock is
    ahead of this host's, at most half of `answer_s` wrong. answer_s: how long the answer took."""

    location: str
    holder: str
    facts: OwnerFacts
    clock_difference_s: float
    answer_s: float

    @classmethod
    def of(cls, location: str, holder: str, facts: OwnerFacts, answer_s: float, now_ms: int) -> SeenOwner:
        """Return what an answer shows that took `answer_s` and came now: the owner read its clock about half-way."""
        return cls(location, holder, facts, round((facts.clock_ms - now_ms) / 1000 + answer_s / 2, 3), answer_s)

    def as_json(self) -> dict[str, Any]:
        """Return the same facts as JSON values."""
        return {
            "owner": self.location,
            "holder": self.holder,
            "clock_difference_s": self.clock_difference_s,
            "answer_s": self.answer_s,
            **msgspec.structs.asdict(self.facts),
        }

    def cells(self) -> dict[str, str]:
        """Return the facts for a table, by the name of their column."""
        facts = self.facts
        return {
            "owner": self.location,
            "call p50": _time(facts.call_p50_s),
            "p99": _time(facts.call_p99_s),
            "closing": _time(facts.close_s),
            "waiting": str(facts.waiting_calls),
            "in": format_bytes(facts.received_bytes),
            "out": format_bytes(facts.sent_bytes),
            "again": str(facts.reconnections),
            "clock": f"{round(self.clock_difference_s, 1) + 0.0:+.1f} s",
            "disk free": _size(facts.disk_free_bytes),
            "errors": str(facts.file_errors),
            "memory": _size(facts.memory_bytes),
            "certificate": _time(facts.certificate_end_s),
        }

    def value(self, target: HealthTarget) -> float | None:
        """Return the value of one of the targets about owners."""
        values = {
            "owner-call": self.facts.call_p99_s,
            "owner-closing": self.facts.close_s,
            # What a slow answer may have made of no difference does not count.
            "owner-clock": max(0.0, abs(self.clock_difference_s) - self.answer_s / 2),
            "owner-disk": self.facts.disk_free_bytes,
            "certificate": self.facts.certificate_end_s,
        }
        return values.get(target.name)


def owner_findings(
    owners: Sequence[SeenOwner], targets: Sequence[HealthTarget], certificate_end_s: float | None = None
) -> tuple[Finding, ...]:
    """Return the targets about owners, each with its worst value and the owner that has it. certificate_end_s: of the
    run's own certificate; None: it has none."""
    found = []
    for target in targets:
        values = [(value, owner.location) for owner in owners if (value := owner.value(target)) is not None]
        if target.name == "certificate" and certificate_end_s is not None:
            values.append((certificate_end_s, "this run"))
        if values:
            value, where = min(values) if target.low else max(values)
            found.append(Finding(target, value, target.level(value), where=where))
    return tuple(found)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(max(0.0, seconds))


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else format_bytes(size_bytes)
