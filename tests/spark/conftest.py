"""One Spark session for all tests that can share it."""

from __future__ import annotations

import pytest

from recovery.spark.tuning.appended_lines import install
from recovery.spark.tuning.tuning import TACTICS, VARIABLE
from tests.kafka import CONNECTOR
from tests.lake import JARS, SETTINGS
from tests.shares import some
from tests.spark.support import Feed


@pytest.fixture(scope="session")
def spark():
    """local[2,4]: two tasks at a time, and a failed task is tried again, which plain local[2] never does."""
    from recovery.spark.jvm.session import create_session, prepare_environment
    from tests.spark.support import ROOT

    prepare_environment(str(ROOT))
    # A JVM loads jars when it starts, so the connectors' come with it, where there are some.
    jars = ",".join(map(str, [*CONNECTOR, *JARS]))
    conf = {"spark.sql.shuffle.partitions": "2", "spark.jars": jars, **SETTINGS}
    session = create_session("tests", master="local[2,4]", conf=conf)
    install(session)
    yield session
    session.stop()


UNTUNED = ",".join(f"-{name}" for name in sorted(TACTICS))


@pytest.fixture(params=some(["", UNTUNED], ""), ids=["tuned", "untuned"])
def tuning(request, monkeypatch):
    """The test runs twice: with all tactics that make micro-batches faster, and without any. Other tests have them."""
    monkeypatch.setenv(VARIABLE, request.param)


@pytest.fixture
def feed(tmp_path):
    """An empty input directory that a test adds files to."""
    return Feed(tmp_path / "input")
