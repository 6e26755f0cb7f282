"""Headers of every answer: what a browser may do with a page."""

from __future__ import annotations

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
"""Only files of this server run or style a page, and a page asks no other host."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Addresses have names of steps and keys.
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Pages have states. Static files say otherwise.
    "cache-control": "no-store",
}


def with_headers(own: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with those of every answer that it does not set itself."""
    there = {name.lower() for name, _ in own}
    return own + [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there]
