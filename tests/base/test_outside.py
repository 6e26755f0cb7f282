"""What is asked of things that others own: each class that stands for one answers every question, and the documentation
prints the answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest

import recovery
from recovery.base.outside import CannotTell, Checked, DoesNotApply, Question
from recovery.places.bucket import BucketPlace
from recovery.places.directory import DirectoryPlace
from recovery.sinks.protocol import EpochSink
from recovery.spark.inputs.kinds import KINDS

PROTOCOLS = {EpochSink}


def sinks() -> dict[str, type]:
    """The public sinks that take part in closing epochs."""
    public = {name: getattr(recovery, name) for name in recovery.__all__}
    return {
        name: each
        for name, each in public.items()
        if inspect.isclass(each) and each not in PROTOCOLS and hasattr(each, "publish") and hasattr(each, "rollback")
    }


OUTSIDES: dict[str, dict[str, type]] = {
    "Inputs": dict(
        zip(("files", "`appended`", "Kafka", "Delta", "Iceberg", "`rate`, ticks", "other sources"), KINDS, strict=True)
    ),
    "Targets of sinks": sinks(),
    "Places of copies": {"a directory or mount": DirectoryPlace, "a bucket": BucketPlace},
}
EVERY = [(f"{group}: {name}", each) for group, classes in OUTSIDES.items() for name, each in classes.items()]


def tables() -> Iterator[str]:
    """The lines of the documentation's tables."""
    for group, classes in OUTSIDES.items():
        yield f"\n### {group}\n"
        yield "| | question | how | when |\n| --- | --- | --- | --- |\n"
        for name, each in classes.items():
            for question in Question:
                answer = each.answers[question]
                if isinstance(answer, Checked):
                    yield f"| {name} | {question.value} | {answer.by} | {', '.join(at.value for at in answer.at)} |\n"
                elif isinstance(answer, CannotTell):
                    yield f"| {name} | {question.value} | cannot tell: {answer.why} | |\n"
                name = ""


BLOCKS: dict[str, Callable[[], Iterator[str]]] = {"tables": tables}
"""What prints each part of docs/outside.md."""


@pytest.mark.parametrize("outside", [each for _, each in EVERY], ids=[name for name, _ in EVERY])
def test_each_class_answers_every_question(outside):
    assert set(outside.answers) == set(Question)
    for answer in outside.answers.values():
        assert isinstance(answer, Checked | CannotTell | DoesNotApply)
        assert not isinstance(answer, Checked) or answer.at
