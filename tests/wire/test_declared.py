"""Declared calls: what arrives is what was declared, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from recovery.base.ids import BatchId, Epoch, Lease, PartitionIndex, StepId
from recovery.owner.documents import OwnedDocuments
from recovery.owner.runs import Connection
from recovery.storage.sqlite.store import FilePartitions
from recovery.wire.calls import ASKED, DRIVER, DocumentCalls, OwnerCalls, PartitionCalls, RowsAhead
from recovery.wire.declared import encode
from recovery.wire.frames import WireError
from recovery.wire.messages import TASK_CALLS, Rows, TaskCalls
from recovery.wire.task_calls import TaskConnection

LEASE = Lease(1, "one")
CUT = (Epoch(1), "one", BatchId(0))
CLOSING = [1, 0, 0, 0, 0, {"$files": {"a": "text", "b": b"bytes", "c": None}}, [], {}, False]

NOT_CALLS = {
    "no array": encode("check"),
    "no name": encode([]),
    "an unknown call": encode(("checks", LEASE)),
    "a method that is no call": encode(("__init__",)),
    "an argument too few": encode(("collect",)),
    "an argument too many": encode(("collect", 1, 2)),
    "an argument of another type": encode(("collect", "1")),
    "a value in rows sent ahead": encode(("give", 1, (0, DRIVER, "$files", [("a", 1, None)]))),
    "a value in a close": encode(("close", LEASE, [[*CLOSING[:5], {"$files": {"a": [1]}}, *CLOSING[6:]]])),
    "deep nesting": b"\x92\xa7collect" + b"\x91" * 100_000,
    "cut off": encode(("collect", 1))[:-1],
    "more than a call": encode(("collect", 1)) + b"\x00",
    "a call of a task": encode(("withdraw", "count", 0, [0], 0)),
}
"""Messages that ask for no call of a run, by what is wrong."""


@pytest.mark.parametrize("wrong", NOT_CALLS)
def test_a_message_that_is_no_call(wrong):
    with pytest.raises(WireError, match="a call that cannot be read"):
        ASKED.read_call(NOT_CALLS[wrong])


@pytest.mark.parametrize(
    "body", [encode(("describe",)), encode(("apply", "count", 0, [0])), encode(("due", 1, 0, [], 0))]
)
def test_a_message_that_is_no_call_of_a_task(body):
    with pytest.raises(WireError, match="a call that cannot be read"):
        TASK_CALLS.read_call(body)


@pytest.mark.parametrize(
    ("calls", "call", "given", "read"),
    [
        (ASKED, PartitionCalls.seal, (LEASE, BatchId(7), False), None),
        (ASKED, PartitionCalls.allow, ({StepId("a"): 1}.keys(),), (["a"],)),
        (ASKED, PartitionCalls.next_due_ms, (LEASE, frozenset({StepId("a")})), (LEASE, ["a"])),
        (ASKED, PartitionCalls.checkpoint, (), None),
        (ASKED, OwnerCalls.give, (1, RowsAhead(PartitionIndex(0), DRIVER, StepId("a"), [("k", b"v", None)])), None),
        (ASKED, DocumentCalls.documents, (["a/b"],), None),
        (TASK_CALLS, TaskCalls.read, (StepId("a"), BatchId(1), {0: ("k", "l")}), None),
        (TASK_CALLS, TaskCalls.rows, (Rows(StepId("a"), PartitionIndex(1), CUT),), None),
        (TASK_CALLS, TaskCalls.more, (), None),
    ],
)
def test_a_call_arrives_with_its_arguments(calls, call, given, read):
    """What an abstract type allows arrives as a list."""
    asked, body = calls.write_call(call, *given)
    verb, arguments = calls.read_call(body)
    assert verb == asked
    assert verb.name == call.__name__
    assert arguments == (given if read is None else read)


def test_arguments_are_given_by_position():
    """Named ones would be lost."""
    with pytest.raises(AssertionError, match="by position"):
        ASKED.write_call(OwnerCalls.end_restore, counts=True)


@pytest.mark.parametrize(
    ("calls", "name", "result"),
    [
        (ASKED, "few_states", [("a", 1)]),
        (ASKED, "states", [("a", "1", "text", None)]),
        (ASKED, "versions", [(("a", 1, "text", None), "2")]),
        (ASKED, "driver_rows", [("a", [b"x"])]),
        (ASKED, "describe", [{}]),
        (ASKED, "checkpoint", 1),
        (ASKED, "fold", [["a"]]),
        (ASKED, "next_due_ms", "1"),
        (TASK_CALLS, "gathered", 1),
        (TASK_CALLS, "due", {"a": []}),
    ],
)
def test_an_answer_of_another_type(calls, name, result):
    with pytest.raises(WireError, match=f"an answer to {name} that cannot be read"):
        calls.verb(name).decode(msgspec.msgpack.encode(result))


@pytest.mark.parametrize("value", ["text", b"bytes", None])
def test_values_are_texts_and_bytes(value):
    """Which msgspec cannot declare together."""
    assert ASKED.verb("driver_rows").decode(encode([("a", value)])) == [("a", value)]
    assert ASKED.verb("few_states").decode(encode([("a", 1, value, None)])) == [("a", 1, value, None)]


def test_rows_in_bulk_are_the_message_itself():
    verb = TASK_CALLS.verb("more")
    assert (verb.encode(b"rows"), verb.decode(b"rows")) == (b"rows", b"rows")


@pytest.mark.parametrize(
    ("protocol", "target"),
    [
        (PartitionCalls, FilePartitions), (DocumentCalls, OwnedDocuments), (OwnerCalls, Connection),
        (TaskCalls, TaskConnection),
    ],
)  # fmt: skip
def test_each_call_has_its_target(protocol, target):
    """A call that is declared is executed by the method of its name."""
    calls = TASK_CALLS if protocol is TaskCalls else ASKED
    for name in [name for name in vars(protocol) if not name.startswith("_")]:
        assert calls.verb(name).protocol is protocol
        assert callable(getattr(target, name))
