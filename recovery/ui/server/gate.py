"""Who gets in: what is checked before a request reaches a page, and what every answer carries.

Without a token the server listens on the loopback interface only. There it answers requests that name this host: a page
of another site whose name was made to lead to 127.0.0.1 (DNS rebinding) names that site. With a token, a request has
to show the token or the cookie of who has signed in; a foreign page has neither.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from recovery.owner.watch.loopback import is_loopback
from recovery.ui.facts.flows import VERSION
from recovery.ui.server.headers import with_headers
from recovery.ui.server.signed_in import SignedIn, is_token

SIGN_IN = "/sign-in"
STATIC = "/static/"
API = "/api/"
GUESS_S = 1.0
"""After this time a wrong token is answered."""
_log = logging.getLogger("recovery")
_HOST = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d{1,5})?", re.ASCII)


class Gate:
    """An ASGI application before another one: prefix, host, method, token and headers."""

    def __init__(self, app: ASGIApp, prefix: str, tokens: Callable[[], Sequence[bytes]], signed_in: SignedIn) -> None:
        """prefix: what all paths begin with; empty: nothing. tokens: each is accepted; none: the host is checked."""
        self._app = app
        self._prefix = prefix
        self._tokens = tokens
        self._signed_in = signed_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = with_headers(list(message.get("headers", ())))
            await send(message)

        path = self._path(scope["path"])
        if path is None:
            await PlainTextResponse(f"this server's pages are below {self._prefix}/\n", 404)(scope, receive, sent)
            return
        # Starlette's routes match what follows root_path, and its links begin with it.
        scope = {**scope, "root_path": self._prefix, "path": f"{self._prefix}{path}"}
        refused = self._refused(scope, path)
        if refused is not None and refused.status_code == 401:
            await asyncio.sleep(GUESS_S)
        try:
            await (refused or self._app)(scope, receive, sent)
        except Exception:
            # Starlette has answered by now.
            _log.exception("a request could not be answered: %.200r", path)

    def _path(self, path: str) -> str | None:
        """Return the path below the prefix; None if it is not below."""
        if not path.startswith(self._prefix):
            return None
        rest = path[len(self._prefix) :] or "/"
        return rest if rest.startswith("/") else None

    def _refused(self, scope: Scope, path: str) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in (("GET", "HEAD", "POST") if path == SIGN_IN else ("GET", "HEAD")):
            return PlainTextResponse("this server only answers GET\n", 405, {"allow": "GET, HEAD"})
        tokens = self._tokens()
        if not tokens and not is_own_name(headers.get("host", "")):
            # 421: another server is meant.
            return PlainTextResponse(
                "Without a token, this server answers only to the names of the loopback interface: localhost, "
                "127.0.0.1, [::1]. Start it with --view-token-file to reach it by another name.\n",
                421,
            )
        if is_foreign(scope["method"], headers):
            return PlainTextResponse("this server answers no requests that pages of other sites make\n", 403)
        if not tokens or path == SIGN_IN or path.startswith(STATIC) or self._is_known(headers, tokens):
            return None
        if f"{path}/".startswith(API) or "authorization" in headers:
            return _unauthorized()
        asked = (scope.get("raw_path") or b"").decode("latin-1").removeprefix(self._prefix) or "/"
        query = scope["query_string"].decode("latin-1")
        back = quote(f"{asked}?{query}" if query else asked, safe="")
        return RedirectResponse(f"{self._prefix}{SIGN_IN}?next={back}", 303)

    def _is_known(self, headers: Headers, tokens: Sequence[bytes]) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return is_token(token.strip().encode("latin-1"), tokens)
        return self._signed_in.has("; ".join(headers.getlist("cookie")), tokens)


def is_own_name(host: str) -> bool:
    """Whether the header Host names the loopback interface."""
    match = _HOST.fullmatch(host)
    return match is not None and is_loopback(match["host"].strip("[]").lower().removesuffix("."))


def is_foreign(method: str, headers: Headers) -> bool:
    """Whether a browser says that a page of another site asks: by a part of that page, or with a form. A link that
    leads here is none."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    return method == "POST" or not (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )


def is_secure(request: Request) -> bool:
    """Whether a browser reached the server by TLS, if need be by way of a proxy that says so."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


def _unauthorized() -> Response:
    return JSONResponse(
        {
            "version": VERSION,
            "error": "Unauthorized",
            "exit_code": None,
            "found": "the request has no token that this server accepts",
            "path": None,
            "cause": "",
            "remedy": "Send the header Authorization: Bearer TOKEN",
        },
        401,
        {"www-authenticate": "Bearer"},
    )
