"""Nexmark's queries in Bytewax as a child process, whose flows run in processes of their own.

A flow writes JSON lines, and continues them after a kill where its newest epoch has them end.
"""

# mypy: disable-error-code="import-not-found"
# Bytewax is not in the environment that is checked.
from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import threading
import time
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contenders.bytewax_workers import in_processes, work
from benchmarks.nexmark.contender import PARTITIONS, Peak


def killed(arguments: dict[str, Any]) -> dict[str, Any]:
    """Let every query come to the file `stop_at`, and kill this process and all those of the flows. Each query leaves
    what it has in `target`/NUMBER."""
    os.setsid()
    for number in arguments["queries"]:
        directory = Path(arguments["target"]) / str(number)
        flow = threading.Thread(target=_run, args=(arguments, number, directory, arguments["stop_at"]), daemon=True)
        flow.start()
        while not (directory / "stopped").exists():
            flow.join(0.2)
            if not flow.is_alive():
                raise RuntimeError(f"query {number} ended before file {arguments['stop_at']}")
    os.killpg(0, signal.SIGKILL)
    raise AssertionError


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Resume each query that was killed, to its end, and run the query once more over all input.

    `queries` of the answer: by number, what the second run took; `problem` where a query failed.
    """
    started_s = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    for number in arguments["queries"]:
        try:
            resumed = Path("resumed", str(number))
            shutil.copytree(Path(arguments["target"], str(number)), resumed)
            _run(arguments, number, resumed)
            found[str(number)] = _whole(arguments, number, Path("whole", str(number)))
        except Exception as error:
            found[str(number)] = {"problem": f"{type(error).__name__}: {error}"}
        print(f"{number} … ", end="", file=sys.stderr, flush=True)
    return {
        "seconds": time.perf_counter() - started_s,
        "queries": found,
        "versions": {"python": platform.python_version(), "bytewax": version("bytewax")},
    }


def _whole(arguments: dict[str, Any], number: int, directory: Path) -> dict[str, Any]:
    """Run the query over all input."""
    with Peak() as peak:
        ran = _run(arguments, number, directory)
    return {
        "seconds": ran.seconds,
        "used_cpu_s": ran.used.cpu_s,
        "written_bytes": ran.used.written_bytes,
        "kept_bytes": sum(path.stat().st_size for path in (directory / "recovery").iterdir()),
        "memory_bytes": peak.bytes,
    }


def _run(arguments: dict[str, Any], number: int, directory: Path, stop_at: int | None = None) -> Any:
    """Run a query in `directory`, where its state is, from where it is to the end or to `stop_at`."""
    from bytewax.recovery import init_db_dir

    from benchmarks.nexmark.bytewax_queries import to_parquet

    if not directory.exists():
        (directory / "recovery").mkdir(parents=True)
        init_db_dir(directory / "recovery", PARTITIONS)
    given = {
        **{name: arguments[name] for name in ("files", "interval_s")},
        "workers": PARTITIONS, "query": number, "directory": str(directory), "stop_at": stop_at,
    }  # fmt: skip
    ran = in_processes(given, __spec__.name)
    to_parquet(number, directory / "lines", directory / "out")
    return ran


def _prepare(given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The flow and the settings of a worker."""
    from bytewax.recovery import RecoveryConfig

    from benchmarks.nexmark.bytewax_queries import flow

    directory = Path(given["directory"])
    made = flow(given["query"], Path(given["files"]), directory, given["workers"], given["stop_at"])
    recovery = RecoveryConfig(directory / "recovery", timedelta(0))
    return made, {"epoch_interval": timedelta(seconds=given["interval_s"]), "recovery_config": recovery}


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), _prepare)
