"""Shared by the commands of `recovery state`: the choice of states, options, questions and messages."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.base.untrusted_paths import read_named
from recovery.cli.asking import ask
from recovery.cli.common import INTERVAL, json_option, print_json, say
from recovery.cli.operational import chosen_access, directory_and, open_state, state_options
from recovery.cli.operators import refused_operator_option
from recovery.cli.option import ParsedType, epoch_option, force_option, option, yes_option
from recovery.cli.owners import store_to_read
from recovery.errors import ConfigurationError, CorruptStateError, StateValueError
from recovery.operational.scopes import NEVER
from recovery.operational.targets import DocumentTarget, Name, StateTarget, StepTarget, unknown_step
from recovery.operational.values import parse_json

NAMED = "a file of this machine"
MOST_BYTES = 1 << 30
"""The most bytes of a file that is imported: the whole file is in memory."""
LOCKED = "a run holds the directory's lock: an edit of a step fences that run"
"""The refusal that --force of edits overrides."""
F = TypeVar("F", bound=Callable[..., Any])


class RetentionType(ParsedType[float | str]):
    """An interval, or never."""

    name = "retention"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        return NEVER if value == NEVER else INTERVAL.convert(value, param, ctx)


RETENTION = RetentionType()


@dataclass(frozen=True, slots=True)
class Where:
    """The states that a command's options select."""

    directory: str
    environment: str
    step: str | None
    epoch: int | None = None
    force: bool = False

    def target(self) -> StateTarget:
        """Return the target for reading and writing state."""
        if self.step is not None:
            store = store_to_read(Path(self.directory), chosen_access())
            return StepTarget(store, self.step, SystemClock(), epoch=self.epoch, force=self.force)
        if self.epoch is not None:
            raise click.UsageError("--epoch needs --step: operational state belongs to no epoch.")
        return self.documents()

    def documents(self) -> DocumentTarget:
        """Return the operational state."""
        opened = open_state(self.directory, self.environment)
        return DocumentTarget(opened.backend, opened.prefix, SystemClock(), force=self.force)


def step_option(function: F) -> F:
    """Add --step: work on the state of a step of the flow."""
    text = "Work on the states of this step of the flow, in place of operational state."
    return option("--step", metavar="STEP", help=text)(function)


held_epoch_option = epoch_option(
    "With --step or --operator: as of this epoch, one that `recovery status` shows as held."
)


def key_option(function: F) -> F:
    """Add --key: which key of the step."""
    return option("--key", metavar="KEY", help="With --step: the [key](file-format.md#keys) of the step.")(function)


def any_key_option(function: F) -> F:
    """Add --key: which key of the step, or of the operator."""
    text = (
        "With --step: the [key](file-format.md#keys) of the step. With --operator: a JSON object of the key's columns, "
    )
    return option("--key", metavar="KEY", help=f"{text}or the text of a key of one column.")(function)


def input_option(function: F) -> F:
    """Add --input-file: where the JSON is."""
    text = "Read the JSON from a file; `-` is standard input."
    return option("--input-file", metavar="FILE|-", help=text)(function)


def writing_options(function: F) -> F:
    """Add the options of every command that writes states."""
    force = force_option(f"Do not ask, and go on although {LOCKED}.")
    return step_option(refused_operator_option(yes_option(force(state_options(json_option(function))))))


def named(words: tuple[str, ...], step: str | None, key: str | None) -> tuple[str, Name]:
    """Return the directory, and the id or the step and key, from a command's words."""
    _check_step_and_key(step, key)
    if step is None or key is None:
        directory, [name] = directory_and(words, ("ID",))
        return directory, name
    directory, _ = directory_and(words, ())
    return directory, (step, key)


def with_content(
    words: tuple[str, ...], step: str | None, key: str | None, input_file: str | None
) -> tuple[str, Name, Any]:
    """Return DIR, the name of a state, and the JSON of the last word or of a file."""
    if input_file is not None:
        directory, name = named(words, step, key)
        with naming_file(input_file, "Put JSON into the file, as `python -m recovery state get` prints it."):
            return directory, name, parse_json("\n".join(lines_of(input_file)))
    if step is not None and key is not None:
        directory, [text] = directory_and(words, ("JSON",))
        return directory, (step, key), parse_json(text)
    _check_step_and_key(step, key)
    directory, [name, text] = directory_and(words, ("ID", "JSON"))
    return directory, name, parse_json(text)


def _check_step_and_key(step: str | None, key: str | None) -> None:
    if (step is None) != (key is None):
        raise click.UsageError("Give both --step and --key, or neither.")


def lines_of(file: str) -> list[str]:
    """Return the lines of a file or of standard input. Raises ConfigurationError."""
    try:
        text = sys.stdin.read() if file == "-" else read_named(local_path(file, NAMED), MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{file}: it is not UTF-8 from byte {error.start} on", cause="", remedy="Write the file in UTF-8."
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{file}: it cannot be read: {error}", cause="", remedy="Check the path.") from error
    return text.removesuffix("\n").split("\n")


@contextlib.contextmanager
def naming_file(file: str, remedy: str | None = None) -> Iterator[None]:
    """Add the file's name to errors in its content, and `remedy`, if given, in place of the error's own."""
    try:
        yield
    except (StateValueError, CorruptStateError) as error:
        path = None if file == "-" else file
        raise type(error)(error.found, path=path, cause=error.cause, remedy=remedy or error.remedy) from error


def ask_of_new_steps(target: StateTarget, names: Iterable[Name], sure: bool) -> None:
    """Ask before a step gets its first state here: if its name is misspelt, no run would use that state."""
    if isinstance(target, StepTarget):
        for step in sorted({name[0] for name in names if not isinstance(name, str)}):
            unknown = unknown_step(target, step)
            if unknown is not None:
                ask(f"There is no step {step!r:.80} yet. {unknown.remedy.rstrip('.')}. Make it?", sure)


def done(message: str, as_json: bool) -> None:
    """Report what was done."""
    if as_json:
        print_json({"done": message})
    else:
        say(one_line(message))


def shown(name: Name) -> str:
    """Return a name as messages show it."""
    return f"{name!r:.120}" if isinstance(name, str) else f"step {name[0]!r:.80} key {name[1]!r:.120}"


def json_text(content: Any) -> str:
    """Return content as JSON that `set` accepts."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def short(content: Any) -> str:
    """Return the beginning of the content's JSON."""
    text = json_text(content)
    return text if len(text) <= 60 else f"{text[:57]}..."
