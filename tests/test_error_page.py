"""docs/errors.md and the units of supervisors follow from the error classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery.errors import RecoveryError, all_errors

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
    "SinkFailedError": "sinks.md",
    "SinkRefusedError": "sinks.md",
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


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {"errors": errors}
"""What prints each generated part of the page."""


def test_links_belong_to_errors():
    """No link of an error that was renamed."""
    assert set(MORE) <= {kind.__name__ for kind in all_errors()}


@pytest.mark.parametrize("file", ["examples/deploy/recovery-words.service", "docs/deploying.md"])
def test_a_service_is_not_restarted_for_what_a_person_has_to_correct(file):
    """systemd's list is that of the classes, and the mistakes of a command line."""
    listed = re.search(r"^RestartPreventExitStatus=(.*)$", (ROOT / file).read_text(), re.MULTILINE)[1]
    assert listed.split() == ["2", *(str(kind.exit_code) for kind in all_errors() if not kind.restart)]


def test_an_error_whose_cause_can_pass_does_not_ask_for_other_options():
    """Restarted errors have a default remedy: RecoveryError itself has none, and a person looks at it."""
    assert not RecoveryError.restart
    assert all(kind.default_remedy for kind in all_errors() if kind.restart)
