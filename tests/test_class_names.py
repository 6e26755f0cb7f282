"""One word for one thing: the names of the package's classes."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import recovery

PACKAGE = Path(recovery.__file__).parent


def test_no_two_classes_share_a_name():
    """A name in a traceback, a type or a search leads to one class."""
    modules: defaultdict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            modules[name].add(path.relative_to(PACKAGE).as_posix())
    assert len(modules) > 600
    assert {name: found for name, found in modules.items() if len(found) > 1} == {}
