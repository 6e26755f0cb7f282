"""Spark's settings from the command line, the environment and a file; and Bytewax's words for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from recovery.cli.common import DIRECTORY
from recovery.cli.option import option
from recovery.errors import ConfigurationError
from recovery.host.properties import parse_properties, read_properties

F = TypeVar("F", bound=Any)

SETTINGS_VARIABLE = "RECOVERY_CONF"
FILE_VARIABLE = "RECOVERY_PROPERTIES_FILE"
_FILE = "recovery.properties_file"
WORKERS = ("recovery.workers", "recovery.processes")
"""Where a command finds the numbers of -w and -p, in the meta of its context."""
TRIES = 3
"""How often a task is tried in all, as with the default master."""
_OF_A_CLUSTER = ("BYTEWAX_PROCESS_ID", "BYTEWAX_ADDRESSES", "BYTEWAX_HOSTFILE_PATH", "BYTEWAX_STATEFULSET_NAME")
"""The variables by which Bytewax knows that this process is one of several."""


def settings_options(function: F) -> F:
    """Add --conf and --properties-file; the command gets all settings as `conf`. --conf overrides the variable
    RECOVERY_CONF, which overrides the file."""
    conf = option("--conf", multiple=True, metavar="K=V", callback=_settings,
                  help="A setting of Spark. All users of the machine can read it: pass no secrets.")  # fmt: skip
    file = option("--properties-file", type=DIRECTORY, metavar="FILE", envvar=FILE_VARIABLE, callback=_remember,
                  expose_value=False, is_eager=True,
                  help="A file of settings of Spark, as spark-submit takes one: `spark.name value` on each "
                       "line. Put secrets here, or in the variable RECOVERY_CONF.")  # fmt: skip
    return conf(file(function))


def workers_options(function: F) -> F:
    """Add -w and -p, Bytewax's numbers of workers and processes; `chosen_master` says what they mean."""
    workers = option("-w", "--workers-per-process", "workers", type=click.IntRange(min=1), metavar="N",
                     envvar="BYTEWAX_WORKERS_PER_PROCESS", expose_value=False, callback=_remember_count,
                     help="Run this many tasks at the same time: --master local[N,3].")  # fmt: skip
    processes = option("-p", "--processes", type=click.IntRange(min=1), metavar="N", expose_value=False,
                       callback=_remember_count,
                       help="Multiply the number of tasks of -w by this. All tasks are threads of one "
                            "JVM.")  # fmt: skip
    return workers(processes(function))


def _remember_count(ctx: click.Context, parameter: click.Parameter, count: int | None) -> None:
    if count is not None and parameter.name is not None:
        ctx.meta[f"recovery.{parameter.name}"] = count


def chosen_master(master: str) -> str:
    """Return Spark's master: the given one, or as many threads as -w and -p say. Raises UsageError if both are given,
    ConfigurationError if Bytewax's variables give the directory and make this process one of several."""
    ctx = click.get_current_context()
    source = ctx.get_parameter_source
    if source("directory") == ParameterSource.ENVIRONMENT and not os.environ.get("RECOVERY_DIRECTORY"):
        several = [name for name in _OF_A_CLUSTER if os.environ.get(name)]
        if several:
            raise ConfigurationError(
                f"{several[0]} is set: this would be one of several processes of a dataflow",
                cause="Each process would run the whole flow, because no process knows of the others.",
                remedy="Unset it and run the flow once; on several hosts with --master, and owners of partitions.",
            )
    counts = [ctx.meta.get(name) for name in WORKERS]
    if counts == [None, None]:
        return master
    if source("master") == ParameterSource.COMMANDLINE:
        if ParameterSource.COMMANDLINE in (source("workers"), source("processes")):
            raise click.UsageError("-w and -p stand for --master local[N,3]: give them or --master.")
        return master
    return f"local[{(counts[0] or 1) * (counts[1] or 1)},{TRIES}]"


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
