"""A sink for contenders whose state cannot be read back: what changed, as CSV, of which the newest row a key counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def write_changes(batch: Any, batch_id: int) -> None:
    """A foreachBatch function: rows `key,n,total` into a directory of the micro-batch."""
    batch.write.mode("overwrite").csv(f"file:{Path('changes', str(batch_id)).absolute()}")


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
