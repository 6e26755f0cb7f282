"""What flows read, in a short form."""

from __future__ import annotations

from recovery.checkpoint.source_places import SourcePlaces, places_of, read_for


def with_steps(layout) -> SourcePlaces:
    """The places of sources like "x one two": what is read, and the steps that it is read for, a place each, or one
    place for "+pre+one", a step before another. What follows a colon are options, and "!" another format."""
    sources, names = [], []
    for number, each in enumerate(layout):
        what, *steps = each.split(" ")
        path, _, options = what.rstrip("!").partition(":")
        for step in steps or [""]:
            above = step.lstrip("+").split("+")
            sources.append(number)
            names.append(f"{'rows' if '!' in what else 'text'} {path} {path}{options} {read_for(above)}")
    return places_of(sources, [False] * len(sources), names)
