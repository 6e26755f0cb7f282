"""`recovery state copy` and `move`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from recovery.cli.asking import ask
from recovery.cli.operational import directory_and
from recovery.cli.option import option
from recovery.cli.state_common import Where, ask_of_new_steps, done, shown, writing_options
from recovery.errors import ConfigurationError, StateNotFoundError
from recovery.operational.targets import REMOVED, Name, StateEntry, missing

F = TypeVar("F", bound=Callable[..., Any])


def transfer_options(function: F) -> F:
    """Add the options of both commands."""
    whole = option("--to-step", metavar="STEP", without="that of --step",
                   help="With --step: write to this step. Without FROM and TO, all keys of the step.")  # fmt: skip
    return click.argument("words", metavar="[DIR] FROM TO", nargs=-1)(whole(writing_options(function)))


@click.command()
@transfer_options
def copy(**options: Any) -> None:
    """Copy a state to another id. Asks before it overwrites.

    With --step, a key is copied to another key, or with --to-step to another step; without keys, a whole step.
    """
    _transfer("copy", **options)


@click.command()
@transfer_options
def move(**options: Any) -> None:
    """Move a state to another id. Asks before it overwrites.

    With --step, a key is moved to another key, or with --to-step to another step; without keys, a whole step.
    """
    _transfer("move", **options)


def _transfer(
    verb: str,
    *,
    words: tuple[str, ...],
    step: str | None,
    to_step: str | None,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    if to_step is not None and step is None:
        raise click.UsageError("--to-step needs --step.")
    whole = to_step is not None and len(words) <= 1
    directory, names = directory_and(words, () if whole else ("FROM", "TO"))
    target = Where(directory, environment, step, force=force).target()
    pairs: list[tuple[StateEntry, Name]]
    if whole:
        assert step is not None
        assert to_step is not None
        pairs = [(entry, (to_step, entry.name[1])) for entry in target.entries()]
        if not pairs:
            raise StateNotFoundError(f"step {step!r:.80} has no state")
    else:
        source: Name = names[0] if step is None else (step, names[0])
        entry = target.find(source)
        if entry is None:
            raise missing(target, source)
        pairs = [(entry, names[1] if step is None else (to_step or step, names[1]))]
    for entry, destination in pairs:
        if entry.name == destination:
            raise ConfigurationError(
                f"{shown(destination)} is both source and destination", cause="", remedy="Name another one."
            )
    seen = target.find_all(destination for _, destination in pairs)
    replaced = [name for name, before in seen.items() if before is not None]
    if replaced:
        ask(f"Overwrite {', '.join(map(shown, replaced[:3]))}{' …' if len(replaced) > 3 else ''}?", yes or force)
    ask_of_new_steps(target, seen, yes or force)
    changes: dict[Name, Any] = {destination: entry.whole() for entry, destination in pairs}
    seen.update({entry.name: entry for entry, _ in pairs})
    if verb == "move":
        changes.update({entry.name: REMOVED for entry, _ in pairs})
    done(target.write(verb, changes, seen), as_json)
