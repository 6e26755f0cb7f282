"""A state that is declared by columns, as Spark's schemas do."""

from __future__ import annotations

import copyreg
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import msgspec.inspect

from recovery.errors import StateValueError, shown

_META = (
    "gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz", "title", "description",
    "examples", "extra_json_schema", "extra",
)  # fmt: skip
_PLACE = re.compile(r"\$\[(\d+)\]")


class Columns:
    """A state that is declared by columns, as Spark's schemas do: a tuple, whose parts also have names.

    `update` takes a tuple, or a dict of the columns, where one that is left out is NULL. `get` returns a tuple that
    takes names as indices, too.
    """

    def __init__(self, names: Sequence[str], decimals: Mapping[int, tuple[int, int]]) -> None:
        """decimals: precision and scale of the parts that are decimals, by position."""
        self._names = tuple(names)
        self._sorted = sorted(names)
        self._decimals = decimals
        places = {name: place for place, name in enumerate(names)}
        self._made = type("State", (_Named,), {"__slots__": (), "places": places})

    @staticmethod
    def of(info: msgspec.inspect.Type) -> Columns | None:
        """Return the columns of a type that `declared` made; None for another type."""
        extra = info.extra if isinstance(info, msgspec.inspect.Metadata) else None
        return None if not extra or "columns" not in extra else Columns(extra["columns"], extra["decimals"])

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
        fields = () if type(value) is tuple else getattr(value, "__fields__", ())
        if sorted(fields) == self._sorted:
            # A row of Spark with these columns, perhaps in another order.
            value = dict(zip(fields, value, strict=True))
        if isinstance(value, dict):
            unknown = [name for name in value if name not in self._names]
            if unknown:
                raise StateValueError(
                    f"{_shown(value)} has {', '.join(map(repr, unknown))}, which is none of {self.described}",
                    cause="The value does not fit the declared type of the state.",
                )
            value = tuple(value.get(name) for name in self._names)
        elif isinstance(value, tuple):
            value = tuple(value)
        for place, (precision, scale) in self._decimals.items():
            part = value[place] if isinstance(value, tuple) and place < len(value) else None
            if isinstance(part, Decimal) and not _fits_decimal(part, precision, scale):
                raise StateValueError(
                    f"{_shown(value)} cannot be stored: {part} is no decimal({precision},{scale}) - at "
                    f"`$.{self._names[place]}`",
                    cause="The value does not fit the declared type of the state.",
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


def by_name(info: msgspec.inspect.Type, value: Any) -> Any:
    """Return a row of Spark as a value of a type that `declared` or `within` made, at any depth: each field goes to the
    field of its name, and one that the row lacks is None. Plain tuples stay in their order.

    Raises StateValueError for a field that the type does not have.
    """
    match info:
        case msgspec.inspect.UnionType():
            there = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
            return by_name(there[0], value) if value is not None and len(there) == 1 else value
        case msgspec.inspect.Metadata(extra={"columns": names}, type=msgspec.inspect.TupleType(item_types=kinds)):
            return _arranged("columns", names, kinds, value)
        case msgspec.inspect.Metadata(extra={"struct": names}, type=msgspec.inspect.TupleType(item_types=kinds)):
            return _arranged("fields", names, kinds, value)
        case msgspec.inspect.Metadata():
            return by_name(info.type, value)
        case msgspec.inspect.ListType() if isinstance(value, list):
            return [by_name(info.item_type, each) for each in value]
        case msgspec.inspect.DictType() if isinstance(value, dict):
            return {by_name(info.key_type, key): by_name(info.value_type, each) for key, each in value.items()}
    return value


def _arranged(what: str, names: Sequence[str], kinds: Sequence[msgspec.inspect.Type], value: Any) -> Any:
    fields = list(value) if isinstance(value, dict) else getattr(value, "__fields__", None)
    if fields is None:
        whole = isinstance(value, tuple) and len(value) == len(kinds)
        return tuple(map(by_name, kinds, value)) if whole else value
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise StateValueError(
            f"{_shown(value)} has {', '.join(map(repr, unknown))}, which is none of the {what} {', '.join(names)}",
            cause="The value does not fit the declared type of the state.",
        )
    if len(set(fields)) < len(fields):
        raise StateValueError(
            f"{_shown(value)} has a field twice, and only one of them would be kept",
            cause="The value does not fit the declared type of the state.",
        )
    given = value if isinstance(value, dict) else dict(zip(fields, value, strict=True))
    return tuple(by_name(kind, given.get(name)) for name, kind in zip(names, kinds, strict=True))


def _meta(given: Mapping[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**given)


def _reduced(meta: msgspec.Meta) -> tuple[Callable[..., msgspec.Meta], tuple[dict[str, Any]]]:
    found = {name: getattr(meta, name) for name in _META}
    return _meta, ({name: value for name, value in found.items() if value is not None},)


# A step is pickled with the type of its states, and msgspec's limits cannot be pickled by themselves.
copyreg.pickle(msgspec.Meta, _reduced)
