"""Older versions of objects in an S3 bucket: what a bucket with versioning keeps of objects that were removed or
replaced, and until when a lock keeps them.

Neither client of buckets lists versions, so the few requests are made here, signed as AWS documents it (Signature
Version 4).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from xml.etree import ElementTree

from recovery.places.access import Access
from recovery.places.arrow import content_of
from recovery.places.failures import Failures
from recovery.places.protocol import CHUNK_BYTES, LARGEST, Lock, OlderVersion

NOTHING = hashlib.sha256(b"").hexdigest()
UNKNOWN_CALL = (405, 501)
"""How servers answer that keep no versions, and so have no list of them."""
MARKERS = {"key-marker": "NextKeyMarker", "version-id-marker": "NextVersionIdMarker"}
"""Where the next page of a list of versions begins: in a query, and in the answer before."""
REGION = "x-amz-bucket-region"
DEFAULT_REGION = "us-east-1"


class BucketVersions:
    """The `ObjectVersions` below `root` in an S3 bucket. Every call ends after `no_answer_s` of silence."""

    def __init__(self, bucket: str, root: str, access: Access, failures: Failures, no_answer_s: float) -> None:
        """access: has a key."""
        self._access = access
        self._failures = failures
        self._no_answer_s = no_answer_s
        self._region = access.region or DEFAULT_REGION
        self._bucket = bucket
        self._root = f"{root.strip('/')}/" if root.strip("/") else ""

    def entries(self, prefix: str) -> list[OlderVersion]:
        """Return all older versions of objects whose name begins with `prefix`; none if the bucket keeps none."""
        return self._all(prefix, lambda each: _tag(each) == "Version" and _text(each, "IsLatest") == "false")

    def markers(self, prefix: str) -> list[OlderVersion]:
        """Return the markers that stand for the removal of objects whose name begins with `prefix`."""
        return self._all(prefix, lambda each: _tag(each) == "DeleteMarker")

    def _all(self, prefix: str, wanted: Callable[[ElementTree.Element], bool]) -> list[OlderVersion]:
        found: list[OlderVersion] = []
        query = {"versions": "", "prefix": self._root + prefix}
        while True:
            answer = self._listed(query)
            if answer is None:
                return []
            for each in answer.iter():
                if wanted(each):
                    version = _text(each, "VersionId")
                    if not version:
                        # Of another kind of server. Without an id, a removal would be that of the object itself.
                        raise self._failures.of_service(OSError("it lists versions without their ids"))
                    found.append(OlderVersion(_text(each, "Key").removeprefix(self._root), version))
            if _text(answer, "IsTruncated") != "true":
                return sorted(found)
            after = {name: _text(answer, tag) for name, tag in MARKERS.items()}
            if after.items() <= query.items():
                raise self._failures.of_service(OSError("its list of versions does not come to an end"))
            query |= after

    def read(self, older: OlderVersion) -> Iterator[bytes]:
        """Yield the version's bytes, in chunks, decompressed as those of an object. Raises FileNotFoundError."""
        with self._asked("GET", older.name, {"versionId": older.version}) as answer:

            def chunk() -> bytes:
                with self._failing():
                    found = answer.read(CHUNK_BYTES)
                    if not found and answer.length:
                        raise HTTPException(f"{answer.length:,} bytes are missing at its end")
                    return found

            yield from content_of(older.name, chunk, self._failures.shown)

    def delete(self, older: OlderVersion) -> None:
        """Remove the version for good; a missing one is not an error."""
        with contextlib.suppress(FileNotFoundError), self._asked("DELETE", older.name, {"versionId": older.version}):
            pass

    def lock(self, name: str, version: str | None = None) -> Lock | None:
        """Return what keeps a version from being removed, None if nothing does. version: None: the current one."""
        try:
            with self._asked("HEAD", name, {"versionId": version} if version else {}) as answer:
                headers = answer.headers
        except FileNotFoundError:
            return None
        if headers.get("x-amz-object-lock-legal-hold", "").upper() == "ON":
            return Lock(None, "legal hold")
        until = headers.get("x-amz-object-lock-retain-until-date")
        if not until or _has_passed(until):
            return None
        return Lock(until, str(headers.get("x-amz-object-lock-mode", "")).lower())

    def _listed(self, query: Mapping[str, str]) -> ElementTree.Element | None:
        try:
            with self._asked("GET", None, query) as answer, self._failing():
                content = answer.read(LARGEST)
        except _UnknownCall:
            return None
        try:
            return ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            raise self._failures.of_service(error) from None

    @contextlib.contextmanager
    def _asked(self, method: str, name: str | None, query: Mapping[str, str]) -> Iterator[HTTPResponse]:
        """Yield the answer to a request, in whose bucket's region the second attempt is made if the first one fails."""
        try:
            answer = self._request(method, name, query)
        except HTTPError as error:
            region = error.headers.get(REGION)
            if region in (None, self._region) or self._access.endpoint is not None:
                raise self._refused(error) from None
            self._region = region
            try:
                answer = self._request(method, name, query)
            except HTTPError as again:
                raise self._refused(again) from None
        with answer:
            yield answer

    def _request(self, method: str, name: str | None, query: Mapping[str, str]) -> HTTPResponse:
        host = self._access.endpoint or f"https://s3.{self._region}.amazonaws.com"
        path = f"/{self._bucket}" + ("" if name is None else f"/{self._root}{name}")
        url = f"{host.rstrip('/')}{quote(path)}"
        headers = signed(method, url, query, self._access, self._region, datetime.now(UTC))
        with self._failing():
            return build_opener(_NoRedirects).open(  # type: ignore[no-any-return]
                Request(f"{url}?{_query(query)}", method=method, headers=headers),
                timeout=self._no_answer_s,
            )

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except HTTPError:
            raise
        except TimeoutError:
            raise self._failures.silent(self._no_answer_s) from None
        except (URLError, HTTPException, OSError) as error:
            if isinstance(error, URLError) and isinstance(error.reason, TimeoutError):
                raise self._failures.silent(self._no_answer_s) from None
            raise self._failures.of_service(error) from None

    def _refused(self, error: HTTPError) -> Exception:
        with error:
            code = ""
            with contextlib.suppress(ElementTree.ParseError, OSError, HTTPException):
                answer = ElementTree.fromstring(error.read(CHUNK_BYTES))
                code = f"{_text(answer, 'Code')}: {_text(answer, 'Message')}"
        if error.code in UNKNOWN_CALL:
            return _UnknownCall(code)
        if error.code == 404 and not code.startswith("NoSuchBucket"):
            return FileNotFoundError(code)
        return self._failures.of_service(OSError(code or f"status {error.code}"))


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirection: a request is signed for one host, and its token is for nobody else. Where a bucket is, a
    header of the answer says."""

    def redirect_request(self, *_: object) -> None:
        return None


class _UnknownCall(Exception):  # noqa: N818 - an answer of the server, which its caller expects
    """The server does not know what was asked of it."""


def signed(
    method: str, url: str, query: Mapping[str, str], access: Access, region: str, now: datetime
) -> dict[str, str]:
    """Return the headers of a request without a body to S3, signed. now: in UTC."""
    parts, at = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": NOTHING, "x-amz-date": at}
    if access.token:
        headers["x-amz-security-token"] = access.token
    names = ";".join(sorted(headers))
    lines = [method, parts.path, _query(query), *(f"{name}:{headers[name]}" for name in sorted(headers)), "", names]
    scope = f"{at[:8]}/{region}/s3/aws4_request"
    request = hashlib.sha256("\n".join([*lines, NOTHING]).encode()).hexdigest()
    key = f"AWS4{access.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{request}".encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access.key_id}/{scope},SignedHeaders={names},Signature={signature}"
    )
    return headers


def _has_passed(until: str) -> bool:
    try:
        return datetime.fromisoformat(until) <= datetime.now(UTC)
    except (ValueError, TypeError):
        return False


def _query(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items()))


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element, name: str) -> str:
    return next((each.text or "" for each in element if _tag(each) == name), "")
