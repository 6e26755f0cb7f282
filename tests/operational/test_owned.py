"""Documents of operational state at an owner: the same promises as in the directory."""

from __future__ import annotations

import threading

import pytest

from recovery.base.clock import SystemClock
from recovery.base.ids import Lease
from recovery.errors import ConfigurationError, OwnerUnreachableError, StateLockedError
from recovery.operational.backends.backend import DirectoryBackend
from recovery.operational.backends.owned import OwnerBackend
from recovery.operational.runs import RunHistory
from recovery.owner.service import OwnerService
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.file.statements import transaction
from recovery.wire.address import OwnerAddress
from recovery.wire.run_client import Owner
from tests.operational.support import IMPATIENT, SetClock
from tests.owner.served import TOKEN, token_file

THREADS = 4
UPDATES = 10


@pytest.fixture
def service(store_dir, tmp_path):
    made = OwnerService(store_dir, "127.0.0.1:0", token_file(tmp_path), log=lambda _: None)
    yield made
    made.stop(0.1)


@pytest.fixture
def owner(service):
    found = Owner(OwnerAddress("127.0.0.1", service.port, Lease(0, ""), 0, 1.0), TOKEN.encode())
    yield found
    found.release()


@pytest.fixture
def there(owner):
    return OwnerBackend(owner, SetClock(), IMPATIENT)


@pytest.fixture
def here(store_dir):
    return DirectoryBackend(store_dir, SetClock(), IMPATIENT)


def test_both_see_the_same_documents(there, here):
    """What one writes, changes, removes, places or forgets, the other reads."""
    there.update({"one": lambda _: {"n": 1}, "two": lambda _: [2.5, None, "ü"]})
    assert here.read(["one", "two", "none"]) == there.read(["one", "two", "none"])
    here.update({"one": lambda old: {"n": old.content["n"] + 1}})
    assert there.read(["one"])["one"].content == {"n": 2}
    assert there.read(["one"])["one"].generation == 2
    found = there.update({"one": lambda _: None})
    assert found["one"].content is None
    assert [each.state_id for each in there.list("o")] == ["one"]
    assert there.list() == here.list()
    there.place(there.list("two"))
    assert there.forget(["two", "none"]) == 1
    assert here.read(["two"]) == {}


def test_the_same_content_writes_nothing(there):
    there.update({"one": lambda _: 1})
    assert there.update({"one": lambda _: 1})["one"].generation == 1


def test_every_concurrent_change_counts_once(owner):
    """Whoever is overtaken makes the change again."""
    backend = OwnerBackend(owner, SystemClock(), IMPATIENT.__class__(busy=5.0, delays=(0.01,) * 500, jitter=0.01))

    def count():
        for _ in range(UPDATES):
            backend.update({"count": lambda old: (old.content if old else 0) + 1})

    threads = [threading.Thread(target=count) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    found = backend.read(["count"])["count"]
    assert (found.content, found.generation) == (THREADS * UPDATES, THREADS * UPDATES)


def test_an_error_of_a_change_changes_nothing(there):
    with pytest.raises(ZeroDivisionError):
        there.update({"one": lambda _: 1, "two": lambda _: 1 / 0})
    assert there.list() == []


def test_a_writer_in_the_way_is_reported_after_the_attempts(there, store_dir):
    connection = open_partition(store_dir / "part-0.sqlite3", "rw")
    try:
        with transaction(connection), pytest.raises(StateLockedError, match="held the lock"):
            there.update({"one": lambda _: 1})
    finally:
        connection.close()
    there.update({"one": lambda _: 1})


def test_a_change_that_refuses_is_not_made_again(there):
    """As for a state that was changed since a command read it: the caller waits for nobody."""
    made = []

    def refuse(_):
        made.append(1)
        raise StateLockedError("it was changed meanwhile")

    with pytest.raises(StateLockedError, match="it was changed meanwhile"):
        there.update({"one": refuse})
    assert len(made) == 1


def test_a_run_history(there, here):
    clock = SetClock()
    run = RunHistory(there, clock).begin("words", "flow", {"execution": 1})
    run.end()
    [found] = RunHistory(here, clock).runs()
    assert (found.pipeline, found.status) == ("words", "succeeded")


def test_a_lock_is_refused_with_the_way_out(there):
    with pytest.raises(ConfigurationError) as error:
        there.lock("orders", "a test")
    assert "--state-backend" in error.value.remedy


def test_a_lost_owner_is_named(there, service):
    service.stop(0.1)
    with pytest.raises(OwnerUnreachableError, match=str(service.port)):
        there.read(["one"])
