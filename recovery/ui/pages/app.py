"""The routes of the pages, and what a request that fails gets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from jinja2 import Environment
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from recovery.errors import LookLimitError, RecoveryError, StateNotFoundError
from recovery.storage.verify import damage_behind
from recovery.ui.api.answering import status_of
from recovery.ui.api.turns import RequestTurns
from recovery.ui.api.unchanged import answered
from recovery.ui.facts.flows import Flows, ShownFlow
from recovery.ui.facts.limits import one_request
from recovery.ui.pages.rendering import Links, environment, static_file
from recovery.ui.pages.views import VIEWS, Asked, Query, View

_log = logging.getLogger("recovery")


PATIENCE_S = 1.0
"""How long a page waits for a look; then it shows the look before, or how far this one is."""
UNDER_WAY_MS = 1000
"""How often a page that shows how far the first look is looks again."""
HTML = "text/html"
AT_ONCE = 4
"""Pages that are made at the same time: the others wait, so a crowd cannot take all processors from a run."""


class DrawnPage(NamedTuple):
    """A page that was made: its HTML, and its status."""

    text: str
    status: int = 200


class FlowPages:
    """The pages about flows, as routes of an application."""

    def __init__(self, flows: Flows, prefix: str) -> None:
        """prefix: what links begin with."""
        self._flows = flows
        self._templates: Environment = environment(prefix)
        self._links = Links(prefix)
        self._turns = RequestTurns(AT_ONCE)

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        return [
            Route("/", self._home),
            Route("/static/{name}", self._static),
            Route("/flows/{flow}", self._bare),
            *(Route(f"/flows/{{flow}}/{view.name}", partial(self._page, view)) for view in VIEWS),
        ]

    def sign_in(self, onward: str, refused: bool) -> Response:
        """Return the form to sign in. onward: the path to go on to; refused: whether a token was wrong."""
        text = self._render("sign_in.html", title="Sign in", onward=onward, refused=refused)
        return HTMLResponse(text, 401 if refused else 200)

    async def refused(self, request: Request, error: Exception) -> Response:
        """Return the page that says why there is none."""
        assert isinstance(error, HTTPException)
        return self._html(self._error_page(error.status_code, str(error.detail)))

    async def _home(self, request: Request) -> Response:
        if len(self._flows) == 1:
            return RedirectResponse(self._links.page(next(iter(self._flows)).name), 307)
        return await self._made(request, None, self._list)

    async def _bare(self, request: Request) -> Response:
        return RedirectResponse(self._links.page(request.path_params["flow"]), 307)

    async def _static(self, request: Request) -> Response:
        try:
            content, kind, tag = static_file(request.path_params["name"])
        except KeyError:
            raise HTTPException(404, "There is no such file.") from None
        kept = {"cache-control": "private, max-age=86400", "etag": f'"{tag}"'}
        return Response(content, media_type=kind, headers=kept)

    async def _page(self, view: View, request: Request) -> Response:
        try:
            flow = self._flows.named(request.path_params["flow"])
        except StateNotFoundError as error:
            raise HTTPException(404, error.found) from None
        query = Query(request.query_params)
        return await self._made(request, flow, partial(self._draw, view, flow, query))

    async def _made(self, request: Request, flow: ShownFlow | None, make: Callable[[], DrawnPage]) -> Response:
        try:
            made = await self._turns.run(flow, len(self._flows) == 1, make)
        except LookLimitError as error:
            made = DrawnPage(self._render("alone.html", title="Not shown", error=error.as_json()), status_of(error))
        except Exception as error:
            _log.error("a page could not be made: %.200r", request.url.path, exc_info=error)
            made = self._error_page(500, "The page could not be made. The log of the server says why.")
        return answered(request, _encoded(made), made.status, HTML)

    def _list(self) -> DrawnPage:
        with one_request(PATIENCE_S):
            facts = self._flows.list_facts()
        return DrawnPage(self._render("flows.html", title="Flows", facts=facts, now_ms=self._flows.clock.wall_ms()))

    def _draw(self, view: View, flow: ShownFlow, query: Query) -> DrawnPage:
        around = {"title": view.title, "flow": flow.name, "view": view, "views": VIEWS, "query": query,
                  "every_ms": view.every_ms, "looked_ms": None, "now_ms": flow.clock.wall_ms()}  # fmt: skip
        try:
            with one_request(PATIENCE_S):
                shown = view.shown(Asked(flow, self._flows, query, self._links))
        except Exception as error:
            found = error if isinstance(error, RecoveryError) else damage_behind(error)
            if found is None:
                raise
            if isinstance(found, LookLimitError) and not flow.is_known:
                around["every_ms"] = UNDER_WAY_MS
            return DrawnPage(self._render("error.html", **around, error=found.as_json()), status_of(found))
        around["looked_ms"] = (shown.get("facts") or {}).get("looked_ms")
        return DrawnPage(self._render(view.template, **around, **shown))

    def _render(self, template: str, **shown: Any) -> str:
        return self._templates.get_template(template).render(**shown)

    def _error_page(self, status: int, found: str) -> DrawnPage:
        shown = {"error": {"found": found, "path": None, "cause": "", "remedy": "", "error": None}}
        return DrawnPage(self._render("alone.html", title="Not shown", **shown), status)

    @staticmethod
    def _html(made: DrawnPage) -> Response:
        return HTMLResponse(_encoded(made), made.status)


def _encoded(made: DrawnPage) -> bytes:
    return made.text.encode(errors="backslashreplace")
