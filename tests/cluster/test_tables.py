"""Tables and files on a share of all hosts, when hosts and drivers are lost, and where a host lacks the share."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from recovery import init_partitions
from tests.cluster.support import assert_exact, batches_in
from tests.flows.cluster import key_of


def delta_rows(share: Path) -> list[dict]:
    """All rows of the table."""
    from deltalake import DeltaTable

    return DeltaTable(str(share / "table")).to_pyarrow_table().to_pylist()


def iceberg_rows(share: Path) -> list[dict]:
    """All rows of the table."""
    from pyiceberg.catalog import load_catalog

    catalog = {"type": "sql", "uri": f"sqlite:///{share}/catalog.db", "warehouse": f"file://{share}"}
    return load_catalog("default", **catalog).load_table("db.t").scan().to_arrow().to_pylist()


def file_rows(share: Path) -> list[dict]:
    """All rows of the files that are visible."""
    import pyarrow.parquet as pq

    return [row for path in (share / "table").glob("*.parquet") for row in pq.read_table(path).to_pylist()]


def shown(rows_per_batch: int, batches: int) -> Counter[tuple[str, int]]:
    """What a plain loop puts out: after each micro-batch the number of rows so far of each key in it."""
    found: Counter[tuple[str, int]] = Counter()
    totals: Counter[str] = Counter()
    for batch in range(batches):
        numbers = range(batch * rows_per_batch, (batch + 1) * rows_per_batch)
        here = Counter(map(key_of, numbers))
        totals += here
        found.update((key, totals[key]) for key in here)
    return found


@pytest.mark.long
@pytest.mark.parametrize(("kind", "module", "read"), [
    ("delta", "deltalake", delta_rows), ("iceberg", "pyiceberg", iceberg_rows),
])  # fmt: skip
def test_a_share_that_one_host_lacks(make_lab, tmp_path, kind, module, read):
    """With the share on all hosts the table is exact. Without it on one, the run ends with 49, and no row that was
    committed is wrong or missing."""
    pytest.importorskip(module)
    share, db = tmp_path / "share", tmp_path / "db"
    share.mkdir()
    init_partitions(db, 4)
    lab = make_lab(2, shares=[share])
    flow = f"cluster.py:table({kind!r}, {str(share)!r}"
    lab.run(f"{flow}, 500, 3)", db, "-s", "0").succeed()
    before = batches_in(db)
    assert Counter((row["key"], row["n"]) for row in read(share)) == shown(500, before)
    lab.network.hosts[0].run(["umount", share])
    run = lab.run(f"{flow}, 500, 9)", db, "-s", "0")
    assert run.wait() == 49, run.text()
    assert re.search(r"a task on host (host1|10\.77\.0\.11) wrote .*, and it is missing here", run.text()), run.text()
    assert assert_exact(db, 500) == batches_in(db) == before
    assert Counter((row["key"], row["n"]) for row in read(share)) == shown(500, before)


@pytest.mark.long
def test_files_outlive_hosts_and_drivers(make_lab, tmp_path):
    """A host loses its power while the sink reads a micro-batch, which another host has as well; later the driver is
    killed; then the flow goes back. State and files are those of a plain loop each time."""
    share, db = tmp_path / "share", tmp_path / "db"
    share.mkdir()
    init_partitions(db, 4)
    lab = make_lab(2, shares=[share])

    def flow(last: int, pause_s: float = 0.0) -> str:
        return f"cluster.py:table('files', {str(share)!r}, 500, {last}, {pause_s})"

    def check() -> int:
        batches = assert_exact(db, 500)
        assert Counter((row["key"], row["n"]) for row in file_rows(share)) == shown(500, batches)
        return batches

    options = ("-s", "0", "-b", "1h")
    run = lab.run(flow(99, 1.0), db, *options)
    run.await_text("^reading 2$")
    lab.network.hosts[0].crash()
    run.await_text("^batch 4$")
    run.kill()
    lab.add_host()
    lab.run(flow(6), db, *options).succeed()
    assert check() == 7
    lab.run(flow(4), db, *options, "--resume-after", "2").succeed()
    assert check() == 5
