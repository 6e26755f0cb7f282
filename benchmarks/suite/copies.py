"""What a backup of one epoch costs when partitions hold many, and what a place costs that holds many backups.

Shipping: a run's replica ships an epoch that touches few keys, of partitions that hold 60, 600 and 3,000 epochs, in
the driver's directory, and at owners on this host.
Place: the same replica fills one place, and commands are measured when it holds 100, 1,000 and 10,000 backups. Each
command is measured in a process of its own, as `recovery` begins one. No Spark; the places are directories.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders.owners import address_of
from benchmarks.epoch_store import DIRECTORY, EpochStore, key, value
from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds
from recovery.base.wording import counted

PARTITIONS = 4
WINDOW = 60
"""Epochs that the partitions hold while a place is filled."""
SHIPPINGS = 50
"""Measured shippings of each window."""
SECOND_MS = 1_000
KEPT_S = 600
"""What the pruning leaves: the backups of so many seconds."""
QUICK = ("--keys", "500", "--held", "20", "40", "--owners", "0", "2", "--backups", "20", "40", "--repeat", "1")
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
        "--owners",
        type=int,
        nargs="+",
        default=[0, 1, 3],
        help="of the partitions; 0: the driver (default: %(default)s)",
    )
    parser.add_argument(
        "--backups", type=int, nargs="*", default=[100, 1_000, 10_000], help="at the place (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    sizes = {"keys": arguments.keys, "touched": arguments.touched}
    contenders = [
        Contender(
            f"{held:,} held epochs" + (f" at {counted(owners, 'owner')}" if owners else ""),
            environments.own_python(),
            f"{__name__}:measure_shipping",
            {**sizes, "held": held, "owners": owners},
        )
        for owners in arguments.owners
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
                    rows.append((f"{backups:,} backups", name, shown, table.NONE, table.NONE, table.NONE, state))
            continue
        cpu_s, manifest, changes, wire = (
            summary.middle(lambda run, what=what: run.answer[what])
            for what in ("seconds", "manifest", "changes", "wire")
        )
        shown = table.NONE if cpu_s is None else f"{cpu_s * 1000:,.1f} ms"
        stored = table.count(manifest), table.count(changes)
        rows.append((summary.contender, "ship", shown, *stored, table.count(wire) if wire else table.NONE, state))
    return Report(
        name="copies",
        headers=("what there is", "command", "CPU", "manifest bytes", "changes bytes", "wire bytes", "state"),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.keys:,} keys in {PARTITIONS} partitions, {arguments.touched:,} touched in each epoch, one "
            f"epoch a second. Shipping, of {SHIPPINGS} epochs: the processor time of all processes, the mean of the "
            "owners' and the median of the driver's; medians of stored bytes, compressed; the mean of the bytes on the "
            "wire, both ways. Commands: the processor time of a process of its own, with 0.2 to 0.3 s to start; "
            f"`next follow` has nothing to fetch, and `prune` keeps the last {KEPT_S} s of backups."
        ],
    )


class Owners:
    """Processes that serve the partitions of `DIRECTORY`, each about as many, through links."""

    def __init__(self, paths: Sequence[Path], count: int) -> None:
        from recovery.storage.store import OwnerAccess, Store

        token = Path("token").absolute()
        token.touch(0o600)
        token.write_text(secrets.token_hex())
        homes = [Path(f"owner-{number}") for number in range(count)]
        for number, path in enumerate(paths):
            home = homes[number % count]
            home.mkdir(exist_ok=True)
            (home / path.name).symlink_to(path.absolute())
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "recovery", "serve", str(home), "--at", ":0", "--token-file", str(token)],
                stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for home in homes
        ]  # fmt: skip
        self.driver = Path("driver")
        self.driver.mkdir()
        self.store = Store(self.driver, OwnerAccess(tuple(map(address_of, self._processes)), token).connect(10.0))

    def spent_s(self) -> float:
        """The processor time of all processes so far."""
        ticks = 0
        for process in self._processes:
            for pid in (process.pid, *children_of(process.pid)):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def wire_bytes(self) -> int:
        """The bytes on all connections so far, both ways."""
        from recovery.wire.calls import OwnerCalls

        facts = [owner.ask(OwnerCalls.serving).facts for owner in self.store.owners]
        return sum(each.received_bytes + each.sent_bytes for each in facts)

    def end(self) -> None:
        """End the processes."""
        self.store.release()
        for process in self._processes:
            process.terminate()
            process.communicate()


def children_of(pid: int) -> list[int]:
    """The processes that this one has started."""
    found = (each.read_text().split() for each in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for some in found for child in some]


class Replica:
    """A store whose epochs are shipped to the directory `backups`, a second after each other."""

    def __init__(self, arguments: dict[str, Any], held: int) -> None:
        from recovery.backup.spread import SpreadParts
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
        place = Path("backups").absolute()
        owners = arguments.get("owners", 0)
        self.owners = Owners(self._store.paths, owners) if owners else None
        self._shipper = Shipper(
            DIRECTORY if self.owners is None else self.owners.driver,
            DirectoryPlace(place),
            clock=clock,
            random_id=random_id,
            scratch=scratch,
            parts=None if self.owners is None else SpreadParts(self.owners.store, str(place)),
        )

    def step(self) -> None:
        """Close an epoch."""
        touched = self._chance.sample(range(self._arguments["keys"]), self._arguments["touched"])
        self._now_ms += SECOND_MS
        self._store.close({key(n): value(self._chance) for n in touched}, self._now_ms)

    def ship(self) -> tuple[float, int, int]:
        """Ship the newest epoch; return the processor time of this process, and the bytes of the manifest and of the
        objects."""
        began_s = time.process_time()
        made = self._shipper.ship().made
        spent_s = time.process_time() - began_s
        manifest = Path("backups", "manifests", f"{made.manifest.id}.json.gz")
        return spent_s, manifest.stat().st_size, made.stored_bytes

    def at_owners(self) -> tuple[float, int]:
        """The processor time of the owners and the bytes on the wire so far."""
        return (0.0, 0) if self.owners is None else (self.owners.spent_s(), self.owners.wire_bytes())

    def close(self) -> None:
        """Close the partitions."""
        if self.owners is not None:
            self.owners.end()
        self._store.release()


def measure_shipping(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that ships epochs of partitions that hold as many as `held` says."""
    with contextlib.closing(Replica(arguments, arguments["held"])) as replica:
        for _ in range(arguments["held"]):
            replica.step()
        # An owner's process that ships is started by the first shipping.
        replica.ship()
        before = replica.at_owners()
        samples = []
        for _ in range(SHIPPINGS):
            replica.step()
            samples.append(replica.ship())
        owners_s, wire = ((now - then) / SHIPPINGS for then, now in zip(before, replica.at_owners(), strict=True))
    seconds, manifest, changes = (median(values) for values in zip(*samples, strict=True))
    wrong = "" if len(list(Path("backups/manifests").iterdir())) == SHIPPINGS + 1 else "a shipping is missing"
    return {
        "versions": versions(),
        "seconds": seconds + owners_s,
        "manifest": manifest,
        "changes": changes,
        "wire": wire,
        "wrong": wrong,
    }


def measure_place(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child that fills a place, and runs commands on it at each number of backups."""
    spent: dict[str, dict[str, float]] = {}
    made = 0
    with contextlib.closing(Replica(arguments, WINDOW)) as replica:
        for backups in arguments["backups"]:
            for _ in range(backups - made):
                replica.step()
                replica.ship()
            made = backups
            spent[f"{backups}"] = dict(_commands(COMMANDS))
            subprocess.run(["cp", "-r", "backups", "pruned"], check=True)
            spent[f"{backups}"] |= _commands({PRUNE: ["backup", "--prune", "pruned", "--keep", f"{KEPT_S}s"]})
            for each in ("restored", "standby", "pruned"):
                subprocess.run(["rm", "-r", each], check=True)
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
