"""Options whose help is Markdown: a terminal shows the text of its links, and docs/cli.md prints the whole. And the
options that mean one thing in several commands: `text` is the help in one of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from recovery.setting import without_links

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:

    class ParsedType(click.ParamType[T]):
        """The type of an option whose value is parsed to T."""

else:
    # Before click 8.4, ParamType takes no type argument.
    class ParsedType(click.ParamType, Generic[T]):
        pass


class LinkedOption(click.Option):
    """An option whose help may have links to pages of docs/."""

    def __init__(self, *arguments: Any, without: str = "", was: str = "", **more: Any) -> None:
        """without: what applies if the option is not given, where no value says so. was: its name in an earlier
        version, which is still understood and not shown."""
        super().__init__(*arguments, **more)
        self.without, self.was = without, was
        if self.multiple:
            self.help = f"{self.help} May be given several times."

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know the option by all its names."""
        shown = self.opts
        try:
            self.opts = [*shown, *filter(None, [self.was])]
            super().add_to_parser(parser, ctx)
        finally:
            self.opts = shown

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's form and its help, as a terminal shows them."""
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], without_links(record[1]))

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what stands in brackets behind the help."""
        extra = super().get_help_extra(ctx)
        if self.without:
            extra.setdefault("default", self.without)
        return extra


option = functools.partial(click.option, cls=LinkedOption)


def epoch_option(text: str, *, without: str = "the newest") -> Callable[[F], F]:
    """Return what adds --epoch: the state as of which epoch."""
    return option("--epoch", type=click.IntRange(min=0), metavar="E", without=without, help=text)


def pattern_option(function: F) -> F:
    """Add --pattern: which ids or keys."""
    text = "Only ids or keys that match: `*` any characters, `?` one, `[abc]` one of these."
    return option("--pattern", metavar="GLOB", without="all", help=text)(function)


def limit_option(text: str, *, least: int = 1) -> Callable[[F], F]:
    """Return what adds --limit: how much to show."""
    return option("--limit", type=click.IntRange(min=least), default=20, show_default=True, metavar="N", help=text)


def force_option(text: str) -> Callable[[F], F]:
    """Return what adds --force: go on where the command otherwise refuses."""
    return option("--force", is_flag=True, help=text)


def yes_option(function: F) -> F:
    """Add --yes."""
    return option("--yes", "-y", is_flag=True, help="Do not ask.")(function)
