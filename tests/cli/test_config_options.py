"""The options of a run are the fields of RecoveryConfig."""

from __future__ import annotations

import re
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from recovery import RecoveryConfig
from recovery.cli import main
from recovery.cli.option import option
from recovery.cli.run import FOR_FLOWS, FOR_PIPELINES, WITHOUT_DIRECTORY
from recovery.setting import settings_of
from tests.cli.reference import every_option

OPTIONS = {each.name: each for each in main.commands["run"].params if isinstance(each, click.Option)}
SETTINGS = settings_of(RecoveryConfig)


def test_every_field_is_declared():
    """Each field of RecoveryConfig has a help text, also a field without an option."""
    assert set(SETTINGS) == {each.name for each in fields(RecoveryConfig)}
    assert all(each.help.endswith((".", ")")) for each in SETTINGS.values())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_option_of_a_field(name):
    """An option has the names, the help and the variables that its field declares."""
    field = SETTINGS[name]
    if not field.flags:
        assert name not in OPTIONS
        return
    found = OPTIONS[name]
    assert tuple(found.opts) == field.flags
    assert str(found.help).startswith(field.help)
    assert [found.envvar] if isinstance(found.envvar, str) else list(found.envvar or []) == list(field.variables)


def test_without_options_a_run_has_the_defaults(tmp_path):
    """What the command line passes when nothing is given is what RecoveryConfig takes by itself."""
    given = {}

    @click.command()
    def nothing(**found):
        given.update(found)

    from recovery.cli.config_options import config_options

    assert CliRunner().invoke(config_options(nothing), ["-r", str(tmp_path)], standalone_mode=False).exit_code == 0
    assert RecoveryConfig(**given) == RecoveryConfig(tmp_path)


@pytest.mark.parametrize("name", sorted(set(OPTIONS) & (set(SETTINGS) - WITHOUT_DIRECTORY)))
def test_a_directory_is_needed(name):
    """Every option that would do nothing without one is refused, new options too."""
    found = OPTIONS[name]
    values = {"rename_steps": "a=b", "thresholds": "snapshot-duration=off", "owners": "h:1"}
    words = [] if found.is_flag else [values.get(name, "7")]
    done = CliRunner().invoke(main, ["run", "flow.py", found.opts[-1], *words], env={"RECOVERY_DIRECTORY": ""})
    assert done.exit_code == 2, done.output
    assert f"{max(found.opts, key=len)} needs -r DIR" in done.stderr


def test_lists_name_options():
    """Those of flows and pipelines, and those that change nothing without a directory."""
    assert {*FOR_FLOWS, *FOR_PIPELINES} <= set(OPTIONS)
    assert set(SETTINGS) >= WITHOUT_DIRECTORY


def test_a_terminal_shows_help_without_links():
    """The documentation prints the link; the default that no value says stands in brackets."""

    @click.command()
    @option("--to", help="Where [copies](backup.md) go.", without="nowhere")
    def command(to):
        """Copy."""

    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "Where copies go. [default: nowhere]" in text


def test_a_repeatable_option_says_so():
    """In its help, so that a terminal and the documentation show the same text."""
    assert str(OPTIONS["drop_steps"].help).endswith(" May be given several times.")


@pytest.mark.parametrize("text", ["a:1,b:2", "a:1 b:2", "a:1, b:2"])
def test_the_variable_of_owners_separates_them(monkeypatch, text):
    """By commas or spaces."""
    monkeypatch.setenv("RECOVERY_OWNERS", text)
    with click.Context(click.Command("run", params=[OPTIONS["owners"]])) as ctx:
        assert ctx.command.make_context("run", []).params == {"owners": ("a:1", "b:2")}


def test_the_help_of_each_option_can_be_read_alone():
    """It is a sentence whose pronouns have their noun, and a default stands where terminals and tables show it."""
    unclear = re.compile(r"(Its|It|They|Those|This)\b|.*\bby default\b|.*[^.]$", re.IGNORECASE | re.DOTALL)
    assert [each for each in every_option() if unclear.match(each.help)] == []
