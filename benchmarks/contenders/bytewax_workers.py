"""The processes of a Bytewax flow: started together, when each has imported what it needs."""

# mypy: disable-error-code="import-not-found"
# Bytewax is not in the environment that is checked.
from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import ENDING_S, Spent, spent


@dataclass(frozen=True, slots=True)
class Ran:
    """From started workers, with all imported, to the end of all: seconds, and what all processes used."""

    seconds: float
    used: Spent


def in_processes(arguments: dict[str, Any], module: str) -> Ran:
    """Run a flow in `arguments["workers"]` processes, each `python -m module JSON`, which calls `work`."""
    ports = _free_ports(arguments["workers"])
    addresses = [f"localhost:{port}" for port in ports]
    with contextlib.ExitStack() as stack:
        workers = []
        for number in range(arguments["workers"]):
            given = json.dumps({**arguments, "number": number, "addresses": addresses})
            command = [sys.executable, "-m", module, given]
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(worker)
            # Only when something failed does one still run at the end.
            stack.callback(worker.kill)
            workers.append(worker)
        _expect(workers, "ready")
        before = spent()
        for worker, port in zip(workers, ports, strict=True):
            # Each connects to those before it, and would sleep for a second if they did not listen yet.
            started_s = time.perf_counter()
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
            if worker is not workers[-1]:
                _wait_until_listening(port)
        # Said when the flow has returned: the end of the interpreter is not counted.
        _expect(workers, "done")
        ran = Ran(time.perf_counter() - started_s, spent() - before)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait(ENDING_S)
        return ran


def _expect(workers: list[subprocess.Popen[str]], word: str) -> None:
    """Wait until each has said the word; Bytewax says things too."""
    for worker in workers:
        assert worker.stdout is not None
        said: list[str] = []
        for line in worker.stdout:
            said.append(line.strip())
            if said[-1] == word:
                break
        else:
            raise RuntimeError(f"a Bytewax process ended without {word!r}, saying {said}")


def _wait_until_listening(port: int) -> None:
    """Seen in /proc: a connection to try it would count as a worker's."""
    deadline_s = time.perf_counter() + 10
    while time.perf_counter() < deadline_s:
        for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
            entries = [line.split() for line in table.read_text().splitlines()[1:]] if table.exists() else []
            if any(entry[1].endswith(f":{port:04X}") and entry[3] == "0A" for entry in entries):
                return
        time.sleep(0.005)
    raise RuntimeError("the first Bytewax process does not listen")


def work(arguments: dict[str, Any], prepare: Callable[[dict[str, Any]], tuple[Any, dict[str, Any]]]) -> None:
    """Be one of the processes: say when it is ready, wait for the start, say when it is done, and wait until that was
    heard. `prepare` returns the flow and its settings."""
    flow, settings = prepare(arguments)
    from bytewax.run import cli_main

    print("ready", flush=True)
    sys.stdin.readline()
    cli_main(flow, process_id=arguments["number"], addresses=arguments["addresses"], **settings)
    print("done", flush=True)
    # A process that has ended, and was not waited for, has used nothing.
    sys.stdin.readline()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
