"""Sessions of a website's visitors: a session ends when its visitor was quiet for a while, also on an idle stream.

    python examples/sessions.py

writes some clicks, then nothing more, and ends by itself once every session has timed out. The same flow from the
command line:

    python -m recovery init db/ 2
    echo 'ann /home' >> clicks.log
    python -m recovery run examples/sessions.py -r db/         # reads the click, and keeps ann's session
    sleep 3
    python -m recovery run examples/sessions.py -r db/         # nothing to read, but the session is over by now

Add `--trigger 1s` to go on for ever; Ctrl-C closes the epoch and ends. Another file and another gap, in seconds:
"examples/sessions.py:make('/var/log/clicks', gap_s=1800)".
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from recovery import Flow, GroupState, RecoveryConfig, init_partitions, start, stateful


@dataclass
class Session:
    """What is kept of a session that is going on."""

    began_ms: int
    clicks: int = 0
    last_page: str = ""


def make(path: str = "clicks.log", gap_s: float = 2, sink: Callable[[DataFrame, int], Any] | None = None) -> Flow:
    """The flow over a growing file of lines like "ann /home"; a session ends after `gap_s` seconds without clicks."""

    def update(user: str, clicks: list[Any], state: GroupState) -> Iterator[tuple[Any, ...]]:
        if state.hasTimedOut:
            over: Session = state.get
            yield user, over.clicks, over.last_page, (state.getCurrentProcessingTimeMs() - over.began_ms) / 1000
            state.remove()
            return
        session = state.getOption or Session(began_ms=state.getCurrentProcessingTimeMs())
        session.clicks += len(clicks)
        session.last_page = clicks[-1].page
        state.update(session)
        # A call forgets the timeout, so every call sets it again.
        state.setTimeoutDuration(int(gap_s * 1000))

    def build(spark: SparkSession) -> DataFrame:
        lines = spark.readStream.format("appended").load(path)
        parts = F.split("value", " ", 2)
        clicks = lines.select(parts[0].alias("user"), parts[1].alias("page"), "offset")
        step = stateful(
            "session",
            key="user",
            update=update,
            output="user string, clicks long, last_page string, open_s double",
            state=Session,
            order_by="offset",
        )
        return clicks.transform(step)

    return Flow("sessions", build, sink=sink or show)


def show(batch: DataFrame, batch_id: int) -> None:
    """Print the sessions that ended."""
    for row in batch.orderBy("user").collect():
        print(f"{row.user}: {row.clicks} clicks, left at {row.last_page}, closed after {row.open_s:.1f} s")


def main() -> None:
    """Three visitors come and fall silent; their sessions end although no line is written any more."""
    ended: set[str] = set()
    all_ended = threading.Event()

    def collect(batch: DataFrame, batch_id: int) -> None:
        show(batch, batch_id)
        ended.update(row.user for row in batch.collect())
        if len(ended) == 3:
            all_ended.set()

    with tempfile.TemporaryDirectory() as directory:
        clicks = Path(directory, "clicks.log")
        clicks.write_text("ann /home\nbob /home\nann /books\ncyd /search\nann /cart\n")
        init_partitions(Path(directory, "db"), 2)
        query = start(
            make(str(clicks), sink=collect), RecoveryConfig(Path(directory, "db"), snapshot_interval=1), trigger="200ms"
        )
        # It ends early, with its error, when something goes wrong.
        while not all_ended.wait(0.1) and not query.await_termination(0.1):
            pass
        query.stop()
        print(f"{len(ended)} sessions over, {query.summary.epochs} epochs closed")


flow = make()

if __name__ == "__main__":
    main()
