"""A run that would discard history asks, where somebody can answer."""

from __future__ import annotations

import io

import click
import pytest

from recovery import HistoryLossError, RecoveryConfig
from recovery.cli.run import asking


class Terminal(io.StringIO):
    """What a person sees and types at."""

    def isatty(self):
        return True


def attempt(config):
    """A run that discards history only when it may."""
    if not config.discard_history:
        raise HistoryLossError("a backup interval of 0 s discards snapshots")
    return "ran"


@pytest.mark.parametrize("answer", [True, False])
def test_on_a_terminal(monkeypatch, answer):
    """It says what is discarded, and discards it when the answer is yes."""
    seen = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: answer)
    if answer:
        assert asking(attempt, RecoveryConfig("db")) == "ran"
    else:
        with pytest.raises(HistoryLossError):
            asking(attempt, RecoveryConfig("db"))
    assert "discards snapshots" in seen.getvalue()


def test_elsewhere_it_is_an_error(monkeypatch):
    """Nobody can answer."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(HistoryLossError):
        asking(attempt, RecoveryConfig("db"))
    assert asking(attempt, RecoveryConfig("db", discard_history=True)) == "ran"
