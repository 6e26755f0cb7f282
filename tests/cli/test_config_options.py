"""The options of a run are the fields of RecoveryConfig."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from recovery import RecoveryConfig
from recovery.cli import main
from recovery.cli.option import option
from recovery.cli.run import FOR_FLOWS, FOR_PIPELINES, WITHOUT_DIRECTORY
from recovery.setting import settings_of

OPTIONS = {each.name: each for each in main.commands["run"].params if isinstance(each, click.Option)}
SETTINGS = settings_of(RecoveryConfig)


def test_every_field_is_declared():
    """Also what has no option has a help text."""
    assert set(SETTINGS) == {each.name for each in fields(RecoveryConfig)}
    assert all(each.help.endswith((".", ")")) for each in SETTINGS.values())


@pytest.mark.parametrize("name", SETTINGS)
def test_the_option_of_a_field(name):
    """Its names, its help and its default are the field's."""
    field = SETTINGS[name]
    if not field.flags:
        assert name not in OPTIONS
        return
    found = OPTIONS[name]
    assert tuple(found.opts) == field.flags
    assert found.help == field.help
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
