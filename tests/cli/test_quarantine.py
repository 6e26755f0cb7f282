"""`recovery quarantine`, on a store in which a step's tasks put rows into quarantine."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from recovery.base.clock import SystemClock
from recovery.base.ids import BatchId
from recovery.cli import main
from recovery.errors import ConfigurationError, CorruptPartitionError, DirectoryLockedError, QuarantineError
from recovery.operational.steps.quarantine import READ_BYTES, READ_ENTRIES
from recovery.storage.history import KeyState
from recovery.storage.initialize import init_partitions
from recovery.storage.lock import DirectoryLock
from recovery.storage.repartition import MOST_COPIES
from recovery.storage.seam import BatchCount
from recovery.storage.snapshot import Snapshot
from recovery.values.keys import partition_of
from recovery.values.quarantine import WAITS_MS, Entry, KeptFailure, KeyNote, entry_key, note_key, to_text
from recovery.values.quarantined_rows import packed
from tests.owner.served import Served, spread, token_file
from tests.stores import STEP, Driver, alter, content, pack, paths_of, problems, state_at

COUNT = 3
QUARANTINE = f"$bad {STEP}"
FAILURE = KeptFailure("ValueError", "bad value 7", ("flow.py, line 3, in update",))
SINCE = {"a": 1_700_000_000_000, "b": 1_700_000_100_000}


def rows(*values: int) -> str:
    return packed(
        pa.RecordBatch.from_pydict({"key": ["a"] * len(values), "v": list(values), "raw": [b"\xff"] * len(values)})
    )


def written(directory: Path, *, lacks: str = "") -> Path:
    """A store in which keys a and b wait: a with two entries, b with a call for a timeout and an overdue timeout.

    lacks: the key of a row that is left out."""
    init_partitions(directory, COUNT)
    at_a, at_b = SINCE["a"], SINCE["b"]
    stored = {
        "a": {
            note_key("a"): (to_text(KeyNote(3, 0, 2, at_a, FAILURE.text)), WAITS_MS),
            entry_key("a", 0): (to_text(Entry(4, at_a, 2, rows(7, 8), 1, FAILURE)), None),
            entry_key("a", 1): (to_text(Entry(5, at_a, 1, rows(9))), None),
        },
        "b": {
            note_key("b"): (to_text(KeyNote(1, 3, 4, at_b, "KeyError: 'b'", 123)), WAITS_MS),
            entry_key("b", 3): (
                to_text(Entry(5, at_b, 0, "", 2, KeptFailure("KeyError", "'b'"), timed_out=True)),
                None,
            ),
        },
    }
    with Driver(directory, (STEP, QUARANTINE)) as driver:
        task = driver.task()
        for key, changes in stored.items():
            changes.pop(lacks, None)
            task.apply(QUARANTINE, BatchId(0), {partition_of(key, COUNT): [pack(changes)]}, BatchCount(0, 0))
        task.release()
        driver.apply(0, {"b": "5", "c": "1"})
        driver.close(0)
    return directory


@pytest.fixture
def store(tmp_path):
    return written(tmp_path / "db")


def command(*words: Any, given: str | None = None) -> Result:
    return CliRunner().invoke(main, ["quarantine", *map(str, words)], input=given)


def said(*words: Any) -> Any:
    """What a command says with --json."""
    found = command(*words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_list_shows_the_keys_that_wait(store):
    """How many rows, since when, and the newest error; by step, key and age."""
    first, second = said("list", store)
    assert first == {
        "step": STEP, "key": "a", "rows": 3, "since_ms": SINCE["a"], "replays": False, "error": FAILURE.text,
        "overdue_ms": None, "finding": None,
    }  # fmt: skip
    assert (second["key"], second["rows"], second["overdue_ms"]) == ("b", 1, 123)
    assert [each["key"] for each in said("list", store, "--key", "b")] == ["b"]
    assert said("list", store, "--step", "other") == []
    assert said("list", store, "--since", "1h") == []
    assert len(said("list", store, "--since", "20000d")) == 2
    text = command("list", store).stdout
    assert "bad value 7 (flow.py, line 3, in update)" in text
    assert command("list", store, "--key", "none").stdout == "nothing is in quarantine\n"


def test_show_has_the_rows_with_their_errors(store):
    """In the order in which they came."""
    first, second, third = said("show", store)
    assert [row["v"] for row in first["rows"] + second["rows"]] == [7, 8, 9]
    assert (first["error"]["message"], first["attempts"], second["error"]) == ("bad value 7", 1, None)
    assert (third["timed_out"], third["rows"]) == (True, [])
    text = command("show", store).stdout
    assert "ValueError: bad value 7 (1 attempt)\n    flow.py, line 3, in update" in text
    assert "waits behind the rows above" in text


def test_export_keeps_the_types(store, tmp_path):
    """As JSON for people, and as an Arrow stream that gives the same rows back."""
    assert command("export", store, "--output-file", tmp_path / "rows.jsonl").exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert lines == [json.loads(line) for line in command("export", store).stdout.splitlines()]
    table = pa.ipc.open_stream(base64.b64decode(lines[0]["arrow"])).read_all()
    assert (table["v"].to_pylist(), table["raw"].to_pylist()) == ([7, 8], [b"\xff", b"\xff"])


def test_replay_marks_keys_in_an_epoch_of_its_own(store):
    """Again, it changes nothing; going back before the epoch undoes it."""
    found = said("replay", store, "--key", "a")
    assert (found["epoch"], [each["key"] for each in found["keys"]]) == (2, ["a"])
    assert [each["replays"] for each in said("list", store)] == [True, False]
    assert said("replay", store, "--key", "a")["epoch"] is None
    assert state_at(store, 2)[QUARANTINE, note_key("a")][1] == 0
    assert state_at(store, 1)[QUARANTINE, note_key("a")][1] == WAITS_MS
    assert problems(store) == []
    assert command("replay", store, "--key", "none").stdout == "nothing of that is in quarantine\n"


def test_drop_saves_the_rows_first(store, tmp_path):
    """And a timeout that passed while the key waited is due again."""
    saved, exported = tmp_path / "saved.jsonl", command("export", store).stdout
    assert said("drop", store, "--save", saved, "--yes")["epoch"] == 2
    assert saved.read_text() == exported
    assert said("list", store) == []
    assert state_at(store, 2) == {k: v for k, v in state_at(store, 2).items() if k[0] != QUARANTINE}
    assert (state_at(store, 2)[STEP, "b"], state_at(store, 1)[STEP, "b"]) == (("5", 123), ("5", None))
    assert problems(store) == []
    assert said("drop", store, "--no-save", "--yes") == {"epoch": None, "keys": []}


def test_drop_asks(store):
    """And without an answer nothing is dropped."""
    before = content(store)
    assert "Drop 4 rows of 2 keys?" in command("drop", store, "--no-save", given="n\n").stderr
    assert "bad value 7" in command("drop", store, "--no-save", given="n\n").stderr, "the keys are shown"
    refused = command("drop", store, "--no-save")
    assert isinstance(refused.exception, ConfigurationError) or refused.exit_code == 11
    assert command("drop", store, "--yes").exit_code == 2
    assert content(store) == before


@pytest.mark.parametrize("closes", [False, True])
def test_drop_discards_what_was_shown(store, tmp_path, monkeypatch, closes):
    """If other rows came while it asked, nothing is dropped or saved: the answer was about the rows that were shown."""

    def answered(question: str, sure: bool) -> None:
        """Another process uses the store before the answer comes."""
        with Driver(store, (STEP, QUARANTINE)) as driver:
            if closes:
                task = driver.task()
                text = to_text(KeyNote(1, 0, 1, SINCE["b"], FAILURE.text)), WAITS_MS
                changes = {note_key("d"): text, entry_key("d", 0): (to_text(Entry(9, SINCE["b"], 1, rows(10))), None)}
                driver.apply(1, {"c": "2"})
                task.apply(QUARANTINE, BatchId(1), {partition_of("d", COUNT): [pack(changes)]}, BatchCount(0, 0))
                task.release()
                driver.close(1)
        nonlocal before
        before = content(store)

    before: Any = None
    monkeypatch.setattr("recovery.cli.quarantine.ask", answered)
    saved = tmp_path / "saved.jsonl"
    found = command("drop", store, "--save", saved)
    if not closes:
        assert found.exit_code == 0, found.output
        assert said("list", store) == []
        return
    assert found.exit_code == QuarantineError.exit_code
    assert not saved.exists()
    assert content(store) == before
    assert len(said("list", store)) == 3


def many(directory: Path, keys: int, entries: int, size: int) -> Path:
    """A store in which many keys wait, each with entries of one row of so many bytes."""
    init_partitions(directory, COUNT)
    data = packed(pa.RecordBatch.from_pydict({"key": ["k"], "raw": [bytes(size)]}))
    entry = to_text(Entry(1, SINCE["a"], 1, data, 1, FAILURE)), None
    with Driver(directory, (STEP, QUARANTINE)) as driver:
        task, homes = driver.task(), {partition_of(f"k{n}", COUNT) for n in range(keys)}
        for home in homes:
            of_home = [f"k{n}" for n in range(keys) if partition_of(f"k{n}", COUNT) == home]
            note = to_text(KeyNote(entries, 0, entries, SINCE["a"], FAILURE.text)), WAITS_MS
            changes = {note_key(key): note for key in of_home}
            changes |= {entry_key(key, number): entry for key in of_home for number in range(entries)}
            task.apply(QUARANTINE, BatchId(0), {home: [pack(changes)]}, BatchCount(0, 0))
        task.release()
        driver.apply(0, {"c": "1"})
        driver.close(0)
    return directory


@pytest.mark.parametrize(
    ("keys", "entries", "size"),
    [(1500, 1, 1), (1, 1500, 1), (2, 2, 3 << 20), pytest.param(100_000, 1, 1, marks=pytest.mark.long)],
)
def test_many_rows_and_large_ones(tmp_path, monkeypatch, keys, entries, size):
    """Are read some at a time, by calls for many; `drop` reads none."""
    store, some, reads = many(tmp_path / "db", keys, entries, size), Snapshot.some, list[int]()

    def counted(at: Snapshot, step: str, names: Any) -> dict[str, KeyState]:
        found = some(at, step, names)
        if step == QUARANTINE:
            reads.append(sum(len(str(each.value)) for each in found.values()))
        return found

    monkeypatch.setattr(Snapshot, "some", counted)
    saved = tmp_path / "rows.jsonl"
    assert command("export", store, "--output-file", saved).exit_code == 0
    with saved.open() as lines:
        assert sum(1 for _ in lines) == keys * entries
    chunks = list(reads)
    assert len(chunks) <= keys * entries // READ_ENTRIES + 1 + keys * entries * size // (1 << 20)
    assert all(chunk <= READ_BYTES for chunk in chunks)
    reads.clear()
    assert len(said("drop", store, "--no-save", "--yes")["keys"]) == keys
    assert reads == []
    assert (said("list", store), problems(store)) == ([], [])


@pytest.mark.parametrize("words", [("replay",), ("drop", "--no-save", "--yes")])
def test_during_a_run_nothing_is_changed(store, words):
    """A run has the rows in memory; the error says who has the directory."""
    before = content(store)
    lock = DirectoryLock(store, SystemClock(), "flow x")
    lock.acquire()
    try:
        refused = command(words[0], store, *words[1:])
    finally:
        lock.release()
    assert refused.exit_code == DirectoryLockedError.exit_code
    assert content(store) == before


def test_rows_that_somebody_has_changed(store):
    """A row whose JSON is no entry names step and key, and gives no traceback."""
    [path] = [path for path in paths_of(store) if f"part-{partition_of('a', COUNT)}." in path.name]
    alter(
        path, "UPDATE snaps SET ser_change = '{}' WHERE step_id = ? AND state_key = ?", (QUARANTINE, entry_key("a", 0))
    )
    found = command("show", store)
    assert found.exit_code == CorruptPartitionError.exit_code
    assert command("list", store).exit_code == 0


@pytest.mark.parametrize("words", [("replay",), ("drop", "--no-save", "--yes")], ids=lambda words: words[0])
def test_rows_whose_note_is_missing(store, tmp_path, words):
    """Rows without a note are listed with a finding; a replay writes the note again, and a drop leaves nothing."""
    before = said("list", store)
    store = written(tmp_path / "without", lacks=note_key("a"))
    found = said("list", store)
    assert "note of the key is missing" in found[0].pop("finding")
    assert [before[0].pop("finding"), found] == [None, before]
    shown = command("list", store)
    assert "key 'a': the note of the key is missing" in shown.stdout, shown.output
    assert command(words[0], store, *words[1:]).exit_code == 0
    assert [(each["key"], each["rows"], each["finding"]) for each in said("list", store)] == (
        [("a", 3, None), ("b", 1, None)] if words == ("replay",) else []
    )


def waiting_in_status(store: Path) -> dict[str, Any]:
    """What `recovery status` says of the step's quarantine."""
    found = CliRunner().invoke(main, ["status", str(store), "--json"])
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout)["quarantine"][STEP])


@pytest.mark.parametrize("lacks", ["", note_key("a"), note_key("b"), entry_key("a", 0), entry_key("b", 3)])
def test_sums_are_those_of_all_keys(tmp_path, lacks):
    """`status` does not read the entries, and says what `list` shows; also if a note, or an entry, is missing."""
    store = written(tmp_path / "db", lacks=lacks)
    listed = said("list", store)
    found = waiting_in_status(store)
    assert (found["keys"], found["rows"]) == (len(listed), sum(each["rows"] for each in listed))
    assert found["since_ms"] == min(each["since_ms"] for each in listed)
    assert not found["replays"]
    assert {each["error"] for each in found["errors"]} == {each["error"] for each in listed}
    assert command("replay", store).exit_code == 0
    assert waiting_in_status(store)["replays"]


@pytest.mark.parametrize(
    "words",
    [("--jars", "a.jar"), ("--packages", "g:a:1"), ("--keep-step", STEP), ("--conf", "spark.x=1"),
     ("--properties-file", "settings.conf")],
    ids=lambda words: words[0],
)  # fmt: skip
def test_what_only_a_dry_run_takes(store, tmp_path, monkeypatch, words):
    """Refused, where it would do nothing; nothing is marked."""
    monkeypatch.chdir(tmp_path)
    Path("settings.conf").write_text("spark.x 1\n")
    before = content(store)
    refused = command("replay", store, *words)
    assert refused.exit_code == 2
    assert f"{words[0]} needs --dry-run" in refused.output
    assert content(store) == before


def test_the_state_commands_do_not_reach_into_a_quarantine(store):
    """Rows and notes of a quarantine have to fit each other."""
    before = content(store)
    refused = CliRunner().invoke(main, ["state", "set", str(store), "--step", QUARANTINE, "--key", "a", "1", "--yes"])
    assert refused.exit_code == ConfigurationError.exit_code
    assert content(store) == before


def test_rows_in_quarantine_move_with_their_keys(store, tmp_path):
    """To another number of partitions, to a fork, and through a backup; everything finds them there."""
    invoke = lambda *words: CliRunner().invoke(main, list(map(str, words)))  # noqa: E731
    listed, exported = said("list", store), command("export", store).stdout
    assert invoke("repartition", store, tmp_path / "five", 5).exit_code == 0
    # Many partitions are written in another way than few.
    assert invoke("repartition", store, tmp_path / "many", MOST_COPIES + 1).exit_code == 0
    assert invoke("fork", store, tmp_path / "fork").exit_code == 0
    assert invoke("backup", store, tmp_path / "backup").exit_code == 0
    assert invoke("restore", tmp_path / "backup", tmp_path / "restored").exit_code == 0
    for name in ("five", "many", "fork", "restored"):
        assert said("list", tmp_path / name) == listed
        assert command("export", tmp_path / name).stdout == exported
        assert problems(tmp_path / name) == []
        assert len(said("replay", tmp_path / name)["keys"]) == 2
        assert said("drop", tmp_path / name, "--no-save", "--yes")["epoch"] is not None
        assert said("list", tmp_path / name) == []


def test_the_same_at_owners(store, tmp_path):
    """Each command does with --owner what it does with files, the choice of rows among it."""
    there, *away = spread(Path(shutil.copytree(store, tmp_path / "made")), [(), (0, 2), (1,)])
    token = token_file(tmp_path)
    owners = [Served(each, token) for each in away]
    options = ["--token-file", token, *(word for each in owners for word in ("--owner", each.at))]
    try:
        for chosen in ([], ["--step", STEP], ["--key", "b"], ["--since", "1h"], ["--key", "a", "--since", "20000d"]):
            for name in ("list", "show"):
                assert said(name, there, *chosen, *options) == said(name, store, *chosen)
            assert command("export", there, *chosen, *options).stdout == command("export", store, *chosen).stdout
        for words in (
            ("replay", "--key", "a"),
            ("drop", "--key", "a", "--no-save", "--yes"),
            ("drop", "--no-save", "--yes"),
        ):
            assert said(words[0], there, *words[1:], *options) == said(words[0], store, *words[1:])
            assert said("list", there, *options) == said("list", store)
    finally:
        for each in owners:
            each.stop()
