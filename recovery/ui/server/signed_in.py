"""Who has signed in: a cookie that this process alone can make, valid as long as the token is.

The cookie is the end of its validity with a proof of it. The key of the proof is this process's own, so the server
keeps nothing, and its restart signs everybody out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from recovery.base.clock import Clock

VALID_S = 12 * 3600


class SignedIn:
    """Makes and checks the cookie. Any thread may call it."""

    def __init__(self, clock: Clock, path: str) -> None:
        """path: below which pages the browser sends the cookie."""
        self._clock = clock
        self._path = path
        self._key = secrets.token_bytes(32)
        # Cookies are shared by all ports of a host: each process has a name of its own.
        self.name = f"recovery-ui-{secrets.token_hex(4)}"

    def cookie(self, token: bytes, *, secure: bool) -> str:
        """Return the header that sets the cookie of someone who has shown a token. secure: the browser reached the
        server by TLS."""
        end_s = self._now_s() + VALID_S
        text = f"{self.name}={end_s}.{self._proof(end_s, token)}; Path={self._path}; HttpOnly; SameSite=Strict"
        return f"{text}; Secure" if secure else text

    def has(self, cookies: str, tokens: Sequence[bytes]) -> bool:
        """Whether the header Cookie has a valid cookie of one of the tokens."""
        for pair in cookies.split(";"):
            name, _, value = pair.strip().partition("=")
            end, _, proof = value.partition(".")
            if name != self.name or not (end.isascii() and end.isdigit() and len(end) < 20):
                continue
            if int(end) > self._now_s() and any(_same(proof, self._proof(int(end), token)) for token in tokens):
                return True
        return False

    def _proof(self, end_s: int, token: bytes) -> str:
        return hmac.new(self._key, f"{end_s}.".encode() + token, hashlib.sha256).hexdigest()

    def _now_s(self) -> int:
        return self._clock.wall_ms() // 1000


def is_token(given: bytes, tokens: Sequence[bytes]) -> bool:
    """Whether a client has shown one of the tokens, in a time that does not depend on where they differ."""
    return any(hmac.compare_digest(given, token) for token in tokens)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())
