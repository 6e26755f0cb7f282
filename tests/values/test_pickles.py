"""Pickles that were made to take memory or time: an error, within bounds that follow from the pickle's size."""

from __future__ import annotations

import datetime
import json
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import time

import pytest

from recovery.values.pickles import read
from recovery.values.unpickle import PLAIN_NAMES, Unpickler
from tests.stores import ROOT

MERSENNE = (1 << 61) - 1
LONGEST_S, MOST_BYTES = 1.0, 200 << 20
SEED = int(os.environ.get("RECOVERY_TEST_SEED", "7"))


def alike(count: int) -> bytes:
    """A dictionary of ints that Python hashes to 0."""
    keys = (((number + 1) * MERSENNE).to_bytes(11, "little", signed=True) for number in range(count))
    return b"\x80\x04}(" + b"".join(b"\x8a\x0b" + key + b"K\x01" for key in keys) + b"u."


def text(length: int) -> bytes:
    """A string, which is remembered."""
    return b"X" + struct.pack("<I", length) + b"x" * length + b"\x94"


HOSTILE = {
    "a key that names its parts twice, at each of 45 levels": b"}K\x01" + b"2\x86" * 45 + b"K\x01s.",
    "a value that does": b"(" * 26 + b"K\x01" + b"2l" * 26 + b".",
    "a member of a set that does": b"\x80\x04\x8f(K\x01" + b"2\x86" * 45 + b"\x90.",
    "a frozenset that does": b"\x80\x04(K\x01" + b"2\x86" * 45 + b"\x91.",
    "a set by its name": b"cbuiltins\nset\n(]K\x01" + b"2\x86" * 45 + b"atR.",
    "a deep key": b"\x80\x04})" + b"\x85" * 500_000 + b"K\x01s.",
    "a deep member": b"\x80\x04\x8f()" + b"\x85" * 500_000 + b"\x90.",
    "deep frozensets": b"\x80\x04" + b"(" * 100_000 + b"K\x01" + b"\x91" * 100_000 + b".",
    "deep tuples": b"\x80\x04)" + b"\x85" * 500_000 + b".",
    "deep lists": b"\x80\x04" + b"]" * 250_000 + b"a" * 249_999 + b".",
    "ints that hash alike": alike(60_000),
    "many digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "a text, again and again": b"\x80\x04(" + text(100_000) + b"h\x00" * 50_000 + b"l.",
    "a large key, again and again": b"\x80\x04}(K\x01" + b"2\x86" * 8 + b"\x94N" + b"h\x00N" * 100_000 + b"u.",
    "a name that is none": b"\x80\x04\x8c\x01aK\x01" + b"2\x86" * 45 + b"\x93.",
    "what a class is given": b"\x80\x04cdatetime\ndate\nK\x01" + b"2\x86" * 45 + b"\x85R.",
    "a list that holds itself": b"\x80\x04]\x94h\x00a.",
    "a dictionary that holds itself": b"\x80\x04}\x94\x8c\x01xh\x00s.",
    "a length": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a number's length": b"\x80\x05\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_short_pickles_of_endless_work(data):
    """Each is an error within a second of processor time."""
    began_s = time.process_time()
    with pytest.raises(ValueError):
        Unpickler(["datetime.date"]).text(data)
    assert time.process_time() - began_s < 3 * LONGEST_S


def test_large_pickles_of_honest_programs():
    """The bounds are far from what Python itself writes, also where a value holds one part many times."""
    same = {"name": "a" * 30, "at": 5}
    for value in (
        {"a": [float(each) for each in range(200_000)], "b": {str(each): each for each in range(20_000)}},
        {(each, str(each)) for each in range(20_000)},
        {each << 40: each for each in range(20_000)},
        [same] * 1_000,
        ["a" * 50] * 10_000,
    ):
        for protocol in (2, 4, 5):
            assert read(pickle.dumps(value, protocol), PLAIN_NAMES) == value


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_mutated_pickles(tmp_path, count):
    """Whatever a pickle says: a value or ValueError, within a second and 200 MB. RECOVERY_TEST_SEED replays it."""
    print(f"RECOVERY_TEST_SEED={SEED}")
    done = subprocess.run(
        [sys.executable, "-m", "tests.values.test_pickles", str(SEED), str(count)],
        cwd=ROOT, capture_output=True, text=True, timeout=count / 20 + 60,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    found = json.loads(done.stdout)
    assert found["read"] > count / 100
    assert found["longest_s"] < LONGEST_S, found
    assert found["grown_bytes"] < MOST_BYTES, found


def seeds() -> list[bytes]:
    """What is mutated: honest values of every kind, and pickles that are hostile already."""
    day = datetime.date(2026, 1, 2)
    values = [
        {"n": 1, "sum": 2.5, "seen": {1, "a", (2, 3)}, "last": None}, [[1, [2, [3]]], "x" * 300, True],
        {("a", 1): [b"bytes", bytearray(b"b")], 2.5: frozenset({1})}, day, [day, {day: 1}], 1 << 200, -5,
        {str(each): [each] * 3 for each in range(50)},
    ]  # fmt: skip
    honest = [pickle.dumps(value, protocol) for value in values for protocol in range(6)]
    return honest + [data for data in HOSTILE.values() if len(data) < 1_000]


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Another pickle: bytes changed, cut, repeated, or of another pickle."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(found) + 1)
        what = dice.randrange(5)
        if what == 0 and found:
            found[at % len(found)] = dice.randrange(256)
        elif what == 1:
            found[at:at] = dice.choice(CODES) * dice.choice((1, 1, 2, 40))
        elif what == 2:
            del found[at : at + dice.randint(1, 4)]
        elif what == 3:
            found[at:at] = found[at : at + dice.randint(1, 8)] * dice.choice((1, 2, 40))
        else:
            found[at:at] = dice.choice(SEEDS)[2:-1]
    return bytes(found)


CODES = [bytes([code]) for code in b"()]}NK2lt\x85\x86\x87d\x8f\x90\x91aesuh\x94q01Rbo\x93\x81\x92"]
CODES.append(b"h\x00")
SEEDS = seeds()


def main(seed: int, count: int) -> None:
    """Read mutated pickles, and print the longest time and the memory that was taken."""
    dice = random.Random(seed)
    unpickler = Unpickler(["datetime.date"])
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest_s, longest, found = 0.0, b"", 0
    for _ in range(count):
        data = mutated(dice, dice.choice(SEEDS))
        began_s = time.process_time()
        try:
            unpickler.text(data)
            found += 1
        except ValueError:
            pass
        spent_s = time.process_time() - began_s
        if spent_s > longest_s:
            longest_s, longest = spent_s, data
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    print(json.dumps({"read": found, "longest_s": longest_s, "longest": longest[:500].hex(), "grown_bytes": grown}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
