"""Turns of requests: how many read at the same time, in threads that a disk which hangs cannot use up."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from recovery.errors import LookLimitError
from recovery.ui.facts.flows import ShownFlow

T = TypeVar("T")

LONGEST_S = 20.0
"""A request whose thread has not returned by then is answered without it. A request that reads ends after half of it
(`recovery.ui.facts.limits.REQUEST_S`), so that thread waits for something else."""
MOST_WAITING = 64
"""So many requests wait for their turn, of one flow half of them if there are others; the next one is refused. A slow
disk then keeps no connection of those who read something else."""
MOST_AWAY = 2
"""So many threads that have not returned, and a flow gets no further ones."""


class RequestTurns:
    """At most so many requests read at the same time; a bounded number of others waits for its turn, and not for long.
    For one event loop.

    A thread that waits for a disk which does not answer cannot be ended. Its request is answered, its turn goes to
    others, and its flow gets no more threads until some return.
    """

    def __init__(self, most: int, *, longest_s: float = LONGEST_S) -> None:
        """most: the requests that read at the same time, of one flow half of them if there are others."""
        self._most = most
        self._longest_s = longest_s
        self._all: asyncio.Semaphore | None = None
        self._of_flow: dict[str, asyncio.Semaphore] = {}
        self._away: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    async def run(self, flow: ShownFlow | None, is_alone: bool, read: Callable[[], T]) -> T:
        """Return or raise what `read` does, which runs in a thread. flow: which it reads; None: several. is_alone:
        whether there is no other flow. Raises LookLimitError if the thread does not return, or if others wait already:
        as many as may, or for as long as a request may read."""
        # The event loop has begun by now.
        self._all = self._all or asyncio.Semaphore(self._most)
        name = "" if flow is None else flow.name
        share = self._most if is_alone else max(1, self._most // 2)
        turns = (self._of_flow.setdefault(name, asyncio.Semaphore(share)), self._all)
        async with self._turn(flow, name, turns, MOST_WAITING if is_alone else MOST_WAITING // 2):
            return await self._returned(flow, name, read)

    @asynccontextmanager
    async def _turn(
        self, flow: ShownFlow | None, name: str, turns: Sequence[asyncio.Semaphore], most: int
    ) -> AsyncIterator[None]:
        """Wait for these turns, and give them back in the end. most: the requests of this flow that may wait."""
        waiting = self._waiting[name]
        if waiting >= most or self._waiting.total() >= MOST_WAITING:
            raise self._busy(flow, f"{waiting} requests wait for it already")
        self._waiting[name] += 1
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(self._longest_s):
                    for each in turns:
                        await held.enter_async_context(each)
                        self._check(flow, name)
            except TimeoutError:
                raise self._busy(flow, f"others have read it for {self._longest_s:.0f} s") from None
            finally:
                self._waiting[name] -= 1
            yield

    async def _returned(self, flow: ShownFlow | None, name: str, read: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def give(value: T | None, error: BaseException | None) -> None:
            if outcome.done():
                self._away[name] -= 1
            elif error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(value)  # type: ignore[arg-type]

        def work() -> None:
            value, error = None, None
            try:
                value = read()
            except BaseException as raised:
                error = raised
            # The server may have stopped.
            if not loop.is_closed():
                loop.call_soon_threadsafe(give, value, error)

        threading.Thread(target=work, name="request", daemon=True).start()
        try:
            await asyncio.wait({outcome}, timeout=self._longest_s)
        finally:
            # Also where the client has gone: its thread goes on.
            if outcome.cancel():
                self._away[name] += 1
        if outcome.cancelled():
            raise self._stuck(flow, f"a request that reads it has not returned for {self._longest_s:.0f} s")
        return await outcome

    def _check(self, flow: ShownFlow | None, name: str) -> None:
        if self._away[name] >= MOST_AWAY:
            raise self._stuck(flow, f"{self._away[name]} requests that read it have not returned")

    def _busy(self, flow: ShownFlow | None, found: str) -> LookLimitError:
        cause = "More is asked than its disk answers."
        return _limit(flow, found, cause, "Ask again in a second; close pages that nobody reads.")

    def _stuck(self, flow: ShownFlow | None, found: str) -> LookLimitError:
        cause = "The disk or the owner of the directory does not answer."
        remedy = "Look at the disk (dmesg, mount); what waits for it ends by itself once the disk answers."
        return _limit(flow, found, cause, remedy)


def _limit(flow: ShownFlow | None, found: str, cause: str, remedy: str) -> LookLimitError:
    path = None if flow is None else flow.source.directory
    return LookLimitError(found, path=path, cause=cause, remedy=remedy)
