"""The position before the first micro-batch that reads a source, as a checkpoint from which Spark begins there."""

from __future__ import annotations

import json

import pytest

from recovery.checkpoint.beginning import earlier, recorded_beginning, take_beginning, with_starts
from recovery.checkpoint.offsets import read_offsets
from recovery.checkpoint.restore import restore
from recovery.checkpoint.source_places import places_of, recorded_places
from recovery.checkpoint.sources import check_logs, fit_sources
from recovery.errors import CorruptPartitionError
from tests.checkpoint.layouts import with_steps

HEADER = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":17,"conf":{"a":"b"}}'
ICEBERG = '{{"version":1,"snapshot_id":{},"position":{},"scan_all_files":false}}'
KAFKA = b"\0v1\n{}"


def checkpoint_of(directory, *lines, header=HEADER, batch=0, logs=()):
    """A checkpoint with a micro-batch that is planned."""
    for name in ("offsets", *(f"sources/{source}" for source, _ in logs)):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "metadata").write_text('{"id":"x"}')
    (directory / "offsets" / str(batch)).write_text("\n".join([header, *lines]))
    for source, name in logs:
        (directory / "sources" / source / name).write_bytes(KAFKA)
    return directory


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ('{"n":2}', '{"n":5}', '{"n":2}'),
        ('{"n": 5}', '{"n": 2}', '{"n": 2}'),
        ('{"t":{"0":7,"1":1}}', '{"t":{"0":5,"1":4,"2":3}}', '{"t":{"0":5,"1":1}}'),
        ('{"at":"2026-11-26T10:00:01Z"}', '{"at":"2026-11-26T10:00:00Z"}', '{"at":"2026-11-26T10:00:00Z"}'),
        ('{"id":"b"}', '{"id":"a"}', '{"id":"b"}'),
        ('{"id":"10"}', '{"id":"9"}', '{"id":"10"}'),
        ("[3,1]", "[2,4]", "[2,1]"),
        ("7", "5", "5"),
        ("true", "false", "true"),
        ("null", '{"n":1}', "null"),
        ("no json", "1", "no json"),
        (ICEBERG.format(9, 0), ICEBERG.format(5, 1), ICEBERG.format(9, 0)),
    ],
)
def test_a_source_that_moved_on_between_two_questions(start, end, found):
    """Spark reads from what it asked later, and goes on from what it asked first: the earlier one loses nothing."""
    assert earlier(start, end) == found


def test_the_first_micro_batch_of_all(tmp_path):
    """Starts in place of ends; nothing for files, whose log is of the micro-batch; what others log of their start."""
    names = [f"{each} {each} {each} " for each in "abtc"]
    places = places_of("abtc", [False, False, True, False], names)
    lines = ['{"n":5}', '{"logOffset":0}', '{"tick_ms":9}', "6"]
    planned = checkpoint_of(tmp_path / "run", *lines, logs=[("1", "0"), ("3", "0"), ("3", ".0.crc"), ("3", "1")])
    log = with_starts(read_offsets(planned, 0), None, {"0": '{"n":2}', "2": "0", "3": "0"}, places)
    beginning = recorded_beginning(take_beginning(planned, log, places).to_text())
    checkpoint = tmp_path / "next"
    restored = restore(beginning.files.items(), checkpoint)
    assert restored.batch == -1
    check_logs(fit_sources(restored, checkpoint, places, recorded_places(beginning.places)), checkpoint, places)
    for batch in (-1, -2):
        assert (checkpoint / f"offsets/{batch}").read_text().split("\n")[1:] == [
            HEADER.split("\n")[1], '{"n":2}', "-", '{"tick_ms": 0}', "0",
        ]  # fmt: skip
    assert (checkpoint / "commits/-1").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'
    assert (checkpoint / "sources/3/0").read_bytes() == KAFKA
    assert sorted(path.name for path in checkpoint.glob("sources/*/*")) == ["0"]


def test_what_distinguishes_topics_is_kept(tmp_path):
    """Where the input begins; a beginning without it has the form that it always had."""
    planned, places = checkpoint_of(tmp_path, '{"n":5}'), places_of("a", [False])
    log = with_starts(read_offsets(planned, 0), None, {"0": '{"n":2}'}, places)
    for identities in ({"orders": "an id"}, {}):
        text = take_beginning(planned, log, places, identities).to_text()
        assert recorded_beginning(text).identities == identities
        assert ("identities" in text) is bool(identities)


def test_settings_are_those_of_the_run_that_begins(tmp_path):
    """No state depends on them yet. What is not known now stays what it was."""
    planned = checkpoint_of(tmp_path, '{"n":5}', header='v1\n{"batchWatermarkMs":0,"conf":{"a":"1","b":"2"}}')
    places = places_of("a", [False])
    log = with_starts(read_offsets(planned, 0), None, {"0": '{"n":2}'}, places)
    found = take_beginning(planned, log, places).with_settings({"a": "3", "c": "4"}.get)
    [version, settings, line] = found.files["offsets/-1"].split("\n")
    assert (version, line) == ("v1", '{"n":2}')
    assert json.loads(settings) == {"batchWatermarkMs": 0, "conf": {"a": "3", "b": "2"}}
    with pytest.raises(CorruptPartitionError, match="table beginning"):
        recorded_beginning('{"files":{"offsets/-1":"v1"},"places":"[]"}').with_settings({}.get)


def test_nothing_to_keep(tmp_path):
    """Files and ticks start where they always do."""
    places = places_of("at", [False, True])
    planned = checkpoint_of(tmp_path, '{"logOffset":0}', '{"tick_ms":9}', logs=[("0", "0")])
    log = with_starts(read_offsets(planned, 0), None, {"1": '{"tick_ms":0}'}, places)
    assert take_beginning(planned, log, places) is None


def test_a_source_that_begins_later(tmp_path):
    """The position after the micro-batch before, but for the line of the new source, in both forms of the log."""
    places = places_of("ab", [False, False])
    for form, before, planned, expected in (
        ("v1", ["{}", "-"], ['{"n":9}', '{"n":8}'], ["{}", '{"n":4}']),
        ("v2", ["0:{}", "1:-"], ['1:{"n":8}', '0:{"n":9}'], ['1:{"n":4}', "0:{}"]),
        ("v2", ["0:{}"], ['1:{"n":8}', '0:{"n":9}'], ['1:{"n":4}', "0:{}"]),
    ):
        checkpoint_of(tmp_path, *before, header=f'{form}\n{{"w":1}}', batch=6)
        checkpoint_of(tmp_path, *planned, header=f'{form}\n{{"w":2}}', batch=7)
        log = with_starts(read_offsets(tmp_path, 7), read_offsets(tmp_path, 6), {"0": "[]", "1": '{"n":4}'}, places)
        assert log.to_bytes().decode().split("\n") == [form, '{"w":1}', *expected]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["x", "y"], ["y", "x"], ['{"of":"y"}', '{"of":"x"}']),
        (["x", "y"], ["y"], ['{"of":"y"}']),
        (["x"], ["x:o"], ['{"of":"x"}']),
        (["x"], ["y"], ["-"]),
        (["x one"], ["x two", "y"], ['{"of":"x"}', "-"]),
        (["x!"], ["x"], ["-"]),
        (["x"], ["y", "x one", "x two"], ["-", '{"of":"x"}', '{"of":"x"}']),
    ],
)
def test_other_sources_before_anything_counts(tmp_path, before, after, expected):
    """A source goes on with its start; one of another path or format starts by itself; one that is gone is given up."""
    lines = [json.dumps({"of": each.rstrip("!").partition(" ")[0]}, separators=(",", ":")) for each in before]
    planned = checkpoint_of(tmp_path / "run", *lines)
    places = with_steps(before)
    log = with_starts(read_offsets(planned, 0), None, {str(n): line for n, line in enumerate(lines)}, places)
    found = take_beginning(planned, log, places)
    restored = restore(found.files.items(), tmp_path / "next")
    fit_sources(restored, tmp_path / "next", with_steps(after), recorded_places(found.places))
    assert (tmp_path / "next/offsets/-1").read_text().split("\n")[2:] == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files":{},"places":"[]"}', '{"files":{"offsets/-1":{"hex":"x"}},"places":""}']
)
def test_what_is_no_beginning(text):
    with pytest.raises(CorruptPartitionError, match="table beginning"):
        recorded_beginning(text)
