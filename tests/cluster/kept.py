"""Partitions beside the driver, or at owners on hosts of their own: what a test of both asks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cluster.fleet import Fleet
from tests.cluster.support import Lab, Run, assert_exact, batches_in


class Kept:
    """Partitions beside the driver."""

    def __init__(self, lab: Lab, db: Path, fleet: Fleet | None = None) -> None:
        """fleet: the owners that have the partitions, with `db` as the directory of their runs."""
        self.lab = lab
        self.db = db
        self.fleet = fleet

    def run(self, target: str, *options: object, settings: Iterable[str] = (), **environment: str) -> Run:
        """Start a flow of tests/flows, which closes an epoch after each micro-batch."""
        owners = [] if self.fleet is None else self.fleet.options
        return self.lab.run(target, self.db, "-s", "0", "-b", "1h", *owners, *options, settings=settings, **environment)

    def batches(self) -> int:
        """The number of micro-batches that the next run goes on behind."""
        return batches_in(self.db) if self.fleet is None else self.fleet.done()

    def together(self) -> Path:
        """A directory with all partitions; ends the owners."""
        return self.db if self.fleet is None else self.fleet.together()

    def assert_exact(self, rows_per_batch: int, step: str = "counts") -> int:
        """See `support.assert_exact`; ends the owners."""
        return assert_exact(self.together(), rows_per_batch, step)
