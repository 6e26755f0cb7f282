"""A state that is declared by columns, as Spark's schemas do; and rows, whose names decide which part goes where."""

from __future__ import annotations

import copyreg
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, TypeAlias

import msgspec
import msgspec.inspect

from recovery.errors import StateValueError, shown

_META = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz", "title", "description",
    "examples", "extra_json_schema", "extra",
)  # fmt: skip
_PLACE = re.compile(r"\$\[(\d+)\]")
_CAUSE = "The value does not fit the declared type of the state."
USE_NAMES = "Use these names"
BY_PLACE = f"{USE_NAMES}; or give a plain tuple, as in tuple(row), which goes by place."

Arrange: TypeAlias = Callable[[Any], Any]
"""A function that returns a value with its parts where their names say. Raises StateValueError."""


def names_of(row: Any) -> Sequence[str] | None:
    """Return the names of the parts of a row: of a Row of Spark, a named tuple, or a row that `update` was given; None:
    its parts have none."""
    names: Sequence[str] | None = getattr(row, "__fields__", None)
    return getattr(row, "_fields", None) if names is None else names


@lru_cache(1024)
def places_of(given: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[int | None, ...] | None:
    """Return for each wanted name the place of the part that has this name, None for one that is lacking; None: the
    parts are in this order. Raises ValueError, the end of a sentence, for other names and for a name that is there
    twice."""
    if given == wanted:
        return None
    unknown = [name for name in given if name not in wanted]
    if unknown:
        raise ValueError(f"has {', '.join(map(repr, unknown))}, which is none of")
    if len(set(given)) < len(given):
        raise ValueError("has a name twice, which cannot go into")
    return tuple(given.index(name) if name in given else None for name in wanted)


class Columns:
    """A state that is declared by columns, as Spark's schemas do: a tuple, whose parts also have names.

    `update` takes a plain tuple; or a Row, a named tuple or a dict, whose names decide, and where a column that is left
    out is NULL. `get` returns a tuple that takes names as indices, too.
    """

    def __init__(self, names: Sequence[str], decimals: Mapping[int, tuple[int, int]], arrange: Arrange) -> None:
        """decimals: precision and scale of the parts that are decimals, by position. arrange: that of the type."""
        self._names = tuple(names)
        self._arrange = arrange
        self._decimals = decimals
        places = {name: place for place, name in enumerate(names)}
        self._made = type("State", (_Named,), {"__slots__": (), "places": places})

    @staticmethod
    def of(info: msgspec.inspect.Type) -> Columns | None:
        """Return the columns of a type that `declared` made; None for another type."""
        extra = info.extra if isinstance(info, msgspec.inspect.Metadata) else None
        arrange = arranging(info)
        if not extra or "columns" not in extra or arrange is None:
            return None
        return Columns(extra["columns"], extra["decimals"], arrange)

    @staticmethod
    def declared(parts: Sequence[Any], names: Sequence[str], decimals: Mapping[int, tuple[int, int]]) -> Any:
        """Return the type of a state of columns; `parts` are the types of its columns."""
        meta = msgspec.Meta(extra={"columns": list(names), "decimals": dict(decimals)})
        return Annotated[tuple[tuple(parts)], meta]  # type: ignore[misc]

    @staticmethod
    def within(parts: Sequence[Any], names: Sequence[str]) -> Any:
        """Return the type of a column, or of a part of one, that is a struct: a tuple, of whose parts the names count
        when a declaration is compared with another one. `parts` are the types of its fields."""
        return Annotated[tuple[tuple(parts)], msgspec.Meta(extra={"struct": list(names)})]  # type: ignore[misc]

    @property
    def described(self) -> str:
        """The columns' names, for messages."""
        return f"the columns {', '.join(self._names)}"

    def encoder(self, encode: Callable[[Any], str]) -> Callable[[Any], str]:
        """Return `StateCodec.encode`, given that of the tuple."""

        def encode_columns(value: Any) -> str:
            given = self._in_order(value)
            try:
                return encode(given)
            except StateValueError as error:
                found = named_place(error.found, self._names)
                raise StateValueError(found, cause=error.cause, remedy=error.remedy) from error

        return encode_columns

    def decoder(self, decode: Callable[[str], Any]) -> Callable[[str], Any]:
        """Return `StateCodec.decode`, given that of the tuple."""
        made = self._made

        def decode_columns(text: str) -> Any:
            try:
                return made(decode(text))
            except ValueError as error:
                raise ValueError(named_place(str(error), self._names)) from error

        return decode_columns

    def _in_order(self, value: Any) -> Any:
        value = self._arrange(value)
        for place, (precision, scale) in self._decimals.items():
            part = value[place] if isinstance(value, tuple) and place < len(value) else None
            if isinstance(part, Decimal) and not _fits_decimal(part, precision, scale):
                raise StateValueError(
                    f"{_shown(value)} cannot be stored: {part} is no decimal({precision},{scale}) - at "
                    f"`$.{self._names[place]}`",
                    cause=_CAUSE,
                    remedy=f"Round it: value.quantize(Decimal(1).scaleb(-{scale})).",
                )
        return value


class _Named(tuple):  # type: ignore[type-arg]
    """A tuple that takes names as indices, too."""

    __slots__ = ()
    places: Mapping[str, int] = {}

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.places[key] if isinstance(key, str) else key)

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


def _fits_decimal(value: Decimal, precision: int, scale: int) -> bool:
    """Return whether a decimal type of Spark holds the value exactly."""
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return False
    return -exponent <= scale and len(digits) + exponent <= precision - scale


def named_place(text: str, names: Sequence[str]) -> str:
    """Return msgspec's sentence with the name of a part where it has the part's number."""
    place = _PLACE.search(text)
    if place is None or int(place[1]) >= len(names):
        return text
    return text.replace(place[0], f"$.{names[int(place[1])]}", 1)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"


def arranging(info: msgspec.inspect.Type) -> Arrange | None:
    """Return what puts rows into the order of a type that `declared` or `within` made, at any depth: a Row of Spark, a
    named tuple or a dict goes by its names, and a part that it lacks is None. Plain tuples stay in their order. None:
    no part of the type has names."""
    match info:
        case msgspec.inspect.UnionType():
            there = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
            return arranging(there[0]) if len(there) == 1 else None
        case msgspec.inspect.Metadata(extra={"columns": names}, type=msgspec.inspect.TupleType(item_types=kinds)):
            return _arranging_row("columns", tuple(names), kinds)
        case msgspec.inspect.Metadata(extra={"struct": names}, type=msgspec.inspect.TupleType(item_types=kinds)):
            return _arranging_row("fields", tuple(names), kinds)
        case msgspec.inspect.Metadata():
            return arranging(info.type)
        case msgspec.inspect.ListType():
            each = arranging(info.item_type)
            return each and (lambda value: list(map(each, value)) if isinstance(value, list) else value)
        case msgspec.inspect.DictType():
            return _arranging_dict(arranging(info.key_type), arranging(info.value_type))
    return None


def _arranging_dict(of_key: Arrange | None, of_value: Arrange | None) -> Arrange | None:
    if of_key is None and of_value is None:
        return None
    key_of, value_of = of_key or _unchanged, of_value or _unchanged
    return lambda value: (
        {key_of(key): value_of(each) for key, each in value.items()} if isinstance(value, dict) else value
    )


def _arranging_row(what: str, names: tuple[str, ...], kinds: Sequence[msgspec.inspect.Type]) -> Arrange:
    inner = [arranging(kind) for kind in kinds]
    is_flat = not any(inner)
    each = [of or _unchanged for of in inner]

    def arrange(value: Any) -> Any:
        if type(value) is not tuple:
            value = _by_names(what, names, value)
        if is_flat or not isinstance(value, tuple) or len(value) != len(each):
            return value
        return tuple(of(part) for of, part in zip(each, value, strict=True))

    return arrange


def _by_names(what: str, names: tuple[str, ...], value: Any) -> Any:
    """Return a row as a plain tuple, in the order of `names` if its parts have names. what: their kind, for messages.
    Other values stay."""
    given = tuple(value) if isinstance(value, dict) else names_of(value) if isinstance(value, tuple) else None
    if given is None:
        return tuple(value) if isinstance(value, tuple) else value
    try:
        places = places_of(tuple(given), names)
    except ValueError as error:
        raise StateValueError(
            f"{_shown(value)} {error} the {what} {', '.join(names)}",
            cause=_CAUSE,
            remedy=f"{USE_NAMES}." if isinstance(value, dict) else BY_PLACE,
        ) from error
    parts = tuple(value.values()) if isinstance(value, dict) else tuple(value)
    return parts if places is None else tuple(None if place is None else parts[place] for place in places)


def _unchanged(value: Any) -> Any:
    return value


def _meta(given: Mapping[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**given)


def _reduced(meta: msgspec.Meta) -> tuple[Callable[..., msgspec.Meta], tuple[dict[str, Any]]]:
    found = {name: getattr(meta, name) for name in _META}
    return _meta, ({name: value for name, value in found.items() if value is not None},)


# A step is pickled with the type of its states, and msgspec's limits cannot be pickled by themselves.
copyreg.pickle(msgspec.Meta, _reduced)
