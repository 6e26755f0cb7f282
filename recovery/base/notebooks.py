"""What notebooks show: tables, and lines that change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from html import escape
from typing import Any


def html_table(title: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return a table for a notebook; the first cell of a row is its name."""

    def line(name: object, *cells: object) -> str:
        return f"<tr><th>{escape(str(name))}</th>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"

    return f"<table><caption>{escape(title)}</caption>{''.join(line(*row) for row in rows)}</table>"


def display_function() -> Callable[..., Any] | None:
    """Return IPython's `display` in a notebook's kernel; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    function: Callable[..., Any] = display
    return function
