"""What the sources of a run have beyond the position of an epoch, while the run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from recovery.base.clock import Clock
from recovery.base.ids import BatchId
from recovery.checkpoint.home import CheckpointHome
from recovery.checkpoint.offsets import offset_at, read_offsets
from recovery.planning.lag import PartLag, together
from recovery.planning.topics import lowest
from recovery.spark.inputs.kafka import KafkaInput
from recovery.spark.inputs.kafka_group import ConsumerGroup
from recovery.spark.inputs.kinds import input_of
from recovery.spark.inputs.protocol import Resumes, StreamInput
from recovery.spark.planner.bind import BoundPlan
from recovery.spark.planner.iceberg_tables import IcebergInput

Positions = Mapping[int, str]
"""The offset of each source that has one, by the source's first place in the plan."""


class InputWatch:
    """The sources of one run that say how much there is. `positions` is for every thread, the rest for one."""

    def __init__(self, bound: BoundPlan, tables: IcebergInput, group: str | None, text: str, clock: Clock) -> None:
        """group: the consumer group that shows positions in topics; None: none does. text: what its offsets say."""
        self._bound = bound
        self._tables = tables
        places = {source: place for place, source in reversed(list(enumerate(bound.sources.ids)))}
        spark = bound.frame.sparkSession
        self._inputs: dict[int, StreamInput] = {
            place: found
            for place in places.values()
            if place not in bound.tables and (found := input_of(bound.streams[place], Resumes(None), spark)).tells_lag
        }
        self._iceberg = [place for place in places.values() if place in bound.tables]
        clusters = {each.servers for each in self._inputs.values() if isinstance(each, KafkaInput)}
        self._groups = {} if group is None else {each: ConsumerGroup(group, text, clock) for each in clusters}

    @property
    def group(self) -> str | None:
        """The consumer group that shows the run's offsets; None: none does."""
        return next((each.name for each in self._groups.values()), None)

    @property
    def problem(self) -> str | None:
        """Why a consumer group does not show the newest offsets; None: it does, or there is none."""
        return next((each.problem for each in self._groups.values() if each.problem is not None), None)

    def __bool__(self) -> bool:
        """Whether a source of the flow says how much there is."""
        return bool(self._inputs or self._iceberg)

    def positions(self, home: CheckpointHome, batch: BatchId) -> Positions:
        """Return where the sources are after a micro-batch, as the checkpoint has it."""
        log, sources = read_offsets(home.directory, batch), self._bound.sources
        found = {place: offset_at(log, sources, place) for place in (*self._inputs, *self._iceberg)}
        return {place: offset for place, offset in found.items() if offset is not None}

    def look(self, positions: Positions) -> tuple[PartLag, ...]:
        """Return how much lies beyond the positions, and let consumer groups show them. A source that cannot be asked
        is left out."""
        self._show(positions)
        found: list[PartLag] = []
        for place, offset in positions.items():
            # What is wrong with a source ends the run elsewhere, with its error; here nothing is known then.
            with contextlib.suppress(Exception):
                if place in self._inputs:
                    found += self._inputs[place].behind(offset)
                else:
                    found += self._tables.behind(place, offset)
        return together(found)

    def _show(self, positions: Positions) -> None:
        for servers, group in self._groups.items():
            of = {
                place: each
                for place, each in self._inputs.items()
                if place in positions and isinstance(each, KafkaInput) and each.servers == servers
            }
            if of:
                # A topic that is read in several places has one offset in a group.
                first = next(iter(of.values()))
                first.show(group, lowest([each.offsets(positions[place]) for place, each in of.items()]))

    def close(self) -> None:
        """Release what the looks have opened."""
        for each in self._inputs.values():
            each.close()
