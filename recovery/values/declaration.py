"""The declaration of a step, stored with its state: the key columns and the form of the state's values.

State outlives the code that wrote it. A run compares the declarations of its steps with those in the partitions, so
that it reports a changed key or type instead of misreading state. Forms are JSON-like values: "plain", "pickle",
"int", {"list": "int"}, {"dataclass": "Session", "fields": [["clicks", "int", true]]} …
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect as inspect

from recovery import errors
from recovery.values.codec import StateType, make_portable

Form = Any
PLAIN = "plain"
PICKLE = "pickle"
STRUCT = "struct"
"""The name of the form of a struct within columns."""

_BY_NAME = ("dataclass", "struct", "typed dict")
_BY_POSITION = ("named tuple", "array struct")
_VARIABLE = re.compile(r"\b[xyz]_\d+\b")
_LAMBDA = re.compile(r"(\b[xyz]_\d+|\([xyz]_\d+(?:, [xyz]_\d+)*\)) -> ")
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")


Convert = Callable[[str, str], str | None]
"""A function from a state key and the text of its state to the text of the new state; None discards the key."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One step's declaration: Spark's name and type of each key column, and the form of the state."""

    key: tuple[tuple[str, str], ...]
    state: Form

    def to_text(self) -> str:
        """Return the declaration as JSON; equal declarations give equal texts."""
        return msgspec.json.encode({"key": self.key, "state": self.state}).decode()

    @staticmethod
    def from_text(text: str | bytes) -> Declaration:
        """Return the declaration that `to_text` wrote. Raises ValueError for any other text."""
        try:
            found = msgspec.json.decode(text)
            return Declaration(tuple((name, kind) for name, kind in found["key"]), found["state"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"{errors.shown(text)} is not a declaration of a step: {error}") from error

    def key_text(self) -> str:
        """Return the key for display: word string, n bigint."""
        return ", ".join(f"{name} {kind}" for name, kind in self.key)


def form_of(state_type: StateType) -> Form:
    """Return the form of the values of a step with `state=state_type`, a type that StateCodec accepts."""
    if state_type is None:
        return PLAIN
    if state_type == PICKLE:
        return PICKLE
    try:
        return _form(inspect.type_info(state_type), [])
    finally:
        make_portable(state_type)


def misfits(old: Form, new: Form, at: str = "the state") -> Iterator[str]:
    """Yield a sentence for each reason why values of form `old` may change when read as `new`; nothing if they cannot.

    Fields with defaults may be added, and types may be widened: X to X | Y, an enum by values. The contents of a class
    matter, its name does not."""
    if old == new or (isinstance(old, str) and isinstance(new, str) and lambdas_numbered(old) == lambdas_numbered(new)):
        return
    old_kind, new_kind = _kind(old), _kind(new)
    if "any of" in (old_kind, new_kind):
        taken = _options(new)
        for each in _options(old):
            if not any(next(misfits(each, other, at), None) is None for other in taken):
                yield f"{at} was {shown(old)} and is {shown(new)}"
                return
    elif _tag(old) != _tag(new):
        yield f"{at} is tagged in another way"
    elif old_kind in _BY_NAME and new_kind in _BY_NAME:
        yield from _misfits_by_name(old["fields"], new["fields"], at)
    elif old_kind in _BY_POSITION and new_kind in _BY_POSITION:
        yield from _misfits_by_position(old["fields"], new["fields"], at)
    elif old_kind == "tuple" and new_kind == "named tuple" and new[new_kind] == STRUCT:
        # Earlier versions declared a struct without the names of its fields.
        yield from misfits(old, {"tuple": [form for _, form, _ in new["fields"]]}, at)
    elif old_kind != new_kind:
        yield f"{at} was {shown(old)} and is {shown(new)}"
    elif old_kind in ("enum", "literal"):
        gone = [value for value in old["values"] if value not in new["values"]]
        if gone:
            yield f"{at} may no longer be {', '.join(map(repr, gone))}"
    elif old_kind in ("list", "set", "frozenset", "tuple of any length"):
        yield from misfits(old[old_kind], new[old_kind], f"an element of {at}")
    elif old_kind == "dict":
        yield from misfits(old["dict"][0], new["dict"][0], f"a key of {at}")
        yield from misfits(old["dict"][1], new["dict"][1], f"a value of {at}")
    elif old_kind == "tuple":
        if len(old["tuple"]) != len(new["tuple"]):
            yield f"{at} was {shown(old)} and is {shown(new)}"
            return
        for number, (was, now) in enumerate(zip(old["tuple"], new["tuple"], strict=True)):
            yield from misfits(was, now, f"element {number} of {at}")
    elif old_kind == "again":
        yield f"{at} contains itself at another depth"
    for name, default in _left_out(old).items():
        now = _given(new).get(name)
        if now is not None and now != default:
            yield f"{name!r} of {at} was {default} where it is left out, and now it would be {now}"
    tightened = [name for name, value in _limits(new).items() if _limits(old).get(name) != value]
    if old_kind == new_kind and tightened:
        yield f"{at} has new limits: {', '.join(tightened)}"


def lambdas_numbered(expression: str) -> str:
    """Return the text of a Spark column with its lambdas' variables renamed to #1, #2 … in order. Spark names them
    x_1, y_2 … and increments the number with every lambda of the process."""
    bound: dict[str, list[tuple[int, int]]] = {}
    for found in _LAMBDA.finditer(expression):
        for name in found[1].strip("()").split(", "):
            bound.setdefault(name, []).append((found.start(), _end_of_lambda(expression, found.end())))
    numbers = {name: f"#{number}" for number, name in enumerate(bound, 1)}

    def numbered(found: re.Match[str]) -> str:
        # A column may have the name of a variable.
        inside = any(first <= found.start() < end for first, end in bound.get(found[0], ()))
        return numbers[found[0]] if inside else found[0]

    return _VARIABLE.sub(numbered, expression)


def _end_of_lambda(expression: str, body: int) -> int:
    """Return the index of the comma or parenthesis that ends a lambda, an argument of a call. Spark does not quote
    strings: if their parentheses leave the text unbalanced, return the end of the text."""
    if expression.count("(") != expression.count(")"):
        return len(expression)
    depth = 0
    for place in range(body, len(expression)):
        depth += {"(": 1, ")": -1}.get(expression[place], 0)
        if depth < 0 or (depth == 0 and expression[place] == ","):
            return place
    return len(expression)


def shown(form: Form) -> str:
    """Return a form for display."""
    if isinstance(form, str):
        return {PLAIN: "a plain JSON value"}.get(form, form)
    kind = _kind(form)
    if kind in (*_BY_NAME, *_BY_POSITION):
        return f"{form[kind]}({', '.join(name for name, _, _ in form['fields'])})"
    if kind == "any of":
        return " | ".join(shown(each) for each in form[kind])
    if kind in ("enum", "literal"):
        return f"{form[kind] or kind}({', '.join(map(repr, form['values']))})"
    inner = form[kind]
    if isinstance(inner, list):
        return f"{kind}[{', '.join(map(shown, inner))}]"
    return f"{kind}[{shown(inner)}]" if inner and not isinstance(inner, int) else kind


def _misfits_by_name(old: list[Form], new: list[Form], at: str) -> Iterator[str]:
    now = {name: (form, required) for name, form, required in new}
    for name, form, required in old:
        if name not in now:
            yield f"{at} has no {name!r} any more"
            continue
        now_form, now_required = now.pop(name)
        yield from misfits(form, now_form, f"{name!r} of {at}")
        if now_required and not required:
            yield f"{name!r} of {at} has no default any more, which older states need"
    for name, (_, required) in now.items():
        if required:
            yield f"{name!r} of {at} is new and has no default"


def _misfits_by_position(old: list[Form], new: list[Form], at: str) -> Iterator[str]:
    if len(new) < len(old):
        yield f"{at} has no {old[len(new)][0]!r} any more"
    for number, (was, now) in enumerate(zip(old, new, strict=False)):
        if was[0] != now[0]:
            yield f"position {number} of {at} was {was[0]!r} and is {now[0]!r}"
        yield from misfits(was[1], now[1], f"{now[0]!r} of {at}")
        if now[2] and not was[2]:
            yield f"{now[0]!r} of {at} has no default any more, which older states need"
    for name, _, required in new[len(old) :]:
        if required:
            yield f"{name!r} of {at} is new and has no default"


def _form(info: Any, above: list[Any]) -> Form:
    """Return the form of a type that msgspec describes; `above` are the types around it, innermost last."""
    if any(info is each for each in above):
        # A recursive type is recorded as its distance to the enclosing occurrence.
        return {"again": next(n for n, each in enumerate(reversed(above)) if each is info)}
    inner = [*above, info]
    match info:
        case inspect.Metadata(extra={"columns": names}, type=inspect.TupleType(item_types=kinds)):
            return _named("columns", names, kinds, inner)
        case inspect.Metadata(extra={"struct": names}, type=inspect.TupleType(item_types=kinds)):
            return _named(STRUCT, names, kinds, inner)
        case inspect.Metadata():
            return _form(info.type, above)
        case inspect.UnionType():
            return {"any of": [_form(each, inner) for each in info.types]}
        case inspect.EnumType():
            return {"enum": info.cls.__name__, "values": sorted((m.value for m in info.cls), key=repr)}
        case inspect.LiteralType():
            return {"literal": "", "values": sorted(info.values, key=repr)}
        case inspect.DictType():
            return {"dict": [_form(info.key_type, inner), _form(info.value_type, inner)], **_constraints(info)}
        case inspect.TupleType():
            return {"tuple": [_form(each, inner) for each in info.item_types]}
        case inspect.ListType() | inspect.SetType() | inspect.FrozenSetType() | inspect.VarTupleType():
            kind = {"vartuple": "tuple of any length"}.get(_name(info), _name(info))
            return {kind: _form(info.item_type, inner), **_constraints(info)}
        case inspect.DataclassType():
            return {"dataclass": info.cls.__name__, "fields": _fields(info, inner)}
        case inspect.NamedTupleType():
            return {"named tuple": info.cls.__name__, "fields": _fields(info, inner)}
        case inspect.TypedDictType():
            return {"typed dict": info.cls.__name__, "fields": _fields(info, inner)}
        case inspect.StructType():
            kind = "array struct" if info.array_like else "struct"
            tag = {} if info.tag is None else {"tag": [info.tag_field, info.tag]}
            return {kind: info.cls.__name__, "fields": _fields(info, inner), **tag, **_defaults(info)}
    limits = _constraints(info)
    return {_name(info): "", **limits} if limits else _name(info)


def _named(what: str, names: list[str], kinds: tuple[Any, ...], above: list[Any]) -> Form:
    parts = zip(names, kinds, strict=True)
    return {"named tuple": what, "fields": [[name, _form(kind, above), True] for name, kind in parts]}


def _fields(info: Any, above: list[Any]) -> list[Form]:
    return [[field.encode_name, _form(field.type, above), field.required] for field in info.fields]


# The repr of these is the same in every process.
_COMPARABLE = (type(None), bool, int, float, str, bytes, list, dict, set, enum.Enum)


def _defaults(info: Any) -> dict[str, Any]:
    """Return a struct's defaults, and whether values equal to them are left out when stored: a left-out value depends
    on the default. Values whose default comes from a user's factory function are always stored."""
    made = {
        field.encode_name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for field in info.fields
        if field.default is not msgspec.NODEFAULT or field.default_factory in (list, dict, set)
    }
    shown = {name: repr(default) for name, default in made.items() if isinstance(default, _COMPARABLE)}
    leaves_out = {"leaves out": True} if info.cls.__struct_config__.omit_defaults else {}
    return {"defaults": shown, **leaves_out} if shown else {}


def _constraints(info: Any) -> dict[str, Any]:
    found = {name: getattr(info, name, None) for name in _CONSTRAINTS}
    given = {name: value for name, value in found.items() if value is not None}
    return {"limits": given} if given else {}


def _name(info: Any) -> str:
    return type(info).__name__.removesuffix("Type").lower()


def _kind(form: Form) -> str:
    """Return the kind of a form: of a dict, its first key."""
    return form if isinstance(form, str) else next(iter(form))


def _tag(form: Form) -> Any:
    return form.get("tag") if isinstance(form, dict) else None


def _limits(form: Form) -> dict[str, Any]:
    return form.get("limits", {}) if isinstance(form, dict) else {}


def _given(form: Form) -> dict[str, str]:
    return form.get("defaults", {}) if isinstance(form, dict) else {}


def _left_out(form: Form) -> dict[str, str]:
    """Return the defaults of fields that states of this form may leave out."""
    return _given(form) if isinstance(form, dict) and "leaves out" in form else {}


def _options(form: Form) -> list[Form]:
    return form["any of"] if _kind(form) == "any of" else [form]
