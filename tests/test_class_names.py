"""One word for one thing: the names of the package's classes."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import recovery

PACKAGE = Path(recovery.__file__).parent


def test_no_two_classes_share_a_name():
    """A name in a traceback, a type or a search leads to one class."""
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(path.relative_to(PACKAGE).as_posix())
    assert len(modules) > 600
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
