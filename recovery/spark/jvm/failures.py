"""How a failure of Spark is recognised by its text: what a row of the table says, and which row fits.

The rows are in `recovery.spark.jvm.failure_table`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

from recovery.base.version import VERSION
from recovery.errors import RecoveryError
from recovery.spark.clusters import is_cluster

CLASS = r"(?:[a-z]\w*\.)+"
"""The package of a Java class."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A row of the table: a cause, how it is recognised, and the error that stands for it.

    what: the cause, for the documentation. pattern: what the text of the failure says; None for what is recognised
    without a text. within: what the text says besides. when: whether the row holds for the named groups of `pattern`
    and the facts of this process, which also fill `found`, `cause` and `remedy`. An empty `cause` or `remedy` means
    that of the class. in_python: whether `pattern` is about the last line of a worker's traceback, instead of what
    Java says around tracebacks.
    """

    what: str
    kind: type[RecoveryError]
    found: str
    cause: str = ""
    remedy: str = ""
    pattern: re.Pattern[str] | None = None
    within: re.Pattern[str] | None = None
    when: Callable[[Mapping[str, str]], bool] = lambda _: True
    in_python: bool = False

    def error(self, values: Mapping[str, str]) -> RecoveryError:
        """Return the error of this row, with these values in its texts."""
        found, cause, remedy = (each.format_map(values) for each in (self.found, self.cause, self.remedy))
        return self.kind(found.removesuffix(": "), cause=cause or None, remedy=remedy or None)


_TRACEBACK = re.compile(
    r"(?<!\n  )Traceback \(most recent call last\):\n.*?"
    r"(?=\n: (?:[a-z]\w*\.)+[A-Z]|\n\s*\n?\tat org\.apache\.spark\.|\n\s*\nDriver stacktrace|\n=== |\Z)",
    re.DOTALL,
)
"""A traceback up to Spark's first frame: an error's message may contain frames and causes of other Java programs."""
_LONGEST_LINE = 4000
"""The characters of a line that are searched: some patterns take the square of a line's length, and a line of Spark's
may contain a value of any size."""
_OF_DATA = re.compile(
    r"\[(?!INVALID_CONF_VALUE|STREAM_FAILED)[A-Z][A-Z0-9_.]{3,}\] (?:(?!\n\tat org\.apache\.|SQLSTATE: ).){0,20000}"
    r"SQLSTATE: (?:2\w|39|P0)\w{3}|\n== SQL [^\n]* ==\n.*?(?=\n\s*\n|\n\tat org\.apache\.|\n== |\Z)",
    re.DOTALL,
)
"""What Spark says of a value, what it passes on from a function of the flow, and the flow's SQL that it quotes: such a
text may contain any words."""
_HOST = re.compile(r"\((?P<host>\S+) executor (?!driver\b)\S+\)")
_CODE = re.compile(r"\s+SQLSTATE: \w{5}|: {4}")
"""The end of a reason: Spark's code, or what Hadoop says a second time."""
_NOTED_HOST = re.compile(r"^on host (?P<host>\S+)", re.MULTILINE)
_SOURCE = re.compile(r"(?:KafkaV2\[\w+\[[^\]]*\]\]|(?:FileStreamSource|DeltaSource|IcebergTable)\[[^\]]+\])")


def has_traceback(text: str) -> bool:
    """Whether Spark's text holds what a Python function has raised."""
    return _TRACEBACK.search(text) is not None


def failure_of(text: str, rows: Sequence[Failure], reading: Callable[[], str] = str) -> RecoveryError | None:
    """Return the error of the first row that fits a text of Spark's; None if no row does. reading: returns what Spark
    says about the sources of the micro-batch that failed."""
    text = "\n".join(map(_cut, text.split("\n")))
    said = [_said(found[0]) for found in _TRACEBACK.finditer(text)]
    of_java, of_python = _OF_DATA.sub("", _TRACEBACK.sub("", text)), "\n".join(said)
    for row in rows:
        assert row.pattern is not None
        where = of_python if row.in_python else of_java
        match = row.pattern.search(where)
        if match is None or (row.within is not None and not row.within.search(of_java)):
            continue
        values = {**_facts(text, reading), **_groups(match)}
        if row.when(values):
            return row.error(values)
    return None


def reason_of(text: str) -> str:
    """Return what Java says first in the text of a failed call, without the class's package, and in brackets the
    cause of causes; the text's first line if Java says nothing."""
    thrown = re.search(rf"^: {CLASS}(\w+(?:Exception|Error)\b[^\n]*)", text, re.MULTILINE)
    if thrown is None:
        return text.strip().split("\n")[0]
    causes = re.findall(rf"^Caused by: {CLASS}(?:\w+\$)?(\w+(?:Exception|Error)\b[^\n]*)", text, re.MULTILINE)
    first, last = thrown[1], causes[-1] if causes else ""
    return first if not last or last.partition(": ")[2] in first else f"{first} ({last})"


def documented(row: Failure) -> RecoveryError:
    """Return the error of a row with the names of its values in capitals."""
    return row.error(_Names())


_SHOWN = {"said": "", "rest": "", "sources": "", "this": "DRIVER_PYTHON", "python": "WORKER_PYTHON", "ours": "X.Y"}


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return _SHOWN.get(name, name.upper())


def _cut(line: str) -> str:
    """Return a line without the middle of one that is too long to be searched."""
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


def _said(traceback: str) -> str:
    """Return the first line of what a traceback says after its last frame, and the note of the host."""
    lines = traceback.split("\n")
    frames = [place for place, line in enumerate(lines) if line.startswith(("  ", "Traceback (most"))]
    first, *more = lines[frames[-1] + 1 :] or [""]
    return "\n".join([first, *(line for line in more if line.startswith("on host "))])


def _groups(match: re.Match[str]) -> dict[str, str]:
    groups = {name: _CODE.split(text or "")[0].strip()[:500] for name, text in match.groupdict().items()}
    if "said" in groups:
        groups["said"] = match["said"].rstrip()[:2000]
    if "file" in groups and groups["reason"]:
        groups["reason"] = f": {groups['reason']}"
    return groups


def _facts(text: str, reading: Callable[[], str]) -> dict[str, str]:
    """What the texts of rows may name besides: the host of an executor, empty for a worker of this host; the Python of
    the workers; this Python; this version; the sources that the flow reads."""
    context: Any = SparkContext._active_spark_context
    host = _NOTED_HOST.search(text) or _HOST.search(text)
    python = os.environ.get("PYSPARK_PYTHON", "python3") if context is None else str(context.pythonExec)
    sources = dict.fromkeys(_SOURCE.findall(f"{text}\n{reading()}"))
    remote = host is not None if context is None else is_cluster(context.master)
    name = "" if not remote else "an executor" if host is None else f"host {host['host']}"
    return {
        "host": name,
        "workers": name or "Python workers of this host",
        "python": shutil.which(python) or python,
        "this": sys.executable,
        "version": VERSION,
        "sources": f" (of {', '.join(list(sources)[:3])})" if sources else "",
    }
