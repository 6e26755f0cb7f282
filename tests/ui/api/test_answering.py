"""The JSON API as a program uses it: what answers say, that they fit the OpenAPI file, and that nothing breaks it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from recovery.base.reserved import quarantine_of
from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from recovery.ui.api.openapi import document
from recovery.ui.api.routes import ROUTES
from recovery.ui.facts import compare, limits
from recovery.ui.facts import flows as flows_module
from recovery.values.keys import partition_of
from recovery.values.quarantine import KeyNote, note_key, to_text
from tests.report.support import STARTED_MS
from tests.stores import STEP, Driver, paths_of
from tests.ui.support import HOSTILE, ask, files_of, filled, printed, quoted, served

LATE = next(key for key in map(str, range(99)) if len({partition_of(each, 3) for each in (key, note_key(key))}) == 1)
"""A key whose note in quarantine `Driver` puts into the partition of the key."""
NAMES = {"{step}": STEP, "{key}": "k1"}


def path_of(route, names=NAMES):
    """A path of a route."""
    return "/".join(names.get(part, part) for part in route.path.split("/"))


def schema(name):
    """The schema of an answer, with what it refers to."""
    return {"$ref": f"#/components/schemas/{name}", "components": document()["components"]}


def check(name, facts):
    """An answer fits its schema."""
    Draft202012Validator(schema(name)).validate(facts)


@pytest.fixture(scope="module")
def made(store_maker):
    return filled(store_maker(3))


@pytest.fixture
def store(made, make_store):
    """A copy of one store for each test."""
    return shutil.copytree(made, make_store(3), dirs_exist_ok=True)


def test_the_openapi_file_is_one():
    """A validator of OpenAPI 3.1 accepts it, and it has each route, with and without the name of a flow."""
    made = document()
    OpenAPIV31SpecValidator(made).validate()
    paths = {f"/api/flows/{{flow}}/{route.path}".removesuffix("/") for route in ROUTES}
    short = {f"/api/{route.path}" for route in ROUTES if route.path}
    assert paths | short | {"/api/flows", "/api/openapi.json"} == set(made["paths"])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path or "flow")
def test_each_answer_fits_its_schema(route, store):
    """Of a directory with a history, and of an empty one; with the name of the flow, and without."""
    flows = served(store)
    names = [f"flows/{store.name}/{path_of(route)}".removesuffix("/")] + ([path_of(route)] if route.path else [])
    for path in names:
        found = ask(flows, path)
        assert found.status == 200, found.facts
        check(route.answer, found.facts)
        assert (found.facts["version"], found.facts["flow"], found.facts["epoch"]) == (1, store.name, 7)
        assert found.facts["age_s"] > 0


def test_a_directory_without_epochs(make_store):
    """Each route answers, or says what is not there."""
    flows = served(make_store(2))
    for route in ROUTES:
        found = ask(flows, path_of(route) or f"flows/{next(iter(flows)).name}")
        assert found.status == 404 if "{" in route.path else 200, found.facts
        check("Refusal" if "{" in route.path else route.answer, found.facts)
    check("FlowsAnswer", ask(flows, "flows").facts)


def test_answers_are_those_of_the_commands(store):
    """One function is behind both, so no page says anything else than a command."""
    flows = served(store)
    status, flow = printed("status", store), ask(flows, f"flows/{store.name}").facts
    moving = {"flow", "partitions", "health"}
    for name in status.keys() - moving:
        assert flow[name] == status[name], name
    assert flow["id"] == status["flow"]
    assert ask(flows, "partitions").facts["partitions"] == status["partitions"]
    plan, planned = printed("plan", store), ask(flows, "plan").facts
    assert sorted(plan.pop("files"), key=str) == sorted(planned["files"], key=str)
    assert planned["planned"] == plan
    assert planned["problem"] is None
    past = printed("history", store, "--step", STEP, "--key", "k1", "--show-input")
    found = ask(flows, f"steps/{STEP}/history/k1").facts
    rows = zip(past["versions"], found["versions"], strict=True)
    assert all(row.items() <= each.items() for row, each in rows)
    diff = printed("diff", store, store, "--epoch-a", 5, "--limit", 1000)
    compared = ask(flows, "compare", "epoch_a=5&limit=1000&step=count&step=sessions").facts
    assert {name: value for name, value in compared.items() if name in diff and name != "differences"} == {
        name: value for name, value in diff.items() if name != "differences"
    }
    assert len(compared["differences"]) == len(diff["differences"]) > 3
    assert ask(flows, "marks").facts["marks"] == printed("hwm", "list", store)
    for key in HOSTILE[:5]:
        got = printed("state", "get", store, "--step", STEP, "--key", key)
        state = ask(flows, f"steps/{STEP}/keys/{quoted(key)}").facts["state"]
        assert state["value"] == got["content"] if "content" in got else got


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
def test_any_key_can_be_asked_for(store, key):
    """Keys with `/`, quotes, controls and nothing at all are answered, too: the state, or that there is none."""
    flows = served(store)
    found = ask(flows, f"flows/{store.name}/steps/{STEP}/keys/{quoted(key)}")
    assert (found.status, found.facts["key"]) == (200, key)
    assert found.facts["state"]["value"] == {"n": HOSTILE.index(key)}
    check("HistoryAnswer", ask(flows, f"steps/{STEP}/history/{quoted(key)}").facts)
    for path in (f"steps/{quoted(key)}/keys/k1", f"flows/{quoted(key)}/steps"):
        missing = ask(flows, path)
        assert missing.status == 404
        check("Refusal", missing.facts)
    for other in (key + "x", key + "\0"):
        none = ask(flows, f"steps/{STEP}/keys/{quoted(other)}")
        assert (none.status, none.facts["found"], none.facts["state"]) == (200, False, None)


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("nothing", "", 404), ("steps/count", "", 404), ("steps//keys/", "", 404), ("/", "", 404),
        ("flows/x/y", "", 404),
        (f"steps/{STEP}/keys/k1", "epoch=1", 404), (f"steps/{STEP}/keys/k1", "epoch=99", 404),
        (f"steps/{STEP}/keys/k1", "epoch=-1", 400), (f"steps/{STEP}/keys/k1", "epoch=1e3", 400),
        (f"steps/{STEP}/keys/k1", f"epoch={'9' * 400}", 400), (f"steps/{STEP}/keys/k1", "epoch=", 400),
        (f"steps/{STEP}/keys/k1", "epoch=7&epoch=6", 400), (f"steps/{STEP}/keys/k1", "x=1", 400),
        (f"steps/{STEP}/keys/%ff", "", 400), ("steps/%ED%A0%80/keys", "", 400), ("steps/$checkpoint/keys", "", 404),
        (f"steps/{STEP}/keys", "limit=0", 400), (f"steps/{STEP}/keys", "limit=1001", 400),
        (f"steps/{STEP}/keys", "after=x", 400), (f"steps/{STEP}/keys", "after=99/k", 400),
        (f"steps/{STEP}/keys", f"after={'9' * 30}", 400), (f"steps/{STEP}/keys", "prefix=%00%ff", 400),
        (f"steps/{STEP}/keys", f"prefix={'p' * 70_000}", 400),
        ("epochs", "before=x.y", 400), ("epochs", "before=1", 400), ("epochs", f"before={'9' * 50}.1", 400),
        ("partitions", "after=-1", 400), ("plan", "lost=x", 400), ("plan", "resume_after=77", 200),
        ("plan", "&".join(["lost=1"] * 1_500), 400), ("compare", "with=other", 404), ("compare", "step=none", 404),
        ("compare", "epoch_b=1", 404), ("compare", "&" * 5_000, 400), ("quarantine", "step=%2e%2e", 200),
        ("x" * 300_000, "", 400),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_as_json(store, path, query, status):
    """Never with a 500: the error's class, what was found, and the way out."""
    found = ask(served(store), path, query)
    assert found.status == status, found.facts
    if status != 200:
        check("Refusal", found.facts)
        assert found.facts["exit_code"] > 9


def test_a_lost_partition_is_the_planners_answer(store):
    """As if the file were gone: what is missing, and which copy would do."""
    flows = served(store)
    found = ask(flows, "plan", "lost=1").facts
    assert (found["planned"], found["problem"]["error"], found["lost"]) == (None, "MissingPartitionsError", [1])
    assert found["files"][0]["file"] == "part-1.sqlite3"
    assert found["files"][0]["fix"]
    back = ask(flows, "plan", "resume_after=5").facts
    assert back["planned"]["resume_epoch"] == 6
    assert back["planned"]["discards"] == printed("plan", store, "--resume-after", 5)["discards"]
    paths_of(store)[1].unlink()
    real = printed("plan", store)
    assert {name: real[name] for name in found["problem"]} == {**found["problem"], "path": real["path"]}


def test_several_flows_are_under_their_names(make_store):
    """A route without a name says which names there are; two directories can be compared."""
    a, b = filled(make_store(2)), filled(make_store(3))
    flows = served(a, b)
    found = ask(flows, "flows").facts
    check("FlowsAnswer", found)
    assert [each["name"] for each in found["flows"]] == [a.name, b.name]
    missing = ask(flows, "steps")
    assert missing.status == 404
    assert b.name in missing.facts["remedy"]
    same = ask(flows, f"flows/{a.name}/compare", f"with={b.name}").facts
    check("CompareAnswer", same)
    assert same["equal"]
    for path in paths_of(b):
        path.unlink()
    later = served(a, b)
    broken = ask(later, "flows").facts["flows"][1]
    assert broken["problem"]["error"] == "NoPartitionsError"
    gone = ask(later, f"flows/{b.name}/steps")
    assert (gone.status, gone.facts["error"]) == (409, "NoPartitionsError")


def test_it_writes_nothing(store):
    """Whatever is asked, idle and beside a run, the directory has the same files with the same bytes."""

    def ask_all(flows):
        for route in ROUTES:
            for names in (NAMES, {**NAMES, "{key}": quoted("🙂"), "{step}": "sessions"}):
                assert ask(flows, path_of(route, names) or f"flows/{store.name}").status in (200, 404)

    before = files_of(store)
    ask_all(served(store))
    assert files_of(store) == before
    with Driver(store, (STEP, "sessions")) as run:
        run.apply(100, {"k1": '"now"'})
        run.close(100, logged=True)
        beside = {name: content for name, content in files_of(store).items() if not name.endswith("-shm")}
        ask_all(served(store))
        after = files_of(store)
        assert {name: content for name, content in after.items() if not name.endswith("-shm")} == beside
    plan_resume(scan(store))


def test_a_key_is_answered_from_the_newest_closed_epoch(store, monkeypatch):
    """What a run has not closed is not shown; what it closes is, also before it is folded, and if it then collects."""
    monkeypatch.setattr(flows_module, "FRESH_S", 0.0)
    monkeypatch.setattr(flows_module, "SHARE", 0)
    flows = served(store)

    def value():
        found = ask(flows, f"steps/{STEP}/keys/k1").facts
        return found["epoch"], found["state"]["value"]

    with Driver(store, (STEP, "sessions")) as run:
        before = value()
        run.apply(100, {"k1": '"now"'})
        assert value() == before
        run.close(100, logged=True)
        assert value() == (8, "now")
        run.apply(101, {"k1": '"later"'})
        run.close(101, logged=True)
        assert value() == (9, "later")
        assert ask(flows, f"steps/{STEP}/keys/k1", "epoch=8").facts["state"]["value"] == "now"
        versions = ask(flows, f"steps/{STEP}/history/k1").facts["versions"]
        assert [each["value"] for each in versions[-2:]] == ["now", "later"]
        monkeypatch.undo()
        flows.named(None).look()
        run.fold()
        assert value() == (9, "later")


@pytest.mark.parametrize(
    ("path", "query"),
    [*((path_of(route), "") for route in ROUTES if route.path), ("compare", "epoch_a={held}"),
     ("compare", "epoch_b={held}"), ("quarantine", f"step={STEP}&key={LATE}")],
)  # fmt: skip
def test_an_answer_beside_a_run_that_collects(store, path, query):
    """A look is shared for a while: meanwhile a run may have collected what was the newest epoch then. The answer is
    of a later one."""
    flows = served(store)
    waiting = {note_key(LATE): to_text(KeyNote(0, 0, 0, STARTED_MS, "E"))}
    with Driver(store, (STEP, "sessions", quarantine_of(STEP))) as run:
        run.apply(30, waiting, step=quarantine_of(STEP))
        run.close(30)
        next(iter(flows)).look()
        for batch in range(31, 35):
            run.apply(batch, {"k1": f'"{batch}"'})
            run.close(batch, floor=run.epoch - 1)
        held, *_ = plan_resume(scan(store)).window
        found = ask(flows, path, query.format(held=held))
    assert found.status == 200, found.facts
    if path == "quarantine":
        assert [each["key"] for each in found.facts["keys"]] == [LATE]


def test_a_held_epoch_is_one_that_all_partitions_hold(make_store):
    """As after a kill between the collections of two partitions: a run cannot resume from the others."""
    directory = make_store(2)
    with Driver(directory) as run:
        for batch in range(6):
            run.apply(batch, {"k1": "1"})
            requests = run.requests(batch)
            run.store.close(run.lease, [replace(requests[0], floor=0), replace(requests[1], floor=max(0, batch - 1))])
            run.epoch += 1
    found = ask(served(directory), "epochs").facts
    assert len(found["epochs"]) == 6
    held = [each["epoch"] for each in reversed(found["epochs"]) if each["is_held"]]
    assert held == [epoch for epoch in found["window"] if epoch]
    assert len(held) < 6


def test_a_request_is_bounded(store, monkeypatch):
    """In time, in rows, and in the bytes of a value; what is beyond is said."""
    flows = served(store)
    cut = ask(flows, "steps/sessions/keys/large").facts["state"]
    assert (cut["is_cut"], cut["value_bytes"], "value" in cut) == (True, 1_000_002, False)
    assert len(json.dumps(ask(flows, "compare", "epoch_a=5").facts)) < 500_000
    for module in (limits, compare):
        monkeypatch.setattr(module, "MOST_PAGE_BYTES", 100)
    some = ask(flows, "compare", "epoch_a=5").facts
    assert (some["equal"], 0 < len(some["differences"]) < 12, some["left_out"] > 0) == (False, True, True)
    past = ask(flows, f"steps/{STEP}/history/k12").facts
    whole = printed("history", store, "--step", STEP, "--key", "k12")["versions"]
    assert past["left_out"] == len(whole) - len(past["versions"]) > 0
    assert past["versions"][-1]["epoch"] == whole[-1]["epoch"]
    monkeypatch.setattr(limits, "REQUEST_S", 0.0)
    found = ask(flows, "compare", "epoch_a=5")
    assert (found.status, found.facts["error"]) == (503, "LookLimitError")
    page = ask(flows, f"steps/{STEP}/keys").facts
    assert page["next"] == "1"
