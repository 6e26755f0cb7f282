"""The names of flows, and the look that requests share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.errors import LookLimitError
from recovery.storage.glance import Glances
from recovery.storage.initialize import init_partitions
from recovery.ui.facts.flows import Flows, FlowSource, ShownFlow, name_of
from recovery.ui.facts.limits import patient
from recovery.ui.facts.shared import Shared
from tests.waiting import wait_until


@pytest.fixture
def impatient(monkeypatch):
    """Requests that wait for nothing: what they get meanwhile is the same after a while."""
    monkeypatch.setattr("recovery.ui.facts.limits.LEAST_PATIENCE_S", 0.0)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/a/db", "db"), ("db", "db"), ("/a/.../", "..."), ("/a/b/..", "a"), ("/", "flow"),
        (os.fsdecode(b"/a/d\xff"), "d\\xff"), ("/a/<b> %2F?#", "<b> %2F?#"), ("/a/ü\u202e", "ü\u202e"),
    ],
)  # fmt: skip
def test_a_name_can_be_a_part_of_an_address(path, name):
    """Whatever the directory is called: a browser would follow `..`, and addresses are UTF-8."""
    assert name_of(Path(path)) == name


def test_the_parent_directory_has_its_own_name(tmp_path, monkeypatch):
    """As `recovery ui ..` gives it; so has the present one, as `.`; a link keeps its own."""
    (tmp_path / "flow-a" / "logs").mkdir(parents=True)
    (tmp_path / "current").symlink_to(tmp_path / "flow-a")
    monkeypatch.chdir(tmp_path / "flow-a" / "logs")
    assert [name_of(Path(each)) for each in ("..", ".", tmp_path / "current")] == ["flow-a", "logs", "current"]


def test_the_first_look_says_how_far_it_is(tmp_path, monkeypatch, impatient):
    """A request waits for it no longer than it may, and then says which partition is read; afterwards it shows the look
    before while the next one takes its time."""
    init_partitions(tmp_path / "db", 3)
    flow = ShownFlow("flow", FlowSource(tmp_path / "db"))
    goes_on = threading.Event()
    real = Glances._look

    def slow(self, path):
        assert self.done == 0 or goes_on.wait(30)
        return real(self, path)

    monkeypatch.setattr(Glances, "_look", slow)
    with patient(0), pytest.raises(LookLimitError, match=r"partition 2 of 3 is being read|it is being read"):
        flow.look()
    wait_until(lambda: flow._glances.done == 1)
    with patient(0), pytest.raises(LookLimitError, match="partition 2 of 3 is being read") as caught:
        flow.look()
    assert caught.value.path == str(tmp_path / "db")
    goes_on.set()
    first = flow.look()
    goes_on.clear()
    with patient(0):
        with pytest.raises(LookLimitError):
            flow.look_again(first)
        assert flow.look() is first
    goes_on.set()
    assert flow.look_again(first) is not first


def test_a_disk_that_hangs_is_named(tmp_path, monkeypatch, impatient):
    """Where there was a look, too: what the look showed would never change again. One thread waits for the disk,
    whoever asks."""

    class Jumping(SystemClock):
        ahead_s = 0.0

        def elapsed_s(self) -> float:
            return super().elapsed_s() + self.ahead_s

    init_partitions(tmp_path / "db", 1)
    clock = Jumping()
    flow = ShownFlow("flow", FlowSource(tmp_path / "db"), clock)
    flow.look()
    ends, waiting = threading.Event(), []
    real = Glances._look

    def hanging(self, path):
        waiting.append(1)
        assert ends.wait(30)
        return real(self, path)

    monkeypatch.setattr(Glances, "_look", hanging)
    clock.ahead_s += 60
    with patient(0):
        flow.look()
        wait_until(lambda: waiting)
        clock.ahead_s += 60
        for _ in range(3):
            with pytest.raises(LookLimitError, match="has not come further for 30 s") as caught:
                flow.look()
        assert caught.value.path == str(tmp_path / "db")
    assert len(waiting) == 1
    ends.set()
    wait_until(lambda: flow._look.began_s is None)
    flow.look()


def test_what_the_first_look_took_keeps_no_later_one_away(tmp_path, monkeypatch):
    """The first look reads everything; a later one that takes long serves for long."""

    class Slow(SystemClock):
        passed_s = 0.0

        def elapsed_s(self) -> float:
            return self.passed_s

    init_partitions(tmp_path / "db", 1)
    clock = Slow()
    flow = ShownFlow("flow", FlowSource(tmp_path / "db"), clock)
    real = Glances.scan

    def scan(self, directory):
        clock.passed_s += 30
        return real(self, directory)

    monkeypatch.setattr(Glances, "scan", scan)
    first = flow.look()
    clock.passed_s += 2
    second = flow.look()
    assert second is not first
    clock.passed_s += 500
    assert flow.look() is second
    clock.passed_s += 200
    assert flow.look() is not second


def test_many_flows_that_hang_do_not_keep_the_list(tmp_path, monkeypatch):
    """As those on one mount: the list waits for all of them together as long as for one."""
    for number in range(30):
        init_partitions(tmp_path / f"db-{number}", 1)
    flows = Flows([FlowSource(tmp_path / f"db-{number}") for number in range(30)])
    ends = threading.Event()
    monkeypatch.setattr(Glances, "_look", lambda self, path: ends.wait(60))
    real, waits = Shared.get, []

    def get(self, wait_s, after=None):
        waits.append(wait_s)
        return real(self, wait_s, after)

    monkeypatch.setattr(Shared, "get", get)
    try:
        with patient(0.5):
            listed = flows.list_facts()["flows"]
    finally:
        ends.set()
    assert [each["problem"]["error"] for each in listed] == ["LookLimitError"] * 30
    assert sum(waits) <= 1
