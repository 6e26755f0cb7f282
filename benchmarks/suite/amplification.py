"""What is written to disk for each key that changes, and what is held on disk for each key: ours, RocksDB, Bytewax.

Every contender makes each micro-batch durable, or each epoch of the same lines. Written is what all processes of a
contender make dirty in the page cache after the first micro-batches, files of Spark's exchange and of scratch included;
`nothing kept` shows how much of it the query itself needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import keyed, keyed_lines, micro_batches
from benchmarks.harness import table
from benchmarks.harness.glance import Compared
from benchmarks.harness.report import Report
from benchmarks.harness.rounds import Contender, Measurement

CORES = 2
SKIP = 2
"""Small micro-batches after the first one that are not counted."""
FIRST = 1 + SKIP
"""The number of the first micro-batch that counts."""
NOTHING, OURS, BYTEWAX = "nothing kept", "ours -s 0", "bytewax"
VARIANTS: dict[str, dict[str, Any]] = {
    NOTHING: {"step": None, "store": None},
    OURS: {"step": "python", "store": None, "interval_s": 0},
    "ours -s 0 -b 1h": {"step": "python", "store": None, "interval_s": 0, "backup_interval_s": 3600},
    "ours-aggregate -s 0": {"step": "aggregate", "store": None, "interval_s": 0},
    "spark-rocksdb": {"step": None, "store": "rocksdb"},
    "spark-rocksdb, no changelog": {"step": None, "store": "rocksdb whole"},
}
MODULE = "benchmarks.suite.trickle"
SESSION = ((3, ("--keys", "100_000", "--batches", "6", "--repeat", "1")),)
QUICK = ("--keys", "2_000", "--batches", "5")


def shapes(keys: int, batches: int) -> dict[str, keyed_lines.Shape]:
    """What is compared, by name: every micro-batch changes nearly all keys, one in a hundred, or each of few keys
    often."""
    hundredth, few = keys // 100, max(1, keys // 200)
    return {
        "all keys": keyed_lines.Shape(5 * keys * batches, keys, batches, held=True),
        "1 % of keys": keyed_lines.Shape(hundredth * batches, keys, batches, held=True),
        "counters": keyed_lines.Shape(keys // 2 * batches, few, batches, held=True),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--keys", type=int, default=200_000, help="keys that are held (default: %(default)s)")
    parser.add_argument(
        "--batches", type=int, default=8, help="micro-batches after the first one, which brings all keys (default: 8)"
    )
    keyed.add_contenders(parser, (*VARIANTS, BYTEWAX))


def run(arguments: argparse.Namespace) -> Report:
    """Measures and reports."""
    if arguments.batches < SKIP + 2:
        raise SystemExit(f"--batches must be at least {SKIP + 2}: the first {SKIP} are not counted")
    inputs = {
        name: keyed_lines.generate(shape, arguments.work / "inputs")
        for name, shape in shapes(arguments.keys, arguments.batches).items()
    }
    contenders = [each for name, lines in inputs.items() for each in _contenders(name, lines, arguments)]
    by_files = {str(lines.files_directory): lines for lines in inputs.values()}

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        if contender.name.startswith(NOTHING):
            return None
        wrong = keyed_lines.check(by_files[contender.arguments["files"]], directory / "totals")
        return f"wrong totals: {wrong}" if wrong else None

    return report(arguments, keyed.rounds(arguments).measure(contenders, check))


def _contenders(shape: str, lines: keyed_lines.KeyedLines, arguments: argparse.Namespace) -> list[Contender]:
    """The chosen contenders on this input; each contender's name has the shape of the input."""
    chosen = arguments.contenders
    named = {f"{name}: {shape}": given for name, given in VARIANTS.items() if name in chosen}
    made = micro_batches.contenders(MODULE, named, lines.files_directory, skip=SKIP, driver_memory="4g", counted=True)
    if BYTEWAX not in chosen:
        return made
    bytewax = keyed.contender("bytewax-processes", lines, keyed.Setting(0, cores=CORES), arguments.work)
    given = {**bytewax.arguments, "first": FIRST}
    return [
        *made,
        Contender(f"{BYTEWAX}: {shape}", bytewax.python, bytewax.target.replace("measure", "written"), given),
    ]


def report(arguments: argparse.Namespace, measurements: Sequence[Measurement]) -> Report:
    """The table of what was measured."""
    summaries = {each.contender: each for each in table.summarise(measurements)}
    rows, compared = [], []
    for name, shape in shapes(arguments.keys, arguments.batches).items():
        touched = keyed_lines.touched(shape, FIRST)
        ours = summaries.get(f"{OURS}: {name}")
        if ours is None:
            raise SystemExit(f"--contenders must have {OURS!r}: all others are compared with it")
        mine = [each for key, each in summaries.items() if key.endswith(f": {name}")]
        rows += [_row(each, ours, name, touched, shape.keys) for each in mine]
        written = ours.correct(_written)
        peers = {
            each.contender.partition(":")[0]: Compared.times(
                each.correct(_written), written, each.correct(_cpu_s), ours.correct(_cpu_s)
            )
            for each in mine
            if each is not ours
        }
        said = f"{table.count(written / touched if written else None)} bytes"
        compared.append(Compared(f"written for each changed key: {name} of {shape.keys:,} held", said, peers))
    return Report(
        name="amplification",
        headers=(
            "micro-batches change",
            "contender",
            "bytes written a changed key",
            "× ours",
            "CPU µs a changed key",
            "× ours",
            "bytes held a key",
            "× ours",
            "state",
        ),
        rows=rows,
        measurements=measurements,
        compared=compared,
        notes=[
            f"{arguments.batches} micro-batches after one that brings every key, the first {SKIP} of them not counted; "
            f"medians over {arguments.repeat} interleaved rounds. Every contender makes each of them durable; with a "
            "longer interval, ours and Bytewax write a key once in each interval.",
            "Written: `write_bytes` of `/proc/PID/io` of all processes, whole pages that became dirty. Held: all files "
            "of partitions, checkpoint or recovery store at the end. `nothing kept` is the same query without state, "
            "in a session that recovery starts, as the others on Spark are. Bytewax does not read a file again that it "
            "has read, but loads all state when it resumes, which its processor time here includes.",
            "The runs are shorter than the minute after which Spark would upload snapshots of RocksDB behind its "
            "changelog: those are not in its figures.",
        ],
    )


def _row(each: table.Summary, ours: table.Summary, shape: str, touched: int, keys: int) -> tuple[str, ...]:
    written, cpu_s, held = each.correct(_written), each.correct(_cpu_s), each.correct(_held)
    return (
        shape,
        each.contender.partition(":")[0],
        table.count(None if written is None else written / touched),
        table.ratio(written, ours.correct(_written)),
        table.NONE if cpu_s is None else f"{cpu_s / touched * 1e6:.3g}",
        table.ratio(cpu_s, ours.correct(_cpu_s)),
        table.count(held / keys if held else None),
        table.ratio(held, ours.correct(_held)) if held else table.NONE,
        "correct" if each.problem is None else "failed",
    )


def _written(run: Measurement) -> float:
    return float(run.answer["written_bytes"])


def _cpu_s(run: Measurement) -> float:
    return float(run.answer["counted_cpu_s"])


def _held(run: Measurement) -> float:
    """0 where nothing is kept."""
    return 0.0 if run.contender.startswith(NOTHING) else float(run.answer["kept_bytes"])
