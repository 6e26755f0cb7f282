"""Options: one name for one thing in all commands, and names of earlier versions that are still understood."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from recovery.cli import main
from tests.report.support import clock, run_epochs
from tests.shares import some


def command(*words: object) -> Result:
    """What `recovery` does with these words."""
    return CliRunner().invoke(main, [*map(str, words)])


def commands(group: click.Command = main, name: str = "") -> dict[str, click.Command]:
    """Every command by its whole name."""
    if not isinstance(group, click.Group):
        return {name: group}
    context = click.Context(group)
    found = {each: group.get_command(context, each) for each in group.list_commands(context)}
    return {
        whole: below
        for each, of_group in found.items()
        if of_group is not None
        for whole, below in commands(of_group, f"{name} {each}".strip()).items()
    }


def test_to_write_a_file_has_one_name():
    """`-o`, `--output-file`, in every command that writes one."""
    named = {
        name: [each.opts for each in command.params if {"-o", "--output", "--output-file"} & {*each.opts}]
        for name, command in commands().items()
    }
    writing = {name: found for name, found in named.items() if found}
    assert set(writing) == {"report", "diff", "state export", "quarantine export"}
    assert all(found == [["-o", "--output-file"]] for found in writing.values()), writing


def test_a_pattern_of_keys_has_one_name():
    """A KEY is one key, exactly; a GLOB of keys is a `--pattern`."""
    for name, each in commands().items():
        for option in each.params:
            metavar = option.metavar or ""
            assert "--key" not in option.opts or metavar == "KEY", name
            assert "--pattern" not in option.opts or metavar == "GLOB", name


@pytest.fixture
def pair(make_store) -> tuple[Path, Path]:
    """Two stores with different states."""
    made = make_store(1), make_store(1)
    for number, directory in enumerate(made):
        run_epochs(directory, 2, clock(), seed=number)
    return made


OUTPUTS = {
    "report": ("report", "{a}", "page.html"),
    "diff": ("diff", "{a}", "{b}", "differences.csv"),
    "state export": ("state", "export", "{a}", "states.jsonl"),
    "quarantine export": ("quarantine", "export", "{a}", "rows.jsonl"),
}


@pytest.mark.parametrize("words", some(OUTPUTS.values(), *OUTPUTS.values()), ids=lambda words: words[0])
def test_a_file_is_written_by_each_spelling(pair, tmp_path, words):
    """Also by the one of 0.3.0, which no help shows."""
    *named, file = [each.format(a=pair[0], b=pair[1]) for each in words]
    spellings = ["-o", "--output-file", *(["--output"] if named[0] in ("report", "diff") else [])]
    written = []
    for number, spelling in enumerate(spellings):
        path = tmp_path / f"{number}-{file}"
        done = command(*named, spelling, path)
        assert done.exit_code in (0, 1), done.output
        written.append(path.read_bytes())
    assert len({len(each) for each in written}) == 1
    assert "--output " not in command(*named[: 1 + (len(named) > 2 and named[0] != "diff")], "--help").output


def test_diff_still_takes_a_pattern_as_its_key(pair):
    """As in 0.3.0."""
    new, old = (command("diff", *pair, spelling, "k1", "--json") for spelling in ("--pattern", "--key"))
    assert (new.stdout, new.exit_code) == (old.stdout, old.exit_code)
    assert "--key" not in command("diff", "--help").output
