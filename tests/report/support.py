"""Directories with a history, made without Spark: what runs would have left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from recovery.planning.measures import Measure, summed
from tests.stores import STEP, Driver

STARTED_MS = 1_795_000_000_000


def clock(start_ms: int = STARTED_MS) -> Iterator[int]:
    """Moments ten seconds apart."""
    while True:
        yield start_ms
        start_ms += 10_000


def run_epochs(
    directory: Path,
    epochs: int,
    times: Iterator[int],
    *,
    resume_epoch: int | None = None,
    seed: int = 0,
    floor: int = 30,
) -> None:
    """One execution that closes epochs, and measures them as a run does. The newest `floor` epochs stay."""
    dice = random.Random(seed)
    with Driver(directory, (STEP, "sessions"), resume_epoch=resume_epoch, started_ms=next(times)) as run:
        number = run.execution.number
        run.store.record(Measure(execution=number, epoch=0, measured_ms=next(times), resume_s=0.4))
        batch = max((epoch.batch_id for d in run.plan.partitions for epoch in d.epochs), default=-1)
        for _ in range(epochs):
            batch += 1
            run.apply(batch, {f"k{dice.randrange(20)}": f'"{"v" * dice.randrange(1, 9 * (1 + run.epoch))}"'})
            run.apply(batch, {f"s{dice.randrange(5)}": "{}"}, step="sessions")
            at_ms = next(times)
            requests = run.requests(batch, closed_ms=at_ms, floor=max(0, run.epoch - floor))
            closed = run.store.close(run.lease, requests)
            slow = 1 + 9 * (dice.random() > 0.97)
            run.store.record(
                Measure(
                    execution=number,
                    epoch=run.epoch,
                    measured_ms=at_ms,
                    resume_s=0.4,
                    batch=batch,
                    batches=4,
                    batch_s=4 * dice.uniform(0.5, 0.9) * slow**0.5,
                    input_rows=dice.randrange(40_000, 60_000),
                    rows=dice.randrange(40_000, 60_000),
                    touched=dice.randrange(9_000, 12_000),
                    looked_up=12_000,
                    seam_s=dice.uniform(0.1, 0.2) * slow,
                    snapshot_s=dice.uniform(0.9, 1.4) * slow,
                    written=sum(each.written for each in closed),
                    written_bytes=dice.randrange(4_000_000, 5_000_000),
                    collect_s=dice.uniform(0.01, 0.05),
                    memory_driver_bytes=180_000_000,
                    memory_jvm_bytes=1_200_000_000,
                    memory_workers_bytes=dice.randrange(300_000_000, 340_000_000),
                    steps=summed(each.sizes for each in closed),
                )
            )
            run.epoch += 1


def long_history(directory: Path, executions: int, epochs: int, seed: int = 1) -> None:
    """Many executions; every fifth goes back over some epochs that are still held, some close nothing."""
    dice = random.Random(seed)
    times = clock()
    reached = 0
    for number in range(executions):
        resume = None
        if number % 5 == 4 and reached > 12:
            resume = reached + 1 - dice.randrange(4, 10)
            reached = resume - 1
        share = 0 if number % 7 == 6 else max(1, epochs // executions + dice.randrange(-6, 9))
        run_epochs(directory, share, times, resume_epoch=resume, seed=seed + number)
        reached += share
