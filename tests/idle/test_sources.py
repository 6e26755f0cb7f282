"""What is noted of a source, and what counts as new input. tests/spark/test_listed_files.py compares with Spark."""

from __future__ import annotations

from recovery.idle.note import NotedSource
from recovery.idle.sources import Positions, new_input
from recovery.idle.sources import noted_source as noted_where


def noted_source(kind: str, options: dict[str, str]) -> NotedSource | str:
    """As of a run whose plain paths are on this host."""
    return noted_where(kind, options, plain_is_local=True)


def test_what_a_note_keeps_of_a_source():
    """Paths, and for growing files what says how they are read. Other options may be secrets."""
    options = {"path": "logs", "password": "x", "header": "true"}
    assert noted_source("CSV", options) == NotedSource("csv", {"path": "logs"})
    assert noted_source("appended", {"path": "a", "lastline": "take"}) == NotedSource(
        "appended", {"path": "a", "lastline": "take"}
    )
    for kind in ("rate", "text"):
        assert (
            noted_source(kind, {"path": "logs", "cleansource": "x"})
            == f"only Spark knows whether the source {kind} has new input"
        )
    table = {"path": "table", "ignorechanges": "true"}
    assert noted_source("delta", table) == NotedSource("delta", {"path": "table"})
    only_spark = "only Spark knows whether the source delta has new input"
    assert noted_source("delta", table | {"schematrackinglocation": "schemas"}) == only_spark
    assert noted_where("delta", table, plain_is_local=False) == only_spark


def test_positions_that_do_not_fit():
    """A position of another number of sources, or before anything was read, is no answer."""
    places = '[{"source":0,"reads":"text a b "}]'
    source = NotedSource("text", {"path": "logs"})
    assert "which source" in (new_input([source], places, Positions("v1\n{}\n1\n2", {})) or "")
    assert "nothing was read yet" in (new_input([source], places, Positions("v1\n{}\n-", {})) or "")
    away = NotedSource("text", {"path": "s3a://bucket/logs"})
    assert "only Spark" in (new_input([away], places, Positions('v1\n{}\n{"logOffset":0}', {})) or "")
