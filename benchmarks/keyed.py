"""Contenders that keep totals per key over `keyed_lines`: how each is set up, and how what it kept is checked."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import keyed_lines
from benchmarks.contenders import spark_java
from benchmarks.harness import environments
from benchmarks.harness.rounds import Check, Contender, Rounds

NAMES = (
    "ours-readme",
    "ours",
    "ours-function",
    "ours-appended",
    "ours-arrow",
    "ours-aggregate",
    "ours-owners",
    "ours-warmed-up",
    "ours-arrow-warmed-up",
    "ours-aggregate-warmed-up",
    "spark-rocksdb",
    "spark-hdfs",
    "spark-java",
    "bytewax-processes",
    "bytewax-threads",
    "limit-exchange",
    "limit-python",
)
"""Everyone who can keep up with millions of events; and what Spark takes where nothing is kept. `ours-readme` is what
the README shows and people write first: a function as the sink, over `format("appended")`. `ours` reads Spark's text
source and discards its output, as the contenders of Spark do; `ours-function` and `ours-appended` differ from it in one
of the two, and `ours-owners` in that its partitions are at two owners."""
KEEPS_NOTHING = "limit"
WARMED_UP = "-warmed-up"
MODULES = {"ours": "recovery_totals", "spark": "spark_totals", "bytewax": "bytewax_totals", "limit": "spark_limits"}
PEERS = {"spark": environments.SPARK, "bytewax": environments.BYTEWAX}


@dataclass(frozen=True, slots=True)
class Setting:
    """How a contender runs.

    interval_s: of its snapshots; None: without recovery. Spark's own state stores write every micro-batch.
    backup_s: how long ours and Bytewax keep what is superseded. replicates: ours ships each closed epoch.
    partitions: of a recovery directory; None: as many as cores.
    """

    interval_s: float | None = 10
    backup_s: float = 0
    cores: int = 2
    partitions: int | None = None
    driver_memory: str = "4g"
    replicates: bool = False


def contender(name: str, lines: keyed_lines.KeyedLines, setting: Setting, work: Path, label: str = "") -> Contender:
    """The contender of one of NAMES on this input; `label` is what the tables call it."""
    kind, _, variant = name.removesuffix(WARMED_UP).partition("-")
    peer = PEERS.get(kind)
    python = environments.python_of(peer, work / "venvs") if peer else environments.own_python()
    partitions = setting.partitions or setting.cores
    interval_s = None if kind == KEEPS_NOTHING else setting.interval_s
    given: dict[str, Any] = {
        "interval_s": interval_s,
        "backup_s": setting.backup_s,
        "replicate": "replica" if setting.replicates else None,
        "partitions": partitions,
        "workers": setting.cores,
        "master": f"local[{setting.cores}]",
        "conf": {
            "spark.driver.memory": setting.driver_memory,
            "spark.sql.shuffle.partitions": str(setting.cores),
        },
        "batch_bytes": lines.shape.file_bytes,
        "totals": "totals",
        "appended": variant in ("appended", "readme"),
        "function": variant in ("function", "readme"),
        "step": variant if variant in ("arrow", "aggregate", "quarantine") else "python",
        "owners": 2 if variant == "owners" else 0,
        "rocksdb": variant in ("rocksdb", "java"),
        "java": variant == "java",
        "classes": spark_java.compiled(python, work / "classes") if variant == "java" else None,
        "processes": variant == "processes",
        "python": variant == "python",
        "files": str(lines.files_directory),
        "one_file": str(lines.one_file),
        "events": lines.shape.events,
        "touched": keyed_lines.touched(lines.shape) if interval_s is None else None,
    }
    environment = environments.warmed_up(work / "cache") if name.endswith(WARMED_UP) else {}
    return Contender(label or name, python, f"benchmarks.contenders.{MODULES[kind]}:measure", given, environment)


def checked(inputs: dict[str, keyed_lines.KeyedLines]) -> Check:
    """Compares what a contender kept with the truth of its input, found by its `files`."""

    def check(contender: Contender, answer: dict[str, Any], directory: Path) -> str | None:
        lines = inputs[contender.arguments["files"]]
        batches = answer.get("batches", lines.shape.files)
        if batches != lines.shape.files:
            return f"read {batches} micro-batches instead of {lines.shape.files}"
        if contender.arguments["interval_s"] is None:
            # Nothing is kept: it says how many states it wrote, or totals that its last worker held.
            return answer.get("wrong")
        wrong = keyed_lines.check(lines, directory / contender.arguments["totals"])
        return f"wrong totals: {wrong}" if wrong else None

    return check


def rounds(arguments: argparse.Namespace) -> Rounds:
    """As the command line says."""
    return Rounds(
        arguments.repeat, arguments.work / "runs", environments.java_environment(), arguments.timeout, arguments.keep
    )


def add_size(parser: argparse.ArgumentParser, *, events: int, keys: int, batches: int) -> None:
    """Options for the input's size, with these defaults."""
    parser.add_argument("--events", type=int, default=events, help="lines of input (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=keys, help="different keys (default: %(default)s)")
    parser.add_argument(
        "--batches", type=int, default=batches, help="micro-batches, equal in size (default: %(default)s)"
    )


def add_contenders(parser: argparse.ArgumentParser, names: tuple[str, ...], chosen: tuple[str, ...] = ()) -> None:
    """An option for who takes part; without it `chosen` do, or all."""
    default = chosen or names
    said = ",".join(chosen) if chosen else "all"
    parser.add_argument(
        "--contenders",
        type=chosen_from(names),
        default=default,
        help=f"comma-separated: {', '.join(names)} (default: {said})",
    )


def chosen_from(names: tuple[str, ...]) -> Any:
    """A type of option: comma-separated names. It raises argparse.ArgumentTypeError."""

    def parse(text: str) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(text.split(",")))
        unknown = set(given) - set(names)
        if unknown:
            raise argparse.ArgumentTypeError(f"no contender {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        return given

    return parse


def numbers(text: str) -> tuple[int, ...]:
    """A type of option: comma-separated whole numbers, ascending."""
    return tuple(sorted(int(each) for each in text.split(",")))
