"""`--until`: end a run of a fork after exactly the input that its origin had read."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.base.ids import NO_BATCH, BatchId, Epoch
from recovery.base.reserved import CHECKPOINT_STEP, SOURCES_STEP
from recovery.base.wording import listed
from recovery.checkpoint.restore import restore
from recovery.checkpoint.source_places import SourcePlaces
from recovery.checkpoint.sources import PLACES_KEY
from recovery.checkpoint.until import fix_end
from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError, EpochNotHeldError, SparkCheckpointError, UnsupportedPlanError
from recovery.operational.steps.comparison import positions
from recovery.planning.resume import ResumePlan, common_cuts, plan_resume
from recovery.planning.timeline import fork, timeline
from recovery.planning.values import ClosedEpoch
from recovery.spark.run.position import fitted
from recovery.storage.origin import Origin, continued, read_origins
from recovery.storage.reading import FileReader
from recovery.storage.scan import scan
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store


def check_fork(origins: Sequence[Origin], directory: Path) -> None:
    """Check that output may be dropped. Raises ConfigurationError unless the store was forked."""
    if all(each.how != "fork" for each in origins):
        raise ConfigurationError(
            f"{directory} is not a fork: without output, the results of this run would never appear",
            cause="no_output (--no-output) is for a store that recovery fork made.",
            remedy=f"Fork the store: python -m recovery fork {directory} NEW_DIR",
        )


def find_until(until: int | str, store: Store, plan: ResumePlan, origins: Sequence[Origin]) -> Until:
    """Return the position that the origin of a store had reached. until: as in RecoveryConfig.

    Raises ConfigurationError, EpochNotHeldError, and the errors of planning for the origin's directory.
    """
    if not origins:
        raise ConfigurationError(
            "there is no origin whose input could be read up to a position",
            cause="until (--until) is for a store that recovery fork made.",
            remedy="Leave it out, or fork the store first.",
        )
    # A fork that was repartitioned is still one. Its own earlier directory is not the origin that is meant.
    parent = next((each for each in origins if each.how == "fork"), origins[0])
    origin = Path(parent.directory)
    reached = plan_resume(scan(origin))
    if parent.store_id not in (reached.store_id, *continued(read_origins(origin))):
        raise ConfigurationError(
            f"{origin} holds store {reached.store_id}, and this one was {parent.verb} from {parent.store_id}",
            cause="The origin was moved, or made again.",
            remedy="Put the directory of the origin back, or fork the origin again from where it is now.",
        )
    epochs = {closed.epoch: closed for closed in reached.partitions[0].epochs}
    ends = {closed.batch_id: epoch for epoch, closed in epochs.items()}
    batch = BatchId(int(until.partition(":")[2])) if isinstance(until, str) else None
    epoch = ends.get(batch) if batch is not None else Epoch(int(until))
    held = {cut[0]: cut for cut in common_cuts(reached.partitions)}
    if epoch is None or epoch not in held or epoch not in epochs:
        raise EpochNotHeldError(
            f"the origin holds epochs {listed(epochs)}, which end with micro-batches {listed(ends)}, and not {until}",
            path=origin,
            cause="The epoch was collected, or never closed; inside an epoch a position is not kept.",
            remedy="Name one of them.",
        )
    shared = fork(
        timeline(plan.partitions[0].executions, plan.snapshot),
        timeline(reached.partitions[0].executions, epochs[epoch]),
    )
    parted = next((e.batch_id for d in (*plan.partitions, *reached.partitions) for e in d.epochs if e.epoch == shared),
                  None if shared else NO_BATCH)  # fmt: skip
    now = plan.snapshot.batch_id if plan.snapshot is not None else NO_BATCH
    on_its_way = (
        plan.resume_epoch - 1 <= shared or now == parted or _is_at_one(store, plan, reached, epochs, shared, epoch)
    )
    return Until(Snapshot.of(reached, held[epoch], FileReader.of), on_its_way, f"epoch {epoch} of {origin}")


def _is_at_one(
    store: Store, plan: ResumePlan, reached: ResumePlan, epochs: Mapping[Epoch, ClosedEpoch], shared: int, last: int
) -> bool:
    """Return whether this store is at the position of one of the origin's epochs before `last`, because an earlier run
    reached it."""
    if plan.snapshot is None:
        return False
    mine = Snapshot.of(plan, plan.snapshot.cut, store.reader)
    held = common_cuts(reached.partitions)
    between = [closed.cut for epoch, closed in epochs.items() if shared < epoch < last and closed.cut in held]
    return any(
        all(each.a == each.b for each in positions(mine, Snapshot.of(reached, cut, FileReader.of))) for cut in between
    )


@dataclass(frozen=True, slots=True)
class Until:
    """A position of the origin. on_its_way: whether the origin had read, before this position, everything that this
    store has read."""

    at: Snapshot
    on_its_way: bool
    shown: str

    def check_plan(self, keeps_native_state: bool) -> None:
        """Raises UnsupportedPlanError for a flow whose own operators keep state in Spark."""
        if keeps_native_state:
            raise UnsupportedPlanError(
                "the flow has Spark's own stateful operators, whose results depend on where micro-batches end",
                cause="until (--until) reads all input up to a position as one micro-batch, under one watermark.",
                remedy="Leave it out. The fork then reads to the end of the input; diff says where both are.",
            )

    def lay_out(
        self, checkpoint: Path, batch: BatchId | None, sources: SourcePlaces, config: RecoveryConfig
    ) -> BatchId:
        """Let the next micro-batch in `checkpoint` end at the position; return the last micro-batch of the run: the
        next one, or `batch`, if that has reached the position. Raises ConfigurationError, SparkCheckpointError,
        FlowMismatchError."""
        with tempfile.TemporaryDirectory(prefix="recovery-until-") as name:
            reached = Path(name) / "checkpoint"
            rows = ((state.key, state.value) for state in self.at.states(CHECKPOINT_STEP))
            restored = restore(rows, reached)
            if restored.batch is None:
                raise SparkCheckpointError(f"{self.shown} holds no position in the input")
            places = self.at.state(SOURCES_STEP, PLACES_KEY)
            left_by = places.value if places is not None and isinstance(places.value, str) else None
            restored = fitted(restored, reached, sources, left_by, config.rename_steps, config.rename_steps)
            assert restored.batch is not None
            last = fix_end(checkpoint, batch, reached, restored.batch, sources)
        if last is None:
            return NO_BATCH if batch is None else batch
        if not self.on_its_way:
            raise ConfigurationError(
                f"since it was forked, this store has read other input than the origin had read at {self.shown}",
                cause="A run without until (--until), or with another position, processed input here.",
                remedy="Fork the origin again, or go back to where this store was forked: --resume-after.",
            )
        return last
