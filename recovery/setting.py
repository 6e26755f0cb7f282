"""A setting, declared once: its default, its option of the command line, its variable, and what it does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Kind = Literal["text", "texts", "pairs", "flag", "number", "interval", "file", "directory"]

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Setting:
    """How a field is given on the command line, and what it does.

    help: Markdown of one paragraph; its links lead to pages of docs/.
    flags: names of the option; none if the field has no option.
    variables: environment variables that give it, the first before the second.
    form: what follows the option.
    without: what applies if it is not given, where that is not the field's default.
    python: the form of a value in Python, where the help shows that of the command line.
    least, most: the limits of a number.
    """

    help: str
    flags: tuple[str, ...] = ()
    kind: Kind = "text"
    variables: tuple[str, ...] = ()
    form: str | None = None
    without: str = ""
    python: str = ""
    least: int | None = None
    most: int | None = None


def without_links(text: str) -> str:
    """Return Markdown with the text of each link in the link's place."""
    return _LINK.sub(r"\1", text)


def setting(default: Any, text: str, *flags: str, **more: Any) -> Any:
    """Return the field of a dataclass with this default and a `Setting`. An empty dictionary is a default, too."""
    variable = more.pop("variable", None)
    if variable is not None:
        more["variables"] = (variable,)
    metadata = {"setting": Setting(text, flags, **more)}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(kind: type) -> Mapping[str, Setting]:
    """Return the settings of a dataclass by the names of its fields, in their order."""
    return {each.name: each.metadata["setting"] for each in fields(kind) if "setting" in each.metadata}
