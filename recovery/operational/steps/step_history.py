"""How one key came to its value: every version of it that a directory still holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.ids import NO_BATCH
from recovery.base.reserved import EPOCH_STEP
from recovery.errors import ConfigurationError, CorruptPartitionError, StateNotFoundError
from recovery.operational import marks
from recovery.operational.ids import escape
from recovery.operational.steps.epoch_input import EpochInputs, SourceInput
from recovery.operational.targets import StepTarget, content_of, unknown_step
from recovery.planning.comparing import ABSENT, Comparison, Difference
from recovery.planning.values import ClosedEpoch
from recovery.storage.history import KeyVersion
from recovery.storage.snapshot import Snapshot
from recovery.storage.store import Store

WRITTEN, REMOVED, TIMED_OUT, HELD = "written", "removed", "timed out", "held"


@dataclass(frozen=True, slots=True)
class Version:
    """What an epoch did to a key.

    what: WRITTEN, REMOVED, or TIMED_OUT: removed after its timeout had passed; HELD: the value at the oldest held
    epoch, if nobody knows which epoch wrote it. closed: when and by whom; None if that is not held any more.
    first_batch: of the micro-batches that the epoch holds. changes: what differs from the version before; empty for
    the first one that is held.
    """

    epoch: int
    what: str
    value: Any
    timeout_ms: int | None
    closed: ClosedEpoch | None
    first_batch: int | None
    changes: tuple[Difference, ...]
    input: tuple[SourceInput, ...] | None = None
    """What the epoch read; None: nobody asked for it, or the epoch before is not held."""

    def as_json(self) -> dict[str, Any]:
        """Return the version as JSON."""
        closed = self.closed
        return {
            "epoch": self.epoch,
            "what": self.what,
            **({} if self.value is ABSENT else {"value": self.value}),
            "timeout_ms": self.timeout_ms,
            "closed_ms": None if closed is None else closed.closed_ms,
            "execution": None if closed is None else closed.execution.number,
            "first_batch": self.first_batch,
            "last_batch": None if closed is None else closed.batch_id,
            "changes": [each.as_json() for each in self.changes],
            **({} if self.input is None else {"input": [each.as_json() for each in self.input]}),
        }


@dataclass(frozen=True, slots=True)
class History:
    """The versions of a key, oldest first. oldest, newest: the epochs between which the directory holds everything.
    left_out: how many older versions there are besides."""

    step: str
    key: str
    oldest: int
    newest: int
    versions: tuple[Version, ...]
    left_out: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the history as JSON."""
        found = [version.as_json() for version in self.versions]
        return {"step": self.step, "key": self.key, "oldest_epoch": self.oldest, "newest_epoch": self.newest,
                "versions": found}  # fmt: skip


def history(
    directory: str | os.PathLike[str],
    step: str | None = None,
    key: str | None = None,
    *,
    hwm: str | None = None,
    environment: str = "",
    with_input: bool = False,
) -> History:
    """Return how one key of a step came to its value: every version of it that a recovery directory holds.

    Only reads; a run may be active. hwm: in place of step and key, a high-water mark of an environment; the versions
    are those that epochs moved, so there is none if `set_hwm` alone did. with_input: add what each epoch read.

    Raises the errors of planning and reading, ConfigurationError, and StateNotFoundError for a step or key without any
    version.
    """
    store = Store(local_path(directory))
    if hwm is not None and step is None and key is None:
        return mark_history(StepTarget(store, EPOCH_STEP, SystemClock()), environment, hwm, with_input=with_input)
    if hwm is not None or step is None or key is None:
        raise ConfigurationError(
            "it needs a key of a step, or a mark", cause="", remedy="Give either step and key, or hwm."
        )
    return key_history(StepTarget(store, step, SystemClock()), step, key, with_input=with_input)


def key_history(
    target: StepTarget,
    step: str,
    key: str,
    *,
    with_input: bool = False,
    whole: bool = True,
    most_bytes: int | None = None,
) -> History:
    """Return every version of a key that a directory holds. Only reads; a run may be active. with_input: add what each
    epoch read. whole: also check that the key's partition has all rows of the step, which reads all keys there.
    most_bytes: only the newest versions, those whose values have so many bytes together; at least one.

    Raises the errors of planning and reading, and StateNotFoundError for a step or key without any version.
    """
    at = target.snapshot
    if whole and (unknown := unknown_step(target, step)) is not None:
        raise unknown
    if whole:
        at.check_all_there(step, key)
    newest = None if most_bytes is None else at.newest_versions(step, key, most_bytes)
    found = at.versions(step, key) if newest is None else newest.versions
    if not found:
        raise StateNotFoundError(
            f"step {step!r:.80} has no state of key {key!r:.200} in epochs {at.oldest} to {at.epoch}",
            path=target.location,
        )
    known = _history(at, step, key, found, content, with_input)
    # A run may have collected versions meanwhile.
    if newest is None or not newest.has_before or len(found) == 1:
        return known
    first = found[1].state.epoch
    # Left out: each value, and its removal where no other value followed.
    follows = [each.epoch for each in newest.left_out[1:]] + [first]
    left_out = sum(1 + (span.until != epoch) for span, epoch in zip(newest.left_out, follows, strict=True))
    return replace(known, versions=tuple(each for each in known.versions if each.epoch >= first), left_out=left_out)


def mark_history(target: StepTarget, environment: str, key: str, *, with_input: bool = False) -> History:
    """Return every version of a high-water mark that epochs of a directory moved; without versions if none did. Raises
    the errors of planning and reading."""
    name = f"{escape(environment)}/{key}"
    target.snapshot.check_all_there(EPOCH_STEP, name)
    found = target.snapshot.versions(EPOCH_STEP, name)
    return _history(target.snapshot, EPOCH_STEP, key, found, _mark_value, with_input)


def seen_history(at: Snapshot, step: str, key: str, seen: Sequence[tuple[int, Any]], *, with_input: bool) -> History:
    """Return the history of a key whose value is known at every held epoch, oldest first; ABSENT: it had none."""
    closed = {int(each.epoch): each for each in at.epochs}
    versions: list[Version] = []
    before = ABSENT
    for number, (epoch, value) in enumerate(seen):
        changes = [] if ABSENT in (before, value) else Comparison().differences(before, value)
        if changes or (value is ABSENT) != (before is ABSENT):
            held = not number and epoch > 1
            what = HELD if held else REMOVED if value is ABSENT else WRITTEN
            by = None if held else closed.get(epoch)
            versions.append(Version(epoch, what, value, None, by, _first(epoch, closed), tuple(changes)))
        before = value
    return _complete(at, step, key, versions, with_input)


def _history(
    at: Snapshot,
    step: str,
    key: str,
    found: Sequence[KeyVersion],
    value_of: Callable[[str | bytes], Any],
    with_input: bool,
) -> History:
    versions = _versions(found, {int(each.epoch): each for each in at.epochs}, value_of)
    return _complete(at, step, key, versions, with_input)


def _complete(at: Snapshot, step: str, key: str, versions: list[Version], with_input: bool) -> History:
    if with_input:
        inputs = EpochInputs(at)
        versions = [replace(each, input=inputs.of(each.epoch)) for each in versions]
    return History(step, key, at.oldest, at.epoch, tuple(versions))


def _mark_value(value: str | bytes) -> Any:
    try:
        return marks.checked_row(content(value))["value"]
    except ValueError as error:
        raise CorruptPartitionError(f"the mark of an epoch cannot be read: {error}") from None


def _versions(
    found: Sequence[KeyVersion], closed: Mapping[int, ClosedEpoch], value_of: Callable[[str | bytes], Any]
) -> list[Version]:
    versions: list[Version] = []

    def add(epoch: int, what: str, value: Any, timeout_ms: int | None) -> None:
        before = versions[-1].value if versions else ABSENT
        changes = () if not versions or ABSENT in (before, value) else Comparison().differences(before, value)
        versions.append(
            Version(epoch, what, value, timeout_ms, closed.get(epoch), _first(epoch, closed), tuple(changes))
        )

    for number, each in enumerate(found):
        add(each.state.epoch, WRITTEN, value_of(each.state.value), each.state.timeout_ms)
        replaced = number + 1 < len(found) and found[number + 1].state.epoch == each.until
        if each.until is not None and not replaced:
            ended = closed.get(each.until)
            due = each.state.timeout_ms
            timed_out = due is not None and ended is not None and due <= ended.closed_ms
            add(each.until, TIMED_OUT if timed_out else REMOVED, ABSENT, None)
    return versions


def _first(epoch: int, closed: Mapping[int, ClosedEpoch]) -> int | None:
    """Return the first micro-batch of an epoch; None if the epoch before is not held."""
    if epoch not in closed:
        return None
    if epoch == 1:
        return NO_BATCH + 1
    before = closed.get(epoch - 1)
    return None if before is None else before.batch_id + 1


def content(value: str | bytes) -> Any:
    """Return a stored value as JSON, or as its text."""
    return content_of(value if isinstance(value, str) else value.decode(errors="replace"))
