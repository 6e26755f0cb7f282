"""Shared by all commands: exits on errors, the form of intervals and directories, and what is printed how."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import re
import select
import signal
import stat
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from recovery.base.addresses import local_path
from recovery.base.intervals import parse_interval, parse_trigger
from recovery.base.printable import one_line, printable
from recovery.base.wording import moment_text
from recovery.cli.misplaced import Guided
from recovery.cli.option import ParsedType, option
from recovery.cli.output_errors import of_output, output_failed
from recovery.cli.terminal import has_colours
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError, StorageError
from recovery.host.durable import PRIVATE, UMASK, replace
from recovery.host.signals import handled, interrupt
from recovery.host.storage_errors import storage_errors
from recovery.planning.health import format_bytes

F = TypeVar("F", bound=Any)

READER_GONE = 141
"""The exit code of a command whose standard output lost its reader, as of a process that SIGPIPE ends."""


class Summaries(click.Group):
    """A group whose help has each command's whole summary. sections: the commands by what a person wants; without
    sections they are one list."""

    sections: Mapping[str, Sequence[str]] = {}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help, under the heading of its section."""
        for title, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            found = [(name, self.commands[name]) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(sys.maxsize)) for name, each in found])


class Commands(Summaries, Guided):
    """A group whose errors end the process with their own exit code and without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        _allow_any_character(sys.stdout)  # standard error already escapes them
        try:
            with _only_text(), _shown_safely(), handled(interrupt):
                found = super().invoke(ctx)
                # Write now what a flow printed, while a failure can still be reported.
                click.echo(nl=False)
                return found
        except RecoveryError as error:
            if _stopped_by_reader(error):
                ctx.exit(READER_GONE)
            _end_by(ctx, error)
        except KeyboardInterrupt as error:
            ctx.exit(128 + getattr(error, "number", signal.SIGINT))
        except OSError as error:
            if _stopped_by_reader(error):
                ctx.exit(READER_GONE)
            _end_by(ctx, output_failed(error) if of_output(error) else StorageError(str(error), path=error.filename))
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            # Few commands need what checks partitions, and none of them at its start.
            from recovery.storage.verify import damage_behind

            damage = damage_behind(error)
            if damage is None:
                raise
            _end_by(ctx, damage)
        finally:
            _give_up_unwritten(sys.stderr)
            if _reader_is_gone(sys.stdout):
                _give_up_unwritten(sys.stdout)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order in which a newcomer needs them."""
        return list(self.commands)

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Create the context; `--help` and `--version` print during this call."""
        try:
            with _shown_safely():
                return super().make_context(*args, **more)
        except OSError as error:
            if not _stopped_by_reader(error):
                raise
            _give_up_unwritten(sys.stdout)
            raise SystemExit(READER_GONE) from None


def _stopped_by_reader(error: BaseException) -> bool:
    """Whether the error came from a reader of standard output that went away, as `head` does legitimately."""
    broken = isinstance(error, BrokenPipeError) or (
        isinstance(error, FlowFailedError) and "BrokenPipeError" in f"{error} {error.__cause__!r}"
    )
    return broken and _reader_is_gone(sys.stdout)


def _reader_is_gone(stream: TextIO | None) -> bool:
    try:
        if stream is None or not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            return False
        asked = select.poll()
        asked.register(stream.fileno(), 0)
        return any(found & select.POLLERR for _, found in asked.poll(0))
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _shown_safely() -> Iterator[None]:
    """Escape messages about command line mistakes, which repeat words from it."""
    try:
        yield
    except click.ClickException as error:
        # The message may repeat a path with any characters.
        error.__dict__["message"] = printable(error.message).replace("\n", "\n  ")
        raise


def _give_up_unwritten(stream: TextIO | None) -> None:
    """Discard output that could not be written: otherwise Python would try again at its end, and end with its own
    code."""
    # It is None if the process was started without it.
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end_by(ctx: click.Context, error: RecoveryError) -> NoReturn:
    """Show the error if possible, and end with its exit code."""
    if ctx.params.get("debug"):
        # Print all but its last lines: those are the error's text, which follows.
        tell("".join(traceback.format_exception(error)[:-1]).rstrip())
    if ctx.meta.get("recovery.json"):
        with contextlib.suppress(OSError):
            print_json(error.as_json(), line=True)
    else:
        tell_error(error)
    _give_up_unwritten(sys.stdout)
    ctx.exit(error.exit_code)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Encode characters that an encoding lacks as JSON escapes, so that the meaning of JSON text does not change."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("recovery.escaped", _escaped)


def _allow_any_character(stream: TextIO | None) -> None:
    """Let a terminal or file escape characters that its encoding lacks; UTF-8 lacks none."""
    if isinstance(stream, io.TextIOWrapper) and not is_utf8(stream):
        stream.reconfigure(errors="recovery.escaped")


def is_utf8(stream: TextIO) -> bool:
    """Whether a stream has every character."""
    return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name == "utf-8"


@contextlib.contextmanager
def _only_text() -> Iterator[None]:
    """Refuse arguments that are not text. File names are exempt: they may hold any bytes."""
    try:
        yield
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        raise ConfigurationError(
            f"{error.object!r:.120} is not text",
            cause="The text holds bytes that are not UTF-8, or half a character.",
            remedy="Write it in UTF-8.",
        ) from error


class IntervalType(ParsedType[float]):
    """A number of seconds, or 10s, 5m, 1h."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_interval(value)
        except ConfigurationError as error:
            self.fail(f"{error.found}. {error.remedy}", param, ctx)


INTERVAL = IntervalType()


class TriggerType(ParsedType[str | float]):
    """available-now, once, or an interval."""

    name = "trigger"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        try:
            return parse_trigger(value) or 0.0
        except ConfigurationError as error:
            self.fail(f"{error.found}. {error.remedy}", param, ctx)


TRIGGER = TriggerType()


class DirectoryType(click.Path):
    """A path; an empty text is refused, although the operating system takes it for the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; a variable of the shell may not be set", param, ctx)
        # Check before it becomes a Path, which turns two slashes into one.
        local_path(value, "a path of this machine")
        return super().convert(value, param, ctx)


DIRECTORY = DirectoryType(path_type=Path)


def directory_argument(function: F) -> F:
    """Add DIR, or the environment variable RECOVERY_DIRECTORY."""
    argument = click.argument("directory", metavar="DIR", type=DIRECTORY, envvar="RECOVERY_DIRECTORY")
    return argument(function)


def json_option(function: F) -> F:
    """Add --json: print the same facts for programs, and errors too as JSON on standard output."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta["recovery.json"] = value
        return value

    text = "Print the same facts as JSON on standard output, for programs; errors, too."
    return option("--json", "as_json", is_flag=True, callback=remember, help=text)(function)


def umask_option(function: F) -> F:
    """Add --umask: who may read what is made."""
    text = "Let other users read the new files, as far as [your umask](security.md#modes-of-files) allows. Without it, "
    return option("--umask", is_flag=True, help=f"{text}only you can.")(function)


def tolerate_option(function: F) -> F:
    """Add --tolerate: the recovery time in seconds for which advice is given."""
    text = "The longest acceptable recovery time after a crash, without Spark's start, for [advice](metrics.md#advice)."
    return option("--tolerate", type=INTERVAL, default="30s", show_default=True, help=text)(function)


_STYLES = {"bold": "\ufdd0", "red": "\ufdd1", "green": "\ufdd2", "yellow": "\ufdd3", "white": "\ufdd4"}
_PLAIN = "\ufdd5"
# Untrusted text no longer contains these characters here, so only they become terminal sequences.
_SEQUENCES = {
    **{ord(mark): click.style("", bold=True, reset=False) for name, mark in _STYLES.items() if name == "bold"},
    **{ord(mark): click.style("", fg=name, reset=False) for name, mark in _STYLES.items() if name != "bold"},
    ord(_PLAIN): click.style("", reset=True),
}


def style(text: object, name: str) -> str:
    """Mark one line as bold or coloured, for `say` and `tell`."""
    return f"{_STYLES[name]}{one_line(text)}{_PLAIN}"


def _for_terminal(text: str) -> str:
    """Return the text to print, in which a terminal obeys only the sequences of `style`."""
    pieces = re.split(f"([{''.join(_STYLES.values())}{_PLAIN}])", text)
    return "".join(piece.translate(_SEQUENCES) if i % 2 else printable(piece) for i, piece in enumerate(pieces))


def say(text: str = "", *, end: str = "\n") -> None:
    """Print a result on standard output. Untrusted parts must pass through `one_line` first, or a `table`."""
    click.echo(f"{_for_terminal(text)}{end}", nl=False, color=has_colours(sys.stdout))


def tell(text: str, stream: TextIO | None = None, *, start: str = "", end: str = "\n") -> None:
    """Print a message on standard error, or on `stream`. A message that cannot be written is dropped: it ends no work.

    start, end: written around it, and obeyed by a terminal.
    """
    with contextlib.suppress(OSError):
        line = f"{start}{_for_terminal(text)}{end}"
        click.echo(line, file=stream, err=stream is None, nl=False, color=has_colours(stream or sys.stderr))


def tell_error(error: object) -> None:
    """Print an error on standard error."""
    # Further lines are indented, so that untrusted text cannot look like another part.
    parts = error.parts() if isinstance(error, RecoveryError) else [str(error)]
    tell(f"{style('Error', 'red')}: " + "\n".join(part.replace("\n", "\n  ") for part in parts))


def echo_json(text: str) -> None:
    """Print a line of JSON with any characters on standard output: in ASCII unless that is UTF-8, because readers
    decode it as UTF-8."""
    if sys.stdout is not None and not is_utf8(sys.stdout):
        text = text.encode("ascii", "recovery.escaped").decode()
    click.echo(one_line(text))


def print_json(value: Any, *, line: bool = False) -> None:
    """Print one JSON document on standard output; `line`: on a single line, for a sequence of documents."""
    click.echo(printable(json.dumps(value, indent=None if line else 2, default=str)))


def format_size(size_bytes: int) -> str:
    """Return a size such as 1.2 MB."""
    return format_bytes(size_bytes)


def format_time(wall_ms: int | None) -> str:
    """Return local time to the second, with its offset from UTC."""
    return "-" if wall_ms is None else moment_text(wall_ms)


def write_whole(path: Path, text: str | Iterable[str], *, private: bool = False) -> bool:
    """Write all of the text to a file, or leave it unchanged. An existing file keeps its permissions; a new private one
    is readable by this user only. Other things at the path, such as a pipe, get the text, and so does this process's
    own output if the path leads to it; returns False for that, True otherwise. text: whole, or in pieces, which need
    not fit in memory together.

    Raises ConfigurationError for a path that cannot be a file, StorageError.
    """
    local_path(path, "a file of this machine")
    if not path.name or os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise ConfigurationError(f"{path} is a directory", cause="", remedy="Name a file.")
    own, pieces = _own_output(path), (text,) if isinstance(text, str) else text
    if own is not None:
        # Writing through a second descriptor would overwrite the output of the first.
        for piece in pieces:
            click.echo(piece, nl=False, err=own == 2)
        return False
    if _is_device(path):
        try:
            with path.open("w", encoding="utf-8") as device:
                device.writelines(pieces)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(str(error), path=path) from error
        return True
    # Keep a link, and write its target.
    file = Path(os.path.realpath(path))
    if not os.path.isdir(file.parent):  # noqa: PTH112 - as above
        raise ConfigurationError(
            f"{path} cannot be written: there is no directory {file.parent}",
            cause="",
            remedy="Make it, or name another.",
        )
    with storage_errors(path):
        there = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
        replace(
            file,
            (piece.encode() for piece in pieces),
            mode=there if there is not None else (PRIVATE if private else UMASK).file,
        )
    return True


def _is_device(path: Path) -> bool:
    """Whether the path is something that a file must not replace: a device, or a pipe."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _own_output(path: Path) -> int | None:
    """Return the number of this process's own output to which the path leads."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None
