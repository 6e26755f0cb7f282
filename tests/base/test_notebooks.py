"""What notebooks show of the package's objects."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from recovery.base.notebooks import display_function, html_table


def test_a_table_of_any_text():
    """Signs that mean something to HTML are shown as they are."""
    table = html_table("flow <b>", [("rows", 3), ("a & b", "<script>", None)])
    assert table == (
        "<table><caption>flow &lt;b&gt;</caption><tr><th>rows</th><td>3</td></tr>"
        "<tr><th>a &amp; b</th><td>&lt;script&gt;</td><td>None</td></tr></table>"
    )


def test_only_a_kernel_can_display(monkeypatch):
    """A script has no shell, and IPython in a terminal no kernel."""
    for shell in (None, SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert display_function() is None
