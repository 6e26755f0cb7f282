"""The quarantine of one run: how many rows wait, and the limit at which the run fails all the same."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from recovery.base.clock import Clock
from recovery.base.credentials.task_key import task_key
from recovery.base.ids import BatchId, Lease, PartitionIndex, StepId
from recovery.base.reserved import quarantine_of
from recovery.base.wording import age_s
from recovery.errors import QuarantineError, RecoveryError, shown
from recovery.operational.steps.quarantine import WaitingRows
from recovery.planning.quarantine import QuarantineLimit
from recovery.spark.run.parts.part import Part
from recovery.spark.steps.definition import RegisteredStep, StepDefinition
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, PartitionStore, of_all_steps
from recovery.values import quarantine
from recovery.values.quarantine import WAITS_MS


def check_released(step: StepDefinition, left: WaitingRows) -> None:
    """Raise QuarantineError if rows wait for a step whose errors end the run: it would let later rows pass."""
    if step.hold is None and left.rows:
        raise QuarantineError(
            f'step {step.step_id!r} has {left.rows:,} rows in quarantine, and on_error="fail"',
            cause='The step was declared with on_error="quarantine" before. Later rows of these keys would '
            "pass those that wait.",
            remedy='Declare on_error="quarantine" again; or look at the rows and drop them: python -m recovery '
            "quarantine list DIR.",
        )


class Quarantine(Part):
    """Counts the rows in quarantine of one run's steps."""

    name = "quarantine"

    def __init__(
        self,
        steps: Sequence[RegisteredStep],
        before: Mapping[StepId, WaitingRows],
        store: PartitionStore,
        clock: Clock,
        limit: QuarantineLimit,
    ) -> None:
        """before: what waits when the run starts, of the flow's steps. limit: how many rows may wait and enter.

        Raises QuarantineError if rows wait for a step whose errors end the run: it would let later rows pass."""
        definitions = [each.definition for each in steps]
        for each in definitions:
            left = before.get(each.step_id, WaitingRows())
            check_released(each, left)
            if each.inputs and left.replays and each.replayed is None:
                raise QuarantineError(
                    f"rows in quarantine of step {each.step_id!r} are to be replayed, and its frame was built before",
                    cause="Spark computes columns for these rows while a run builds its flow, and a frame that start "
                    "gets is built already.",
                    remedy="Replay them in a run of a Flow: start(Flow(name, build, sink), config).",
                )
        self.ids = [each.quarantine for each in definitions if each.hold is not None]
        """The ids under which the rows in quarantine are stored."""
        self.by_step = {
            each.step_id: before.get(each.step_id, WaitingRows()).rows for each in definitions if each.hold is not None
        }
        """The rows that wait, by step."""
        self._replays = any(each.replays for each in before.values())
        self._since_ms = min((each.since_ms for each in before.values() if each.since_ms is not None), default=None)
        self._store = store
        self._clock = clock
        self._limit = limit

    @property
    def rows(self) -> int:
        """The rows that wait, of all steps."""
        return sum(self.by_step.values())

    @property
    def most_of_task(self) -> int:
        """How many rows a task may put into quarantine at the start of the run: as many as may wait, besides those that
        a replay may let go."""
        return self._limit.rows + (self.rows if self._replays else 0)

    def processed(self, lease: Lease, batch: BatchId, counts: Mapping[StepId, BatchCount]) -> None:
        """Count the rows of a micro-batch. Raises QuarantineError if too many wait now, or have come; then the
        micro-batch must not count."""
        own = {step: counts.get(quarantine_of(step), BatchCount(0, 0)) for step in self.by_step}
        now = {step: rows + own[step].waiting for step, rows in self.by_step.items()}
        entered = sum(count.rows for count in own.values())
        found = self._limit.exceeded(batch, self.rows, sum(now.values()), entered, of_all_steps(counts).rows)
        if found is not None:
            raise QuarantineError(found + self._newest(lease, batch))
        self.by_step = now
        if not self.rows:
            self._since_ms = None
        elif self._since_ms is None:
            self._since_ms = self._clock.wall_ms()

    def now(self) -> tuple[Mapping[StepId, int], float | None]:
        """Return how many rows wait for each step, and for how many seconds the oldest has; None: none waits."""
        since_ms = self._since_ms
        return self.by_step, None if since_ms is None else age_s(since_ms, self._clock.wall_ms())

    def _newest(self, lease: Lease, batch: BatchId) -> str:
        """Return the newest error of any key, as the end of a sentence."""
        found: list[tuple[int, str]] = []
        with contextlib.suppress(RecoveryError):
            store, count = reach(self._store.address(lease), task_key=task_key())
            after, every = BatchId(batch + 1), list(map(PartitionIndex, range(count)))
            try:
                for step in self.ids:
                    for partition, names in store.due(step, after, every, WAITS_MS).items():
                        texts = store.read(step, after, {partition: tuple(names)})[partition]
                        for name, text in zip(names, texts, strict=True):
                            note = quarantine.note_from(text or "", RecoveryError)
                            key = shown(quarantine.parse_waiting_key(name)[0])
                            found.append((note.since_ms, f"; the newest error, for key {key}: {note.error}"))
            finally:
                store.release()
        return max(found, default=(0, ""))[1]
