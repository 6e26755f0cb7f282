"""Words in a wrong place on the command line: the error says which command line is right."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

import click

from recovery.cli.without_owners import WithoutOwners
from recovery.places.secrets import shown_word

DIRECTORY_OPTIONS = ("-r", "--recovery-directory")
_WORDS = "recovery.words"


class Guided(WithoutOwners):
    """A group whose usage errors name the command line that the user probably means."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Create the context; it remembers the words of the command line."""
        words = list(args)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise self._guided(error, words) from None
        context.meta[_WORDS] = words
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command; see the class."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise self._guided(error, ctx.meta[_WORDS]) from None

    def _guided(self, error: click.UsageError, words: Sequence[str]) -> click.UsageError:
        if error.ctx is None:
            return error
        root = error.ctx.find_root()
        right = _right(error, self, root, words)
        if right is None:
            return error
        # The error may end up in the log of a service: a secret in it has to be put in again.
        typed = shlex.join([*(root.info_name or "recovery").split(), *map(shown_word, right)])
        found = error.format_message() if isinstance(error, click.BadParameter) else error.message
        return click.UsageError(f"{found.rstrip('.')}. Type: {typed}", error.ctx)


def _right(error: click.UsageError, group: click.Group, root: click.Context, words: Sequence[str]) -> list[str] | None:
    """Return the words that are probably meant; None if nothing better than the error's own text is known."""
    chain, others = _chain(group, root, words)
    command = chain[-1] if chain else None
    if command is None or isinstance(command, click.Group):
        return _without_command(error, group, root, words) if not chain else None
    names = [str(each.name) for each in chain]
    if isinstance(error, click.NoSuchOption):
        return _with_option(error.option_name, group, command, names, others)
    if _is_no_such_command(error):
        return [*names, *(["--help"] if others[:1] == ["help"] else others)]
    if names == ["run"] and "unexpected extra argument" in error.message:
        found = [word for word in others if os.path.isdir(word)]  # noqa: PTH112 - a word may be too long for a path
        if len(found) == 1 and not any(each in others for each in DIRECTORY_OPTIONS):
            return [*names, *(word for word in others if word != found[0]), "-r", found[0]]
    if names == ["init"] and len(others) == 2 and others[0].isdecimal() and not others[1].isdecimal():
        return [*names, others[1], others[0]]
    return None


def _chain(group: click.Group, root: click.Context, words: Sequence[str]) -> tuple[list[click.Command], list[str]]:
    """Return the command that the words name, below the groups that it is in, and the words that name none of them."""
    chain: list[click.Command] = []
    others: list[str] = []
    within: click.Command = group
    for word in words:
        found = within.get_command(root, word) if isinstance(within, click.Group) else None
        if found is None:
            others.append(word)
        else:
            chain.append(found)
            within = found
    return chain, others


def _with_option(
    option: str, group: click.Group, command: click.Command, names: list[str], others: list[str]
) -> list[str] | None:
    """Return the words with an option that was typed before its command, or after it although the option is of
    the group, or in place of DIR."""
    ahead = [word for word in others if word in _options(group) - _options(command)]
    rest = [word for word in others if word not in ahead]
    if option in ahead or option in _options(command):
        return [*ahead, *names, *rest]
    if option in DIRECTORY_OPTIONS and _takes_directory(command):
        for at, word in enumerate(others):
            if word == option and at + 1 < len(others):
                return [*names, others[at + 1], *others[:at], *others[at + 2 :]]
            if word.startswith(f"{option}="):
                return [*names, word.partition("=")[2], *others[:at], *others[at + 1 :]]
    return None


def _without_command(
    error: click.UsageError, group: click.Group, root: click.Context, words: Sequence[str]
) -> list[str] | None:
    """Return the words with the command that they lack."""
    if isinstance(error, click.NoSuchOption):
        for name in ("status", "run"):
            if error.option_name in _options(group.get_command(root, name)):
                lacks = ["DIR"] if name == "status" else ["flow.py"]
                return [name, *lacks, *words]
        return None
    if not words or not _is_no_such_command(error):
        return None
    first, *rest = words
    if first == "help":
        return ["--help"]
    if first == "version":
        return ["--version"]
    if first.endswith(".py") or ":" in first or os.path.isfile(first):  # noqa: PTH113 - as above
        return ["run", *words]
    if len(words) == 2 and rest[0].isdecimal():
        return ["init", *words]
    if os.path.isdir(first):  # noqa: PTH112 - as above
        return ["status", *words]
    return None


def _is_no_such_command(error: click.UsageError) -> bool:
    return error.message.startswith("No such command")


def _options(command: click.Command | None) -> set[str]:
    """Return the names of a command's options, without those for help and the version."""
    if command is None:
        return set()
    return {name for each in command.params if isinstance(each, click.Option) for name in each.opts}


def _takes_directory(command: click.Command) -> bool:
    return any(isinstance(each, click.Argument) and "DIR" in (each.metavar or "") for each in command.params)
