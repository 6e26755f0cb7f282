"""Tasks and an owner over real connections, in one process: what arrives, what is refused, and what is repeated."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import replace

import pytest

from recovery.base.credentials.server_certificate import CertificateFiles
from recovery.base.ids import Lease
from recovery.errors import LeaseLostError, OwnerRefusedError, OwnerUnreachableError, RecoveryError, StorageError
from recovery.owner.spool import MessageSpool, SpoolMemory
from recovery.storage.seam import BatchCount, Changes
from recovery.wire import client, messages, server
from recovery.wire.declared import encode
from recovery.wire.frames import HEADER, Channel, Kind
from recovery.wire.messages import TASK_CALLS, TaskCalls
from recovery.wire.proof import proof
from recovery.wire.served import MOST_EARLIER
from recovery.wire.turns import CALLS_PER_PROCESSOR
from tests.stores import STEP, pack
from tests.waiting import wait_until
from tests.wire.certificates import make_certificates
from tests.wire.serving import Serving, proxy

KEYS = tuple(f"k{number}" for number in range(50))
COUNT = BatchCount(50, 50)
VALUES = {key: f"[{key}]" for key in KEYS}


def apply_and_read(task, batch: int = 0) -> list[str | None]:
    """What every test of a broken connection does: an apply in three messages, and a read of what it left."""
    chunks = [pack({key: VALUES[key] for key in KEYS[start::3]}) for start in range(3)]
    task.apply(STEP, batch, {0: chunks}, COUNT)
    return task.read(STEP, batch + 1, {0: KEYS})[0]


def connected(serving: Serving) -> Channel:
    """A plain connection, as a stranger has one."""
    return Channel(socket.create_connection(("127.0.0.1", serving.port), timeout=5))


def proven(serving: Serving, *, line: str = "line", key: bytes | None = None, lease: Lease | None = None) -> Channel:
    """A connection that has sent its proof."""
    channel = connected(serving)
    channel.send(Kind.HELLO, messages.write_first(messages.Hello("recovery", messages.PROTOCOL, "task", "n")))
    challenge = messages.read_first(channel.message(4096)[1], messages.Challenge)
    own = proof(
        key or serving.key,
        "task",
        ".".join(map(str, messages.PROTOCOL)),
        "n",
        challenge.incarnation,
        challenge.nonce,
        "",
    )
    used = lease or serving.lease
    channel.send(Kind.PROOF, messages.write_first(messages.Proof(own, used.number, used.id, line)))
    return channel


def refusal(channel: Channel) -> messages.Refusal:
    """The refusal that comes next."""
    kind, body = channel.message(1 << 16)
    assert kind == Kind.REFUSAL
    return messages.read_first(body, messages.Refusal)


class TestBrokenConnections:
    """A call whose connection breaks is made again."""

    def test_cut_within_and_after_every_message(self, run, serving):
        """In both directions: what was applied is there exactly once, whatever was lost."""
        with proxy(serving.port) as whole:
            assert apply_and_read(serving.task(whole.port)) == [VALUES[key] for key in KEYS]
            lengths = dict(whole.forwarded)
        places = [("up", at) for at in range(0, lengths["up"] + 1, 23)]
        places += [("down", at) for at in range(0, lengths["down"] + 1, 17)]
        for batch, cut in enumerate(places, 1):
            with proxy(serving.port, cut) as cutting:
                assert apply_and_read(serving.task(cutting.port), batch) == [VALUES[key] for key in KEYS], cut
            assert run.store.counts(run.lease, batch) == COUNT._replace(looked_up=0)

    def test_a_dead_owner_is_reported_after_the_deadline(self, serving):
        """With its address, the time and the number of attempts; the executor's name too."""
        with proxy(serving.port, ("up", 10), times=10**6) as cutting:
            began_s = time.monotonic()
            with pytest.raises(OwnerUnreachableError) as caught:
                serving.task(cutting.port, deadline_s=1.0).read(STEP, 0, {0: ("a",)})
        assert 0.5 < time.monotonic() - began_s < 5
        assert f"127.0.0.1:{cutting.port} was not reached for 1 s" in caught.value.found
        assert socket.gethostname() in caught.value.found
        assert "--serve" in caught.value.remedy

    def test_a_silent_owner_is_reported_after_the_deadline(self, serving):
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(OwnerUnreachableError):
            serving.task(silent.getsockname()[1], deadline_s=0.5).read(STEP, 0, {0: ("a",)})

    def test_what_can_be_read_only_once_is_sent_again_whole(self, serving):
        with proxy(serving.port, ("up", 800)) as cutting:
            task = serving.task(cutting.port)
            chunks = (pack({key: VALUES[key] for key in KEYS[start::3]}) for start in range(3))
            task.apply(STEP, 0, {0: chunks}, COUNT)
            assert cutting.connections == 2
        assert task.read(STEP, 1, {0: KEYS})[0] == [VALUES[key] for key in KEYS]

    def test_a_forked_process_connects_by_itself(self, serving):
        """Two processes that share a connection would read each other's answers."""
        task = serving.task()
        assert apply_and_read(task) == [VALUES[key] for key in KEYS]
        child = os.fork()
        if child == 0:
            os._exit(0 if task.read(STEP, 1, {0: KEYS[:1]})[0] == [VALUES[KEYS[0]]] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert task.read(STEP, 1, {0: KEYS[1:2]})[0] == [VALUES[KEYS[1]]]

    def test_an_apply_that_waits_for_its_turn_is_dropped_with_its_client(self, run, serving):
        """A later attempt may have withdrawn what it would write."""
        taken = contextlib.ExitStack()
        for _ in range(CALLS_PER_PROCESSOR * (os.cpu_count() or 1)):
            taken.enter_context(serving.directory.turns.taken())
        channel = proven(serving)
        assert channel.message(4096)[0] == Kind.WELCOME
        send_apply(channel, [pack({"a": "1"})])
        wait_until(lambda: next(iter(serving.directory.proven.values())).answers._works)
        channel.close()
        time.sleep(0.1)
        taken.close()
        wait_until(lambda: not serving.server._open)
        assert serving.task().read(STEP, 1, {0: ("a",)}) == {0: [None]}

    def test_a_new_connection_of_a_name_ends_the_old_one(self, serving):
        """A repeated call is not overtaken by its first attempt."""
        old = proven(serving, line="same")
        assert old.message(4096)[0] == Kind.WELCOME
        new = proven(serving, line="same")
        assert new.message(4096)[0] == Kind.WELCOME
        with pytest.raises(ConnectionResetError):
            old.message(4096)


class TestRefusals:
    """What is refused is never repeated."""

    def test_errors_arrive_as_themselves(self, run, serving):
        run.store.open(run.lease, 5)
        task = serving.task()
        began_s = time.monotonic()
        with pytest.raises(LeaseLostError, match="micro-batch 4 is over"):
            task.apply(STEP, 4, {0: [pack({"a": "1"})]}, COUNT)
        assert time.monotonic() - began_s < 5
        assert task.read(STEP, 5, {0: ("a",)}) == {0: [None]}

    def test_an_unknown_error_arrives_without_its_traceback(self, run, serving, monkeypatch):
        """It is in the owner's log."""

        def broken(*_, **__):
            raise ZeroDivisionError("secret\nlines")

        monkeypatch.setattr("tests.memory_store.MemoryTaskStore.read", broken)
        with pytest.raises(StorageError, match="the owner of the partitions failed: ZeroDivisionError") as caught:
            serving.task().read(STEP, 0, {0: ("a",)})
        assert "Traceback" not in str(caught.value)
        assert any("Traceback" in line for line in serving.log)

    def test_an_error_of_a_class_that_is_unknown_here(self):
        """As a typed one, with its name."""
        error = messages.as_error(messages.Refusal("NewError", "found", "/p", "cause", "remedy"), "h:1")
        assert type(error) is StorageError
        assert (
            str(error)
            == "h:1/p: the owner at h:1 refused with NewError: found\nProbable cause: cause\nWhat to do: remedy"
        )

    def test_a_wrong_key(self, serving):
        with pytest.raises(OwnerRefusedError, match=r"127\.0\.0\.1:\d+.*refused the task's proof"):
            serving.task(key=b"x" * 32).read(STEP, 0, {0: ("a",)})
        assert not any(serving.key.hex() in line for line in serving.log)

    def test_no_key(self, serving):
        with pytest.raises(OwnerRefusedError, match="this task has none"):
            client.connect(serving.parsed(), b"")

    def test_an_owner_without_the_key(self, serving):
        """A task does not believe whoever listens at the address."""

        def answer():
            with listener.accept()[0] as found:
                channel = Channel(found)
                channel.message(4096)
                challenge = messages.Challenge("recovery", messages.PROTOCOL, "i", "n")
                channel.send(Kind.CHALLENGE, messages.write_first(challenge))
                channel.message(4096)
                channel.send(Kind.WELCOME, messages.write_first(messages.Welcome("00")))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=answer, daemon=True).start()
            with pytest.raises(OwnerRefusedError, match="cannot prove that it belongs to this run"):
                serving.task(listener.getsockname()[1]).read(STEP, 0, {0: ("a",)})

    @pytest.mark.parametrize("after", ["hello", "challenge"])
    @pytest.mark.parametrize("proved", ["", "00", "é"])
    def test_words_of_an_owner_that_has_not_proved_itself(self, serving, after, proved):
        """They choose neither the error's class, nor its exit code, nor its advice; what was said is quoted."""

        def answer():
            with listener.accept()[0] as found:
                channel = Channel(found)
                channel.message(4096)
                if after == "challenge":
                    challenge = messages.Challenge("recovery", messages.PROTOCOL, "i", "n")
                    channel.send(Kind.CHALLENGE, messages.write_first(challenge))
                    channel.message(4096)
                said = messages.Refusal("TakenOverError", "gone\x1b[2J", "/x", "Yours.", "Run rm -rf.", proved)
                channel.send(Kind.REFUSAL, messages.write_first(said))

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=answer, daemon=True).start()
            with pytest.raises(OwnerRefusedError) as caught:
                serving.task(listener.getsockname()[1]).read(STEP, 0, {0: ("a",)})
        error = caught.value
        assert (type(error), error.exit_code) == (OwnerRefusedError, 48)
        assert r"before it had proved itself, and said: gone\u001b[2J" in error.found
        assert "rm -rf" not in str(error)
        assert "Yours" not in str(error)

    def test_another_lease(self, serving):
        """The owner proves that it is the one that says so."""
        found = refusal(proven(serving, lease=Lease(7, "other")))
        assert found.error == "LeaseLostError"
        assert found.proof

    @pytest.mark.parametrize(
        ("later", "kind"),
        [(0, OwnerUnreachableError), (1, LeaseLostError), (MOST_EARLIER + 1, OwnerRefusedError)],
    )
    def test_a_task_of_an_earlier_run(self, serving, later, kind):
        """The owner remembers the keys of some runs, and with them proves what became of the task's own."""
        task = serving.task()
        assert task.read(STEP, 0, {0: ("a",)}) == {0: [None]}
        before = serving.directory.tasks
        serving.directory.serve_tasks(None)
        for number in range(later):
            lease = Lease(serving.lease.number + 1 + number, "later")
            serving.directory.serve_tasks(replace(before, key=secrets.token_bytes(32), lease=lease))
        with pytest.raises(RecoveryError) as caught:
            task.read(STEP, 0, {0: ("a",)})
        assert type(caught.value) is kind, caught.value

    @pytest.mark.parametrize("protocol", [(3, 0), (5, 0)])
    def test_another_version(self, serving, monkeypatch, protocol):
        """The first number counts; a later second one is understood."""
        monkeypatch.setattr(messages, "PROTOCOL", (4, 7))
        assert serving.task().read(STEP, 0, {0: ("a",)}) == {0: [None]}
        channel = connected(serving)
        channel.send(Kind.HELLO, messages.write_first(messages.Hello("recovery", protocol, "task", "n")))
        found = refusal(channel)
        assert (found.error, found.found) == (
            "OwnerRefusedError",
            f"the owner speaks version 4.7 of the protocol, and the task {protocol[0]}.{protocol[1]}",
        )

    def test_a_server_of_another_kind(self, serving):
        """A web server, for instance."""

        def answer():
            with listener.accept()[0] as found:
                found.recv(4096)
                found.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=answer, daemon=True).start()
            with pytest.raises(OwnerRefusedError, match="not understood"):
                serving.task(listener.getsockname()[1]).read(STEP, 0, {0: ("a",)})


class TestTls:
    """With a certificate."""

    @pytest.fixture
    def secured(self, run, tmp_path, tls_files):
        """A server with TLS."""
        context = CertificateFiles(*tls_files[:2]).read().context
        made = Serving(run.store.address(run.lease), run.lease, run.count, tmp_path, tls=context)
        yield made
        made.close()

    def test_everything_works(self, secured, tls_files):
        task = secured.task(tls_ca_pem=tls_files[2].read_text())
        assert apply_and_read(task) == [VALUES[key] for key in KEYS]
        task.apply(STEP, 2, {0: [Changes(("x" * 3_000_000 + "\x1fbig",), False)]}, COUNT)
        assert task.read(STEP, 3, {0: ("big",)}) == {0: ["x" * 3_000_000]}

    def test_a_certificate_of_another_authority(self, secured, tmp_path):
        other = make_certificates(tmp_path)[2].read_text()
        with pytest.raises(OwnerRefusedError, match="its certificate is not accepted"):
            secured.task(tls_ca_pem=other).read(STEP, 0, {0: ("a",)})

    def test_a_certificate_of_another_name(self, run, tmp_path):
        files = make_certificates(tmp_path, names=("other",), addresses=("10.0.0.1",))
        made = Serving(
            run.store.address(run.lease), run.lease, 2, tmp_path, tls=CertificateFiles(*files[:2]).read().context
        )
        with pytest.raises(OwnerRefusedError, match=r"certificate is not accepted.*not valid for '127.0.0.1'"):
            made.task(tls_ca_pem=files[2].read_text()).read(STEP, 0, {0: ("a",)})
        made.close()

    def test_tls_asked_of_a_plain_port_and_the_reverse(self, serving, secured, tls_files):
        """Each says so immediately."""
        began_s = time.monotonic()
        with pytest.raises(OwnerRefusedError, match="the TLS handshake failed"):
            serving.task(tls_ca_pem=tls_files[2].read_text()).read(STEP, 0, {0: ("a",)})
        with pytest.raises(OwnerRefusedError, match="asks for TLS"):
            secured.task().read(STEP, 0, {0: ("a",)})
        assert time.monotonic() - began_s < 5


class TestStrangers:
    """What clients without the key can do: little."""

    def test_a_claim_of_a_large_message_takes_no_memory(self, serving):
        channel = connected(serving)
        channel.sock.sendall(HEADER.pack(1 << 30, Kind.HELLO))
        assert "a frame of 1073741824 bytes" in refusal(channel).found

    @pytest.mark.parametrize(
        "sent", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", HEADER.pack(4, Kind.CALL) + b"\x95\1\0\0"]
    )
    def test_what_is_no_hello_ends_the_connection(self, serving, sent):
        channel = connected(serving)
        channel.sock.sendall(sent)
        assert refusal(channel).error == "OwnerRefusedError"
        wait_until(lambda: not serving.server._open)

    def test_a_silent_connection_is_closed(self, serving, monkeypatch):
        monkeypatch.setattr(server, "PROOF_S", 0.2)
        channel = connected(serving)
        assert channel.sock.recv(1) == b""

    def test_many_silent_connections_do_not_keep_a_task_out(self, serving, monkeypatch):
        """The oldest are closed, and their number is bounded."""
        monkeypatch.setattr(server, "MOST_UNPROVEN", 8)
        silent = [connected(serving) for _ in range(40)]
        assert apply_and_read(serving.task()) == [VALUES[key] for key in KEYS]
        assert len(serving.server._unproven) <= 8
        assert sum(each.has_ended() for each in silent) >= 31
        for each in silent:
            each.close()

    def test_the_number_of_connections_is_bounded(self, serving, monkeypatch):
        """A task that finds no room tries again until the deadline."""
        monkeypatch.setattr(server, "MOST_CONNECTIONS", 3)
        held = [proven(serving, line=f"line {number}") for number in range(3)]
        assert [each.message(4096)[0] for each in held] == [Kind.WELCOME] * 3
        with pytest.raises(OwnerUnreachableError):
            serving.task(deadline_s=0.5).read(STEP, 0, {0: ("a",)})
        threading.Timer(0.3, held[0].close).start()
        assert serving.task(deadline_s=20).read(STEP, 0, {0: ("a",)}) == {0: [None]}


class TestProven:
    """What a task sends wrongly changes nothing."""

    @pytest.fixture
    def channel(self, serving):
        """A connection that may call."""
        found = proven(serving)
        assert found.message(4096)[0] == Kind.WELCOME
        yield found
        found.close()

    @pytest.mark.parametrize("wrong", ["messages", "bytes", "partitions", "body", "order", "kind", "several"])
    def test_an_apply_that_does_not_fit_is_refused_whole(self, run, serving, channel, wrong):
        body = next(messages.changes_messages([pack({"a": "1"})]))
        partitions = (0, 9) if wrong == "several" else (0,)
        channel.put(Kind.CALL, TASK_CALLS.write_call(TaskCalls.apply, STEP, 0, partitions, COUNT, 0)[1])
        if wrong == "kind":
            channel.put(Kind.HELLO, b"{}")
        if wrong == "body":
            body = b"\xdd\xff\xff\xff\xff"
        channel.put(Kind.CHANGES, body)
        number = {"messages": 2, "order": 0}.get(wrong, 1)
        numbers = (number, 0) if wrong == "partitions" else (number,)
        size = len(body) + (wrong == "bytes")
        channel.send(Kind.END, encode(messages.End(numbers, size)))
        assert refusal(channel).error in ("OwnerRefusedError", "StorageError")
        assert serving.task().read(STEP, 1, {0: ("a",)}) == {0: [None]}
        assert run.store.counts(run.lease, 0) == BatchCount(0, 0)

    def test_a_chunk_outside_an_apply(self, serving, channel):
        channel.send(Kind.CHANGES, b"")
        assert "instead of a call" in refusal(channel).found

    @pytest.fixture
    def quick_progress(self, monkeypatch):
        """For a server that begins later."""
        monkeypatch.setattr(server, "PROGRESS_S", 0.05)

    def test_a_long_call_tells_that_it_continues(self, quick_progress, serving, channel, monkeypatch):
        """So that a task does not take it for dead."""
        heard = threading.Event()

        def slow(self, step, batch, wanted):
            heard.wait(60)
            return {index: [None] * len(keys) for index, keys in wanted.items()}

        monkeypatch.setattr("tests.memory_store.MemoryTaskStore.read", slow)
        channel.send(Kind.CALL, TASK_CALLS.write_call(TaskCalls.read, STEP, 0, {0: ("a",)})[1])
        assert channel.message(4096)[0] == Kind.PROGRESS
        heard.set()

    def test_large_values_and_many_keys(self, serving):
        """In messages of at most 8 MiB, but for a single value."""
        task = serving.task()
        values = {f"k{number}": "v" * 100_000 for number in range(300)} | {"big": "x" * 12_000_000}
        task.apply(STEP, 0, {0: [pack(values)]}, COUNT)
        assert task.read(STEP, 1, {0: tuple(values), 1: ("none",)}) == {0: list(values.values()), 1: [None]}

    def test_calls_with_more_keys_than_fit_are_several(self, serving, monkeypatch):
        monkeypatch.setattr(client, "KEY_CHARS", 64)
        task = serving.task()
        assert apply_and_read(task) == [VALUES[key] for key in KEYS]
        assert task.read(STEP, 1, {0: KEYS, 1: ()})[0] == [VALUES[key] for key in KEYS]
        with pytest.raises(StorageError, match="a key of 65 bytes is too large"):
            task.read(STEP, 1, {0: ("x" * 65,)})


class TestSpool:
    """`recovery.owner.spool`."""

    @pytest.mark.parametrize(("call_bytes", "all_bytes"), [(1 << 20, 1 << 20), (100, 1 << 20), (1 << 20, 100), (0, 0)])
    def test_messages_come_back_in_order_from_memory_and_from_a_file(self, tmp_path, call_bytes, all_bytes):
        """Whatever the limits; again and again; and the memory is given back."""
        chunks = [pack({f"{number}": "v" * number}) for number in range(40)]
        memory = SpoolMemory(all_bytes)
        spool = MessageSpool(tmp_path, memory, call_bytes)
        for body in messages.changes_messages(chunks):
            for start in range(0, len(body), 7):
                spool.add(body[start : start + 7], start + 7 < len(body))
        assert spool.messages == 40
        assert list(spool.changes(0, 10)) + list(spool.changes(10, 40)) == chunks
        assert list(spool.changes(3, 5)) == chunks[3:5]
        assert list(tmp_path.iterdir()) == []
        spool.close()
        assert memory.take(all_bytes)

    def test_no_room_is_an_error_with_its_place(self, tmp_path):
        spool = MessageSpool(tmp_path / "gone", SpoolMemory(0))
        with pytest.raises(StorageError, match="gone"):
            spool.add(b"x", False)


def send_apply(channel: Channel, chunks: list[Changes]) -> None:
    """A whole apply to partition 0, without waiting for the answer."""
    bodies = list(messages.changes_messages(chunks))
    channel.put(Kind.CALL, TASK_CALLS.write_call(TaskCalls.apply, STEP, 0, (0,), COUNT, 0)[1])
    for body in bodies:
        channel.put(Kind.CHANGES, body)
    channel.send(Kind.END, encode(messages.End((len(bodies),), sum(map(len, bodies)))))


def test_the_address_has_no_secret(serving):
    assert serving.key.hex() not in serving.address()
    assert set(json.loads(serving.address())) == {"kind", "at", "number", "id", "count", "deadline_s", "tls_ca_pem"}
