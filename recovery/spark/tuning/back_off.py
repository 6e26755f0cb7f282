"""The feedback controller of a tactic: it pauses the tactic after harm, for longer each time."""

from __future__ import annotations


class BackOff:
    """Counts the micro-batches for which a tactic pauses: twice as many each time, up to a limit."""

    def __init__(self, first: int, limit: int) -> None:
        """first: the number of micro-batches of the first pause. limit: of the longest."""
        self._first = first
        self._limit = limit
        self._next = first
        self._left = 0

    @property
    def is_paused(self) -> bool:
        """Whether the next micro-batch belongs to a pause."""
        return self._left > 0

    def count(self) -> bool:
        """Count a micro-batch; return whether it belongs to a pause."""
        if self._left == 0:
            return False
        self._left -= 1
        return True

    def pause(self) -> None:
        """Begin a pause with the next micro-batch."""
        self._left = self._next
        self._next = min(2 * self._next, self._limit)

    def reset(self) -> None:
        """Make the next pause as short as the first one."""
        self._next = self._first
