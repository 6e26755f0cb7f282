"""Runs without Spark over owners, that ship each closed epoch: who ships and what is shipped to dies at any moment, and
disks are lost and restored from the replica."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from recovery.backup.note import last_replica
from recovery.backup.repository import Listing, list_backups
from recovery.places.directory import DirectoryPlace
from recovery.replication.shipper import newest_of
from recovery.storage.restored import NAME as RESTORED
from recovery.storage.scan import scan
from tests.backup.support import bring_back
from tests.faults.minirun import STARTS, states, totals, wait
from tests.owner.histories import BATCHES, EXPECTED, History
from tests.stores import problems

OWN = "recovery.replication"
SHARE = "recovery.backup.share"
"""The modules of the processes that ship: the run's, and an owner's."""
VICTIMS = ["driver at a step", "owner at a step", "driver", "owner", "owner stopped", OWN, SHARE]
BEGINS_S = 5.0


class Pace:
    """Takes part in closing epochs: it makes them take a while, and notes those whose output may be shown."""

    def __init__(self, file: Path, pauses: Iterator[float]) -> None:
        self._file = file
        self._pauses = pauses

    def prepare(self, epoch: int, batch: int, floor: int) -> dict[str, dict[str, str]]:
        time.sleep(next(self._pauses))
        return {}

    def closed(self, batch: int) -> None:
        """Nothing to do."""

    def publish(self, epoch: int, batch: int, floor: int) -> None:
        self._file.write_text(f"{epoch} {batch}")


class ReplicatedHistory(History):
    """The same, with a replica."""

    expected = EXPECTED | {"BackupTargetError"}
    """With sync, a run cannot begin, nor end, while an owner is away."""

    def __init__(self, made: Path, count: int, seed: int, root: Path) -> None:
        super().__init__(made, count, seed, root)
        self.backup_interval = 3600
        self.root = root
        self.replica = root / "replica"
        self.shown = root / "shown"
        self.sync = self.chance.random() < 0.5
        self.shipped = self.ship_kills = self.losses = 0

    def settings(self) -> dict:
        settings = super().settings()
        pauses = iter([self.chance.random() * 0.15 for _ in range(BATCHES * 2)])
        return settings | {
            "replicate": self.replica,
            "replicate_sync": self.sync,
            "takeover": self.losses > 0,
            "contributors": (Pace(self.shown, pauses),),
        }

    def disturbed_run(self) -> None:
        """One run in which somebody may die, most likely while epochs are shipped."""
        self.shown.unlink(missing_ok=True)
        what, victim, pid = self.begin_disturbed(
            "driver at a step", "owner at a step", "driver", "owner", "owner stopped", OWN, SHARE
        )
        moment_s = self.chance.random() * 0.6
        if " at " not in what:
            parent, module = (pid, OWN) if what in ("driver", OWN) else (victim.pid, SHARE)
            child = began(pid, parent, module)
            time.sleep(moment_s)
            if what in (OWN, SHARE):
                self.ship_kills += child is not None
                kill(child)
            elif what == "driver":
                kill(pid)
            else:
                victim.end(signal.SIGKILL if what == "owner" else signal.SIGTERM)
        code = wait(pid)
        self.kills += code != 0
        self.ended(code)
        # A run outlives whoever ships.
        assert code == 0 or what not in (OWN, SHARE), self.report.read_text()
        self.wait_until_free()
        self.check_shown()
        self.check_said()
        if self.newest_backup() is not None and self.chance.random() < 0.4:
            self.lose()

    def listing(self) -> Listing:
        return list_backups(DirectoryPlace(self.replica))

    def newest_backup(self) -> int | None:
        newest = self.listing().newest if self.replica.exists() else None
        return None if newest is None else newest.epoch

    def check_shown(self) -> None:
        """With sync, every epoch that a run has shown is in the replica. Without, the last ones may be missing, also
        after a run that ended well: its last attempt to ship failed, as when an owner died just then."""
        if self.sync and self.shown.exists():
            epoch = int(self.shown.read_text().split()[0])
            assert (self.newest_backup() or 0) >= epoch, f"epoch {epoch} was shown, and is not in the replica"
            self.shipped += 1

    def check_said(self) -> None:
        """What the directory says of its replica, as `recovery status` shows it, is there: nobody who reads it counts
        on an epoch that a lost disk would cost."""
        said = last_replica(self.places[0])
        if said is not None and said.epoch:
            has = {newest_of(each) for each in self.listing().manifests}
            assert (said.epoch, said.execution) in has, f"{said} is not among {has}"
            self.shipped += not self.sync

    def lose(self) -> None:
        """Lose all disks, or one; in their place, put what the replica has."""
        for each in self.owners:
            each.end()
        self.losses += 1
        room = self.root / f"restored-{self.losses}"
        bring_back(self.replica, room, self.root)
        lost = self.chance.choice([self.places, self.places, [self.chance.choice(self.places)]])
        if all(list(place.glob("part-*")) == [] for place in self.places if place not in lost):
            lost = self.places
        gone = {path.name for place in lost for path in place.glob("part-*.sqlite3")}
        for place in lost:
            shutil.rmtree(place)
            place.mkdir()
        for name in sorted(gone):
            if not any((place / name).exists() for place in self.places):
                shutil.move(room / name, self.chance.choice(self.places) / name)
        if self.places[0] in lost:
            shutil.move(room / RESTORED, self.places[0] / RESTORED)
        if lost is self.places:
            # What was seen and not shipped may begin elsewhere now.
            (self.places[0] / STARTS).unlink(missing_ok=True)
        shutil.rmtree(room)

    def check_starts(self) -> None:
        """What was seen is noted on a disk that may have been lost."""
        if (self.places[0] / STARTS).exists():
            super().check_starts()

    def check(self, root: Path) -> None:
        """Besides, the replica has it all, and every backup in it that counts is sound and of its micro-batch."""
        super().check(root)
        listing = self.listing()
        assert listing.unreadable == ()
        assert listing.newest is not None
        for number, backup in enumerate([listing.newest, *self.chance.choices(listing.manifests, k=2)]):
            room = root / f"backup-{number}"
            bring_back(self.replica, room, root, epoch=backup.epoch)
            [newest] = {each.description.newest.batch_id if each.description.newest else -1 for each in scan(room)}
            assert states(room) == totals(self.seed, newest + 1), backup.id
            assert problems(room) == []
            assert number or newest + 1 == BATCHES


def kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def began(run: int, parent: int, module: str) -> int | None:
    """The process of this module below a process, when it has begun; None if the run ends before, or soon."""
    until_s = time.monotonic() + BEGINS_S
    while time.monotonic() < until_s and Path(f"/proc/{run}/stat").read_text().split()[2] != "Z":
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return int(pid)
        time.sleep(0.005)
    return None
