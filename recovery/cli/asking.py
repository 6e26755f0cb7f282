"""Questions to the person at the terminal, and what is said where nobody can answer."""

from __future__ import annotations

import os
import sys

import click

from recovery.base.printable import one_line
from recovery.cli.common import tell
from recovery.errors import ConfigurationError


def ask(question: str, sure: bool, *, option: str = "--yes") -> None:
    """Ask, unless `sure`. option: what answers yes on the command line.

    Raises Abort, which ends the command with exit code 1, if the answer is no; ConfigurationError if there is no answer
    to read.
    """
    if sure:
        return
    agreed = False
    try:
        if sys.stdin is None:
            raise click.Abort
        agreed = click.confirm(one_line(question), err=True)
    except click.Abort:
        if is_at_terminal():
            raise
        if sys.stdin is not None:
            tell("")
        raise ConfigurationError(
            f"nobody answered: {question}",
            cause="Standard input is not a terminal, and has no answer.",
            remedy=f"To answer yes, add {option} to the same command. Nothing was changed.",
        ) from None
    if not agreed:
        raise click.Abort


def is_at_terminal() -> bool:
    """Whether standard input is a terminal, at which somebody may answer."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def check_editor() -> None:
    """Raise ConfigurationError where no editor is named and none can be used, because there is no terminal."""
    if not (is_at_terminal() or os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        raise ConfigurationError(
            "an editor needs a terminal, and standard input is none",
            cause="The command was started by a script or a service.",
            remedy="Use `state get` and `state set`; or name in EDITOR a program that needs no terminal.",
        )
