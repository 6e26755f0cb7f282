"""Templates become text: nothing from a directory is markup, and nothing of it is invisible."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from recovery.base.intervals import format_interval
from recovery.base.untrusted_json import is_moment
from recovery.base.wording import ago, counted, listed, moment_text, short_moment_text
from recovery.planning.health import format_bytes, format_seconds
from recovery.report.page import HATCH, MARK
from recovery.report.text import escaped, format_count, shortened, visible

LONGEST_VALUE = 4000
"""Characters of a value that a page shows; the rest is a note."""
STALE_MS = 15_000
"""A page of facts that are older says so."""

STATIC = {
    "style.css": ("recovery.report", "style.css", "text/css"),
    "tip.js": ("recovery.report", "script.js", "text/javascript"),
    "ui.css": ("recovery.ui.pages", "static/ui.css", "text/css"),
    "ui.js": ("recovery.ui.pages", "static/ui.js", "text/javascript"),
}
"""Each file that pages name: the package that has it, its path there, and its type."""


@functools.cache
def static_file(name: str) -> tuple[bytes, str, str]:
    """Return the content of a static file, its type, and a text that changes with the content. Raises KeyError."""
    package, path, kind = STATIC[name]
    content = (files(package) / path).read_bytes()
    return content, f"{kind}; charset=utf-8", hashlib.sha256(content).hexdigest()[:16]


class Links:
    """Addresses of pages, as links in pages have them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def static(self, name: str) -> str:
        """Return the address of a static file."""
        return f"{self._prefix}/static/{name}?v={static_file(name)[2]}"

    def top(self, path: str = "/", **query: object) -> str:
        """Return the address of a page that is about no flow or about several."""
        return f"{self._prefix}{path}{_query(query)}"

    def page(self, flow: str, page: str = "", **query: object) -> str:
        """Return the address of a flow's page. query: what it shows; None is left out."""
        return f"{self._prefix}/flows/{quote(flow, safe='', errors='surrogatepass')}/{page}{_query(query)}"

    def json(self, flow: str) -> str:
        """Return the address of a flow's facts as JSON."""
        return f"{self._prefix}/api/flows/{quote(flow, safe='', errors='surrogatepass')}"


def _query(given: dict[str, object]) -> str:
    found = {name: str(value) for name, value in given.items() if value is not None}
    return f"?{urlencode(found, errors='surrogatepass')}" if found else ""


def environment(prefix: str) -> Environment:
    """Return what renders templates. prefix: what links begin with."""
    made = Environment(
        loader=PackageLoader("recovery.ui.pages"),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(links=Links(prefix), mark=Markup(MARK), hatch=Markup(HATCH), stale_ms=STALE_MS)
    made.filters.update(
        count=_or_dash(lambda value: f"{value:,}"),
        roughly=_or_dash(format_count),
        size=_or_dash(format_bytes),
        seconds=_or_dash(format_seconds),
        interval=_or_dash(lambda value: format_interval(max(0, round(value)))),
        ago=_or_dash(ago),
        moment=_or_dash(_dated(moment_text)),
        short_moment=_or_dash(_dated(short_moment_text)),
        counted=counted,
        listed=listed,
        shortened=shortened,
        named=named,
        typed=typed,
        json_text=json_text,
        tojson_short=lambda value: shortened(json.dumps(value, ensure_ascii=False), 200),
        value_text=value_text,
    )
    return made


def _dated(shown: Callable[[int], str]) -> Callable[[int], str]:
    """Show a moment so, and milliseconds that are no date, which a file may have as a timeout, as they are."""
    return lambda value: shown(value) if is_moment(value) else f"{value:,} ms, which is no date"


def json_text(value: Any) -> Markup:
    """Return a value as lines of JSON, of a long one the beginning with a note."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return _block(text, len(text))


def value_text(row: Mapping[str, Any]) -> Markup:
    """Return the value of a row, which facts may have cut, as lines of JSON."""
    if row.get("is_cut"):
        return _block(row.get("beginning", ""), row["value_bytes"])
    return json_text(row["value"])


def _block(text: str, size: int) -> Markup:
    lines = Markup("\n").join(Markup(escaped(line)) for line in text[:LONGEST_VALUE].split("\n"))
    note = Markup("")
    if size > LONGEST_VALUE:
        note = Markup('<p class="note">Cut: {} of {} characters are shown.</p>').format(
            f"{LONGEST_VALUE:,}", f"{size:,}"
        )
    return Markup('<pre tabindex="0"><bdi>{}</bdi></pre>{}').format(lines, note)


def named(text: str) -> str:
    """Return a key or another name with something to see, and to click on, for spaces around it or nothing in it."""
    shown = text.strip()
    before, after = text.partition(shown)[::2] if shown else (text, "")
    return f"{'␣' * len(before)}{shown}{'␣' * len(after)}" if text else "‹empty›"


def typed(text: str | None) -> Markup:
    """Return a text as the value of a field of a form, unchanged; empty if a field cannot have it or would hide it: a
    reader who sends the form again must mean what the field shows."""
    return Markup("") if text is None or visible(text) != text else escape(text)


def _finalized(value: Any) -> Any:
    """Return a value as a template prints it: markup that charts made as it is, everything else as visible text."""
    if value is None:
        return "–"
    return value if isinstance(value, Markup) else visible(value)


def _or_dash(shown: Any) -> Any:
    """Return a filter that shows an absent value as a dash."""
    return lambda value: "–" if value is None else shown(value)
