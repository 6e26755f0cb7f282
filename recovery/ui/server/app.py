"""The application: pages for people, JSON for programs, and the form to sign in."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from recovery.ui.api.app import api_routes
from recovery.ui.facts.flows import Flows
from recovery.ui.pages.app import FlowPages
from recovery.ui.server.admission import Admission
from recovery.ui.server.gate import SIGN_IN


def application(flows: Flows, admission: Admission) -> Starlette:
    """Return the application that shows flows."""
    pages = FlowPages(flows, admission.prefix)

    async def sign_in(request: Request) -> Response:
        if not admission.is_needed:
            return RedirectResponse(f"{admission.prefix}/", 303)
        return await admission.answer(request, pages.sign_in)

    routes = [Route(SIGN_IN, sign_in, methods=["GET", "POST"]), *api_routes(flows), *pages.routes()]
    made = Starlette(routes=routes, exception_handlers={HTTPException: pages.refused})
    # Starlette would lead to the host that the request names, which behind a proxy is another one than the browser's.
    made.router.redirect_slashes = False
    return made
