"""The schemas that Spark notes beside native state, in each of the three forms of its files."""

from __future__ import annotations

import json
import struct

import pytest

from recovery.checkpoint.state_stores.state_schemas import state_schemas, type_name


def column(name, kind):
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def schema(*columns):
    return json.dumps({"type": "struct", "fields": [column(*each) for each in columns]})


def text(value):
    data = value.encode()
    return struct.pack(">H", len(data)) + data


def chunks(value, size=60000):
    parts = [value[start : start + size] for start in range(0, len(value), size)]
    return struct.pack(">i", len(parts)) + b"".join(map(text, parts))


def version_3(**variables):
    """As transformWithState writes it."""
    data = text("v3") + struct.pack(">i", len(variables))
    for name, (key, value) in variables.items():
        data += text(name) + struct.pack(">h", 0) + chunks(key) + struct.pack(">h", 0) + chunks(value)
        data += chunks('{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}') + chunks("{    }")
    return data


KEY, VALUE = schema(("k", "string")), schema(("n", "long"), ("d", "decimal(10,2)"))
EXPECTED = {
    "key": [{"name": "k", "type": "string"}],
    "value": [{"name": "n", "type": "bigint"}, {"name": "d", "type": "decimal(10,2)"}],
}


def test_the_three_forms():
    """One store, the stores of a join, and variables, of which the newest file counts and Spark's own are left out.
    Only partition 0 has a schema."""
    files = {
        "state/0/0/_metadata/schema": text("v1") + text(KEY) + text(VALUE),
        "state/1/0/left-a/_metadata/schema": text("v2") + chunks(KEY, 10) + chunks(VALUE, 10),
        "state/1/0/right-b/_metadata/schema": text("v2") + chunks(KEY) + chunks(VALUE),
        "state/2/_stateSchema/default/0_aa": version_3(old=(KEY, KEY)),
        "state/2/_stateSchema/default/10_bb": version_3(**{"total": (KEY, VALUE), "$rowCounter_x": (KEY, KEY)}),
        "state/2/_stateSchema/default/9_cc": version_3(old=(KEY, KEY)),
        "state/2/_metadata/v2/0": b"",
        "state/0/0/1.delta": b"",
    }
    assert state_schemas(files, files.__getitem__) == {
        0: {"default": EXPECTED},
        1: {"left-a": EXPECTED, "right-b": EXPECTED},
        2: {"total": EXPECTED},
    }


def test_types_have_the_names_of_spark():
    inner = {"type": "struct", "fields": [column("a", "integer"), column("b", "timestamp")]}
    assert type_name({"type": "array", "elementType": inner}) == "array<struct<a:int,b:timestamp>>"
    assert type_name({"type": "map", "keyType": "byte", "valueType": "short"}) == "map<tinyint,smallint>"
    assert type_name({"type": "udt", "class": "x", "sqlType": "double"}) == "double"


@pytest.mark.parametrize(
    "content",
    [
        b"", "text", text("v9"), text("v2"), text("v2") + b"\xff\xff\xff\xff", text("v1") + text("[]") + text("{}"),
        text("v1") + b"\xff\xffx", text("v1") + b"\0\2\xff\xff", text("v3") + struct.pack(">i", 2**30),
        text("v1") + text('{"fields":[1]}') + text(VALUE), version_3(total=(KEY, VALUE))[:-3],
        text("v2") + chunks("[" * 100_000) + chunks(VALUE),
    ],
)  # fmt: skip
def test_files_of_another_form_are_left_out(content):
    """Their author is unknown; the others count."""
    files = {"state/0/0/_metadata/schema": content, "state/1/0/_metadata/schema": text("v1") + text(KEY) + text(VALUE)}
    assert state_schemas(files, files.__getitem__) == {1: {"default": EXPECTED}}
