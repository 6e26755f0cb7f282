"""The schemas of the answers, for the OpenAPI file: every field that an answer has at its top, and those of the rows
that /api/ makes itself. What comes from a command's --json is an object here: docs/cli.md says what is in it."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
ANY: Schema = {}


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {**schema, "type": [schema["type"], "null"]}


def listed(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def exactly(fields: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """Return the schema of an object with these fields, and perhaps the optional ones."""
    more = optional or {}
    return {"type": "object", "properties": {**fields, **more}, "required": list(fields), "additionalProperties": False}


SHOWN_VALUE: dict[str, Schema] = {"value_bytes": INTEGER, "is_cut": BOOLEAN}
VALUE: dict[str, Schema] = {"value": ANY, "beginning": TEXT}
"""One of them, as `is_cut` says."""
COMMON: dict[str, Schema] = {
    "version": {"const": 1},
    "flow": TEXT,
    "epoch": maybe(INTEGER),
    "closed_ms": maybe(INTEGER),
    "age_s": maybe(NUMBER),
    "looked_ms": INTEGER,
}
PAGED: dict[str, Schema] = {"next": maybe(INTEGER)}
OF_STATUS: dict[str, Schema] = {
    "directory": TEXT, "store_id": maybe(TEXT), "id": maybe(TEXT), "lock": maybe(OBJECT), "links": OBJECT,
    "hydrating": listed(OBJECT), "resume_epoch": maybe(INTEGER), "resume_after": maybe(INTEGER),
    "window": listed(INTEGER), "steps": listed(TEXT), "schemas": OBJECT, "operators": listed(OBJECT),
    "executions": listed(OBJECT), "problem": maybe(OBJECT), "origins": listed(OBJECT), "standby": maybe(OBJECT),
    "owners": listed(OBJECT), "replaced": maybe(OBJECT), "level": TEXT, "health": listed(OBJECT),
    "state_bytes": maybe(INTEGER), "sizes": OBJECT, "last_backup": maybe(OBJECT), "last_drill": maybe(OBJECT),
    "replica": maybe(OBJECT),
    "lag": maybe(OBJECT), "quarantine": OBJECT, "waiting": maybe(OBJECT), "measured_epochs": INTEGER,
    "last_epoch": maybe(OBJECT), "unreadable": listed(TEXT),
}  # fmt: skip


def answer(**fields: Schema) -> Schema:
    """Return the schema of an answer about a flow."""
    return exactly({**COMMON, **fields})


EPOCH = exactly({
    "execution": INTEGER, "epoch": INTEGER, "closed_ms": INTEGER, "batch": maybe(INTEGER), "is_held": BOOLEAN,
    "is_abandoned": BOOLEAN, "duration_s": maybe(NUMBER), "measure": maybe(OBJECT),
})  # fmt: skip
EXECUTION = exactly({
    "number": INTEGER, "started_ms": INTEGER, "first_epoch": INTEGER, "last_epoch": INTEGER, "lived_epoch": INTEGER,
    "abandoned": INTEGER, "rewound": INTEGER, "parent": maybe(INTEGER), "host": TEXT,
})  # fmt: skip
GROWTH = exactly({"epoch": INTEGER, "closed_ms": INTEGER, "keys": INTEGER, "bytes": INTEGER})
LARGEST = exactly({"key": TEXT, "bytes": INTEGER})
DUE = exactly({
    "earliest_ms": maybe(INTEGER), "now": INTEGER, "within_minute": INTEGER, "within_hour": INTEGER, "is_cut": BOOLEAN,
})  # fmt: skip
KEY_ROW = exactly({"key": TEXT, **SHOWN_VALUE, "timeout_ms": maybe(INTEGER), "epoch": INTEGER}, VALUE)
STEP = exactly({
    "step": TEXT, "declaration": maybe(OBJECT), "keys": maybe(INTEGER), "bytes": maybe(INTEGER),
    "growth": listed(GROWTH), "quarantine": maybe(OBJECT), "largest": maybe(listed(LARGEST)), "due": maybe(DUE),
    "sample": maybe(listed(KEY_ROW)), "problem": maybe(OBJECT),
})  # fmt: skip
KEY_STATE = exactly({**SHOWN_VALUE, "timeout_ms": maybe(INTEGER), "epoch": INTEGER}, VALUE)
KEY_VERSION = exactly(
    {
        "epoch": INTEGER, "what": TEXT, "timeout_ms": maybe(INTEGER), "closed_ms": maybe(INTEGER),
        "execution": maybe(INTEGER), "first_batch": maybe(INTEGER), "last_batch": maybe(INTEGER),
        "changes": listed(OBJECT),
    },
    {**SHOWN_VALUE, **VALUE, "input": listed(OBJECT)},
)  # fmt: skip
SOURCE = exactly({"source": TEXT, "position": exactly(SHOWN_VALUE, VALUE)})
LOSS = exactly({
    "from": TEXT, "epoch": INTEGER, "shared_epoch": INTEGER, "epochs": INTEGER, "seconds": NUMBER,
    "rows": maybe(INTEGER),
})  # fmt: skip
FLOW_LINE = exactly(
    {"name": TEXT, "directory": TEXT, "problem": maybe(OBJECT)},
    {
        "id": maybe(TEXT), "is_running": BOOLEAN, "level": TEXT, "epoch": maybe(INTEGER),
        "closed_ms": maybe(INTEGER), "age_s": maybe(NUMBER), "looked_ms": INTEGER,
    },
)  # fmt: skip
REFUSAL = exactly({
    "version": {"const": 1}, "error": TEXT, "exit_code": maybe(INTEGER), "found": TEXT, "path": maybe(TEXT),
    "cause": TEXT, "remedy": TEXT,
})  # fmt: skip

SCHEMAS: dict[str, Schema] = {
    "Refusal": REFUSAL,
    "FlowsAnswer": exactly({"version": {"const": 1}, "flows": listed(FLOW_LINE)}),
    "FlowAnswer": answer(
        **OF_STATUS, partition_count=INTEGER, running_since_ms=maybe(INTEGER), batch=maybe(INTEGER),
        epoch_s=maybe(NUMBER), rows_per_s=maybe(NUMBER), advice=OBJECT,
    ),
    "PartitionsAnswer": answer(partitions=listed(OBJECT), count=INTEGER, **PAGED),
    "EpochsAnswer": answer(
        epochs=listed(EPOCH), next=maybe(TEXT), count=INTEGER, executions=listed(EXECUTION), runs=listed(OBJECT),
        window=listed(INTEGER), backup=maybe(OBJECT), replica=maybe(OBJECT),
    ),
    "StepsAnswer": answer(steps=listed(STEP), operators=listed(OBJECT)),
    "KeysAnswer": answer(step=TEXT, keys=listed(KEY_ROW), next=maybe(TEXT)),
    "KeyAnswer": answer(step=TEXT, key=TEXT, found=BOOLEAN, state=maybe(KEY_STATE)),
    "HistoryAnswer": answer(
        step=TEXT, key=TEXT, oldest_epoch=INTEGER, newest_epoch=INTEGER, versions=listed(KEY_VERSION),
        left_out=INTEGER,
    ),
    "CompareAnswer": answer(
        a=OBJECT, b=OBJECT, equal=BOOLEAN, same_position=BOOLEAN, compared_since_epoch=maybe(INTEGER),
        sources=listed(OBJECT), steps=OBJECT, operators_not_compared=listed(INTEGER), differences=listed(OBJECT),
        left_out=INTEGER,
    ),
    "SourcesAnswer": answer(sources=listed(SOURCE), input=maybe(listed(OBJECT)), lag=maybe(OBJECT), sink=OBJECT),
    "CopiesAnswer": answer(
        last_backup=maybe(OBJECT), last_drill=maybe(OBJECT), replica=maybe(OBJECT), standby=maybe(OBJECT),
        hydrating=listed(OBJECT), origins=listed(OBJECT), loss=maybe(LOSS), place=maybe(OBJECT),
    ),
    "PlanAnswer": answer(
        planned=maybe(OBJECT), problem=maybe(OBJECT), lost=listed(INTEGER), files=listed(OBJECT), file_count=INTEGER,
        **PAGED,
    ),
    "QuarantineAnswer": answer(keys=listed(OBJECT), count=INTEGER, entries=maybe(listed(OBJECT)), **PAGED),
    "MarksAnswer": answer(marks=listed(OBJECT), count=INTEGER, **PAGED),
    "OwnersAnswer": answer(owners=listed(OBJECT), replaced=maybe(OBJECT), notes=listed(TEXT)),
}  # fmt: skip
