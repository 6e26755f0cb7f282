"""What a flow is made of, checked when it is made."""

from __future__ import annotations

from typing import Any

import pytest

from recovery import ConfigurationError, DiscardSink, FileSink, Flow


def build(spark: Any) -> Any: ...


class Collected(list):
    """A sink that is empty, and so false, until it has something."""

    def __call__(self, batch: Any, batch_id: int) -> None:
        self.append(batch_id)


class Asynchronous:
    async def write(self, batch: Any, batch_id: int) -> None: ...


class Yielding:
    def write(self, batch: Any, batch_id: int) -> Any:
        yield


class NoMethod:
    write = "out"


async def write(batch: Any, batch_id: int) -> None: ...


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        (FileSink, "sink=FileSink is a class"),
        (Collected, "sink=Collected is a class"),
        ("out/", "sink='out/' is not a sink"),
        (5, "sink=5 is not a sink"),
        (0, "sink=0 is not a sink"),
        ([], r"sink=\[\] is not a sink"),
        (NoMethod(), "is not a sink"),
        (write, "the sink is an asynchronous function"),
        (Asynchronous(), "the sink is an asynchronous function"),
        (Yielding(), "the sink is a generator function"),
        (lambda batch, batch_id: (yield), "the sink is a generator function"),
    ],
)
def test_what_is_no_sink(sink: Any, message: str) -> None:
    """Refused where the flow is made, with what to give instead."""
    with pytest.raises(ConfigurationError, match=message):
        Flow("words", build, sink=sink)


@pytest.mark.parametrize("sink", [None, Collected(), DiscardSink(), lambda batch, batch_id: None])
def test_what_is_a_sink(sink: Any) -> None:
    """Functions, objects with `write`, and callable objects, also false ones; or none."""
    assert Flow("words", build, sink=sink).sink is sink


async def build_later(spark: Any) -> Any: ...


def build_some(spark: Any) -> Any:
    yield


@pytest.mark.parametrize("function", [build_later, build_some, "build", None])
def test_what_does_not_build(function: Any) -> None:
    """A function that gives no frame when it is called is refused."""
    with pytest.raises(ConfigurationError, match="flow 'words': build"):
        Flow("words", function)
