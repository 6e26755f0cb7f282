"""What a backup of one epoch costs when partitions hold many, and what a place costs that holds many backups.

Shipping: a run's replica ships an epoch that touches few keys, of partitions that hold 60, 600 and 3,000 epochs.
Place: the same replica fills one place, and commands are measured when it holds 100, 1,000 and 10,000 backups. Each
command is measured in a process of its own, as `recovery` begins one. No Spark; the places are directories.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.epoch_store import DIRECTORY, EpochStore, key, value
from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

PARTITIONS = 4
WINDOW = 60
"""Epochs that the partitions hold while a place is filled."""
SHIPPINGS = 50
"""Measured shippings of each window."""
SECOND_MS = 1_000
KEPT_S = 600
"""What the pruning leaves: the backups of so many seconds."""
QUICK = ("--keys", "500", "--held", "20", "40", "--backups", "20", "40", "--repeat", "1")
COMMANDS = {
    "list": ["backup", "--list", "backups"],
    "restore --dry-run": ["restore", "backups", "new", "--dry-run"],
    "restore": ["restore", "backups", "restored"],
    "first follow": ["follow", "backups", "standby", "--once"],
    "next follow": ["follow", "backups", "standby", "--once"],
    "drill": ["drill", "backups"],
    "prune --dry-run": ["backup", "--prune", "backups", "--keep", f"{KEPT_S}s", "--dry-run"],
}
PRUNE = "prune"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=20_000, help="in the state (default: %(default)s)")
    parser.add_argument("--touched", type=int, default=100, help="of them, in each epoch (default: %(default)s)")
    parser.add_argument("--held", type=int, nargs="+", default=[60, 600, 3_000], help="epochs (default: %(default)s)")
    parser.add_argument(
        "--backups", type=int, nargs="*", default=[100, 1_000, 10_000], help="at the place (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    sizes = {"keys": arguments.keys, "touched": arguments.touched}
    contenders = [
        Contender(
            f"{held:,} held epochs", environments.own_python(), f"{__name__}:measure_shipping", {**sizes, "held": held}
        )
        for held in arguments.held
    ]
    if arguments.backups:
        given = {**sizes, "backups": sorted(arguments.backups)}
        contenders.append(Contender("place", environments.own_python(), f"{__name__}:measure_place", given))

    def check(_contender: Contender, answer: dict[str, Any], _directory: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(rounds.measure(contenders, check), arguments)


def report(measurements: Sequence[Measurement], arguments: argparse.Namespace) -> Report:
    """The table of what was measured."""
    rows = []
    for summary in table.summarise(measurements):
        state = "correct" if summary.problem is None else "failed"
        if summary.contender == "place":
            for backups in sorted(arguments.backups):
                for name in (*COMMANDS, PRUNE):
                    found = summary.middle(lambda run, at=(f"{backups}", name): run.answer["spent"][at[0]][at[1]])
                    shown = table.NONE if found is None else f"{found:,.2f} s"
                    rows.append((f"{backups:,} backups", name, shown, table.NONE, table.NONE, state))
            continue
        cpu_s, manifest, changes = (
            summary.middle(lambda run, what=what: run.answer[what]) for what in ("seconds", "manifest", "changes")
        )
        shown = table.NONE if cpu_s is None else f"{cpu_s * 1000:,.1f} ms"
        rows.append((summary.contender, "ship", shown, table.count(manifest), table.count(changes), state))
    return Report(
        name="copies",
        headers=("what there is", "command", "CPU", "manifest bytes", "changes bytes", "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys in {PARTITIONS} partitions, {arguments.touched:,} touched in each epoch, one "
            f"epoch a second. Shipping: medians of {SHIPPINGS} epochs; stored bytes, compressed. Commands: the "
            "processor time of a process of its own, with 0.2 to 0.3 s to start; `next follow` has nothing to fetch, "
            f"and `prune` keeps the last {KEPT_S} s of backups."
        ],
    )


class Replica:
    """A store whose epochs are shipped to the directory `backups`, a second after each other."""

    def __init__(self, arguments: dict[str, Any], held: int) -> None:
        from recovery.base.clock import SystemClock
        from recovery.places.directory import DirectoryPlace
        from recovery.replication.shipper import Shipper

        self._chance = random.Random(1)
        self._arguments = arguments
        self._store = EpochStore(PARTITIONS, noted=True, kept_epochs=held)
        self._store.fill(arguments["keys"], self._chance)
        self._now_ms = time.time_ns() // 1_000_000 - 20_000 * SECOND_MS
        ids = iter(range(1 << 32))
        scratch = Path("shipped")
        scratch.mkdir()

        def random_id() -> str:
            return f"{next(ids) * 2_654_435_761 % (1 << 32):08x}"

        clock = SystemClock()
        clock.wall_ms = lambda: self._now_ms  # type: ignore[method-assign]
        self._shipper = Shipper(
            DIRECTORY, DirectoryPlace(Path("backups")), clock=clock, random_id=random_id, scratch=scratch
        )

    def close(self) -> None:
        """Close an epoch."""
        touched = self._chance.sample(range(self._arguments["keys"]), self._arguments["touched"])
        self._now_ms += SECOND_MS
        self._store.close({key(n): value(self._chance) for n in touched}, self._now_ms)

    def ship(self) -> tuple[float, int, int]:
        """Ship the newest epoch; return the processor time, and the bytes of the manifest and of the objects."""
        began_s = time.process_time()
        made = self._shipper.ship().made
        spent_s = time.process_time() - began_s
        manifest = Path("backups", "manifests", f"{made.manifest.id}.json.gz")
        return spent_s, manifest.stat().st_size, made.stored_bytes

    def release(self) -> None:
        """Close the partitions."""
        self._store.release()


def measure_shipping(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that ships epochs of partitions that hold this many."""
    replica = Replica(arguments, arguments["held"])
    try:
        for _ in range(arguments["held"]):
            replica.close()
        replica.ship()
        samples = []
        for _ in range(SHIPPINGS):
            replica.close()
            samples.append(replica.ship())
    finally:
        replica.release()
    seconds, manifest, changes = (median(values) for values in zip(*samples, strict=True))
    wrong = "" if len(list(Path("backups/manifests").iterdir())) == SHIPPINGS + 1 else "a shipping is missing"
    return {"versions": versions(), "seconds": seconds, "manifest": manifest, "changes": changes, "wrong": wrong}


def measure_place(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that fills a place, and runs commands on it at each number of backups."""
    spent: dict[str, dict[str, float]] = {}
    replica = Replica(arguments, WINDOW)
    made = 0
    try:
        for backups in arguments["backups"]:
            for _ in range(backups - made):
                replica.close()
                replica.ship()
            made = backups
            spent[f"{backups}"] = dict(_commands(COMMANDS))
            subprocess.run(["cp", "-r", "backups", "pruned"], check=True)
            spent[f"{backups}"] |= _commands({PRUNE: ["backup", "--prune", "pruned", "--keep", f"{KEPT_S}s"]})
            for each in ("restored", "standby", "pruned"):
                subprocess.run(["rm", "-r", each], check=True)
    finally:
        replica.release()
    return {"versions": versions(), "seconds": spent[f"{made}"]["list"], "spent": spent, "wrong": ""}


def _commands(commands: dict[str, list[str]]) -> Iterator[tuple[str, float]]:
    """Yield the processor time of each command."""
    for name, words in commands.items():
        before = os.times()
        done = subprocess.run([sys.executable, "-m", "recovery", *words], capture_output=True, text=True, check=False)
        after = os.times()
        if done.returncode:
            raise RuntimeError(f"{name}: {done.returncode}: {json.dumps(done.stderr)}")
        yield name, after.children_user + after.children_system - before.children_user - before.children_system
