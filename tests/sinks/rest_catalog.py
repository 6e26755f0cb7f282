"""An Iceberg REST catalog for tests: a server before a catalog in SQLite, which can lose the answer to a commit."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CommitTableRequest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema


class Server(ThreadingHTTPServer):
    """answers: what to answer to the next commits that succeed, instead of what is true. refuses: all commits."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.catalog, self.answers, self.refuses = catalog, list[int](), False

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        match self._parts():
            case ["v1", "config"]:
                self._answer(200, {"defaults": {}, "overrides": {}})
            case ["v1", "namespaces", name]:
                self._answer(200, {"namespace": [name], "properties": {}})
            case ["v1", "namespaces", namespace, "tables", name]:
                try:
                    self._table(self.server.catalog.load_table((namespace, name)))
                except NoSuchTableError:
                    self._fail(404, "NoSuchTableException")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body, catalog = self.rfile.read(int(self.headers["Content-Length"])), self.server.catalog
        match self._parts():
            case ["v1", "namespaces"]:
                name = json.loads(body)["namespace"]
                catalog.create_namespace_if_not_exists(tuple(name))
                self._answer(200, {"namespace": name, "properties": {}})
            case ["v1", "namespaces", namespace, "tables"]:
                asked = json.loads(body)
                self._table(catalog.create_table((namespace, asked["name"]), Schema.model_validate(asked["schema"])))
            case ["v1", "namespaces", namespace, "tables", name]:
                self._commit(CommitTableRequest.model_validate_json(body), (namespace, name))

    def _commit(self, asked: CommitTableRequest, name: tuple[str, str]) -> None:
        server, catalog, code = self.server, self.server.catalog, 409 if self.server.refuses else 200
        if code == 200:
            try:
                catalog.commit_table(catalog.load_table(name), asked.requirements, asked.updates)
                code = server.answers.pop(0) if server.answers else 200
            except CommitFailedException:
                code = 409
        if code == 200:
            self._table(catalog.load_table(name))
        else:
            self._fail(code, "CommitFailedException")

    def _parts(self) -> list[str]:
        return [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]

    def _table(self, table) -> None:
        metadata = json.loads(table.metadata.model_dump_json())
        self._answer(200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}})

    def _fail(self, code: int, kind: str) -> None:
        self._answer(code, {"error": {"message": "requirement failed", "type": kind, "code": code}})

    def _answer(self, code: int, content: object) -> None:
        text = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(catalog: Catalog) -> Iterator[Server]:
    """Serve a catalog until the context ends."""
    server = Server(catalog)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
