"""A recovery directory of Bytewax 0.20 or 0.21, taken over as new recovery partitions.

import.1  Read the descriptions of Bytewax's partitions; choose the epoch at which Bytewax would resume, and refuse a
          directory from which it would resume wrongly.
import.2  Read every state below that epoch, as plain values, and every position of a file source. Refuse what has no
          plain form. Until here nothing is written.
import.3  Beside DIR, make partitions and close epoch 1 with the states and positions.
import.4  Sync the files, and rename the directory to DIR.

A crash leaves the directory beside DIR, which the next import removes; DIR is whole or absent. The source is only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.base.clock import Clock, SystemClock
from recovery.base.faults import reach
from recovery.base.reserved import RESERVED_PREFIX
from recovery.base.wording import counted
from recovery.checkpoint.directories import CheckpointTransfer, Observer, ignore
from recovery.epochs.writer import StepKey
from recovery.errors import ConfigurationError, InconsistentPartitionsError, StateValueError, UnknownStepError, shown
from recovery.host.durable import files_below, sync
from recovery.host.new_directory import check_free, check_outside, new_directory
from recovery.importing.positions import TheirInput, is_position, rows_of, their_input
from recovery.operational.steps.step_edits import close_audited
from recovery.planning.bytewax import TheirPosition, Written, their_position
from recovery.planning.resume import plan_resume
from recovery.storage.bytewax import TheirFile, TheirSnapshot, their_files
from recovery.storage.initialize import fill_draft, new_store_id
from recovery.storage.seam import DriverRows, Edited
from recovery.storage.store import Store
from recovery.values.keys import encode_key
from recovery.values.pickles import NamedClassError
from recovery.values.unpickle import Unpickler

STATEFUL = ".stateful_batch"
"""How the id of every step with state ends that is made of Bytewax's other operators."""
BYTES_PER_EVENT = 1 << 20
DROPPED = ""
"""Stands for the new name of a step that is left out."""


@dataclass(frozen=True, slots=True)
class ImportedStep:
    """The state of one step. theirs: Bytewax's whole step id. discarded: keys that Bytewax remembers as discarded.
    converted: the number of keys with a type that JSON lacks, by its name."""

    theirs: str
    ours: str
    keys: int
    discarded: int
    converted: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A step that was dropped: the number of its keys, and one with its value."""

    theirs: str
    keys: int
    example: str


@dataclass(frozen=True, slots=True)
class ImportedBytewax:
    """What was taken over, or would be. epoch: Bytewax's newest epoch, whose state it is. unclear: keys whose snapshot
    was written in the second in which a later execution began: they are wrong if Bytewax was killed in that second.
    quiet: partitions of which the caller says that they are no older copies."""

    flow: str
    epoch: int
    partitions: int
    steps: tuple[ImportedStep, ...]
    sources: tuple[TheirInput, ...]
    left_out: tuple[LeftOut, ...]
    unclear: int
    quiet: tuple[str, ...]
    written: bool


def import_bytewax(
    source: str | Path,
    directory: str | Path,
    *,
    steps: Mapping[str, str],
    inputs: Mapping[str, str] | None = None,
    drop_steps: Collection[str] = (),
    allow: Collection[str] = (),
    partitions: int | None = None,
    flow: str | None = None,
    no_older_copies: bool = False,
    dry_run: bool = False,
    clock: Clock | None = None,
    observe: Observer = ignore,
) -> ImportedBytewax:
    """Take over a recovery directory of Bytewax 0.20 or 0.21 as new recovery partitions in `directory`.

    steps: the new step id for each of Bytewax's, which may be short: "count" for "words.count.….stateful_batch".
    inputs: for a file source, the path that the flow will read, if it is not the one in Bytewax's position. drop_steps:
    steps, sources and sinks to leave out. allow: classes, as module.Class, that pickled states may name. partitions:
    the number of partitions; None: as many as Bytewax has. flow: the flow's name; None: Bytewax's.
    no_older_copies: says that every file is the newest, where the files do not show it. dry_run: write nothing.

    All of `directory` appears or nothing; `source` is only read. Holds all states in memory. Raises
    InconsistentPartitionsError for a directory from which Bytewax would resume wrongly, UnknownStepError for state that
    nobody named, StateValueError for values that are not plain, and what `their_files` raises.
    """
    source, target, clock = Path(source), Path(directory), clock or SystemClock()
    check_outside(target, source)
    check_free(target)
    with their_files(source) as files:
        # import.1
        position = their_position([each.said for each in files], source, no_older_copies=no_older_copies)
        # import.2
        choices = _Choices(dict(steps), dict(inputs or {}), tuple(drop_steps), position.flow)
        taken = _read(files, position, choices, Unpickler(allow), observe)
    inputs_read = tuple(
        their_input(step, found, choices.given(choices.inputs, step), Path.cwd())
        for step, found in sorted(taken.positions.items())
    )
    flow_id, count = flow or position.flow, partitions or files[0].said.count
    rows: DriverRows = rows_of(inputs_read, clock.wall_ms()) if inputs_read else {}
    if not dry_run:
        with new_directory(target, "import") as staging:
            reach("import.3")
            fill_draft(staging, count, clock, new_store_id())
            facts = {"what": "import bytewax", "from": str(source), "keys": len(taken.states)}
            _close_first_epoch(staging, flow_id, taken.states, rows, facts, clock)
            reach("import.4")
    return ImportedBytewax(
        flow=flow_id,
        epoch=position.epoch - 1,
        partitions=count,
        steps=taken.imported(choices),
        sources=inputs_read,
        left_out=taken.left_out(),
        unclear=taken.unclear,
        quiet=tuple(path.name for path in position.quiet),
        written=not dry_run,
    )


def _close_first_epoch(
    directory: Path,
    flow_id: str,
    states: Mapping[StepKey, Edited],
    rows: DriverRows,
    facts: dict[str, Any],
    clock: Clock,
) -> None:
    """Close epoch 1 with the states and, if there are any, the rows of the input position. All files are synced."""
    with Store(directory).locked(clock, "import bytewax") as store:
        close_audited(
            store,
            plan_resume(store.found(), flow_id=flow_id),
            flow_id,
            facts,
            lambda writer: writer.close(states, batches=1 if rows else 0, driver_rows=rows),
            clock=clock,
            backup_interval_s=0,
        )
    for path in files_below(directory, directories=True):
        sync(path)


class _Choices:
    """The user's names for Bytewax's steps. A short name means a step id or all words of one before its operators'."""

    def __init__(self, steps: dict[str, str], inputs: dict[str, str], drop: tuple[str, ...], flow: str) -> None:
        self.steps, self.inputs, self.drop, self._flow = steps, inputs, drop, flow
        for name in steps.values():
            if not name or name.startswith(RESERVED_PREFIX) or "\0" in name:
                raise ConfigurationError(f"{name!r:.80} cannot be the name of a step", remedy="Name it like 'count'.")
        if len(set(steps.values())) < len(steps):
            raise ConfigurationError("two of Bytewax's steps cannot become one", remedy="Give each a name of its own.")
        self._ours: dict[str, str | None] = {}

    def ours(self, step: str) -> str | None:
        """Return the new name of a step; DROPPED if it is left out, None if the user named none. Called for every
        key."""
        if step not in self._ours:
            dropped = any(self.means(name, step) for name in self.drop)
            self._ours[step] = DROPPED if dropped else self.given(self.steps, step)
        return self._ours[step]

    def given(self, named: Mapping[str, str], step: str) -> str | None:
        """Return the user's choice for a step; None without one."""
        return next((value for name, value in named.items() if self.means(name, step)), None)

    def means(self, name: str, step: str) -> bool:
        """Return whether a name from the user means this step id."""
        return any(step == full or step.startswith(f"{full}.") for full in (name, f"{self._flow}.{name}"))

    def check_used(self, found: Collection[str]) -> None:
        """Raise UnknownStepError for a name that means no step, or several."""
        for name in (*self.steps, *self.inputs, *self.drop):
            meant = [step for step in found if self.means(name, step)]
            if not meant or (len(meant) > 1 and name not in self.drop):
                raise UnknownStepError(
                    f"{name!r:.80} means {'no step of Bytewax' if not meant else ' and '.join(meant[:3])}",
                    cause="The name is misspelt, or the step kept no state."
                    if not meant
                    else "A short name means every step whose id begins with it.",
                    remedy=f"Steps, sources and sinks with a snapshot: {', '.join(sorted(found)) or 'none'}",
                )


@dataclass(slots=True)
class _Taken:
    """What was read. examples: of steps that nobody named, or that are dropped, one key with its value."""

    states: dict[StepKey, Edited] = field(default_factory=dict)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    keys: Counter[str] = field(default_factory=Counter)
    discarded: Counter[str] = field(default_factory=Counter)
    converted: dict[str, Counter[str]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    unnamed: set[str] = field(default_factory=set)
    refused: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    abandoned: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    unclear: int = 0

    def imported(self, choices: _Choices) -> tuple[ImportedStep, ...]:
        """Return the steps that were taken over."""
        found = sorted(self.keys.keys() | self.discarded.keys())
        return tuple(
            ImportedStep(
                step,
                str(choices.ours(step)),
                self.keys[step],
                self.discarded[step],
                self.converted.get(step, Counter()),
            )
            for step in found
        )

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return the steps that were dropped."""
        return tuple(LeftOut(step, self.dropped[step], self.examples[step]) for step in sorted(self.dropped))


def _read(
    files: list[TheirFile], position: TheirPosition, choices: _Choices, unpickler: Unpickler, observe: Observer
) -> _Taken:
    taken, seen = _Taken(), set[str]()
    total, done, said = sum(each.size_bytes for each in files), 0, 0
    for file in files:
        for snapshot in file.snapshots(position.epoch):
            seen.add(snapshot.step)
            done += len(snapshot.pickled or b"") + len(snapshot.key)
            if done - said >= BYTES_PER_EVENT:
                said = done
                observe(CheckpointTransfer("reading", min(done, total), total))
            _take(taken, snapshot, file.path.name, position, choices, unpickler)
    choices.check_used(seen)
    if taken.unnamed:
        raise _unnamed(taken)
    if taken.refused:
        raise _refused(taken)
    if taken.abandoned:
        raise _abandoned(taken)
    return taken


def _take(
    taken: _Taken,
    snapshot: TheirSnapshot,
    file: str,
    position: TheirPosition,
    choices: _Choices,
    unpickler: Unpickler,
) -> None:
    step, key, pickled = snapshot.step, snapshot.key, snapshot.pickled
    ours = choices.ours(step)
    if ours == DROPPED:
        taken.dropped[step] += 1
        if step not in taken.examples:
            taken.examples[step] = _example(snapshot, unpickler)
        return
    if ours is None and not _is_file_source(snapshot, unpickler):
        if step not in taken.unnamed:
            taken.unnamed.add(step)
            taken.examples[step] = _example(snapshot, unpickler)
        return
    written = position.written(snapshot.epoch, snapshot.created)
    if written is Written.ABANDONED:
        taken.abandoned.setdefault((file, step), []).append(key)
    taken.unclear += written is Written.UNCLEAR
    if ours is None:
        assert pickled is not None, "a position that is not there is no position"
        taken.positions.setdefault(step, {})[key] = unpickler.value(pickled)
    elif pickled is None:
        taken.discarded[step] += 1
    else:
        try:
            text, others = unpickler.text(pickled)
        except ValueError as error:
            why = error.name if isinstance(error, NamedClassError) else str(error)
            taken.refused.setdefault((step, why), []).append(key)
            return
        taken.keys[step] += 1
        taken.converted.setdefault(step, Counter()).update(others)
        taken.states[ours, encode_key(key)] = (text, None)


def _is_file_source(snapshot: TheirSnapshot, unpickler: Unpickler) -> bool:
    value = _value(snapshot, unpickler)
    return not snapshot.step.endswith(STATEFUL) and is_position(snapshot.key, value)


def _value(snapshot: TheirSnapshot, unpickler: Unpickler) -> Any:
    try:
        return None if snapshot.pickled is None else unpickler.value(snapshot.pickled)
    except ValueError as error:
        return f"({error})"


def _example(snapshot: TheirSnapshot, unpickler: Unpickler) -> str:
    return f"{shown(snapshot.key)}: {shown(_value(snapshot, unpickler))}"


def _unnamed(taken: _Taken) -> UnknownStepError:
    lines = [f"{step}, for example {taken.examples[step]}" for step in sorted(taken.unnamed)]
    # Steps made of Bytewax's own operators have state; of others it may be either.
    state = [step for step in sorted(taken.unnamed) if step.endswith(STATEFUL)] or sorted(taken.unnamed)
    other = [step for step in sorted(taken.unnamed) if not step.endswith(STATEFUL)] or state
    return UnknownStepError(
        f"{counted(len(lines), 'step')} of Bytewax {'is' if len(lines) == 1 else 'are'} not named: {'; '.join(lines)}",
        cause="The step has state, or is a sink, or a source other than of files.",
        remedy=f"For state, give --rename-step {state[0]}=NAME. The position of a sink, or of a source other than of "
        f"files, cannot be taken over: leave it out with --drop-step {other[0]}, and set where the flow's source "
        "starts, such as Kafka's startingOffsets.",
    )


def _refused(taken: _Taken) -> StateValueError:
    lines = [
        f"{step}: {counted(len(keys), 'key')}, such as {keys[0]!r:.60}: {why if ' ' in why else f'needs {why}':.200}"
        for (step, why), keys in sorted(taken.refused.items())
    ]
    more = [f"and {counted(len(lines) - 20, 'other reason')}"] if len(lines) > 20 else []
    classes = sorted({why for _, why in taken.refused if " " not in why})
    allow = f"If you trust whoever wrote them, give {' '.join(f'--allow {name}' for name in classes[:5])}; " * bool(
        classes
    )
    return StateValueError(
        "\n  ".join(["values cannot be taken over; nothing was written", *lines[:20], *more]),
        cause="A pickle may run any code that it names, so only plain built-in types are read." if classes else "",
        remedy=f"{allow}{'or l' if classes else 'L'}eave a step out with --drop-step STEP.",
    )


def _abandoned(taken: _Taken) -> InconsistentPartitionsError:
    (file, step), keys = next(iter(sorted(taken.abandoned.items())))
    count = sum(map(len, taken.abandoned.values()))
    return InconsistentPartitionsError(
        f"{file} has {counted(count, 'snapshot')} of abandoned epochs, such as that of step {step} and key "
        f"{keys[0]!r:.80}",
        cause="Bytewax was killed after it wrote them and before it counted their epoch, or an older copy was put "
        "back. Either the next execution wrote them again, or Bytewax takes them for its own and counts twice: its "
        "files do not show which.",
        remedy="Check these keys. If they are right, let Bytewax go on to the end of its input, where it writes every "
        "key. Otherwise leave the step out with --drop-step and compute it again, or take over a copy from before the "
        "kill.",
    )
