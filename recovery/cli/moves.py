"""`recovery owners move|drain|balance`."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any

import click
from msgspec.structs import replace

from recovery.base.clock import SystemClock
from recovery.base.ids import PartitionIndex
from recovery.base.intervals import format_interval
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.common import INTERVAL, Summaries, format_size, json_option, print_json, say, tell
from recovery.cli.dry_run import dry_run_option
from recovery.cli.option import ParsedType, option
from recovery.cli.owners import LOOK_S, owner_options
from recovery.errors import ConfigurationError, DirectoryLockedError, OwnerUnreachableError
from recovery.host.scratch import scratch_directory
from recovery.planning.copies import Location
from recovery.planning.moves import Move, plan_balance, plan_drain
from recovery.storage.moving.mover import MoveProgress
from recovery.storage.moving.task import MoveTask, Plan, to_targets
from recovery.storage.store import OwnerAccess
from recovery.wire.calls import OwnerCalls
from recovery.wire.messages import as_error, as_refusal
from recovery.wire.move_calls import MoveCalls, MoveRequest
from recovery.wire.run_client import Owner

_PART = re.compile(r"(?:part-)?(\d{1,9})(?:\.sqlite3)?", re.ASCII)
_WEIGHT = re.compile(r"(?P<owner>.+:\d+(?:/[\w.-]+)?)=(?P<weight>\d+(?:\.\d+)?)", re.ASCII)
LOOK_PAUSE_S = 0.2
ENDED_S = 5.0
"""How long no run holds the owner before the command takes it that the run has ended. Between two executions of a run
that is much less."""
MOVES = "Show the moves, and change nothing."


@click.group(cls=Summaries)
def owners() -> None:
    """Move partitions between owners, also while a run goes on.

    A run closes its epoch, moves the partitions, and goes on in the same session. Each partition is at its old owner or
    at its new one, whatever is killed when.
    """


def _moving(function: Callable[..., Any]) -> Callable[..., Any]:
    text = "Give up when the run has not answered, or has not begun to move, for this long."
    limit = option("--wait-limit", type=INTERVAL, default="10m", show_default=True, help=text)
    return dry_run_option(MOVES)(limit(owner_options(json_option(function))))


class _Weights(ParsedType[dict[str, float]]):
    name = "weights"

    def convert(self, value: Any, param: Any, ctx: Any) -> dict[str, float]:
        """Return the weights by owner."""
        if not isinstance(value, str):
            return dict(value)
        found: dict[str, float] = {}
        for text in value.split(","):
            match = _WEIGHT.fullmatch(text.strip())
            if match is None:
                self.fail(f"{text!r} is no weight of an owner, such as h1:7337=2", param, ctx)
            if found.setdefault(match["owner"], float(match["weight"])) != float(match["weight"]):
                self.fail(f"{match['owner']} has two weights", param, ctx)
        return found


def _parts(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> list[PartitionIndex]:
    found = []
    for value in values:
        match = _PART.fullmatch(value)
        if match is None:
            raise click.BadParameter(f"{value!r} is no partition, such as part-3")
        found.append(PartitionIndex(int(match[1])))
    return sorted(set(found))


@owners.command()
@click.argument("parts", metavar="PART...", nargs=-1, required=True, callback=_parts)
@option("--to", "target", metavar="HOST:PORT[/NAME]", required=True,
        help="The owner that gets the partitions. A run that was not given this owner finds it.")  # fmt: skip
@_moving
def move(parts: list[PartitionIndex], target: str, **given: Any) -> None:
    """Move partitions to an owner.

    PART is the number of a partition, or its name: 3, part-3 or part-3.sqlite3.
    """

    def plan(task: MoveTask, locations: Sequence[Location]) -> Sequence[Move]:
        return to_targets(dict.fromkeys(parts, task.location(target)))(locations)

    _do(plan, also=(target,), **given)


@owners.command()
@click.argument("owner", metavar="HOST:PORT[/NAME]")
@_moving
def drain(owner: str, **given: Any) -> None:
    """Move all partitions of an owner to the others.

    Each goes to the owner that has the fewest bytes. Then a run no longer uses the owner, and `recovery serve` may be
    stopped there.
    """

    def plan(task: MoveTask, locations: Sequence[Location]) -> Sequence[Move]:
        return plan_drain(locations, [task.location(owner)], weights={}, free_bytes=task.free_bytes())

    _do(plan, also=(owner,), **given)


@owners.command()
@option("--weights", type=_Weights(), default={}, metavar="HOST:PORT=N,...",
        help="How much of the bytes an owner gets, compared with the others; 0 drains it.",
        without="1 for each owner")  # fmt: skip
@_moving
def balance(weights: Mapping[str, float], **given: Any) -> None:
    """Move partitions so that owners have equally many bytes, or nearly."""

    def plan(task: MoveTask, locations: Sequence[Location]) -> Sequence[Move]:
        known: dict[str, float] = {}
        for at, weight in weights.items():
            if known.setdefault(task.location(at), weight) != weight:
                raise ConfigurationError(f"{at} has two weights", remedy="Give each owner one weight.")
        _check_named(known, locations)
        return plan_balance(locations, weights=known, free_bytes=task.free_bytes())

    _do(plan, also=tuple(weights), **given)


def _check_named(weights: Mapping[str, float], locations: Sequence[Location]) -> None:
    if not any(weights.get(each.name, 1.0) for each in locations):
        raise ConfigurationError("every owner has the weight 0", remedy="Give one of them another weight.")


def _do(
    plan: Callable[[MoveTask, Sequence[Location]], Sequence[Move]],
    *,
    also: Sequence[str],
    access: OwnerAccess,
    wait_limit: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Plan, and let the run that holds the owners move the partitions; without one, move them."""
    if not access.owners:
        raise click.UsageError("name the owners that have the partitions: --owner HOST:PORT")
    shown = _Shown(quiet=as_json)
    with scratch_directory("move") as nothing:
        task = MoveTask(nothing, access.connect(LOOK_S), also)
        try:
            move_id, began_s = token_hex(8), time.monotonic()
            chosen: Plan = lambda locations: plan(task, locations)  # noqa: E731
            moves = task.plan(chosen, move_id, shown.progress)
            facts = {"moves": [_facts(each) for each in moves], "dry_run": dry_run}
            if dry_run or not moves:
                _print_plan(moves, facts, as_json=as_json)
                return
            request = MoveRequest(move_id, {each.index: each.target for each in moves})
            answer = _asked(task.owners[moves[0].source], request, wait_limit, shown)
            if answer is None:
                answer = _moved(task, request, shown)
        finally:
            task.release()
    error = None if answer.refusal is None else as_error(answer.refusal, moves[0].source)
    done = [each for each in moves if each.index in answer.moved]
    seconds = round(time.monotonic() - began_s, 3)
    if as_json and error is None:
        print_json(
            {**facts, "moved": [_facts(each) for each in done], "locked_s": answer.pause_s, "elapsed_s": seconds}
        )
    for each in () if as_json else done:
        say(one_line(f"{each}: moved, {format_size(each.size_bytes)}"))
    if error is not None:
        if done:
            error.found = f"only {', '.join(f'part-{each.index}' for each in done)} moved: {error.found}"
        raise error
    if not as_json:
        say(f"moved {counted(len(done), 'partition')} in {seconds:.1f} s")


def _moved(task: MoveTask, request: MoveRequest, shown: _Shown) -> MoveRequest:
    """Move the partitions here, because no run holds the owners. Returns what a run would answer."""
    # A run that was asked and has ended may have moved some, and may have left what it staged under the first id.
    left = task.plan(to_targets(request.targets), token_hex(8), shown.progress)
    before = tuple(index for index in request.targets if index not in {each.index for each in left})
    if not left:
        return replace(request, state="done", moved=before)
    task.stage(threading.Event())
    moved = task.finish(SystemClock(), "a move of partitions")
    if moved.error is not None and not (moved.moved or before):
        raise moved.error
    return replace(
        request, state="done" if moved.error is None else "refused", moved=(*before, *moved.indexes),
        pause_s=round(moved.pause_s, 3), refusal=None if moved.error is None else as_refusal(moved.error),
    )  # fmt: skip


def _asked(owner: Owner, request: MoveRequest, limit_s: float, shown: _Shown) -> MoveRequest | None:
    """Ask the run that holds the owner, and wait for its answer; None: no run holds the owner. Raises OwnerRefusedError
    and others, and DirectoryLockedError after `limit_s` without an answer."""
    if not owner.ask(OwnerCalls.serving).holder:
        return None
    owner.ask(MoveCalls.request_move, request)
    shown.say(f"asked {owner.ask(OwnerCalls.serving).holder} to move {counted(len(request.targets), 'partition')}")
    heard_s = held_s = time.monotonic()
    said = ""
    while True:
        found = owner.ask(MoveCalls.move_request, request.move_id)
        if found is None:
            raise OwnerUnreachableError(
                f"the owner at {owner.location} does not know of the move any more",
                cause="The owner or the run was started again, or another command came after this one.",
                remedy="Run the same command again: what has moved stays, and the rest is moved.",
            )
        if not found.is_open:
            return found
        now_s = time.monotonic()
        if found.said != said:
            said, heard_s = found.said, now_s
            shown.say(said)
        if owner.ask(OwnerCalls.serving).holder:
            held_s = now_s
        elif now_s - held_s >= ENDED_S:
            shown.say("the run has ended without moving the partitions")
            return None
        if now_s - heard_s >= limit_s:
            raise DirectoryLockedError(
                f"the run has not answered for {format_interval(round(limit_s))}; it may still move the partitions",
                path=owner.location,
                cause="Its micro-batch takes long, or much has to be sent.",
                remedy="See where the partitions are (recovery plan DIR --owner …), or wait longer: --wait-limit",
            )
        time.sleep(LOOK_PAUSE_S)


class _Shown:
    """What the command shows while it works: a line for each step."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Show a line."""
        if text and not self._quiet:
            tell(one_line(text))

    def progress(self, progress: MoveProgress) -> None:
        """Show that a step begins."""
        if progress.step == "moved":
            return
        text = f"{progress.move}: {'sending' if progress.step == 'send' else 'sending what has changed'}"
        with self._lock:
            if text in self._seen:
                return
            self._seen.add(text)
        self.say(text)


def _facts(each: Move) -> dict[str, Any]:
    return {"partition": each.name, "from": each.source, "to": each.target, "bytes": each.size_bytes}


def _print_plan(moves: Sequence[Move], facts: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json({**facts, "moved": []})
        return
    for each in moves:
        say(one_line(f"{each}, {format_size(each.size_bytes)}"))
    if not moves:
        say("nothing to move")
