"""The documentation names everything there is, and nothing that there is not."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

import recovery
from recovery import aggregates
from recovery.cli import main
from recovery.storage.sqlite.file.tables import (
    CREATE_BEGINNING,
    CREATE_CHANGES,
    CREATE_MEASURES,
    CREATE_STATES,
    CREATE_TABLES,
)

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def page(name: str) -> str:
    """The text of a page in docs/."""
    return (ROOT / "docs" / name).read_text()


def section(text: str, title: str) -> str:
    """The text under a heading of the second level."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, f"there is no section {title!r}"
    return found[1]


def anchors(text: str) -> set[str]:
    """The fragments that the headings of a page can be linked by, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


REFERRING = ("wire/", "owner/", "storage/owned.py")
"""Where docstrings may still only refer to others. This list only shrinks."""


def test_a_docstring_can_be_read_alone() -> None:
    """None begins by naming another one: a method that does what its protocol says needs no docstring."""
    package = Path(recovery.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        if re.search(r'^ +"""\s*See ', path.read_text("utf-8"), re.MULTILINE):
            found.add(path.relative_to(package).as_posix())
    assert {name for name in found if not name.startswith(REFERRING)} == set()


@pytest.mark.parametrize("name", sorted(main.commands))
def test_command_is_documented(name: str) -> None:
    """Every command has a help text, and a section with its options."""
    assert main.commands[name].help
    assert f"<!-- options of {name} -->" in section(page("cli.md"), name)


@pytest.mark.parametrize("name", recovery.__all__)
def test_public_name_is_documented(name: str) -> None:
    """Every public name is in flow-api.md, operational-state.md, errors.md or cli.md."""
    assert re.search(
        rf"`{name}\b", page("flow-api.md") + page("operational-state.md") + page("errors.md") + page("cli.md")
    )


@pytest.mark.parametrize("name", ["KeyedState", "RetryPolicy", "ScopedState", "StateManager", "StateStore"])
def test_members_of_operational_state_are_documented(name: str) -> None:
    """Every public member of the classes for operational state is in operational-state.md."""
    kind = getattr(recovery, name)
    members = {member for member in [*vars(kind), *inspect.get_annotations(kind)] if not member.startswith("_")}
    internal = {"busy_s", "run", "backend", "environment", "state_id", "scope_id", "epoch_row"}
    text = page("operational-state.md")
    assert not [member for member in members - internal if not re.search(rf"`{member}\b", text)]


@pytest.mark.parametrize("name", ["GroupState", "RecoveryConfig", "RecoveryQuery", "RunSummary"])
def test_public_members_are_documented(name: str) -> None:
    """Every public member of the classes that users hold is in flow-api.md."""
    kind = getattr(recovery, name)
    members = {member for member in [*vars(kind), *inspect.get_annotations(kind)] if not member.startswith("_")}
    internal = {
        "GroupState": {"changed", "timeout_at_ms", "NO_TIMESTAMP"},
        "RecoveryConfig": {"path", "snapshot_interval_s", "backup_interval_s", "owner_deadline_s", "wait_limit_s"},
        "RecoveryQuery": set(),
        "RunSummary": set(),
    }[name]
    text = page("flow-api.md")
    assert not [member for member in members - internal if not re.search(rf"`{member}\b", text)]


def test_parameters_are_documented() -> None:
    """Every parameter of the step functions is named where the function is described."""
    text = page("flow-api.md")
    for function in (recovery.stateful, recovery.stateful_map, recovery.stateful_arrow, recovery.aggregate):
        described = section(text, function.__name__)
        for parameter in inspect.signature(function).parameters:
            assert re.search(rf"\b{parameter}\b", described), f"{parameter} of {function.__name__}"


def test_aggregates_are_documented() -> None:
    """Every function of recovery.aggregates is in the table."""
    described = section(page("flow-api.md"), "aggregate")
    assert not [name for name in set(aggregates.__all__) - {"Aggregate"} if f"`{name}(" not in described]


def test_tables_and_columns_are_documented() -> None:
    """Every table has a section in file-format.md that names each of its columns."""
    created = CREATE_TABLES + CREATE_CHANGES + CREATE_STATES + CREATE_MEASURES + CREATE_BEGINNING
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)^\)", created, re.DOTALL | re.MULTILINE):
        described = re.search(rf"^## {table}: .*?(?=^## |\Z)", page("file-format.md"), re.DOTALL | re.MULTILINE)
        assert described is not None, table
        for column in re.findall(r"^ +([a-z_]+) ", body, re.MULTILINE):
            assert column in described[0], f"{column} of {table}"


def test_crash_points_are_documented() -> None:
    """Every crash point is explained in commit-protocol.md, backup.md, erase.md or on the page of its sink, and no
    other."""
    code = "".join(path.read_text() for path in (ROOT / "recovery").rglob("*.py"))
    points = set(re.findall(r'faults\.reach\("([\w.]+)"\)|"((?:delta|iceberg)\.\d|kafka\.\d[\w.]*)"', code))
    points = {point for found in points for point in found if point}
    text = page("commit-protocol.md") + page("sinks.md") + page("delta.md") + page("backup.md") + page("erase.md")
    named = set(
        re.findall(
            r"`((?:start|hold|close|fold|hydrate|prepare|publish|rollback|upsert|delta|iceberg|kafka|follow|promote|erase|place)\.\d[\w.]*)`",
            text,
        )
    )
    assert points <= named
    steps_alone = {"close.2", "fold.2", "follow.2", "promote.1", "promote.4"}
    assert named - points - steps_alone == set()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_resolve(path: Path) -> None:
    """Links between pages lead to files, and to headings in them."""
    for target in LINK.findall(CODE.sub("", path.read_text())):
        if target.startswith("https://"):
            continue
        name, _, fragment = target.partition("#")
        linked = path if not name else Path(os.path.normpath(path.parent / name))
        assert linked.exists(), target
        if fragment:
            assert fragment in anchors(linked.read_text()), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_blocks_parse(path: Path) -> None:
    """What is shown as Python is Python."""
    for block in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
        ast.parse(block)


def test_every_page_is_reached_from_the_readme() -> None:
    """No page is an orphan: the README, the index or the index of its directory links to each."""
    indexes = [ROOT / "README.md", *(ROOT / "docs").rglob("index.md")]
    targets = ((index, target) for index in indexes for target in LINK.findall(index.read_text()))
    linked = {Path(os.path.normpath(index.parent / target.partition("#")[0])) for index, target in targets}
    assert set(PAGES) - {ROOT / "README.md"} <= linked


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_tables_have_equally_many_cells_in_each_row(path: Path) -> None:
    """A bar in a cell, also in code, begins another cell unless a backslash is before it."""
    text = CODE.sub(lambda block: "\n" * block[0].count("\n"), path.read_text())
    header = 0
    for number, line in enumerate(text.split("\n"), 1):
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not header or not bars or bars == header, f"line {number}: {line}"
        header = (header or bars) if bars else 0


def test_examples_are_listed_in_the_readme() -> None:
    """Each example is in the README's table."""
    text = (ROOT / "README.md").read_text()
    assert all(f"(examples/{path.name})" in text for path in (ROOT / "examples").glob("*.py"))


def test_readme_says_what_a_fresh_machine_needs() -> None:
    """The two commands for a machine with Python and pip."""
    text = (ROOT / "README.md").read_text()
    assert "pip install '.[java]' && python -m recovery demo" in text
    assert "pip install '.[java,test]' && python -m pytest" in text


def test_the_input_of_the_point_in_time_page_gives_its_outputs(tmp_path: Path) -> None:
    """Its block makes the files, in their order; the sums shown are theirs, before and after one is corrected."""
    text = page("point-in-time.md")
    [block] = re.findall(r"```sh\n(mkdir orders\n.*?)```", text, re.DOTALL)
    [mending] = re.findall(r"^\$ (sed -i .*)$", text, re.MULTILINE)
    subprocess.run(["sh", "-c", block], cwd=tmp_path, check=True)

    def sums() -> dict[tuple[str, str], float]:
        """By hour and shop."""
        found: Counter[tuple[str, str]] = Counter()
        for file in sorted((tmp_path / "orders").iterdir(), key=lambda path: path.stat().st_mtime):
            files.append(file.name)
            for line in file.read_text().splitlines():
                shop, at, amount = line.split(",")
                found[f"{at[11:13]}:00", shop] += float(amount)
        return dict(found)

    files: list[str] = []
    before = sums()
    subprocess.run(["sh", "-c", mending], cwd=tmp_path, check=True)
    after = sums()
    assert files == 2 * [f"{number}.csv" for number in range(1, 6)]
    shown = re.findall(r"^(\d\d:00) (\w+) +([\d.]+)$", text, re.MULTILINE)
    assert len(shown) == 11
    for position, (hour, shop, amount) in enumerate(shown):
        assert (before if position < 4 else after)[hour, shop] == pytest.approx(float(amount))


def test_what_runs_on_each_version_of_spark():
    """The page and `.ci/run` say the same."""
    script = (ROOT / ".ci" / "run").read_text()
    whole = set(re.findall(r"^on_spark (\S+) tests/spark$", script, re.MULTILINE))
    [(versions, files)] = re.findall(r"^for version in (4\..*?); do\n(.*?)^done$", script, re.DOTALL | re.MULTILINE)
    rows = dict(
        re.findall(r"^\| (4\.[\d., ]+) \| (all|(?:all )?without .*?)(?:; .*)? \|$", page("upgrading.md"), re.MULTILINE)
    )
    assert rows.pop("4.3") == "all"
    assert {version for version, text in rows.items() if text.startswith("all ")} == whole
    [bounded] = rows.keys() - whole
    assert bounded.split(", ") == versions.split()
    assert re.findall(r"`([\w/]*test_\w+)`", rows[bounded]) == re.findall(r"tests/spark/(\S+)\.py", files)
