"""The OpenAPI file of /api/, which follows from the routes (`routes`) and the schemas of the answers (`schemas`)."""

from __future__ import annotations

from typing import Any

from recovery.base.version import VERSION
from recovery.ui.api.routes import ROUTES, ApiRoute, QueryParameter
from recovery.ui.api.schemas import SCHEMAS
from recovery.ui.facts.flows import VERSION as API_VERSION

REFUSALS = {
    "400": "The request is not understood.",
    "401": "The server has a token, and the request does not show it.",
    "404": "There is no such flow, step, key, epoch or route.",
    "409": "The directory cannot be read as a store, or no run could resume from it.",
    "500": "Unforeseen; the log of the server says why.",
    "502": "An owner is not reached, or refuses.",
    "503": "It would take too long, or the disk refuses for now: ask again, or for less.",
}


def document(prefix: str = "") -> dict[str, Any]:
    """Return the OpenAPI file as JSON values. prefix: what all paths of the server begin with."""
    paths: dict[str, Any] = {
        "/api/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document.",
                "responses": {"200": {"description": "OpenAPI 3.1", "content": _json({"type": "object"})}},
            }
        },
        "/api/flows": {"get": _operation("flows", "The flows that are served.", "FlowsAnswer", [])},
    }
    for route in ROUTES:
        below = f"/{route.path}" if route.path else ""
        paths[f"/api/flows/{{flow}}{below}"] = {"get": _route(route, named=True)}
        if route.path:
            paths[f"/api/{route.path}"] = {"get": _route(route, named=False)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "recovery ui",
            "version": VERSION,
            "description": f"What recovery directories hold, read while their flows run. Version {API_VERSION} of the "
            "answers: fields may be added to it. Routes without /flows/{flow} are those of the only flow.",
        },
        # Relative to where the file is from: a proxy may serve it under another host.
        "servers": [{"url": prefix or "/"}],
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        # A server may have a token, or none.
        "security": [{"token": []}, {}],
    }


def _route(route: ApiRoute, *, named: bool) -> dict[str, Any]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    parameters = [
        {"name": each, "in": "path", "required": True, "schema": {"type": "string"}}
        for each in (["flow"] if named else []) + names
    ]
    parameters += [_parameter(each) for each in route.query]
    words = [part.strip("{}") for part in route.path.split("/") if part]
    return _operation(
        "_".join((["flow"] if named else []) + (words or ["now"])), route.summary, route.answer, parameters
    )


def _parameter(parameter: QueryParameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _operation(name: str, summary: str, answer: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    refused = {
        status: {"description": text, "content": _json({"$ref": "#/components/schemas/Refusal"})}
        for status, text in REFUSALS.items()
    }
    return {
        "operationId": name,
        "summary": summary,
        **({"parameters": parameters} if parameters else {}),
        "responses": {
            "200": {"description": summary, "content": _json({"$ref": f"#/components/schemas/{answer}"})},
            **refused,
        },
    }


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
