"""The parts that sections of the page are made of, as HTML; their arguments are escaped here unless they are HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recovery.report.text import escaped

Cell = str | int | None


def section(title: str, lead: str, *parts: str) -> str:
    """Return a section of the page: heading, lead and content."""
    return f'<section><h2>{escaped(title)}</h2><p class="lead">{escaped(lead)}</p>{"".join(parts)}</section>'


def lane_box(names: Iterable[str], chart: str, left: str, right: str, *, scroll: bool) -> str:
    """Return a chart of lanes with their names at the left and its ends below."""
    labels = "".join(f"<div>{name}</div>" for name in names)
    box = f'<div class="lane-box"><div class="names">{labels}</div><div class="picture">{chart}</div></div>'
    if scroll:
        box = f'<div class="scroll" tabindex="0">{box}</div>'
    return f'{box}<div class="span"><span>{escaped(left)}</span><span>{escaped(right)}</span></div>'


def legend(*entries: tuple[str, str]) -> str:
    """Return a list that explains the marks of a chart."""
    items = "".join(f"<li><svg aria-hidden=true>{shape}</svg>{escaped(text)}</li>" for shape, text in entries)
    return f'<ul class="legend">{items}</ul>'


def details(summary: str, content: str) -> str:
    """Return content that is hidden until the reader opens it."""
    return f"<details><summary>{escaped(summary)}</summary>{content}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table; columns of numbers are aligned to the right."""
    numeric = [all(isinstance(row[i], int) or row[i] is None for row in rows) for i in range(len(header))]

    def cell(tag: str, index: int, value: Cell) -> str:
        shown = "–" if value is None else f"{value:,}" if isinstance(value, int) else value
        kind = ' class="n"' if numeric[index] else ""
        return f"<{tag}{kind}>{escaped(shown)}</{tag}>"

    head = "".join(cell("th", index, name) for index, name in enumerate(header))
    body = "".join(f"<tr>{''.join(cell('td', i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def joined(parts: Iterable[str]) -> str:
    """Return the parts that are not empty, each on lines of its own."""
    return "\n".join(part for part in parts if part)
