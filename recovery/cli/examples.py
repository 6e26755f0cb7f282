"""One example for each command: the last lines of the command's help, and of its section in docs/cli.md."""

from __future__ import annotations

import click

EXAMPLES = {
    "init": "init db/ 2",
    "run": "run orders.py -r db/ -s 10s -b 1h",
    "serve": "serve part/ --at :7077 --token-file token",
    "owners move": "owners move 1 --to h2:7077 --owner h1:7077 --token-file token",
    "owners drain": "owners drain h1:7077 --owner h2:7077 --token-file token",
    "owners balance": "owners balance --owner h1:7077 --owner h2:7077 --token-file token",
    "status": "status db/",
    "plan": "plan db/ --resume-after 3",
    "verify": "verify db/",
    "history": "history db/ --step count --key k1",
    "diff": "diff db/ db/ --epoch-a 3 --limit 5",
    "advise": "advise db/ --tolerate 1m",
    "report": "report db/ -o report.html",
    "ui": "ui db/ --at :8080",
    "gc": "gc db/ -b 1h",
    "backup": "backup db/ backups/ --incremental --keep 30d",
    "restore": "restore backups/ restored/",
    "drill": "drill backups/",
    "follow": "follow backups/ standby/ --every 10s",
    "promote": "promote standby/",
    "fork": "fork db/ trial/ --epoch 3",
    "repartition": "repartition db/ wider/ 4",
    "checkpoint export": "checkpoint export native-db/ checkpoint/",
    "checkpoint import": "checkpoint import job/ new-db/ --flow orders",
    "checkpoint show": "checkpoint show native-db/",
    "import bytewax": "import bytewax theirs/ ours/ --rename-step count=count",
    "hwm list": "hwm list db/",
    "hwm get": "hwm get db/ orders.id",
    "hwm set": "hwm set db/ orders.id 250",
    "hwm rm": "hwm rm db/ orders.id",
    "runs list": "runs list db/ --days 7",
    "runs clean": "runs clean db/ --older-than 30d",
    "state list": "state list db/ --step count",
    "state get": "state get db/ --step count --key k1",
    "state set": 'state set db/ notes/today \'{"by": "ada"}\'',
    "state merge": "state merge db/ notes/first '{\"done\": true}'",
    "state clear": "state clear db/ notes/first",
    "state edit": "state edit db/ notes/first",
    "state backend": "state backend db/",
    "state copy": "state copy db/ notes/first notes/second",
    "state move": "state move db/ notes/first notes/old",
    "state export": "state export db/ --output-file states.jsonl",
    "state import": "state import db/ states.jsonl",
    "state migrate": "state migrate db/ file:///srv/states",
    "state scopes": "state scopes db/",
    "state clean": "state clean db/ --dry-run",
    "quarantine list": "quarantine list bad-db/",
    "quarantine show": "quarantine show bad-db/ --key a",
    "quarantine export": "quarantine export bad-db/ --output-file waiting.jsonl",
    "quarantine replay": "quarantine replay bad-db/ --key a",
    "quarantine drop": "quarantine drop bad-db/ --key b --save dropped.jsonl",
    "erase": "erase db/ --key k1",
    "warmup": "warmup",
    "demo": "demo --directory demo/",
}
"""By the words of the command. Each is a whole command line that works in a directory with what it names."""


def add_examples(name: str, command: click.Command) -> None:
    """Show the examples of a command, or of each of its subcommands, below its options."""
    if isinstance(command, click.Group):
        for each, subcommand in command.commands.items():
            add_examples(f"{name} {each}", subcommand)
    else:
        command.epilog = f"\b\nExample:\n  recovery {EXAMPLES[name]}"
