"""A day of backups, one a minute, beside a run that touches one key in a hundred each minute: what it stores and asks.

Whole copies and incremental backups, without Spark and by a simulated clock. Each minute closes an epoch, backs it up
to a directory as `backup --every 60s --keep …` does, and removes older backups by the rules. What the place is asked
is counted as the requests that a bucket would get. A tenth of the touched keys are new.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.epoch_store import DIRECTORY, EpochStore, key, rows_of, value
from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

PARTITIONS = 4
WINDOW_MINUTES = 10
BEGIN_MS = 1_800_000_000_000
MINUTE_MS = 60_000
LISTED = 1_000
"""The most names that a bucket lists in one request."""
QUICK = ("--keys", "2000", "--minutes", "20", "--retain", "10m", "--repeat", "1")
WHOLE, INCREMENTAL = "whole copies", "incremental"
ASKED = ("writes", "reads", "lists", "removals")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=20_000, help="in the state; 17 million are 2 GB (%(default)s)")
    parser.add_argument("--touched", type=int, help="keys in each minute (default: one in a hundred)")
    parser.add_argument("--minutes", type=int, default=120, help="how long it goes on (default: %(default)s)")
    parser.add_argument("--retain", action="append", metavar="RULE", help="as `backup --keep` (default: 1h)")
    parser.add_argument("--whole-minutes", type=int, help="measure whole copies for so long, and calculate the rest")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    arguments.retain = arguments.retain or ["1h"]
    arguments.touched = arguments.touched or max(10, arguments.keys // 100)
    whole_minutes = min(arguments.minutes, arguments.whole_minutes or arguments.minutes)
    minutes = {WHOLE: whole_minutes, INCREMENTAL: arguments.minutes}
    given = {"keys": arguments.keys, "touched": arguments.touched, "retain": arguments.retain}
    contenders = [
        Contender(
            name,
            environments.own_python(),
            f"{__name__}:measure",
            {"incremental": name == INCREMENTAL, "minutes": minutes[name], **given},
        )
        for name in (WHOLE, INCREMENTAL)
    ]

    def check(_contender: Contender, answer: dict[str, Any], _directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(rounds.measure(contenders, check), arguments)


def report(measurements: Sequence[Measurement], arguments: argparse.Namespace) -> Report:
    """The table of what was measured."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    rows = []
    for name, summary in summaries.items():
        minutes = _middle(summary, "minutes") or arguments.minutes
        is_part = minutes < arguments.minutes
        per_key, base = (_cpu_per_key(each, arguments.touched) for each in (summary, summaries[WHOLE]))
        rows.append(
            (
                f"{name}, calculated from {minutes:,.0f} minutes" if is_part else name,
                table.mebibytes(_of_all(summaries, name, "written_bytes", "minutes")),
                table.mebibytes(_of_all(summaries, name, "stored_bytes", "backups")),
                table.count(_of_all(summaries, name, "objects", "backups")),
                *(table.count(_of_all(summaries, name, asked, "minutes")) for asked in ASKED[:-1]),
                # In the first minutes nothing is old enough.
                table.NONE if is_part else table.count(_middle(summary, ASKED[-1])),
                table.NONE if per_key is None else f"{per_key * 1e6:,.1f}",
                table.ratio(per_key, base),
                "correct" if summary.problem is None else "failed",
            )
        )
    state = table.mebibytes(_middle(summaries[INCREMENTAL], "state_bytes"))
    return Report(
        name="day",
        headers=(
            "case", "MiB written", "MiB stored", "objects", *ASKED, "CPU µs a key", "× whole", "state",
        ),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys in {PARTITIONS} partitions, {state} MiB at the end, "
            f"{arguments.touched:,} touched in each of {arguments.minutes:,} minutes, a tenth of them new, with a "
            f"backup after each and `--keep {' --keep '.join(arguments.retain)}`. Stored and objects: what is there at "
            "the end; written and requests: of all minutes. Processor time of backing up and removing, per touched key."
        ],
    )  # fmt: skip


def _middle(summary: table.Summary, what: str) -> float | None:
    return summary.middle(lambda run: run.answer[what])


def _of_all(summaries: dict[str, table.Summary], name: str, what: str, each: str) -> float | None:
    """What all of the minutes, or the backups, come to: each has as much as each that was measured."""
    found, part = _middle(summaries[name], what), _middle(summaries[name], each)
    total = _middle(summaries[INCREMENTAL], each)
    return None if found is None or not part or total is None else found * total / part


def _cpu_per_key(summary: table.Summary, touched: int) -> float | None:
    minutes = _middle(summary, "minutes")
    return summary.seconds / (minutes * touched) if summary.seconds is not None and minutes else None


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child of one case."""

    from recovery.backup.catalog import Catalog
    from recovery.backup.make import make_backup
    from recovery.backup.repository import list_backups, prune
    from recovery.backup.restore import restore
    from recovery.backup.sources import open_source
    from recovery.base.clock import SystemClock
    from recovery.planning.backups import parse_keep

    class SimulatedClock(SystemClock):
        now_ms = BEGIN_MS

        def wall_ms(self) -> int:
            return self.now_ms

    clock, target, chance = SimulatedClock(), _counting_target(), random.Random(1)
    rules, catalog, ids = [parse_keep(each) for each in arguments["retain"]], Catalog(target), iter(range(1_000_000))
    keys, touched = arguments["keys"], arguments["touched"]
    store = EpochStore(PARTITIONS, noted=arguments["incremental"], kept_epochs=WINDOW_MINUTES)
    store.fill(keys, chance)

    def random_id() -> str:
        return f"{next(ids):08x}"

    seconds = 0.0
    try:
        # The first backup is whole for both, and not counted.
        make_backup(DIRECTORY, target, clock=clock, random_id=random_id, catalog=catalog)
        target.asked.clear()
        for number in range(arguments["minutes"]):
            clock.now_ms += MINUTE_MS
            changed = chance.sample(range(keys), touched - touched // 10)
            new = range(keys + number * (touched // 10), keys + (number + 1) * (touched // 10))
            store.close({key(n): value(chance) for n in (*changed, *new)}, clock.now_ms)
            began_s = time.process_time()
            make_backup(
                DIRECTORY, target, clock=clock, random_id=random_id, incremental=arguments["incremental"],
                catalog=catalog,
            )  # fmt: skip
            prune(target, rules, clock.now_ms, catalog)
            seconds += time.process_time() - began_s
    finally:
        store.release()
    asked = dict(target.asked)
    stored = [each for prefix in ("objects/", "manifests/") for each in target.entries(prefix)]
    done = restore(open_source(target, Path(), clock), Path("restored"), clock=clock, random_id=random_id)
    expected = keys + arguments["minutes"] * (touched // 10)
    return {
        "versions": versions(),
        "seconds": seconds,
        "minutes": arguments["minutes"],
        "backups": len(list_backups(target).manifests),
        "stored_bytes": sum(each.size_bytes for each in stored),
        "objects": len(stored),
        "state_bytes": sum(path.stat().st_size for path in store.paths),
        **{name: asked.get(name, 0) for name in ("written_bytes", *ASKED)},
        "wrong": "" if rows_of(done.paths) == expected else "the restored directory has other keys",
    }


def _counting_target() -> Any:
    from recovery.places.directory import DirectoryPlace
    from recovery.places.protocol import PlaceEntry

    class CountingTarget(DirectoryPlace):
        """A directory that counts what it is asked for."""

        def __init__(self) -> None:
            super().__init__(Path("backups"))
            self.asked: Counter[str] = Counter()
            self._lock = threading.Lock()

        def _count(self, what: str, number: int = 1) -> None:
            with self._lock:
                self.asked[what] += number

        def write(self, name: str, chunks: Iterable[bytes]) -> int:
            size = super().write(name, chunks)
            self._count("writes")
            self._count("written_bytes", size)
            return size

        def read(self, name: str) -> Iterator[bytes]:
            self._count("reads")
            return super().read(name)

        def read_range(self, name: str, offset: int, size: int) -> bytes:
            self._count("reads")
            return super().read_range(name, offset, size)

        def entries(self, prefix: str) -> list[PlaceEntry]:
            found = super().entries(prefix)
            self._count("lists", max(1, -(-len(found) // LISTED)))
            return found

        def delete(self, name: str) -> None:
            self._count("removals")
            super().delete(name)

    return CountingTarget()
