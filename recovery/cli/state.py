"""`recovery state list|get|set|merge|copy|move|clear|edit|export|import`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery.cli.common import format_time, json_option, print_json, table
from recovery.cli.hwm import VALUES
from recovery.cli.native import conf_option, print_state, refused_operator_option, store_option, variable_option
from recovery.cli.places import directory_and, open_state, state_options
from recovery.clock import SystemClock
from recovery.errors import ConfigurationError, CorruptStateError, StateNotFoundError
from recovery.state.exports import Exported, export_lines, read_export
from recovery.state.migrate import migrate
from recovery.state.objects import is_uri
from recovery.state.open import open_backend
from recovery.state.retry import RetryPolicy
from recovery.state.steps import moment
from recovery.state.targets import REMOVED, Documents, Entry, Name, Steps, Target, Timed, merge, missing
from recovery.state.values import parse_json

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def state() -> None:
    """Operational state by its id, or the state of a flow's step with --step. Edits of steps are an epoch of their own.

    DIR may be left out when RECOVERY_DIRECTORY says it. Without --step: any state that `state list` shows.
    """


@dataclass(frozen=True, slots=True)
class Where:
    """What the options say: which states a command is about."""

    directory: str
    environment: str
    step: str | None
    epoch: int | None = None
    force: bool = False

    def target(self) -> Target:
        """Where they are read and written."""
        if self.step is not None:
            return Steps(Path(self.directory), self.step, SystemClock(), epoch=self.epoch, force=self.force)
        if self.epoch is not None:
            raise click.UsageError("--epoch needs --step: operational state belongs to no epoch.")
        return self.documents()

    def documents(self) -> Documents:
        """The operational state."""
        opened = open_state(self.directory, self.environment)
        return Documents(opened.backend, opened.prefix)

    def name(self, word: str) -> Name:
        """The id, or step and key."""
        return word if self.step is None else (self.step, word)


def step_option(function: F) -> F:
    """--step: work on the state of a step of the flow."""
    return click.option("--step", metavar="STEP", help="Work on the states of this step of the flow.")(function)


def key_option(function: F) -> F:
    """--key: which key of the step."""
    return click.option("--key", metavar="KEY", help="The state key, with --step or --operator.")(function)


def epoch_option(function: F) -> F:
    """--epoch: as of which epoch."""
    return click.option(
        "--epoch",
        type=click.IntRange(min=0),
        help="As of this epoch, of a step or operator; by default the newest.",
    )(function)


def pattern_option(function: F) -> F:
    """--pattern: which of them."""
    return click.option(
        "--pattern", metavar="GLOB", help="Only ids or keys that match: * any characters, ? one, [abc] one of these."
    )(function)


def force_option(function: F) -> F:
    """--force and --yes."""
    option = click.option("--force", is_flag=True, help="Ask nothing; and fence a run that holds the directory's lock.")
    return click.option("--yes", "-y", is_flag=True, help="Ask nothing.")(option(function))


def native_options(function: F) -> F:
    """--operator and what says which of its state."""
    option = click.option("--operator", type=click.IntRange(min=0), metavar="N",
                          help="Read the state of this operator of Spark's own; starts Spark.")  # fmt: skip
    return option(store_option(variable_option(conf_option(function))))


@state.command(name="list")
@click.argument("words", metavar="[DIR]", nargs=-1)
@step_option
@native_options
@epoch_option
@pattern_option
@state_options
@json_option
def list_(
    words: tuple[str, ...],
    step: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    conf: tuple[str, ...],
    epoch: int | None,
    pattern: str | None,
    environment: str,
    as_json: bool,
) -> None:
    """List operational state, and the steps of the flow; with --step the keys of that step, with --operator those of
    one of Spark's own operators."""
    directory, _ = directory_and(words, ())
    if operator is not None:
        if step is not None or pattern is not None:
            raise click.UsageError("--operator goes with neither --step nor --pattern.")
        print_state(Path(directory), operator, epoch=epoch, store=store, variable=variable, conf=conf, as_json=as_json)
        return
    found = Where(directory, environment, step, epoch).target().entries(pattern)
    steps = [] if step is not None else _steps(directory)
    if as_json:
        print_json([entry.as_json() for entry in found] if step is not None else
                   {"states": [entry.as_json() for entry in found], "steps": steps})  # fmt: skip
        return
    if step is not None:
        click.echo(table(("key", "epoch", "state"), ((e.name[1], e.version, _short(e.content)) for e in found)))
        return
    shown = ((e.name, e.version[0], format_time(e.version[1]), _short(e.content)) for e in found)
    click.echo(table(("state", "generation", "changed", "content"), shown))
    if steps:
        click.echo(f"steps: {', '.join(steps)}")


@state.command()
@click.argument("words", metavar="[DIR] [ID]", nargs=-1)
@step_option
@key_option
@native_options
@epoch_option
@state_options
@json_option
def get(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    operator: int | None,
    store: str | None,
    variable: str | None,
    conf: tuple[str, ...],
    epoch: int | None,
    environment: str,
    as_json: bool,
) -> None:
    """Print one state as JSON, in the form that `set` accepts. Exits with 44 when there is none.

    With --operator, --key is a JSON object of the key's columns, or the text of a key of one column.
    """
    if operator is not None:
        if step is not None or key is None:
            raise click.UsageError("--operator needs --key, and goes without --step.")
        directory, _ = directory_and(words, ())
        print_state(
            Path(directory), operator, epoch=epoch, store=store, variable=variable, conf=conf, as_json=as_json, key=key
        )
        return
    directory, name = _named(words, step, key)
    entry = Where(directory, environment, step, epoch).target().find(name)
    if entry is None:
        raise missing(name)
    if as_json:
        print_json(entry.as_json())
    else:
        click.echo(_text(entry.content))


@state.command(name="set", context_settings=VALUES)
@click.argument("words", metavar="[DIR] [ID] [JSON]", nargs=-1, type=click.UNPROCESSED)
@step_option
@refused_operator_option
@key_option
@click.option("--input-file", metavar="FILE|-", help="Read the JSON from a file, or from standard input.")
@force_option
@state_options
@json_option
def set_(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    input_file: str | None,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Set one state to a JSON value. Asks before it overwrites one."""
    directory, name, content = _with_content(words, step, key, input_file)
    where = Where(directory, environment, step, force=force)
    target = where.target()
    before = target.find(name)
    if before is not None and before.content != content:
        _ask(f"{_shown(name)} is {_short(before.content)}. Overwrite it?", yes or force)
    _done(target.write("set", {name: content}, {name: before}), as_json)


@state.command(name="merge", context_settings=VALUES)
@click.argument("words", metavar="[DIR] [ID] [JSON]", nargs=-1, type=click.UNPROCESSED)
@step_option
@refused_operator_option
@key_option
@click.option("--input-file", metavar="FILE|-", help="Read the JSON from a file, or from standard input.")
@force_option
@state_options
@json_option
def merge_(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    input_file: str | None,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Merge a JSON object into one state: members of objects are set one by one, everything else is replaced."""
    directory, name, content = _with_content(words, step, key, input_file)
    target = Where(directory, environment, step, force=force).target()
    before = target.find(name)
    merged = content if before is None else merge(before.content, content)
    if before is not None and before.content != merged and not (yes or force):
        _ask(f"{_shown(name)} becomes {_short(merged)}. Go on?", False)
    _done(target.write("merge", {name: merged}, {name: before}), as_json)


@state.command()
@click.argument("words", metavar="[DIR] FROM TO", nargs=-1)
@step_option
@refused_operator_option
@click.option(
    "--to-step", metavar="STEP", help="With --step: copy to keys of this step; without FROM and TO, all keys."
)
@force_option
@state_options
@json_option
def copy(**options: Any) -> None:
    """Copy a state to another id; with --step, a key to another key, or a whole step. Asks before it overwrites."""
    _transfer("copy", **options)


@state.command()
@click.argument("words", metavar="[DIR] FROM TO", nargs=-1)
@step_option
@refused_operator_option
@click.option(
    "--to-step", metavar="STEP", help="With --step: move to keys of this step; without FROM and TO, all keys."
)
@force_option
@state_options
@json_option
def move(**options: Any) -> None:
    """Move a state to another id; with --step, a key to another key, or a whole step. Asks before it overwrites."""
    _transfer("move", **options)


@state.command()
@click.argument("words", metavar="[DIR] [ID]", nargs=-1)
@step_option
@refused_operator_option
@key_option
@pattern_option
@force_option
@state_options
@json_option
def clear(
    words: tuple[str, ...],
    step: str | None,
    key: str | None,
    pattern: str | None,
    force: bool,
    yes: bool,
    environment: str,
    as_json: bool,
) -> None:
    """Remove states: one, or all that a glob selects. A tombstone stays, so that no older export brings them back."""
    where = Where("", environment, step, force=force)
    if pattern is None:
        directory, name = _named(words, step, key)
        target = Where(directory, environment, step, force=force).target()
        entry = target.find(name)
        if entry is None:
            raise missing(name)
        found = [entry]
    else:
        directory, _ = directory_and(words, ())
        target = Where(directory, where.environment, step, force=force).target()
        found = target.entries(pattern)
        if not found:
            raise StateNotFoundError(f"no state matches {pattern!r:.120}")
    names = [entry.name for entry in found]
    listed = ", ".join(map(_shown, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    _ask(f"Remove {listed}?", yes or force)
    _done(target.write("clear", dict.fromkeys(names, REMOVED), {e.name: e for e in found}), as_json)


@state.command()
@click.argument("words", metavar="[DIR] [ID]", nargs=-1)
@step_option
@refused_operator_option
@key_option
@click.option("--force", is_flag=True, help="Fence a run that holds the directory's lock.")
@state_options
@json_option
def edit(
    words: tuple[str, ...], step: str | None, key: str | None, force: bool, environment: str, as_json: bool
) -> None:
    """Edit one state as JSON in $EDITOR; saving it unchanged changes nothing."""
    directory, name = _named(words, step, key)
    target = Where(directory, environment, step, force=force).target()
    before = target.find(name)
    if before is None:
        raise missing(name)
    text = json.dumps(before.content, indent=2, ensure_ascii=False) + "\n"
    edited = click.edit(text, extension=".json")
    if edited is None or parse_json(edited) == before.content:
        _done("nothing to change", as_json)
        return
    _done(target.write("edit", {name: parse_json(edited)}, {name: before}), as_json)


@state.command()
@click.argument("words", metavar="[DIR]", nargs=-1)
@click.option("--step", "steps", multiple=True, metavar="STEP", help="Only this step; may be given several times.")
@epoch_option
@pattern_option
@click.option("--output-file", metavar="FILE|-", default="-", help="Where to; by default standard output.")
@state_options
def export(
    words: tuple[str, ...],
    steps: tuple[str, ...],
    epoch: int | None,
    pattern: str | None,
    output_file: str,
    environment: str,
) -> None:
    """Write states as lines of JSON: operational state, or those of steps."""
    directory, _ = directory_and(words, ())
    wanted = [Where(directory, environment, step, epoch) for step in steps or (None,)]
    lines = export_lines(entry for where in wanted for entry in where.target().entries(pattern))
    if output_file == "-":
        for line in lines:
            click.echo(line)
    else:
        text = "".join(f"{line}\n" for line in lines)
        _write_whole(Path(output_file), text)


@state.command(name="import")
@click.argument("words", metavar="[DIR] FILE|-", nargs=-1)
@force_option
@state_options
@json_option
def import_(words: tuple[str, ...], force: bool, yes: bool, environment: str, as_json: bool) -> None:
    """Read states that `export` wrote: all of them or none. Asks before it overwrites others.

    A state that was removed since it was exported stays removed, unless --force is given.
    """
    directory, [file] = directory_and(words, ("FILE",))
    found = read_export(_lines(file))
    documents = [each for each in found if each.id is not None]
    said = []
    if documents:
        said.append(_import_documents(Where(directory, environment, None).documents(), documents, yes, force))
    for step in dict.fromkeys(each.step for each in found if each.step is not None):
        target = Where(directory, environment, step, force=force).target()
        said.append(_import_step(target, step, [each for each in found if each.step == step], yes or force))
    _done("; ".join(said) or "nothing to change", as_json)


@state.command(name="migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--force", is_flag=True, help="Overwrite states of the same id that the target has.")
@json_option
def migrate_(source: str, target: str, force: bool, as_json: bool) -> None:
    """Copy all operational state from one place to another, and verify the copy. A place is a DIR or a URI."""
    clock, retry = SystemClock(), RetryPolicy()
    count = migrate(open_backend(source, clock, retry), open_backend(target, clock, retry), force=force)
    _done(f"{count} states copied and verified", as_json)


def _import_documents(target: Documents, found: list[Exported], yes: bool, force: bool) -> str:
    removed = target.removed()
    stale = [e.id for e in found if e.id is not None and removed.get(e.id, 0) > e.generation]
    if stale and not force:
        raise CorruptStateError(
            f"{', '.join(stale[:3])} was removed after this export was made",
            cause="The export is older than the removal.",
            remedy="To bring it back on purpose, give --force.",
        )
    seen = {str(e.id): target.find(str(e.id)) for e in found}
    changes: dict[Name, Any] = {
        str(e.id): e.content for e in found if (s := seen[str(e.id)]) is None or s.content != e.content
    }
    replaced = [name for name in changes if seen[str(name)] is not None]
    if replaced:
        _ask(f"Overwrite {', '.join(map(_shown, replaced[:3]))}{' …' if len(replaced) > 3 else ''}?", yes or force)
    if changes:
        target.write("import", changes, {name: seen[str(name)] for name in changes})
    return f"{len(changes)} states written"


def _import_step(target: Target, step: str, found: list[Exported], sure: bool) -> str:
    seen: dict[Name, Entry | None] = {(step, str(e.key)): target.find((step, str(e.key))) for e in found}
    changes: dict[Name, Any] = {(step, str(e.key)): Timed(e.content, e.timeout_ms) for e in found}
    replaced = [n for n, s in seen.items() if s is not None and Timed(s.content, s.timeout_ms) != changes[n]]
    if replaced:
        _ask(f"Overwrite {len(replaced)} keys of step {step}?", sure)
    return target.write("import", changes, seen)


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
    pairs: list[tuple[Entry, Name]]
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
            raise missing(source)
        pairs = [(entry, names[1] if step is None else (to_step or step, names[1]))]
    for entry, destination in pairs:
        if entry.name == destination:
            raise ConfigurationError(
                f"{_shown(destination)} is both where from and where to", cause="", remedy="Name another one."
            )
    seen: dict[Name, Entry | None] = {destination: target.find(destination) for _, destination in pairs}
    replaced = [name for name, before in seen.items() if before is not None]
    if replaced:
        _ask(f"Overwrite {', '.join(map(_shown, replaced[:3]))}{' …' if len(replaced) > 3 else ''}?", yes or force)
    changes: dict[Name, Any] = {
        destination: entry.content if step is None else Timed(entry.content, entry.timeout_ms)
        for entry, destination in pairs
    }
    seen.update({entry.name: entry for entry, _ in pairs})
    if verb == "move":
        changes.update({entry.name: REMOVED for entry, _ in pairs})
    _done(target.write(verb, changes, seen), as_json)


def _named(words: tuple[str, ...], step: str | None, key: str | None) -> tuple[str, Name]:
    if (step is None) != (key is None):
        raise click.UsageError("--step and --key belong together here.")
    if step is None or key is None:
        directory, [name] = directory_and(words, ("ID",))
        return directory, name
    directory, _ = directory_and(words, ())
    return directory, (step, key)


def _with_content(
    words: tuple[str, ...], step: str | None, key: str | None, input_file: str | None
) -> tuple[str, Name, Any]:
    if input_file is not None:
        directory, name = _named(words, step, key)
        return directory, name, parse_json("\n".join(_lines(input_file)))
    if not words:
        raise click.UsageError("Missing argument 'JSON'.")
    if step is not None and len(words) == 1:
        # DIR is what RECOVERY_DIRECTORY says.
        directory, _ = directory_and((), ())
        return directory, _named((directory,), step, key)[1], parse_json(words[-1])
    directory, name = _named(words[:-1], step, key)
    return directory, name, parse_json(words[-1])


def _lines(file: str) -> list[str]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: it cannot be read: {error}", cause="", remedy="Check the path.") from error
    return text.removesuffix("\n").split("\n")


def _write_whole(path: Path, text: str) -> None:
    """The file has all of the text, or is not made."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text)
        draft.rename(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{path}: it cannot be written: {error}", cause="", remedy="Check the path."
        ) from error


def _steps(directory: str) -> list[str]:
    return [] if is_uri(directory) else moment(Path(directory)).steps()


def _ask(question: str, sure: bool) -> None:
    """Raises Abort, which ends the command with exit code 1, when the answer is no."""
    if not sure:
        click.confirm(question, abort=True, err=True)


def _done(message: str, as_json: bool) -> None:
    if as_json:
        print_json({"done": message})
    else:
        click.echo(message)


def _shown(name: Name) -> str:
    return f"{name!r:.120}" if isinstance(name, str) else f"step {name[0]!r:.80} key {name[1]!r:.120}"


def _text(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _short(content: Any) -> str:
    text = _text(content)
    return text if len(text) <= 60 else f"{text[:57]}..."
