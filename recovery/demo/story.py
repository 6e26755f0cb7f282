"""The demo's story: run, kill, resume, append, continue, compare."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from recovery.demo.flights import add_plainly, read_flights
from recovery.demo.flow import Delays
from recovery.errors import FlowFailedError
from recovery.host.durable import open_own
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import init_partitions
from recovery.storage.scan import read_step, scan

PARTITIONS = 2
Say = Callable[[str], None]


class Story:
    """One performance of the story, in a directory of its own. `say` prints a line."""

    def __init__(self, directory: Path, say: Say) -> None:
        self._say = say
        self._input = directory / "flights.csv"
        self._partitions = directory / "db"
        self._started = time.monotonic()

    def tell(self) -> bool:
        """Run the story; returns whether the recovered state equals the plain computation."""
        flights = list(read_flights())
        half = len(flights) // 2
        self._chapter(f"{len(flights):,} real flights out of New York; the first {half:,} go into {self._input}")
        self._append(flights[:half])
        self._chapter(f"python -m recovery init {self._partitions} {PARTITIONS}")
        init_partitions(self._partitions, PARTITIONS)
        self._chapter("A stateful flow counts flights and delays per airplane, and closes an epoch every second")
        killed = self._run(kill=True)
        newest, held = self._newest()
        lost = killed > held
        where = "was done, but in no snapshot yet" if lost else f"is in the snapshot after epoch {newest}"
        self._chapter(f"kill -9 in the middle of {'an epoch' if lost else 'the run'}: micro-batch {killed} {where}")
        self._say(f"    the partitions hold epochs up to {newest}; everything later is gone, state and position alike")
        self._chapter("The same command again: it resumes from the last closed epoch, to the end of the input")
        self._run()
        self._chapter(f"The file grows: the other {len(flights) - half:,} flights are appended, and the flow continues")
        self._append(flights[half:])
        self._run()
        self._chapter("Is the state what a plain loop over all flights computes?")
        equal = self._compare(add_plainly(flights))
        self._say("")
        self._say(f"Done in {time.monotonic() - self._started:.0f} s. Look around:")
        for command in ("status", "plan", "verify"):
            self._say(f"    python -m recovery {command} {self._partitions}")
        return equal

    def _newest(self) -> tuple[int, int]:
        """Return the newest epoch that all partitions hold, and its last micro-batch."""
        plan = plan_resume(scan(self._partitions))
        return plan.resume_epoch - 1, -1 if plan.snapshot is None else plan.snapshot.batch_id

    def _chapter(self, title: str) -> None:
        self._say("")
        self._say(f"[{time.monotonic() - self._started:4.0f} s] {title}")

    def _append(self, flights: list[tuple[str, str, str]]) -> None:
        with os.fdopen(open_own(self._input, append=True), "a", encoding="utf-8") as file:
            file.writelines(f"{carrier},{tailnum},{delay}\n" for carrier, tailnum, delay in flights)

    def _run(self, *, kill: bool = False) -> int:
        """Run the flow in a separate process, showing its lines; returns the last micro-batch."""
        target = f"recovery.demo.flow:make({str(self._input)!r})"
        command = [sys.executable, "-m", "recovery", "run", target, "-r", str(self._partitions), "-s", "1s"]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        batch = -1
        try:
            for line, last, epochs in _progress(process):
                self._say(f"    {line}")
                batch = last
                if kill and epochs >= 2 and line.startswith("batch"):
                    process.send_signal(signal.SIGKILL)
                    break
        finally:
            if process.poll() is None:
                process.kill() if kill else process.terminate()
            process.communicate()
        if not kill and process.returncode != 0:
            raise FlowFailedError(f"the demo's run ended with exit code {process.returncode}")
        return batch

    def _compare(self, truth: dict[tuple[str, str], Delays]) -> bool:
        recovered = {
            tuple(msgspec.json.decode(key)): msgspec.json.decode(value, type=Delays)
            for key, value in read_step([f.path for f in scan(self._partitions)], "delays")
        }
        by_carrier: dict[str, list[Delays]] = defaultdict(lambda: [Delays(), Delays()])
        for side, states in enumerate((recovered, truth)):
            for (carrier, _), delays in states.items():
                total = by_carrier[carrier][side]
                total.flights += delays.flights
                total.minutes_late += delays.minutes_late
        self._say("    carrier   flights: recovered / plain     minutes late: recovered / plain")
        for carrier, (ours, plain) in sorted(by_carrier.items(), key=lambda item: -item[1][1].flights):
            mark = "✓" if ours == plain else "✗"
            self._say(
                f"    {carrier:8}{ours.flights:16,} / {plain.flights:<10,}"
                f"{ours.minutes_late:17,} / {plain.minutes_late:<10,} {mark}"
            )
        equal = recovered == truth
        verdict = "all equal" if equal else "THEY DIFFER"
        self._say(f"    {len(truth):,} airplanes compared one by one: {verdict}")
        return equal


def _progress(process: subprocess.Popen[str]) -> Iterator[tuple[str, int, int]]:
    """Yield the run's lines, each with the last finished micro-batch and the number of epochs closed so far."""
    batch, epochs = -1, 0
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.match(r"batch (\d+)", line):
            batch = int(match[1])
        epochs += line.startswith("epoch ")
        yield line.rstrip(), batch, epochs
