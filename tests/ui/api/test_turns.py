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
