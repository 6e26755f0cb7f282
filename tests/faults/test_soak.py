"""A long life of many executions, each killed after a few epochs: exact at the end, and no memory or file is lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from recovery.base.ids import BatchId
from recovery.storage.reach import reach
from recovery.storage.scan import scan
from recovery.storage.seam import BatchCount, Changes
from recovery.values.keys import partition_of
from tests.faults.minirun import STEP, MiniRun, child, states, wait
from tests.stores import problems

COUNT = 2
KEYS = 40_000
PER_BATCH = 5_000


@cache
def keys_of(index: int, batch: int) -> tuple[str, ...]:
    """The keys of a partition that micro-batch `batch` touches."""
    start = batch * 3_001 % KEYS
    touched = ((start + number) % KEYS for number in range(PER_BATCH))
    return tuple(sorted(f"key{n}" for n in touched if partition_of(f"key{n}", COUNT) == index))


def truth(batches: int) -> dict[str, str]:
    """The states after so many micro-batches."""
    found: dict[str, int] = {}
    for batch in range(batches):
        for number in range(PER_BATCH):
            key = f"key{(batch * 3_001 + number) % KEYS}"
            found[key] = (found.get(key, 0) * 3 + batch) % 1_000_003
    return {key: str(value) for key, value in found.items()}


class Soak(MiniRun):
    """A run whose micro-batches are large."""

    def task(self, index: int, batch: BatchId) -> None:
        keys = keys_of(index, batch)
        task, _ = reach(self.store.address(self.lease), keep=batch % 2 == 1)
        try:
            before = task.read(STEP, batch, {index: keys})[index]
            packed = (
                f"{(int(old or 0) * 3 + batch) % 1_000_003}\x1f{key}" for key, old in zip(keys, before, strict=True)
            )
            task.apply(STEP, batch, {index: [Changes(tuple(packed), False)]}, BatchCount(len(keys), len(keys)))
        finally:
            task.release()


def life(directory: Path, batches: int, epochs: int | None, samples: Path) -> None:
    """One execution: killed after so many epochs, or to the end, noting memory and files after each."""
    # What is killed has logged epochs, too.
    kept_s = 2 if epochs is None else random.Random(epochs).choice([0, 2])
    run = Soak(directory, 0, backup_interval=kept_s, discard_history=True)
    noted = []
    generator = random.Random(run.lease.id)
    while run.next_batch < batches:
        run.batch(generator)
        if epochs is not None and len(run.closed) >= epochs:
            os.kill(os.getpid(), signal.SIGKILL)
        if epochs is None:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
            noted.append((resident, len(list(Path("/proc/self/fd").iterdir()))))
            keys_of.cache_clear()
    run.finish()
    if epochs is None:
        samples.write_text(json.dumps(noted))


def soak(directory: Path, records: int, tmp_path: Path) -> None:
    """Two thirds of the records under kills, the last third in one run that is watched."""
    batches = max(12, records // PER_BATCH)
    generator = random.Random(records)
    kills, samples = 0, tmp_path / "samples.json"
    while next_batch(directory) < batches * 2 // 3:
        epochs = generator.randrange(2, 11)
        code = wait(child(lambda epochs=epochs: life(directory, batches, epochs, samples)), 300)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
    assert wait(child(lambda: life(directory, batches, None, samples)), 3_600) == 0
    assert states(directory) == truth(batches)
    assert problems(directory) == []
    size = sum(path.stat().st_size for path in directory.glob("part-*"))
    noted = json.loads(samples.read_text()) if samples.exists() else []
    print(f"{batches * PER_BATCH:,} records, {kills} kills, then {len(noted)} micro-batches in one run; {size:,} bytes")
    if len(noted) >= 60:
        third = len(noted) // 3
        early, late = noted[third : 2 * third], noted[2 * third :]
        print(f"resident kB and open files: {early[0]} after a third, {late[-1]} at the end")
        # In the middle of the samples: a single one may meet whatever has files open for a moment.
        assert median(files for _, files in late) <= median(files for _, files in early) + 2
        assert sum(kb for kb, _ in late) / len(late) < 1.1 * sum(kb for kb, _ in early) / len(early)


def next_batch(directory: Path) -> int:
    """How many micro-batches all partitions have."""
    newest = [file.description.newest for file in scan(directory)]
    return 0 if None in newest else min(each.batch_id for each in newest) + 1


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(120_000, id="short"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_SOAK_STATES", "10000000")), id="long", marks=pytest.mark.long),
    ],
)
def test_many_killed_executions(store_maker, tmp_path, records):
    """Killed every two to ten epochs, the state is exact; a run that is left alone needs no more of anything."""
    directory = store_maker(COUNT)
    soak(directory, records, tmp_path)
    shutil.rmtree(directory)
