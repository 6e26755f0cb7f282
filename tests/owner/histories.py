"""Runs without Spark over owners that are processes of their own, all of which die at any moment."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from recovery.owner.service import serve
from recovery.planning.resume import plan_resume
from recovery.replication import process as shipping
from recovery.storage.store import OwnerAccess, Store
from recovery.wire.calls import OwnerCalls
from recovery.wire.run_client import Owner
from tests.faults.minirun import CLOSE_POINTS, FOLD_POINTS, STARTS, child, die_at, run, states, totals, wait
from tests.owner.served import spread, token_file
from tests.stores import paths_of, problems, query

BATCHES = 8
DRIVER_POINTS = ["start.1", "hold.1", "start.2", "start.3", "start.4", "start.5", "close.1", "close.5"]
OWNER_POINTS = [
    *(point for point in CLOSE_POINTS if point not in DRIVER_POINTS), *FOLD_POINTS, "start.3.partition",
    "start.5.partition",
]  # fmt: skip
EXPECTED = {"OwnerUnreachableError", "DirectoryLockedError", "RewindRepeatedError"}
"""What ends a run whose owners die."""
PATIENCE_S = 30.0
UNHURRIED = {"owner_deadline": 30.0}
"""Settings of a run in which nobody dies, on a machine that may be busy."""
ENDS_S = 60.0
"""How long an owner may take to end."""


class ForkedOwner:
    """An owner service in a fork of this process, of one directory or of several."""

    def __init__(self, directories: Sequence[Path], token: Path) -> None:
        self.directories = directories
        self._log = directories[0].with_suffix(".log")
        self._token = token
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.pid = 0

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def addresses(self) -> list[str]:
        """The address of each directory."""
        several = len(self.directories) > 1
        return [f"{self.at}/{each.name}" if several else self.at for each in self.directories]

    def has_partitions(self) -> bool:
        return any(list(each.glob("part-*")) for each in self.directories)

    def said(self) -> str:
        return self._log.read_text()

    def start(self, crash_at: str = "", visit: int = 1) -> None:
        """Start it unless it runs; wait until it serves."""
        if self.running():
            return

        def work() -> None:
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            # Pytest may have put something else in the place of standard error.
            sys.stderr = os.fdopen(log, "w", buffering=1)
            faulthandler.register(signal.SIGUSR1, sys.stderr)
            die_at(crash_at, visit)
            serve(self.directories, self.at, token_file=self._token)

        self.pid = child(work)
        until_s = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            assert self.running(), self.said()
            assert time.monotonic() < until_s
            time.sleep(0.005)

    def running(self) -> bool:
        if self.pid and os.waitpid(self.pid, os.WNOHANG)[0]:
            self.pid = 0
        return bool(self.pid)

    def has_died(self) -> bool:
        """Whether the process, whose connections have ended, ends."""
        until_s = time.monotonic() + PATIENCE_S
        while self.running() and time.monotonic() < until_s:
            time.sleep(0.002)
        return not self.running()

    def end(self, number: int = signal.SIGKILL) -> None:
        """End it; one that does not end leaves its stacks."""
        if not self.running():
            return
        os.kill(self.pid, number)
        until_s = time.monotonic() + ENDS_S
        while self.running():
            if time.monotonic() > until_s:
                os.kill(self.pid, signal.SIGUSR1)
                time.sleep(1)
                os.kill(self.pid, signal.SIGKILL)
                wait(self.pid)
                self.pid = 0
                raise AssertionError(self.said())
            time.sleep(0.002)


class History:
    """One store over several places, and what happens to it. The driver's place comes first."""

    expected = EXPECTED

    def __init__(self, made: Path, count: int, seed: int, root: Path) -> None:
        self.seed = seed
        self.chance = random.Random(f"owners {seed}")
        self.count = count
        self.backup_interval = self.chance.choice([0, 3600])
        """Without one, epochs are logged and folded."""
        places = self.chance.randrange(3, 5)
        indexes: list[list[int]] = [[] for _ in range(places)]
        for index in range(count):
            self.chance.choice(indexes).append(index)
        self.places = spread(made, indexes)
        self.token = token_file(root)
        away = self.places[1:]
        # Of some histories, one process has all directories.
        groups = [away] if random.Random(f"together {seed}").random() < 0.5 else [[each] for each in away]
        self.owners = [ForkedOwner(each, self.token) for each in groups]
        self.report = root / "report.json"
        self.kills = self.moves = self.rewinds = self.runs = 0

    def addresses(self) -> list[str]:
        return [at for each in self.owners for at in each.addresses]

    def settings(self) -> dict:
        """Of a run."""
        owners = self.addresses()
        self.chance.shuffle(owners)
        return {
            "owners": tuple(owners),
            "token_file": self.token,
            "owner_deadline": 1.5,
            "backup_interval": self.backup_interval,
            "snapshot_interval": 0,
        }

    def start_run(self, point: str = "", visit: int = 1, run: Callable[..., object] = run, **settings) -> int:
        """Start a driver; return its process. It leaves the error that ends it in `report`. run: what it does."""
        self.runs += 1
        self.report.unlink(missing_ok=True)
        choices = self.chance.randrange(1 << 30)
        given = {**self.settings(), **settings}

        def work() -> None:
            if "owner_deadline" not in settings:
                # How long a run that ends waits for an owner that is dead.
                shipping.END_S = 3.0
            die_at(point, visit)
            try:
                run(self.places[0], self.seed, BATCHES, choices, **given)
            except BaseException as error:
                self.report.write_text(json.dumps([type(error).__name__, str(error)]))
                raise

        return child(work)

    def ended(self, code: int) -> None:
        """Check how a run ended: well, killed, or for a reason that is expected here."""
        if code == -signal.SIGKILL or code == 0:
            return
        name, text = json.loads(self.report.read_text())
        assert name in self.expected, text

    def begin_disturbed(self, *ways: str) -> tuple[str, ForkedOwner, int]:
        """Begin a run in which somebody may die in one of these ways: the way, the owner that it may be, the run."""
        settings = self.rewind() if self.chance.random() < 0.25 else {}
        what = self.chance.choice(ways)
        victim = self.chance.choice(self.owners)
        if what == "owner at a step":
            victim.end(signal.SIGTERM)
            victim.start(self.chance.choice(OWNER_POINTS), self.chance.randrange(1, 6))
        for each in self.owners:
            each.start()
        steps = (self.chance.choice(DRIVER_POINTS), self.chance.randrange(1, 4)) if what == "driver at a step" else ()
        return what, victim, self.start_run(*steps, **settings)

    def disturbed_run(self) -> None:
        """One run in which somebody may die."""
        what, victim, pid = self.begin_disturbed(
            "driver at a step", "driver", "owner at a step", "owner", "owner stopped"
        )
        if what in ("driver", "owner", "owner stopped"):
            time.sleep(self.chance.random() * 0.5)
        if what == "driver":
            os.kill(pid, signal.SIGKILL)
        elif what == "owner":
            victim.end()
        elif what == "owner stopped":
            victim.end(signal.SIGTERM)
        code = wait(pid)
        self.kills += code != 0
        self.ended(code)
        self.wait_until_free()

    def wait_until_free(self, owners: Sequence[ForkedOwner] | None = None) -> None:
        """Until the owners, or these, know that the driver is gone, which takes milliseconds."""
        until_s = time.monotonic() + PATIENCE_S
        for each in self.owners if owners is None else owners:
            while each.running():
                clients = self.clients(each.addresses)
                try:
                    with contextlib.suppress(Exception):
                        if not any(owner.ask(OwnerCalls.serving).holder for owner in clients):
                            break
                finally:
                    for owner in clients:
                        owner.release()
                assert time.monotonic() < until_s, each.said()
                time.sleep(0.005)

    def clients(self, addresses: Sequence[str]) -> list[Owner]:
        return OwnerAccess(tuple(addresses), self.token).connect(1.0)

    def rewind(self) -> dict:
        """Settings that go back to an epoch that is held; none if there is no plan."""
        for each in self.owners:
            each.start()
        places = Store(self.places[0], self.clients(self.addresses()))
        try:
            plan = plan_resume(places.found())
        finally:
            places.release()
        self.rewinds += 1
        return {"resume_after": self.chance.choice(list(plan.window))} if plan.snapshot is not None else {}

    def move(self) -> None:
        """Copy a partition to another place, and perhaps leave the old copy behind."""
        for each in self.owners:
            each.end(signal.SIGTERM)
        index = self.chance.randrange(self.count)
        newest = self.newest()[index]
        target = self.chance.choice(self.places) / newest.name
        if target == newest:
            return
        self.moves += 1
        for suffix in ("-wal", "-shm"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        # A copy while nobody has it open: with its log, if a process died.
        for suffix in ("", "-wal"):
            source = newest.with_name(newest.name + suffix)
            if source.exists():
                shutil.copyfile(source, target.with_name(target.name + suffix))
        if self.chance.random() < 0.6:
            for suffix in ("", "-wal", "-shm"):
                newest.with_name(newest.name + suffix).unlink(missing_ok=True)

    def newest(self) -> list[Path]:
        """The newest copy of each partition, found without the package."""
        found = []
        for index in range(self.count):
            copies = [path for place in self.places if (path := place / f"part-{index}.sqlite3").exists()]
            found.append(max(copies, key=age_of))
        return found

    def check_starts(self) -> None:
        """What was seen starts at one place."""
        assert len(set((self.places[0] / STARTS).read_text().split())) == 1

    def check(self, root: Path) -> None:
        """The state is that of a plain loop, and every file is sound."""
        for each in self.owners:
            each.end(signal.SIGTERM)
        together = root / "together"
        together.mkdir()
        for path in self.newest():
            for suffix in ("", "-wal"):
                if path.with_name(path.name + suffix).exists():
                    shutil.copyfile(path.with_name(path.name + suffix), together / (path.name + suffix))
        assert states(together) == totals(self.seed, BATCHES)
        assert problems(together) == []
        self.check_starts()
        assert len(paths_of(together)) == self.count


def age_of(path: Path) -> tuple[int, int]:
    [(execution,)] = query(path, "SELECT coalesce(max(ex_num), 0) FROM exs")
    [(epoch,)] = query(path, "SELECT coalesce(max(epoch), 0) FROM epochs")
    return execution, epoch


H = TypeVar("H", bound=History)


def play(kind: type[H], made: Path, count: int, seed: int, root: Path) -> H:
    """One history, to its end; checks it."""
    history = kind(made, count, seed, root)
    try:
        for _ in range(history.chance.randrange(2, 6)):
            history.disturbed_run()
            if history.chance.random() < 0.3:
                history.move()
        for each in history.owners:
            each.start()
        code = wait(history.start_run(**UNHURRIED))
        assert code == 0, history.report.read_text() if history.report.exists() else code
        history.check(root)
    except BaseException as error:
        error.add_note(f"seed {seed}, {count} partitions in {history.places}")
        raise
    finally:
        for each in history.owners:
            each.end()
    return history
