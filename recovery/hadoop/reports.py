"""What the tasks of a write report: their files with their sizes; and whether those are where the driver looks.

A host whose mount is missing writes to a disk of its own, and nothing else says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from recovery.errors import OutputLostError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPORTS = "_spark_metadata"
"""The directory beside the files with the reports of the tasks."""
REPORT_NAMES = ("0", "0.compact")
PATIENCE_S = 10.0
"""How long to wait for a file that a task on another host wrote to a mount."""
_MOST_TASKS = 1 << 20


class _Report(msgspec.Struct):
    path: str
    size: int


def reported(contents: Iterable[bytes | None], shown: str) -> dict[str, int]:
    """Return the size in bytes of each file that tasks wrote, by its absolute path.

    contents: the contents of the files `REPORT_NAMES` in `REPORTS`; None for a missing one. shown: their directory, for
    messages. Raises OutputLostError if there is no report, ValueError if the report is not what Spark writes.
    """
    content = next((each for each in contents if each is not None), None)
    if content is None:
        raise OutputLostError("the report of its tasks is missing", path=shown)
    version, *lines = content.split(b"\n")
    if version != b"v1":
        raise ValueError(f"version {version[:40]!r}")
    each = (msgspec.json.decode(line, type=_Report) for line in lines if line)
    return {unquote(report.path): report.size for report in each}


def check_reported(
    reported: Mapping[str, int],
    sizes: Callable[[], Mapping[str, int]],
    shown: str,
    host_of: Callable[[str], str | None],
    *,
    patience_s: float,
) -> None:
    """Raise OutputLostError unless each file is here at its size: nothing that a task wrote is left out silently.

    sizes: returns the sizes of the files that are here now. shown: their directory, for messages. host_of: where the
    task of a file ran, if it is known. patience_s: how long to wait for files; a mount may show those of other hosts
    with a delay.
    """
    deadline = time.monotonic() + patience_s
    while True:
        found = sizes()
        wrong = sorted(name for name, size in reported.items() if found.get(name) != size)
        if not wrong:
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    size, host = found.get(wrong[0]), host_of(wrong[0])
    where = f"a task on host {host}" if host else "a task"
    here = "it is missing here" if size is None else f"it has {size} bytes here"
    more = f"; {len(wrong) - 1} more of {len(reported)} files are not here either" if len(wrong) > 1 else ""
    raise OutputLostError(f"{where} wrote {wrong[0]} with {reported[wrong[0]]} bytes, and {here}{more}", path=shown)


def host_of_task(frame: DataFrame, file: str) -> str | None:
    """Return the host where the task ran that wrote a file in the newest job of this thread's group; None if it is not
    known."""
    number = file.rpartition("/")[2].removeprefix("part-").partition("-")[0]
    with suppress(Exception):
        # Spark's own records, which may be gone: this only makes an error clearer.
        context: Any = frame.sparkSession.sparkContext
        tracker = context.statusTracker()
        jobs = tracker.getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id"))
        stage = max(tracker.getJobInfo(max(jobs)).stageIds)
        tasks = context._jsc.sc().statusStore().taskList(stage, 0, _MOST_TASKS)
        found = [tasks.apply(i) for i in range(tasks.size())]
        hosts = {str(task.host()) for task in found if task.index() == int(number) and task.status() == "SUCCESS"}
        return ", ".join(sorted(hosts)) or None
    return None
