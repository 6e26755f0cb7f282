"""Many keys in one store, without Spark: what grows with the state, and what grows only with the changes.

For each number of keys, a store is filled, epochs that change few and many keys are closed, and a start, an epoch after
it and commands on the store run in processes of their own. The memory is that of such a process and all its children.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import keyed
from benchmarks.epoch_store import DIRECTORY, FILL_KEYS, EpochStore, key, value
from benchmarks.harness import environments, table
from benchmarks.harness.machine import versions
from benchmarks.harness.processes import resident_bytes, run_command
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement, Rounds

QUICK = ("--keys", "10_000,20_000", "--touched", "100,1_000")
SESSION = ((11, ("--keys", "1_000_000,4_000_000", "--repeat", "1")),)
EPOCHS = 5
"""How many epochs of each number of changed keys are closed in a row."""
EDIT = ("state", "set", str(DIRECTORY), "--step", "totals", "--key", key(1), '{"count":1,"sum":0.5}', "--yes")
COMMANDS: dict[str, Sequence[str]] = {
    "status": ("status", str(DIRECTORY)),
    "plan": ("plan", str(DIRECTORY)),
    "verify": ("verify", str(DIRECTORY)),
    "backup --incremental, the first": ("backup", str(DIRECTORY), "copies", "--incremental"),
    "an edit of one key": EDIT,
    "the same, one key later": ("backup", str(DIRECTORY), "copies", "--incremental"),
    "restore": ("restore", "copies", "restored"),
    "repartition, twice as many": ("repartition", str(DIRECTORY), "moved", "MORE"),
}
"""Words of the command line. MORE: twice the number of partitions."""
MADE = ("restored", "moved")
"""What commands make; it goes after each, so that the disk holds one of them."""
FILLING, STARTING = "fill, a million keys", "start: scan and plan, begin an execution"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    whole = keyed.numbers
    parser.add_argument("--keys", type=whole, default=whole("1_000_000,10_000_000"), help="of each store")
    parser.add_argument("--touched", type=whole, default=whole("1_000,100_000"), help="keys that an epoch changes")
    parser.add_argument("--partitions", type=int, default=8, help="of each store (default: %(default)s)")


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    contenders = [
        Contender(
            f"{keys:,} keys", environments.own_python(), f"{__name__}:measure",
            {"keys": keys, "touched": arguments.touched, "partitions": arguments.partitions},
        )
        for keys in arguments.keys
    ]  # fmt: skip

    def check(_: Contender, answer: dict[str, Any], __: Path) -> str | None:
        return answer["wrong"] or None

    rounds = Rounds(arguments.repeat, arguments.work / "runs", {}, arguments.timeout, arguments.keep)
    return report(arguments, rounds.measure(contenders, check))


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """A row for each step, three columns for each number of keys."""
    summaries = {summary.contender: summary for summary in table.summarise(measurements)}
    names = [f"{keys:,} keys" for keys in arguments.keys]
    steps = [FILLING, *(name for touched in arguments.touched for name in _epochs(touched)), STARTING, *COMMANDS]

    def shown(name: str, step: str) -> list[str]:
        def middle(what: str) -> float | None:
            return summaries[name].middle(lambda run: run.answer["steps"][step][what])

        return [
            table.seconds(middle("cpu_s")), table.seconds(middle("seconds")), table.mebibytes(middle("rss_bytes")),
        ]  # fmt: skip

    rows = [[step, *(cell for name in names for cell in shown(name, step))] for step in steps]
    sizes = ", ".join(
        f"{name}: {table.mebibytes(summaries[name].middle(lambda run: run.answer['size_bytes']))} MiB" for name in names
    )
    return Report(
        name="large",
        headers=("step", *(f"{name}{unit}" for name in names for unit in (", CPU s", ", s", ", MiB"))),
        rows=rows,
        measurements=measurements,
        notes=[
            f"{arguments.partitions} partitions; the stores' sizes: {sizes}. Processor time and time of the whole "
            f"process for commands, of closing alone for epochs (medians of {EPOCHS}), of each million keys for "
            "filling. `MiB`: the most that a command and its children held together; at other steps, what is held.",
            "`logged`: the epoch's changes are appended to the partitions, as runs with short intervals do; `folded`: "
            f"{EPOCHS} such epochs moved into the snapshots together; `moved`: each epoch by itself.",
        ],
    )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """The child for one number of keys."""
    began_s = time.perf_counter()
    steps: dict[str, Any] = {}
    made = _watched([sys.executable, "-c", f"from {__name__} import make; make({arguments!r})"])
    wrong = made["failed"]
    steps |= {} if wrong else json.loads(made["said"].splitlines()[-1])
    size = sum(path.stat().st_size for path in DIRECTORY.glob("part-*"))
    if not wrong:
        steps[STARTING] = _watched([sys.executable, "-c", f"from {__name__} import begin; begin()"])
        more = str(2 * arguments["partitions"])
        for name, words in COMMANDS.items():
            given = [more if word == "MORE" else word for word in words]
            steps[name] = _watched([sys.executable, "-m", "recovery", *given])
            for each in MADE:
                shutil.rmtree(each, ignore_errors=True)
        wrong = next((f"{name}: {step['failed']}" for name, step in steps.items() if step.get("failed")), "")
    return {
        "versions": versions(), "seconds": time.perf_counter() - began_s, "steps": steps, "size_bytes": size,
        "wrong": wrong,
    }  # fmt: skip


def make(arguments: dict[str, Any]) -> None:
    """Fill the store and close epochs; print what each step took."""
    chance, keys = random.Random(1), arguments["keys"]
    store = EpochStore(arguments["partitions"], noted=True, kept_epochs=1)
    found, fills = {}, []
    for first in range(0, keys, FILL_KEYS):
        each = _timed(lambda first=first: store.fill(min(FILL_KEYS, keys - first), chance, first))
        fills.append(each)
    millions = keys / 1e6
    found[FILLING] = {
        "cpu_s": sum(each["cpu_s"] for each in fills) / millions,
        "seconds": sum(each["seconds"] for each in fills) / millions,
        "rss_bytes": max(each["rss_bytes"] for each in fills),
        "fills": fills,
    }
    for touched in arguments["touched"]:

        def closed(logged: bool, touched: int = touched) -> dict[str, float]:
            changed = {key(number): value(chance) for number in chance.sample(range(keys), min(touched, keys))}
            return _timed(lambda: store.close(changed, logged=logged))

        logged, folded, moved = _epochs(touched)
        found[logged] = _middle([closed(True) for _ in range(EPOCHS)])
        found[folded] = _timed(store.fold)
        found[moved] = _middle([closed(False) for _ in range(EPOCHS)])
    store.release()
    print(json.dumps(found))


def _epochs(touched: int) -> tuple[str, str, str]:
    """The names of the three steps with epochs that change so many keys."""
    one = f"an epoch of {touched:,} keys"
    return f"close {one}, logged", f"fold {EPOCHS} such epochs of {touched:,} keys", f"close {one}, moved"


def _timed(work: Callable[[], float | None]) -> dict[str, float]:
    """What some work in this process takes: as it says itself, or its processor time; and the memory after it."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    said = work()
    cpu_s = time.process_time() - began_cpu_s if said is None else said
    return {"cpu_s": cpu_s, "seconds": time.perf_counter() - began_s, "rss_bytes": resident_bytes()}


def _middle(times: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(each[name] for each in times) for name in times[0]}


def begin() -> None:
    """Do what a start does with the partitions: look at them, plan, begin an execution."""
    from recovery.base.ids import StepId
    from recovery.planning.resume import plan_resume
    from recovery.planning.values import Execution
    from recovery.storage.scan import scan
    from recovery.storage.sqlite.store import FilePartitions

    plan = plan_resume(scan(DIRECTORY))
    store = FilePartitions([each.path for each in plan.partitions], DIRECTORY / "scratch")
    execution = Execution(
        plan.execution_number, "second", "benchmark", plan.resume_epoch, 0, 10.0, 3600.0, "host", 1, "0"
    )
    store.start(execution, [StepId("totals")])
    store.release()


def _watched(command: Sequence[str]) -> dict[str, Any]:
    """Run a command; what it took with its children, what it printed, and why it failed."""
    ran = run_command(command)
    return {
        "seconds": ran.usage.total_s,
        "cpu_s": ran.usage.cpu_s,
        "rss_bytes": ran.usage.python_rss_bytes,
        "said": ran.said,
        "failed": ran.said[-500:] or f"it ended with {ran.code}" if ran.code else "",
    }
