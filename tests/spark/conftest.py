"""One Spark session for all tests that can share it."""

from __future__ import annotations

import os
import random

import pytest

from tests.spark.support import Feed


@pytest.fixture(scope="session")
def spark():
    """local[2,4]: two tasks at a time, and a failed task is tried again, which plain local[2] never does."""
    from recovery.spark.jvm.session import create_session, prepare_environment
    from tests.spark.support import ROOT

    prepare_environment(str(ROOT))
    session = create_session("tests", master="local[2,4]", conf={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def exchanged(request, monkeypatch):
    """In every other test, drawn by lot, no micro-batch counts as small, and in others none as one for the driver."""
    from recovery.spark.tuning import gathering, merging

    lot = random.Random(f"{request.node.nodeid} {os.environ.get('RECOVERY_TEST_SEED')}")
    for module in (gathering, merging):
        if lot.random() < 0.5:
            monkeypatch.setattr(module, "FEW_ROWS", -1)


@pytest.fixture
def feed(tmp_path):
    """An empty input directory that a test adds files to."""
    return Feed(tmp_path / "input")
