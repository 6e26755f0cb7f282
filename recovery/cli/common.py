"""What all commands share: how errors end, how intervals, directories and tables look."""

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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from recovery.base.addresses import local_path
from recovery.base.intervals import parse_interval, parse_trigger
from recovery.base.printable import columns, one_line, printable
from recovery.base.wording import moment_text
from recovery.errors import ConfigurationError, FlowFailedError, RecoveryError, StorageError
from recovery.host.durable import PRIVATE, UMASK, replace
from recovery.host.signals import handled, interrupt
from recovery.planning.health import format_bytes, parse_targets

F = TypeVar("F", bound=Any)

READER_GONE = 141
"""The exit code of a command whose standard output nobody reads any more: that of one which SIGPIPE ends."""


class Commands(click.Group):
    """A group whose errors end the process with their own exit code and without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        # Standard error escapes them already.
        _allow_any_character(sys.stdout)
        try:
            with _only_text(), _shown_safely(), handled(interrupt):
                found = super().invoke(ctx)
                # What a flow printed is written now, when it can still be told how that went.
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
            _end_by(ctx, _output_failed(error) if of_output(error) else StorageError(str(error), path=error.filename))
        finally:
            _give_up_unwritten(sys.stderr)
            if _reader_is_gone(sys.stdout):
                _give_up_unwritten(sys.stdout)

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        """Here `--help` and `--version` print."""
        try:
            with _shown_safely():
                return super().make_context(*args, **more)
        except OSError as error:
            if not _stopped_by_reader(error):
                raise
            _give_up_unwritten(sys.stdout)
            raise SystemExit(READER_GONE) from None


def _stopped_by_reader(error: BaseException) -> bool:
    """Whether whoever read our standard output went away, as `head` does, which is its right, and this came of it."""
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
    """Mistakes on the command line repeat words of it."""
    try:
        yield
    except click.ClickException as error:
        # What it repeats may be a path with anything in it.
        error.__dict__["message"] = printable(error.message).replace("\n", "\n  ")
        raise


def of_output(error: OSError) -> bool:
    """Whether it was raised where a command prints, and not because nobody reads that any more."""
    if isinstance(error, BrokenPipeError):
        return False
    return any("click" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)[-3:])


def _output_failed(error: OSError) -> StorageError:
    return StorageError(
        f"its output cannot be written: {error}",
        cause="The disk to which it is redirected is full or failing. What the command did before that is done.",
        remedy="Make room there, or redirect it elsewhere; recovery status DIR shows how the partitions are.",
    )


def _give_up_unwritten(stream: TextIO | None) -> None:
    """What could not be written goes nowhere: Python would try again at its end, and end with a code of its own."""
    # It is None where the process was started without it.
    if stream is None or stream.closed:
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end_by(ctx: click.Context, error: RecoveryError) -> NoReturn:
    """Show the error, where that can be shown, and end with its code."""
    if ctx.params.get("debug"):
        # All but its last lines: they are the error's text, which follows.
        tell("".join(traceback.format_exception(error)[:-1]).rstrip())
    if ctx.meta.get("recovery.json"):
        with contextlib.suppress(OSError):
            print_json(error.as_json(), line=True)
    else:
        tell_error(error)
    _give_up_unwritten(sys.stdout)
    ctx.exit(error.exit_code)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Characters that an encoding lacks, as JSON writes them: what is JSON stays the same JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error("recovery.escaped", _escaped)


def _allow_any_character(stream: TextIO | None) -> None:
    """What the encoding of a terminal or a file lacks is written in another way; UTF-8 lacks nothing."""
    if isinstance(stream, io.TextIOWrapper) and not _is_utf8(stream):
        stream.reconfigure(errors="recovery.escaped")


def _is_utf8(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding).name == "utf-8"


@contextlib.contextmanager
def _only_text() -> Iterator[None]:
    """Names of files may hold any bytes; what else is given has to be text."""
    try:
        yield
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        raise ConfigurationError(
            f"{error.object!r:.120} is no text",
            cause="It holds bytes that are not UTF-8, or half a character.",
            remedy="Write it in UTF-8.",
        ) from error


class IntervalType(click.ParamType[float]):
    """A number of seconds, or 10s, 5m, 1h."""

    name = "interval"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_interval(value)
        except ConfigurationError as error:
            self.fail(f"{error.found}. {error.remedy}", param, ctx)


INTERVAL = IntervalType()


class TriggerType(click.ParamType[str | float]):
    """available-now, once, or an interval."""

    name = "trigger"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        try:
            return parse_trigger(value) or 0.0
        except ConfigurationError as error:
            self.fail(f"{error.found}. {error.remedy}", param, ctx)


TRIGGER = TriggerType()


class DirectoryType(click.Path):
    """A path; an empty text is none, though the operating system takes it for the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty; a variable of the shell may not be set", param, ctx)
        # Before it becomes a Path, which makes one slash of two.
        local_path(value, "a path of this machine")
        return super().convert(value, param, ctx)


DIRECTORY = DirectoryType(path_type=Path)


def directory_argument(function: F) -> F:
    """DIR, or the environment variable RECOVERY_DIRECTORY."""
    argument = click.argument("directory", metavar="DIR", type=DIRECTORY, envvar="RECOVERY_DIRECTORY")
    return argument(function)


def json_option(function: F) -> F:
    """--json: the same facts for a program; errors too come as JSON on standard output then."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta["recovery.json"] = value
        return value

    option = click.option("--json", "as_json", is_flag=True, callback=remember, help="Print JSON for programs.")
    return option(function)


def rewind_options(function: F) -> F:
    """--resume-after E, and --resume-epoch E + 1 for the same snapshot."""
    after = click.option(
        "--resume-after", type=click.IntRange(min=0), metavar="E",
        help="Rewind: start from the snapshot after epoch E; 0: from the beginning.",
    )  # fmt: skip
    at = click.option(
        "--resume-epoch", type=click.IntRange(min=1), metavar="E",
        help="The same, named by the epoch after the snapshot: 3 is --resume-after 2.",
    )  # fmt: skip
    return after(at(function))


def umask_option(function: F) -> F:
    """--umask: who may read what is made."""
    text = "Let others read what is made, as far as your umask lets them; by default only you may."
    return click.option("--umask", is_flag=True, help=text)(function)


def threshold_option(function: F) -> F:
    """--threshold TARGET=WARNING/CRITICAL, several times, or the variable RECOVERY_THRESHOLD, separated by spaces."""

    def parse(_ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
        levels = {}
        for text in given:
            name, equals, value = text.partition("=")
            if not equals:
                raise click.BadParameter(f"{text!r} is not TARGET=WARNING/CRITICAL")
            levels[name] = value
        try:
            parse_targets(levels)
        except ConfigurationError as error:
            raise click.BadParameter(f"{error.found}. {error.remedy}") from error
        return levels

    option = click.option(
        "--threshold",
        "thresholds",
        multiple=True,
        metavar="TARGET=WARNING/CRITICAL",
        callback=parse,
        envvar="RECOVERY_THRESHOLD",
        help="Levels of a target in place of its defaults: snapshot-duration=5s/20s, or =off.",
    )
    return option(function)


_STYLES = {"bold": "\ufdd0", "red": "\ufdd1", "green": "\ufdd2", "yellow": "\ufdd3", "white": "\ufdd4"}
_PLAIN = "\ufdd5"
# Text of others has no such characters when it gets here, and so a sequence of a terminal is always one of these.
_SEQUENCES = {
    **{ord(mark): click.style("", bold=True, reset=False) for name, mark in _STYLES.items() if name == "bold"},
    **{ord(mark): click.style("", fg=name, reset=False) for name, mark in _STYLES.items() if name != "bold"},
    ord(_PLAIN): click.style("", reset=True),
}


def style(text: object, name: str) -> str:
    """One line in bold, or in a colour, for `say` and `tell`."""
    return f"{_STYLES[name]}{one_line(text)}{_PLAIN}"


def _for_terminal(text: str) -> str:
    """What is printed: nothing of it is obeyed by a terminal but `style`."""
    pieces = re.split(f"([{''.join(_STYLES.values())}{_PLAIN}])", text)
    return "".join(piece.translate(_SEQUENCES) if i % 2 else printable(piece) for i, piece in enumerate(pieces))


def say(text: str = "", *, end: str = "\n") -> None:
    """Print a result on standard output. Parts that are not ours go through `one_line` first, or a `table`."""
    click.echo(f"{_for_terminal(text)}{end}", nl=False)


def tell(text: str, stream: TextIO | None = None, *, start: str = "", end: str = "\n") -> None:
    """Say something on standard error, or on `stream`. What cannot be written there is left out: it ends no work.

    start, end: written around it, and obeyed by a terminal.
    """
    with contextlib.suppress(OSError):
        click.echo(f"{start}{_for_terminal(text)}{end}", file=stream, err=stream is None, nl=False)


def tell_error(error: object) -> None:
    """Say on standard error what went wrong."""
    # No text of others can look like another part: its further lines are set in.
    parts = error.parts() if isinstance(error, RecoveryError) else [str(error)]
    tell(f"{style('Error', 'red')}: " + "\n".join(part.replace("\n", "\n  ") for part in parts))


def echo_json(text: str) -> None:
    """A line of JSON that has any characters, on standard output: in ASCII where that is not UTF-8, for it is read as
    that."""
    if sys.stdout is not None and not _is_utf8(sys.stdout):
        text = text.encode("ascii", "recovery.escaped").decode()
    click.echo(one_line(text))


def print_json(value: Any, *, line: bool = False) -> None:
    """One JSON document on standard output; `line`: on one line, where several follow each other."""
    click.echo(printable(json.dumps(value, indent=None if line else 2, default=str)))


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([columns(name), *(columns(row[i]) for row in cells)]) for i, name in enumerate(header)]
    right = [bool(cells) and all(_numeric(row[i]) for row in cells) for i in range(len(header))]

    def padded(cell: str, width: int, to_right: bool) -> str:
        room = " " * (width - columns(cell))
        return room + cell if to_right else cell + room

    def line(values: Sequence[str]) -> str:
        return "  ".join(map(padded, values, widths, right)).rstrip()

    return "\n".join([style(line(list(header)), "bold"), *map(line, cells)])


def format_size(size_bytes: int) -> str:
    """1.2 MB and the like."""
    return format_bytes(size_bytes)


def format_time(wall_ms: int | None) -> str:
    """Local time to the second, with its offset from UTC."""
    return "-" if wall_ms is None else moment_text(wall_ms)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else one_line(value)


def _numeric(cell: str) -> bool:
    """A number, perhaps with a unit; a sentence may begin with one."""
    number, *rest = cell.replace(",", "").replace(".", "").split(" ")
    return cell == "-" or (number.isdigit() and len(rest) < 2)


def write_whole(path: Path, text: str, *, private: bool = False) -> bool:
    """The file has all of the text, or is as it was; its permissions stay, and a new one that is private is for this
    user alone. What stands there without being a file, such as a pipe, is given
    the text, and so is our own output where the path leads to it; returns whether it is a file, and not that.

    Raises ConfigurationError for a path of no file, StorageError.
    """
    local_path(path, "a file of this machine")
    if not path.name or os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise ConfigurationError(f"{path} is a directory", cause="", remedy="Name a file.")
    own = _own_output(path)
    if own is not None:
        # By a second way to it, one would write over what comes by the other.
        click.echo(text, nl=False, err=own == 2)
        return False
    if _is_device(path):
        try:
            path.write_text(text, encoding="utf-8")
        except BrokenPipeError:
            raise
        except OSError as error:
            raise StorageError(str(error), path=path) from error
        return True
    # A link stays one: what it leads to is written.
    file = Path(os.path.realpath(path))
    if not os.path.isdir(file.parent):  # noqa: PTH112 - as above
        raise ConfigurationError(
            f"{path} cannot be written: there is no directory {file.parent}",
            cause="",
            remedy="Make it, or name another.",
        )
    try:
        there = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
        replace(file, text.encode(), mode=there if there is not None else (PRIVATE if private else UMASK).file)
    except OSError as error:
        raise StorageError(str(error), path=path) from error
    return True


def _is_device(path: Path) -> bool:
    """Whether something is there that no file may take the place of: a device, or a pipe."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _own_output(path: Path) -> int | None:
    """Which of our own outputs the path leads to."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
    return None
