"""What operators see of an owner, and what they renew while a run has it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.errors import DirectoryLockedError, OwnerRefusedError, RecoveryError, StorageError
from recovery.metrics.exposition import exposition
from recovery.metrics.owners import seen_families
from recovery.owner.service import OwnerService
from recovery.owner.watch.facts import text
from recovery.planning.health import DEFAULTS, Level
from recovery.planning.owner_facts import owner_findings
from recovery.storage.copied import copies_of
from recovery.storage.store import OwnerAccess
from recovery.wire import messages, run_client
from recovery.wire.calls import OwnerCalls
from recovery.wire.frames import HELLO_BYTES, Channel, Kind
from recovery.wire.looking import seen, seen_owners
from recovery.wire.traffic import MOST_TEXTS
from tests.owner.served import TOKEN, Served, invoked, token_file
from tests.shares import some
from tests.stores import ROOT, Driver, ServedPlace, SpreadDirectory
from tests.waiting import wait_until
from tests.wire.certificates import make_certificates

NEW = "fedcba9876543210fedcba9876543210"
KEY = bytes(32)

PATIENCE_S = 60.0


class Service:
    """A directory that an owner's service of this process serves, perhaps beside another one, with the log of both and
    the files of the credentials."""

    def __init__(self, directory: Path, root: Path, *, beside: bool, tls: bool = False) -> None:
        self._all_lines: list[str] = []
        self.token = token_file(root)
        self.files = make_certificates(root) if tls else None
        certificate, key = self.files[:2] if self.files else (None, None)
        directories = [directory]
        if beside:
            directories.append(root / "other")
            directories[1].mkdir(exist_ok=True)
        service = OwnerService(
            directories, "127.0.0.1:0", self.token, tls_cert=certificate, tls_key=key, log=self._all_lines.append
        )
        self.made = ServedPlace(service, 0, directory.name if beside else "")

    @property
    def lines(self) -> list[str]:
        """The log, without what it says of the other directory."""
        return [line for line in self._all_lines if not line.startswith("other: ")]

    def client(self, token: str = TOKEN, tls_ca_pem: str | None = None) -> run_client.Owner:
        pem = tls_ca_pem or (self.files[2].read_text() if self.files else None)
        return self.made.client(token, tls_ca_pem=pem)

    def status(self, token: str = TOKEN) -> str:
        """Ask on a new connection; return the holder, or the name of the error."""
        owner = self.client(token)
        try:
            return owner.ask(OwnerCalls.serving).holder or "free"
        except RecoveryError as error:
            return type(error).__name__
        finally:
            owner.release()


@pytest.fixture(params=some(["alone", "beside others"], "beside others"))
def serve(request, make_store, tmp_path) -> Iterator[Callable[..., Service]]:
    """Makes services, which end with the test."""
    made: list[Service] = []

    def service(**options: bool) -> Service:
        made.append(Service(make_store(2), tmp_path, beside=request.param != "alone", **options))
        return made[-1]

    yield service
    for each in made:
        each.made.stop(0.1)


class TestTokens:
    """The token is replaced while a run has the partitions."""

    def test_two_tokens_are_valid_while_one_is_replaced(self, serve):
        service = serve()
        run = service.client()
        run.hold("one", "a run", KEY)
        assert (service.status(), service.status(NEW)) == ("a run", "OwnerRefusedError")
        service.token.write_text(f"{TOKEN}\n{NEW}\n")
        service.made.service.reload()
        assert (service.status(), service.status(NEW)) == ("a run", "a run")
        assert service.made.facts().second_token == 1
        service.token.write_text(NEW)
        service.made.service.reload()
        assert (service.status(), service.status(NEW)) == ("OwnerRefusedError", "a run")
        assert service.made.runs.holding.run == "one"
        run.release()
        assert [line for line in service.lines if line.startswith("reloaded")] == [
            "reloaded: 2 tokens, no TLS", "reloaded: one token, no TLS",
        ]  # fmt: skip

    def test_who_asks_reads_its_file_again(self, serve, tmp_path):
        """A run that began with the old token makes its later connections with the new one. A file that is being
        written leaves the last token in use."""
        service = serve()
        own = tmp_path / "own"
        own.write_text(TOKEN)
        [run] = OwnerAccess((service.made.at,), own).connect(PATIENCE_S)
        run.hold("one", "a run", KEY)
        own.write_text("")
        assert run.ask(OwnerCalls.serving).holder == "a run"
        service.token.write_text(NEW)
        service.made.service.reload()
        own.write_text(f"{NEW}\n{TOKEN}")
        for line in run._idle:
            line.drop()
        run._idle.clear()
        assert run.ask(OwnerCalls.serving).holder == "a run"
        run.release()

    @pytest.mark.parametrize(("content", "words"), [
        ("short\n" + TOKEN, "5 bytes is too short"), ("", "0 bytes"), (f"{TOKEN}\n{NEW}\n{TOKEN[::-1]}", "3 lines"),
        (None, "cannot be read"),
    ])  # fmt: skip
    def test_a_file_that_cannot_be_used_changes_nothing(self, serve, content, words):
        service = serve()
        if content is None:
            service.token.unlink()
        else:
            service.token.write_text(content)
        service.made.service.reload()
        assert service.status() == "free"
        assert "not reloaded" in service.lines[-1]
        assert words in service.lines[-1]
        assert str(service.token) in service.lines[-1]


class TestCertificates:
    """The certificate is renewed while a run has the partitions."""

    def test_a_new_one_is_shown_to_who_connects(self, serve):
        service = serve(tls=True)
        run = service.client()
        run.hold("one", "a run", KEY)
        before = service.made.facts().certificate_end_s
        assert 1.9 < before / 86400 < 2.1
        old = service.files[2].read_text()
        make_certificates(service.token.parent, lasts_days=30)
        assert service.status() == "OwnerRefusedError"
        service.made.service.reload()
        assert service.status() == "a run"
        assert 29 < service.made.facts().certificate_end_s / 86400 < 31
        with pytest.raises(OwnerRefusedError, match="certificate is not accepted"):
            service.client(tls_ca_pem=old).ask(OwnerCalls.serving)
        run.release()

    def test_one_that_has_ended(self, serve):
        """Clients are refused with 48, which a supervisor tries again: after the renewal the same command works."""
        service = serve(tls=True)
        make_certificates(service.token.parent, lasts_days=-0.5)
        service.made.service.reload()
        assert "has ended" in service.lines[-1]
        with pytest.raises(OwnerRefusedError, match="expired") as error:
            service.client().ask(OwnerCalls.serving)
        assert error.value.restart
        assert "kill -HUP" in error.value.remedy
        make_certificates(service.token.parent)
        service.made.service.reload()
        assert service.status() == "free"

    def test_a_key_of_another_certificate_changes_nothing(self, serve, tmp_path):
        service = serve(tls=True)
        (tmp_path / "another").mkdir()
        _, key, _ = make_certificates(tmp_path / "another")
        key.replace(service.files[1])
        service.made.service.reload()
        assert "not reloaded" in service.lines[-1]
        assert service.status() == "free"


def test_a_certificate_that_ends_soon_is_a_finding(serve):
    """It names the owner; a run, `status` and `advise` have the same one."""
    service = serve(tls=True)
    owner = service.client()
    found = seen(owner, SystemClock())
    owner.release()
    [finding] = [each for each in owner_findings([found], DEFAULTS) if each.target.name == "certificate"]
    assert (finding.level, finding.where) == (Level.CRITICAL, service.made.at)
    assert re.search(r"end of certificate of 127\.0\.0\.1:\d+\S* \S+ d \(critical up to 3 d\)", str(finding))


def test_a_run_serves_the_facts_of_its_owners(make_store, monkeypatch):
    """Under the names of the owner's own metrics, each with the owner's address."""
    monkeypatch.setattr(run_client, "STILL_S", 0.05)
    places = SpreadDirectory(make_store(4), ((), (0, 3), (1, 2)))
    try:
        with Driver(places) as run:
            run.apply(0, {f"{n}": "x" for n in range(100)})
            run.close(0)
            owners = run.locations.owners
            wait_until(lambda: all(each.seen and each.seen.facts.epoch == 1 for each in owners))
            page = exposition(seen_families([each.seen for each in owners]))
        own = text(places.services[0].service.facts())
        for name in re.findall(r"^# TYPE (recovery_owner_\w+)", own, re.MULTILINE):
            assert name == "recovery_owner_info" or f"# TYPE {name} " in page
        for each in owners:
            assert f'recovery_owner_epoch{{owner="{each.location}"}} 1\n' in page
            assert re.search(rf'recovery_owner_call_seconds{{owner="{each.location}",quantile="0.99"}} \d', page)
            assert abs(each.seen.clock_difference_s) < 1 + each.seen.answer_s
            assert each.seen.facts.received_bytes > 100
            assert each.seen.facts.close_s > 0
    finally:
        places.close()


def test_a_slow_owner_is_named(make_store, monkeypatch):
    """Two owners, and the calls of one of them take long."""
    places = SpreadDirectory(make_store(2), ((), (0,), (1,)))
    try:
        slow = places.services[1]
        for _ in range(10):
            slow.served.turns.times.add(3.0)
            places.services[0].served.turns.times.add(0.001)
        asked = places.locations()
        found = owner_findings(seen_owners(asked.owners, SystemClock()), DEFAULTS)
        asked.release()
        [call] = [each for each in found if each.target.name == "owner-call"]
        assert (call.level, call.where, call.value) == (Level.WARNING, slow.at, 3.0)
    finally:
        places.close()


class TestLog:
    """A line for each thing that an operator can act on."""

    def test_right_operation(self, make_store, tmp_path):
        places = SpreadDirectory(make_store(2), ((1,), (0,)))
        try:
            with Driver(places) as run:
                run.apply(0, {"a": "1", "b": "2"})
                run.close(0)
                run.locations.release()
            asked = places.locations()
            asked.found()
            with copies_of(asked):
                pass
            asked.release()
            places.services[0].service.reload()
            places.services[0].stop(1)
            check(places.log, [
                "serving", "held by run", "execution 1 of", "let go by", "copies of 1 partition sent,", "reloaded:",
                "stopped",
            ])  # fmt: skip
        finally:
            places.close()

    def test_typical_errors(self, make_store, serve):
        """Each says who and why, once; a client that tries again and again adds no line."""
        service = serve()
        owner, other = service.client(), service.client()
        owner.hold("one", "flow words", KEY)
        for _ in range(3):
            with pytest.raises(DirectoryLockedError):
                other.hold("two", "flow birds", KEY)
        assert service.status("another token of 32 characters") == "OwnerRefusedError"
        with pytest.raises(StorageError, match="there is no file"):
            other.ask(OwnerCalls.facts, "part-9.sqlite3")
        with socket.create_connection(("127.0.0.1", service.made.port)) as found:
            found.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while found.recv(1024):
                pass
        context = ssl.create_default_context()
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", service.made.port)) as found:
            context.wrap_socket(found, server_hostname="localhost")
        # A driver that is killed.
        owner._holding.channel.cut()
        wait_until(lambda: service.made.runs.holding is None)
        check(service.lines, [
            "serving", "held by flow words", "the owner's directory is in use by flow words",
            "refused 127.0.0.1: the owner refused the token", "there is no file part-9.sqlite3",
            "refused 127.0.0.1: the owner of the partitions does not understand",
            "refused 127.0.0.1: the owner has no certificate", "let go by flow words: its connection has ended",
        ])  # fmt: skip
        assert not any("Traceback" in line for line in service.lines)
        assert service.made.facts().file_errors == 1

    def test_who_cannot_prove_itself_keeps_no_line_from_the_log(self, serve):
        """However many different texts it makes the owner refuse with."""
        service = serve()
        for number in range(MOST_TEXTS + 1):
            channel = Channel(socket.create_connection(("127.0.0.1", service.made.port), timeout=PATIENCE_S))
            hello = messages.Hello(messages.NAME, (0, number), messages.RUN, "nonce")
            channel.send(Kind.HELLO, messages.write_first(hello))
            assert channel.message(HELLO_BYTES)[0] == Kind.REFUSAL
            channel.close()
        owner = service.client()
        with pytest.raises(StorageError, match="there is no file"):
            owner.ask(OwnerCalls.facts, "part-9.sqlite3")
        owner.release()
        assert len(service.lines) == 1 + MOST_TEXTS + 1
        assert "there is no file part-9.sqlite3" in service.lines[-1]


def check(lines: list[str], kinds: list[str]) -> None:
    """Each line is of its kind: it has these words."""
    assert len(lines) == len(kinds), lines
    for line, kind in zip(lines, kinds, strict=True):
        assert kind in line


class TestProcess:
    """The real process and the commands."""

    def test_hangup_reloads_and_commands_show_owners(self, make_store, tmp_path):
        token = token_file(tmp_path)
        owner = Served(make_store(2), token)
        own = tmp_path / "driver"
        own.mkdir()
        access = ("--owner", owner.at, "--token-file", token)
        try:
            token.write_text(f"{TOKEN}\n{NEW}")
            owner.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "reloaded: 2 tokens" in owner.text())
            assert owner.running()
            found = json.loads(invoked("status", own, *access, "--json").stdout)
            [facts] = found["owners"]
            assert (facts["owner"], facts["connections"], facts["holder"]) == (owner.at, 1, "")
            assert facts["disk_free_bytes"] > 0
            assert {each["target"] for each in found["health"] if each["where"] == owner.at} == {
                "owner-clock", "owner-disk",
            }  # fmt: skip
            shown = invoked("status", own, *access).stdout
            assert re.search(rf"^{re.escape(owner.at)} .* -$", shown, re.MULTILINE)
            # Less than any disk has free: so the disk of this machine does not decide.
            limits = ("--threshold", "owner-disk=1000000TB/1TB")
            assert f"free disk of owner {owner.at}" in invoked("status", own, *access, *limits).stdout
            advice = json.loads(invoked("advise", own, *access, "--json").stdout)
            assert advice["owners"][0]["owner"] == owner.at
            page = tmp_path / "page.html"
            assert invoked("report", own, "-o", page, *access).returncode == 0
            assert owner.at in page.read_text()
            assert owner.stop() == 0
            assert "Traceback" not in owner.text()
        finally:
            owner.kill()

    def test_a_terminal_that_is_closed_ends_the_service(self, store_dir, tmp_path):
        """As it does for other commands: nobody would see that it still runs."""
        ours, terminal = os.openpty()
        log = tmp_path / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "recovery", "serve", store_dir, "--at", "127.0.0.1:0", "--token-file",
                 token_file(tmp_path)],
                stdin=terminal, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        try:
            wait_until(lambda: "serving" in log.read_text())
            process.send_signal(signal.SIGHUP)
            assert process.wait(PATIENCE_S) == 0
            assert "stopped" in log.read_text()
        finally:
            process.kill()
            process.wait()
            os.close(ours)
            os.close(terminal)
