"""What tests on the shared Spark session share besides the session."""

from __future__ import annotations

import pytest

from recovery.spark.tuning.tuning import TACTICS, VARIABLE
from tests.shares import some
from tests.spark.support import Feed

UNTUNED = ",".join(f"-{name}" for name in sorted(TACTICS))


@pytest.fixture(params=some(["", UNTUNED], ""), ids=["tuned", "untuned"])
def tuning(request, monkeypatch):
    """The test runs twice: with all tactics that make micro-batches faster, and without any. Other tests have them."""
    monkeypatch.setenv(VARIABLE, request.param)


@pytest.fixture
def feed(tmp_path):
    """An empty input directory that a test adds files to."""
    return Feed(tmp_path / "input")
