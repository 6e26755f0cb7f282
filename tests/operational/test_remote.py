"""Operational state outside the recovery directory: the same on every kind of store, and as safe."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery import (
    ConfigurationError,
    CorruptStateError,
    HighWaterMarkError,
    LeaseLostError,
    StateBackendError,
    StateLockedError,
    StateManager,
    UnsupportedVersionError,
)
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.operational.backends.migrate import migrate
from recovery.operational.backends.open import open_backend
from recovery.operational.backends.retry import RetryPolicy
from recovery.places.directory import DirectoryDocuments
from recovery.places.protocol import Conflict
from tests.backup.emulators import BUCKET
from tests.faults.minirun import wait_until_frozen
from tests.forks import run_code
from tests.operational.emulators import store
from tests.operational.support import HOUR_MS, IMPATIENT, HandClock, SetClock, StoppableClock, all_of, background
from tests.shares import first, some

KINDS = ["file", "s3", "azure", "gs"]
# Processes, updates and acquisitions of each; RECOVERY_TEST_CONTENTION=full takes as many everywhere.
SIZES = {"file": (8, 20, 10), "remote": (3, 4, 5)}
if os.environ.get("RECOVERY_TEST_CONTENTION") == "full":
    SIZES = dict.fromkeys(SIZES, (8, 20, 100))
# A lock is a document; that every store writes documents on a condition is shown by those that are counted up.
by_default = pytest.mark.parametrize("stores", some(KINDS, "file", "s3"), indirect=True)
ODD = ["a/b", "*", "..", "a/../b", "'\"", "🙂", "x" * 10_000, "state.json", " ", "A", "a", "%2F", "=2F", "!"]


@pytest.fixture(scope="module", params=KINDS)
def stores(request, tmp_path_factory, servers):
    """A store of every kind."""
    with store(request.param, tmp_path_factory.mktemp("store"), servers) as found:
        found.kind = request.param
        yield found


@pytest.fixture
def place(stores, request):
    """Makes URIs of a place of its own in the store."""
    name = request.node.name.partition("[")[0]
    return lambda **settings: stores.place(name, **settings)


@pytest.fixture
def files(tmp_path):
    """The URI of an empty directory."""
    (tmp_path / "state").mkdir()
    return f"file://{tmp_path}/state"


def size(uri: str, index: int) -> tuple[int, int]:
    """Processes, and rounds of each, for a store of this kind."""
    sizes = SIZES["file" if uri.startswith("file:") else "remote"]
    return sizes[0], sizes[index]


def go(processes) -> list[str]:
    """Start all together, and wait for what they print."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return all_of(processes, 300)


def test_the_same_verbs_on_every_store(place):
    """Marks, scopes and runs, with names of any kind, in environments that do not meet."""
    state, other = StateManager(place()), StateManager(place(), environment="prod")
    state.set_hwm_batch([{"key": key, "value": number} for number, key in enumerate(ODD)])
    with pytest.raises(HighWaterMarkError):
        state.set_hwm("*", 0)
    for number, name in enumerate(ODD):
        state.process_state(name, name).set(number)
    state.task_state("a", "b/c").set("task")
    again = StateManager(place())
    assert [again.get_hwm(key) for key in ODD] == list(range(len(ODD)))
    assert [again.process_states(name) for name in ODD] == [{name: number} for number, name in enumerate(ODD)]
    assert again.task_state("a/b", "c").get() is None
    assert other.list_hwms() == []
    other.set_hwm("a", 99)
    assert (state.get_hwm("a"), other.get_hwm("a")) == (ODD.index("a"), 99)
    run = state.history.begin("p", "pipeline")
    assert state.get_last_run_status("p") is None
    run.end()
    assert again.get_last_run_status("p") is True
    assert other.list_runs() == []
    assert state.process_state("a", "a").delete()
    assert not again.process_state("a", "a").exists
    assert state.history.clean(0) == []


def test_a_bucket_that_is_missing_is_never_taken_for_empty(stores):
    """With a misspelt name, the next load would begin at the beginning."""
    if stores.kind in ("file", "gs"):
        pytest.skip("a directory has a test of its own, and so has Google, whose emulator does not say what is missing")
    state = StateManager(stores.place("p").replace(f"://{BUCKET}", "://misspelt"), retry=IMPATIENT)
    for verb in (
        lambda: state.get_hwm("k"),
        lambda: state.list_hwms(),
        lambda: state.list_runs(),
        lambda: state.set_hwm("k", 1),
        lambda: state.backend.forget(["hwm"]),
        lambda: state.lock("l").__enter__(),
    ):
        with pytest.raises(StateBackendError):
            verb()


def test_a_state_whose_id_is_what_a_store_says_of_a_missing_bucket(stores):
    """Only the store's own words count: the error of a missing object names the object."""
    state = StateManager(stores.place("named"), retry=IMPATIENT)
    for name in ("NoSuchBucket", "ContainerNotFound", "the specified bucket does not exist"):
        assert state.process_state("p", name).get() is None
        state.process_state("p", name).set(1)
        assert state.process_state("p", name).delete()


def test_a_document_that_is_forgotten_while_it_is_changed(stores):
    """The change is made again, on nothing: the store says of such a write that there is no object."""
    state = StateManager(stores.place("forgotten"))
    state.process_state("p", "n").set(1)
    seen = []

    def change(value):
        seen.append(value)
        if len(seen) == 1:
            state.backend.forget(["process/p/n"])
        return 2

    state.process_state("p", "n").update(change)
    assert (seen, state.process_state("p", "n").get()) == ([1, None], 2)


FORKED = """
import multiprocessing, sys
from recovery import RecoveryError, StateManager

def work(said):
    try:
        StateManager(sys.argv[1]).set_hwm("k", 2)
        said.put("written")
    except RecoveryError as error:
        said.put(f"{type(error).__name__}: {error}")

context = multiprocessing.get_context("fork")
for used in (False, True):
    state = StateManager(sys.argv[1])
    if used:
        state.get_hwm("k")
    said = context.SimpleQueue()
    process = context.Process(target=work, args=(said,))
    process.start()
    process.join(40)
    if process.exitcode is None:
        process.kill()
        said.put("hangs")
    print(used, said.get())
"""


def test_a_forked_process_uses_it_or_is_refused_immediately(place, stores):
    """Of buckets, the client does not work in a process that was forked after its parent had used it: the error says
    how to start such processes."""
    done = run_code(FORKED, place())
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.strip().split("\n", 1)
    assert before == "False written"
    if stores.kind == "file":
        assert after == "True written"
    else:
        assert after.startswith("True StateBackendError:")
        assert 'multiprocessing.get_context("spawn")' in after


def test_the_layout_is_the_same_everywhere(place, stores):
    """A document is `<state id>/state.json` below the prefix."""
    state = StateManager(place())
    state.set_hwm("k", 1)
    state.process_state("n", "x").set(1)
    assert state.backend.objects.paths("") == ["hwm/state.json", "process/n/x/state.json"]


@by_default
def test_concurrent_updates_all_survive(place):
    """Several processes change one value concurrently: as many changes survive as were acknowledged, which is all."""
    processes, rounds = size(place(), 1)
    code = f"""
    import sys
    from recovery import StateManager
    counter = StateManager(sys.argv[1]).process_state("n", "count")
    counter.exists
    sys.stdin.readline()
    for _ in range({rounds}):
        print(counter.update(lambda n: n + 1, 0), flush=True)
    """
    printed = go([background(code, place()) for _ in range(processes)])
    assert sorted(int(line) for text in printed for line in text.split()) == list(range(1, processes * rounds + 1))
    assert StateManager(place()).process_state("n", "count").get() == processes * rounds


@by_default
def test_a_lock_is_held_by_one_process_at_a_time(place, tmp_path):
    """Several processes take it again and again; a file that only one can make shows that no two ever hold it."""
    processes, rounds = size(place(), 2)
    code = f"""
    import os, sys
    from recovery import StateManager
    state = StateManager(sys.argv[1], retry=__import__("recovery").RetryPolicy(busy=60))
    state.get_hwm("k")
    sys.stdin.readline()
    for _ in range({rounds}):
        with state.lock("orders"):
            os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))
            os.unlink(sys.argv[2])
    print("done")
    """
    uri = place(lock_retry_seconds=0.01)
    printed = go([background(code, uri, tmp_path / "inside") for _ in range(processes)])
    assert printed == ["done\n"] * processes


# It stops itself, so that it is never in the middle of a renewal: that would keep others from the file or the server.
STALL = """
import contextlib, os, signal, sys
from recovery import LeaseLostError, StateManager
state = StateManager(sys.argv[1])
def tries(what, work):
    try:
        work()
        print(what, "done", flush=True)
    except LeaseLostError as error:
        print(what, "refused", flush=True)
while True:
    lock = state.lock("orders", "stalled")
    lock.__enter__()
    try:
        state.set_hwm("k", 1)
        break
    except LeaseLostError:
        # So short a lease can run out on a slow machine before it is used.
        with contextlib.suppress(LeaseLostError):
            lock.__exit__(None, None, None)
print("held", flush=True)
with state.backend._held.leases[0]._lock:
    os.kill(os.getpid(), signal.SIGSTOP)
tries("write", lambda: state.set_hwm("k", 100))
tries("other", lambda: state.process_state("n", "x").set(1))
tries("release", lambda: lock.__exit__(None, None, None))
"""


@by_default
def test_a_stalled_holder_can_neither_write_nor_release(place):
    """Stopped for longer than its lease, it wakes when a successor holds the lock: all it tries is refused."""
    uri = place(lock_timeout_seconds=1, lock_retry_seconds=0.05)
    stalled = background(STALL, uri, own_child=True)
    assert stalled.stdout.readline() == "held\n"
    wait_until_frozen(stalled.pid)
    clock = StoppableClock()
    state = StateManager(uri, clock=clock)
    with state.lock("orders"):
        clock.stopped = True
        state.set_hwm("k", 2)
        stalled.send_signal(signal.SIGCONT)
        printed, errors = stalled.communicate(timeout=60)
        assert printed.splitlines() == ["write refused", "other refused", "release refused"], errors
        state.set_hwm("k", 3)
    assert state.get_hwm("k") == 3
    assert not state.process_state("n", "x").exists
    with state.lock("orders"):
        pass


def test_a_process_that_stopped_within_a_write_keeps_nobody_waiting_for_ever(files):
    """A writer gets an error after the address's `timeout`, with the file and the way out; reading goes on."""
    state = StateManager(f"{files}?timeout=0.2")
    state.set_hwm("k", 1)
    path = state.backend.objects.root / ".writing"
    with path.open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(StateBackendError, match=r"another process has been writing for 0\.2 s") as found:
            state.set_hwm("k", 2)
        assert found.value.path == str(path)
        assert str(path) in found.value.remedy
        assert state.get_hwm("k") == 1
    state.set_hwm("k", 2)
    assert state.get_hwm("k") == 2


def test_a_lease_that_is_renewed_is_not_taken_over(files, monkeypatch):
    """However long it is held, and whatever the clocks of the others show; an error after waiting names its holder."""
    uri = f"{files}?lock_timeout_seconds=0.3&lock_retry_seconds=0.02"
    real, written, deadline = DirectoryDocuments.put, [], time.monotonic() + 60

    def put(self, path, content, expected):
        token = real(self, path, content, expected)
        written.append(path)
        return token

    class Waiting(SetClock):
        """Most of a lease goes by from one renewal to the next, whatever the disk makes of that."""

        def elapsed_s(self) -> float:
            assert time.monotonic() < deadline, "it is not renewed"
            return 0.25 * len(written)

    monkeypatch.setattr(DirectoryDocuments, "put", put)
    holding = StoppableClock()
    holding.stopped = True
    with StateManager(uri, clock=holding).lock("orders", "loading"):
        for skew_ms in (-HOUR_MS, 0, HOUR_MS):
            clock = Waiting(time.time_ns() // 1_000_000 + skew_ms)
            waiter = StateManager(uri, clock=clock, retry=RetryPolicy(busy=0.8, delays=(), jitter=0))
            with pytest.raises(StateLockedError, match=rf"process {os.getpid()} on .* \(loading\)"):
                waiter.lock("orders").__enter__()


def test_writes_by_wrong_clocks(files):
    """An hour ahead or behind: every write counts, generations grow, times never go back, the last run is the last."""
    ahead = StateManager(files, clock=SetClock(1_800_000_000_000 + HOUR_MS))
    behind = StateManager(files, clock=SetClock(1_800_000_000_000 - HOUR_MS))
    for number, state in enumerate([ahead, behind, ahead, behind]):
        state.set_hwm("k", number)
        state.save_pipeline_run("p", {"n": number % 2 == 0})
        assert state.get_last_run_status("p") is (number % 2 == 0)
    [document] = ahead.backend.list("hwm")
    assert (document.generation, document.changed_ms) == (4, 1_800_000_000_000 + HOUR_MS)


def hold_and_die(uri):
    """A process takes the lock and is killed."""
    holder = background(STALL, uri)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()


def test_a_dead_holder_is_succeeded(files):
    """After a lease without a sign of life; its fencing number is passed over."""
    uri = f"{files}?lock_timeout_seconds=0.3&lock_retry_seconds=0.02"
    hold_and_die(uri)
    clock = StoppableClock()
    state = StateManager(uri, clock=clock)
    with state.lock("orders"):
        clock.stopped = True
        state.set_hwm("k", 2)
    assert state.get_hwm("k") == 2


def test_a_dead_holder_is_succeeded_by_the_impatient(files):
    """Who would wait for less than the lease waits until it is known whether the holder lives."""
    uri = f"{files}?lock_timeout_seconds=1&lock_retry_seconds=0.02"
    hold_and_die(uri)
    clock = StoppableClock()
    state = StateManager(uri, clock=clock, retry=RetryPolicy(busy=0.1, delays=()))
    with state.lock("orders"):
        clock.stopped = True


@pytest.mark.long
def test_interrupting_a_waiter_leaves_the_lock(files):
    """Ctrl-C ends the one that waits; the holder still holds, writes and releases."""
    state = StateManager(files)
    with state.lock("orders"):
        code = """
        import sys, threading
        from recovery import StateManager
        state = StateManager(sys.argv[1])
        threading.Timer(0.1, lambda: print("waiting", flush=True)).start()
        with state.lock("orders"):
            print("held", flush=True)
        """
        waiter = background(code, files)
        assert waiter.stdout.readline() == "waiting\n"
        waiter.send_signal(signal.SIGINT)
        printed, _ = waiter.communicate(timeout=30)
        assert (waiter.returncode, printed) == (-signal.SIGINT, "")
        state.set_hwm("k", 1)
        with pytest.raises(StateLockedError, match=str(os.getpid())):
            StateManager(files, retry=IMPATIENT).lock("orders").__enter__()
    with StateManager(files, retry=IMPATIENT).lock("orders"):
        pass


def test_a_torn_file_is_an_error_and_never_an_empty_state(files):
    """State and lock, cut off anywhere or with any byte flipped: neither reading nor writing goes on."""
    state = StateManager(files, retry=IMPATIENT)
    state.set_hwm("k", 5)
    path = Path(files.removeprefix("file://")) / "hwm" / "state.json"
    whole = path.read_bytes()
    torn = [whole[:length] for length in range(len(whole) - 1)]
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole) - 1)]
    for content in torn + flipped:
        path.write_bytes(content)
        with pytest.raises((CorruptStateError, UnsupportedVersionError)):
            state.get_hwm("k")
        with pytest.raises((CorruptStateError, UnsupportedVersionError)):
            state.set_hwm("k", 9)
    path.write_bytes(whole)
    assert state.get_hwm("k") == 5
    with state.lock("orders"):
        pass
    lock = path.parent.parent / "orders" / "lock.json"
    for length in range(0, lock.stat().st_size, 7):
        content = lock.read_bytes()
        lock.write_bytes(content[:length])
        with pytest.raises(CorruptStateError, match="'orders'"):
            state.lock("orders").__enter__()
        lock.write_bytes(content)


def test_a_damaged_object_is_removed_and_set_again(files):
    """As the error says: no command can remove it, since none goes on without reading it."""
    state = StateManager(files)
    state.set_hwm("k", 5)
    path = Path(files.removeprefix("file://")) / "hwm" / "state.json"
    path.write_text("{")
    with pytest.raises(CorruptStateError) as raised:
        state.remove_hwm("k")
    assert "remove it, and set the state again" in raised.value.remedy
    path.unlink()
    state.set_hwm("k", 1)
    assert state.get_hwm("k") == 1


def test_a_document_in_anothers_place_is_an_error(files):
    """A file that was copied over another is not taken for it."""
    state = StateManager(files)
    state.process_state("n", "a").set(1)
    state.process_state("n", "b").set(2)
    root = Path(files.removeprefix("file://"))
    (root / "process/n/a/state.json").write_bytes((root / "process/n/b/state.json").read_bytes())
    with pytest.raises(CorruptStateError, match="holds"):
        state.process_state("n", "a").get()


def test_killed_at_any_system_call(tmp_path):
    """SIGKILL while a file is written, at any call that changes files, leaves the old value or the new one, and nothing
    in the way of the next write."""
    code = """
import shutil, sys
from pathlib import Path
from recovery import StateManager
from tests.syscalls import killed_at
origin, directory = Path(sys.argv[1]), Path(sys.argv[1] + "-killed")
origin.mkdir()
StateManager(f"file://{origin}").process_state("n", "x").set("old")
def write(value="new"):
    StateManager(f"file://{directory}").process_state("n", "x").set(value)
number, found = 1, set()
while True:
    shutil.copytree(origin, directory)
    killed = killed_at(write, number, changes=True)
    value = StateManager(f"file://{directory}").process_state("n", "x").get()
    assert value in ("old", "new"), (number, value)
    found.add(value)
    write("next")
    assert StateManager(f"file://{directory}").process_state("n", "x").get() == "next"
    shutil.rmtree(directory)
    if not killed:
        assert value == "new"
        break
    number += 1
print(number, sorted(found))
"""
    done = run_code(code, tmp_path / "state", timeout_s=120)
    assert done.returncode == 0, done.stderr
    number, found = done.stdout.split(maxsplit=1)
    print("system calls tried", number)
    assert int(number) > 8
    assert found == "['new', 'old']\n"


def test_migration_between_all_of_them(store_dir, tmp_path, servers):
    """From the recovery directory through every store and back: every document with generation, time and tombstones."""
    origin = StateManager(store_dir)
    origin.set_hwm_batch([{"key": key, "value": 1} for key in ODD])
    for name in ODD:
        origin.process_state(name, "x").set(name)
    origin.process_state("gone", "x").set(1)
    origin.process_state("gone", "x").delete()
    origin.save_pipeline_run("p", {"n": True})
    documents = origin.backend.list()
    back = tmp_path / "back"
    CliRunner().invoke(main, ["init", str(back), "2"])
    places = [str(store_dir)]
    with ExitStack() as running:
        places += [running.enter_context(store(k, tmp_path / k, servers)).place("moved") for k in KINDS]
        places.append(str(back))
        for source, target in pairwise(places):
            result = CliRunner().invoke(main, ["state", "migrate", source, target])
            # What was removed is copied, too, but is no state.
            assert result.stdout == f"{len(documents) - 1} states copied and verified\n"
            assert open_backend(target, SystemClock(), RetryPolicy()).list() == documents
    assert StateManager(back).get_hwm("a/b") == 1


def test_migration_leaves_out_what_has_expired(store_dir, files):
    """It is neither copied nor counted nor in the way, there or here; a mark that was removed is no state."""
    clock = SetClock()
    source, target = StateManager(store_dir, clock=clock), StateManager(files, clock=clock)
    for state in (source, target):
        state.process_state("n", "gone").set(id(state), retention="1h")
    source.process_state("n", "here").set(1, retention="3h")
    source.set_hwm("k", 1)
    source.remove_hwm("k")
    clock.now_ms += 2 * HOUR_MS
    assert migrate(source.backend, target.backend, clock=clock) == 1
    assert target.process_states("n") == {"here": 1}
    assert migrate(source.backend, target.backend, clock=clock) == 0
    clock.now_ms += 2 * HOUR_MS
    assert migrate(source.backend, target.backend, clock=clock) == 0


def test_migration_overwrites_nothing_unasked(store_dir, files):
    """What the target has already must be the same; it is safe to repeat."""
    source, target = StateManager(store_dir), StateManager(files)
    source.set_hwm("k", 1)
    target.set_hwm("k", 2)
    with pytest.raises(ConfigurationError, match="holds other states"):
        migrate(source.backend, target.backend)
    assert target.get_hwm("k") == 2
    assert migrate(source.backend, target.backend, force=True) == 1
    assert migrate(source.backend, target.backend) == 0
    assert target.get_hwm("k") == 1


@pytest.mark.parametrize("kind", ["closed", "silent"])
@first("scheme", ["s3", "azure"])
def test_an_unreachable_store_fails_within_its_time_limit(scheme, kind, monkeypatch):
    """Whether nobody listens or nobody answers; and no secret is printed."""
    pytest.importorskip("obstore")
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
    for name in ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if kind == "silent":
            listener.listen()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        uri = f"{scheme}://states/a?endpoint={endpoint}&timeout=3s"
        uri += "&region=us-east-1" if scheme == "s3" else "&account=somebody"
        began = time.monotonic()
        with pytest.raises(StateBackendError) as found:
            StateManager(uri).set_hwm("k", 1)
        # Its own limit is 3 s, what is usual would be 20.
        assert time.monotonic() - began < 15
    assert secret not in str(found.value)
    assert "AKIDEXAMPLE" not in str(found.value)


@pytest.mark.parametrize(
    "uri",
    ["ftp://x/y", "s3://", "s3://key:secret-of-mine@bucket/a", "s3://b/a?secret_access_key=secret-of-mine",
     "file://relative/a", "file:///", "s3://b?colour=red", "nonsense", "azure://"],
)  # fmt: skip
def test_invalid_places(uri, store_dir):
    """The error says what is wrong, and repeats no secret."""
    with pytest.raises(ConfigurationError) as found:
        StateManager(store_dir, backend=uri)
    assert "secret-of-mine" not in str(found.value)


def test_the_command_line_takes_a_backend(files, store_dir, monkeypatch):
    """By option, by variable, or as DIR; without one it is the recovery directory."""
    monkeypatch.delenv("RECOVERY_DIRECTORY", raising=False)

    def recovery(*words: object) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.output

    recovery("hwm", "set", "--state-backend", files, "k", 5)
    assert recovery("hwm", "get", files, "k") == "5\n"
    assert recovery("hwm", "get", store_dir, "k", "--state-backend", files) == "5\n"
    assert recovery("hwm", "list", store_dir, "--json") == "[]\n"
    monkeypatch.setenv("RECOVERY_STATE_BACKEND", files)
    assert recovery("hwm", "get", "k") == "5\n"
    assert StateManager(store_dir).get_hwm("k") == 5
    assert StateManager().get_hwm("k") == 5
    assert StateManager(store_dir, backend="recovery").get_hwm("k") is None
    assert '"hwm"' in recovery("state", "list", "--json")
    assert recovery("runs", "--json") == "[]\n"


def test_a_lease_that_cannot_be_renewed_is_lost(files, monkeypatch):
    """Cut off for longer than the lease, the holder knows it without asking anybody."""
    clock = HandClock()
    state = StateManager(f"{files}?lock_timeout_seconds=0.3", clock=clock)
    cut_off = threading.Event()
    real = type(state.backend.objects).put

    def put(self, path, content, expected):
        if cut_off.is_set() and path.endswith("lock.json"):
            raise StateBackendError("cut off")
        return real(self, path, content, expected)

    monkeypatch.setattr(type(state.backend.objects), "put", put)
    lock = state.lock("orders")
    lock.__enter__()
    state.set_hwm("k", 1)
    cut_off.set()

    def write_on() -> None:
        for _ in range(10):
            clock.now_s += 0.1
            state.set_hwm("k", state.get_hwm("k") + 1)

    with pytest.raises(LeaseLostError, match="could not be renewed"):
        write_on()
    with pytest.raises(LeaseLostError):
        lock.__exit__(None, None, None)


def test_a_write_whose_answer_came_after_anothers_write(files, monkeypatch):
    """The store took it, and somebody followed on it before it was looked at: it counts once."""
    state, other = StateManager(files), StateManager(files)
    counter = state.process_state("n", "count")
    counter.set(0)
    real = DirectoryDocuments.put

    def put(self, path, content, expected):
        real(self, path, content, expected)
        monkeypatch.undo()
        other.process_state("n", "count").update(lambda n: n + 1)
        raise Conflict("the answer to an earlier attempt was lost")

    monkeypatch.setattr(DirectoryDocuments, "put", put)
    counter.update(lambda n: n + 1)
    assert counter.get() == 2


@pytest.mark.parametrize("lost", range(1, 5))
def test_a_write_whose_answer_never_came_is_recognised(files, monkeypatch, lost):
    """The store took it, and the client takes it for another's: no lock is lost, nothing is counted twice."""
    state = StateManager(f"{files}?lock_timeout_seconds=60&lock_retry_seconds=0.02")
    counter = state.process_state("n", "count")
    real, puts = DirectoryDocuments.put, []

    def put(self, path, content, expected):
        token = real(self, path, content, expected)
        puts.append(path)
        if len(puts) == lost:
            raise Conflict("the answer to an earlier attempt was lost")
        return token

    monkeypatch.setattr(DirectoryDocuments, "put", put)
    for _ in range(2):
        with state.lock("orders"):
            counter.update(lambda n: n + 1, 0)
    assert counter.get() == 2
    assert len(puts) >= 6
    with state.lock("orders"):
        pass


def test_two_that_hold_one_lock_is_reported(files):
    """Where a store grants a lock twice after all, the one that lost it does not end as if nothing had been."""
    state = StateManager(files)
    lock = state.lock("orders")
    lock.__enter__()
    path = Path(files.removeprefix("file://")) / "orders" / "lock.json"
    path.write_text(path.read_text().replace('"pid": ', '"pid": 1'))
    with pytest.raises(LeaseLostError, match="another process took it over"):
        state.set_hwm("k", 1)
    with pytest.raises(LeaseLostError, match="another process took it over"):
        lock.__exit__(None, None, None)
