"""The statements of a module, for tests of its form: a tenth of its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements have statements: imports, classes and functions are in none of the expressions."""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node, from the first line on, with those within them."""
    for block in _BLOCKS:
        for each in getattr(node, block, ()):
            yield each
            yield from statements(each)
