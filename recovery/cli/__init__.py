"""The command line: `python -m recovery`, and `recovery` once installed. Each command has its own file."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from recovery.base.version import installed_version
from recovery.cli.common import Commands, say
from recovery.cli.examples import add_examples
from recovery.cli.option import option

COMMANDS = {
    "init": "init",
    "run": "run",
    "serve": "serve",
    "owners": "moves:owners",
    "status": "status",
    "plan": "plan",
    "verify": "verify",
    "history": "history",
    "diff": "diff",
    "advise": "advise:advise_command",
    "report": "report",
    "ui": "ui",
    "gc": "gc",
    "backup": "backup",
    "restore": "restore",
    "drill": "drill",
    "follow": "follow",
    "promote": "promote",
    "fork": "fork",
    "repartition": "repartition:repartition_command",
    "checkpoint": "checkpoint",
    "import": "import_group",
    "hwm": "hwm",
    "runs": "runs",
    "state": "state",
    "quarantine": "quarantine",
    "erase": "erase:erase_command",
    "warmup": "warmup",
    "demo": "demo",
}
"""Names of commands, and their files; and the name of the function if that differs."""
SECTIONS = {
    "Run a flow": ("demo", "init", "run", "warmup"),
    "Look": ("status", "ui", "plan", "history", "diff", "report", "verify", "advise"),
    "Keep copies, and bring them back": ("backup", "restore", "drill", "follow", "promote"),
    "Change what is stored": ("state", "quarantine", "hwm", "runs", "fork", "repartition", "gc", "erase"),
    "Come from another tool": ("checkpoint", "import"),
    "Several hosts": ("serve", "owners"),
}
"""Names of commands by what a person wants, as `recovery --help` shows them."""


class _Imported(MutableMapping[str, click.Command]):
    """The commands by their names. Each is imported when it is asked for: all of them take 0.4 s."""

    def __init__(self) -> None:
        self._commands: dict[str, click.Command | None] = dict.fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        found = self._commands[name]
        if found is None:
            module, _, function = COMMANDS[name].partition(":")
            found = self._commands[name] = getattr(import_module(f"recovery.cli.{module}"), function or module)
            add_examples(name, found)
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._commands[name] = command

    def __delitem__(self, name: str) -> None:
        del self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def _print_version(context: click.Context, _parameter: click.Parameter, is_given: bool) -> None:
    if is_given:
        say(f"recovery {installed_version()}")
        context.exit()


class _Sections(Commands):
    sections = SECTIONS


@click.group(cls=_Sections, commands=_Imported(), context_settings={"help_option_names": ["-h", "--help"]})
@option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
        help="Show the version and exit.")  # fmt: skip
@option("--debug", is_flag=True, help="Show the traceback of an error. --debug goes before the command: "
        "`recovery --debug run …`.")  # fmt: skip
def main(debug: bool) -> None:
    """Recovery partitions for PySpark: keyed state and input positions of a streaming job, in SQLite files.

    \b
      recovery init db/ 2                    create two partitions
      recovery run flow.py -r db/ -s 10s     run a flow; run it again to resume
      recovery status db/                    what the directory holds
    """
