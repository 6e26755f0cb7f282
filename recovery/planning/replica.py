"""How far the replica of a store is behind: pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from recovery.base.ids import NO_EPOCH, Epoch
from recovery.base.wording import age_s
from recovery.planning.values import ClosedEpoch


class Shipped(NamedTuple):
    """The newest epoch that a replica holds, and the number of the execution that closed it; 0: none."""

    epoch: Epoch
    execution: int


NOTHING = Shipped(NO_EPOCH, 0)


class ReplicaLag(NamedTuple):
    """How many closed epochs a replica lacks, and for how many seconds the oldest of them has been closed; see `age_s`.
    What a lost disk would cost, besides what is not closed."""

    epochs: int
    seconds: float


NO_LAG = ReplicaLag(0, 0.0)


class ReplicaState(NamedTuple):
    """What the replica of a run has, and what it lacks. shipped_bytes, shippings, failures: of this execution. problem:
    why the last attempt failed; None: it did not."""

    destination: str
    shipped: Shipped
    lag: ReplicaLag
    shipped_bytes: int
    shippings: int
    failures: int
    problem: str | None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "destination": self.destination,
            "epoch": self.shipped.epoch,
            "lag_epochs": self.lag.epochs,
            "lag_s": self.lag.seconds,
            "shipped_bytes": self.shipped_bytes,
            "shippings": self.shippings,
            "failures": self.failures,
            "problem": self.problem,
        }


def lag_of(closed: Iterable[ClosedEpoch], shipped: Shipped, now_ms: int) -> ReplicaLag:
    """Return how far a replica is behind the epochs that a partition holds.

    The number of an execution only grows, and within an execution the number of the epoch. So the order of both tells
    also after a rewind what was closed later. Epochs that the partition collected are not counted.
    """
    lacking = [
        each.closed_ms for each in closed if (each.execution.number, each.epoch) > (shipped.execution, shipped.epoch)
    ]
    return ReplicaLag(len(lacking), age_s(min(lacking), now_ms) if lacking else 0.0)


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


def pause_s(failures: int) -> float:
    """Return the seconds between two attempts after so many failures in a row: they double, up to a minute."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10)) if failures else 0.0
