"""Shared by the commands on operational state: where it is, and DIR, which an environment variable may give."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.cli.common import DIRECTORY
from recovery.cli.config_options import config_option
from recovery.cli.option import option
from recovery.cli.owners import owner_options, store_at
from recovery.operational.backends.open import DIRECTORY as BESIDE
from recovery.operational.backends.open import VARIABLE, StoreBackend
from recovery.operational.backends.owned import documents_of
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.manager import StateManager
from recovery.places.address import is_uri
from recovery.storage.store import OwnerAccess, Store

F = TypeVar("F", bound=Callable[..., Any])


def state_options(function: F) -> F:
    """Add `environment_options`, and the options that name owners."""
    return environment_options(remembered_owners(function))


def environment_options(function: F) -> F:
    """Add --environment, which separates for example dev from prod, and --state-backend: where operational state is."""
    environment = option("--environment", default="", envvar="RECOVERY_ENVIRONMENT", metavar="NAME", without="none",
                         help="The [namespace](operational-state.md#environments) of operational state, for example "
                              "dev or prod.")  # fmt: skip
    return environment(backend_option(function))


def remembered_owners(function: F) -> F:
    """Add the options that name owners: `chosen_access` returns what they say."""

    @functools.wraps(function)
    def command(*arguments: Any, access: OwnerAccess, **others: Any) -> Any:
        click.get_current_context().meta["recovery.access"] = access
        return function(*arguments, **others)

    return cast("F", owner_options(command))


def chosen_access() -> OwnerAccess:
    """Return which owners the options name."""
    found = click.get_current_context().meta.get("recovery.access")
    return found if isinstance(found, OwnerAccess) else OwnerAccess()


def backend_option(function: F) -> F:
    """Add --state-backend: where operational state is."""

    def remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        ctx.meta["recovery.backend"] = value
        given = ctx.get_parameter_source(str(parameter.name)) is click.core.ParameterSource.COMMANDLINE
        ctx.meta["recovery.backend.source"] = "--state-backend" if given else VARIABLE

    return config_option("state_backend", expose_value=False, callback=remember, is_eager=True)(function)


def chosen_backend() -> str | None:
    """Return the value of --state-backend, or of its variable."""
    found = click.get_current_context().meta.get("recovery.backend")
    return found if isinstance(found, str) else None


def open_state(directory: str, environment: str = "") -> StateManager:
    """Open the operational state of DIR, or of the backend that the options name. With owners, that state is where
    partition 0 is."""
    chosen = chosen_backend()
    if is_uri(directory) or chosen not in (None, BESIDE):
        return StateManager(directory, backend=chosen, environment=environment)
    return state_beside(store_at(local_path(directory), chosen_access()), environment)


def state_beside(store: Store, environment: str = "") -> StateManager:
    """Open the operational state that lies with a store, or that of the backend that the options name."""
    backend: str | StoreBackend | None = chosen_backend()
    if backend in (None, BESIDE):
        backend = documents_of(store, SystemClock(), RetryPolicy())
    return StateManager(store.directory, backend=backend, environment=environment)


def directory_and(words: Sequence[str], names: Sequence[str], *, more: bool = False) -> tuple[str, list[str]]:
    """Return DIR and the arguments called `names` from the command line; `more`: the last may be repeated.

    DIR may be left out if RECOVERY_DIRECTORY is set or a state backend is named.
    """
    found, rest = _directory_and(words, names, more)
    if not is_uri(found):
        local_path(found)
    return found, rest


def directories(words: Sequence[str], names: Sequence[str]) -> tuple[Path, list[Path]]:
    """Return DIR and the arguments called `names`, which are paths too, from the command line."""
    directory, rest = directory_and(words, names)
    ctx = click.get_current_context()
    first, *others = (DIRECTORY.convert(each, None, ctx) for each in (directory, *rest))
    return first, others


def _directory_and(words: Sequence[str], names: Sequence[str], more: bool) -> tuple[str, list[str]]:
    default = os.environ.get("RECOVERY_DIRECTORY") or chosen_backend()
    if default and words and len(words) <= len(names) and _has_partitions(words[0]):
        raise click.UsageError(
            f"Missing argument '{names[len(words) - 1]}': {words[0]} is taken for DIR, because it holds recovery "
            f"partitions. If {words[0]} is meant as {names[0]}, give DIR before it: {default} is DIR only if DIR is "
            "left out."
        )
    if default and (len(words) == len(names) or (more and len(words) > len(names) and not _is_store(words[0]))):
        return default, list(words)
    if len(words) <= len(names):
        expected = names if default else ["DIR", *names]
        raise click.UsageError(f"Missing argument '{expected[len(words)]}'.")
    if len(words) > len(names) + 1 and not more:
        quotes = " Write the JSON within quotes: '…'." if names[-1:] == ("JSON",) else ""
        raise click.UsageError(f"Got unexpected extra argument ({words[len(names) + 1]}).{quotes}")
    return words[0], list(words[1:])


def _is_store(word: str) -> bool:
    return is_uri(word) or os.path.isdir(word)  # noqa: PTH112 - a key is not a path


def _has_partitions(word: str) -> bool:
    try:
        return "://" not in word and any(Path(word).glob("part-*.sqlite3"))
    except (OSError, ValueError):
        return False
