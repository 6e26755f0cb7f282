"""Where a flow reads its sources, from its plan or as recorded with a position."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from recovery.base.untrusted_json import Count, decode_json
from recovery.errors import CorruptPartitionError

FILE_FORMATS = {"text", "csv", "json", "parquet", "orc", "xml", "avro", "binaryfile"}
"""Formats of Spark's file source, in lower case, as in the names of sources."""
PATH_OPTIONS = ("path", "subscribe", "subscribepattern", "assign", "table")
"""Options, in lower case, that say what a source reads: a directory, topics of Kafka, a table. All other options say
how a source reads."""
_AND = "\x1f"
"""Separates the steps in a source's name."""


@dataclass(frozen=True, slots=True)
class SourcePlaces:
    """The places in a plan where sources are read, in the order of the plan.

    ids: the source in each place, numbered by first occurrence. ticks: whether it is a tick source. names: the source's
    format, a word for its path, a word for all its options, and the steps that its rows reach, as `read_for` writes
    them; None: unknown. labels: the names that the flow's code gives sources; they are not stored.
    """

    ids: tuple[int, ...]
    ticks: tuple[bool, ...]
    names: tuple[str | None, ...]
    labels: tuple[str | None, ...] = ()

    def to_text(self) -> str:
        """Return the stored form."""
        places = [
            {"source": each, "ticks": True} if tick else {"source": each, "reads": name}
            for each, tick, name in zip(self.ids, self.ticks, self.names, strict=True)
        ]
        return msgspec.json.encode(places).decode()

    @property
    def ticking(self) -> tuple[bool, ...]:
        """Whether each source, in the order of first occurrence, is a tick source."""
        return tuple(dict(zip(self.ids, self.ticks, strict=True)).values())

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """The ids, by which Spark numbers logs and lines; None if it knows sources by names from the flow's code."""
        return None if any(self.labels) else self.ids

    @property
    def steps(self) -> set[str]:
        """The steps that sources are read for."""
        return set[str]().union(*map(named_steps, self.names))

    def renamed(self, steps: Mapping[str, str]) -> SourcePlaces:
        """Return these places with renamed steps."""

        def now(name: str | None) -> str | None:
            if name is None or name == reads(name):
                return name
            return f"{reads(name)} {read_for(steps.get(each, each) for each in steps_of(name))}"

        return replace(self, names=tuple(map(now, self.names)))

    def others(self) -> dict[int, str | None]:
        """Return the sources without ticks, in order, with names that include the steps of all their places."""
        found: dict[int, list[str | None]] = {}
        for source, tick, name in zip(self.ids, self.ticks, self.names, strict=True):
            if not tick:
                found.setdefault(source, []).append(name)
        return {source: _together(names) for source, names in found.items()}

    def count(self, sources: Iterable[int], step: str) -> int:
        """Return the number of places where any of the sources is read for the step."""
        among = set(sources)
        places = zip(self.ids, self.names, strict=True)
        return sum(source in among and step in steps_of(name) for source, name in places)


def _together(names: Sequence[str | None]) -> str | None:
    """Return the name of a source from those of its places."""
    known = [name for name in names if name is not None]
    if len(known) < len(names):
        return None
    return f"{reads(known[0])} {read_for(set[str]().union(*map(steps_of, known)))}"


def read_for(steps: Iterable[str]) -> str:
    """Return the steps that a source is read for as one text."""
    return _AND.join(sorted(set(steps)))


def places_of(
    sources: Iterable[Hashable],
    ticks: Iterable[bool],
    names: Iterable[str | None] | None = None,
    labels: Iterable[str | None] = (),
) -> SourcePlaces:
    """Return the places from the source in each place: equal sources are one, as for Spark."""
    seen: dict[Hashable, int] = {}
    ids = tuple(seen.setdefault(source, len(seen)) for source in sources)
    return SourcePlaces(ids, tuple(ticks), tuple(names) if names is not None else (None,) * len(ids), tuple(labels))


class _StoredSource(msgspec.Struct, forbid_unknown_fields=True):
    source: Count
    ticks: bool = False
    reads: str | None = None


def recorded_places(text: str) -> SourcePlaces:
    """Parse the stored form. Raises CorruptPartitionError when the stored form is invalid."""
    found = decode_json(text, _unreadable, list[_StoredSource])
    if any(each.source >= len(found) for each in found):
        raise _unreadable("a source in it has an impossible number")
    return SourcePlaces(
        tuple(each.source for each in found), tuple(each.ticks for each in found), tuple(each.reads for each in found)
    )


def _unreadable(why: str) -> CorruptPartitionError:
    return CorruptPartitionError(f"the partitions do not say which source is where in the flow: {why}")


def reads(name: str) -> str:
    """Return format, path and options, without the steps."""
    return " ".join(name.split(" ", 3)[:3])


def steps_of(name: str | None) -> set[str]:
    """Return the steps that a source is read for; only "", a step without a name, if none or unknown."""
    words = name.split(" ", 3) if name is not None else []
    return set(words[3].split(_AND)) if len(words) > 3 else {""}


def named_steps(name: str | None) -> set[str]:
    """Return the steps that a source is read for and that have a name."""
    return steps_of(name) - {""}


def path_in(options: Mapping[str, str]) -> str:
    """Return what a source with these options reads; "" if no known option says that. options: names in lower case.

    The order of Kafka's topics does not matter.
    """
    for option in PATH_OPTIONS:
        if option in options:
            found = options[option]
            return ",".join(sorted(map(str.strip, found.split(",")))) if option == "subscribe" else found
    return ""


def name_digest(text: str) -> str:
    """Return a digest of a path or of options, for a source's name: they may be secret."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def format_and_options(name: str) -> str:
    """Return format and options. Equal options have equal paths, but earlier versions wrote other words for paths."""
    words = name.split(" ")
    return f"{words[0]} {words[2]}"


def with_steps(name: str) -> str:
    """Return format, options and steps."""
    return f"{format_and_options(name)} {read_for(steps_of(name))}"


def format_and_path(name: str) -> str:
    """Return format and path, without options and steps."""
    return " ".join(name.split(" ")[:2])


def path_of(name: str | None) -> str:
    """Return the word for the path; "" if unknown."""
    return name.split(" ")[1] if name is not None else ""


def kind_of(name: str | None) -> str:
    """Return the kind: sources of one kind can resume from each other's position. All file formats are one kind."""
    kind = name.split(" ")[0].lower() if name is not None else ""
    return "files" if kind in FILE_FORMATS else kind
