"""docs/errors.md and the units of supervisors follow from the error classes."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery.errors import FlowFailedError, RecoveryError, all_errors
from recovery.sinks.kafka.reasons import BROKER_REFUSALS
from recovery.sinks.targets import REFUSALS
from recovery.sinks.upsert.reasons import REASONS, VALUE, Reason
from recovery.spark.jvm.failure_table import JVM_ENDED, JVM_SILENT, RUNNING, SETTINGS, STARTING, STREAM_ENDED
from recovery.spark.jvm.failures import documented

ROOT = Path(__file__).parents[1]

MORE = {
    "FileReplacedError": "operations.md#a-file-was-taken-away-from-a-run",
    "LinkedPartitionError": "operations.md#partitions-on-several-disks",
    "InconsistentPartitionsError": "operations.md#a-file-is-too-old",
    "CorruptPartitionError": "operations.md#a-file-is-damaged",
    "StepChangedError": "flow-api.md#changing-what-is-stored",
    "UnsupportedPlanError": "flow-api.md#restrictions",
    "StateValueError": "flow-api.md#state",
    "InputRewrittenError": "delta.md#when-a-table-was-changed",
    "SinkFailedError": "#when-a-sink-cannot-write",
    "SinkRefusedError": "#when-a-sink-cannot-write",
    "OutputLostError": "sinks.md#where-all-hosts-reach-the-files",
    "OutputMismatchError": "sinks.md#when-output-and-partitions-do-not-fit",
    "OwnerUnreachableError": "clusters.md",
    "ExecutorPackageError": "clusters.md",
    "InputLostError": "kafka.md#records-that-are-gone",
    "StaleDirectoryError": "sinks.md#two-directories-of-one-store",
    "TakenOverError": "backup.md#taking-over",
    "StandbyDirectoryError": "backup.md#taking-over",
}
"""The section that says more about an error."""


def errors() -> Iterator[str]:
    """The table of all error classes."""
    yield "| code | error | what it means | what to do, unless the error says another way | restart? |\n"
    yield "| --- | --- | --- | --- | --- |\n"
    for kind in all_errors():
        means = kind.__doc__.partition("\n")[0]
        more = f" [More]({MORE[kind.__name__]})" if kind.__name__ in MORE else ""
        advice = kind.default_remedy.replace("|", r"\|") or "The error says what to do."
        restart = "yes, after a pause" if kind.restart else "no"
        yield f"| {kind.exit_code} | `{kind.__name__}` | {means} | {advice}{more} | {restart} |\n"


def failures() -> Iterator[str]:
    """The table of what fails in Spark."""
    yield "| what failed | error | probable cause | what to do |\n"
    yield "| --- | --- | --- | --- |\n"
    for row in (JVM_ENDED, JVM_SILENT, STREAM_ENDED, *RUNNING, *STARTING[len(SETTINGS) :]):
        error = documented(row)
        cells = [each.replace("|", r"\|") for each in (row.what, error.cause or "The error names it.", error.remedy)]
        yield f"| {cells[0]} | `{row.kind.__name__}` ({row.kind.exit_code}) | {cells[1]} | {cells[2]} |\n"


def database() -> Iterator[str]:
    """The table of what databases say to UpsertSink."""
    yield "| what the database says | SQLSTATE | tried again | then the run ends with | because |\n"
    yield "| --- | --- | --- | --- | --- |\n"
    for each in REASONS:
        codes = ", ".join(f"`{code}{'…' * (len(code) == 2)}`" for code in each.codes)
        yield f"| {each.means} | {codes} | {each.again.value} | {_named(row_error(each))} | {each.why} |\n"


def targets() -> Iterator[str]:
    """The table of what file systems, object stores and catalogs say to the other sinks."""
    yield "| what the target says | errno | the run ends with | because |\n"
    yield "| --- | --- | --- | --- |\n"
    for each in REFUSALS:
        numbers = ", ".join(f"`{errno.errorcode[number]}`" for number in each.codes)
        yield f"| {each.means} | {numbers} | {_named(each.error)} | {each.why} |\n"


def broker() -> Iterator[str]:
    """The table of what a Kafka broker says to KafkaSink."""
    yield "| what the broker says | errors | the run ends with | because |\n"
    yield "| --- | --- | --- | --- |\n"
    for each in BROKER_REFUSALS:
        names = ", ".join(f"`{name}`" for name in each.names)
        yield f"| {each.means} | {names} | {_named(each.error)} | {each.why} |\n"


def row_error(reason: Reason) -> type[RecoveryError]:
    """The error for a reason while an epoch is open: a value is the flow's."""
    return FlowFailedError if reason is VALUE else reason.error


def _named(kind: type[RecoveryError]) -> str:
    return f"`{kind.__name__}` ({kind.exit_code})"


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {
    "errors": errors,
    "failures": failures,
    "database": database,
    "targets": targets,
    "broker": broker,
}
"""What prints each generated part of the page."""


def test_links_belong_to_errors():
    """No link of an error that was renamed."""
    assert set(MORE) <= {kind.__name__ for kind in all_errors()}


@pytest.mark.parametrize(
    "file", ["examples/deploy/recovery-words.service", "examples/deploy/recovery-owner.service", "docs/deploying.md"]
)
def test_a_service_is_not_restarted_for_what_a_person_has_to_correct(file):
    """systemd's list is that of the classes, and the mistakes of a command line."""
    listed = re.search(r"^RestartPreventExitStatus=(.*)$", (ROOT / file).read_text(), re.MULTILINE)[1]
    assert listed.split() == ["2", *(str(kind.exit_code) for kind in all_errors() if not kind.restart)]


def test_an_error_whose_cause_can_pass_does_not_ask_for_other_options():
    """Restarted errors have a default remedy: RecoveryError itself has none, and a person looks at it."""
    assert not RecoveryError.restart
    assert all(kind.default_remedy for kind in all_errors() if kind.restart)
