"""The owner's real process beside a driver with files: killed, frozen, left alone. Nothing is lost or outlives it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from recovery.errors import ConfigurationError, LeaseLostError, OwnerUnreachableError
from recovery.owner import process as owner_process
from recovery.owner.process import OwnerProcess
from recovery.owner.serving import ShownCertificate
from recovery.storage.reach import reach
from recovery.storage.seam import BatchCount, Changes
from tests.faults.minirun import freeze
from tests.shares import first
from tests.stores import KEY, ROOT, STEP, Driver, OwnedDirectory, pack
from tests.waiting import wait_until
from tests.wire.certificates import make_certificates


@pytest.fixture
def run(make_store):
    """An execution whose tasks reach its two partitions through an owner."""
    with Driver(OwnedDirectory(make_store(2))) as found:
        yield found


def task(run: Driver, **options):
    """A task's store."""
    return reach(run.owner.address("127.0.0.1", **options), task_key=KEY)[0]


def ended(pid: int) -> bool:
    """Whether a process is gone, or only not waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class TestFaults:
    """Whatever happens to the process, state is exact or the task fails by name."""

    def test_killed_at_random_moments_within_applies(self, run):
        """It is started again at the same port, and the task's call is repeated: nothing is lost or written twice."""
        seed = int(os.environ.get("RECOVERY_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
        print(f"RECOVERY_TEST_SEED={seed}")
        chance = random.Random(seed)
        keys = tuple(f"key{number:06}" for number in range(30_000))
        store, port = task(run), run.owner.port
        for batch in range(4):
            values = [f"[{batch},{number}]" for number in range(len(keys))]
            chunk = Changes(tuple(f"{value}\x1f{key}" for key, value in zip(keys, values, strict=True)), False)
            delay_s = chance.uniform(0, 0.12)
            killer = threading.Timer(delay_s, os.kill, [run.owner.pid, signal.SIGKILL])
            killer.start()
            store.apply(STEP, batch, {0: [chunk], 1: []}, BatchCount(7, len(keys)))
            killer.join()
            assert store.read(STEP, batch + 1, {0: keys})[0] == values
            if batch:
                earlier = [f"[{batch - 1},{number}]" for number in range(len(keys))]
                assert store.read(STEP, batch, {0: keys})[0] == earlier
            assert run.store.counts(run.lease, batch)[:2] == (7, len(keys))
            wait_until(lambda: run.owner.pid is not None)
        assert run.owner.port == port
        assert run.owner.starts > 1

    @pytest.mark.long
    def test_frozen_for_a_while(self, run):
        store = task(run)
        store.apply(STEP, 0, {0: [pack({"a": "1"})]}, BatchCount(1, 1))
        freeze(run.owner.pid)
        threading.Timer(1.0, os.kill, [run.owner.pid, signal.SIGCONT]).start()
        assert store.read(STEP, 1, {0: ("a",)}) == {0: ["1"]}

    def test_frozen_past_the_deadline(self, run, monkeypatch):
        """The error names the address; the driver can close what was finished."""
        monkeypatch.setattr("recovery.wire.line.SILENCE_S", 0.5)
        run.apply(0, {"a": "1"})
        pid = run.owner.pid
        freeze(pid)
        try:
            with pytest.raises(OwnerUnreachableError, match=f"127.0.0.1:{run.owner.port} was not reached for"):
                task(run, deadline_s=1.5).read(STEP, 1, {0: ("a",)})
            run.close(0)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert run.read(1, "a") == {"a": "1"}

    def test_a_late_micro_batch_and_a_lost_lease_are_refused(self, run):
        store = task(run)
        run.store.open(run.lease, 3)
        with pytest.raises(LeaseLostError, match="micro-batch 2 is over"):
            store.apply(STEP, 2, {0: [pack({"a": "late"})]}, BatchCount(1, 1))
        with Driver(run.directory), pytest.raises(LeaseLostError, match="is gone"):
            store.apply(STEP, 3, {0: [pack({"a": "late"})]}, BatchCount(1, 1))

    def test_signals_that_stop_a_service_leave_it_to_the_driver(self, run):
        """Its driver finishes the micro-batch, for which tasks need the owner."""
        pid = run.owner.pid
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
        assert run.read(0, "a") == {"a": None}
        assert run.owner.pid == pid


class TestLife:
    """Start and end."""

    def test_it_ends_with_stop(self, run):
        """Which may be called again, and frees the port."""
        owner = run.owner
        pid = owner.pid
        assert owner.memory_bytes() > 5 << 20
        owner.stop()
        owner.stop()
        assert ended(pid)
        assert owner.memory_bytes() is None
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("127.0.0.1", owner.port))

    @first("inherited", [False, True])
    def test_it_does_not_outlive_its_driver(self, make_store, inherited):
        """Even if another process of the driver's holds its standard input open."""
        code = f"""
            import os, sys, time
            from pathlib import Path
            from tests.stores import Driver, OwnedDirectory
            run = Driver(OwnedDirectory(Path(sys.argv[1])))
            owner = run.owner
            if {inherited} and os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            print(owner.pid, flush=True)
            time.sleep(60)
        """
        driver = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(make_store(2))],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        try:
            pid = int(driver.stdout.readline())
            driver.kill()
            wait_until(lambda: ended(pid))
        finally:
            with contextlib.suppress(OSError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def test_nothing_shows_a_secret(self, run):
        """Not its arguments, not its environment, not the address."""
        pid = run.owner.pid
        for name in ("cmdline", "environ"):
            content = Path(f"/proc/{pid}/{name}").read_bytes()
            assert KEY.hex().encode() not in content
            assert KEY not in content
        assert KEY.hex() not in run.owner.address("127.0.0.1")

    def test_a_port_in_use(self, run):
        """Names it, and the option."""
        with pytest.raises(ConfigurationError, match=f"cannot listen at 127.0.0.1:{run.owner.port}") as caught:
            started(run, port=run.owner.port)
        assert "--serve" in caught.value.remedy

    def test_certificates_that_cannot_be_used(self, run, tmp_path):
        (tmp_path / "cert.pem").write_text("none")
        with pytest.raises(ConfigurationError, match="the certificate of --tls-cert cannot be used"):
            started(run, tls=ShownCertificate(*[str(tmp_path / "cert.pem")] * 2))

    def test_tls(self, run, tmp_path):
        """Over the real process."""
        certificate, key, authority = make_certificates(tmp_path)
        owner = started(run, tls=ShownCertificate(str(certificate), str(key)))
        try:
            address = owner.address("localhost", tls_ca_pem=authority.read_text())
            assert reach(address, task_key=KEY)[0].read(STEP, 0, {0: ("a",)}) == {0: [None]}
        finally:
            owner.stop()

    def test_a_renewed_certificate_is_shown_to_who_connects(self, run, tmp_path):
        """Once tasks would accept it. What is connected stays connected."""
        certificate, key, authority = make_certificates(tmp_path)
        later = tmp_path / "later"
        later.mkdir()
        trusted, first_authority = make_certificates(later)[0].read_text(), authority.read_text()
        owner = started(run, tls=ShownCertificate(str(certificate), str(key), trusted, "localhost"))
        try:
            first = owner.address("localhost", tls_ca_pem=first_authority)
            connected = reach(first, task_key=KEY)[0]
            assert connected.read(STEP, 0, {0: ("a",)}) == {0: [None]}
            other = make_certificates(tmp_path, names=("other",), addresses=())
            again = reach(owner.address("localhost", tls_ca_pem=first_authority, deadline_s=9.0), task_key=KEY)[0]
            assert again.read(STEP, 0, {0: ("a",)}) == {0: [None]}
            for new, old in zip(("cert.pem", "key.pem"), other, strict=False):
                (later / new).replace(old)
            renewed = owner.address("localhost", tls_ca_pem=trusted)
            assert reach(renewed, task_key=KEY)[0].read(STEP, 0, {0: ("a",)}) == {0: [None]}
            assert connected.read(STEP, 0, {0: ("a",)}) == {0: [None]}
        finally:
            owner.stop()

    def test_a_process_that_cannot_start_is_an_error(self, run, monkeypatch):
        monkeypatch.setattr(owner_process.sys, "executable", "/bin/false")
        with pytest.raises(Exception, match="the owner's process did not start"):
            started(run)

    @pytest.mark.long
    def test_10000_connections_that_say_nothing(self, run):
        """Neither memory nor tasks suffer."""
        store = task(run)
        store.apply(STEP, 0, {0: [pack({"a": "1"})]}, BatchCount(1, 1))
        before = run.owner.memory_bytes()
        silent = []
        with contextlib.suppress(OSError):
            for _ in range(10_000):
                silent.append(socket.create_connection(("127.0.0.1", run.owner.port), timeout=5))
        assert reach(run.owner.address("127.0.0.1"), task_key=KEY)[0].read(STEP, 1, {0: ("a",)}) == {0: ["1"]}
        wait_until(lambda: len(list(Path(f"/proc/{run.owner.pid}/task").iterdir())) < 300)
        assert run.owner.memory_bytes() - before < 64 << 20
        for each in silent:
            each.close()


def started(run: Driver, **options) -> OwnerProcess:
    """Another owner of the same execution."""
    return OwnerProcess(run.store.address(run.lease), run.store.scratch, KEY, run.lease, run.count, **options)
