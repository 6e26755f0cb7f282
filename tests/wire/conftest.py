"""Certificates and servers for the tests of the wire."""

from __future__ import annotations

import pytest

from tests.memory_store import MemoryDirectory
from tests.owner.conftest import quick_refusals
from tests.stores import Driver
from tests.wire.certificates import make_certificates
from tests.wire.serving import Serving

__all__ = ["quick_refusals"]


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory):
    """A certificate for localhost and 127.0.0.1, its key, and the authority that signed it: three PEM files."""
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def run():
    """An execution on a store of two partitions in memory."""
    with Driver(MemoryDirectory(2)) as found:
        yield found


@pytest.fixture
def serving(run, tmp_path):
    """A server over it, in this process."""
    made = Serving(run.store.address(run.lease), run.lease, run.count, tmp_path)
    yield made
    made.close()
