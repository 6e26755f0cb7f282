"""Who gets in, under which names, and what every answer carries: the server with an application of one page."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from recovery.errors import ConfigurationError
from recovery.ui.server import gate, listening
from recovery.ui.server.admission import Admission
from recovery.ui.server.headers import POLICY
from recovery.ui.server.service import UiService, UiSettings
from tests.waiting import wait_until
from tests.wire.certificates import make_certificates

TOKEN, OTHER = "first-token-of-readers", "second-token-of-readers"


def application(admission: Admission) -> Starlette:
    """One page that shows its path, the form to sign in, and one answer for programs."""

    def form(onward: str, refused: bool) -> Response:
        return HTMLResponse(f"form {onward}", 401 if refused else 200)

    async def sign_in(request: Request) -> Response:
        return await admission.answer(request, form)

    def page(request: Request) -> Response:
        name = request.path_params["name"]
        return PlainTextResponse(f"page {name}" if name != "large" else "v" * (32 << 20))

    return Starlette(
        routes=[
            Route("/sign-in", sign_in, methods=["GET", "POST"]),
            Route("/api/{name}", page),
            Route("/{name}", page),
        ]
    )


class Served:
    """A service, and clients of it."""

    def __init__(self, **settings):
        self.log = []
        self.service = UiService(application, UiSettings(**settings), self.log.append)
        self.clients = []

    def client(self, **more):
        base = self.service.url.rstrip("/")
        self.clients.append(httpx.Client(base_url=base, timeout=20, trust_env=False, **more))
        return self.clients[-1]

    def close(self):
        for each in self.clients:
            each.close()
        self.service.stop()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(gate, "GUESS_S", 0.0)
    made = []

    def start(**settings):
        made.append(Served(**settings))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "view-token"
    path.write_text(f"{TOKEN}\n{OTHER}\n")
    path.chmod(0o600)
    return path


class TestWithoutAToken:
    """On the loopback interface."""

    def test_a_page_and_what_every_answer_carries(self, serve):
        client = serve().client()
        for path, status in (("/a", 200), ("/a/b", 404)):
            answer = client.get(path)
            assert answer.status_code == status
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["cache-control"] == "no-store"
            assert (answer.headers["referrer-policy"], answer.headers["x-content-type-options"]) == (
                "no-referrer",
                "nosniff",
            )
            assert not {"server", "set-cookie", "access-control-allow-origin"} & set(answer.headers)

    def test_names_of_this_host_are_answered(self, serve):
        client = serve().client()
        for host in ("localhost", "LOCALHOST:99", "127.0.0.1:1", "127.0.0.5", "[::1]:80", "localhost."):
            assert client.get("/a", headers={"host": host}).status_code == 200, host

    def test_other_names_are_refused(self, serve):
        """A name that leads to 127.0.0.1 is not this host's: DNS rebinding."""
        client = serve().client()
        for host in ("evil.example", "localhost.evil.example", "192.168.0.7", "", "127.0.0.1.x", "@"):
            answer = client.get("/a", headers={"host": host})
            assert answer.status_code in (400, 421), host
            assert "page" not in answer.text

    def test_only_get(self, serve):
        client = serve().client()
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = client.request(method, "/a")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD"), method

    def test_pages_of_other_sites_get_nothing(self, serve):
        """As a part of theirs; a link of theirs leads here."""
        client = serve().client()
        foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
        assert client.get("/a", headers=foreign).status_code == 403
        framed = foreign | {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
        assert client.get("/a", headers=framed).status_code == 403
        followed = framed | {"sec-fetch-dest": "document"}
        assert client.get("/a", headers=followed).status_code == 200

    @pytest.mark.parametrize("at", ["0.0.0.0:0", "[::]:0"])
    def test_another_interface_needs_a_token(self, serve, at):
        with pytest.raises(ConfigurationError, match="everybody there could read"):
            serve(at=at, insecure=True)

    def test_no_address(self, serve):
        with pytest.raises(ConfigurationError, match="no address to listen at"):
            serve(at="here")
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError, match="can listen"):
            serve(at=f":{taken.getsockname()[1]}")


class TestWithAToken:
    """Of two lines: both are accepted."""

    def test_programs_show_it_in_a_header(self, serve, token):
        client = serve(token_file=token).client()
        assert client.get("/api/a").status_code == 401
        assert client.get("/api/a").headers["www-authenticate"] == "Bearer"
        for shown in (TOKEN, OTHER):
            found = client.get("/api/a", headers={"authorization": f"Bearer {shown}", "host": "any.example"})
            assert found.text == "page a"
        for shown in ("Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x", "Bearer \xff"):
            assert client.get("/api/a", headers={"authorization": shown.encode("latin-1")}).status_code == 401

    def test_guessing_takes_time(self, serve, token, monkeypatch):
        """A wrong token is answered later; nobody else waits for that."""
        client = serve(token_file=token).client()
        monkeypatch.setattr(gate, "GUESS_S", 0.3)
        for guess in (
            lambda: client.get("/api/a", headers={"authorization": "Bearer wrong"}),
            lambda: client.post("/sign-in", data={"token": "wrong"}),
        ):
            began_s = time.monotonic()
            assert guess().status_code == 401
            assert time.monotonic() - began_s >= 0.3

    def test_browsers_sign_in(self, serve, token):
        """And go on to the page that they asked for."""
        client = serve(token_file=token).client()
        asked = client.get("/a?key=%2F%26x&b=%C3%A9")
        assert asked.status_code == 303
        form = client.get(asked.headers["location"])
        assert form.text == "form /a?key=%2F%26x&b=%C3%A9"
        wrong = client.post("/sign-in", data={"token": "wrong", "next": "/a"})
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        signed_in = client.post("/sign-in", data={"token": TOKEN, "next": "/a?key=%2F"})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/a?key=%2F")
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        assert TOKEN not in cookie
        assert "Secure" not in cookie
        assert client.get("/a").text == "page a"
        assert client.get("/api/a").text == "page a"

    def test_a_cookie_of_another_process_or_time_is_none(self, serve, token):
        """Only the process that made it accepts it, for twelve hours, and as long as the token is."""
        one, other = serve(token_file=token), serve(token_file=token)
        client = one.client()
        client.post("/sign-in", data={"token": TOKEN})
        [(name, value)] = client.cookies.items()
        end, _, proof = value.partition(".")
        assert one.client(cookies={name: value}).get("/a").status_code == 200
        assert other.client(cookies={name: value}).get("/a").status_code == 303
        for changed in (f"{int(end) + 1}.{proof}", f"{end}.{proof[:-1]}", f"{end}.", ".", "", f"{'9' * 400}.{proof}"):
            assert one.client(cookies={name: changed}).get("/a").status_code == 303
        token.write_text(f"{OTHER}\n")
        one.service.reload()
        assert client.get("/a").status_code == 303
        assert one.log[-1] == "reloaded: 1 token"

    def test_a_form_of_another_site_signs_nobody_in(self, serve, token):
        client = serve(token_file=token).client()
        foreign = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        assert client.post("/sign-in", data={"token": TOKEN}, headers=foreign).status_code == 403

    def test_signing_in_leads_nowhere_else(self, serve, token):
        client = serve(token_file=token).client()
        for onward in ("//evil.example", "https://evil.example", "/\\evil.example", "/a\nb: c", ""):
            found = client.post("/sign-in", data={"token": TOKEN, "next": onward})
            assert found.headers["location"] == "/", onward

    def test_a_long_form_is_not_read(self, serve, token):
        assert serve(token_file=token).client().post("/sign-in", data={"token": "x" * 100_000}).status_code == 401

    def test_the_owners_token_is_refused(self, serve, token, tmp_path):
        owners = tmp_path / "owners-token"
        owners.write_text(OTHER)
        with pytest.raises(ConfigurationError, match="could change partitions"):
            serve(token_file=token, owners_token_file=owners)

    def test_an_unusable_token_keeps_the_last_one(self, serve, token):
        served = serve(token_file=token)
        token.write_text("short")
        served.service.reload()
        assert served.log[-1].startswith("not reloaded")
        assert served.client(headers={"authorization": f"Bearer {TOKEN}"}).get("/a").status_code == 200

    def test_another_interface(self, serve, token):
        """Needs TLS, or the word that the network is one's own."""
        with pytest.raises(ConfigurationError, match="plain text"):
            serve(at="0.0.0.0:0", token_file=token)
        assert serve(at="0.0.0.0:0", token_file=token, insecure=True).service.url.startswith("http://0.0.0.0:")


class TestTls:
    def test_the_cookie_stays_on_tls_and_the_certificate_is_renewed(self, serve, token, tmp_path):
        """A new connection shows the certificate that was read last."""
        certificate, key, authority = make_certificates(tmp_path)
        served = serve(token_file=token, tls_cert=certificate, tls_key=key)
        client = served.client(verify=ssl.create_default_context(cafile=str(authority)))
        assert client.post("/sign-in", data={"token": TOKEN}).headers["set-cookie"].endswith("; Secure")
        first = shown(served.service.port)
        make_certificates(tmp_path)
        served.service.reload()
        assert shown(served.service.port) != first


def shown(port):
    """The certificate that a connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", port))


class TestBehindAProxy:
    def test_all_is_below_the_prefix(self, serve, token):
        served = serve(token_file=token, prefix="/ops/flows/")
        client = httpx.Client(base_url=f"http://127.0.0.1:{served.service.port}", trust_env=False)
        with client:
            for path in ("/a", "/", "/ops", "/ops/flowsx/a"):
                assert client.get(path).status_code == 404
            asked = client.get("/ops/flows/a?b=1")
            assert asked.headers["location"] == "/ops/flows/sign-in?next=%2Fa%3Fb%3D1"
            proxied = {"x-forwarded-proto": "https"}
            signed_in = client.post("/ops/flows/sign-in", data={"token": TOKEN, "next": "/a?b=1"}, headers=proxied)
            assert signed_in.headers["location"] == "/ops/flows/a?b=1"
            cookie = signed_in.headers["set-cookie"]
            assert "; Path=/ops/flows/;" in cookie
            assert cookie.endswith("; Secure")

    @pytest.mark.parametrize("prefix", ["x", "//x", "/x y", "/../x", "/x?", "/<b>"])
    def test_what_is_no_prefix(self, serve, prefix):
        with pytest.raises(ConfigurationError, match="no prefix of paths"):
            serve(prefix=prefix)


def test_a_silent_connection_is_closed(serve, monkeypatch):
    """One that sends a part of a request, too; one that asks again and again stays."""
    monkeypatch.setattr(listening, "REQUEST_S", 0.2)
    served = serve()
    for sent in (b"", b"GET / HT", b"GET /a HTTP/1.1\r\nhost: localhost\r\n\r\nGET"):
        with socket.create_connection(("127.0.0.1", served.service.port), timeout=20) as connection:
            connection.sendall(sent)
            while connection.recv(65536):
                pass


FORM = b"POST /sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8000\r\n\r\n"


def test_a_form_that_never_ends_is_closed(serve, token, monkeypatch, caplog):
    """Silent, or a byte at a time, so nobody without a token can use up the connections; nor fill a log."""
    monkeypatch.setattr(listening, "REQUEST_S", 0.3)
    served = serve(token_file=token)
    with socket.create_connection(("127.0.0.1", served.service.port), timeout=20) as connection:
        connection.sendall(FORM)
        assert connection.recv(65536) == b""
    with socket.create_connection(("127.0.0.1", served.service.port), timeout=20) as connection:
        connection.sendall(FORM)
        sent = 0
        with suppress(OSError):
            while sent < 400:
                connection.sendall(b"a")
                sent += 1
                time.sleep(0.05)
        assert sent < 400
    with socket.create_connection(("127.0.0.1", served.service.port), timeout=20) as connection:
        connection.sendall(FORM)
    wait_until(lambda: not served.service._server._server.server_state.connections)
    assert caplog.text == ""


@pytest.mark.parametrize("requests", [1, 3])
def test_a_client_that_does_not_read_is_dropped(serve, monkeypatch, requests):
    """With what it was sent: it would keep a connection and the memory of its answers."""
    monkeypatch.setattr(listening, "REQUEST_S", 0.2)
    monkeypatch.setattr(listening, "ANSWER_S", 0.2)
    monkeypatch.setattr(listening, "IDLE_S", 1)
    served = serve()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.service.port))
        connection.sendall(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n" * requests)
        connections = served.service._server._server.server_state.connections
        wait_until(lambda: connections)
        wait_until(lambda: not connections)


def test_what_is_no_request(serve, caplog):
    """Gets an answer, and nothing in the log: anybody could fill it."""
    served = serve()
    for sent in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n", b"GET " + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", served.service.port), timeout=20) as connection:
            connection.sendall(sent)
            assert connection.recv(100).startswith(b"HTTP/1.1 4")
    assert caplog.text == ""
