"""Which Iceberg tables a run refuses before it begins, by the snapshots that they have. Without Spark; with it, see
`tests/spark/test_iceberg_source.py`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from recovery.base.ids import BatchId
from recovery.checkpoint.home import LocalHome
from recovery.checkpoint.source_places import SourcePlaces
from recovery.errors import InputLostError, InputRewrittenError
from recovery.spark.planner.iceberg_tables import IcebergInput, IcebergTable
from tests.checkpoint.test_snapshots import HEADER, offset


class Snapshot:
    """Number and time are one."""

    def __init__(self, number: int, parent: int | None, added: int = 1, total: int = 1, kind: str = "append") -> None:
        self.snapshotId = self.timestampMillis = lambda: number
        self.parentId, self.operation = lambda: parent, lambda: kind
        self.summary = lambda: {"added-data-files": str(added), "total-data-files": str(total)}


class Snapshots:
    """What a table has; the last one is current."""

    def __init__(self, *found: Snapshot) -> None:
        self.found = {each.snapshotId(): each for each in found}
        self.snapshot, self.refresh = self.found.get, lambda: None
        self.currentSnapshot = lambda: found[-1] if found else None

    def ancestors(self) -> list[Snapshot]:
        chain, at = [], self.currentSnapshot()
        while at is not None:
            chain.append(at)
            at = self.found.get(at.parentId())
        return chain


UTIL = SimpleNamespace(
    oldestAncestor=lambda table: table.ancestors()[-1],
    isAncestorOf=lambda table, number: number in [each.snapshotId() for each in table.ancestors()],
)
ICEBERG = SimpleNamespace(iceberg=SimpleNamespace(util=SimpleNamespace(SnapshotUtil=UTIL)))
SPARK = SimpleNamespace(_jvm=SimpleNamespace(org=SimpleNamespace(apache=ICEBERG)))


@pytest.fixture
def begin(tmp_path):
    """Begin a run on a table, after a snapshot."""

    def begin(table: Snapshots, read: int | None = None, since: str | None = None) -> None:
        batch = None if read is None else BatchId(0)
        if read is not None:
            (tmp_path / "offsets").mkdir(exist_ok=True)
            (tmp_path / "offsets" / "0").write_text(f"v1\n{HEADER}\n{offset(read, 1)}")
        places = SourcePlaces((0,), (False,), (None,))
        IcebergInput({0: IcebergTable("lake.db.a", table, since, SPARK)}, places, LocalHome(tmp_path)).begin(batch)

    return begin


WHOLE = Snapshots(Snapshot(10, None), Snapshot(20, 10, total=2), Snapshot(30, 20, total=3))
EXPIRED = Snapshots(Snapshot(20, 10, total=2), Snapshot(30, 20, total=3))
COMPACTED = Snapshots(Snapshot(20, 10, kind="replace"), Snapshot(30, 20, total=2))


@pytest.mark.parametrize(
    ("table", "since", "lost"),
    [(WHOLE, None, False), (WHOLE, "5", False), (WHOLE, "15", False), (Snapshots(), None, False),
     (EXPIRED, None, True), (COMPACTED, None, True),
     # The source reads from the oldest snapshot on, whatever was added since that time.
     (EXPIRED, "15", True), (EXPIRED, "20", False), (EXPIRED, "40", False), (EXPIRED, "soon", False)],
)  # fmt: skip
def test_a_first_run(begin, table, since, lost):
    """Is refused where rows since the time that it asks for would be left out."""
    if not lost:
        begin(table, since=since)
        return
    with pytest.raises(InputLostError, match="has rows that were added before its oldest snapshot, 20 of") as caught:
        begin(table, since=since)
    assert '"stream-from-timestamp", "20"' in caught.value.remedy


@pytest.mark.parametrize(
    ("table", "kind", "found"),
    [(Snapshots(), InputRewrittenError, "has no snapshots any more"),
     (EXPIRED, InputLostError, "no longer has snapshot 10, from which the flow had to read on; its oldest one is 20"),
     (Snapshots(Snapshot(10, None), Snapshot(30, 20)), InputLostError,
      "no longer has what comes between snapshot 10, which the flow has read last, and 30 of"),
     (Snapshots(Snapshot(5, None), Snapshot(10, 5), Snapshot(30, 5)), InputRewrittenError, "was rolled back"),
     (Snapshots(Snapshot(5, 1), Snapshot(10, 5), Snapshot(30, 5)), InputRewrittenError, "was rolled back")],
)  # fmt: skip
def test_a_later_run(begin, table, kind, found):
    """Goes on where the snapshot that was read leads on; else the error says what is gone."""
    begin(WHOLE, read=10)
    with pytest.raises(kind, match=found):
        begin(table, read=10)
