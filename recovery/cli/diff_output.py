"""Files of `recovery diff --output-file`: the differences as CSV or Parquet, whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from recovery.base.addresses import local_path
from recovery.cli.state_common import json_text
from recovery.errors import ConfigurationError
from recovery.host.durable import PRIVATE, create, open_own
from recovery.host.locks import lock_file, try_lock_file
from recovery.host.storage_errors import storage_errors
from recovery.operational.steps.comparison import KeyDifference
from recovery.planning.comparing import ABSENT

COLUMNS = ("step", "key", "what", "a", "b", "fields", "timeout_ms_a", "timeout_ms_b")
Write = Callable[[KeyDifference], None]
_ROWS = 8192
"""Rows of a Parquet row group."""


@contextlib.contextmanager
def differences_file(path: Path | None) -> Iterator[Write]:
    """Provide the function that adds a difference to the file; the file appears at the end. None: to no file.

    What a killed attempt left is removed. A new file is readable by this user only: it has states. The suffix chooses
    the form, `.csv` or `.parquet`. Values are JSON; `fields` is a JSON list of the paths within them that differ.
    Raises ConfigurationError, StorageError.
    """
    if path is None:
        yield lambda _: None
        return
    local_path(path, "a file of this machine")
    form = {".csv": _csv, ".parquet": _parquet}.get(path.suffix.lower())
    if form is None or os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise ConfigurationError(
            f"{path} is not a name for the differences", cause="", remedy="Name a file that ends in .csv or .parquet."
        )
    # Keep a link, and write its target.
    file = Path(os.path.realpath(path))
    beginning = f".{file.name[:40]}.diff-"
    draft = file.with_name(f"{beginning}{secrets.token_hex(8)}")
    with storage_errors(path):
        _clear_killed_attempts(file.parent, beginning)
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else PRIVATE.file
        held = create(draft, mode)
        try:
            lock_file(held)
            with form(draft) as write:
                yield write
            draft.replace(file)
        finally:
            os.close(held)
            draft.unlink(missing_ok=True)


def _clear_killed_attempts(directory: Path, beginning: str) -> None:
    """Remove the drafts of differences that no process holds."""
    name = re.compile(f"{re.escape(beginning)}[0-9a-f]{{16}}")
    for draft in directory.iterdir():
        if not name.fullmatch(draft.name):
            continue
        with contextlib.suppress(OSError):
            held = open_own(draft)
            try:
                if try_lock_file(held):
                    draft.unlink()
            finally:
                os.close(held)


def _row(found: KeyDifference) -> tuple[str | int | None, ...]:
    values = (None if value is ABSENT else json_text(value) for value in (found.before, found.after))
    fields = json_text([each.path for each in found.differences if each.path])
    return (found.step, found.key, found.what, *values, fields, *found.timeouts)


@contextlib.contextmanager
def _csv(draft: Path) -> Iterator[Write]:
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        yield lambda found: writer.writerow(_row(found))


@contextlib.contextmanager
def _parquet(draft: Path) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64() if name.startswith("timeout") else pa.string()) for name in COLUMNS])
    waiting: list[tuple[str | int | None, ...]] = []
    with pq.ParquetWriter(draft, schema) as writer:

        def flush() -> None:
            writer.write_batch(pa.record_batch([*map(list, zip(*waiting, strict=True))], schema=schema))
            waiting.clear()

        def add(found: KeyDifference) -> None:
            waiting.append(_row(found))
            if len(waiting) == _ROWS:
                flush()

        yield add
        if waiting:
            flush()
