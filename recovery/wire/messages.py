"""Messages between clients and the owner, and errors as messages.

Messages before the proof are JSON, so that every later version can read them; all later messages are MessagePack.
Measured for a key and for a value of 20 bytes: 0.005 µs to write and 0.03 µs to read, one or two bytes more than the
text. Columns of Arrow take 0.03 and 0.03 µs, and four bytes more.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from recovery.base.ids import BatchId, PartitionIndex, StepId
from recovery.base.printable import one_line
from recovery.errors import RecoveryError, StorageError, error_named
from recovery.planning.resume import Cut
from recovery.storage.seam import BatchCount, Changes
from recovery.wire.declared import DeclaredCalls, encode, read
from recovery.wire.frames import MESSAGE_BYTES, VALUE_BYTES, WireError
from recovery.wire.proof import is_proof, proof

PROTOCOL = (4, 0)
"""Versions that differ in the first number do not understand each other."""
NAME = "recovery"
TASK = "task"
RUN = "run"
"""The role of who has the token: a run, or a command that looks."""
OWNER = "owner"
REFUSAL = "refusal"


class Hello(msgspec.Struct, frozen=True):
    """The client's first message. protocol: its version, first of all. package: the version of this package, which has
    to be the owner's for runs and looks. directory: the name of the one that is meant; empty: the owner's only one."""

    name: str
    protocol: tuple[int, int]
    role: str
    nonce: str
    package: str = ""
    directory: str = ""


class Challenge(msgspec.Struct, frozen=True):
    """The owner's answer. incarnation: random; a new value after a restart."""

    name: str
    protocol: tuple[int, int]
    incarnation: str
    nonce: str


class Proof(msgspec.Struct, frozen=True):
    """number, id: the execution's lease, of a task. line: names the client's connection. A new connection of the same
    name ends the old one, and what is still waiting there. again: the client had such a connection before."""

    proof: str
    number: int
    id: str
    line: str
    again: bool = False


class Welcome(msgspec.Struct, frozen=True):
    """The owner's own proof."""

    proof: str


class Refusal(msgspec.Struct, frozen=True):
    """An error. `error` is the name of its class; empty if the client should try again later."""

    error: str
    found: str
    path: str | None = None
    cause: str | None = None
    remedy: str | None = None
    proof: str = ""
    """That the owner has refused, while the client still waits for the owner's proof."""


class Rows(msgspec.Struct, frozen=True, array_like=True):
    """Which rows a task reads: those of a step in one partition as of a cut; since: an older cut, to read what has
    changed."""

    step: StepId
    partition: PartitionIndex
    cut: Cut
    since: Cut | None = None


class TaskCalls(Protocol):
    """The calls of a task (see `recovery.wire.declared`): those of `TaskStore`, and those that read rows. States and
    changes in bulk are messages of their own."""

    def read(self, step: StepId, batch: BatchId, wanted: dict[PartitionIndex, tuple[str, ...]]) -> int:
        """Send the states in STATES messages, in the order of the keys, and return their number."""
        ...

    def apply(
        self, step: StepId, batch: BatchId, partitions: tuple[PartitionIndex, ...], count: BatchCount, attempt: int
    ) -> None:
        """Apply the chunks that follow the call, each in a CHANGES message, in the order of `partitions`, and END.
        attempt: as in `reach`."""
        ...

    def withdraw(self, step: StepId, batch: BatchId, partitions: tuple[PartitionIndex, ...], attempt: int) -> None:
        """See `TaskStore.withdraw`. attempt: as in `reach`."""
        ...

    def due(
        self, step: StepId, batch: BatchId, partitions: tuple[PartitionIndex, ...], up_to_ms: int
    ) -> dict[PartitionIndex, list[str]]:
        """See `TaskStore.due`."""
        ...

    def gathered(self, step: StepId, batch: BatchId, note: bool) -> bool:
        """See `TaskStore.gathered`."""
        ...

    def rows(self, wanted: Rows) -> bytes:
        """Begin to read rows, and return the first ones; empty at the end."""
        ...

    def more(self) -> bytes:
        """Return the next rows. Each is asked for, so a slow client fills no memory at either end."""
        ...


class End(msgspec.Struct, frozen=True, array_like=True):
    """The end of an apply. messages: their number for each partition. size_bytes: of all together."""

    messages: tuple[int, ...]
    size_bytes: int


TASK_CALLS: DeclaredCalls[TaskCalls] = DeclaredCalls(TaskCalls)
_ChangesBody = tuple[bool, int, tuple[str, ...]]

_end = msgspec.msgpack.Decoder(End)
_changes = msgspec.msgpack.Decoder(_ChangesBody)
_states = msgspec.msgpack.Decoder(list[str | None])
# Made before there are threads: msgspec is not safe while it first looks at a type.
_first = {kind: msgspec.json.Decoder(kind) for kind in (Hello, Challenge, Proof, Welcome, Refusal)}


def read_end(body: bytes) -> End:
    """Return the content of an END message."""
    found: End = read(_end.decode, body)
    return found


def read_changes(body: bytes) -> Changes:
    """Return the chunk in a CHANGES message."""
    timeouts, key_chars, packed = read(_changes.decode, body)
    if key_chars < 0 or (len(body) > MESSAGE_BYTES and len(packed) > 1):
        raise WireError(f"{len(packed)} changes in a message of {len(body)} bytes, with keys of {key_chars} characters")
    return Changes(packed, timeouts, key_chars)


def read_states(body: bytes) -> list[str | None]:
    """Return the states in a STATES message."""
    found: list[str | None] = read(_states.decode, body)
    return found


def read_first(body: bytes, kind: Any) -> Any:
    """Return the content of a message before the proof, or of a refusal."""
    return read(_first[kind].decode, body)


def write_first(message: Hello | Challenge | Proof | Welcome | Refusal) -> bytes:
    """Return a message of the same kinds."""
    return msgspec.json.encode(message)


def changes_messages(chunks: Iterable[Changes]) -> Iterator[bytes]:
    """Yield CHANGES messages of at most `MESSAGE_BYTES`; larger only with a single value."""
    for chunk in chunks:
        yield from _in_parts(chunk)


def _in_parts(chunk: Changes) -> Iterator[bytes]:
    packed = chunk.packed
    # Count characters first, to avoid encoding a value that is too large.
    if len(packed) < 2 or sum(map(len, packed)) < MESSAGE_BYTES:
        body = encode((chunk.timeouts, chunk.key_chars, packed))
        if len(body) <= MESSAGE_BYTES or len(packed) < 2:
            if len(body) > VALUE_BYTES:
                raise too_large(len(body))
            yield body
            return
    half = len(packed) // 2
    yield from _in_parts(chunk._replace(packed=packed[:half]))
    yield from _in_parts(chunk._replace(packed=packed[half:]))


def too_large(size_bytes: int, what: str = "state") -> StorageError:
    """Return the error for a state that no partition can hold, or a key that no message can."""
    return StorageError(
        f"a {what} of {size_bytes} bytes is too large",
        cause="The flow collects without a limit in one value.",
        remedy="Spread the state over several keys.",
    )


def as_refusal(error: RecoveryError) -> Refusal:
    """Return an error as a message."""
    return Refusal(type(error).__name__, error.found, error.path, error.cause, error.remedy)


Explain = Callable[[Exception], RecoveryError | None]
"""Returns the typed error behind an unexpected error; None: the unexpected error is a defect."""


def as_typed(error: Exception, explain: Explain, log: Callable[[str], None]) -> RecoveryError:
    """Return the error that an owner sends for one that ended a call: a typed error as it is, for an unexpected one
    what `explain` finds behind it. A defect is sent without its traceback, which `log` gets."""
    if isinstance(error, RecoveryError):
        return error
    behind = explain(error)
    if behind is not None:
        return behind
    log("".join(traceback.format_exception(error)).rstrip())
    return StorageError(
        f"the owner of the partitions failed: {type(error).__name__}: {one_line(str(error))}",
        cause="A defect of this program, or a lack of memory on the owner's host; its output has the traceback.",
        remedy="Run the same command again: nothing was half-written.",
    )


def proven(refusal: Refusal, key: bytes, facts: Sequence[str]) -> Refusal:
    """Return a refusal with the proof that the owner sends it, for a client that has proved that it has the key."""
    return msgspec.structs.replace(refusal, proof=proof(key, REFUSAL, *facts, *_said(refusal)))


def is_proven(refusal: Refusal, key: bytes, facts: Sequence[str]) -> bool:
    """Return whether a refusal comes from who has the key. facts: of the connection; empty before the challenge."""
    return bool(facts) and is_proof(refusal.proof, key, REFUSAL, *facts, *_said(refusal))


def _said(refusal: Refusal) -> tuple[str, ...]:
    return refusal.error, refusal.found, refusal.path or "", refusal.cause or "", refusal.remedy or ""


def as_error(refusal: Refusal, owner: str) -> RecoveryError:
    """Return the error in a message. The error's path begins with the owner's location; for an address that hosts
    share, the error's text does. The text names a class that is unknown here."""
    kind, found, path = error_named(refusal.error), refusal.found, refusal.path
    if kind is None:
        kind, found = StorageError, f"the owner at {owner} refused with {one_line(refusal.error)}: {found}"
    elif path and "://" in path:
        found = f"the owner at {owner}: {found}"
    if path and "://" not in path:
        path = f"{owner}{path if path.startswith('/') else f'/{path}'}"
    return kind(found, path=path, cause=refusal.cause, remedy=refusal.remedy)
