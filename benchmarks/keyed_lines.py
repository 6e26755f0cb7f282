"""Input of the keyed benchmarks: lines `key-0000123,42` in equal files, and the totals that must come out.

The same numbers of events, keys and files and the same seed give the same bytes, so inputs are kept and used again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

KEY_DIGITS = 7
VALUES = range(10, 100)
"""Of two digits, so that every line, and with it every file, is equally long."""
LINE_BYTES = len("key-,nn\n") + KEY_DIGITS
FORMAT = 1
"""Raised when the bytes change, so that kept inputs of an older format are not taken."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """What an input looks like: events over keys, in files of equal size; with `held`, behind a file of every key."""

    events: int
    keys: int
    files: int
    seed: int = 1
    held: bool = False
    format: int = FORMAT

    def __post_init__(self) -> None:
        if min(self.events, self.keys, self.files) < 1 or self.keys > 10**KEY_DIGITS:
            raise ValueError(f"{self}: at least one event, key and file, and at most {10**KEY_DIGITS} keys")
        if self.events % self.files:
            raise ValueError(f"{self.events} events do not make {self.files} equal files")

    @property
    def file_bytes(self) -> int:
        """Size of each file."""
        return self.events // self.files * LINE_BYTES


@dataclass(frozen=True, slots=True)
class KeyedLines:
    """An input on disk.

    files_directory: the files. one_file: the same lines in the same order as a single file.
    """

    shape: Shape
    files_directory: Path
    one_file: Path
    counts: Integers
    totals: Integers


def generate(shape: Shape, kept: Path) -> KeyedLines:
    """The input of this shape, from the directory `kept` or made there."""
    target = kept / f"lines-{shape.events}-{shape.keys}-{shape.files}-{shape.seed}{'-held' if shape.held else ''}"
    if not _is_complete(target, shape):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        _write(shape, target)
    truth = np.load(target / "truth.npz")
    return KeyedLines(shape, target / "files", target / "all.txt", truth["counts"], truth["totals"])


def touched(shape: Shape, first: int = 0) -> int:
    """Keys that change, summed over the files from number `first` on."""
    return sum(len(np.unique(keys)) for keys, _ in islice(_events(shape), first, None))


def check(lines: KeyedLines, directory: Path) -> str | None:
    """What is wrong with the totals that a contender wrote as `key,count,total` lines into *.csv; None: nothing."""
    shape = lines.shape
    counts, totals = np.zeros(shape.keys, np.int64), np.zeros(shape.keys, np.int64)
    for path in sorted(directory.glob("*.csv")):
        for line in path.read_text().splitlines():
            key, count, total = line.split(",")
            number = int(key.removeprefix("key-"))
            if number >= shape.keys or key != f"key-{number:0{KEY_DIGITS}}":
                return f"{key!r} is no key of the input"
            if counts[number]:
                return f"{key} has two totals"
            counts[number], totals[number] = int(count), int(total)
    wrong = np.flatnonzero((counts != lines.counts) | (totals != lines.totals))
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {shape.keys} keys are wrong, first key {first}: count {counts[first]} and total "
        f"{totals[first]} instead of {lines.counts[first]} and {lines.totals[first]}; "
        f"{counts.sum()} of {lines.counts.sum()} events were counted"
    )


def _is_complete(target: Path, shape: Shape) -> bool:
    try:
        return bool(json.loads((target / "shape.json").read_text()) == asdict(shape))
    except OSError:
        return False


def _write(shape: Shape, target: Path) -> None:
    counts, totals = np.zeros(shape.keys, np.int64), np.zeros(shape.keys, np.int64)
    files = target / "files"
    files.mkdir()
    with (target / "all.txt").open("wb") as everything:
        for number, (keys, values) in enumerate(_events(shape)):
            text = "".join(f"key-{k:0{KEY_DIGITS}},{v}\n" for k, v in zip(keys.tolist(), values.tolist(), strict=True))
            path = files / f"{number:04}.txt"
            path.write_text(text)
            # Spark's file source takes files in the order of their age.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
            everything.write(text.encode())
            counts += np.bincount(keys, minlength=shape.keys)
            np.add.at(totals, keys, values)
    np.savez(target / "truth.npz", counts=counts, totals=totals)
    (target / "shape.json").write_text(json.dumps(asdict(shape)))


def _events(shape: Shape) -> Iterator[tuple[Integers, Integers]]:
    """Keys and values of each file: every key is equally likely in every event, but of those that are held."""
    random = np.random.Generator(np.random.PCG64(shape.seed))
    size = shape.events // shape.files
    if shape.held:
        yield np.arange(shape.keys), np.full(shape.keys, VALUES.start)
    for _ in range(shape.files):
        yield random.integers(shape.keys, size=size), random.integers(VALUES.start, VALUES.stop, size=size)
