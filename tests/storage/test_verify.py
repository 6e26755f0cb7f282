"""A full check finds whatever was changed, and reads never give a wrong answer silently."""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
from pathlib import Path

import apsw
import pytest

from recovery import init_partitions
from recovery.errors import CorruptPartitionError, RecoveryError
from recovery.storage import verify
from recovery.storage.scan import scan
from recovery.storage.sqlite.digests import load_digests
from recovery.storage.sqlite.file.connections import connect
from recovery.storage.verify import PartitionCheck, Verdict
from tests.stores import Driver, alter, paths_of, problems, query, state_at

STEP = "count"


@pytest.fixture(scope="module")
def sound(store_maker):
    """A partition with two steps, timeouts, driver rows, and three epochs of history."""
    directory = store_maker(1)
    with Driver(directory, [STEP, "other"]) as run:
        run.close(0, floor=0, driver_rows={"$at": {"offset": "{}", "blob": b"\0\1\2"}})
        for batch in range(1, 5):
            changes = {f"key-{n:03}": (f'{{"n":{n * batch}}}', n * 10) for n in range(batch % 2, 600, batch)}
            run.apply(batch, changes)
            run.apply(batch, {f"k{n}": str(n + batch) for n in range(0, 300, batch)}, "other")
            if batch == 3:
                run.apply(batch, {f"k{n}": None for n in range(0, 300, 6)}, "other")
            run.close(batch, floor=max(0, batch - 3), driver_rows={"$at": {"offset": f'{{"at":{batch}}}'}})
    alter(directory / "part-0.sqlite3", "VACUUM")  # no unused space, where a flipped bit has no effect
    assert problems(directory) == []
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def damaged(sound, tmp_path):
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(sound, tmp_path / "db")) / "part-0.sqlite3"


def found_in(path: Path) -> tuple[str, ...]:
    """What the check finds wrong; for what the file says of itself, the error of reading that."""
    try:
        return PartitionCheck(path).run().problems
    except RecoveryError as error:
        return (str(error),)


def test_a_sound_partition_has_no_problems(sound):
    """The verdict names the file and counts the rows that were read."""
    [path] = paths_of(sound)
    [(rows,)] = query(path, "SELECT (SELECT count(*) FROM snaps) + (SELECT count(*) FROM superseded)")
    verdict = PartitionCheck(path).run()
    assert verdict == Verdict(path, rows, ())
    verdict.raise_if_damaged()
    assert rows > 300


CHANGES = {
    "a value": "UPDATE snaps SET ser_change = '{\"n\":666}' WHERE state_key = 'key-007'",
    "a value's type": "UPDATE snaps SET ser_change = CAST(ser_change AS BLOB) WHERE state_key = 'key-007'",
    "a value that is a number": "UPDATE snaps SET ser_change = CAST(ser_change AS INTEGER) WHERE state_key = 'k4'",
    "a blob": "UPDATE snaps SET ser_change = x'000103' WHERE state_key = 'blob'",
    "a key": "UPDATE snaps SET state_key = 'key-xxx' WHERE state_key = 'key-007'",
    "a step": "UPDATE snaps SET step_id = 'third' WHERE step_id = 'other'",
    "an epoch": "UPDATE snaps SET snap_epoch = snap_epoch - 1 WHERE state_key = 'key-007'",
    "a timeout": "UPDATE snaps SET timeout_ms = timeout_ms + 1 WHERE state_key = 'key-007'",
    "a timeout taken away": "UPDATE snaps SET timeout_ms = NULL WHERE state_key = 'key-007'",
    "a digest": "UPDATE snaps SET digest = digest + 1 WHERE state_key = 'key-007'",
    "two digests that make up for each other":
        "UPDATE snaps SET digest = digest + iif(state_key = 'key-007', 1, -1)"
        " WHERE state_key IN ('key-007', 'key-011')",
    "a missing row": "DELETE FROM snaps WHERE state_key = 'key-007'",
    "all rows": "DELETE FROM snaps",
    "a row too many": "INSERT INTO snaps SELECT step_id, 'copy', snap_epoch, ser_change, timeout_ms, digest"
                      " FROM snaps WHERE state_key = 'key-007'",
    "a stale row": "UPDATE snaps SET (snap_epoch, ser_change, timeout_ms, digest) ="
                   " (SELECT u.snap_epoch, u.ser_change, u.timeout_ms, u.digest FROM superseded AS u"
                   "  WHERE u.step_id = snaps.step_id AND u.state_key = snaps.state_key AND u.snap_epoch IS NOT NULL"
                   "  ORDER BY until_epoch DESC LIMIT 1) WHERE step_id = 'count' AND state_key = 'key-012'",
    "a superseded value": "UPDATE superseded SET ser_change = '1' WHERE until_epoch = 5 AND state_key = 'key-012'",
    "a superseded epoch": "UPDATE superseded SET snap_epoch = 1 WHERE until_epoch = 5 AND state_key = 'key-012'",
    "a superseded absence": "UPDATE superseded SET snap_epoch = NULL WHERE until_epoch = 5 AND state_key = 'key-012'",
    "a superseded timeout": "UPDATE superseded SET timeout_ms = 1 WHERE until_epoch = 5 AND state_key = 'key-012'",
    "a superseded digest": "UPDATE superseded SET digest = digest - 1 WHERE until_epoch = 5 AND state_key = 'key-012'",
    "a superseded row lost": "DELETE FROM superseded WHERE until_epoch = 5 AND state_key = 'key-012'",
    "a superseded row too many": "INSERT INTO superseded SELECT 4, step_id, state_key, snap_epoch, ser_change,"
                                 " timeout_ms, digest FROM superseded WHERE until_epoch = 5 AND state_key = 'key-008'",
    "a superseded row in another epoch":
        "UPDATE superseded SET until_epoch = 4 WHERE until_epoch = 5 AND state_key = 'key-008'",
    "two superseded rows exchanged between epochs":
        "UPDATE superseded SET until_epoch = 9 - until_epoch"
        " WHERE (until_epoch, state_key) IN (VALUES (5, 'key-008'), (4, 'key-007'))",
    "all superseded rows of an epoch": "DELETE FROM superseded WHERE until_epoch = 4",
    "all superseded rows": "DELETE FROM superseded",
    "superseded rows of an epoch to come": "UPDATE superseded SET until_epoch = 9 WHERE until_epoch = 5",
    "an epoch's batch": "UPDATE epochs SET batch_id = 7 WHERE epoch = 4",
    "an epoch's sum": "UPDATE epochs SET live_digest = live_digest + 1 WHERE epoch = 5",
    "the newest epoch lost": "DELETE FROM epochs WHERE epoch = 5",
    "an epoch lost in between": "DELETE FROM epochs WHERE epoch = 3",
    "the oldest epoch lost": "DELETE FROM epochs WHERE epoch = 1",
    "all epochs lost": "DELETE FROM epochs",
    "an execution lost": "DELETE FROM exs",
    "an execution's resume epoch": "UPDATE exs SET resume_epoch = 2",
    "the partition's number": "UPDATE parts SET part_index = 1",
    "the store's id": "UPDATE parts SET store_id = 'x'",
    "the flow": "UPDATE parts SET flow_id = 'another'",
    "no parts row": "DELETE FROM parts",
    "the collected epoch": "UPDATE commits SET commit_epoch = 0",
    "no commits row": "DELETE FROM commits",
    "the primary key of an index gone": "DROP TABLE superseded",
    "a column gone": "ALTER TABLE snaps DROP COLUMN snap_epoch",
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_every_change_behind_our_back_is_found(damaged, change):
    """One changed, missing, added, moved or stale row anywhere is a problem of the file, and an error to raise."""
    before = damaged.read_bytes()
    alter(damaged, change)
    assert damaged.read_bytes() != before, "the change must be one"
    assert found_in(damaged) != ()


def test_problems_name_the_rows(damaged):
    """What is wrong is said so that the rows can be found, and the error names the file."""
    alter(damaged, CHANGES["a value"])
    verdict = PartitionCheck(damaged).run()
    assert verdict.problems == (
        "1 row of snaps has values that do not match their digest (step 'count' key 'key-007')",
    )
    with pytest.raises(CorruptPartitionError, match="key-007") as raised:
        verdict.raise_if_damaged()
    assert raised.value.path == str(damaged)


def test_damage_that_is_no_text_any_more_is_shown(damaged):
    """A key whose bytes are no UTF-8 does not keep the check from reporting it."""
    alter(damaged, "UPDATE snaps SET state_key = CAST(x'6bff' AS TEXT) WHERE state_key = 'key-007'")
    assert any("key 'k\N{REPLACEMENT CHARACTER}'" in problem for problem in found_in(damaged))
    alter(damaged, "UPDATE parts SET store_id = CAST(x'ff' AS TEXT)")
    [file] = scan(damaged.parent)
    assert isinstance(file.error, CorruptPartitionError)


def test_an_index_that_lost_its_entries_is_found(damaged):
    """A timeout that is in the table but not in its index would never fire: SQLite's own check is part of `verify`."""
    [(root,)] = query(damaged, "SELECT rootpage FROM sqlite_schema WHERE name = 'snaps_timeout'")
    data = bytearray(damaged.read_bytes())
    # Make the root page of the index an empty leaf.
    data[(root - 1) * 4096 : (root - 1) * 4096 + 8] = bytes([10, 0, 0, 0, 0, 0x10, 0, 0])
    damaged.write_bytes(data)
    found = found_in(damaged)
    assert found != ()
    assert all(problem.startswith("SQLite says") for problem in found), "the rows themselves are whole"


@pytest.mark.parametrize("keep", [0, 1, 100, 4095, 4096, 8192, 40_000, -20_000, -4096, -1])
def test_a_file_that_was_cut_off_is_found(damaged, keep):
    """Wherever a copy ended too early."""
    damaged.write_bytes(damaged.read_bytes()[:keep])
    assert found_in(damaged) != ()


@pytest.mark.parametrize("content", [b"", b"junk" * 5_000, bytes(65536)], ids=["empty", "junk", "zeros"])
def test_what_is_no_database_is_found(damaged, content):
    """An empty file, junk and a file of zeros are errors, not empty partitions."""
    damaged.write_bytes(content)
    assert found_in(damaged) != ()


def test_a_page_of_an_older_copy_is_found(damaged):
    """A file whose pages are of two moments is sound to SQLite's own check at times, never to ours."""
    old = damaged.read_bytes()
    with Driver(damaged.parent, [STEP, "other"]) as run:
        run.apply(9, {f"key-{n:03}": ('{"n":1}', n * 10) for n in range(0, 120, 7)})
        run.close(9)
    new = damaged.read_bytes()
    pages = [n for n in range(min(len(old), len(new)) // 4096) if old[n * 4096 :][:4096] != new[n * 4096 :][:4096]]
    assert len(pages) > 4
    for page in pages[1:]:  # the first holds SQLite's change counter
        mixed = bytearray(new)
        mixed[page * 4096 : (page + 1) * 4096] = old[page * 4096 : (page + 1) * 4096]
        damaged.write_bytes(mixed)
        assert found_in(damaged) != (), f"page {page}"


class Reader:
    """Reads everything that a run would read of a partition."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        [self.path] = paths_of(directory)
        self.keys = sorted({key for _, key in state_at(directory, 5)} | {"never"})
        self.truth = self.read()

    def read(self) -> tuple:
        """The described epochs, every state of every epoch, every look-up of a key, and what is due."""
        connection = connect(self.path, "unshared")
        try:
            rows = lambda sql, *bindings: connection.execute(sql, bindings).fetchall()  # noqa: E731
            look_up = "SELECT ser_change, timeout_ms FROM snaps WHERE step_id = ? AND state_key = ?"
            return (
                rows("SELECT * FROM parts"), rows("SELECT * FROM exs ORDER BY 1"), rows("SELECT * FROM commits"),
                rows("SELECT * FROM epochs ORDER BY 1"),
                rows("SELECT step_id, state_key, snap_epoch, ser_change, timeout_ms FROM snaps"),
                rows("SELECT until_epoch, step_id, state_key, snap_epoch, ser_change, timeout_ms FROM superseded"),
                [rows(look_up, step, key) for step in (STEP, "other", "$at") for key in self.keys],
                [rows("SELECT state_key FROM snaps WHERE step_id = ? AND timeout_ms <= ? ORDER BY 1", STEP, at)
                 for at in (0, 200, 700, 2_000)],
            )  # fmt: skip
        finally:
            connection.close()


def flip_bits(sound: Path, work: Path, flips: int, seed: int) -> dict[str, int]:
    """Flip one bit at a time; each must be found, or change nothing that can be read. Returns what became of them."""
    generator = random.Random(seed)
    reader = Reader(Path(shutil.copytree(sound, work)))
    original = reader.path.read_bytes()
    outcome = {"found by describe": 0, "found by verify": 0, "without effect": 0, "missed by integrity_check": 0}
    for _ in range(flips):
        position, bit = generator.randrange(len(original)), generator.randrange(8)
        data = bytearray(original)
        data[position] ^= 1 << bit
        reader.path.write_bytes(data)
        [file] = scan(reader.directory)
        if file.error is not None:
            outcome["found by describe"] += 1
        elif found_in(reader.path):
            outcome["found by verify"] += 1
        else:
            replay = f"seed {seed}: bit {bit} of byte {position} (page {position // 4096 + 1}) went unnoticed"
            assert reader.read() == reader.truth, replay
            outcome["without effect"] += 1
            continue
        try:
            connection = apsw.Connection(str(reader.path), flags=apsw.SQLITE_OPEN_READONLY)
            outcome["missed by integrity_check"] += connection.pragma("integrity_check") == "ok"
            connection.close()
        except apsw.Error:
            pass
        for beside in reader.directory.glob("*-*-*"):
            beside.unlink()
    return outcome


def test_a_flipped_bit_is_found_or_changes_nothing(sound, tmp_path, record_property):
    """No single flipped bit gives a wrong value, a missing row or a key that is not found, without being noticed."""
    outcome = flip_bits(sound, tmp_path / "db", 100, seed=1)
    record_property("flips", outcome)
    print(outcome)
    assert sum(outcome.values()) - outcome["missed by integrity_check"] == 100
    assert outcome["found by verify"] > 50, "the check itself must have had something to find"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_flipped_bits(sound, tmp_path, seed):
    """The same, a thousand at a time; RECOVERY_TEST_FLIPS says how many altogether."""
    flips = int(os.environ.get("RECOVERY_TEST_FLIPS", "10000")) // 10
    outcome = flip_bits(sound, tmp_path / "db", flips, seed=100 + seed)
    print(outcome)
    assert outcome["found by verify"] > outcome["missed by integrity_check"] > 0


class TestCancelling:
    """A check that goes on beside a run can be stopped."""

    def test_a_check_that_was_cancelled_before_it_ran(self, sound):
        """It raises immediately, and leaves nothing open."""
        check = PartitionCheck(paths_of(sound)[0])
        check.cancel()
        with pytest.raises(apsw.InterruptError):
            check.run()

    def test_a_running_check_ends_when_it_is_cancelled(self, sound, monkeypatch):
        """It is interrupted in the middle of its statement."""
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*), 0, 0, 0 FROM n"
        monkeypatch.setattr(verify, "SNAPS", endless)
        check = PartitionCheck(paths_of(sound)[0])
        errors = []

        def run():
            try:
                check.run()
            except apsw.InterruptError as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            check.cancel()
            thread.join(0.01)
        assert len(errors) == 1

    def test_cancelling_what_is_done_is_harmless(self, sound):
        """Nothing is raised."""
        check = PartitionCheck(paths_of(sound)[0])
        assert check.run().problems == ()
        check.cancel()


def test_the_check_sees_one_state_while_a_run_continues(store_dir):
    """Epochs that are closed beside a check are no damage: it reads one snapshot of the file."""
    with Driver(store_dir) as run:
        verdicts = []
        stop = threading.Event()

        def check():
            while not stop.is_set():
                verdicts.append(PartitionCheck(run.store.paths[0]).run().problems)

        thread = threading.Thread(target=check)
        thread.start()
        batch = 0
        # As many as are beside two checks, however seldom their thread has its turn.
        while batch < 40 or (len(verdicts) < 2 and thread.is_alive()):
            run.apply(batch, {f"k{n}": str(batch) for n in range(batch, batch + 50)})
            run.close(batch, floor=max(0, run.epoch - 3))
            run.move_logs()
            batch += 1
        stop.set()
        thread.join()
        assert set(verdicts) == {()}
        assert len(verdicts) > 1


def test_no_statement_of_the_check_sorts_the_state(sound):
    """It reads each table once, in its own order: a sort would need the disk again."""
    [path] = paths_of(sound)
    connection = apsw.Connection(str(path))
    load_digests(connection)
    for sql in (verify.SNAPS, verify.SUPERSEDED):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert [line for line in plan if re.search("TEMP B-TREE", line)] == []
    connection.close()


def test_an_error_about_copies_names_what_was_copied(tmp_path):
    """In all of its parts: whoever reads it finds no copy any more."""
    copies = tmp_path / "copies"
    with (
        pytest.raises(RecoveryError) as raised,
        verify.naming(copies, "db", {"part-1.sqlite3": "host:1/part-1.sqlite3"}),
    ):
        raise RecoveryError(
            f"{copies}/part-0.sqlite3 ends early", path=copies / "part-1.sqlite3", cause=f"{copies} is full.",
            remedy=f"See: python -m recovery plan {copies}",
        )  # fmt: skip
    assert str(raised.value).splitlines() == [
        "host:1/part-1.sqlite3: db/part-0.sqlite3 ends early",
        "Probable cause: db is full.",
        "What to do: See: python -m recovery plan db",
    ]


class MistakeError(RuntimeError):
    """As click's errors: it knows how the process ends."""

    exit_code = 2


@pytest.mark.parametrize("error", [BrokenPipeError(), MistakeError("no such option"), MemoryError()])
def test_partitions_are_not_checked_for_what_they_cannot_cause(error, monkeypatch):
    """A check reads all of them, which takes as long as the state is large."""
    monkeypatch.setattr(verify, "opened_paths", lambda: pytest.fail("it looks at partitions"))
    assert verify.damage_behind(error) is None


def test_only_the_partitions_of_a_directory_explain_what_went_wrong_there(tmp_path, monkeypatch):
    """An owner that serves one store blames no file of another one that its process has opened."""
    for name in ("mine", "other"):
        init_partitions(tmp_path / name, 1)
        with Driver(tmp_path / name) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
    alter(tmp_path / "other" / "part-0.sqlite3", "UPDATE snaps SET ser_change = '2'")
    opened = [tmp_path / name / "part-0.sqlite3" for name in ("mine", "other")]
    monkeypatch.setattr(verify, "opened_paths", lambda: opened)
    assert verify.damage_behind(TypeError("no")).path == str(opened[1])
    assert verify.damage_behind(TypeError("no"), tmp_path / "mine") is None
