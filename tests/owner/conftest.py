"""Owners of tests in this directory refuse sooner."""

from __future__ import annotations

import pytest

from recovery.wire import server


@pytest.fixture(autouse=True)
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets servers of this process, and of its forks, refuse a client that cannot prove itself after a short pause."""
    monkeypatch.setattr(server, "REFUSAL_PAUSE_S", 0.05)
