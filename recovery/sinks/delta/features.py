"""What a Delta table asks of a writer, and whether files that Spark's Parquet writer made fit that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from recovery.errors import SinkRefusedError

_KNOWN = {"appendOnly", "invariants", "timestampNtz", "changeDataFeed", "v2Checkpoint"}
"""Features that plain files fit, and that `deltalake` writes."""
_IN_USE = {"checkConstraints", "columnMapping", "generatedColumns"}
"""Features that count only where a table uses them, see `_used`: a table may list them without using them."""
_WITH_IDENTITY, _WITH_FEATURES = 6, 7
"""The writer version that means identity columns, which `deltalake` does not write; and the last version that
`deltalake` knows."""


def check_able(name: str, table: Any, *, merges: bool) -> None:
    """Raise SinkRefusedError if the table asks more of a writer than DeltaSink does. merges: whether the sink rewrites
    rows."""
    protocol, settings = table.protocol(), table.metadata().configuration
    used = set(_used(settings, msgspec.json.decode(table.schema().to_json())))
    asked = used | {*(protocol.writer_features or ()), *(protocol.reader_features or ())} - _KNOWN - _IN_USE
    if protocol.min_writer_version == _WITH_IDENTITY or protocol.min_writer_version > _WITH_FEATURES:
        asked.add(f"writer version {protocol.min_writer_version}")
    if asked:
        raise SinkRefusedError(
            f"the table has {', '.join(sorted(asked))} in version {table.version()}",
            path=name,
            cause="DeltaSink adds files that Spark wrote, by the package deltalake, and they do not fit this.",
            remedy="Drop the feature, the setting or the constraint, or write to another table; then run again: "
            "nothing is lost or written twice.",
        )
    if merges and _is_append_only(settings):
        raise SinkRefusedError(
            'the table is append-only (delta.appendOnly), and the sink has mode="merge"',
            path=name,
            cause="Merging replaces rows.",
            remedy="Set delta.appendOnly=false, or write to another table.",
        )


def check_removable(name: str, table: Any) -> None:
    """Raise SinkRefusedError if the table is append-only."""
    if _is_append_only(table.metadata().configuration):
        raise SinkRefusedError(
            "the table is append-only (delta.appendOnly), and has rows of epochs that would be taken back",
            path=name,
            cause="The run goes back, or an older run went back, and nobody may take rows out of such a table.",
            remedy="Set delta.appendOnly=false for this run, or resume without going back.",
        )


def _is_append_only(settings: Mapping[str, str]) -> bool:
    return settings.get("delta.appendOnly", "false").lower() == "true"


def _used(settings: Mapping[str, str], schema: Any) -> Iterator[str]:
    """Yield what a table uses that does not fit, whichever protocol it has."""
    yield from (name for name in settings if name.startswith("delta.constraints."))
    if settings.get("delta.columnMapping.mode", "none") != "none":
        yield "columnMapping"
    if "delta.setTransactionRetentionDuration" in settings:
        # By these transactions the sink knows what it has committed.
        yield "delta.setTransactionRetentionDuration"
    for path, field in _fields(schema, ""):
        if not field.get("nullable", True):
            yield f"the NOT NULL column {path}"
        for name in field.get("metadata", {}):
            if name == "delta.generationExpression":
                yield f"the generated column {path}"
            elif name.startswith("delta.identity."):
                yield f"the identity column {path}"
            elif name == "delta.invariants":
                yield f"an invariant on the column {path}"


def _fields(kind: Any, within: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each field of a type (JSON), with its path."""
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        path = f"{within}{field['name']}"
        yield path, field
        yield from _fields(field["type"], f"{path}.")
    for part in ("elementType", "keyType", "valueType"):
        yield from _fields(kind.get(part), f"{within}{part}.")
