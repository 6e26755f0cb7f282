"""Which topics and partitions of Kafka a source reads, by its options; and positions in them: pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from recovery.errors import RecoveryError

Offsets = dict[str, dict[int, int]]
"""The next offset to read of each partition, by topic and number."""
GROUP_MARK = "recovery"
"""How the metadata of an offset begins that a run has committed for a consumer group."""
_CHARACTER = r"(?:[A-Za-z0-9_-]|\\[.dw-])"
_ITEM = rf"(?:{_CHARACTER}|\.|\[\^?-?(?:[A-Za-z0-9_.](?:-[A-Za-z0-9])?)+-?\])"
_COMMON = re.compile(rf"\^?(?:{_ITEM}(?:[*+?]|\{{\d{{1,3}}(?:,\d{{0,3}})?\}})?|\((?:\?:)?|\)\??|\|)*\$?")
"""Patterns in the part of the language that Java and Python share. No group is repeated: the time that a search takes
stays short."""
_REPEATS = re.compile(r"[*+{]")
_MOST_REPEATS = 4


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a source reads. names: the topics that it names. pattern: one that is searched for in the names of all
    topics; None: none is. partitions: those that it reads of each topic; None: all."""

    names: frozenset[str] = frozenset()
    pattern: str | None = None
    partitions: Mapping[str, frozenset[int]] | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Subscription:
        """Return what the options of a source say, by their names in lower case, as Spark's connector takes them."""
        if "subscribepattern" in options:
            return cls(pattern=options["subscribepattern"].strip())
        if "subscribe" in options:
            return cls(frozenset(name for each in options["subscribe"].split(",") if (name := each.strip())))
        try:
            found = msgspec.json.decode(options.get("assign", ""), type=dict[str, list[int]])
        except (ValueError, RecursionError):
            return cls()
        return cls(frozenset(found), partitions={topic: frozenset(numbers) for topic, numbers in found.items()})

    @property
    def is_certain(self) -> bool:
        """Whether this package knows which topics Spark reads: a pattern may mean something else in Java."""
        return self.pattern is None or (
            _COMMON.fullmatch(self.pattern) is not None
            and len(_REPEATS.findall(self.pattern)) <= _MOST_REPEATS
            and _compiles(self.pattern)
        )

    def covers(self, topic: str) -> bool:
        """Whether the source, if it `is_certain`, reads a topic."""
        return topic in self.names if self.pattern is None else re.search(self.pattern, topic) is not None


def offsets_in(text: str | None) -> Offsets | None:
    """Return an offset of a Kafka source; None for another source's offset, and without an offset."""
    try:
        return msgspec.json.decode(text or "", type=Offsets)
    except (ValueError, RecursionError, RecoveryError):
        return None


def lowest(offsets: Sequence[Offsets]) -> Offsets:
    """Return the lowest of several offsets of each partition."""
    found: Offsets = {}
    for each in offsets:
        for topic, partitions in each.items():
            for number, offset in partitions.items():
                of = found.setdefault(topic, {})
                of[number] = min(offset, of.get(number, offset))
    return found


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
