"""Turns of requests: a thread that does not return keeps neither its request nor the turns of others."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from recovery.errors import LookLimitError
from recovery.ui.api.turns import MOST_AWAY, RequestTurns
from recovery.ui.facts.flows import FlowSource, ShownFlow
from tests.waiting import wait_until


def test_a_flow_that_hangs_leaves_the_turns_to_others():
    """Requests of the flow get an error that names the directory, the flow gets no further threads, and it is served
    again once they return."""
    stuck, sound = (ShownFlow(name, FlowSource(Path(f"/data/{name}"))) for name in ("stuck", "sound"))
    ends, begun = threading.Event(), []

    def hang() -> str:
        begun.append(1)
        assert ends.wait(60)
        return "late"

    async def story() -> None:
        turns = RequestTurns(4, longest_s=0.2)
        first = await asyncio.gather(*(turns.run(stuck, False, hang) for _ in range(6)), return_exceptions=True)
        assert all(isinstance(each, LookLimitError) and each.path == "/data/stuck" for each in first)
        # One more may begin between the ends of the first two, which read at the same time.
        assert MOST_AWAY <= len(begun) <= MOST_AWAY + 1
        assert await turns.run(sound, False, lambda: "sound") == "sound"
        with pytest.raises(LookLimitError, match=r"[23] requests that read it have not returned"):
            await turns.run(stuck, False, lambda: "stuck")
        ends.set()
        await asyncio.to_thread(wait_until, lambda: not turns._away["stuck"])
        assert await turns.run(stuck, False, lambda: "again") == "again"

    asyncio.run(story())


def test_an_error_is_that_of_the_request():
    """Whatever the thread raises."""

    async def ask() -> None:
        await RequestTurns(1).run(None, True, lambda: int("x"))

    with pytest.raises(ValueError, match="invalid literal"):
        asyncio.run(ask())


def test_the_others_wait_for_their_turn():
    """No more than so many requests read at the same time."""
    inside, most, lock = 0, 0, threading.Lock()

    def read() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.01)
        with lock:
            inside -= 1

    async def crowd() -> None:
        turns = RequestTurns(3)
        await asyncio.gather(*(turns.run(None, True, read) for _ in range(12)))

    asyncio.run(crowd())
    assert most <= 3


def test_a_crowd_behind_a_slow_disk_is_refused(monkeypatch):
    """As many as may wait do, and the next gets an error that names the directory immediately; another flow is
    served, and so is the crowd's flow when some have left."""
    monkeypatch.setattr("recovery.ui.api.turns.MOST_WAITING", 8)
    slow, quick = (ShownFlow(name, FlowSource(Path(f"/data/{name}"))) for name in ("slow", "quick"))
    answers = threading.Event()

    def read() -> str:
        assert answers.wait(60)
        return "read"

    async def story() -> None:
        turns = RequestTurns(4, longest_s=60)
        crowd = [asyncio.create_task(turns.run(slow, False, read)) for _ in range(40)]
        while sum(each.done() for each in crowd) < 34:
            await asyncio.sleep(0.001)
        refused = [each.exception() for each in crowd if each.done()]
        assert all(isinstance(each, LookLimitError) and each.path == "/data/slow" for each in refused)
        assert {each.found for each in refused} == {"4 requests wait for it already"}
        assert await turns.run(quick, False, lambda: "quick") == "quick"
        answers.set()
        found = await asyncio.gather(*crowd, return_exceptions=True)
        assert found.count("read") == 6
        assert await turns.run(slow, False, read) == "read"

    asyncio.run(story())


def test_nobody_waits_longer_than_a_request_may_read():
    """Whose turn has not come by then is answered without it; the turns of those who left go to others."""
    flow = ShownFlow("slow", FlowSource(Path("/data/slow")))

    async def story() -> None:
        turns = RequestTurns(1, longest_s=60)
        ends = threading.Event()
        first = asyncio.create_task(turns.run(flow, True, lambda: ends.wait(60)))
        await asyncio.sleep(0)
        turns._longest_s = 0.05
        with pytest.raises(LookLimitError, match=r"others have read it for"):
            await turns.run(flow, True, lambda: True)
        ends.set()
        assert await first
        assert await turns.run(flow, True, lambda: True)

    asyncio.run(story())
