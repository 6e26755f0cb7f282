"""Partitions that a command asks a run to move: staged while the run goes on, moved between two executions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from recovery.base.clock import Clock
from recovery.base.tracebacks import headline
from recovery.base.wording import counted
from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError, DirectoryLockedError, FlowFailedError, RecoveryError
from recovery.planning.moves import Move
from recovery.spark.run.between import Between
from recovery.spark.run.parts.part import Part
from recovery.storage.moving.mover import MoveResult
from recovery.storage.moving.task import MoveTask, to_targets
from recovery.storage.store import OwnerAccess
from recovery.wire.messages import as_refusal
from recovery.wire.move_calls import MoveCalls, MoveRequest
from recovery.wire.run_client import Owner

if TYPE_CHECKING:
    from recovery.spark.run.execution import FlowRun

_log = logging.getLogger("recovery")
ENDS_S = 60.0
"""How long the end waits for the thread that stages."""


class RunMoves(Part):
    """Serves the requests to move partitions that owners pass on to the run that holds them."""

    name = "moves"

    def __init__(self, run: FlowRun, go_on_after: Callable[[Between], bool]) -> None:
        """go_on_after: ends the execution, and starts another one; False: the run ends."""
        self._run = run
        self._go_on_after = go_on_after
        self._ends = threading.Event()
        self._seen: set[str] = set()
        self._serving = threading.Lock()
        """Held while a request is served; after a move that ends the execution, until that has ended."""
        self._threads: list[threading.Thread] = []

    def look(self) -> None:
        """Begin with the requests that have come. An owner's request is seen for a while after it was begun with."""
        for owner in self._run.prepared.places.owners:
            request = owner.request
            if request is not None and request.move_id not in self._seen and not self._ends.is_set():
                self._seen.add(request.move_id)
                answers = MoveAnswers(owner.again(), request)
                thread = threading.Thread(target=self._serve, args=(answers,), name="moves", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, answers: MoveAnswers) -> None:
        if not self._serving.acquire(blocking=False):
            answers.refuse(
                DirectoryLockedError(
                    "the run moves partitions for another command",
                    cause="Another command has asked another owner of the same run.",
                    remedy="Run the same command again when the other one has ended.",
                )
            )
            return
        if not self._goes_on_after(answers):
            self._serving.release()

    def _goes_on_after(self, answers: MoveAnswers) -> bool:
        """Serve a request; return whether the execution ends to move the partitions."""
        prepared, task = self._run.prepared, None
        try:
            if not self._run.goes_on:
                raise ConfigurationError(
                    f"the run of flow {prepared.flow_id!r} was started with `start`, and cannot start again by itself",
                    cause="Partitions move between two executions, and only `recovery run` and `recovery.run` begin "
                    "the next one.",
                    remedy="Stop the query, run the same command again, and start the flow again.",
                )
            targets = answers.request.targets
            access = OwnerAccess.of(prepared.config)
            owners = access.connect(prepared.config.owner_deadline_s)
            task = MoveTask(prepared.config.path, owners, tuple(dict.fromkeys(targets.values())))
            plan = to_targets({index: task.location(to) for index, to in targets.items()})
            moves = task.plan(plan, answers.request.move_id, lambda progress: answers.say(progress.step))
            answers.say("sending the partitions while the run goes on")
            task.stage(self._ends)
            between = MoveBetween(task, moves, answers, prepared.clock, prepared.flow_id)
            if moves and self._go_on_after(between):
                return True
            if moves:
                raise ConfigurationError("the run ends", remedy="Run the same command again.")
            answers.end(MoveResult((), 0, 0.0))
        except RecoveryError as error:
            answers.refuse(error)
        except Exception as error:
            answers.refuse(FlowFailedError(f"the move failed: {headline(error)}"))
            _log.exception("a move of partitions failed")
        if task is not None:
            task.release()
        return False

    def end(self, error: BaseException | None) -> None:
        """End the staging."""
        self._ends.set()
        until_s = time.monotonic() + ENDS_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until_s - time.monotonic()))


class MoveAnswers:
    """Reports to the owner at which a request was made, which the command asks. What an owner that is lost would have
    learned is lost with it."""

    def __init__(self, owner: Owner, request: MoveRequest) -> None:
        self.request = request
        self._owner = owner

    def say(self, text: str) -> None:
        """Report what the run does."""
        if text != self.request.said:
            self._report(msgspec.structs.replace(self.request, state="moving", said=text))

    def refuse(self, error: RecoveryError) -> None:
        """Report why nothing moved."""
        self._report(msgspec.structs.replace(self.request, state="refused", refusal=as_refusal(error)))
        self._owner.release()

    def end(self, moved: MoveResult) -> None:
        """Report what has moved."""
        if moved.error is not None:
            self.request = msgspec.structs.replace(self.request, moved=moved.indexes)
            self.refuse(moved.error)
            return
        self._report(
            msgspec.structs.replace(self.request, state="done", moved=moved.indexes, pause_s=round(moved.pause_s, 3))
        )
        self._owner.release()

    def _report(self, request: MoveRequest) -> None:
        self.request = request
        with contextlib.suppress(RecoveryError):
            self._owner.ask(MoveCalls.report_move, request)


class MoveBetween:
    """Completes staged moves between two executions: a `Between`."""

    def __init__(
        self, task: MoveTask, moves: tuple[Move, ...], answers: MoveAnswers, clock: Clock, flow_id: str
    ) -> None:
        self._task = task
        self._moves = moves
        self._answers = answers
        self._clock = clock
        self._flow_id = flow_id

    def __str__(self) -> str:
        return f"moving {counted(len(self._moves), 'partition')}: {', '.join(map(str, self._moves))}"

    def __call__(self, config: RecoveryConfig, stopping: threading.Event) -> RecoveryConfig:
        """Complete the moves. One that fails does not end the run: its partitions stay where they are."""
        self._answers.say("the run moves the partitions between two executions")
        try:
            moved = self._task.finish(self._clock, f"a move of partitions of flow {self._flow_id}")
        except RecoveryError as error:
            self._answers.refuse(error)
            return config
        else:
            self._answers.end(moved)
            # A drained owner is no spare either, should another one be lost.
            left = tuple(at for at in self._task.owners if at not in self._task.drained)
            return replace(config, owners=left)
        finally:
            self._task.release()

    def drop(self, error: BaseException | None) -> None:
        """Remove what is staged. After an error the request is refused, since the run may go on nevertheless, or be
        started again; after a signal the command that asked moves the partitions."""
        if error is not None:
            why = error.found if isinstance(error, RecoveryError) else headline(error)
            self._answers.refuse(
                ConfigurationError(
                    f"the execution ended before the partitions were moved: {why}",
                    cause="",
                    remedy="Run the same command again.",
                )
            )
        self._task.release()
