"""Answers that a reader has already: a request names what it was given by its tag, and gets 304 without a body."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from recovery.ui.api.tags import is_known, tag_of

SOON_S = 1
"""When a reader who is refused for now may ask again."""


def answered(request: Request, content: bytes, status: int, kind: str, tag: str | None = None) -> Response:
    """Return an answer: 304 without the content if the reader has it. kind: the media type. tag: None: that of the
    content."""
    if status == 503:
        return Response(content, status, {"retry-after": str(SOON_S)}, kind)
    if status != 200:
        return Response(content, status, media_type=kind)
    own = tag or tag_of(content)
    if is_known(own, request.headers.getlist("if-none-match")):
        return Response(status_code=304, headers={"etag": own})
    return Response(content, status, {"etag": own}, kind)
