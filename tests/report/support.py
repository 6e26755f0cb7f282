"""Directories with a history, made without Spark: what runs would have left."""

from __future__ import annotations

import random
from pathlib import Path

from recovery.planning.measures import Measure, summed
from tests.stores import Driver

STARTED_MS = 1_795_000_000_000


def run_epochs(
    directory: Path, epochs: int, *, resume_epoch: int | None = None, seed: int = 0, keys: int = 20, ends_at: int = 0
) -> None:
    """One execution that closes epochs, and measures them as a run does."""
    random_of = random.Random(seed)
    with Driver(directory, resume_epoch=resume_epoch) as run:
        number = run.execution.number
        base = Measure(execution=number, epoch=0, measured_ms=ends_at or STARTED_MS, resume_s=0.4)
        run.store.record(base)
        newest = max((epoch.batch_id for d in run.plan.partitions for epoch in d.epochs), default=-1)
        for index in range(epochs):
            batch = newest + 1 + index
            growth = 1 + run.epoch
            run.apply(batch, {f"k{random_of.randrange(keys)}": f'"{"v" * random_of.randrange(1, 9 * growth)}"'})
            run.apply(batch, {f"s{random_of.randrange(5)}": "{}"}, step="count")
            at_ms = STARTED_MS + 10_000 * (run.epoch + 40 * number)
            requests = run.requests(batch, closed_ms=at_ms, floor=max(0, run.epoch - 30))
            closed = run.store.close(run.lease, requests)
            slow = 1 + 9 * (random_of.random() > 0.97)
            run.store.record(
                Measure(
                    execution=number,
                    epoch=run.epoch,
                    measured_ms=at_ms,
                    resume_s=0.4,
                    batch=batch,
                    batches=4,
                    batch_s=4 * random_of.uniform(0.5, 0.9) * slow**0.5,
                    input_rows=random_of.randrange(40_000, 60_000),
                    rows=random_of.randrange(40_000, 60_000),
                    touched=random_of.randrange(9_000, 12_000),
                    looked_up=12_000,
                    seam_s=random_of.uniform(0.1, 0.2) * slow,
                    snapshot_s=random_of.uniform(0.9, 1.4) * slow,
                    written=sum(each.written for each in closed),
                    written_bytes=random_of.randrange(4_000_000, 5_000_000),
                    collect_s=random_of.uniform(0.01, 0.05),
                    memory_driver_bytes=180_000_000,
                    memory_jvm_bytes=1_200_000_000,
                    memory_workers_bytes=random_of.randrange(300_000_000, 340_000_000),
                    steps=summed(each.sizes for each in closed),
                )
            )
            run.epoch += 1


def long_history(directory: Path, executions: int, epochs: int, seed: int = 1) -> None:
    """Many executions; every fifth goes back over some epochs that are still held, some close nothing."""
    random_of = random.Random(seed)
    reached = 0
    for number in range(executions):
        resume = None
        if number % 5 == 4 and reached > 12:
            resume = reached + 1 - random_of.randrange(4, 10)
            reached = resume - 1
        share = 0 if number % 7 == 6 else epochs // executions + random_of.randrange(-2, 4)
        run_epochs(directory, share, resume_epoch=resume, seed=seed + number)
        reached += share
