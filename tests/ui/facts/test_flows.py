"""The names of flows, and the look that requests share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.errors import NoPartitionsError
from recovery.ui.facts.flows import FlowSource, ShownFlow, name_of
from tests.waiting import wait_until


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


class Counting(SystemClock):
    """A clock that counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def elapsed_s(self) -> float:
        self.reads += 1
        return super().elapsed_s()


def test_requests_of_the_same_moment_share_a_look_that_fails(tmp_path, monkeypatch):
    """As an owner that is not reached takes long for each of them. A later request looks again."""
    clock = Counting()
    flow = ShownFlow("flow", FlowSource(tmp_path), clock)
    looks, failed = [], []
    real = ShownFlow._read

    def slow(self):
        looks.append(1)
        # All have asked by then.
        wait_until(lambda: clock.reads >= 4)
        return real(self)

    def ask():
        try:
            flow.look()
        except NoPartitionsError as error:
            failed.append(error)

    monkeypatch.setattr(ShownFlow, "_read", slow)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert (len(looks), len(failed)) == (1, 4)
    ask()
    assert (len(looks), len(failed)) == (2, 5)
