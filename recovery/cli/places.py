"""Shared by the commands on operational state: where it is, and DIR, which an environment variable may give."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from recovery.base.addresses import local_path
from recovery.operational.backends.address import is_uri
from recovery.operational.backends.open import VARIABLE
from recovery.operational.manager import StateManager

F = TypeVar("F", bound=Callable[..., Any])


def state_options(function: F) -> F:
    """Add --environment, which separates for example dev from prod, and --state-backend: where operational state is."""
    environment = click.option("--environment", default="", envvar="RECOVERY_ENVIRONMENT", metavar="NAME",
                               help="Namespace of the state, for example dev or prod.")  # fmt: skip
    return environment(backend_option(function))


def backend_option(function: F) -> F:
    """Add --state-backend: where operational state is."""

    def remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        ctx.meta["recovery.backend"] = value
        given = ctx.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
        ctx.meta["recovery.backend.source"] = "--state-backend" if given else VARIABLE

    text = "Where operational state is: file://, s3://, azure:// or gs://; by default in DIR."
    option = click.option("--state-backend", envvar=VARIABLE, metavar="URI", help=text, expose_value=False,
                          callback=remember, is_eager=True)  # fmt: skip
    return option(function)


def chosen_backend() -> str | None:
    """Return the value of --state-backend, or of its variable."""
    found = click.get_current_context().meta.get("recovery.backend")
    return found if isinstance(found, str) else None


def open_state(directory: str, environment: str = "") -> StateManager:
    """Open the operational state of DIR, or of the backend that the options name."""
    return StateManager(directory, backend=chosen_backend(), environment=environment)


def directory_and(words: Sequence[str], names: Sequence[str], *, more: bool = False) -> tuple[str, list[str]]:
    """Return DIR and the arguments called `names` from the command line; `more`: the last may be repeated.

    DIR may be left out if RECOVERY_DIRECTORY is set or a state backend is named.
    """
    found, rest = _directory_and(words, names, more)
    if not is_uri(found):
        local_path(found)
    return found, rest


def _directory_and(words: Sequence[str], names: Sequence[str], more: bool) -> tuple[str, list[str]]:
    default = os.environ.get("RECOVERY_DIRECTORY") or chosen_backend()
    if default and (len(words) == len(names) or (more and len(words) > len(names) and not _is_store(words[0]))):
        return default, list(words)
    if len(words) <= len(names):
        missing = ["DIR", *names][len(words)]
        raise click.UsageError(f"Missing argument '{missing}'.")
    if len(words) > len(names) + 1 and not more:
        raise click.UsageError(f"Got unexpected extra argument ({words[len(names) + 1]})")
    return words[0], list(words[1:])


def _is_store(word: str) -> bool:
    return "://" in word or os.path.isdir(word)  # noqa: PTH112 - a key is not a path
