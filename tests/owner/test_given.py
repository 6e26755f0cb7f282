"""Rows of an epoch that are too many for one call: what is in the partitions is what one call would have put there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from recovery.errors import StorageError
from recovery.owner.given import GivenRows
from recovery.planning.values import StepEdit
from recovery.storage import owned
from recovery.storage.seam import CloseRequest
from recovery.values.keys import home_of
from recovery.wire.calls import DRIVER, EDITED, Closing, RowsAhead
from tests.stores import Driver, SpreadDirectory, problems, state_at

ROWS = {"$files": {f"file{n}": bytes([n]) * 40 for n in range(40)} | {"none": None}, "$small": {"one": "1"}}
EDITS = [StepEdit("old", "new", lambda key, text: None if text == "7" else f"{key}={text}")]
STATES = {"states": {f"key{n}": (f"{n}", n if n % 2 else None) for n in range(30)}}


def story(directory: Path | SpreadDirectory) -> None:
    """An epoch with states, and one that writes the driver's rows, edited states, and converts a step."""
    with Driver(directory, ["old"]) as run:
        run.apply(0, {f"k{n}": f"{n}" for n in range(50)}, step="old")
        run.close(0)

        def divided(request: CloseRequest, index: int) -> CloseRequest:
            mine = {
                step: {key: state for key, state in states.items() if home_of(step, run.count, key) == index}
                for step, states in STATES.items()
            }
            return replace(request, state_rows=mine)

        requests = run.requests(0, driver_rows=ROWS, edits=EDITS)
        run.store.close(run.lease, [divided(each, index) for index, each in enumerate(requests)])


@pytest.mark.parametrize("part_bytes", [1, 300, owned.PART_BYTES])
def test_an_epoch_in_parts(make_store, tmp_path, monkeypatch, part_bytes):
    monkeypatch.setattr(owned, "PART_BYTES", part_bytes)
    made = make_store(4)
    places = SpreadDirectory(Path(shutil.copytree(made, tmp_path / "spread")), ((2,), (0, 3), (1,), ()))
    try:
        story(made)
        story(places)
        together = tmp_path / "together"
        together.mkdir()
        places.close()
        for path in places.paths():
            shutil.copyfile(path, together / path.name)
    finally:
        places.close()
    assert state_at(together, 2) == state_at(made, 2)
    assert problems(together) == []
    held = state_at(made, 2)
    assert held["new", "k3"] == ("k3=3", None)
    assert ("new", "k7") not in held
    assert held["states", "key29"] == ("29", 29)


def closing(epoch: int, parts: int) -> Closing:
    return Closing(epoch, 0, 0, 0, 0, {DRIVER: {"last": "l"}}, [], {}, False, False, parts)


def test_parts_that_are_missing_or_of_another_epoch(tmp_path):
    """Then nothing is closed."""
    given = GivenRows()
    given.add(1, RowsAhead(0, DRIVER, "$files", [("a", "1", None)]), tmp_path)
    with pytest.raises(StorageError, match="1 of 2 parts of epoch 1 came for part-0"):
        given.of(0, closing(1, 2))
    with pytest.raises(StorageError, match="0 of 1 parts"):
        given.of(1, closing(1, 1))
    given.add(2, RowsAhead(0, EDITED, "step", [("a", "1", 7), ("b", None, None)]), tmp_path)
    with pytest.raises(StorageError, match="0 of 1 parts"):
        given.of(0, closing(1, 1))
    found = given.of(0, closing(2, 1))
    assert dict(found.state_rows(closing(2, 1))["step"]) == {"a": ("1", 7), "b": (None, None)}
    assert {step: dict(rows) for step, rows in found.driver_rows(closing(2, 1)).items()} == {DRIVER: {"last": "l"}}
    with pytest.raises(ValueError, match="a value of type int"):
        given.add(2, RowsAhead(0, DRIVER, "$files", [("a", 1, None)]), tmp_path)
    given.clear()
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_a_part(tmp_path):
    """An error that names the directory; a later part of another epoch begins from nothing."""
    given = GivenRows()
    with pytest.raises(StorageError) as error:
        given.add(1, RowsAhead(0, DRIVER, "$files", [("a", "1", None)]), tmp_path / "none")
    assert str(tmp_path) in str(error.value.path)
    given.add(2, RowsAhead(0, DRIVER, "$files", [("a", "1", None)]), tmp_path)
    given.clear()
