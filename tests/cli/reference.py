"""The parts of docs/cli.md that are printed from click: usage, options and variables of the commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import click

from recovery.cli import COMMANDS, main
from recovery.cli.examples import EXAMPLES

COMMON = 3
"""An option that so many commands have, with the same help, is printed once for all of them."""
FEW = 3
"""So many commands without an option are named in place of those that have it."""

DRY_RUN = (
    "Show what the command would do, in the form in which the command says what it did, and change nothing. "
    "The table of each command says more."
)

CHANGES = {
    "init": ("makes DIR", "no"),
    "run": ("yes", "no"),
    "serve": ("as what uses it does", "yes"),
    "owners": ("moves partitions", "yes"),
    "status": ("no", "yes"),
    "plan": ("no", "yes"),
    "verify": ("no", "yes"),
    "history": ("no", "yes"),
    "diff": ("no", "yes"),
    "advise": ("no", "yes"),
    "report": ("writes a page", "yes"),
    "ui": ("no", "yes"),
    "gc": ("yes", "no"),
    "backup": ("makes a backup at DEST", "yes"),
    "restore": ("makes DIR, or partitions at owners", "no"),
    "drill": ("leaves a note at SRC", "yes"),
    "follow": ("makes DIR, a standby, and changes it", "at the source"),
    "promote": ("yes", "at the source; it is stopped"),
    "fork": ("makes NEW_DIR", "yes"),
    "repartition": ("makes NEW_DIR; `--in-place`: DIR", "no"),
    "checkpoint": ("`import`: fills DIR; `export`: makes TO", "`import`: no"),
    "import": ("makes DIR", "no"),
    "hwm": ("operational state", "yes"),
    "runs": ("`clean`: operational state", "yes"),
    "state": ("operational state; with `--step`, the flow's state", "yes; edits with `--step`: no"),
    "quarantine": ("`replay`, `drop`: the flow's state", "`replay`, `drop`: no"),
    "erase": ("the flow's state at every epoch; the copies that are named", "no"),
    "warmup": ("makes a file in the user's cache", "yes"),
    "demo": ("in a directory of its own", "yes"),
}
"""What each command changes, and whether it works during a run."""


class Shown(NamedTuple):
    """An option as a table shows it. flag: its long name."""

    flag: str
    forms: str
    default: str
    help: str


Having = dict[str, list[str]]
"""Commands that have something, and of each which of its subcommands do: "" for one without subcommands."""


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return text.replace("\n", " ").replace("|", r"\|")


def row(*cells: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(cell, cells))} |\n"


def head(*titles: str) -> str:
    """The first two lines of a table."""
    return row(*titles).replace("|  |", "| |") + row(*("---" for _ in titles))


def code(*names: str) -> str:
    """Words of the command line."""
    return ", ".join(f"`{name}`" for name in names)


def below(name: str) -> dict[str, click.Command]:
    """The subcommands of a command; itself, as "", if it has none."""
    command = main.commands[name]
    return dict(command.commands) if isinstance(command, click.Group) else {"": command}


def shown_options(command: click.Command) -> Iterator[tuple[click.Option, Shown]]:
    """The options of a command that its help shows."""
    with click.Context(command, info_name=command.name) as ctx:
        for each in command.params:
            if isinstance(each, click.Option) and not each.hidden:
                *others, flag = sorted(each.opts, key=len)
                form = flag if each.is_flag else f"{flag} {each.make_metavar(ctx)}"
                default = code(str(each.default)) if each.show_default else getattr(each, "without", "")
                yield each, Shown(flag, code(*others, form), default, each.help or "")


@cache
def every_option() -> dict[Shown, Having]:
    """Each option with the commands that have it."""
    found: dict[Shown, Having] = {}
    for name in COMMANDS:
        for subcommand, command in below(name).items():
            for _, shown in shown_options(command):
                found.setdefault(shown, {}).setdefault(name, []).append(subcommand)
    return found


def having_flag(flag: str) -> Having:
    """The commands that have an option of this name, whatever its help says."""
    found: Having = {}
    for shown, having in every_option().items():
        for name, subcommands in having.items() if shown.flag == flag else ():
            found.setdefault(name, []).extend(subcommands)
    return found


def is_common(shown: Shown) -> bool:
    """Whether an option stands in the table of common options."""
    return len(every_option()[shown]) >= COMMON


def named(having: Having) -> str:
    """Commands as users type them."""
    texts = []
    for name, subcommands in having.items():
        rest = [each for each in below(name) if each not in subcommands]
        if not rest:
            texts.append(code(name))
        elif len(rest) < len(subcommands):
            texts.append(f"{code(name)} except {code(*rest)}")
        else:
            texts.append(code(f"{name} {'|'.join(subcommands)}"))
    return ", ".join(texts)


def others(having: Having) -> Having:
    """All commands but these."""
    rest = {name: [each for each in below(name) if each not in having.get(name, ())] for name in COMMANDS}
    return {name: subcommands for name, subcommands in rest.items() if subcommands}


GROUPS = [name for name in COMMANDS if len(below(name)) > 1]


def usage(name: str, command: click.Command) -> str:
    """How a command is typed, with the options that it needs."""
    with click.Context(command) as ctx:
        needed = [f"{each.opts[0]} {each.make_metavar(ctx)}" for each, _ in shown_options(command) if each.required]
        return " ".join([name, *needed, *(each for each in command.collect_usage_pieces(ctx) if each != "[OPTIONS]")])


def commands() -> Iterator[str]:
    """The table of all commands."""
    yield head("command", "changes something", "during a run")
    for name in COMMANDS:
        words = f"{name} {'|'.join(below(name))}".strip()
        if len(below(name)) == 1:
            [command] = below(name).values()
            words = usage(words, command)
        yield row(f"[{code(words)}](#{name})", *CHANGES[name])


def subcommands(name: str) -> Iterator[str]:
    """The table of the subcommands of a command, with their help and an example of each."""
    yield head("command", "", "example")
    for each, command in below(name).items():
        words = f"{name} {each}"
        yield row(code(usage(words, command)), " ".join(str(command.help).split()), code(EXAMPLES[words]))


def common_options() -> Iterator[str]:
    """The table of the options that many commands have; those of most commands come first."""
    yield head("option", "default", "", "commands")
    common = [(shown, having) for shown, having in every_option().items() if is_common(shown)]
    for (_, *cells), having in sorted(common, key=lambda each: -len(each[1])):
        rest = others(having)
        yield row(*cells, named(having) if len(rest) > FEW else f"all except {named(rest)}")
    yield row("`--dry-run`", "", DRY_RUN, named(having_flag("--dry-run")))
    for _, (_, *cells) in shown_options(main):
        yield row(*cells, "`recovery` itself")


def options(name: str) -> Iterator[str]:
    """The table of a command's own options, the names of those that it shares, and an example."""
    found: dict[Shown, list[str]] = {}
    for subcommand, command in below(name).items():
        for _, shown in shown_options(command):
            found.setdefault(shown, []).append(subcommand)
    common = [shown.flag for shown in found if is_common(shown)]
    own = {shown: subcommands for shown, subcommands in found.items() if not is_common(shown)}
    several = len(below(name)) > 1
    if own:
        yield head("option", *(["subcommands"] if several else []), "default", "")
    for (_, forms, *cells), subcommands in own.items():
        yield row(forms, *([code(*subcommands)] if several else []), *cells)
    if own and common:
        yield "\n"
    if common:
        yield f"[Common options](#common-options): {code(*common)}.\n"
    if not several:
        [each] = below(name)
        example = code(f"recovery {EXAMPLES[f'{name} {each}'.strip()]}")
        yield f"\nExample: {example}\n" if found else f"Example: {example}\n"


def variables() -> Iterator[str]:
    """The table of the variables that stand for options."""
    found: dict[tuple[str, str], Having] = {}
    for name in COMMANDS:
        for subcommand, command in below(name).items():
            for option, _ in shown_options(command):
                several = "; several values, separated by spaces" if option.multiple else ""
                flags = code(*sorted(option.opts, key=len))
                given = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
                for each in given:
                    where = "" if each == given[0] else f", where {code(given[0])} is not set"
                    found.setdefault((each, f"{flags}{where}{several}"), {}).setdefault(name, []).append(subcommand)
    yield head("variable", "option", "commands")
    for (variable, text), having in sorted(found.items(), key=lambda each: (each[0][0][0] != "R", each[0])):
        yield row(code(variable), text, named(having))
