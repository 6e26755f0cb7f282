"""The form with which a browser shows the token, and gets the cookie of who has signed in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from recovery.ui.server import gate
from recovery.ui.server.gate import is_secure
from recovery.ui.server.signed_in import SignedIn, is_token

LONGEST_FORM = 8 << 10


class Admission:
    """Signs people in. page: draws the form, with the path to go on to and whether a token was refused."""

    def __init__(self, tokens: Callable[[], Sequence[bytes]], signed_in: SignedIn, prefix: str) -> None:
        self._tokens = tokens
        self._signed_in = signed_in
        self.prefix = prefix

    @property
    def is_needed(self) -> bool:
        """Whether the server has a token."""
        return bool(self._tokens())

    async def answer(self, request: Request, page: Callable[[str, bool], Response]) -> Response:
        """Return the form, or what follows a form that was sent. page: draws the form, with the path to go on to, and
        whether a token was refused."""
        tokens = self._tokens()
        if request.method != "POST":
            return page(self._onward(request.query_params.get("next", "")), False)
        form = parse_qs((await _body(request)).decode("latin-1"), encoding="latin-1")
        onward = self._onward(form.get("next", [""])[0])
        given = form.get("token", [""])[0].strip().encode("latin-1", "replace")
        shown = next((token for token in tokens if is_token(given, [token])), None)
        if shown is None:
            await asyncio.sleep(gate.GUESS_S)
            return page(onward, True)
        answer = RedirectResponse(f"{self.prefix}{onward}", 303)
        answer.headers["set-cookie"] = self._signed_in.cookie(shown, secure=is_secure(request))
        return answer

    @staticmethod
    def _onward(path: str) -> str:
        """Return the path, if it is one of this server: no other site can send a reader elsewhere after signing in."""
        is_own = path.startswith("/") and not path.startswith("//") and path.isascii() and path.isprintable()
        return path if is_own and "\\" not in path else "/"


async def _body(request: Request) -> bytes:
    """Return the form that was sent; empty if it is too long, or if the client has gone."""
    body = b""
    with contextlib.suppress(ClientDisconnect):
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                return b""
        return body
    return b""
