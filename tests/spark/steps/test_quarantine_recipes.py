"""The recipes of docs/bad-records.md for rows that Spark cannot parse, run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery import Flow, RecoveryConfig, init_partitions, start
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.operational.steps.quarantine import Wanted, replay
from recovery.storage.store import Store
from tests.spark.support import ROOT

JSON = ['{"id": 1, "amount": 5}', '{"id": 2, "amount": "x5"}', '{"id": 3', '{"id": 4, "amount": 7}']


def recipes() -> dict[str, str]:
    """The code of each recipe, by the name of its flow."""
    text = (ROOT / "docs" / "bad-records.md").read_text()
    section = text[text.index("## Rows that Spark cannot parse") :]
    found = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return {re.search(r"Flow\(\"([^\"]+)\"", code)[1]: code for code in found}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    init_partitions("db", 2)
    return tmp_path


def made(code: str) -> Flow:
    """The flow of a recipe, with its paths below the working directory: the JVM has another one."""
    names: dict[str, object] = {}
    exec(re.sub(r'\("(lines|files|amounts|out)"\)', lambda path: f"({str(Path(path[1]).absolute())!r})", code), names)
    return names["flow"]


def run(flow: Flow, spark, **config) -> list[tuple[object, ...]]:
    """Run to the end of the input; returns the output of all runs so far."""
    start(flow, RecoveryConfig("db", **config), spark=spark, trigger="available-now").await_termination()
    return sorted(map(tuple, spark.read.parquet(str(Path("out").absolute())).collect()), key=str)


def shown() -> str:
    return CliRunner().invoke(main, ["quarantine", "show", "db"]).stdout


def test_the_page_has_these_recipes():
    assert [*recipes()] == ["json-lines", "json-files", "amounts"]


def test_json_in_lines_of_text(here, spark):
    """The lines wait; with another form, those that it can read pass when they are replayed."""
    (here / "lines").mkdir()
    (here / "lines" / "1.txt").write_text("".join(f"{line}\n" for line in JSON))
    code = recipes()["json-lines"]
    assert run(made(code), spark) == [(1, 5), (4, 7)]
    assert r'{"value":"{\"id\": 3"}' in shown()
    assert r'{"value":"{\"id\": 2, \"amount\": \"x5\"}"}' in shown()
    replay(Store(here / "db"), Wanted(), SystemClock())
    fixed = code.replace("amount int", "amount string")
    fixed = fixed.replace(
        '.select("row.id", "row.amount")', '.selectExpr("row.id", "try_cast(row.amount AS int) AS amount")'
    )
    assert (2, None) in run(made(fixed), spark)
    [key] = Wanted().keys(Store(here / "db").at())
    assert key.note.rows == 1


def test_files_of_json(here, spark):
    """What waits has the text that could not be parsed."""
    (here / "files").mkdir()
    (here / "files" / "1.json").write_text("".join(f"{line}\n" for line in JSON))
    assert run(made(recipes()["json-files"]), spark) == [(1, 5), (4, 7)]
    assert r'"_corrupt_record":"{\"id\": 3"' in shown()
    assert "when: _corrupt_record IS NOT NULL" in shown()


def test_files_of_csv(here, spark):
    """As the text says, with csv in place of json."""
    (here / "files").mkdir()
    (here / "files" / "1.csv").write_text("1,5\n2,x5\n4,7\n")
    assert run(made(recipes()["json-files"].replace("json(", "csv(")), spark) == [(1, 5), (4, 7)]
    assert '"_corrupt_record":"2,x5"' in shown()


def test_a_number_in_text(here, spark):
    """Text that is no number waits with its text, and passes when the step takes it."""
    (here / "amounts").mkdir()
    (here / "amounts" / "1.txt").write_text("5\n12.50\nx\n7\n")
    code = recipes()["amounts"]
    assert run(made(code), spark) == [(5,), (7,)]
    assert '{"amount":"12.50"}' in shown()
    replay(Store(here / "db"), Wanted(), SystemClock())
    fixed = code.replace("try_cast(amount AS int)", "try_cast(amount AS double)")
    fixed = fixed.replace("CAST(amount AS int)", "CAST(CAST(amount AS double) AS int)")
    assert run(made(fixed), spark) == [(5,), (7,), (12,)]
    assert '{"amount":"x"}' in shown()
