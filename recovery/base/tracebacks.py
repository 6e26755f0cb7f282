"""Python tracebacks for users: first what happened and where in their code, then their own frames."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import NamedTuple

MOST_FRAMES = 6
MOST_LINES = 20
LONGEST_LINE = 2000
_BEGIN = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'  File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*\n(?:    [^\n]*\n|  \[[^\n]*\n)*')
_END = re.compile(r"(?<!\n)\n\s*\n?\tat |(?<!\s)(?:\s+SQLSTATE: \w{5})+\s*(?:\n=== Streaming Query|\Z)")
_PLAN = re.compile(r"(?<!\s)\s+SQLSTATE: \w{5}(;( line \d+ pos \d+;)?\s*(\n.*)?)?\Z", re.DOTALL)
"""The end of a Spark message: a code, and after a semicolon the plan that the analyser rejected. An error's place in a
SQL text comes without a semicolon."""
_NOTE = re.compile(r"\nin (step '.*', .*, micro-batch \d+|the sink, micro-batch \d+)\s*\Z")
RAISED_FROM = "The above exception was the direct cause of the following exception:\n"
RAISED_WITHIN = "During handling of the above exception, another exception occurred:\n"
"""What Python writes between two tracebacks: the second error was raised from the first, or while that was handled."""
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/pyspark.zip/", "<frozen ")
_OTHERS = (f"{Path(__file__).parents[1]}/", f"{sysconfig.get_paths()['stdlib']}/")


class _Frame(NamedTuple):
    file: str
    line: str
    text: str


def essence(text: str) -> str | None:
    """Summarise the last traceback in a text: `step 'count', key 'a', micro-batch 0: ValueError: no (flow.py, line 7)`,
    and the frames of the user's own code. None if the text has no traceback."""
    chain = _END.split(text[text.index(_BEGIN) :], maxsplit=1)[0] if _BEGIN in text else ""
    block = chain.rpartition(_BEGIN)[2]
    frames, end = [], 0
    while (found := _FRAME.match(block, end)) is not None:
        frames.append(_Frame(found["file"], found["line"], found[0]))
        end = found.end()
    if not frames:
        return None
    message, note = without_note(block[end:].strip())
    message = f"{note}{message}"
    own = [frame for frame in frames if _is_own(frame.file)]
    first, *more = [line[:LONGEST_LINE] for line in message.splitlines()[:MOST_LINES]] or [""]
    shown = "".join(frame.text for frame in own[-MOST_FRAMES:]).rstrip()
    return "\n".join([f"{first}{_place(own)}", *more, *([shown] if shown else [])])


def without_note(message: str) -> tuple[str, str]:
    """Return an error's message without the note that says in which call it was raised, and that as a beginning of a
    sentence: "step 'count', key 'a', micro-batch 0: "; empty without a note."""
    note = _NOTE.search(message)
    return (message, "") if note is None else (message[: note.start()], f"{note[1]}: ")


def essence_of(error: BaseException) -> str:
    """Return the essence of an exception's traceback."""
    return essence("".join(traceback.format_exception(error))) or f"{type(error).__name__}: {error}"


def headline(error: BaseException) -> str:
    """Return an exception's type and message, and where in the user's own code it was raised."""
    frames = [_Frame(each.filename, str(each.lineno), "") for each in traceback.extract_tb(error.__traceback__)]
    # The message of a SyntaxError already ends with its place.
    own = [] if isinstance(error, SyntaxError) else [frame for frame in frames if _is_own(frame.file)]
    first, *more = f"{type(error).__name__}: {_PLAN.sub('', str(error))}".splitlines()
    return "\n".join([f"{first}{_place(own)}", *more])


def has_own_frames(error: BaseException) -> bool:
    """Whether an exception came through the user's own code."""
    return any(_is_own(each.filename) for each in traceback.extract_tb(error.__traceback__))


def own_places(error: BaseException) -> list[str]:
    """Return the last places of an exception in the user's own files, each as `flow.py, line 7, in update`."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_own(each.filename)]
    return [f"{Path(each.filename).name}, line {each.lineno}, in {each.name}" for each in frames[-MOST_FRAMES:]]


class UnsendableError(Exception):
    """An error whose text is not valid UTF-8; the text of this one is its traceback, with escapes."""


def sendable(error: BaseException) -> BaseException:
    """Return an error that a worker can report to Spark: `error`, or UnsendableError in its place. A text in Python may
    have lone surrogates, such as the name of a file or a value out of JSON; PySpark cannot send such a text, and Spark
    waits for it forever."""
    text = "".join(traceback.format_exception(error))
    escaped = text.encode(errors="backslashreplace").decode()
    return error if escaped == text else UnsendableError(escaped)


def is_from_gateway(error: BaseException) -> bool:
    """Whether an exception was raised in the gateway to Spark's JVM."""
    return any("py4j" in Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__))


def _place(own: list[_Frame]) -> str:
    return f" ({Path(own[-1].file).name}, line {own[-1].line})" if own else ""


def _is_own(file: str) -> bool:
    """Whether a file belongs neither to this package nor to a library."""
    return not file.startswith(_OTHERS) and not any(each in file for each in _LIBRARIES)
