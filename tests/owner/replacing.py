"""Runs without Spark that replace owners by themselves: owners are killed, frozen and lost with their disks, others get
their partitions from the replica, and the stale owners come back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time

from recovery.backup import missing
from recovery.errors import OwnerUnreachableError
from recovery.wire import client, frames, line, server
from tests.faults.minirun import freeze, run
from tests.owner.histories import EXPECTED, ForkedOwner
from tests.owner.replicated import ReplicatedHistory

REPLACE_LOST = missing.replace_lost
ATTEMPTS = 6
"""How often a driver starts again in its process."""
SILENCE_S = 1.5
"""How long an owner of these tests may say nothing. Busy machines may let it seem lost; that is one more loss."""
AWAY_S = 0.4
"""How long an owner may be away before it is replaced."""
VICTIMS = ("killed", "killed at a step", "frozen", "disk lost", "driver", "driver at a step")
STEPS = ["missing.3", "missing.4", "missing.5", "hold.1", "start.2", "start.3"]
OWNER_STEPS = ["staged.2", "staged.3.aside", "staged.3", "start.3.partition", "close.2.committed", "close.2.snaps"]


def patient_for(seconds: float) -> None:
    """Count a connection as lost after this time, in this process and its children."""
    for module in (frames, line, server, client):
        if hasattr(module, "SILENCE_S"):
            module.SILENCE_S = seconds
    for module in (frames, server):
        module.PROGRESS_S = seconds / 4


class ReplacingHistory(ReplicatedHistory):
    """A store whose runs have a place to replace owners from."""

    expected = EXPECTED | {
        "BackupTargetError", "NoBackupError", "MissingPartitionsError", "NoPartitionsError",
        "InconsistentPartitionsError", "StorageError",
    }  # fmt: skip
    """Besides, nothing may have been shipped yet, and both of two owners may be lost. A disk that is lost after the run
    has looked at it, and before the replication has, ends the run; the next run replaces it."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.frozen: list[ForkedOwner] = []
        self.replaced = 0

    def settings(self) -> dict:
        return {**super().settings(), "replace_from": self.replica, "replace_after": AWAY_S, "takeover": False}

    def start_run(self, point: str = "", visit: int = 1, **settings) -> int:
        """Start a driver, which starts again in its process when it has lost an owner."""

        def noted(*arguments, **named):
            found = REPLACE_LOST(*arguments, **named)
            if found is not None:
                with (self.root / "replaced").open("a") as file:
                    file.write(f"{found.text()}\n")
            return found

        def again(*arguments, **named):
            # In the driver's process.
            missing.replace_lost = noted
            for _ in range(ATTEMPTS - 1):
                with contextlib.suppress(OwnerUnreachableError):
                    return run(*arguments, **named)
                named.pop("resume_after", None)
            return run(*arguments, **named)

        return super().start_run(point, visit, run=again, **settings)

    def disturbed_run(self) -> None:
        """One run, during which something happens to an owner or to the driver; after a while the owner is back."""
        self.shown.unlink(missing_ok=True)
        what, victim = self.chance.choice(VICTIMS), self.chance.choice(self.owners)
        moment_s, away_s = self.chance.random() * 0.7, self.chance.choice([0.1, 1.5, 30.0])
        self.wake()
        if what == "killed at a step":
            victim.end(signal.SIGTERM)
            victim.start(self.chance.choice(OWNER_STEPS), self.chance.randrange(1, 4))
        if self.chance.random() < 0.3:
            # The run starts without it.
            victim.end()
        else:
            victim.start()
        for each in self.owners:
            if each is not victim:
                each.start()
        steps = (self.chance.choice(STEPS), 1) if what == "driver at a step" else ()
        pid = self.start_run(*steps)
        time.sleep(moment_s)
        if what in ("killed", "disk lost"):
            victim.end()
            if what == "disk lost":
                self.lose_disk(victim)
        elif what == "frozen" and victim.running():
            freeze(victim.pid)
            self.frozen.append(victim)
        elif what == "driver":
            os.kill(pid, signal.SIGKILL)
        code = self.ended_with(pid, victim, time.monotonic() + away_s)
        self.kills += code != 0
        self.ended(code)
        self.wake()
        self.wait_until_free()
        self.check_shown()

    def ended_with(self, pid: int, victim: ForkedOwner, back_s: float) -> int:
        """Wait for a run; meanwhile the owner comes back. Return the run's exit code."""
        until_s = time.monotonic() + 120
        while time.monotonic() < until_s:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > back_s:
                self.wake()
                victim.start()
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise AssertionError("the run does not end")

    def wake(self) -> None:
        for each in self.frozen:
            if each.running():
                os.kill(each.pid, signal.SIGCONT)
        self.frozen.clear()

    def lose_disk(self, victim: ForkedOwner) -> None:
        """Lose the disk of an owner that is dead, unless nothing has been shipped: then nobody could get it back."""
        if self.newest_backup() is None:
            return
        self.losses += 1
        for each in victim.directories:
            shutil.rmtree(each)
            each.mkdir()

    def move(self) -> None:
        """Nobody moves files here."""

    def check(self, root) -> None:
        done = self.root / "replaced"
        self.replaced = len(done.read_text().splitlines()) if done.exists() else 0
        super().check(root)
