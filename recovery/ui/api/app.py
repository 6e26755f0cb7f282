"""The routes under /api/ for Starlette."""

from __future__ import annotations

import logging
from functools import partial

import anyio
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from recovery.errors import RecoveryError
from recovery.storage.verify import damage_behind
from recovery.ui.api.answering import ApiResponse, answer, refused
from recovery.ui.facts.flows import Flows

API = "/api"
AT_ONCE = 8
"""The most requests that read at the same time; the others wait for their turn."""
_log = logging.getLogger("recovery")


def api_routes(flows: Flows) -> list[Route]:
    """Return the routes of an application that answer about flows. The path is taken as it was sent: `%2F` in a name is
    no end of it."""
    limit: list[anyio.CapacityLimiter] = []

    async def endpoint(request: Request) -> Response:
        if not limit:
            # The event loop has begun by now.
            limit.append(anyio.CapacityLimiter(AT_ONCE))
        asked = (request.scope.get("raw_path") or request.scope["path"].encode()).decode("latin-1").partition("?")[0]
        path = asked.removeprefix(request.scope.get("root_path", "")).removeprefix(API).removeprefix("/")
        query = request.scope["query_string"].decode("latin-1")
        made = await to_thread.run_sync(partial(_made, flows, path, query), limiter=limit[0])
        return Response(made.content, made.status, media_type="application/json", headers={"cache-control": "no-store"})

    return [Route(API, endpoint), Route(f"{API}/{{rest:path}}", endpoint)]


def _made(flows: Flows, path: str, query: str) -> ApiResponse:
    try:
        return answer(flows, path, query)
    except Exception as error:
        damage = damage_behind(error)
        if damage is not None:
            return refused(damage)
        _log.exception("a request could not be answered: /api/%.200s", path)
        unforeseen = RecoveryError("the request could not be answered; the log of the server says why")
        return refused(unforeseen)._replace(status=500)
