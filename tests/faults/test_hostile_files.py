"""Files that somebody sent: looking at them is safe, and ends with an answer or a typed error.

Whoever forges a partition knows the format, so digests and sums are right in all of them.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.checkpoint.source_places import places_of
from recovery.cli import main
from recovery.errors import all_errors
from recovery.storage.initialize import init_partitions
from tests.faults import hostile_values
from tests.hostile import forge, make_right
from tests.report.support import long_history
from tests.stores import STEP, Driver, alter, paths_of, query

FORGERIES = int(os.environ.get("RECOVERY_TEST_FORGERIES", "40"))
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


@pytest.mark.parametrize("number", range(FORGERIES))
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


def look_at(directory: Path, tmp_path: Path) -> dict[str, int]:
    """The exit code of each command that only looks."""
    codes = {}
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for words in LOOKS:
        group = 2 if words[0] in ("hwm", "state", "checkpoint") else 1
        named = [str(work / "exported") if word == "." else word for word in words]
        with CliRunner().isolated_filesystem(work):
            began_s = time.monotonic()
            result = CliRunner().invoke(main, [*named[:group], str(directory), *named[group:]])
        print(" ".join(words), result.exit_code)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert time.monotonic() - began_s < LONGEST_S, words
        codes[" ".join(words)] = result.exit_code
    return codes


def make_all_right(directory: Path) -> None:
    """What forging does besides, of nothing."""
    from tests.hostile import lenient

    for path in paths_of(directory):
        with lenient(path) as connection:
            make_right(connection)


assert alter
assert forge
