"""The demo's story: run, kill, resume, append, end, compare."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from recovery.demo.flights import add_plainly, read_flights
from recovery.demo.flow import Delays
from recovery.errors import FlowFailedError
from recovery.host.children import own_module
from recovery.host.durable import open_own
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import init_partitions
from recovery.storage.scan import read_step, scan

PARTITIONS = 2
PAUSE = "200ms"
"""Between the micro-batches of the run that goes on for ever."""
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
        killed = self._run_until_killed()
        newest, held = self._newest()
        lost = killed > held
        where = "was done, but in no snapshot yet" if lost else f"is in the snapshot after epoch {newest}"
        self._chapter(f"kill -9 in the middle of {'an epoch' if lost else 'the run'}: micro-batch {killed} {where}")
        self._say(f"    the partitions hold epochs up to {newest}; everything later is gone, state and position alike")
        self._chapter("The same command again, to run for ever: it resumes from the last closed epoch")
        self._run_on(half, flights)
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

    def _run_until_killed(self) -> int:
        """Run the flow, and kill it after two epochs and some more; returns the last micro-batch."""
        # Killed, its JVM would leave the archive while the next run starts.
        with self._running(RECOVERY_CLASS_ARCHIVE="use") as process:
            batch = -1
            for line, done, epochs, _ in _progress(process):
                batch = done
                self._say(f"    {line}")
                if epochs >= 2 and line.startswith("batch"):
                    process.send_signal(signal.SIGKILL)
                    break
            return batch

    def _run_on(self, half: int, flights: list[tuple[str, str, str]]) -> None:
        """Run the flow on; let the input grow when the flow has read the first half, and end the run when the flow has
        read all."""
        read = self._flights_at_resume()
        with self._running("--trigger", PAUSE) as process:
            grown = ended = False
            for line, _, _, rows in _progress(process):
                self._say(f"    {line}")
                if not grown and read + rows >= half:
                    grown = True
                    self._chapter(f"The file grows: the other {len(flights) - half:,} flights, and the flow goes on")
                    self._append(flights[half:])
                if not ended and read + rows >= len(flights):
                    ended = True
                    self._chapter("SIGTERM: it closes an epoch over what is done, and ends")
                    process.terminate()
            if process.wait() != 0:
                raise FlowFailedError(f"the demo's run ended with exit code {process.returncode}")

    def _flights_at_resume(self) -> int:
        """The number of flights in the states that the next run begins with."""
        files = scan(self._partitions)
        rows = read_step([file.path for file in files], "delays", plan_resume(files).resume_epoch)
        return sum(msgspec.json.decode(value, type=Delays).flights for _, value in rows)

    @contextlib.contextmanager
    def _running(self, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Context manager of the flow's run in a separate process, which has ended afterwards."""
        target = f"recovery.demo.flow:make({str(self._input)!r})"
        command, inherited = own_module("recovery")
        command += ["run", target, "-r", str(self._partitions), "-s", "1s", *options]
        given = {**environment, **inherited, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=given)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.communicate()

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


def _progress(process: subprocess.Popen[str]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the run's lines, each with the last micro-batch and the numbers of epochs closed and flights read."""
    batch, epochs, rows = -1, 0, 0
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.match(r"batch (\d+) .*?([\d,]+) rows?\b", line):
            batch, rows = int(match[1]), int(match[2].replace(",", ""))
        epochs += line.startswith("epoch ")
        yield line.rstrip(), batch, epochs, rows
