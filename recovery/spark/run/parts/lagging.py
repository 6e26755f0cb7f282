"""How far the sources of a run are ahead of its newest epoch: looks beside the run, a note, a consumer group."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from recovery.backup.note import note_input_lag
from recovery.base.clock import Clock
from recovery.base.ids import BatchId, Epoch
from recovery.checkpoint.home import CheckpointHome
from recovery.config import RecoveryConfig
from recovery.planning.lag import InputLag, LagHistory, PartLag
from recovery.planning.values import Execution
from recovery.spark.inputs.kafka_group import OFF
from recovery.spark.inputs.watch import InputWatch, Positions
from recovery.spark.run.parts.part import Part

EVERY_S = 30.0
"""The longest time between two looks, also while no epoch is closed."""
PAUSE_S = 2.0
SHARE = 100
"""A look is followed by a pause of PAUSE_S, or of SHARE times as long as the look took."""
END_S = 5.0
"""How long the end of a run waits for the last look."""


def group_of(config: RecoveryConfig, flow_id: str) -> str | None:
    """Return the consumer group that shows a flow's offsets; None: none does. A fork without output leaves the group to
    its origin."""
    if config.no_output or config.kafka_group == OFF:
        return None
    return config.kafka_group or f"recovery-{flow_id}"


class _Wanted(NamedTuple):
    epoch: Epoch
    positions: Positions


class LagLooks(Part):
    """Looks after each closed epoch, and from time to time, at how much the sources have beyond the newest epoch. A
    thread of its own looks: no micro-batch and no epoch waits for a source, and what a look lacks is not known."""

    name = "lag"

    def __init__(
        self,
        watch: InputWatch,
        home: CheckpointHome,
        newest: Callable[[], tuple[Epoch, BatchId]],
        execution: Execution,
        directory: Path,
        clock: Clock,
        seen: Callable[[InputLag], None],
    ) -> None:
        """newest: returns the newest closed epoch, and its last micro-batch. seen: called after each look."""
        self._watch = watch
        self._home = home
        self._newest = newest
        self._execution = execution
        self._directory = directory
        self._clock = clock
        self._seen = seen
        self._history = LagHistory()
        self._wanted: _Wanted | None = None
        self._looked: _Wanted | None = None
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.lag: InputLag | None = None
        """What the newest look has found; None: there was none."""
        self.parts: tuple[PartLag, ...] = ()
        """What that look has found, by the parts of the sources."""

    def started(self) -> None:
        """Look at the position that the run resumes at: after going back, the consumer group goes back as well."""
        if self._watch:
            if self._wanted is None:
                self.closed()
            self._thread = threading.Thread(target=self._run, name="input-lag", daemon=True)
            self._thread.start()

    def closed(self) -> None:
        """Look at the position of the newest epoch soon."""
        if self._watch:
            epoch, batch = self._newest()
            # What the run needs of its checkpoint, it reads with errors of its own.
            with contextlib.suppress(Exception):
                self._wanted = _Wanted(epoch, self._watch.positions(self._home, batch))
                self._wake.set()

    def end(self, error: BaseException | None) -> None:
        """Look a last time, unless sources do not answer; wait for that no longer than END_S."""
        self._over.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(END_S)

    def _run(self) -> None:
        with contextlib.closing(self._watch):
            while True:
                began_s, is_last = self._clock.elapsed_s(), self._over.is_set()
                self._wake.clear()
                answered = self._look()
                if is_last:
                    return
                took_s = self._clock.elapsed_s() - began_s
                self._over.wait(max(PAUSE_S, SHARE * took_s))
                if not self._over.is_set():
                    self._wake.wait(EVERY_S)
                if self._over.is_set() and (not answered or self._wanted is self._looked):
                    return

    def _look(self) -> bool:
        """Return whether all sources have answered."""
        wanted = self._wanted
        if wanted is None:
            return True
        parts = self._watch.look(wanted.positions)
        self._looked, self.parts = wanted, parts
        self.lag = InputLag(
            execution=self._execution.number,
            epoch=wanted.epoch,
            seen_ms=self._clock.wall_ms(),
            sources=self._history.add(parts, self._clock.elapsed_s()),
            group=self._watch.group,
            problem=self._watch.problem,
        )
        note_input_lag(self._directory, self.lag)
        with contextlib.suppress(Exception):
            self._seen(self.lag)
        return bool(parts or not wanted.positions)
