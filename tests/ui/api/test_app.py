"""The routes in a server: names as they were sent, below a prefix, many at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette", reason="recovery[ui] is not installed")
pytest.importorskip("httpx", reason="Starlette's client needs httpx")

from starlette.applications import Starlette
from starlette.testclient import TestClient

from recovery.ui.api.app import api_routes
from tests.stores import STEP
from tests.ui.support import HOSTILE, filled, quoted, served


@pytest.fixture
def client(make_store):
    return TestClient(Starlette(routes=api_routes(served(filled(make_store(2))))))


def test_names_arrive_as_they_were_sent(client):
    """A name may have `/`, which most servers take for the end of a name."""
    for key in HOSTILE:
        found = client.get(f"/api/steps/{STEP}/keys/{quoted(key)}")
        assert (found.status_code, found.json()["key"]) == (200, key)
    assert client.get(f"/api/steps/{STEP}/keys/a/b").json()["state"]["value"] == {"n": HOSTILE.index("a/b")}
    assert found.headers["content-type"] == "application/json"
    assert client.get("/api").json()["openapi"] == client.get("/api/openapi.json").json()["openapi"] == "3.1.0"
    assert client.get("/api/nothing").status_code == 404


def test_fifty_ask_at_the_same_time(client):
    """Each gets its own answer."""
    with client, ThreadPoolExecutor(50) as pool:
        found = pool.map(lambda number: client.get(f"/api/steps/{STEP}/keys/{quoted(HOSTILE[number % 9])}"), range(200))
        assert [each.json()["state"]["value"]["n"] for each in found] == [number % 9 for number in range(200)]


def test_the_openapi_file_names_the_prefix(make_store):
    """A client made from it asks below the prefix; without one, at the top."""
    routes = api_routes(served(filled(make_store(2))))
    below = TestClient(Starlette(routes=routes), root_path="/ops", base_url="http://testserver/ops")
    assert below.get("/api/openapi.json").json()["servers"] == [{"url": "/ops"}]
    assert TestClient(Starlette(routes=routes)).get("/api/openapi.json").json()["servers"] == [{"url": "/"}]
