"""A cluster of pretend hosts, as `examples/cluster` lays them out."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.cluster.support import EXAMPLES, Lab

sys.path.insert(0, str(EXAMPLES))


@pytest.fixture(scope="session")
def possible() -> None:
    """Skips where no hosts can be made."""
    from hosts import impossible

    reason = impossible()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def make_lab(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[Lab]]:
    """Makes labs; ends them all."""
    made: list[Lab] = []

    def make(hosts: int = 2, **options) -> Lab:
        made.append(Lab(tmp_path_factory.mktemp("lab"), **options))
        for _ in range(hosts):
            made[-1].add_host()
        return made[-1]

    yield make
    for lab in made:
        lab.close()


@pytest.fixture(scope="session")
def lab(make_lab) -> Lab:
    """Two hosts with this package, for tests that leave them alive."""
    return make_lab()
