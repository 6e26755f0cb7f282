"""Columns of a Delta table that are renamed or dropped while a flow reads it: Delta's log of the schemas of a stream.

Delta reads on behind such a change only if the stream has a log of schemas (`schemaTrackingLocation`), and wants that
log below the checkpoint. Each run has a checkpoint of its own, so the log lies elsewhere and is used by all runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pyspark.sql import SparkSession

from recovery.errors import FlowFailedError, InputRewrittenError, RecoveryError
from recovery.spark.clusters import Input

_OPTIONS = {"schematrackinglocation", "schemalocation"}
_SETTINGS = {
    "spark.databricks.delta.streaming.allowSchemaLocationOutsideCheckpointLocation": "true",
    # The log notes the checkpoint that it was begun with.
    "spark.databricks.delta.streaming.schemaTracking.metadataPathCheck.enabled": "false",
}
_NEEDS_LOG = "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG]"
_NOTED = "[DELTA_STREAMING_METADATA_EVOLUTION]"
_WAITS = re.compile(
    r"\[DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION\].*?schema change\(s\) \(([^)]*)\)\s+between "
    r"Delta version (\d+) and (\d+)",
    re.DOTALL,
)
_ALLOW = {"RENAME": "allowSourceColumnRename", "DROP": "allowSourceColumnDrop", "TYPE": "allowSourceColumnTypeChange"}


def keep_schema_logs(spark: SparkSession, inputs: Iterable[Input]) -> None:
    """Let streams of Delta tables have their schema logs outside of the checkpoint, if one has such a log."""
    if any(_OPTIONS & set(each.options) for each in inputs):
        for name, value in _SETTINGS.items():
            spark.conf.set(name, value)


def schema_changed(text: str, table: str) -> RecoveryError | None:
    """Return the error for a change of a Delta table's columns, if that is what a failure's text says. table: as errors
    name it."""
    if _NEEDS_LOG in text:
        return InputRewrittenError(
            f"columns of the Delta table {table} were renamed or dropped, or have another type, since the flow read it",
            cause="ALTER TABLE in a table with column mapping. Delta needs a log of the stream's schemas to read on.",
            remedy="Give the stream a log of schemas, in a place that stays: "
            '.option("schemaTrackingLocation", "/data/schemas"). '
            "See docs/delta.md#columns-that-are-renamed-or-dropped.",
        )
    if _NOTED in text:
        return FlowFailedError(
            f"the columns or properties of the Delta table {table} changed; the stream's schema log has the new ones",
            cause="ALTER TABLE. Nothing of the micro-batch behind that change has counted.",
            remedy="Adapt the flow if it uses a column that was renamed or dropped, then run the same command again: "
            "it continues from the last closed epoch.",
        )
    waits = _WAITS.search(text)
    if waits is None:
        return None
    change, before, after = waits.groups()
    options = [option for word, option in _ALLOW.items() if word in change.upper()] or list(_ALLOW.values())
    allow = " and ".join(f'.option("{option}", "{after}")' for option in options)
    return FlowFailedError(
        f"columns of the Delta table {table} were changed ({change.strip()}) between version {before} and {after}",
        cause="Delta reads on when the flow says that it can do with the new columns.",
        remedy=f"Adapt the flow if it uses a column that was renamed or dropped, set {allow}, and run it again: it "
        "continues from the last closed epoch.",
    )
