"""--dry-run: what a command would do, in the form in which the command says what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from recovery.cli.option import option

F = TypeVar("F", bound=Callable[..., Any])


def dry_run_option(text: str) -> Callable[[F], F]:
    """Return what adds --dry-run, with this help. The command gets `dry_run`, prints what it would do, and its JSON has
    the same fields as without, `dry_run` among them. Nothing changes, byte for byte."""
    return option("--dry-run", is_flag=True, help=text)
