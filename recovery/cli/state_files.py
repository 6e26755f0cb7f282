"""`recovery state export`, `import` and `migrate`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from recovery.base.addresses import local_path
from recovery.base.clock import SystemClock
from recovery.base.wording import counted
from recovery.cli.asking import ask
from recovery.cli.common import echo_json, json_option, write_whole
from recovery.cli.operational import directory_and, state_options
from recovery.cli.option import force_option, option, pattern_option, yes_option
from recovery.cli.state_common import (
    LOCKED,
    Where,
    ask_of_new_steps,
    done,
    held_epoch_option,
    json_text,
    lines_of,
    naming_file,
    shown,
)
from recovery.errors import CorruptStateError
from recovery.operational import marks
from recovery.operational.backends.migrate import migrate
from recovery.operational.backends.open import open_backend
from recovery.operational.backends.retry import RetryPolicy
from recovery.operational.exports import ExportedState, export_lines, read_export
from recovery.operational.targets import (
    DocumentTarget,
    Name,
    StateEntry,
    StateTarget,
    StepTarget,
    check_content,
    plain,
    unknown_step,
)


@click.command()
@click.argument("words", metavar="[DIR]", nargs=-1)
@option("--step", "steps", multiple=True, metavar="STEP",
        help="Write the states of this step of the flow instead of operational state.")  # fmt: skip
@held_epoch_option
@pattern_option
@option("-o", "--output-file", metavar="FILE|-", default="-", show_default=True,
        help="Where to write; `-` is standard output. A file is replaced as a whole; a link stays a link, and a pipe "
             "or device is written into.")  # fmt: skip
@state_options
def export(
    words: tuple[str, ...],
    steps: tuple[str, ...],
    epoch: int | None,
    pattern: str | None,
    output_file: str,
    environment: str,
) -> None:
    """Write states as lines of JSON.

    Writes operational state, or with --step the states of steps.
    """
    directory, _ = directory_and(words, ())
    first = Where(directory, environment, steps[0] if steps else None, epoch).target()
    # All steps are read as of one moment, even during a run.
    targets = [first.at_same_moment(step) for step in steps] if isinstance(first, StepTarget) else [first]
    for target, step in zip(targets, steps, strict=False):
        if isinstance(target, StepTarget) and (unknown := unknown_step(target, step)):
            raise unknown
    lines = export_lines(entry for target in targets for entry in target.entries(pattern))
    if output_file == "-":
        for line in lines:
            echo_json(line)
    else:
        text = "".join(f"{line}\n" for line in lines)
        write_whole(local_path(output_file, "a file of this machine"), text, private=True)


@click.command(name="import")
@click.argument("words", metavar="[DIR] FILE|-", nargs=-1)
@yes_option
@force_option(f"Do not ask, and go on although states were removed since they were exported: they come back; or "
              f"although {LOCKED}.")  # fmt: skip
@state_options
@json_option
def import_(words: tuple[str, ...], force: bool, yes: bool, environment: str, as_json: bool) -> None:
    """Read states that `export` wrote, all of them or none.

    States of steps become one epoch. The command asks everything before it writes anything, and refuses a truncated
    export as a whole. A state that was removed since it was exported stays removed, unless --force is given.
    """
    directory, [file] = directory_and(words, ("FILE",))
    with naming_file(file):
        found = read_export(lines_of(file))
    documents = [each for each in found if each.id is not None]
    keys = [each for each in found if each.step is not None]
    # Refusals and questions come before anything is written.
    writes = []
    if documents:
        writes.append(
            _import_documents(Where(directory, environment, None, force=force).documents(), documents, yes, force)
        )
    if keys:
        writes.append(
            _import_keys(Where(directory, environment, keys[0].step, force=force).target(), keys, yes or force)
        )
    done("; ".join([write() for write in reversed(writes)][::-1]) or "nothing to change", as_json)


@click.command(name="migrate")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@force_option("Go on although TO holds other states: those of the same id are overwritten.")
@pattern_option
@json_option
def migrate_(source: str, target: str, force: bool, pattern: str | None, as_json: bool) -> None:
    """Copy operational state to another place, and verify the copy.

    Copies all, or what --pattern selects. A place is a DIR or a URI. What has expired is neither copied nor counted.
    """
    clock, retry = SystemClock(), RetryPolicy()
    origin, place = open_backend(source, clock, retry), open_backend(target, clock, retry)
    count = migrate(origin, place, force=force, pattern=pattern)
    done(f"{counted(count, 'state')} copied and verified", as_json)


def _import_documents(target: DocumentTarget, found: list[ExportedState], yes: bool, force: bool) -> Callable[[], str]:
    # Earlier versions exported them, too.
    found = [each for each in found if not target.is_of_store(str(each.id))]
    lasting = [each for each in found if not target.has_expired(each.facts)]
    removed = target.removed()
    stale = [e.id for e in lasting if e.id is not None and removed.get(e.id, 0) > e.generation]
    if stale and not force:
        raise CorruptStateError(
            f"{', '.join(stale[:3])} was removed after this export was made",
            cause="The export is older than the removal.",
            remedy="To restore it anyway, give --force.",
        )
    seen = target.find_all(str(e.id) for e in found)
    held = {entry.name: entry for entry in target.entries()}
    changes: dict[Name, Any] = {
        str(e.id): e.whole() for e in lasting if str(e.id) not in held or not _is_held(e, held[str(e.id)])
    }
    for name, content in changes.items():
        check_content(str(name), plain(content))
    replaced = [name for name in changes if name in held]
    if replaced:
        ask(f"Overwrite {', '.join(map(shown, replaced[:3]))}{' …' if len(replaced) > 3 else ''}?", yes or force)

    def write() -> str:
        if changes:
            target.write("import", changes, {name: seen[str(name)] for name in changes})
        gone = len(found) - len(lasting)
        return f"{counted(len(changes), 'state')} written" + (f", {gone} left out: expired" if gone else "")

    return write


def _is_held(given: ExportedState, held: StateEntry) -> bool:
    """Whether an imported document equals the stored one; for marks, whether their values do."""
    if given.id == marks.DOCUMENT:
        with contextlib.suppress(TypeError, KeyError, AttributeError):
            return _values(given.content) == _values(held.content)
    same_facts = given.facts is None or given.facts == held.facts
    return same_facts and json_text(held.content) == json_text(given.content)


def _values(content: Any) -> dict[str, str]:
    return {key: json_text(entry["value"]) for key, entry in content["marks"].items() if "value" in entry}


def _import_keys(target: StateTarget, found: list[ExportedState], sure: bool) -> Callable[[], str]:
    """Return a function that imports the keys of all steps together: they are one epoch."""
    names = [(str(e.step), str(e.key)) for e in found]
    seen = target.find_all(names)
    changes: dict[Name, Any] = {name: e.whole() for name, e in zip(names, found, strict=True)}
    replaced = Counter(
        name[0]
        for name in dict.fromkeys(names)
        if (s := seen[name]) is not None
        and (json_text(s.content), s.timeout_ms) != (json_text(changes[name].content), changes[name].timeout_ms)
    )
    if replaced:
        listed = ", ".join(f"{counted(count, 'key')} of step {step}" for step, count in replaced.items())
        ask(f"Overwrite {listed}?", sure)
    ask_of_new_steps(target, names, sure)
    return lambda: target.write("import", changes, seen)
