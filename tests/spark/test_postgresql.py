"""UpsertSink with a PostgreSQL server in a running flow: kills, cut connections, a server that restarts, rewinds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from recovery import FlowFailedError, RecoveryError, SinkFailedError, UpsertSink, init_partitions
from recovery.storage.scan import scan
from tests.shares import some
from tests.sinks import postgresql
from tests.spark.support import ROOT, going_back, run_to_end, states, totals_step
from tests.spark.test_crashes import finish, recovery_command, wait_for_batch

KILLS = int(os.environ.get("RECOVERY_TEST_POSTGRESQL_KILLS", "50"))
CREATE = "CREATE TABLE totals (key TEXT PRIMARY KEY, n BIGINT, total BIGINT, own TEXT DEFAULT 'mine')"


@pytest.fixture
def server():
    with postgresql.running() as started:
        yield started


def rows(database) -> dict:
    """The table as the truth is: count and sum per key."""
    return {key: [n, total] for key, n, total in database.execute("SELECT key, n, total FROM totals")}


@pytest.mark.long
def test_a_session_of_others_that_is_ended_and_a_rewind(spark, feed, tmp_path, server):
    """The server ends in the midst of a run: the next run and the one that goes back show each row once."""
    database = server.database("pg8000")
    database.execute(CREATE, "INSERT INTO totals VALUES ('k1', 0, 0, 'kept')")

    class Ended(UpsertSink):
        def write(self, batch, batch_id):
            if batch_id == 2:
                server.stop()
            super().write(batch, batch_id)

    frame = feed.frame(spark).transform(totals_step())
    for seed in range(4):
        feed.add_random(seed)
    ended = Ended(database.connect, "totals", ["key"], patience_s=1)
    with pytest.raises(SinkFailedError, match="the database says"):
        run_to_end(frame, tmp_path / "db", ended, backup_interval="1h")
    server.start()
    sink = UpsertSink(database.connect, "totals", ["key"])
    run_to_end(frame, tmp_path / "db", sink, backup_interval="1h")
    assert rows(database) == feed.totals()
    run_to_end(frame, tmp_path / "db", sink, resume_epoch=2, backup_interval="1h")
    assert rows(database) == feed.totals() == states(tmp_path / "db", "totals")
    assert database.execute("SELECT own FROM totals WHERE key = 'k1'") == [("kept",)]


@pytest.mark.long
def test_a_restart_of_the_server_goes_unnoticed(spark, feed, tmp_path, server):
    """In the midst of a step: the step is tried again, and the run goes on."""
    database = server.database("psycopg")
    database.execute(CREATE)
    threads = []

    class Restarted(UpsertSink):
        def write(self, batch, batch_id):
            if batch_id == 1:
                server.stop()
                threads.append(threading.Thread(target=lambda: (time.sleep(0.5), server.start())))
                threads[0].start()
            super().write(batch, batch_id)

    frame = feed.frame(spark).transform(totals_step())
    for seed in range(3):
        feed.add_random(seed)
    run_to_end(frame, tmp_path / "db", Restarted(database.connect, "totals", ["key"]))
    threads[0].join()
    assert rows(database) == feed.totals() == states(tmp_path / "db", "totals")


@pytest.mark.parametrize("refused", some(["when it is staged", "when the epoch is closed"], "when the epoch is closed"))
def test_a_row_that_the_table_does_not_take(spark, feed, tmp_path, server, refused):
    """The run ends with the row's key. When the table takes the row, the next run goes on."""
    database = server.database("psycopg")
    database.execute(CREATE)
    sink = UpsertSink(database.connect, "totals", ["key"])
    frame = feed.frame(spark).transform(totals_step())
    feed.add([("a", 1), ("b", 2)])
    run_to_end(frame, tmp_path / "db", sink)
    limit = "ALTER n TYPE NUMERIC(1)" if refused == "when it is staged" else "ADD CONSTRAINT few CHECK (n < 10)"
    database.execute(f"ALTER TABLE totals {limit}")
    before = rows(database)
    feed.add([("b", 1)] * 10)
    with pytest.raises(FlowFailedError, match=r"the row with the key key='b' has .*n=11") as caught:
        run_to_end(frame, tmp_path / "db", sink)
    assert caught.value.found.startswith("table totals does not take")
    assert rows(database) == before
    database.execute("ALTER TABLE totals DROP CONSTRAINT IF EXISTS few", "ALTER TABLE totals ALTER n TYPE BIGINT")
    run_to_end(frame, tmp_path / "db", sink)
    assert rows(database) == feed.totals() == states(tmp_path / "db", "totals")


def test_a_table_that_refuses_is_not_worth_a_restart(spark, feed, tmp_path, server):
    """The run ends with the code 56, names the right, and says what to do; a grant later the next run goes on."""
    database = server.database("psycopg")
    database.user = "few"
    database.execute(
        CREATE, "CREATE ROLE few LOGIN", "GRANT SELECT, INSERT ON totals TO few", "GRANT CREATE ON SCHEMA public TO few"
    )
    feed.add([("a", 1)])
    frame, sink = feed.frame(spark).transform(totals_step()), UpsertSink(database.connect, "totals", ["key"])
    with pytest.raises(RecoveryError, match="permission denied for table totals") as caught:
        run_to_end(frame, tmp_path / "db", sink)
    assert caught.value.exit_code == 56
    assert caught.value.remedy.startswith("Grant it")
    database.execute("GRANT UPDATE ON totals TO few")
    run_to_end(frame, tmp_path / "db", sink)
    assert rows(database) == feed.totals()


@pytest.mark.long
def test_killed_at_any_moment(feed, tmp_path, server):
    """The run is killed, its connections are cut, the server restarts, and the run goes back, by lot: after the last
    run the table is that of an uninterrupted one."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    lot = random.Random(seed)
    database = server.database("psycopg")
    database.execute(CREATE)
    init_partitions(tmp_path / "db", 3)
    arguments = ", ".join(map(repr, (str(feed.path), str(server.home), database.user, database.name)))
    target = f"{ROOT / 'tests/flows/upsert.py'}:make({arguments})"
    ended = 0
    for _ in range(KILLS):
        for _ in range(6):
            feed.add_random(lot.randrange(10**6), count=40)
        newest = scan(tmp_path / "db")[0].description.newest_epoch
        options = going_back(tmp_path / "db", "totals", lot.randrange(newest)) if newest and lot.random() < 0.2 else []
        process = recovery_command(target, tmp_path / "db", "-s", "0", "-b", "1h", *options)
        wait_for_batch(process)
        time.sleep(lot.random() ** 2)
        way = lot.choice(["kill", "kill", "kill", "cut", "restart"])
        if way == "cut":
            database.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database.name}' "
                "AND pid <> pg_backend_pid()"
            )
        elif way == "restart":
            server.stop()
            server.start()
        if way == "kill":
            os.killpg(process.pid, signal.SIGKILL)
        printed = finish(process)
        assert process.returncode == (-signal.SIGKILL if way == "kill" else 0), printed
        ended += way == "kill"
    process = recovery_command(target, tmp_path / "db", "-s", "0", "-b", "1h")
    printed = finish(process)
    assert process.returncode == 0, printed
    assert rows(database) == feed.totals() == states(tmp_path / "db", "totals")
    assert 0 < ended < KILLS
