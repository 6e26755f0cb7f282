"""The look at the input: the last thing that a start does before it changes anything.

Going back, a restored or promoted directory, copies of partitions of several ages, and a killed run all make a run read
input that was read before. Every start passes here, between restoring the position and beginning the execution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession

from recovery.base.ids import BatchId
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.offsets import move_offsets, offset_at, read_offsets
from recovery.checkpoint.reached import Reached
from recovery.planning.lost_input import check_losses, is_accepted, left_out_text, losses
from recovery.spark.inputs.kinds import input_of
from recovery.spark.inputs.protocol import Resumes, StreamInput
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.planner.iceberg_tables import IcebergInput


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the look found to be readable. moved: whether the restored position was changed, for an accepted loss.
    left_out: what is left out, as text, by the names whose loss is accepted. identities: what distinguishes parts of
    sources, to keep with the position; left: where parts were left that the flow reads no more, likewise."""

    moved: bool
    left_out: Mapping[str, str]
    identities: Mapping[str, str]
    left: Mapping[str, str]


def look_at_inputs(
    bound: BoundPlan,
    home: CheckpointHome,
    batch: BatchId | None,
    reached: Reached,
    identities: Mapping[str, str],
    left: Mapping[str, str],
    accepted: Sequence[str],
    discards: str | None,
    tables: IcebergInput,
) -> Inputs:
    """Check that the input from a restored position on can be read, and change the restored checkpoint where Spark has
    to read on elsewhere, for an accepted loss. Changes nothing else.

    batch: the last one of the restored checkpoint; None: it has none. reached: what was read beyond the checkpoint.
    identities, left: those in the snapshot. accepted: the names of sources whose loss is accepted. discards: what
    the start would discard, as text. Raises InputLostError or InputRewrittenError, naming what is lost, and the errors
    of asking the sources.
    """
    spark = bound.frame.sparkSession
    of_tables = tables.begin(batch, accepted, reached.offsets)
    resumes = partial(Resumes, reached=reached, identities=identities)
    sources = _sources(bound, home, batch, partial(resumes, left=left), spark)
    looks = {source: each.look() for source, each in sources.items()}
    leaves = _together(look.left for look in looks.values())
    if leaves and len(sources) > 1:
        # What one source leaves, another one may read from now on.
        sources = _sources(bound, home, batch, partial(resumes, left={**left, **leaves}), spark)
        looks = {source: each.look() for source, each in sources.items()}
    for look in looks.values():
        for name, error in look.errors:
            if not is_accepted(name, accepted):
                raise error
    lost = {source: losses(look.needed, look.there) for source, look in looks.items()}
    causes = {name: cause for look in looks.values() for name, cause in look.causes.items()}
    # Two reads of one path lack the same.
    every = list(dict.fromkeys(loss for found in lost.values() for loss in found))
    check_losses(every, accepted, discards, causes)
    moved: dict[int, str] = {}
    for place, source in enumerate(bound.sources.ids):
        if source in sources and (lost[source] or looks[source].errors):
            offset = sources[source].goes_on(lost[source])
            if offset is not None:
                moved[place] = offset
    if batch is not None:
        move_offsets(home.directory, batch, bound.sources, moved)
    left_out = {
        name: look.said.get(name, f"left out: {error.found}") for look in looks.values() for name, error in look.errors
    }
    back = {name for look in looks.values() for name in look.back}
    for name in dict.fromkeys(loss.needed.source for loss in every if loss.needed.source not in back):
        left_out[name] = left_out_text([loss for loss in every if loss.needed.source == name])
    left = {name: at for name, at in {**left, **leaves}.items() if name not in back}
    return Inputs(
        bool(moved or of_tables),
        {**left_out, **of_tables},
        _identities(look.identities for look in looks.values()),
        left,
    )


def _sources(
    bound: BoundPlan,
    home: CheckpointHome,
    batch: BatchId | None,
    resumes: Callable[[str | None], Resumes],
    spark: SparkSession,
) -> dict[int, StreamInput]:
    """Return what looks at each source, by the source's number. A source that is read in several places has the same
    position in all of them."""
    log = None if batch is None else read_offsets(home.directory, batch)
    sources: dict[int, StreamInput] = {}
    for place, source in enumerate(bound.sources.ids):
        if source not in sources and place not in bound.tables:
            at = offset_at(log, bound.sources, place)
            sources[source] = input_of(bound.streams[place], resumes(at), spark)
    return sources


def _identities(parts: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
    """Return each name with what distinguishes it now. Topics of one name in several clusters have several ids."""
    found: dict[str, set[str]] = {}
    for name, text in (each for part in parts for each in part.items()):
        found.setdefault(name, set()).add(text)
    return {name: " ".join(sorted(texts)) for name, texts in found.items()}


def _together(parts: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {name: text for found in parts for name, text in found.items()}
