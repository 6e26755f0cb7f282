"""Flow: the definition of what a run executes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from recovery.errors import ConfigurationError
from recovery.planning.quarantine import parse_quarantine
from recovery.values.functions import check_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from recovery.sinks import Sink

    SinkLike: TypeAlias = Sink | Callable[[DataFrame, int], Any]


OUTPUT_MODES = ("append", "update", "complete")


@dataclass(frozen=True)
class Flow:
    """A named dataflow.

    name: the flow id; the first execution binds a recovery directory to it.
    build: returns the streaming DataFrame; called once per run with the SparkSession.
    sink: a foreachBatch function `write(batch, batch_id)`, or a sink object; None computes and discards the output.
        Plain functions are at-least-once: after a crash the micro-batches since the last closed epoch come again.
        An EpochSink, such as FileSink and UpsertSink, is exactly-once: its output appears with the closed epoch.
    output_mode: what Spark's own stateful operators pass to the sink: "append", "update" or "complete".
    quarantine: how many rows may wait in quarantine, or with "%" how much of a micro-batch's rows may enter it, before
        a run fails all the same: 1000, "1%" or "1000,1%". What the run's config says counts more; None: 1000.
    """

    name: str
    build: Callable[[SparkSession], DataFrame]
    sink: SinkLike | None = None
    output_mode: str = "append"
    quarantine: int | str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "\0" in self.name:
            raise ConfigurationError(f"{self.name!r} is not a name for a flow", remedy="Use a text like 'wordcount'.")
        if not callable(self.build):
            raise ConfigurationError(f"flow {self.name!r}: build={self.build!r} is not a function")
        check_runs(f"flow {self.name!r}: build", self.build)
        check_sink(self.sink)
        check_output_mode(self.output_mode)
        if self.quarantine is not None:
            parse_quarantine(self.quarantine)


def check_sink(sink: object) -> None:
    """Check that a sink, if there is one, can be given micro-batches and writes them when it is.

    Raises ConfigurationError for a class, for what is neither callable nor has a `write`, and for a function whose body
    a call does not run.
    """
    if sink is None:
        return
    if isinstance(sink, type):
        raise ConfigurationError(
            f"sink={sink.__qualname__} is a class", cause="", remedy=f"Make a sink of it: {sink.__qualname__}(...)."
        )
    write = getattr(sink, "write", sink)
    if not callable(write):
        raise ConfigurationError(
            f"sink={sink!r:.120} is not a sink",
            cause="It cannot be called, and has no method write.",
            remedy="Give a function sink(batch, batch_id), or a sink object, such as FileSink('out').",
        )
    check_runs("the sink", write)


def check_output_mode(mode: str) -> None:
    """Raises ConfigurationError for an unknown output mode."""
    if mode not in OUTPUT_MODES:
        raise ConfigurationError(f"{mode!r} is not an output mode", remedy='Use "append", "update" or "complete".')
