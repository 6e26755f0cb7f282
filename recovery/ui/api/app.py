"""The routes under /api/ for Starlette."""

from __future__ import annotations

import logging
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from recovery.errors import LookLimitError, RecoveryError, StateNotFoundError
from recovery.storage.verify import damage_behind
from recovery.ui.api.answering import ApiResponse, answer, refused
from recovery.ui.api.routes import split_path
from recovery.ui.api.turns import RequestTurns
from recovery.ui.api.unchanged import answered
from recovery.ui.facts.flows import Flows, ShownFlow

API = "/api"
AT_ONCE = 8
"""The most requests that read at the same time; the others wait for their turn."""
_log = logging.getLogger("recovery")


def api_routes(flows: Flows) -> list[Route]:
    """Return the routes of an application that answer about flows. The path is taken as it was sent: `%2F` in a name is
    no end of it."""
    turns = RequestTurns(AT_ONCE)

    async def endpoint(request: Request) -> Response:
        asked = (request.scope.get("raw_path") or request.scope["path"].encode()).decode("latin-1").partition("?")[0]
        prefix = request.scope.get("root_path", "")
        path = asked.removeprefix(prefix).removeprefix(API).removeprefix("/")
        query = request.scope["query_string"].decode("latin-1")
        try:
            made = await turns.run(_flow_of(flows, path), len(flows) == 1, partial(_made, flows, path, query, prefix))
        except LookLimitError as error:
            made = refused(error)
        found = answered(request, made.content, made.status, "application/json", made.tag)
        found.headers["cache-control"] = "no-store"
        return found

    return [Route(API, endpoint), Route(f"{API}/{{rest:path}}", endpoint)]


def _flow_of(flows: Flows, path: str) -> ShownFlow | None:
    """Return the flow that a path is about; None: all of them, or there is none, which the answer says."""
    try:
        found = split_path(path, flows)
    except (StateNotFoundError, UnicodeDecodeError):
        return None
    return None if found is None else found[0]


def _made(flows: Flows, path: str, query: str, prefix: str) -> ApiResponse:
    try:
        return answer(flows, path, query, prefix)
    except Exception as error:
        damage = damage_behind(error)
        if damage is not None:
            return refused(damage)
        _log.exception("a request could not be answered: /api/%.200s", path)
        unforeseen = RecoveryError("the request could not be answered; the log of the server says why")
        return refused(unforeseen)._replace(status=500)
