"""`recovery hwm`, `recovery runs` and `recovery state`."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.cli import main
from recovery.storage.store import Store
from tests.shares import first
from tests.stores import Driver, alter, paths_of, problems, query


@pytest.fixture
def recovery(monkeypatch):
    """Runs a command; its output, and its exit code when that is not the one expected."""
    for name in ("RECOVERY_DIRECTORY", "RECOVERY_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object, code: int = 0, answer: str | None = None) -> str:
        result = CliRunner().invoke(main, [str(word) for word in words], input=answer)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.output

    return run


def test_a_merge_goes_into_what_another_command_has_written_meanwhile(recovery, store_dir, monkeypatch):
    """Merges at the same time lose nothing, and none fails."""
    recovery("state", "set", store_dir, "doc", '{"a": 1}')
    module = importlib.import_module("recovery.cli.state")
    others, ask = ['{"b": 2}', '{"c": 3}'], module.ask_of_new_steps

    def meanwhile(*given: object) -> None:
        if others:
            recovery("state", "merge", store_dir, "doc", others.pop(0), "--yes")
        ask(*given)

    monkeypatch.setattr(module, "ask_of_new_steps", meanwhile)
    recovery("state", "merge", store_dir, "doc", '{"d": 4}', "--yes")
    assert json.loads(recovery("state", "get", store_dir, "doc")) == {"a": 1, "b": 2, "c": 3, "d": 4}


@pytest.mark.parametrize(
    ("text", "printed"),
    [("5", "5"), ("-5", "-5"), ("2.50", "2.5"), ("true", "true"), ("abc", '"abc"'), ("2024-05-01", '"2024-05-01"'),
     ('"5"', '"5"'), ('{"$date": "2024-05-01"}', '{"$date":"2024-05-01"}'), ('{"$decimal":"1"}', '{"$decimal":"1"}')],
)  # fmt: skip
def test_get_prints_what_set_accepts(recovery, store_dir, text, printed):
    """A bare text, a number, and a type that JSON lacks; a value may begin with a minus."""
    recovery("hwm", "set", store_dir, "k", text)
    assert recovery("hwm", "get", store_dir, "k") == printed + "\n"
    recovery("hwm", "set", store_dir, "k", printed)
    assert recovery("hwm", "get", store_dir, "k") == printed + "\n"


def test_marks_on_the_command_line(recovery, store_dir):
    """Listing, globs, JSON, moving back, removing."""
    for key in ("a/1", "a/2", "b"):
        recovery("hwm", "set", store_dir, key, 5)
    assert [mark["key"] for mark in json.loads(recovery("hwm", "list", store_dir, "--pattern", "a/*", "--json"))] == [
        "a/1", "a/2",
    ]  # fmt: skip
    assert "would move back from 5 to 4" in recovery("hwm", "set", store_dir, "b", 4, code=42)
    recovery("hwm", "set", store_dir, "b", 4, "--force")
    assert json.loads(recovery("hwm", "get", store_dir, "b", "--json"))["value"] == 4
    assert recovery("hwm", "rm", store_dir, "a/1", "b", "zzz") == "removed 2 marks\n"
    assert json.loads(recovery("hwm", "get", store_dir, "b", "--json", code=44))["error"] == "StateNotFoundError"
    assert "a/2" in recovery("hwm", "list", store_dir)


def test_the_directory_may_be_a_variable(recovery, store_dir, monkeypatch):
    """RECOVERY_DIRECTORY replaces DIR, RECOVERY_ENVIRONMENT --environment."""
    monkeypatch.setenv("RECOVERY_DIRECTORY", str(store_dir))
    recovery("hwm", "set", "k", "5")
    recovery("hwm", "set", "k", "6", "--environment", "prod")
    assert recovery("hwm", "get", "k") == "5\n"
    monkeypatch.setenv("RECOVERY_ENVIRONMENT", "prod")
    assert recovery("hwm", "get", store_dir, "k") == "6\n"
    assert recovery("hwm", "rm", "k", "other") == "removed 1 mark\n"
    assert json.loads(recovery("runs", "--json")) == []


@pytest.mark.parametrize(
    "words", [("hwm", "set", "DIR"), ("hwm", "get"), ("hwm", "get", "DIR", "a", "b"), ("hwm", "list"), ("runs",),
              ("runs", "clean", "DIR"), ("runs", "DIR", "--status", "odd")],
    ids=" ".join,
)  # fmt: skip
def test_mistakes_on_the_command_line(recovery, store_dir, words):
    """Exit code 2, and what is missing."""
    recovery(*(store_dir if word == "DIR" else word for word in words), code=2)


def test_no_directory(recovery, tmp_path):
    """The same error and exit code as everywhere."""
    assert "no such directory" in recovery("hwm", "list", tmp_path / "none", code=20)
    assert json.loads(recovery("runs", tmp_path, "--json", code=20))["error"] == "NoPartitionsError"


def test_runs_on_the_command_line(recovery, store_dir):
    """Listing by default, selecting, and cleaning up with a look before."""
    state = StateManager(store_dir)
    state.save_pipeline_run("orders", {"load": True})
    state.save_pipeline_run("orders", {"load": {"success": False, "error": "no"}})
    assert [run["status"] for run in json.loads(recovery("runs", store_dir, "--json"))] == ["failed", "succeeded"]
    found = json.loads(recovery("runs", "list", store_dir, "--node", "load", "--status", "succeeded", "--json"))
    assert [run["nodes"]["load"]["status"] for run in found] == ["succeeded"]
    assert "load: failed" in recovery("runs", store_dir, "--pipeline", "orders", "--days", 7, "--limit", 1)
    assert recovery("runs", "clean", store_dir, "--older-than", "30d") == "forgot 0 runs\n"
    assert recovery("runs", "clean", store_dir, "--older-than", "0", "--dry-run") == "would forget 1 run\n"
    assert len(json.loads(recovery("runs", "clean", store_dir, "--older-than", "0", "--json"))["runs"]) == 1
    assert len(state.list_runs()) == 1


@pytest.fixture
def ran(store_dir):
    """A directory on which a flow closed an epoch."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": ('{"n":2}', 5000), "c": "[3]"})
        run.close(0)
    return store_dir


ODD = ["a/b", "*", "..", "a/../b", "'\"", "🙂", "-x", "x" * 10_000, "state.json", " "]


@first("name", ODD, count=3, ids=lambda name: name[:8])
def test_ids_and_keys_of_any_kind_round_trip(recovery, ran, name):
    """Of operational state and of steps: set, got, listed, moved, exported, cleared and imported."""
    for where in ([], ["--step", "count"]):
        at = lambda key, where=where: [*where, "--key", key] if where else ["--", key]  # noqa: E731
        set_ = [*where, "--key", name, '{"v": 1}'] if where else ["--", name, '{"v": 1}']
        recovery("state", "set", "-y", ran, *set_)
        assert recovery("state", "get", ran, *at(name)) == '{"v":1}\n'
        listed = json.loads(recovery("state", "list", ran, *where, "--json"))
        names = [each["key"] for each in listed] if where else [each["id"] for each in listed["states"]]
        assert name in names
        recovery("state", "move", "-y", ran, *where, "--", name, "other")
        recovery("state", "move", "-y", ran, *where, "--", "other", name)
        file = ran / "states.jsonl"
        recovery("state", "export", ran, *where, "--output-file", file)
        recovery("state", "clear", "-y", ran, *at(name))
        recovery("state", "get", ran, *at(name), code=44)
        recovery("state", "import", ran, file, "--force")
        assert recovery("state", "get", ran, *at(name)) == '{"v":1}\n'
    assert problems(ran) == []


def test_get_prints_what_set_takes(recovery, ran):
    """From the command line, from standard input and from a file."""
    printed = recovery("state", "get", ran, "--step", "count", "--key", "b")
    recovery("state", "set", ran, "--step", "count", "--key", "new", "--input-file", "-", answer=printed)
    assert recovery("state", "get", ran, "--step", "count", "--key", "new") == printed
    (ran / "value.json").write_text(printed)
    recovery("state", "set", ran, "doc", "--input-file", ran / "value.json")
    assert recovery("state", "get", ran, "doc") == printed


def test_overwriting_asks(recovery, ran):
    """No means nothing was done, and exit code 1; --yes and --force ask nothing; what is new is not asked about."""
    for where in (["doc"], ["--step", "count", "--key", "a"]):
        recovery("state", "set", ran, *where, "1", "-y")
        assert "Overwrite it?" in recovery("state", "set", ran, *where, "5", answer="n\n", code=1)
        for verb, question in (("set", "Overwrite it?"), ("merge", "Go on?")):
            assert question in recovery("state", verb, ran, *where, "true", answer="n\n", code=1)
        assert recovery("state", "get", ran, *where) == "1\n"
        recovery("state", "set", ran, *where, "5", answer="y\n")
        recovery("state", "set", ran, *where, "6", "--force")
        assert recovery("state", "get", ran, *where) == "6\n"
        recovery("state", "clear", ran, *where, answer="n\n", code=1)
        assert recovery("state", "get", ran, *where) == "6\n"


def test_a_timeout_stays_with_its_state(recovery, ran):
    """When the state is set, merged, copied, or exported and imported."""

    def timeout(key):
        printed = recovery("state", "get", ran, "--step", "count", "--key", key, "--json")
        return json.loads(printed)["timeout_ms"]

    recovery("state", "merge", ran, "--step", "count", "--key", "b", '{"m": 1}', "-y")
    assert recovery("state", "get", ran, "--step", "count", "--key", "b") == '{"n":2,"m":1}\n'
    recovery("state", "copy", ran, "--step", "count", "b", "copied")
    assert (timeout("b"), timeout("copied"), timeout("a")) == (5000, 5000, None)
    exported = recovery("state", "export", ran, "--step", "count")
    recovery("state", "clear", ran, "--step", "count", "--pattern", "[bc]*", "-y")
    assert [each["key"] for each in json.loads(recovery("state", "list", ran, "--step", "count", "--json"))] == ["a"]
    recovery("state", "import", ran, "-", "-y", answer=exported)
    assert (timeout("b"), timeout("copied")) == (5000, 5000)


def test_older_epochs(recovery, ran):
    """Any that is held; not of operational state, which belongs to none."""
    recovery("state", "set", ran, "--step", "count", "--key", "a", "9", "-y")
    assert recovery("state", "get", ran, "--step", "count", "--key", "a", "--epoch", 1) == "1\n"
    assert recovery("state", "get", ran, "--step", "count", "--key", "a") == "9\n"
    recovery("state", "get", ran, "--step", "count", "--key", "a", "--epoch", 7, code=28)
    recovery("state", "get", ran, "doc", "--epoch", 1, code=2)


def test_whole_steps(recovery, ran):
    """Copied and moved under another id; onto itself is a mistake."""
    recovery("state", "copy", ran, "--step", "count", "--to-step", "other", "-y")
    recovery("state", "move", ran, "--step", "count", "--to-step", "third", "-y")
    keys = lambda step: [e["key"] for e in json.loads(recovery("state", "list", ran, "--step", step, "--json"))]  # noqa: E731
    assert (keys("count"), keys("other"), keys("third")) == ([], ["a", "b", "c"], ["a", "b", "c"])
    recovery("state", "move", ran, "--step", "third", "--to-step", "third", code=11)
    recovery("state", "move", ran, "--step", "count", "--to-step", "fourth", code=44)
    assert json.loads(recovery("state", "list", ran, "--json"))["steps"] == ["count", "other", "third"]


def test_steps_are_exported_as_of_one_epoch(recovery, store_dir, monkeypatch):
    """While a run goes on: what it closes meanwhile is in none of them."""
    with Driver(store_dir, ["one", "two"]) as run:

        def close(batch):
            for step in ("one", "two"):
                run.apply(batch, {"k": str(batch)}, step)
            run.close(batch)

        close(1)
        close(2)
        original = Store.at

        def at(*arguments):
            found = original(*arguments)
            close(run.epoch)
            return found

        monkeypatch.setattr(Store, "at", at)
        lines = recovery("state", "export", store_dir, "--step", "one", "--step", "two").splitlines()
    assert [json.loads(line)["content"] for line in lines[1:-1]] == [2, 2]


@pytest.mark.parametrize("words", [("nosuch",), ("--step", "count", "--key", "z"), ("--step", "nope", "--key", "z")])
def test_a_missing_state_is_reported_with_the_directory(recovery, ran, words):
    """There may be one in another."""
    assert f"Error: {ran}: " in recovery("state", "get", ran, *words, code=44)


def test_exporting_a_missing_step(recovery, ran, tmp_path):
    """It is misspelt: no export, which would look as if the step had no states."""
    file = tmp_path / "export"
    for steps in (["nope"], ["count", "nope"]):
        options = [word for step in steps for word in ("--step", step)]
        assert "there is no step 'nope'" in recovery("state", "export", ran, *options, "--output-file", file, code=44)
    assert not file.exists()


def test_moving_to_itself_is_a_mistake(recovery, ran):
    """Of documents and of keys; nothing is lost."""
    recovery("state", "set", ran, "doc", "1")
    recovery("state", "move", ran, "doc", "doc", code=11)
    recovery("state", "move", ran, "--step", "count", "a", "a", code=11)
    recovery("state", "copy", ran, "nothing", "doc", "-y", code=44)
    assert recovery("state", "get", ran, "doc") == "1\n"


def test_what_was_cleared_stays_cleared(recovery, store_dir):
    """An export that is older than the removal does not bring it back, unless forced."""
    recovery("state", "set", store_dir, "doc", "1")
    exported = recovery("state", "export", store_dir)
    recovery("state", "clear", store_dir, "doc", "-y")
    assert "was removed after" in recovery("state", "import", store_dir, "-", "-y", answer=exported, code=45)
    recovery("state", "get", store_dir, "doc", code=44)
    recovery("state", "import", store_dir, "-", "--force", answer=exported)
    assert recovery("state", "get", store_dir, "doc") == "1\n"


def test_what_is_no_text_and_no_number(recovery, store_dir, tmp_path):
    """Each is an error of its own, and nothing was written."""
    broken = "\udcff"
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
    for words in (
        ("hwm", "set", store_dir, "k", "1e999"),
        ("state", "set", store_dir, "process/p/x", '{"value": 1e999}', "-y"),
    ):
        assert "the number 1e999 is too large" in recovery(*words, code=33)
    half = ("state", "set", store_dir, "--step", "count", "--key", "a", '"\\ud800"', "-y")
    assert "JSON" in recovery(*half, code=33)
    assert "not text" in recovery("state", "get", store_dir, "--step", "count", "--key", broken, code=11)
    assert "not text" in recovery("state", "list", store_dir, "--step", broken, code=11)
    assert "File name too long" in recovery("hwm", "list", tmp_path / ("x" * 300), code=12)
    file = tmp_path / "states.jsonl"
    for wrong in (
        '{"id":"process/p/x","content":{"value":1},"generation":"abc"}',
        '{"step":"count","key":"a","content":2,"timeout_ms":"abc"}',
        '{"step":"count","key":"a","content":2,"timeout_ms":100000000000000000000}',
    ):
        file.write_text(f'{{"format":"recovery-state","version":1}}\n{wrong}\n{{"end":1}}\n')
        assert "is not a state" in recovery("state", "import", store_dir, file, "-y", code=45)
    assert json.loads(recovery("state", "get", store_dir, "--step", "count", "--key", "a")) == 1
    assert recovery("hwm", "list", store_dir, "--json") == "[]\n"


def test_values_that_python_takes_for_equal(recovery, ran, tmp_path, monkeypatch):
    """1, 1.0 and true are three: each is written, in a directory and elsewhere."""
    for place in (ran, f"file://{tmp_path}"):
        recovery("state", "set", place, "doc", '{"on": 1}')
        recovery("state", "set", place, "doc", '{"on": true}', "-y")
        assert recovery("state", "get", place, "doc") == '{"on":true}\n'
        file = tmp_path / "states.jsonl"
        recovery("state", "export", place, "--output-file", file)
        recovery("state", "set", place, "doc", '{"on": 1.0}', "-y")
        recovery("state", "import", place, file, "-y")
        assert recovery("state", "get", place, "doc") == '{"on":true}\n'
        monkeypatch.setenv("EDITOR", "none")
        monkeypatch.setattr("click.edit", lambda *_, **__: '{"on": 1}')
        assert "written" in recovery("state", "edit", place, "doc")
        assert recovery("state", "get", place, "doc") == '{"on":1}\n'


def test_an_import_asks_also_where_python_sees_no_difference(recovery, ran, tmp_path):
    """A key whose state would become true instead of 1 is overwritten only after a yes."""
    recovery("state", "set", ran, "--step", "count", "--key", "a", "true", "-y")
    recovery("state", "export", ran, "--step", "count", "--output-file", tmp_path / "states.jsonl")
    recovery("state", "set", ran, "--step", "count", "--key", "a", "1", "-y")
    assert "Overwrite" in recovery("state", "import", ran, tmp_path / "states.jsonl", answer="n\n", code=1)
    assert recovery("state", "get", ran, "--step", "count", "--key", "a") == "1\n"


def test_an_import_is_all_or_nothing(recovery, ran, tmp_path):
    """Steps and documents: what is asked is asked before anything is written, and steps are one epoch."""
    with Driver(ran, steps=("count", "other")) as run:
        run.apply(100, {"a": "1"}, step="count")
        run.apply(100, {"a": "1"}, step="other")
        run.close(100)
    file = tmp_path / "states.jsonl"
    recovery("state", "export", ran, "--step", "count", "--step", "other", "--output-file", file)
    lines = file.read_text().replace('"key":"a","content":1', '"key":"a","content":2').splitlines()
    lines[-1:] = ['{"id":"doc","content":7,"generation":1}', f'{{"end":{len(lines) - 1}}}']
    file.write_text("\n".join(lines) + "\n")
    before = json.loads(recovery("plan", ran, "--json"))["resume_epoch"]
    assert "1 key of step count" in recovery("state", "import", ran, file, answer="n\n", code=1)
    recovery("state", "get", ran, "doc", code=44)
    assert json.loads(recovery("plan", ran, "--json"))["resume_epoch"] == before
    recovery("state", "import", ran, file, answer="y\n")
    assert json.loads(recovery("plan", ran, "--json"))["resume_epoch"] == before + 1
    for step in ("count", "other"):
        assert recovery("state", "get", ran, "--step", step, "--key", "a") == "2\n"
    assert recovery("state", "get", ran, "doc") == "7\n"


def test_a_torn_export_is_an_error(recovery, store_dir):
    """Cut off anywhere, it is refused whole; so is what is not an export."""
    for name in "ab":
        recovery("state", "set", store_dir, name, f'"{name * 20}"')
    exported = recovery("state", "export", store_dir)
    recovery("state", "clear", store_dir, "--pattern", "*", "-y")
    for length in range(len(exported) - 1):
        code = 33 if length < exported.index("\n") else 45
        recovery("state", "import", store_dir, "-", "--force", answer=exported[:length], code=code)
    assert json.loads(recovery("state", "list", store_dir, "--json"))["states"] == []
    recovery("state", "import", store_dir, store_dir / "missing", code=11)


@pytest.mark.parametrize("words", [("set", "DIR", "notes/x", "--input-file", "FILE"), ("import", "DIR", "FILE")])
@pytest.mark.parametrize(("content", "code"), [(b'{"a": ', 33), (b"", 33), (b"ok \xff", 11)])
def test_a_file_that_cannot_be_taken_is_named(recovery, store_dir, tmp_path, words, content, code):
    """With what is wrong, and a way out that is about the file."""
    file = tmp_path / "cut.json"
    file.write_bytes(content)
    output = recovery("state", *(({"DIR": store_dir, "FILE": file}).get(word, word) for word in words), code=code)
    assert f"Error: {file}: " in output
    assert ("UTF-8" if code == 11 else "state get" if words[0] == "set" else "state export") in output
    assert "Check the path" not in output


@pytest.mark.parametrize("content", ["5", "null", '{"marks": {"k": 5}}', '{"marks": {"k": {"value": [1]}}}'])
def test_what_the_package_reads_keeps_its_form(recovery, store_dir, content):
    """High-water marks and runs cannot be set to what could not be read."""
    StateManager(store_dir).set_hwm("k", 5)
    recovery("state", "set", store_dir, "hwm", content, "--force", code=33)
    recovery("state", "set", store_dir, "runs/p/1", content, "--force", code=33)
    assert StateManager(store_dir).get_hwm("k") == 5
    printed = recovery("state", "get", store_dir, "hwm").replace(":5,", ":7,")
    recovery("state", "set", store_dir, "hwm", printed, "--force")
    assert StateManager(store_dir).get_hwm("k") == 7


def test_a_mark_in_the_document_stays_comparable(recovery, store_dir):
    """A time without a zone never takes the place of one with a zone, unless forced: each later load would fail."""
    state = StateManager(store_dir)
    state.set_hwm("k", datetime(2026, 1, 1, tzinfo=UTC))
    exported = recovery("state", "export", store_dir).replace("+00:00", "")
    naive = recovery("state", "get", store_dir, "hwm").replace("+00:00", "")
    recovery("state", "set", "-y", store_dir, "hwm", naive, code=42)
    recovery("state", "merge", "-y", store_dir, "hwm", naive, code=42)
    recovery("state", "import", "-y", store_dir, "-", answer=exported, code=42)
    assert state.get_hwm("k") == datetime(2026, 1, 1, tzinfo=UTC)
    recovery("state", "import", "--force", store_dir, "-", answer=exported)
    assert state.get_hwm("k").tzinfo is None


@pytest.mark.parametrize(
    "content", ['{"$date": "no date"}', '{"a": {"$datetime": "2026-01-01", "zone": 5}}', '{"$x": 1}']
)
def test_scoped_state_keeps_its_form(recovery, store_dir, content):
    """It takes any value, but nothing that could not be read."""
    StateManager(store_dir).process_state("n", "x").set({"b": 1})
    for verb in ("set", "merge"):
        recovery("state", verb, store_dir, "process/n/x", content, "--force", code=33)
    assert StateManager(store_dir).process_state("n", "x").get() == {"b": 1}


def test_editing_in_an_editor(recovery, ran, monkeypatch, tmp_path):
    """What was saved is set; unchanged, or no JSON, changes nothing."""
    script = tmp_path / "editor"
    script.write_text('#!/bin/sh\nsed -i s/2/8/ "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(script))
    recovery("state", "edit", ran, "--step", "count", "--key", "b")
    assert recovery("state", "get", ran, "--step", "count", "--key", "b") == '{"n":8}\n'
    assert recovery("state", "edit", ran, "--step", "count", "--key", "b") == "nothing to change\n"
    script.write_text("#!/bin/sh\necho '{' > \"$1\"\n")
    recovery("state", "edit", ran, "--step", "count", "--key", "b", code=33)
    assert recovery("state", "get", ran, "--step", "count", "--key", "b") == '{"n":8}\n'


def test_environments_on_the_command_line(recovery, store_dir):
    """Dev and prod of one id never meet, also not by an id that is spelt like another's."""
    for name in ("dev", "prod"):
        recovery("state", "set", store_dir, "doc", f'"{name}"', "--environment", name)
    assert recovery("state", "get", store_dir, "doc", "--environment", "dev") == '"dev"\n'
    assert json.loads(recovery("state", "list", store_dir, "--json"))["states"] == []
    recovery("state", "get", store_dir, "@dev/doc", code=11)


@pytest.mark.parametrize(
    "words", [("set", "DIR", "doc"), ("set", "DIR", "doc", "{"), ("get", "DIR", "--step", "count"),
              ("copy", "DIR", "a"), ("copy", "DIR", "a", "b", "--to-step", "x"), ("get", "DIR", "--key", "a"),
              ("set",)],
    ids=" ".join,
)  # fmt: skip
def test_mistakes_with_states(recovery, ran, words):
    """Exit code 2, or 33 for what is not JSON."""
    code = 33 if "{" in words else 2
    recovery("state", *(ran if word == "DIR" else word for word in words), code=code)


def test_a_step_is_made_only_on_purpose(recovery, ran):
    """With a misspelt one the flow would not start, so every command that writes keys asks first."""
    question = "There is no step 'cuont' yet. Steps with state: count. Make it?"
    exported = recovery("state", "export", ran, "--step", "count").replace('"count"', '"cuont"')
    for words in (
        ["set", ran, "--step", "cuont", "--key", "a", "5"],
        ["merge", ran, "--step", "cuont", "--key", "a", "5"],
        ["copy", ran, "--step", "count", "--to-step", "cuont"],
        ["move", ran, "--step", "count", "--to-step", "cuont", "a", "a"],
    ):
        assert question in recovery("state", *words, code=1, answer="n\n")
    assert question in recovery("state", "import", ran, "-", code=11, answer=exported)
    assert json.loads(recovery("state", "list", ran, "--json"))["steps"] == ["count"]
    assert question in recovery("state", "set", ran, "--step", "cuont", "--key", "a", "5", answer="y\n")
    recovery("state", "set", ran, "--step", "cuont", "--key", "b", "5")
    recovery("state", "merge", ran, "--step", "third", "--key", "a", "5", "-y")
    assert json.loads(recovery("state", "list", ran, "--json"))["steps"] == ["count", "cuont", "third"]


@pytest.mark.parametrize("logged", [False, True])
def test_rows_that_were_lost_are_missed(recovery, ran, logged):
    """One under the name of another step, or none at all: no list, export or answer without it."""
    with Driver(ran) as run:
        for batch in (1, 2):
            run.apply(batch, {"a": str(batch)})
            run.close(batch, logged=logged)
    for options in ([], ["--epoch", "1"], ["--epoch", "2"]):
        assert len(json.loads(recovery("state", "list", ran, "--step", "count", *options, "--json"))) == 3
    [path] = [path for path in paths_of(ran) if query(path, "SELECT 1 FROM snaps WHERE state_key = 'c'")]
    for change in (
        "UPDATE snaps SET step_id = 'couot' WHERE state_key = 'c'",
        "DELETE FROM snaps WHERE step_id = 'couot'",
    ):
        alter(path, change)
        for command, *options in (["list"], ["export"], ["get", "--key", "c"], ["list", "--epoch", "1"]):
            output = recovery("state", command, ran, "--step", "count", *options, code=23)
            assert str(path) in output
            assert "rows of step 'count' where" in output
    assert recovery("state", "get", ran, "--step", "count", "--key", "a") == "2\n"


def test_superseded_rows_that_were_lost_are_missed(recovery, ran):
    """As of an epoch that needs them; a later one does not."""
    with Driver(ran) as run:
        for batch in (1, 2):
            run.apply(batch, {"a": str(batch)})
            run.close(batch)
    [path] = [path for path in paths_of(ran) if query(path, "SELECT 1 FROM superseded WHERE until_epoch = 3")]
    alter(path, "DELETE FROM superseded WHERE until_epoch = 3")
    assert "missing" in recovery("state", "list", ran, "--step", "count", "--epoch", "2", code=23)
    recovery("state", "list", ran, "--step", "count")
