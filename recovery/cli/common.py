"""What all commands share: how errors end, how intervals, directories and tables look."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import stat
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from recovery.config import parse_interval, parse_trigger
from recovery.errors import ConfigurationError, RecoveryError, StorageError
from recovery.planning.health import format_bytes, parse_targets
from recovery.wording import moment_text

F = TypeVar("F", bound=Any)


class Commands(click.Group):
    """A group whose errors end the process with their own exit code and without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        # Standard error escapes them already.
        _allow_any_character(sys.stdout)
        try:
            with _only_text():
                return super().invoke(ctx)
        except RecoveryError as error:
            _end_by(ctx, error)
        except KeyboardInterrupt:
            ctx.exit(130)
        except BrokenPipeError:
            # The reader of our output went away; that is its right.
            sys.stderr.close()
            ctx.exit(1)
        except OSError as error:
            _end_by(ctx, _output_failed(error) if of_output(error) else StorageError(str(error), path=error.filename))
        finally:
            _give_up_unwritten(sys.stderr)


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
            click.echo(json.dumps(error.as_json()))
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


def tell(text: str, stream: TextIO | None = None, *, end: str = "\n") -> None:
    """Say something on standard error, or on `stream`. What cannot be written there is left out: it ends no work."""
    with contextlib.suppress(OSError):
        click.echo(f"{text}{end}", file=stream, err=stream is None, nl=False)


def tell_error(error: object) -> None:
    """Say on standard error what went wrong."""
    tell(f"{click.style('Error', fg='red')}: {error}")


def echo_json(text: str) -> None:
    """JSON that has any characters, on standard output: in ASCII where that is not UTF-8, for it is read as that."""
    if sys.stdout is not None and not _is_utf8(sys.stdout):
        text = text.encode("ascii", "recovery.escaped").decode()
    click.echo(text)


def print_json(value: Any, *, line: bool = False) -> None:
    """One JSON document on standard output; `line`: on one line, where several follow each other."""
    click.echo(json.dumps(value, indent=None if line else 2, default=str))


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) if cells else len(name) for i, name in enumerate(header)]
    right = [bool(cells) and all(_numeric(row[i]) for row in cells) for i in range(len(header))]

    def line(values: Sequence[str]) -> str:
        parts = (v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True))
        return "  ".join(parts).rstrip()

    return "\n".join([click.style(line(list(header)), bold=True), *map(line, cells)])


def format_size(size_bytes: int) -> str:
    """1.2 MB and the like."""
    return format_bytes(size_bytes)


def format_time(wall_ms: int | None) -> str:
    """Local time to the second, with its offset from UTC."""
    return "-" if wall_ms is None else moment_text(wall_ms)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _numeric(cell: str) -> bool:
    """A number, perhaps with a unit; a sentence may begin with one."""
    number, *rest = cell.replace(",", "").replace(".", "").split(" ")
    return cell == "-" or (number.isdigit() and len(rest) < 2)


def write_whole(path: Path, text: str) -> bool:
    """The file has all of the text, or is as it was. What stands there without being a file, such as a pipe, is given
    the text, and so is our own output where the path leads to it; returns whether it is a file, and not that.

    Raises ConfigurationError for a path of no file, StorageError.
    """
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
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
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
