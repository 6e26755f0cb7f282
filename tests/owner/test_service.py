"""`recovery serve`: who may hold a directory, what it answers to commands, and how it ends."""

from __future__ import annotations

import ctypes
import json
import platform
import re
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from recovery.errors import (
    ConfigurationError,
    DirectoryLockedError,
    EpochNotHeldError,
    FlowMismatchError,
    LeaseLostError,
    MissingPartitionsError,
    NoPartitionsError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
    StorageError,
    UnsupportedPlanError,
)
from recovery.owner import runs
from recovery.owner.service import OwnerService
from recovery.planning.resume import plan_resume
from recovery.storage.lock import DirectoryLock
from recovery.storage.store import OwnerAccess, Store
from recovery.wire import run_client, server
from recovery.wire.calls import OwnerCalls, PartitionCalls
from recovery.wire.run_client import Owner
from tests.owner.served import PATIENCE_S, TOKEN, Served, invoked, spread, token_file
from tests.shares import first, some
from tests.stores import KEY, STEP, Driver, ServedPlace, SpreadDirectory, run_python
from tests.wire.certificates import make_certificates

TGKILL = {"x86_64": 234, "aarch64": 131}.get(platform.machine(), 0)
"""Number of the system call."""


@pytest.fixture(params=some(["alone", "beside others"], "beside others"))
def service(request, store_dir, tmp_path):
    """A directory that an owner service of this process serves."""
    made = served(store_dir, tmp_path, beside=() if request.param == "alone" else ("first", "last"))
    yield made
    made.stop(0.1)


def served(directory: Path, root: Path, beside: Sequence[str] = (), **options: Any) -> ServedPlace:
    """A directory that a service serves. beside: the names of others, without partitions, which it serves, too."""
    others = [root / name for name in beside]
    for each in others:
        each.mkdir(exist_ok=True)
    options.setdefault("log", lambda _: None)
    service = OwnerService([directory, *others], "127.0.0.1:0", token_file(root), **options)
    return ServedPlace(service, 0, directory.name if others else "")


class TestWhoMayComeIn:
    """A token, a certificate that names the owner, and the same version; refused immediately and by name."""

    def test_another_token_is_refused(self, service):
        with pytest.raises(OwnerRefusedError, match="refused the token"):
            service.client("another token of 32 characters").ask(OwnerCalls.serving)

    def test_another_version_is_refused(self, service, monkeypatch):
        monkeypatch.setattr(server, "VERSION", "0.0.1")
        with pytest.raises(OwnerRefusedError, match=r"the owner has version 0\.0\.1"):
            service.client().ask(OwnerCalls.serving)

    def test_tls(self, store_dir, tmp_path):
        """With the authority's certificate; not without TLS, nor under another name."""
        certificate, key, authority = make_certificates(tmp_path, addresses=())
        made = served(store_dir, tmp_path, tls_cert=certificate, tls_key=key)
        try:
            pem = authority.read_text()
            assert made.client(tls_ca_pem=pem, host="localhost").ask(OwnerCalls.serving).holder == ""
            with pytest.raises(OwnerRefusedError, match="asks for TLS"):
                made.client().ask(OwnerCalls.serving)
            with pytest.raises(OwnerRefusedError, match="certificate is not accepted"):
                made.client(tls_ca_pem=pem).ask(OwnerCalls.serving)
        finally:
            made.stop(0.1)

    def test_it_listens_elsewhere_only_with_tls_or_by_name(self, store_dir, tmp_path):
        with pytest.raises(ConfigurationError, match="open to other hosts") as error:
            OwnerService(store_dir, "0.0.0.0:0", token_file(tmp_path))
        assert "--insecure" in error.value.remedy
        OwnerService(store_dir, "0.0.0.0:0", token_file(tmp_path), insecure=True, log=lambda _: None).stop(0.1)

    def test_a_short_token_is_refused(self, store_dir, tmp_path):
        (tmp_path / "token").write_text("short")
        with pytest.raises(ConfigurationError, match="too short"):
            OwnerService(store_dir, "127.0.0.1:0", tmp_path / "token")

    def test_no_secret_in_what_it_prints(self, store_dir, tmp_path):
        lines: list[str] = []
        made = served(store_dir, tmp_path, log=lines.append)
        run = made.client()
        run.hold("one", "a run", KEY)
        run.release()
        made.stop(1)
        text = "\n".join(lines)
        assert "held by a run" in text
        assert TOKEN not in text
        assert KEY.hex() not in text


class TestHolding:
    """One run at a time has the partitions."""

    def test_a_second_run_is_refused_until_the_first_has_ended(self, service):
        one, other = service.client(), service.client()
        one.hold("one", "the first run", KEY)
        with pytest.raises(DirectoryLockedError, match="the first run"):
            other.hold("other", "the second run", KEY)
        assert other.ask(OwnerCalls.serving).holder == "the first run"
        one.release()
        other.hold("other", "the second run", KEY)
        other.release()

    def test_a_run_of_its_own_host_has_the_directory(self, service, store_dir):
        from recovery.base.clock import SystemClock

        lock = DirectoryLock(store_dir, SystemClock(), "flow here")
        lock.acquire()
        try:
            run = service.client()
            with pytest.raises(DirectoryLockedError):
                run.hold("one", "a run", KEY)
            run.release()
        finally:
            lock.release()

    def test_an_owner_under_two_names_is_refused(self, service):
        run, again = service.client(), service.client()
        run.hold("one", "a run", KEY)
        with pytest.raises(ConfigurationError, match="are one owner"):
            again.hold("one", "a run", KEY)
        run.release()

    @pytest.mark.parametrize("others_name", ["127.0.0.1", "localhost"])
    def test_of_two_runs_that_begin_together_one_gets_all_owners(self, make_store, tmp_path, monkeypatch, others_name):
        """They name the owners in opposite orders, and perhaps under other names; both try a first owner before either
        tries a second one."""
        away = spread(make_store(2), ((0,), (1,)))
        owners = [served(each, tmp_path) for each in away]
        together, whole, tried = threading.Barrier(2), Owner.hold, set()

        def hold(owner: Owner, run: str, purpose: str, task_key: bytes) -> None:
            try:
                whole(owner, run, purpose, task_key)
            finally:
                if run not in tried:
                    tried.add(run)
                    together.wait(20)

        def begin(run: str) -> str:
            named = [each.client(host="127.0.0.1" if run == "one" else others_name) for each in owners]
            locations = Store(tmp_path, named if run == "one" else named[::-1])
            try:
                locations.hold(run, f"run {run}", KEY)
                return "goes on"
            except DirectoryLockedError as error:
                # It has locked nothing: the other run has all owners.
                return f"{error.exit_code}, {sum(run in each.runs.serving().holder for each in owners)} locked"
            finally:
                together.wait(20)
                locations.release()

        monkeypatch.setattr(Owner, "hold", hold)
        try:
            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(begin, ("one", "two"))) == ["40, 0 locked", "goes on"]
        finally:
            for each in owners:
                each.stop(0.1)

    def test_an_owner_that_is_being_stopped_lets_an_epoch_close_and_none_begin(self, make_store):
        """The run gets the reason, not a lost connection; a busy stream cannot keep the owner from stopping."""
        places = SpreadDirectory(make_store(2))
        try:
            with Driver(places) as run:
                run.apply(0, {key: key for key in "abcd"})
                run.store.seal(run.lease, 0)
                places.services[0].runs.stops = True
                run.close(0)
                run.apply(1, {key: key * 2 for key in "abcd"})
                with pytest.raises(OwnerUnreachableError, match="the owner is being stopped"):
                    run.store.seal(run.lease, 1)
                assert places.services[0].runs.holding.wait_closed(0)
        finally:
            places.close()

    def test_a_silent_run_loses_the_directory(self, service, monkeypatch):
        """Frozen for long, it finds that another one has begun."""
        monkeypatch.setattr(run_client, "CLASSIFY_S", 0.5)
        monkeypatch.setattr(server, "HOLD_S", 0.3)
        monkeypatch.setattr(server, "PROGRESS_S", 0.05)
        run = service.client()
        run.hold("one", "a run", KEY)
        run.ask(OwnerCalls.still, "one", None)
        other = service.client()
        until_s = time.monotonic() + 20
        while True:
            try:
                other.hold("other", "another run", KEY)
                break
            except DirectoryLockedError:
                assert time.monotonic() < until_s
                time.sleep(0.05)
        with pytest.raises((LeaseLostError, OwnerUnreachableError)):
            run.ask(PartitionCalls.describe)
        other.release()
        run.release()

    def test_two_steps_of_a_run_find_their_partitions_where_they_are(self, make_store):
        """Four partitions at three places, one of them without any."""
        places = SpreadDirectory(make_store(4), ((2,), (0, 3), (), (1,)))
        try:
            with Driver(places, ["one", "two"]) as run:
                run.apply(0, {key: key for key in "abcdefgh"}, step="one")
                run.apply(0, {key: key * 2 for key in "abcdefgh"}, step="two")
                run.close(0)
            with Driver(places, ["one", "two"]) as run:
                assert run.epoch == 2
                assert run.read(1, "abcdefgh", step="two") == {key: key * 2 for key in "abcdefgh"}
        finally:
            places.close()


def test_reading_a_partition_describes_no_other(make_store, monkeypatch):
    """So a look at many partitions takes as long as they are many, not the square of that. Only names of partitions
    that are there are read."""
    places = SpreadDirectory(make_store(3), ((), (0, 1, 2)))
    try:
        with Driver(places) as run:
            run.apply(0, {key: key for key in "abcd"})
            run.close(0)
        store = places.locations()
        at = store.at()

        def described(directory: Path, *_: object) -> None:
            raise NoPartitionsError("described", path=directory)

        monkeypatch.setattr(runs, "scan", described)
        assert {state.key for state in at.states(STEP)} == set("abcd")
        assert (at.count(STEP), STEP in at.steps()) == (4, True)
        for name in ("part-3.sqlite3", "part-0.sqlite3-wal", f"../{places.token.name}", str(places.token)):
            with pytest.raises(StorageError, match="there is no file"):
                store.owners[0].ask(OwnerCalls.facts, name)
        store.release()
    finally:
        places.close()


class TestProcess:
    """The real process, called as users call it."""

    def test_its_life(self, make_store, tmp_path, monkeypatch):
        """Ready, held, probed, ended by SIGTERM; commands see its partitions, with and without it."""
        token = token_file(tmp_path)
        directory, away = spread(make_store(3), ((0,), (1, 2)))
        owner = Served(away, token)
        try:
            found = invoked("serve", "--check", owner.at, "--token-file", token)
            assert (found.returncode, found.stdout.partition(",")[0]) == (0, "ready"), found.stderr
            found = invoked("plan", directory, "--owner", owner.at, "--token-file", token, "--json")
            files = json.loads(found.stdout)["files"]
            assert [each["file"] for each in files] == [
                "part-0.sqlite3", f"{owner.at}/part-1.sqlite3", f"{owner.at}/part-2.sqlite3",
            ]  # fmt: skip
            found = invoked("verify", directory, RECOVERY_OWNERS=owner.at, RECOVERY_TOKEN_FILE=str(token))
            assert found.returncode == 0, found.stderr
            assert found.stdout.count("sound") == 3
            assert invoked("plan", directory).returncode == 21
            assert owner.stop() == 0
            monkeypatch.setattr("recovery.cli.serve.CHECK_S", 0.5)
            found = invoked("serve", "--check", owner.at, "--token-file", token)
            assert found.returncode == 47, found.stdout
        finally:
            owner.kill()
        assert "stopped" in owner.text()

    @pytest.mark.skipif(not TGKILL, reason="the number of the system call is not known here")
    def test_a_signal_that_another_thread_gets(self, store_dir, tmp_path):
        """As when it comes just before the main thread begins to wait: nothing interrupts that wait."""
        owner = Served(store_dir, token_file(tmp_path))
        try:
            main = owner.process.pid
            other = next(int(each.name) for each in Path(f"/proc/{main}/task").iterdir() if int(each.name) != main)
            # The kernel gives it to the thread that is named.
            assert ctypes.CDLL(None).syscall(TGKILL, main, other, signal.SIGTERM) == 0
            assert owner.process.wait(30) == 0
        finally:
            owner.kill()

    def test_an_older_copy_is_named_and_not_used(self, make_store, tmp_path):
        """A file that was copied before it was removed."""
        token = token_file(tmp_path)
        made = make_store(2)
        with Driver(made) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
        old = tmp_path / "old.sqlite3"
        shutil.copyfile(made / "part-1.sqlite3", old)
        with Driver(made) as run:
            run.apply(1, {"a": "2"})
            run.close(1)
        directory, away = spread(made, ((0,), (1,)))
        shutil.move(old, directory / "part-1.sqlite3")
        owner = Served(away, token)
        try:
            found = invoked("plan", directory, "--owner", owner.at, "--token-file", token)
            assert found.returncode == 0, found.stderr
            assert f"{directory}: older copy of part-1.sqlite3, not used" in found.stdout
            assert f"{owner.at}/part-1.sqlite3" in found.stdout
            more = "repartition", directory, tmp_path / "new", "3"
            for words in ((*more, "--dry-run"), more, ("state", "list", directory, "--step", "count")):
                found = invoked(*words, "--owner", owner.at, "--token-file", token)
                assert found.returncode == 0, found.stderr
                assert f"{directory}: older copy of part-1.sqlite3, not used" in found.stderr, words
        finally:
            owner.kill()

    @pytest.mark.long
    def test_status_and_gc(self, make_store, tmp_path):
        """They say of all partitions what they say of those in one directory; gc locks the owners, too."""
        token = token_file(tmp_path)
        made = make_store(3)
        with Driver(made, ["count"]) as run:
            for batch in range(3):
                run.apply(batch, dict.fromkeys("abcdefgh", f"{batch}"))
                run.close(batch)
        shutil.copytree(made, tmp_path / "copy")
        directory, away = spread(made, ((1,), (0, 2)))
        owner = Served(away, token)
        given = ("--owner", owner.at, "--token-file", token, "--json")
        try:
            here = json.loads(invoked("status", tmp_path / "copy", "--json").stdout)
            there = json.loads(invoked("status", directory, *given).stdout)
            for what in ("store_id", "window", "resume_epoch", "steps", "sizes", "executions", "state_bytes"):
                assert there[what] == here[what], what
            for one, other in zip(there["partitions"], here["partitions"], strict=True):
                assert one["file"].endswith(other["file"])
                assert one["keys"] == other["keys"]
            [run] = OwnerAccess((owner.at,), token).connect(PATIENCE_S)
            run.hold("one", "a run", KEY)
            assert invoked("gc", directory, *given).returncode == 40
            run.release()
            here = json.loads(invoked("gc", tmp_path / "copy", "-b", 0, "--json").stdout)
            there = json.loads(invoked("gc", directory, "-b", 0, *given).stdout)
            assert here["rows"] > 0
            for what in ("floor", "window", "rows", "changes"):
                assert there[what] == here[what], what
            assert invoked("verify", directory, *given).returncode == 0
        finally:
            owner.kill()

    def test_a_missing_partition_is_named(self, make_store, tmp_path):
        token = token_file(tmp_path)
        directory, away, _ = spread(make_store(3), ((0,), (1,), (2,)))
        owner = Served(away, token)
        try:
            found = invoked("plan", directory, "--owner", owner.at, "--token-file", token)
            assert found.returncode == 21
            assert "part-2.sqlite3 of 3 partitions missing" in found.stderr
        finally:
            owner.kill()


@first("beside", [(), ("other",)])
def test_metrics_and_probes(make_store, tmp_path, beside):
    """What it does can be scraped, for each directory, and a probe learns that it stops."""
    made = served(make_store(2), tmp_path, beside, metrics_at="127.0.0.1:0")
    endpoint = made.service._endpoint

    def page(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(endpoint.url.replace("/metrics", path), timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def value(name: str) -> float:
        label = f'{{directory="{made.served.name}"}}'
        [line] = re.findall(rf"^recovery_owner_{name}{re.escape(label)} (\S+)$", page("/metrics")[1], re.MULTILINE)
        return float(line)

    try:
        assert (page("/health"), page("/ready")) == ((200, "ok\n"), (200, "ok\n"))
        assert page("/other")[0] == 404
        with pytest.raises(OwnerRefusedError):
            made.client("another token of 32 characters").ask(OwnerCalls.serving)
        run = made.client()
        run.hold("one", "a run", KEY)
        assert (value("held"), value("refused_total"), value("stopping")) == (1, 1, 0)
        assert value("calls_total") >= 1
        assert value("memory_bytes") > 1e6
        made.runs.stops = True
        assert (page("/health")[0], page("/ready")[0], value("stopping")) == (200, 503, 1)
        run.release()
    finally:
        made.stop(0.1)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(NoPartitionsError):
        OwnerService(tmp_path / "none", "127.0.0.1:0", token_file(tmp_path))


@pytest.mark.parametrize("owners", [("h1:7337",)])
def test_owners_without_a_token_are_refused(owners):
    with pytest.raises(ConfigurationError, match="no token"):
        OwnerAccess(owners).connect(1.0)


def test_every_error_of_an_owner_names_its_location(service, store_dir):
    """As a path begins with a directory."""
    Path(store_dir, "part-0.sqlite3").unlink()
    run = service.client()
    run.hold("one", "a run", KEY)
    with pytest.raises(RecoveryError) as error:
        run.ask(OwnerCalls.take, "x", [0], 2)
    assert str(error.value.path).startswith(f"{service.at}/")
    run.release()


WHOLE_STORE: dict[str, tuple[type[RecoveryError], Callable[[SpreadDirectory], object]]] = {
    "an owner is not named": (MissingPartitionsError, lambda places: _plan(places, owners=1)),
    "another flow": (FlowMismatchError, lambda places: _plan(places, flow_id="other")),
    "an epoch that is not held": (EpochNotHeldError, lambda places: _plan(places, resume_epoch=9)),
    "more steps than a partition takes": (
        UnsupportedPlanError, lambda places: Driver(places, [f"step {number}" for number in range(200)])
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WHOLE_STORE)
def test_an_error_about_the_whole_store_begins_with_no_owner(make_store, what):
    """No single owner has the fault."""
    kind, work = WHOLE_STORE[what]
    places = SpreadDirectory(make_store(4), ((), (0, 1), (2, 3)))
    try:
        with Driver(places) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
        with pytest.raises(kind) as error:
            work(places)
        assert error.value.path is None
        assert not str(error.value).startswith("127.0.0.1:")
    finally:
        places.close()


def _plan(places: SpreadDirectory, owners: int = 2, **wanted: Any) -> None:
    named = places.locations().owners[:owners]
    plan_resume(Store(places.places[0], named).found(), **wanted)


def test_threads_may_begin_together(tmp_path):
    """msgspec is not safe while it first looks at a type, so that is done before."""
    code = """
import sys, threading
sys.setswitchinterval(1e-6)
from recovery.wire import calls
from recovery.wire.declared import encode
body, gate = encode([calls.DescribedFile("part-0.sqlite3")]), threading.Barrier(16)
call = calls.ASKED.write_call(calls.OwnerCalls.found, {})[1]
def begin():
    gate.wait()
    verb, _ = calls.ASKED.read_call(call)
    verb.decode(body)
threads = [threading.Thread(target=begin) for _ in range(16)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""
    assert run_python(code, tmp_path).stdout == "done\n"
