"""The routes in a server: names as they were sent, below a prefix, many at the same time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette", reason="recovery[ui] is not installed")
pytest.importorskip("httpx", reason="Starlette's client needs httpx")

from starlette.applications import Starlette
from starlette.testclient import TestClient

from recovery.ui.api.answering import answer
from recovery.ui.api.app import api_routes
from tests.stores import STEP, Driver
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


def test_what_nobody_has_changed_is_not_sent_again(client):
    """An answer has a tag; who names it gets 304 without a body, also a second later, until something has changed."""
    for path in ("/api", f"/api/steps/{STEP}/keys/k1", f"/api/steps/{STEP}/keys", "/api/epochs", "/api/flows"):
        first = client.get(path)
        tag = first.headers["etag"]
        for named in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
            again = client.get(path, headers={"if-none-match": named})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), path
            assert again.headers["cache-control"] == "no-store"
        other = client.get(path, headers={"if-none-match": '"other"'})
        assert (other.status_code, other.headers["etag"]) == (200, tag)
    assert "etag" not in client.get("/api/nothing").headers


def test_a_change_has_another_tag(make_store):
    """Also one of a state whose fields have the names of what passes with time."""
    directory = filled(make_store(2))
    tags: set[str] = set()
    for number in range(3):
        with Driver(directory, (STEP,)) as run:
            run.apply(100 + number, {"k1": f'{{"age_s": {number}, "looked_ms": 1}}'})
            run.close(100 + number)
        client = TestClient(Starlette(routes=api_routes(served(directory))))
        found = client.get(f"/api/steps/{STEP}/keys/k1", headers={"if-none-match": ",".join(tags)})
        assert found.status_code == 200
        assert found.json()["state"]["value"]["age_s"] == number
        tags.add(found.headers["etag"])
    assert len(tags) == 3
    answers = [answer(served(directory), f"steps/{STEP}/keys/k1"), answer(served(directory), f"steps/{STEP}/keys/k1")]
    looked = {json.loads(each.content)["looked_ms"] for each in answers}
    assert len(looked) == len({each.content for each in answers})
    assert len({each.tag for each in answers}) == 1
