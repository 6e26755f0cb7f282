"""Which process reads and writes which partitions, when the keys of N partitions move to M others.

A key's partition is the CRC-32 of the key modulo their number. So partition i of the N and partition j of the M share
keys only if i and j leave the same remainder modulo gcd(N, M): the work divides into gcd(N, M) groups, each of which
reads and writes partitions of its own. If several processes work on a group, each reads all partitions of the group and
writes some.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class WorkShare:
    """A part of the work, by the indexes of partitions. counted: the sources whose rows this share also counts.

    All keys in the sources, and in the targets, have this remainder modulo `groups`.
    """

    groups: int
    remainder: int
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    counted: tuple[int, ...]


def divide(count: int, new_count: int, processes: int) -> list[list[WorkShare]]:
    """Return the shares of each process, for moving the keys of `count` partitions to `new_count` others."""
    groups = gcd(count, new_count)
    shares = [share for group in range(groups) for share in _shares(count, new_count, group, processes // groups)]
    at_once = min(processes, len(shares))
    return [shares[first::at_once] for first in range(at_once)]


def _shares(count: int, new_count: int, group: int, wanted: int) -> list[WorkShare]:
    groups = gcd(count, new_count)
    sources, targets = range(group, count, groups), range(group, new_count, groups)
    parts = max(1, min(wanted, len(targets)))
    return [
        WorkShare(groups, group, tuple(sources), tuple(targets[part::parts]), tuple(sources[part::parts]))
        for part in range(parts)
    ]
