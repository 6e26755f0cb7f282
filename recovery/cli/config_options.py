"""Options of the command line that follow from the fields of RecoveryConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.cli.common import DIRECTORY, INTERVAL
from recovery.cli.option import option
from recovery.config import RecoveryConfig, checked_owners
from recovery.errors import ConfigurationError
from recovery.planning.health import parse_targets
from recovery.planning.quarantine import parse_quarantine
from recovery.setting import Setting, settings_of

F = TypeVar("F", bound=Callable[..., Any])
Parse = Callable[[click.Context, click.Parameter, Any], Any]

FILE = click.Path(path_type=Path)
_SETTINGS = settings_of(RecoveryConfig)
_DEFAULTS = {each.name: each.default for each in fields(RecoveryConfig)}


def config_option(name: str, **more: Any) -> Callable[[F], F]:
    """Return a decorator that adds the option of a field of RecoveryConfig; the command gets it by the field's name.
    more: other arguments of click.option."""
    field = _SETTINGS[name]
    default = _DEFAULTS[name]
    given = {
        "help": field.help, "without": field.without, "metavar": field.form, "envvar": list(field.variables) or None,
        **_type(field),
    }  # fmt: skip
    if default not in (None, False) and not given.get("multiple"):
        given |= {"default": default, "show_default": True}
    if name in _PARSERS:
        given["callback"] = _PARSERS[name]
    return option(*field.flags, name, **{**given, **more})


def config_options(function: F) -> F:
    """Add the option of every field of RecoveryConfig that has one, except --state-backend, which other commands have,
    too."""
    for name in reversed([name for name, field in _SETTINGS.items() if field.flags and name != "state_backend"]):
        function = config_option(name)(function)
    return function


def rewind_options(function: F) -> F:
    """Add --resume-after E, and --resume-epoch, which for the same snapshot is E + 1."""
    text = (
        "Plan a [rewind](#run), from the snapshot after epoch E, and say what it would discard; 0: from the beginning."
    )
    return config_option("resume_after", help=text)(config_option("resume_epoch")(function))


def tls_options(function: F) -> F:
    """Add --tls-cert and --tls-key, with which this host serves others."""
    certificate = config_option("tls_cert", help="The certificate of this host, a PEM file.", without="no TLS")
    return certificate(config_option("tls_key")(function))


def threshold_option(function: F) -> F:
    """Add --threshold TARGET=WARNING/CRITICAL, repeatable, or space-separated in the variable RECOVERY_THRESHOLD."""
    return config_option("thresholds")(function)


def _type(field: Setting) -> Mapping[str, Any]:
    """What click.option needs to parse the values of a field."""
    if field.kind == "number":
        return {"type": click.IntRange(field.least, field.most)}
    types: Mapping[str, Mapping[str, Any]] = {
        "flag": {"is_flag": True},
        "texts": {"multiple": True},
        "pairs": {"multiple": True},
        "interval": {"type": INTERVAL},
        "file": {"type": FILE},
        "directory": {"type": DIRECTORY},
        "text": {},
    }
    return types[field.kind]


def _owners(_ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return checked_owners(owner for text in given for owner in text.split(",") if owner)
    except ConfigurationError as error:
        raise click.BadParameter(f"{error.found}. {error.remedy}") from error


def _renames(_ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise click.BadParameter(f"{text!r} is not OLD=NEW")
        pairs[name] = value
    return pairs


def _levels(_ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    levels = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not TARGET=WARNING/CRITICAL")
        levels[name] = value
    try:
        parse_targets(levels)
    except ConfigurationError as error:
        raise click.BadParameter(f"{error.found}. {error.remedy}") from error
    return levels


def _quarantine(_ctx: click.Context, _: click.Parameter, given: str | None) -> str | None:
    if given is not None:
        try:
            parse_quarantine(given)
        except ConfigurationError as error:
            raise click.BadParameter(f"{error.found}. {error.remedy}") from error
    return given


_PARSERS: Mapping[str, Parse] = {
    "owners": _owners, "quarantine": _quarantine, "rename_steps": _renames, "thresholds": _levels,
}  # fmt: skip
