"""All keys of an aggregate at each closed epoch: Spark's complete output mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from recovery.base.addresses import local_path
from recovery.base.outside import Answers, CannotTell, Checked, DoesNotApply, Moment, Question
from recovery.errors import ConfigurationError
from recovery.sinks.plain import DiscardSink
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.storage.copied import files_of
from recovery.storage.store import Store
from recovery.values.functions import check_runs, not_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_REPLACES = "the function replaces all that it wrote before"


class HoldsKeys(Protocol):
    """A step with readable state, as `recovery.aggregate` returns it."""

    def all_keys(self, spark: SparkSession, directory: str | Path, epoch: int | None = None) -> DataFrame:
        """Return the rows of all keys as of an epoch."""
        ...


class AllKeysSink(DiscardSink):
    """Passes the aggregates of all keys to `write(frame, epoch)`, each time an epoch is closed and when a run starts.

    step: the flow's step, as returned by `recovery.aggregate`. directory: the recovery directory of the run.

    `write` replaces what it wrote before: it is called again for an epoch after a crash, and for an older one after
    going back, so its last output is always the state of the newest closed epoch. Epoch 0, with no rows, is the time
    before the first. The flow's own output is discarded. Where owners have partitions, these are copied to this host
    for each call: see `recovery.storage.copied`.
    """

    answers: ClassVar[Answers] = {
        Question.SAME: CannotTell(_REPLACES),
        Question.THERE: DoesNotApply(),
        Question.CHANGED: CannotTell(_REPLACES),
        Question.ABLE: CannotTell("the function knows its target, and its error ends the run"),
        Question.OWNER: Checked("the store of the directory that the keys are read from", (Moment.START,)),
    }

    def __init__(self, step: HoldsKeys, directory: str | Path, write: Callable[[DataFrame, int], Any]) -> None:
        if not callable(getattr(step, "all_keys", None)):
            raise ConfigurationError(
                "AllKeysSink needs a step of recovery.aggregate", remedy="Give it the flow's step."
            )
        if not callable(write) or isinstance(write, type):
            raise ConfigurationError(f"AllKeysSink: write={write!r:.120} is not a function", remedy="")
        check_runs("write of AllKeysSink", write)
        self._step = step
        self._directory = local_path(directory)
        self._replace = write
        self._store: Store | None = None

    def check(self, resume: Resume) -> None:
        """Check that the directory is the run's own. Raises ConfigurationError."""
        store = resume.where
        assert store is not None, "a run says where its partitions are"
        if not self._directory.is_dir() or not self._directory.samefile(store.directory):
            raise ConfigurationError(
                f"AllKeysSink reads {self._directory}, which is not the recovery directory of this run",
                cause="The sink would show the state of another run.",
                remedy="Give the sink the same directory as the run.",
            )
        self._store = store

    def rollback(self, resume: Resume) -> None:
        """Replace what was written with the state that the run starts from. If an epoch follows that renames, drops or
        converts states, that epoch is shown instead: the step may not be able to read what is stored before."""
        if not resume.edits:
            self._show(resume.epoch - 1)

    def prepare(self, output: EpochOutput) -> str:
        """Return an empty note: there is nothing to prepare, because the epoch itself is what will be shown."""
        return ""

    def publish(self, output: EpochOutput) -> None:
        """Show the closed epoch."""
        self._show(output.epoch)

    def _show(self, epoch: int) -> None:
        from pyspark.sql import SparkSession

        assert self._store is not None, "check comes first"
        # Tasks read files. At owners, each epoch's partitions are copied for them.
        with files_of(self._store) as directory:
            frame = self._step.all_keys(SparkSession.builder.getOrCreate(), directory, epoch)
            left = not_run(self._replace(frame, epoch))
        if left is not None:
            raise TypeError(f"write returned {left}: it has written nothing")
