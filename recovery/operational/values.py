"""Values of operational state as JSON, and back with their original types.

JSON's own types stand for themselves. All other types are objects with one key that begins with "$":

    date         {"$date": "2013-01-31"}
    datetime     {"$datetime": "2013-01-31T05:17:00+01:00", "zone": "Europe/Berlin"}, without zone unless it has a name
    Decimal      {"$decimal": "1.10"}
    bytes        {"$bytes": "base64"}
    NaN, ±inf    {"$float": "nan"}
    dict         {"$dict": {…}} where a key of its own begins with "$"
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from recovery.errors import StateValueError, shown

DEEPEST = 200
MOST_BITS = 13_000
"""Python does not convert longer numbers to or from text."""
_REMEDY = "Use None, bool, int, float, str, date, datetime, Decimal, bytes, list, and dict with string keys."


def to_json(value: Any) -> Any:
    """Return `value` as JSON's own types. Raises StateValueError if `value` would not read back equal and of the same
    type."""
    return _encode(value, 0)


def from_json(value: Any) -> Any:
    """Return the value that `to_json` encoded. Raises StateValueError for an object of unknown form."""
    try:
        return _decode(value)
    except StateValueError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise StateValueError(f"{_shown(value)} is not a stored value: {error}", cause="", remedy=_REMEDY) from error


def dumps(value: Any) -> str:
    """Return `value` as one line of JSON text."""
    return json.dumps(to_json(value), ensure_ascii=False, separators=(",", ":"))


def loads(text: str) -> Any:
    """Return the value that a text holds. Raises StateValueError if the text is not JSON."""
    return from_json(parse_json(text))


def parse_json(text: str | bytes) -> Any:
    """Return the parsed JSON, undecoded. Raises StateValueError, also for NaN and the like and for a repeated key."""
    try:
        found = json.loads(
            text, parse_float=_float, parse_int=_int, parse_constant=_refuse_constant, object_pairs_hook=_unique
        )
        # Python accepts an escaped lone surrogate.
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except StateValueError:
        raise
    except (ValueError, RecursionError) as error:
        raise StateValueError(
            f"this is not JSON: {error}", cause="", remedy='Write text in quotes ("abc"), numbers bare (5).'
        ) from error


def is_text(value: str) -> bool:
    """Whether a str is text that every store can hold: without lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise _refused(value, f"it is nested more than {DEEPEST} deep")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        if value.bit_length() > MOST_BITS:
            raise _refused(value, f"it is a number of {value.bit_length()} bits; {MOST_BITS} are the most")
        return value
    if kind is str:
        if not is_text(value):
            raise _refused(value, "it holds half a character")
        return value
    encode = _ENCODERS.get(kind)
    if encode is not None:
        return encode(value)
    if kind is list:
        return [_encode(item, depth + 1) for item in value]
    if kind is dict:
        return _encode_dict(value, depth)
    python = _python_value(value)
    if type(python) is not kind:
        return _encode(python, depth)
    raise _refused(value, f"values of type {kind.__name__} cannot be stored")


def _python_value(value: Any) -> Any:
    """Return Python's value for a scalar of NumPy or a time of another library, such as pandas; `value` for another
    object. Raises StateValueError for a time that is finer than microseconds, or no time at all."""
    if isinstance(value, datetime) and value.isoformat() != "NaT":
        if getattr(value, "nanosecond", 0):
            raise _refused(value, "it is finer than a microsecond; round it")
        zone = value.tzinfo
        name = getattr(zone, "key", None) or getattr(zone, "zone", None)
        # The offset, not the fold, says which reading of a clock it is: libraries set the fold in different ways.
        fixed = value.utcoffset()
        offset = None if fixed is None else timezone(fixed)
        local = datetime(*value.timetuple()[:6], value.microsecond, offset)  # noqa: DTZ001 - as the value has it
        return local if fixed is None or not isinstance(name, str) or name == "UTC" else _in_zone(local, name)
    scalar = getattr(value, "item", None)
    if not callable(scalar) or getattr(value, "ndim", None) != 0:
        return value
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":
        # A count of nanoseconds is no date: NumPy converts microseconds and coarser units only.
        fine = value.astype("datetime64[us]")
        if fine != value:
            raise _refused(value, "it is no time, or finer than a microsecond; round it")
        return value.item() if isinstance(value.item(), date) else fine.item()
    return scalar()


def _encode_dict(value: dict[Any, Any], depth: int) -> Any:
    for key in value:
        if type(key) is not str or not is_text(key):
            raise _refused(value, f"its key, {_shown(key)}, is not a text")
    encoded = {key: _encode(item, depth + 1) for key, item in value.items()}
    return {"$dict": encoded} if any(key.startswith("$") for key in value) else encoded


def _encode_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _encode_datetime(value: datetime) -> Any:
    text = value.isoformat()
    if value.tzinfo is None:
        return {"$datetime": text}
    if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key:
        return {"$datetime": text, "zone": value.tzinfo.key}
    if isinstance(value.tzinfo, timezone):
        return {"$datetime": text}
    raise _refused(value, f"its zone is a {type(value.tzinfo).__name__}; use datetime.timezone or zoneinfo.ZoneInfo")


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    float: _encode_float,
    date: lambda value: {"$date": value.isoformat()},
    datetime: _encode_datetime,
    Decimal: lambda value: {"$decimal": str(value)},
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: _decode(item) for key, item in value.items()}
    if tag == "$dict" and len(value) == 1:
        return {key: _decode(item) for key, item in value[tag].items()}
    text, zone = value[tag], value.get("zone")
    known = {"$datetime", "zone"} if tag == "$datetime" else {tag}
    if tag not in _DECODERS or not value.keys() <= known or not isinstance(text, str):
        raise ValueError(f"unknown form {tag!r}")
    decoded = _decode_text(tag, text)
    return decoded if zone is None else _in_zone(decoded, zone)


def _decode_text(tag: str, text: str) -> Any:
    decode, what, example = _DECODERS[tag]
    try:
        return decode(text)
    except (ValueError, ArithmeticError) as error:
        why = f": {error}" if isinstance(error, ValueError) else ""
        raise StateValueError(
            f"there is no {what} {shown(text)}{why}", cause="", remedy=f'Write it like {{"{tag}": "{example}"}}.'
        ) from error


def _in_zone(moment: datetime, zone: Any) -> datetime:
    try:
        local = moment.replace(tzinfo=ZoneInfo(zone))
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise StateValueError(
            f"there is no time zone {shown(zone)}",
            cause="The name is misspelt, or this machine does not know the time zone.",
            remedy='Write its name like "Europe/Berlin"; to install time zones: pip install tzdata',
        ) from error
    # Where clocks were set back an hour, the offset decides between the two readings.
    for reading in (local, local.replace(fold=1)):
        if moment.utcoffset() in (None, reading.utcoffset()):
            return reading
    # The offset says which instant it is; the zone's rules have changed since, or somebody mistook them.
    return moment.astimezone(local.tzinfo)


# For each form: its parser, the name of such a text, and an example.
_DECODERS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "$date": (date.fromisoformat, "day", "2013-01-31"),
    "$datetime": (datetime.fromisoformat, "date and time", "2013-01-31T05:17:00+01:00"),
    "$decimal": (Decimal, "decimal number", "1.10"),
    "$bytes": (lambda text: base64.b64decode(text, validate=True), "base64 text", "AP8="),
    "$float": (float, "number", "nan"),
}


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _too_large(text)
    return number


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _too_large(text) from None


def _too_large(text: str) -> StateValueError:
    return StateValueError(
        f"the number {text:.40} is too large",
        cause="No float is above 1.8e308, and no whole number has more than 4,300 digits.",
        remedy='Operational state takes it as {"$decimal": "1e400"}.',
    )


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice in an object")
    return found


def _refused(value: Any, why: str) -> StateValueError:
    return StateValueError(f"{_shown(value)} cannot be stored: {why}", cause="", remedy=_REMEDY)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"
