"""Rows of a step over a connection: whole, in order, a page at a time, and nothing left behind."""

from __future__ import annotations

import contextlib

import pytest

from recovery.base.ids import BatchId, Epoch, PartitionIndex, StepId
from recovery.errors import EpochNotHeldError, OwnerRefusedError, OwnerUnreachableError
from recovery.wire.frames import MESSAGE_BYTES, VALUE_BYTES
from recovery.wire.messages import Rows
from recovery.wire.rows import read_rows
from tests.waiting import wait_until
from tests.wire.serving import Serving, proxy

CUT = (Epoch(1), "x", BatchId(0))
CALL = Rows(StepId("s"), PartitionIndex(1), CUT)


class Pages:
    """A service of pages, which notes what is asked for and whether it was ended."""

    def __init__(self, *pages: bytes, error: Exception | None = None) -> None:
        self.pages, self.error = pages, error
        self.calls: list[Rows] = []
        self.sent = 0
        self.under_way = 0

    def rows(self, call: Rows):
        self.calls.append(call)
        self.under_way += 1
        try:
            for page in self.pages:
                self.sent += 1
                yield page
            if self.error is not None:
                raise self.error
        finally:
            self.under_way -= 1


@pytest.fixture
def serve(run, tmp_path):
    """Makes servers of pages."""
    with contextlib.ExitStack() as stack:

        def make(pages: Pages) -> Serving:
            made = Serving("", run.lease, run.count, tmp_path, service=pages)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize("sizes", [[], [1], [5, 3 << 20, 7], [MESSAGE_BYTES + 9, 1]])
def test_all_pages_in_order(serve, sizes):
    """Also a page that is larger than other messages may be; then the transaction has ended."""
    pages = Pages(*(bytes([65 + number]) * size for number, size in enumerate(sizes)))
    serving = serve(pages)
    assert list(read_rows(serving.parsed(), serving.key, CALL)) == list(pages.pages)
    assert pages.calls == [CALL]
    wait_until(lambda: not pages.under_way)


def test_a_reader_that_is_slow_or_stops(serve):
    """Nothing is sent ahead of it, and what it leaves is ended."""
    pages = Pages(b"a", b"b", b"c")
    serving = serve(pages)
    reading = read_rows(serving.parsed(), serving.key, CALL)
    assert next(reading) == b"a"
    assert (pages.sent, pages.under_way) == (1, 1)
    reading.close()
    wait_until(lambda: not pages.under_way)
    assert pages.sent == 1


def test_what_the_owner_refuses_with(serve):
    """Before the first page and after it: the same error, typed."""
    for first in ((), (b"a",)):
        serving = serve(Pages(*first, error=EpochNotHeldError("it does not hold epoch 1 any more", path="/x")))
        with pytest.raises(EpochNotHeldError, match="epoch 1 any more"):
            list(read_rows(serving.parsed(), serving.key, CALL))


def test_a_connection_that_breaks(serve):
    """Before the first page the call is made again; later it is an error, for Spark to run the task again."""
    pages = Pages(*(b"x" * 500_000 for _ in range(4)))
    serving = serve(pages)
    with proxy(serving.port, ("down", 200), times=2) as between:
        assert len(list(read_rows(serving.parsed(port=between.port), serving.key, CALL))) == 4
    with proxy(serving.port, ("down", 1_200_000)) as between:
        reading = read_rows(serving.parsed(port=between.port), serving.key, CALL)
        with pytest.raises(OwnerUnreachableError, match=r"was lost while .* read rows of step 's'"):
            list(reading)
    wait_until(lambda: not pages.under_way)


def test_who_may_not_read(serve):
    """A wrong key; and a partition that there is not."""
    serving = serve(Pages(b"a"))
    with pytest.raises(OwnerRefusedError):
        list(read_rows(serving.parsed(), b"k" * 32, CALL))
    with pytest.raises(OwnerRefusedError, match=r"partitions \[9\]"):
        list(read_rows(serving.parsed(), serving.key, Rows(StepId("s"), PartitionIndex(9), CUT)))


def test_the_owner_of_a_run_sends_no_rows(serving):
    """A long reading would take turns from its tasks."""
    with pytest.raises(OwnerRefusedError, match="does not send rows of step 's'"):
        list(read_rows(serving.parsed(), serving.key, CALL))


def test_a_page_has_a_limit(serve):
    """A page beyond what a connection carries is refused, with what to do."""

    class Huge(bytes):
        def __len__(self) -> int:
            return VALUE_BYTES + 1

    serving = serve(Pages(Huge(b"a")))
    with pytest.raises(Exception, match="too large"):
        list(read_rows(serving.parsed(), serving.key, CALL))
