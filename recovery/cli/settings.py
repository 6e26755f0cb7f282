"""Spark's settings from the command line, the environment and a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.cli.common import DIRECTORY
from recovery.errors import ConfigurationError
from recovery.host.properties import parse_properties, read_properties

F = TypeVar("F", bound=Any)

SETTINGS_VARIABLE = "RECOVERY_CONF"
FILE_VARIABLE = "RECOVERY_PROPERTIES_FILE"
_FILE = "recovery.properties_file"


def settings_options(function: F) -> F:
    """Add --conf and --properties-file; the command gets all settings as `conf`. --conf overrides the variable
    RECOVERY_CONF, which overrides the file."""
    conf = click.option("--conf", multiple=True, metavar="K=V", callback=_settings,
                        help="A setting of Spark. All users of the machine can read it: pass no secrets.")  # fmt: skip
    file = click.option("--properties-file", type=DIRECTORY, metavar="FILE", envvar=FILE_VARIABLE, callback=_remember,
                        expose_value=False, is_eager=True,
                        help="A file of settings of Spark, as spark-submit takes one: `spark.name value` on each "
                             "line. Put secrets here, or in the variable RECOVERY_CONF.")  # fmt: skip
    return conf(file(function))


def _remember(ctx: click.Context, _: click.Parameter, file: Path | None) -> None:
    ctx.meta[_FILE] = file


def _settings(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    file = ctx.meta.get(_FILE)
    settings = {} if file is None else read_properties(file)
    settings.update(_from_environment())
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not K=V")
        settings[name] = value
    return settings


def _from_environment() -> dict[str, str]:
    try:
        return parse_properties(os.environ.get(SETTINGS_VARIABLE, ""))
    except ValueError as error:
        raise ConfigurationError(
            f"the settings of Spark in the variable {SETTINGS_VARIABLE} cannot be read: {error}",
            cause="A backslash begins an escape there, as in files of properties.",
            remedy="Write `spark.name value`, a line for each setting, and two backslashes for one.",
        ) from error
