"""Operational state in a store that the caller provides."""

from __future__ import annotations

import threading

import pytest

from recovery import ConfigurationError, StateBackendError, StateManager
from recovery.operational.backends.migrate import migrate
from tests.operational.support import IMPATIENT


class Memory:
    """A dict; the token of an object counts its changes."""

    location = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.lock = threading.Lock()

    def get(self, path):
        return self.objects.get(path)

    def put(self, path, content, expected):
        with self.lock:
            found = self.objects.get(path)
            if (None if found is None else found[1]) != expected:
                return None
            self.objects[path] = content, (expected or 0) + 1
            return self.objects[path][1]

    def paths(self, prefix):
        return [path for path in self.objects if path.startswith(prefix)]

    def delete(self, path):
        self.objects.pop(path, None)


def test_everything_works_on_it(store_dir):
    """Marks, runs, scoped state, locks, and moving it from and to another place."""
    state = StateManager(backend=Memory())
    state.set_hwm_batch([{"key": "orders", "value": 5}, {"key": "customers", "value": 7}])
    state.save_pipeline_run("nightly", {"load": True})
    state.task_state_store("d", "t", "r").set("job", 1)
    with state.lock("orders"):
        assert (state.get_hwm("orders"), state.get_last_run_status("nightly")) == (5, True)
    directory = StateManager(store_dir)
    assert migrate(state.backend, directory.backend) == 3
    assert (directory.get_hwm("customers"), directory.task_state_store("d", "t", "r").get("job")) == (7, 1)


def test_no_change_is_lost():
    """Of several threads that count together."""
    store, count = Memory(), 20

    def work() -> None:
        for _ in range(count):
            StateManager(backend=store).process_state("p", "n").update(lambda n: n + 1, default=0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert StateManager(backend=store).process_state("p", "n").get() == 4 * count


def test_a_store_that_cannot_answer():
    class Silent(Memory):
        def get(self, path):
            raise ConnectionError("no route")

    with pytest.raises(StateBackendError, match="no route"):
        StateManager(backend=Silent(), retry=IMPATIENT).get_hwm("orders")


def test_each_value_of_a_scope_is_read_once():
    """Whoever asks for all values of a scope sees none that is removed meanwhile as None."""

    class Counting(Memory):
        gets = 0

        def get(self, path):
            self.gets += 1
            return super().get(path)

    store = Counting()
    state = StateManager(backend=store)
    for number in range(5):
        state.task_state_store("d", "t", "r").set(f"k{number}", number)
        state.process_state("p", f"n{number}").set(number)
    store.gets = 0
    assert state.task_state_store("d", "t", "r").items() == {f"k{number}": number for number in range(5)}
    assert state.process_states("p") == {f"n{number}": number for number in range(5)}
    assert store.gets == 10


def test_what_is_no_store_is_refused():
    class Torn(Memory):
        def get(self, path):
            return "text", None

    with pytest.raises(StateBackendError, match="not bytes and a token"):
        StateManager(backend=Torn()).get_hwm("orders")
    for backend in (object(), 5, {}):
        with pytest.raises(ConfigurationError, match="cannot be a state backend"):
            StateManager(backend=backend)
