"""Files that somebody sent: looking at them is safe, and ends with an answer or a typed error.

Whoever forges a partition knows the format, so digests and sums are right in all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.base.threads import each
from recovery.checkpoint.restore import restore
from recovery.checkpoint.source_places import places_of
from recovery.cli import main
from recovery.errors import CorruptPartitionError, all_errors
from recovery.storage.copies import PinnedPartition
from recovery.storage.documents import read_states
from recovery.storage.history import steps_in
from recovery.storage.initialize import init_partitions
from recovery.storage.scan import read_measures, scan, sizes_in
from recovery.storage.sqlite.file.connections import DISTRUST
from recovery.storage.sqlite.file.reading import read_partition
from recovery.storage.sqlite.file.statements import value
from recovery.storage.sqlite.store import FilePartitions
from recovery.storage.verify import PartitionCheck
from tests.faults import hostile_values
from tests.hostile import forge, lenient, make_right, put
from tests.report.support import long_history
from tests.shares import first, some
from tests.stores import STEP, Driver, alter, paths_of, query

FORGERIES = int(os.environ.get("RECOVERY_TEST_FORGERIES", "12"))
SEED = int(os.environ.get("RECOVERY_TEST_SEED", "7"))
LONGEST_S = 30.0
TYPED = {kind.exit_code for kind in all_errors()} | {0}
CHECKPOINT = {
    "metadata": '{"id":"x"}',
    "offsets/9": "v1\n{}\n9",
    "commits/9": "v1\n{}",
    "sources/0/9": "0",
}
LOOKS = [
    ["status"], ["status", "--json"], ["plan"], ["verify"], ["advise"], ["report"], ["report", "--json"], ["runs"],
    ["hwm", "list"], ["state", "list"], ["state", "list", "--json"], ["state", "list", "--step", STEP],
    ["state", "export", "--step", STEP], ["checkpoint", "show"], ["checkpoint", "export", "."],
]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """Two partitions with everything in them that a partition can have: epochs in `snaps` and in the log, a checkpoint,
    marks, runs, measures."""
    directory = tmp_path_factory.mktemp("hostile") / "db"
    init_partitions(directory, 2)
    long_history(directory, 2, 6)
    with Driver(directory) as run:
        places = places_of(["a"], [False], ["rate - - count"]).to_text()
        rows = {
            "$checkpoint": CHECKPOINT,
            "$sources": {"places": places},
            "$clock": {"boot": '{"clock_ms":5,"boot":"b","up_ms":1}'},
            "$steps": {STEP: '{"key":[["word","string"]],"state":"plain"}'},
        }
        batch = run.plan.snapshot.batch_id
        for number in range(1, 4):
            run.apply(batch + number, {f"k{key}": (f"[{number}]", number * 1000) for key in range(12)})
            run.store.seal(run.lease, batch + number, apart=number < 2)
            moved = {key.replace("9", str(batch + number)): value for key, value in CHECKPOINT.items()}
            gone = dict.fromkeys(key.replace("9", str(batch + number - 1)) for key in CHECKPOINT if "9" in key)
            run.close(
                batch + number,
                driver_rows={**rows, "$checkpoint": {**(gone if number > 1 else {}), **moved}},
                logged=number > 1,
                floor=run.epoch - 2,
                closed_ms=1_795_000_900_000 + number,
                clock_ms=1_795_000_900_000 + number,
            )
    state = StateManager(directory)
    state.set_hwm("orders", 5)
    state.save_pipeline_run("orders", {"load": True})
    return directory


def test_the_template_is_sound(template, tmp_path):
    """Else nothing that is found below would mean anything: every look answers."""
    directory = shutil.copytree(template, tmp_path / "db")
    assert {name for (name,) in query(paths_of(directory)[0], "SELECT DISTINCT step_id FROM snaps")} >= {STEP}
    assert query(paths_of(directory)[0], "SELECT count(*) FROM changes") != [(0,)]
    assert look_at(directory, tmp_path) == {" ".join(words): 0 for words in LOOKS}
    make_all_right(directory)
    assert look_at(directory, tmp_path) == {" ".join(words): 0 for words in LOOKS}


@first("number", range(FORGERIES), count=4)
def test_any_value_in_any_column_is_an_answer_or_a_typed_error(template, tmp_path, number):
    """No traceback, no endless work, nothing written elsewhere, for values that no run writes."""
    dice = random.Random(f"{SEED} {number}")
    directory = shutil.copytree(template, tmp_path / "db")
    path = dice.choice(paths_of(directory))
    table = dice.choice(hostile_values.TABLES)
    columns = [row[1] for row in query(path, f"PRAGMA table_info({table})") if row[1] != "digest"]
    column, value = dice.choice(columns), dice.choice(hostile_values.VALUES)
    step = dice.choice(["$checkpoint", "$sources", "$clock", "$steps", STEP])
    where = f"step_id = '{step}'" if table in ("snaps", "superseded", "changes") else "true"
    print(f"RECOVERY_TEST_SEED={SEED}: {path.name} {table}.{column} = {value!r:.60} where {where}")
    forge(path, table, column, value, where)
    before = {each: each.read_bytes() for each in paths_of(directory)}
    codes = look_at(directory, tmp_path)
    assert set(codes.values()) <= TYPED
    assert {each: each.read_bytes() for each in paths_of(directory)} == before
    assert {each.name for each in tmp_path.iterdir()} == {"db", "work"}


ALTERATIONS = {
    "a trigger that changes states": "CREATE TRIGGER t AFTER INSERT ON snaps BEGIN"
    " UPDATE snaps SET ser_change = '666' WHERE state_key = new.state_key; END",
    "a trigger on a small table": "CREATE TRIGGER t AFTER DELETE ON epochs BEGIN DELETE FROM snaps; END",
    "a view that never ends": "ALTER TABLE snaps RENAME TO s; CREATE VIEW snaps AS WITH RECURSIVE n(i) AS"
    " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT '' AS step_id, i AS state_key, 1 AS snap_epoch, 1 AS ser_change,"
    " NULL AS timeout_ms, 1 AS digest FROM n",
    "a view in the place of executions": "ALTER TABLE exs RENAME TO e; CREATE VIEW exs AS WITH RECURSIVE n(i) AS"
    " (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT e.* FROM e, n",
    "a view of another case": "DROP TABLE measures; CREATE VIEW Measures AS SELECT 1 AS measure_id",
    "a virtual table": "DROP TABLE sizes; CREATE VIRTUAL TABLE sizes USING fts5(step_id, live_rows, live_bytes)",
    "a column that is computed": "ALTER TABLE epochs ADD COLUMN extra INTEGER AS (epoch + 1)",
    "one more column": "ALTER TABLE exs ADD COLUMN extra TEXT DEFAULT 'x'",
    "a check": "DROP TABLE measures; CREATE TABLE measures (measure_id INTEGER PRIMARY KEY, ex_num INTEGER NOT NULL,"
    " epoch INTEGER NOT NULL, measured_ms INTEGER NOT NULL, content TEXT NOT NULL CHECK (length(content) > 1),"
    " digest INTEGER NOT NULL) STRICT",
    "a collation": "DROP TABLE sizes; CREATE TABLE sizes (step_id TEXT COLLATE NOCASE PRIMARY KEY, live_rows INTEGER,"
    " live_bytes INTEGER) STRICT, WITHOUT ROWID",
    "a table that is not strict": "DROP TABLE logged; CREATE TABLE logged (epoch INTEGER PRIMARY KEY,"
    " row_count INTEGER NOT NULL, changes_digest INTEGER NOT NULL, digest INTEGER NOT NULL)",
    "an index of an expression": "CREATE INDEX i ON epochs (epoch + random() * 0)",
    "an index": "CREATE INDEX i ON snaps (snap_epoch)",
    "a unique index": "CREATE UNIQUE INDEX i ON snaps (digest)",
    "another condition of an index": "DROP INDEX snaps_timeout;"
    " CREATE INDEX snaps_timeout ON snaps (step_id, timeout_ms) WHERE timeout_ms > 0",
    "no index": "DROP INDEX snaps_timeout",
    "no table": "DROP TABLE superseded",
    "a view under the name of a later version": "PRAGMA user_version = 4; DROP TABLE changes; DROP TABLE logged;"
    " CREATE VIEW logged AS SELECT 1 AS epoch",
}


@pytest.mark.parametrize("alteration", ALTERATIONS.values(), ids=ALTERATIONS)
def test_altered_tables_are_refused(template, tmp_path, alteration):
    """By whatever opens the file, in time, and before anything is read from or written to them."""
    directory = shutil.copytree(template, tmp_path / "db")
    path = paths_of(directory)[0]
    alter(path, alteration.replace("random() * 0", "1"))
    before = path.read_bytes()
    [found] = [file for file in scan(directory) if file.path == path]
    assert isinstance(found.error, CorruptPartitionError)
    for look in (read_states, sizes_in, read_measures, steps_in):
        with pytest.raises(CorruptPartitionError):
            look(path, ["hwm"]) if look is read_states else look(path)
    for opened in (lambda: PinnedPartition(path), lambda: FilePartitions([path], tmp_path / "scratch")):
        with pytest.raises(CorruptPartitionError):
            opened()
    assert PartitionCheck(path).run().problems
    codes = look_at(directory, tmp_path)
    assert {codes["plan"], codes["verify"], codes["hwm list"], codes["checkpoint show"]} == {23}
    for words in (["gc"], ["backup"], ["state", "clear", "hwm", "--yes"], ["restore"]):
        place = [] if words[0] in ("gc", "state") else [str(tmp_path / "work" / "to")]
        result = CliRunner().invoke(main, [words[0], *(words[1:2]), str(directory), *words[2:], *place])
        assert result.exit_code in TYPED - {0}, result.output
    assert path.read_bytes() == before


def test_tables_of_others_are_tolerated(template, tmp_path):
    """Litestream keeps two, and they may have triggers and views of their own."""
    directory = shutil.copytree(template, tmp_path / "db")
    for path in paths_of(directory):
        alter(
            path,
            "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER); CREATE TABLE _litestream_lock (id);"
            "CREATE VIEW notes AS SELECT id FROM _litestream_seq; CREATE INDEX x ON _litestream_seq (seq);"
            "CREATE TRIGGER t AFTER INSERT ON _litestream_seq BEGIN DELETE FROM _litestream_lock; END; ANALYZE",
        )
    assert set(look_at(directory, tmp_path).values()) == {0}
    with Driver(directory) as run:
        assert run.plan.snapshot is not None


def test_nothing_of_a_schema_runs_in_workers(template, tmp_path):
    """The driver has compared the tables; a task's connection runs no view and no trigger all the same."""
    directory = shutil.copytree(template, tmp_path / "db")
    with Driver(directory) as run:
        task = run.task()
        task.read(STEP, run.plan.snapshot.batch_id + 1, {0: ("a",)})[0]
        connections = [*run.store._writers, *(delta._connection for delta in task._deltas.values())]
        for option in DISTRUST:
            assert {connection.config(option, -1) for connection in connections} == {False}
        task.release()


HOSTILE_PATHS = [
    "../../escaped", "/tmp/escaped", "offsets/../../escaped", "state//0", "sources/0/..", "sources/0/a\\b", ".",
    "other/1", "offsets/x", "offsets/07", "offsets/99999999999999999999", "metadata#00000", "metadata#000001",
    "sources/" + "x" * 300,
]  # fmt: skip


@first("path", HOSTILE_PATHS, count=5)
@pytest.mark.parametrize("where", some(["snaps", "superseded", "changes"], "snaps"))
def test_a_path_that_leads_out_of_the_checkpoint_is_found_and_never_followed(template, tmp_path, path, where):
    """By verify, wherever the row lies; and an export or a run that would write it ends before."""
    directory = shutil.copytree(template, tmp_path / "db")
    file = paths_of(directory)[0]
    if where == "snaps":
        put(file, "$checkpoint", path, "x")
    elif where == "superseded":
        forge(file, where, "step_id", "$checkpoint")
        forge(file, where, "state_key", path, "step_id = '$checkpoint'")
    else:
        forge(file, where, "step_id", "$checkpoint", "step_id <> '$checkpoint'")
        forge(file, where, "content", json.dumps([[path, "x", None]]), "step_id = '$checkpoint'")
        forge(file, where, "row_count", 1, "step_id = '$checkpoint'")
    [problem] = PartitionCheck(file).run().problems
    assert "of a file of Spark's checkpoint" in problem
    codes = look_at(directory, tmp_path)
    assert codes["verify"] == codes["checkpoint export ."] == 23
    assert {each.name for each in tmp_path.iterdir()} == {"db", "work"}
    if where == "snaps":
        assert codes["checkpoint show"] == 23
        with Driver(directory) as run, pytest.raises(CorruptPartitionError, match="checkpoint"):
            restore(run.store.driver_rows("$checkpoint", run.epoch), tmp_path / "work" / "restored")
        assert {each.name for each in tmp_path.iterdir()} == {"db", "work"}
        assert not Path("/tmp/escaped").exists()


def test_rows_of_a_file_and_of_another_below_it_are_refused(tmp_path):
    """Whichever comes first; and values that are no content."""
    for number, rows in enumerate(
        (
            [("state/0", "x"), ("state/0/1/2.delta", "y")],
            [("state/0/1/2.delta", "y"), ("state/0", "x")],
            [("metadata", 5)],
            [("metadata", None)],
            [(b"metadata", "x")],
            [("sources/0/1#9999999", b"x")],
        )
    ):
        with pytest.raises(CorruptPartitionError):
            restore(rows, tmp_path / str(number))  # type: ignore[arg-type]


def test_a_gap_of_epochs_without_an_end_is_found_in_time(template, tmp_path):
    """What is missing is not counted one by one."""
    directory = shutil.copytree(template, tmp_path / "db")
    for path in paths_of(directory):
        forge(path, "epochs", "epoch", (1 << 53) - 2, "epoch = (SELECT max(epoch) FROM epochs)")
    began_s = time.monotonic()
    assert any("is missing between" in each for each in PartitionCheck(path).run().problems)
    assert set(look_at(directory, tmp_path).values()) <= TYPED
    assert time.monotonic() - began_s < LONGEST_S


@pytest.mark.parametrize("threads", [False, True])
def test_what_never_ends_obeys_signals(template, threads):
    """In the main thread, and where it waits for others: Ctrl-C ends a statement of SQLite."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    paths = paths_of(template)

    def look(path: Path) -> int:
        return read_partition(path, lambda connection: value(connection, endless))

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        each(look, paths, at_once=2, name="look") if threads else look(paths[0])
    timer.join()
    assert time.monotonic() - began_s < LONGEST_S
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("look")]


def look_at(directory: Path, tmp_path: Path) -> dict[str, int]:
    """The exit code of each command that only looks."""
    codes = {}
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for number, words in enumerate(LOOKS):
        group = 2 if words[0] in ("hwm", "state", "checkpoint") else 1
        named = [str(work / "exported") if word == "." else word for word in words]
        began_s = time.monotonic()
        (work / str(number)).mkdir()
        with contextlib.chdir(work / str(number)):
            result = CliRunner().invoke(main, [*named[:group], str(directory), *named[group:]])
        print(" ".join(words), result.exit_code)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert time.monotonic() - began_s < LONGEST_S, words
        codes[" ".join(words)] = result.exit_code
    return codes


def make_all_right(directory: Path) -> None:
    """What forging does besides, of nothing."""
    for path in paths_of(directory):
        with lenient(path) as connection:
            make_right(connection)


BESIDE = ["-wal", "-shm", "-journal", "-lazy"]
COMMANDS = [
    ["status"], ["plan"], ["verify"], ["report"], ["hwm", "list"], ["state", "list", "--step", STEP], ["backup", "to"],
    ["restore", "to"], ["drill"], ["fork", "to"], ["gc"], ["hwm", "set", "orders", "99"],
]  # fmt: skip


@pytest.mark.parametrize("suffix", BESIDE)
@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
def test_what_lies_beside_a_partition_is_a_file(template, tmp_path, suffix, kind):
    """A pipe, a device or a link under the name of SQLite's log: no command waits for it, or writes where it leads."""
    directory = shutil.copytree(template, tmp_path / "db")
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    odd = directory / f"part-0.sqlite3{suffix}"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to("/dev/zero" if kind == "device" else precious)
    before = {each: each.read_bytes() for each in paths_of(directory)}
    for words in COMMANDS:
        group = 2 if words[0] in ("hwm", "state") else 1
        given = [str(tmp_path / "to") if word == "to" else word for word in words[group:]]
        with contextlib.chdir(tmp_path):
            result = CliRunner().invoke(main, [*words[:group], str(directory), *given])
        assert result.exception is None or isinstance(result.exception, SystemExit), words
        assert result.exit_code in TYPED, (words, result.output)
        if words[0] in ("backup", "restore", "drill", "fork", "gc") or words[1:2] == ["set"]:
            assert result.exit_code != 0, words
        assert not (tmp_path / "to").exists(), words
    assert {each: each.read_bytes() for each in paths_of(directory)} == before
    assert precious.read_bytes() == b"precious"
