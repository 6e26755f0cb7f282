"""Files of older versions: read, gone back in, gone on with.

In those of version 3 keys that an epoch made have a row in `superseded`; those of version 4 have no log; those of
version 5 do not tell where the input begins.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apsw
import pytest

from recovery.planning.resume import plan_resume
from recovery.storage.history import changes_between, few_states_at, sizes_at
from recovery.storage.scan import read_step, scan
from recovery.storage.sqlite.digests import MODULUS, load_digests, record_digest, row_digest_sql
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.sqlite.file.statements import transaction
from recovery.storage.sqlite.file.tables import SCHEMA_VERSION
from tests.shares import one_in
from tests.stores import STEP, Driver, paths_of, problems, query, state_at

KEYS = [f"k{number}" for number in range(30)]
EPOCHS = 8
ABSENT = row_digest_sql("step_id", "state_key", "NULL", "NULL", "NULL")


def as_version_3(directory: Path) -> None:
    """Make the files what version 3 would have written."""
    for path in paths_of(directory):
        connection = connect(path, "rw")
        load_digests(connection)
        with transaction(connection):
            # A value that replaced none made its key.
            connection.execute(
                f"""
                INSERT INTO superseded SELECT snap_epoch, step_id, state_key, NULL, NULL, NULL, {ABSENT} FROM (
                    SELECT step_id, state_key, snap_epoch FROM snaps
                    UNION SELECT step_id, state_key, snap_epoch FROM superseded
                ) AS made
                WHERE NOT EXISTS (
                    SELECT 1 FROM superseded AS s WHERE s.until_epoch = made.snap_epoch
                    AND s.step_id = made.step_id AND s.state_key = made.state_key
                ) AND snap_epoch > (SELECT commit_epoch FROM commits)
                """
            ).fetchall()
            for row in connection.execute("SELECT * FROM epochs").fetchall():
                digests = connection.execute("SELECT digest FROM superseded WHERE until_epoch = ?", row[:1]).fetchall()
                fields = (*row[:9], len(digests), sum(digest for (digest,) in digests) % MODULUS)
                connection.execute(
                    "UPDATE epochs SET superseded_rows = ?, superseded_digest = ?, digest = ? WHERE epoch = ?",
                    (*fields[9:], record_digest(*fields), row[0]),
                )
            without_log(connection, 3)
        connection.close()


def as_version_4(directory: Path) -> None:
    """The same of version 4, which only lacks the log."""
    for path in paths_of(directory):
        connection = connect(path, "rw")
        with transaction(connection):
            without_log(connection, 4)
        connection.close()


def without_log(connection: apsw.Connection, version: int) -> None:
    """Take away what versions 5 and 6 brought."""
    for table in ("changes", "logged", "beginning"):
        connection.execute(f"DROP TABLE {table}").fetchall()
    connection.pragma("user_version", version)


def as_version_5(directory: Path) -> None:
    """The same of version 5, which only lacks where the input begins."""
    for path in paths_of(directory):
        connection = connect(path, "rw")
        with transaction(connection):
            connection.execute("DROP TABLE beginning").fetchall()
            connection.pragma("user_version", 5)
        connection.close()


def as_version(directory: Path, version: int) -> None:
    """Make the files what that version would have written."""
    {3: as_version_3, 4: as_version_4, 5: as_version_5, SCHEMA_VERSION: lambda _: None}[version](directory)


def changes_of(batch: int) -> dict[str, str | None]:
    """Keys that are made, replaced, discarded and made again."""
    generator = random.Random(f"versions {batch}")
    return {key: generator.choice(["1", "22", None]) for key in generator.sample(KEYS, 12)}


def fill(directory: Path) -> None:
    with Driver(directory) as run:
        for batch in range(EPOCHS):
            run.apply(batch, changes_of(batch))
            run.close(batch)


@pytest.fixture
def store_dir(make_store) -> Path:
    """Two partitions with these epochs."""
    return make_store(2, fill)


@pytest.fixture
def history() -> list[dict[str, str]]:
    """The states after each epoch, the first one before all."""
    model: list[dict[str, str]] = [{}]
    for batch in range(EPOCHS):
        model.append({key: text for key, text in (model[-1] | changes_of(batch)).items() if text is not None})
    return model


@pytest.mark.parametrize("version", [3, 4, 5, SCHEMA_VERSION])
def test_every_epoch_is_what_it_was(store_dir, history, version):
    """For a check, a reader of states and their differences, a plan, and the step that a run would start with."""
    as_version(store_dir, version)
    absent = sum(
        query(path, "SELECT count(*) FROM superseded WHERE snap_epoch IS NULL")[0][0] for path in paths_of(store_dir)
    )
    assert (absent > 20) == (version == 3)
    assert problems(store_dir) == []
    plan = plan_resume(scan(store_dir))
    assert plan.window == tuple(range(EPOCHS + 1))
    cuts = [(0, "", -1), *(closed.cut for closed in plan.partitions[0].epochs)]
    for epoch, expected in enumerate(history):
        assert {key: text for (_, key), (text, _) in state_at(store_dir, epoch).items()} == expected
        assert dict(read_step(paths_of(store_dir), STEP, epoch + 1)) == expected
        if not epoch:
            continue
        found = [state for path in paths_of(store_dir) for state in few_states_at(path, STEP, cuts[epoch])]
        assert {state.key: state.value for state in found} == expected
        sizes = [size for path in paths_of(store_dir) for size in sizes_at(path, STEP, cuts[epoch])]
        assert dict(sizes) == {key: len(text) for key, text in expected.items()}
        for earlier in range(1, epoch):
            before, cut = history[earlier], cuts[earlier]
            changes = [each for path in paths_of(store_dir) for each in changes_between(path, STEP, cut, cuts[epoch])]
            assert {each.key for each in changes} == {key for key in KEYS if before.get(key) != expected.get(key)}
    assert query(paths_of(store_dir)[0], "PRAGMA user_version") == [(version,)]


@pytest.mark.parametrize(("version", "resume"), one_in(3, [3, 4, 5, SCHEMA_VERSION], range(1, EPOCHS + 2)))
def test_going_back_and_on(store_dir, history, version, resume):
    """What later epochs made is gone, what they replaced is back, and what comes then is kept in the present form."""
    as_version(store_dir, version)
    with Driver(store_dir, resume_epoch=resume) as run:
        assert {key: text for (_, key), (text, _) in state_at(store_dir, resume - 1).items()} == history[resume - 1]
        assert problems(store_dir) == []
        run.apply(resume, {"new": "3", KEYS[0]: "4"})
        run.close(resume)
    expected = {**history[resume - 1], "new": "3", KEYS[0]: "4"}
    assert {key: text for (_, key), (text, _) in state_at(store_dir, resume).items()} == expected
    assert problems(store_dir) == []
    assert {query(path, "PRAGMA user_version")[0][0] for path in paths_of(store_dir)} == {SCHEMA_VERSION}
    with Driver(store_dir, resume_epoch=resume):
        assert {key: text for (_, key), (text, _) in state_at(store_dir, resume - 1).items()} == history[resume - 1]
    assert problems(store_dir) == []


def test_half_of_the_files_brought_forward(store_dir, history):
    """As after a crash while they were: one of each version, which go back together."""
    as_version_3(store_dir)
    older = store_dir.with_name("older")
    shutil.copytree(store_dir, older)
    with Driver(store_dir):
        pass
    first, second = paths_of(store_dir)
    shutil.copy(older / second.name, second)
    with Driver(store_dir, resume_epoch=4):
        assert {key: text for (_, key), (text, _) in state_at(store_dir, 3).items()} == history[3]
    assert problems(store_dir) == []
    assert query(first, "PRAGMA user_version") == query(second, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
