"""A sink for contenders whose state cannot be read back: what changed, as CSV, of which the newest row a key counts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import Spent, spent


class Changes:
    """Writes rows `key,n,total` into a directory of the micro-batch. It knows when the first one was written: what
    comes later is the steady state."""

    def __init__(self) -> None:
        self._first: tuple[float, Spent] | None = None

    def write(self, batch: Any, batch_id: int) -> None:
        """A foreachBatch function."""
        batch.write.mode("overwrite").csv(f"file:{Path('changes', str(batch_id)).absolute()}")
        if self._first is None:
            self._first = time.perf_counter(), spent()

    def steady(self) -> dict[str, float]:
        """Wall time and processor time since the first micro-batch was written; asked at the end of the query."""
        if self._first is None:
            raise RuntimeError("no micro-batch was written")
        began_s, before = self._first
        return {"steady_s": time.perf_counter() - began_s, "steady_cpu_s": (spent() - before).cpu_s}


def keep_newest(target: Path) -> None:
    """The row with the greatest count of every key, into `target`."""
    newest: dict[str, tuple[int, int]] = {}
    for path in Path("changes").glob("*/part-*.csv"):
        for line in path.read_text().splitlines():
            key, n, total = line.split(",")
            newest[key] = max(newest.get(key, (0, 0)), (int(n), int(total)))
    target.mkdir()
    with (target / "part-0.csv").open("w") as file:
        file.writelines(f"{key},{n},{total}\n" for key, (n, total) in newest.items())
