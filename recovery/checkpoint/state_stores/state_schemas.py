"""The schema of native state, as Spark notes it beside the state.

    state/<operator>/0/_metadata/schema             of an operator with one store
    state/<operator>/0/<store>/_metadata/schema     of a store of a join
    state/<operator>/_stateSchema/<store>/<n>_<id>  of the variables of transformWithState; the highest n counts

A file holds strings as `DataOutputStream.writeUTF` writes them: the version, then key and value schema as JSON. Since
version 2 each JSON is a count and that many strings; version 3 has several schemas, each with the name of a variable.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

_FILE = re.compile(
    r"state/(?P<operator>\d+)/(?:0/(?:(?P<store>[^/]+)/)?_metadata/schema|_stateSchema/[^/]+/(?P<number>\d+)_[^/]+)"
)
ONE_STORE = "default"
MOST_VARIABLES = 10_000

Schema = dict[str, list[dict[str, str]]]
"""The columns of a key and of its value: {"key": [{"name": …, "type": …}], "value": […]}."""


def state_schemas(paths: Iterable[str], read: Callable[[str], str | bytes]) -> dict[int, dict[str, Schema]]:
    """Return the schemas in a checkpoint with these files, by operator, and by store or variable. `read` returns a
    file's content. A file of another form counts as missing."""
    newest: dict[tuple[int, str], tuple[int, str]] = {}
    for path in paths:
        match = _FILE.fullmatch(path)
        if match is not None:
            named = int(match["operator"]), match["store"] or ONE_STORE
            newest[named] = max(newest.get(named, (-1, "")), (int(match["number"] or 0), path))
    found: dict[int, dict[str, Schema]] = {}
    for (operator, store), (_, path) in sorted(newest.items()):
        content = read(path)
        try:
            schemas = dict(_parsed(content.encode() if isinstance(content, str) else content, store))
        except (ValueError, LookupError, TypeError, AttributeError, struct.error, RecursionError):
            continue
        found.setdefault(operator, {}).update(schemas)
    return found


def _parsed(content: bytes, store: str) -> Iterator[tuple[str, Schema]]:
    data = _Strings(content)
    version = data.text()
    if version in ("v1", "v2"):
        read = data.text if version == "v1" else data.chunks
        yield store, {"key": _columns(read()), "value": _columns(read())}
        return
    if version != "v3":
        raise ValueError(f"version {version!r:.20}")
    for _ in range(data.number(">i", MOST_VARIABLES)):
        name = data.text()
        # Two numbers of versions of the schema, which Spark keeps beside each schema.
        key, value = ((data.number(">h"), _columns(data.chunks()))[1] for _ in range(2))
        # How keys are laid out, and the key of a map; both are in the key's columns.
        data.chunks(), data.chunks()
        # Spark's own variables, such as the lengths of lists, begin with $.
        if not name.startswith("$"):
            yield store if name == ONE_STORE else name, {"key": key, "value": value}


class _Strings:
    """Reads what a DataOutputStream wrote. Raises struct.error or ValueError where it ends early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, form: str, most: int = 32767) -> int:
        (found,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        if not 0 <= found <= most:
            raise ValueError(f"a count of {found}")
        return int(found)

    def text(self) -> str:
        length = self.number(">H", 65535)
        part = self._content[self._at : self._at + length]
        if len(part) < length:
            raise ValueError("the end is missing")
        self._at += length
        # Java writes characters beyond the first plane as two surrogates, each in three bytes.
        return part.decode("utf-8", "surrogatepass").encode("utf-16", "surrogatepass").decode("utf-16")

    def chunks(self) -> str:
        return "".join(self.text() for _ in range(self.number(">i", len(self._content))))


def _columns(schema: str) -> list[dict[str, str]]:
    fields = msgspec.json.decode(schema)["fields"]
    return [{"name": str(field["name"]), "type": type_name(field["type"])} for field in fields]


def type_name(kind: str | Mapping[str, Any]) -> str:
    """Return the name that Spark gives a type in text, such as `array<int>`, from the type as JSON."""
    if isinstance(kind, str):
        return {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])},{type_name(kind['valueType'])}>"
    if kind["type"] == "struct":
        fields = ",".join(f"{field['name']}:{type_name(field['type'])}" for field in kind["fields"])
        return f"struct<{fields}>"
    # A user's own type is stored as its SQL type.
    return type_name(kind["sqlType"])
