"""Answers a request to /api/: status and JSON. Knows no server, so any can ask it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from recovery.errors import (
    ConfigurationError,
    CorruptPartitionError,
    DirectoryLockedError,
    EpochNotHeldError,
    LookLimitError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
    StateNotFoundError,
    StateValueError,
    StorageError,
)
from recovery.ui.api.openapi import document
from recovery.ui.api.routes import ROUTES, ApiRoute, QueryParameter, route_of, split_path
from recovery.ui.api.tags import tag_of
from recovery.ui.facts.flows import VERSION, Flows
from recovery.ui.facts.limits import one_request

LONGEST_PATH = 262_144
MOST_FIELDS = 2_000
PASSING = frozenset({"age_s", "looked_ms"})
"""Fields of an answer that change although nothing else does."""
STATUS: Mapping[type[RecoveryError], int] = {
    ConfigurationError: 400,
    StateNotFoundError: 404,
    EpochNotHeldError: 404,
    LookLimitError: 503,
    StorageError: 503,
    DirectoryLockedError: 503,
    OwnerUnreachableError: 502,
    OwnerRefusedError: 502,
    CorruptPartitionError: 409,
}
"""HTTP's status for each error; any other error of a directory is 409: the directory, not the request, is the cause."""


class ApiResponse(NamedTuple):
    """What to send: HTTP's status, the JSON as bytes, and the tag of what the JSON says, but for when that was."""

    status: int
    content: bytes
    tag: str

    @classmethod
    def of(cls, status: int, facts: Mapping[str, Any]) -> ApiResponse:
        """Return the facts as an answer. Text that is no Unicode is escaped."""
        lasting, passing = _parted(facts)
        same = _encoded(lasting)
        if "flows" in facts:
            return cls(status, _encoded(facts), tag_of(same))
        return cls(status, same[:-1] + b"," + _encoded(passing)[1:] if passing else same, tag_of(same))


def _encoded(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=str).encode()


def _parted(facts: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what facts say, and when that was. The latter stands in an answer itself and in the lines of the list of
    flows: further inside, states may have fields of these names."""
    lasting = {name: value for name, value in facts.items() if name not in PASSING}
    if "flows" in facts:
        lasting["flows"] = [_parted(each)[0] for each in facts["flows"]]
    return lasting, {name: value for name, value in facts.items() if name in PASSING}


def answer(flows: Flows, path: str, query: str = "", prefix: str = "") -> ApiResponse:
    """Answer a GET. path: what follows /api/, as it was sent, not decoded. query: what follows the question mark.
    prefix: what all paths of the server begin with.

    Raises nothing for whatever is asked: an error is JSON too, {"version", "error", "exit_code", "found", "path",
    "cause", "remedy"}, with a status of `STATUS`.
    """
    try:
        if len(path) + len(query) > LONGEST_PATH:
            raise ConfigurationError("the address is too long", cause="", remedy=f"At most {LONGEST_PATH:,} bytes.")
        with one_request():
            return ApiResponse.of(200, _answered(flows, path, query, prefix))
    except RecoveryError as error:
        return refused(error)
    except UnicodeDecodeError as error:
        return refused(ConfigurationError(f"the address is not UTF-8: {error}", cause="", remedy=""))
    except (ValueError, RecursionError) as error:
        return refused(StateValueError(f"JSON cannot have this: {error!r:.200}", cause="", remedy=""))


def refused(error: RecoveryError) -> ApiResponse:
    """Return an error as an answer."""
    return ApiResponse.of(status_of(error), {"version": VERSION, **error.as_json()})


def status_of(error: RecoveryError) -> int:
    """Return HTTP's status for an error."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 409)


def _answered(flows: Flows, path: str, query: str, prefix: str) -> dict[str, Any]:
    if path in ("", "openapi.json"):
        return document(prefix)
    found = split_path(path, flows)
    if found is None:
        return flows.list_facts()
    flow, parts = found
    routed = route_of(parts)
    if routed is None:
        names = ", ".join(f"/{route.path}" for route in ROUTES if route.path)
        raise StateNotFoundError(f"there is no route {path!r:.120}", remedy=f"Routes: {names}")
    route, names_given = routed
    arguments = _arguments(flows, route, query)
    return route.facts(flow, *(unquote(name, errors="strict") for name in names_given), **arguments)


def _arguments(flows: Flows, route: ApiRoute, query: str) -> dict[str, Any]:
    """Return the arguments of a query. Raises ConfigurationError for one that the route does not have, for one that is
    given twice, and for values of another form."""
    given: dict[str, list[str]] = {}
    if query.count("&") > MOST_FIELDS:
        raise ConfigurationError("the query has too many parts", cause="", remedy=f"At most {MOST_FIELDS:,}.")
    for name, value in parse_qsl(query, keep_blank_values=True, errors="strict"):
        given.setdefault(name, []).append(value)
    known = {each.name: each for each in route.query}
    arguments: dict[str, Any] = {}
    for name, values in given.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise ConfigurationError(f"there is no parameter {name!r:.80}", cause="", remedy=f"Parameters: {names}")
        parameter = known[name]
        arguments[parameter.argument or name] = _value(parameter, values)
    if "other" in arguments:
        arguments["other"] = flows.named(arguments["other"])
    return arguments


def _value(parameter: QueryParameter, values: Sequence[str]) -> Any:
    schema = parameter.schema
    if schema["type"] == "array":
        if len(values) > schema["maxItems"]:
            raise _unfit(parameter, f"{len(values)} values", f"at most {schema['maxItems']}")
        return [_one(parameter, schema["items"], each) for each in values]
    if len(values) > 1:
        raise _unfit(parameter, f"{len(values)} values", "one")
    return _one(parameter, schema, values[0])


def _one(parameter: QueryParameter, schema: Mapping[str, Any], text: str) -> Any:
    if schema["type"] == "string":
        if len(text) > schema["maxLength"]:
            raise _unfit(parameter, f"{len(text):,} characters", f"at most {schema['maxLength']:,}")
        return text
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:
        raise _unfit(parameter, repr(text)[:80], "a whole number")
    number, low, high = int(text), schema["minimum"], schema["maximum"]
    if not low <= number <= high:
        raise _unfit(parameter, f"{number}", f"{low} to {high}")
    return number


def _unfit(parameter: QueryParameter, found: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{parameter.name}: {found}, not {wanted}", cause="", remedy=parameter.description)
