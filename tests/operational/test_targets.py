"""Scoped state on the command line: its value, never what is stored around it."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.cli import main
from recovery.errors import ConfigurationError
from recovery.operational.values import dumps
from recovery.storage.origin import Origin, add_origin, read_origins
from tests.operational.support import HOUR_MS, SetClock
from tests.shares import first

VALUES = [
    None, True, 0, -1.5, "", "text", [], [1, [2]], {}, {"a": 1, "b": {"c": 2}}, {"": 1}, {"$date": "no date"},
    {"$dict": {}},
    # What looks like the stored form is a value like any other.
    {"value": 5}, {"value": 5, "set_ms": 1}, {"value": 5, "expires_ms": 1}, {"previous": 1, "value": None},
    {"value": 5, "expires_ms": "soon"}, {"content": 5, "id": "process/n/x"}, {"marks": {}},
    date(2026, 1, 31), datetime(2026, 11, 1, 1, 50, fold=1, tzinfo=ZoneInfo("America/New_York")),
    {"since": datetime(2026, 7, 1, tzinfo=UTC), "sum": Decimal("1.10"), "raw": b"\xff", "worst": float("inf")},
]  # fmt: skip
SCOPES = {
    "process/n/x": lambda state: state.process_state("n", "x"),
    "task/d/t": lambda state: state.task_state("d", "t"),
    "task/d/t/k": lambda state: state.task_state_store("d", "t").key("k"),
    "task-instance/d/t/r/-1": lambda state: state.task_instance_state("d", "t", "r"),
    "task-instance/d/t/r/3/k": lambda state: state.task_state_store("d", "t", "r", 3).key("k"),
    "asset/name/a/k": lambda state: state.asset_state_store("a").key("k"),
}


def recovery(*words: object, code: int = 0, answer: str | None = None) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], input=answer)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@first("state_id", SCOPES)
def test_every_value_in_every_kind_of_scoped_state(store_dir, tmp_path, state_id):
    """What Python sets, `get` prints; what `get` prints, `set` takes back unchanged; lists, exports, imports, copies
    and moves hold the same value. A value by key is never null, in Python as here."""
    state = StateManager(store_dir)
    scoped = SCOPES[state_id](state)
    keyed = state_id.endswith("/k")
    for value in VALUES[keyed:]:
        scoped.set(value)
        printed = recovery("state", "get", store_dir, state_id)
        assert printed == dumps(value) + "\n"
        [listed] = json.loads(recovery("state", "list", store_dir, "--json"))["states"]
        assert (listed["id"], json.dumps(listed["content"])) == (state_id, json.dumps(json.loads(printed)))
        scoped.set("another")
        recovery("state", "set", store_dir, state_id, "--input-file", "-", "--force", answer=printed)
        assert (scoped.get(), type(scoped.get()), scoped.previous) == (value, type(value), "another")
        export = tmp_path / "export"
        recovery("state", "export", store_dir, "--output-file", export)
        scoped.set("another")
        recovery("state", "import", store_dir, export, "--force")
        assert (scoped.get(), scoped.previous) == (value, "another")
        assert recovery("state", "import", store_dir, export) == "0 states written\n"
        recovery("state", "copy", store_dir, state_id, "process/copy/1")
        recovery("state", "move", store_dir, "process/copy/1", "process/copy/2")
        assert state.process_states("copy") == {"2": value}
        state.process_state("copy", "2").delete()
    if keyed:
        recovery("state", "set", store_dir, state_id, "null", "--force", code=33)
        assert scoped.get() == VALUES[-1]


@pytest.mark.parametrize("state_id", SCOPES)
@pytest.mark.parametrize(
    ("before", "change", "after"),
    [({"a": 1, "b": 2}, '{"a":9}', {"a": 9, "b": 2}),
     ({"value": {"a": 1}}, '{"value":{"b":2}}', {"value": {"b": 2, "a": 1}}),
     ({"a": {"b": 1}}, '{"a":{"c":[]}}', {"a": {"b": 1, "c": []}}), (5, '{"a":1}', {"a": 1}), ({"a": 1}, "5", 5),
     ({"at": date(2026, 1, 1)}, '{"at":{"$date":"2026-01-02"}}', {"at": date(2026, 1, 2)}),
     ({"$x": 1, "a": 1}, '{"$dict":{"$x":2}}', {"$x": 2, "a": 1}), ({"$x": 1}, '{"a":2}', {"$x": 1, "a": 2}),
     ({"at": date(2026, 1, 1)}, '{"at":{"x":1}}', {"at": {"x": 1}}),
     # A zone belongs to the moment that it was given with.
     (datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")), '{"$datetime":"2026-07-01T12:00:00+00:00"}',
      datetime(2026, 7, 1, 12, tzinfo=UTC))],
)  # fmt: skip
def test_merging_into_a_value(store_dir, state_id, before, change, after):
    """Objects member by member; a date and the like is a value, although it is written as an object."""
    scoped = SCOPES[state_id](StateManager(store_dir))
    scoped.set(before)
    recovery("state", "merge", store_dir, state_id, change, "--force")
    assert (scoped.get(), scoped.previous) == (after, before)


def test_a_hand_edit_keeps_what_is_beside_the_value(store_dir):
    """An interval begins again, a fixed end stays; `--retention` gives another one, also for ever."""
    clock = SetClock()
    clock.now_ms = StateManager(store_dir)._clock.wall_ms() - HOUR_MS
    state = StateManager(store_dir, clock=clock)
    end = datetime(2099, 1, 1, tzinfo=UTC)
    state.process_state("n", "interval").set(1, retention="2h")
    state.process_state("n", "end").set(1, retention=end)

    def expiries() -> dict[str, int | None]:
        found = json.loads(recovery("state", "list", store_dir, "--json"))["states"]
        return {each["id"]: each["expires_ms"] for each in found}

    before = expiries()
    for verb in ("set", "merge"):
        recovery("state", verb, store_dir, "process/n/interval", "2", "--force")
        recovery("state", verb, store_dir, "process/n/end", "2", "--force")
    assert expiries()["process/n/end"] == before["process/n/end"] == end.timestamp() * 1000
    assert expiries()["process/n/interval"] >= before["process/n/interval"] + HOUR_MS
    recovery("state", "set", store_dir, "process/n/end", "3", "--retention", "1 hour", "--force")
    assert expiries()["process/n/end"] < before["process/n/interval"] + HOUR_MS
    for word in ("never", "0"):
        recovery("state", "set", store_dir, "process/n/interval", "3", "--retention", word, "--force")
        assert expiries()["process/n/interval"] is None
    recovery("state", "set", store_dir, "notes/x", "3", "--retention", "1h", code=2)
    recovery("state", "set", store_dir, "process/n/x", "3", "--retention", "soon", code=2)
    assert state.process_state("n", "x").exists is False


def test_what_has_expired_is_not_there(store_dir):
    """Not listed, got, exported or imported; set again, it begins again."""
    clock = SetClock()
    state = StateManager(store_dir)
    gone = state.process_state("n", "gone")
    gone.set(1, retention="1d")
    # Its end has passed.
    export = re.sub('"expires_ms":[0-9]+', '"expires_ms":1', recovery("state", "export", store_dir))
    clock.now_ms = 1
    StateManager(store_dir, clock=clock).process_state("n", "gone").set(1, retention="1s")
    assert json.loads(recovery("state", "list", store_dir, "--json"))["states"] == []
    recovery("state", "get", store_dir, "process/n/gone", code=44)
    recovery("state", "clear", store_dir, "process/n/gone", "-y", code=44)
    assert recovery("state", "export", store_dir).count("\n") == 2
    assert recovery("state", "import", store_dir, "-", answer=export) == "0 states written, 1 left out: expired\n"
    recovery("state", "set", store_dir, "process/n/gone", "2")
    assert (gone.get(), gone.previous) == (2, None)


def test_an_export_of_the_version_before(store_dir):
    """In it, the value of scoped state was inside its stored form."""
    stored = {"value": {"value": 5}, "set_ms": 7, "first_ms": 6, "expires_ms": None, "previous": 4}
    lines: list[dict] = [
        {"format": "recovery-state", "version": 1},
        {"id": "process/n/x", "content": stored, "generation": 3, "changed_ms": 7},
        {"id": "notes/x", "content": {"value": 1}, "generation": 1, "changed_ms": 7},
        {"end": 2},
    ]
    recovery("state", "import", store_dir, "-", answer="\n".join(map(json.dumps, lines)))
    x = StateManager(store_dir).process_state("n", "x")
    assert (x.get(), x.previous) == ({"value": 5}, 4)
    assert recovery("state", "get", store_dir, "notes/x") == '{"value":1}\n'
    for change in ({"expires_ms": "soon"}, {"first_ms": 1.5}, {"previous": {"$date": "no date"}}):
        lines[1]["content"] = stored | change
        recovery("state", "import", store_dir, "-", "--force", answer="\n".join(map(json.dumps, lines)), code=45)


def test_another_program_s_document_can_be_seen_and_replaced(store_dir):
    """Under an id of scoped state: it is printed as it is, and set to a value or removed."""
    state = StateManager(store_dir)
    for way in (("set", "--force", "5"), ("clear", "-y")):
        state.backend.update({"process/n/x": lambda _: ["odd"]})
        assert recovery("state", "get", store_dir, "process/n/x") == '["odd"]\n'
        recovery("state", way[0], way[1], store_dir, "process/n/x", *way[2:])
        assert state.process_state("n", "x").get() == (5 if way[0] == "set" else None)


def test_what_a_store_is_stays_with_it(store_dir, tmp_path):
    """No verb that lists, removes, exports, imports or copies states touches where the store comes from: by that, sinks
    know their own output."""
    add_origin(store_dir, Origin("fork", "abc", 3, 1, 2, "/db"))
    state = StateManager(store_dir)
    state.process_state("n", "x").set(1)
    assert [each["id"] for each in json.loads(recovery("state", "list", store_dir, "--json"))["states"]] == [
        "process/n/x"
    ]
    assert "origin" not in recovery("state", "export", store_dir)
    recovery("state", "migrate", store_dir, f"file://{tmp_path}/state?create=1")
    assert not (tmp_path / "state" / "origin").exists()
    line = {"id": "origin", "content": {"origins": []}, "generation": 9, "changed_ms": 1}
    lines = [{"format": "recovery-state", "version": 2}, line, {"end": 1}]
    (tmp_path / "export").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    recovery("state", "import", store_dir, tmp_path / "export", "--yes")
    recovery("state", "clear", store_dir, "--all", "--yes")
    for words in (["get"], ["clear", "--yes"], ["set", "--yes", '{"origins": []}']):
        recovery("state", words[0], store_dir, "origin", *words[1:], code=ConfigurationError.exit_code)
    assert not state.process_state("n", "x").exists
    assert [each.store_id for each in read_origins(store_dir)] == ["abc"]
