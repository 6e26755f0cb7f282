"""How large a module, a function and a folder may be: a module fits in the head, a function on a screen."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import recovery
from tests.statements import statements

PACKAGE = Path(recovery.__file__).parent
MOST_LINES = 450
MOST_FUNCTION_LINES = 60
MOST_MODULES = 15


def larger() -> set[str]:
    """Return all that is over a limit: files, functions as file::function, and folders with a slash at the end."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text()
        if text.count("\n") > MOST_LINES:
            found.add(name)
        for node in statements(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= MOST_FUNCTION_LINES:
                    found.add(f"{name}::{node.name}")
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}:
        if len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) > MOST_MODULES:
            found.add(f"{folder.relative_to(PACKAGE).as_posix()}/")
    return found


def test_what_is_larger_is_named_with_its_reason():
    """The table of docs/architecture.md names everything that is over a limit, and nothing that is not."""
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    [section] = re.findall(r"^## Larger than the rule\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \| (.+?) \|$", section, re.MULTILINE)
    assert {each for what, _ in rows for each in re.findall(r"`(.+?)`", what)} == larger()
