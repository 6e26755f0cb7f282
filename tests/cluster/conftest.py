"""A cluster of pretend hosts, as `examples/cluster` lays them out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from recovery import init_partitions
from tests.cluster.support import EXAMPLES, Lab

if TYPE_CHECKING:
    from tests.cluster.kept import Kept

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


@pytest.fixture
def beside(tmp_path: Path) -> Callable[[Lab], Kept]:
    """Puts four partitions beside the driver."""

    from tests.cluster.kept import Kept

    def put(lab: Lab) -> Kept:
        init_partitions(tmp_path / "db", 4)
        return Kept(lab, tmp_path / "db")

    return put


@pytest.fixture(params=["beside the driver", "at owners"])
def keep(request, beside, make_store, tmp_path) -> Callable[[Lab], Kept]:
    """Puts four partitions beside the driver; or three at owners on two further hosts of the lab, and one beside the
    driver."""

    from tests.cluster.fleet import Fleet
    from tests.cluster.kept import Kept

    def spread(lab: Lab) -> Kept:
        fleet = Fleet(lab.network, make_store(4), tmp_path, ([1], [0, 3], [2]))
        return Kept(lab, fleet.db, fleet)

    return beside if request.param == "beside the driver" else spread
