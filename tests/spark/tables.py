"""What the tests of table formats share: a row of every type, runs that are killed at each step, a table as input."""

from __future__ import annotations

import datetime
import decimal
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from recovery import init_partitions
from recovery.storage.scan import scan
from tests.spark.support import ROOT, going_back, states, totals_step
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_sinks import running_totals

ALL_TYPES = [
    "key", "cast(value AS byte) AS b", "cast(value AS short) AS s", "cast(value AS int) AS i",
    "cast(value AS float) AS f", "cast(value AS double) AS d", "cast(value AS decimal(20, 3)) AS dec",
    "value > 1 AS yes", "cast(key AS binary) AS bin", "make_date(2024, 2, 29) AS day",
    "timestamp_micros(1700000000123456 + value) AS at", "make_timestamp_ntz(2024, 3, 31, 2, 30, 0.5) AS wall",
    "array(value, NULL) AS list", "map(key, value) AS pairs", "named_struct('x', value, 'y', key) AS inner",
    "CAST(NULL AS string) AS none",
]  # fmt: skip
ODD_KEY = "b c/d:e=%f é"
ROW_OF_ODD_KEY = {
    "key": ODD_KEY, "b": 2, "s": 2, "i": 2, "f": 2.0, "d": 2.0, "dec": decimal.Decimal("2.000"), "yes": True,
    "bin": ODD_KEY.encode(), "day": datetime.date(2024, 2, 29),
    "at": datetime.datetime(2023, 11, 14, 22, 13, 20, 123458, datetime.UTC),
    "wall": datetime.datetime.fromisoformat("2024-03-31T02:30:00.5"), "list": [2, None], "pairs": [(ODD_KEY, 2)],
    "inner": {"x": 2, "y": ODD_KEY}, "none": None,
}  # fmt: skip
"""The row of `ALL_TYPES` for the key `ODD_KEY` and the value 2."""


def points(kind: str) -> dict[str, list]:
    """Crash points of a sink's kind, and options of the run that is killed there."""
    return {
        "some": ["close.3:2", f"{kind}.3"],
        "all": [
            f"{kind}.1:2", f"{kind}.2:2", "close.1.prepared:2", "close.2.epochs:5", "close.2.committed:4", "close.3:2",
            "close.4:2", "close.4.published:2", "close.3", f"{kind}.3", f"{kind}.4", "start.3.output",
            (f"{kind}.3", "--resume-epoch", "3"), (f"{kind}.4", "--resume-epoch", "2"),
        ],
    }  # fmt: skip


def check_kills(feed, directory: Path, flow: str, kills: list, rows) -> None:
    """After kill -9 at each of these points each row is in the table once. rows: returns the table's rows, sorted."""
    for seed in range(3 * len(kills)):
        feed.add_random(seed, count=40)
    init_partitions(directory, 3)
    for each in [*kills, ""]:
        point, *options = [each] if isinstance(each, str) else each
        process = recovery_command(f"{ROOT / flow}", directory, "-s", "0", "-b", "1h", *options, crash_at=point)
        printed = finish(process)
        assert process.returncode == (-signal.SIGKILL if point else 0), f"{point}: {printed}"
    assert rows() == sorted(running_totals(feed.rows, 40))
    assert states(directory, "totals") == feed.totals()


def kill_at_any_moment(
    directory: Path, begin: Callable[..., subprocess.Popen], add: Callable[[random.Random], None], kills: int
) -> str:
    """Kill runs of the flow "totals", of which each fifth goes back first, then let one go back and end; returns what
    was done. begin: starts a run, with these options. add: adds input before a run."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    lot = random.Random(seed)
    killed = rewinds = 0
    while killed < kills:
        add(lot)
        newest = scan(directory)[0].description.newest_epoch or 0
        options = going_back(directory, "totals", lot.randrange(newest)) if killed % 5 == 4 and newest else []
        process = begin(*options)
        awaited, printed = lot.randrange(1, 7), []
        for line in process.stdout:
            printed.append(line)
            awaited -= line.startswith("epoch ") or "execution " in line
            if awaited <= 0:
                break
        time.sleep(lot.uniform(0, 0.3))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        printed.append(finish(process))
        # It may have come to the end of its input.
        assert process.returncode in (0, -signal.SIGKILL), "".join(printed)
        killed += process.returncode != 0
        rewinds += bool(options)
    process = begin(*going_back(directory, "totals", 1))
    printed = finish(process, 900)
    assert process.returncode == 0, printed
    return f"{killed} kills, {rewinds} rewinds and one at the end"


def whole_history(table: Path) -> int:
    """Check that no version is missing in the history of a Delta table; returns their number."""
    from deltalake import DeltaTable

    history = DeltaTable(str(table)).history()
    assert [each["version"] for each in history] == list(range(len(history)))[::-1]
    return len(history)


SIZE = 10


class Table:
    """A table that Spark writes and a flow reads, `SIZE` rows in one file with each commit."""

    def __init__(self, spark, name: str) -> None:
        """name: as SQL has it."""
        self.spark, self.name, self.rows = spark, name, []

    def add(self, commits: int = 1) -> None:
        for _ in range(commits):
            self.write(self.new_rows())

    def new_rows(self):
        """The next rows, as a frame."""
        numbers = range(len(self.rows), len(self.rows) + SIZE)
        self.rows += [(f"k{number % 3}", number) for number in numbers]
        rows = self.spark.range(numbers.start, numbers.stop, 1, 1)
        return rows.selectExpr("concat('k', id % 3) AS key", "id AS value")

    def sql(self, statement: str) -> list:
        return self.spark.sql(statement.format(self.name)).collect()

    def frame(self, **options):
        """The table as a stream, by one step."""
        return self.reader().options(**options).load(self.place).transform(totals_step())

    def totals(self) -> dict[str, list[int]]:
        """The state that counts each row once."""
        return counted(self.rows)


def counted(rows) -> dict[str, list[int]]:
    """Count and sum per key."""
    return {key: [n, total] for key, n, total in running_totals(rows, len(rows))}


def restored(directory: Path) -> Path:
    """A copy of a recovery directory, as of a run that ended before."""
    copy = directory.with_name(f"{directory.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(directory, copy))
