"""Positions in Iceberg tables, and where such a source looks for the end of its input from."""

from __future__ import annotations

import json

import msgspec
import pytest

from recovery.base.ids import BatchId
from recovery.checkpoint.offsets import move_offsets
from recovery.checkpoint.snapshots import begin_at_position, table_offset
from recovery.checkpoint.source_places import SourcePlaces

HEADER = '{"batchWatermarkMs":0,"batchTimestampMs":17,"conf":{}}'


def offset(snapshot: int, position: int) -> str:
    return f'{{"version":1,"snapshot_id":{snapshot},"position":{position},"scan_all_files":false}}'


@pytest.mark.parametrize("text", ["-", "7", '{"snapshot_id":1}', '{"logOffset":0}', "[" * 10_000])
def test_positions_of_others(text):
    assert table_offset(text) is None


@pytest.mark.parametrize(
    ("form", "sources"),
    [("v1\n{h}\n{a}\n{k}\n{n}", (0, 1, 2)), ("v2\n{h}\n0:{a}\n1:{k}\n2:{n}", (0, 1, 2)), ("v1\n{h}\n{a}", None)],
    ids=["places", "numbers", "unknown"],
)
def test_a_source_begins_at_the_position(tmp_path, form, sources):
    """Before all files of the snapshot. Other sources, and a table of which nothing was read, keep what they have."""
    kept = {name: tmp_path / "sources" / name / "offsets" / "0" for name in "012"}
    for path in kept.values():
        path.parent.mkdir(parents=True)
        path.write_text("as it was")
    (tmp_path / "offsets").mkdir()
    lines = {"h": HEADER, "a": offset(7, 2), "k": '{"t":{"0":1}}', "n": offset(-1, -1)}
    (tmp_path / "offsets" / "3").write_text(form.format(**lines))
    begin_at_position(tmp_path, BatchId(3), sources)
    assert json.loads(kept["0"].read_text()) == json.loads(offset(7, -1))
    assert {kept[name].read_text() for name in "12"} == {"as it was"}


@pytest.mark.parametrize("form", ["v1\n{h}\n{k}\n{a}\n{a}", "v2\n{h}\n0:{k}\n2:{a}"], ids=["places", "numbers"])
def test_a_position_is_moved(tmp_path, form):
    """Of the table that is read in two places, and of no other source."""
    (tmp_path / "offsets").mkdir()
    log = tmp_path / "offsets" / "3"
    places, kafka = SourcePlaces((0, 1, 1), (False,) * 3, (None,) * 3), '{"t":{"0":1}}'
    log.write_text(form.format(h=HEADER, k=kafka, a=offset(7, 2)))
    to = json.dumps(msgspec.to_builtins(table_offset(offset(7, 2)).at_beginning_of(9)), separators=(",", ":"))
    move_offsets(tmp_path, BatchId(3), places, {1: to, 2: to})
    assert log.read_text() == form.format(h=HEADER, k=kafka, a=offset(9, 0))
