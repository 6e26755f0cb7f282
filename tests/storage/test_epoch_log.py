"""Epochs that are logged: closed by appending what they changed, read over the snapshots, and folded later."""

from __future__ import annotations

import json
import random
import re
import signal
from functools import partial

import apsw
import pytest
from click.testing import CliRunner

from recovery.base.ids import NO_BATCH
from recovery.cli import main
from recovery.errors import CorruptPartitionError, EpochNotHeldError
from recovery.planning.resume import plan_resume
from recovery.storage.history import changes_between, few_states_at, states_at, steps_in
from recovery.storage.scan import largest_states, read_step, scan, sizes_in
from recovery.storage.sqlite.epoch_log import CHUNK_ROWS, FIRST_ROWS
from recovery.storage.sqlite.file.opening import open_partition
from recovery.storage.sqlite.rewind import rewind
from recovery.storage.verify import PartitionCheck
from tests.forks import run_code
from tests.stores import ROOT, STEP, Driver, alter, content, paths_of, problems, query, state_at, window

ODD_KEYS = {"": "0", "Ω": '"\\u0000"', "\x1f[\"'": "null", "😀": '{"a":[1,"\\"\x7f"]}'}


def logged(run: Driver, batch: int, changes, **settings) -> None:
    """A micro-batch, and an epoch of its own that is logged."""
    run.apply(batch, changes)
    run.close(batch, logged=True, **settings)


def texts(directory, epoch: int) -> dict[str, str]:
    """The states of the step, as the files tell past the package."""
    return {key: text for (step, key), (text, _) in state_at(directory, epoch).items() if step == STEP}


def found(directory, epoch: int | None = None) -> dict[str, str]:
    """The same as the package reads it: the newest, or as a run finds it that resumes behind an epoch."""
    return dict(read_step(paths_of(directory), STEP, None if epoch is None else epoch + 1))


def test_what_is_logged_is_closed_and_read(store_dir):
    """Each epoch is there for every reader, although `snaps` is of an older one; a check finds nothing."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "1", "c": ("1", 7)})
        run.close(0)
        logged(run, 1, {"a": "2", "d": "2", **ODD_KEYS})
        logged(run, 2, {"a": None, "d": ("3", 9), "c": "3"}, driver_rows={"$x": {"k": b"\xff\x00", "gone": None}})
        assert run.read(3, ["a", "b", "d", ""]) == {"a": None, "b": "1", "d": "3", "": "0"}
        assert run.due(3, 20) == ["d"]
        expected = [
            {},
            {"a": "1", "b": "1", "c": "1"},
            {"a": "2", "b": "1", "c": "1", "d": "2", **ODD_KEYS},
            {"b": "1", "c": "3", "d": "3", **ODD_KEYS},
        ]
        assert problems(store_dir) == []
        # What a restore and the plan of a repartitioning say.
        assert [file.description.row_count for file in scan(store_dir)] == [
            PartitionCheck(path).run().rows for path in paths_of(store_dir)
        ]
        assert window(store_dir) == (0, 1, 2, 3)
        for epoch, states in enumerate(expected):
            assert texts(store_dir, epoch) == states
            assert found(store_dir, epoch) == states
        assert found(store_dir) == expected[-1]
        cuts = {closed.epoch: closed.cut for closed in run.store.describe()[0].epochs}
        for path in paths_of(store_dir):
            assert set(steps_in(path)) <= {STEP, "$x"}
            [changed] = [{each.key for each in changes_between(path, STEP, cuts[1], cuts[3])}]
            assert changed <= {"a", "c", "d", *ODD_KEYS}
            assert {row[1] for row in largest_states(path, 100)} <= {"b", "c", "d", "k", *ODD_KEYS}
        epochs = {s.key: s.epoch for path in paths_of(store_dir) for s in states_at(path, STEP, cuts[3])}
        assert {key: epochs[key] for key in ("b", "c", "d", "")} == {"b": 1, "c": 3, "d": 3, "": 2}
        [blob] = [s.value for path in paths_of(store_dir) for s in few_states_at(path, "$x", cuts[3])]
        assert blob == b"\xff\x00"


def test_folding_leaves_the_newest_epoch_alone(store_dir):
    """All that was logged is in `snaps`, nothing is left in the log, sizes and sums are right, earlier epochs gone."""
    with Driver(store_dir) as run:
        for batch in range(4):
            logged(run, batch, {"a": str(batch), f"k{batch}": "1", f"k{batch - 1}": None})
        expected = texts(store_dir, 4)
        run.fold()
        assert [query(path, "SELECT count(*) FROM changes") for path in paths_of(store_dir)] == [[(0,)]] * run.count
        assert texts(store_dir, 4) == expected == {"a": "3", "k3": "1"}
        assert window(store_dir) == (4,)
        assert problems(store_dir) == []
        rows = sum(sizes_in(path)[STEP].rows for path in paths_of(store_dir) if STEP in sizes_in(path))
        assert rows == 2
        assert run.read(4, ["a", "k2", "k3"]) == {"a": "3", "k2": None, "k3": "1"}
        logged(run, 4, {"a": "9"})
        assert found(store_dir) == {"a": "9", "k3": "1"}


@pytest.mark.parametrize("apart", [False, True])
def test_what_tasks_write_meanwhile_is_of_the_next_epoch(store_dir, apart):
    """Sealed, an epoch is what it was, however many micro-batches write before it is logged."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "0", "b": "0"})
        run.apply(1, {"a": "early"})  # before the epoch is sealed
        run.store.seal(run.lease, 0, apart=apart)
        run.apply(1, {"a": "1", "c": "1"})
        run.apply(2, {"a": "2", "b": "2", "c": None})
        run.apply(3, {"a": "3"})
        run.close(0, logged=True)
        assert texts(store_dir, 1) == {"a": "0", "b": "0"}
        if apart:
            run.store.fold(run.lease, 1, 1)
        run.close(3, logged=True)
        assert texts(store_dir, 2) == {"a": "3", "b": "2"}
        run.fold()
        assert texts(store_dir, 2) == found(store_dir) == {"a": "3", "b": "2"}
        assert problems(store_dir) == []


def test_the_next_run_folds(store_dir):
    """After a crash the log is folded when the next run starts, as of where that resumes."""
    with Driver(store_dir) as run:
        for batch in range(3):
            logged(run, batch, {"a": str(batch), f"k{batch}": "1"}, driver_rows={"$x": {"at": str(batch)}})
    with Driver(store_dir, resume_epoch=3) as run:
        assert window(store_dir) == (2,)
        assert texts(store_dir, 2) == found(store_dir) == {"a": "1", "k0": "1", "k1": "1"}
        assert run.store.driver_values("$x") == {"at": "1"}
        assert problems(store_dir) == []
        assert sum(query(path, "SELECT count(*) FROM changes")[0][0] for path in paths_of(store_dir)) == 0
    with pytest.raises(EpochNotHeldError):
        plan_resume(scan(store_dir), resume_epoch=2)


def test_going_back_over_what_is_logged_puts_nothing_back(store_maker):
    """The log is cut off; what `snaps` superseded before stays, to go back further."""
    directory = store_maker(1)
    with Driver(directory) as run:
        run.apply(0, {"a": "0"})
        run.close(0)
        run.apply(1, {"a": "1"})
        run.close(1)
        for batch in (2, 3, 4):
            logged(run, batch, {"a": str(batch), f"k{batch}": "1"})
    [path] = paths_of(directory)
    connection = open_partition(path, "rw")
    assert rewind(connection, path, 4)
    assert query(path, "SELECT DISTINCT epoch FROM changes") == [(3,), (4,)]
    assert texts(directory, 4) == {"a": "3", "k2": "1", "k3": "1"}
    assert window(directory) == (0, 1, 2, 3, 4)
    assert rewind(connection, path, 1)
    connection.close()
    assert query(path, "SELECT (SELECT count(*) FROM changes) + (SELECT count(*) FROM logged)") == [(0,)]
    assert texts(directory, 1) == {"a": "0"}
    assert problems(directory) == []


def test_an_epoch_that_some_partitions_logged_does_not_count(store_dir):
    """The next run starts it again everywhere; nothing of it is ever read."""
    with Driver(store_dir) as run:
        logged(run, 0, {f"k{number}": "0" for number in range(20)})
        run.apply(1, {f"k{number}": "1" for number in range(20)})
        run.store.close_partition(0, run.lease, run.requests(1, logged=True)[0])
    with Driver(store_dir) as run:
        assert run.epoch == 2
        assert set(texts(store_dir, 1).values()) == {"0"}
        assert problems(store_dir) == []


def test_moving_an_epoch_folds_what_was_logged_before(store_dir):
    """Of epochs that are logged and moved in turn none is lost, and the one before the newest can be gone back to."""
    with Driver(store_dir) as run:
        logged(run, 0, {"a": "0", "b": "0"})
        logged(run, 1, {"a": "1", "c": "1"})
        run.apply(2, {"a": "2", "b": None})
        run.close(2, floor=2)
        assert window(store_dir) == (2, 3)
        assert texts(store_dir, 2) == {"a": "1", "b": "0", "c": "1"}
        assert texts(store_dir, 3) == {"a": "2", "c": "1"}
        assert problems(store_dir) == []
    with Driver(store_dir, resume_epoch=3):
        assert found(store_dir) == {"a": "1", "b": "0", "c": "1"}


def test_closing_and_folding_again_changes_nothing(store_dir):
    """As when it is not known whether it was done."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "0"})
        requests = run.requests(0, logged=True)
        first = run.store.close(run.lease, requests)
        before = [query(path, "SELECT * FROM changes") for path in paths_of(store_dir)]
        again = run.store.close(run.lease, requests)
        assert [query(path, "SELECT * FROM changes") for path in paths_of(store_dir)] == before
        assert [each.written for each in again] == [each.written for each in first]
        run.epoch += 1
        run.fold()
        run.store.fold(run.lease, 1, 1)
        assert found(store_dir) == {"a": "0"}
        assert problems(store_dir) == []


def test_many_keys_and_long_values_come_in_chunks(store_dir):
    """No chunk is much larger than a mebibyte, unless a single value is."""
    generator = random.Random(3)
    changes = {f"k{number:05}": "1" for number in range(3 * CHUNK_ROWS)}
    changes |= {f"l{number}": json.dumps("x" * generator.randrange(600_000)) for number in range(40)}
    with Driver(store_dir) as run:
        logged(run, 0, changes)
        sizes = [
            size
            for path in paths_of(store_dir)
            for size in query(path, "SELECT row_count, length(content) FROM changes")
        ]
        assert max(row_count for row_count, _ in sizes) <= CHUNK_ROWS
        assert max(length for _, length in sizes) < 8 * FIRST_ROWS * 600_000
        assert found(store_dir) == changes
        run.fold()
        assert texts(store_dir, 1) == changes


def test_values_that_do_not_fit_together(store_maker):
    """What SQLite cannot have in one text is logged in smaller chunks."""
    directory = store_maker(1)
    changes = {f"k{number}": json.dumps("x" * 300) for number in range(5)}
    with Driver(directory) as run:
        run.apply(0, changes)
        run.store._writers[0].limit(apsw.SQLITE_LIMIT_LENGTH, 1_000)
        run.close(0, logged=True)
        assert query(paths_of(directory)[0], "SELECT count(*) FROM changes WHERE step_id = ?", (STEP,)) >= [(3,)]
        assert found(directory) == changes


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            "UPDATE changes SET content = replace(content, '\"1\"', '\"7\"')",
            "of changes has values that do not match their digest",
        ),
        (
            "UPDATE changes SET content = CAST(x'ff' || content AS TEXT)",
            "of changes has values that do not match their digest",
        ),
        (
            "UPDATE changes SET step_id = CAST(x'ff' || step_id AS TEXT)",
            "of changes has values that do not match their digest",
        ),
        ("DELETE FROM changes", "the changes of epoch 2 are not all there"),
        ("UPDATE changes SET epoch = 9", "the changes of epoch 2 are not all there"),
        ("DELETE FROM logged", "there are changes of epoch 2, which is not logged"),
        ("UPDATE logged SET row_count = row_count + 1", "a row of table logged does not match its digest"),
    ],
)
def test_damage_is_reported(store_dir, damage, says):
    """By a check, by a reader, and by a run that would fold it, which leaves the file as it is."""
    with Driver(store_dir) as run:
        run.apply(0, {f"k{number}": "0" for number in range(20)})
        run.close(0)
        logged(run, 1, {f"k{number}": "1" for number in range(20)})
    path = paths_of(store_dir)[0]
    alter(path, damage)
    assert says in " ".join(problems(store_dir))
    before = query(path, "SELECT * FROM snaps ORDER BY 1, 2")
    if damage != "DELETE FROM changes":
        with pytest.raises(CorruptPartitionError, match="changes"):
            list(read_step([path], STEP))
    with pytest.raises(CorruptPartitionError, match=r"part-0\.sqlite3"):
        Driver(store_dir)
    assert query(path, "SELECT * FROM snaps ORDER BY 1, 2") == before


def test_damage_of_the_runs_own_rows_is_reported_when_they_are_folded(store_dir):
    """What a running flow folds it takes from its deltas; the rest is checked."""
    with Driver(store_dir) as run:
        logged(run, 0, {"a": "0"}, driver_rows={"$x": {f"k{number}": "0" for number in range(9)}})
        alter(paths_of(store_dir)[0], "UPDATE changes SET content = replace(content, 'k', 'j') WHERE step_id = '$x'")
        with pytest.raises(CorruptPartitionError, match="do not match their digest"):
            run.fold()


def counted(steps: list[int]) -> bool:
    """A progress handler, which lets SQLite go on."""
    steps.append(1)
    return False


def test_what_is_touched_does_not_cost_more_in_a_large_partition(store_dir):
    """Appending reads and writes what was touched, not what is held: counted in steps of SQLite."""
    costs = []
    with Driver(store_dir) as run:
        for held in (100, 20_000):
            run.apply(run.epoch, {f"held{number}": "0" for number in range(held)})
            run.close(run.epoch)
            run.apply(run.epoch, {f"held{number}": "1" for number in range(50)})
            steps: list[int] = []
            for writer in run.store._writers:
                writer.set_progress_handler(partial(counted, steps), 1)
            run.close(run.epoch, logged=True)
            for writer in run.store._writers:
                writer.set_progress_handler(None)
            costs.append(len(steps))
            run.fold()
    assert costs[1] < 1.2 * costs[0]


def test_another_process_may_write_between_sealing_and_logging(store_dir):
    """Operational state is set by others at any time."""
    code = "import sys; from recovery import StateManager; StateManager(sys.argv[1]).set_hwm('m', 1)"
    with Driver(store_dir) as run:
        run.apply(0, {"a": "0"})
        run.store.seal(run.lease, 0, apart=False)
        done = run_code(code, store_dir)
        assert done.returncode == 0, done.stderr
        run.close(0, logged=True)
        assert found(store_dir) == {"a": "0"}


def test_collection_leaves_what_is_logged(store_dir):
    """Nothing is given up that the log depends on."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "0"})
        run.close(0)
        logged(run, 1, {"a": "1"})
        logged(run, 2, {"a": "2"})
        assert run.store.collect(2) == [(0, 0)] * run.count
        assert window(store_dir) == (1, 2, 3)
        assert problems(store_dir) == []
        assert found(store_dir) == {"a": "2"}


@pytest.fixture
def killed(store_dir):
    """A directory as a killed run leaves it: an epoch that was moved, and two that were logged."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "0", "b": "0"})
        run.close(0)
        logged(run, 1, {"a": "1", "c": "1"})
        logged(run, 2, {"a": "2", "b": None})
    return store_dir


def collected(directory, *options: str) -> str:
    """What `recovery gc` says."""
    result = CliRunner().invoke(main, ["gc", str(directory), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_gc_folds_what_a_killed_run_left(killed):
    """So other tools find the newest state in `snaps` without another run, which goes on from there."""
    assert "collected 0 superseded rows up to epoch 3, and folded 4 logged changes: " in collected(killed)
    assert sorted(r for path in paths_of(killed) for r in query(path, "SELECT state_key, ser_change FROM snaps")) == [
        ("a", "2"),
        ("c", "1"),
    ]
    assert "folded" not in collected(killed)
    assert json.loads(collected(killed, "--json"))["changes"] == 0
    assert window(killed) == (3,)
    assert problems(killed) == []
    with Driver(killed) as run:
        assert (run.epoch, run.read(3, ["a", "b", "c"])) == (4, {"a": "2", "b": None, "c": "1"})


def test_gc_folds_nothing_that_it_shall_keep(killed):
    """With a backup interval the epochs are there to go back to."""
    before = window(killed)
    assert json.loads(collected(killed, "-b", "30000d", "--json"))["changes"] == 0
    assert window(killed) == before == (0, 1, 2, 3)
    assert found(killed, 2) == {"a": "1", "b": "0", "c": "1"}


def test_gc_folds_nothing_that_has_to_be_abandoned(store_dir):
    """An epoch that the crash left in one partition only, which holds it back until the next run."""
    with Driver(store_dir) as run:
        logged(run, 0, {"a": "0", "b": "0", "c": "0"})
        run.apply(1, {"a": "1", "b": "1", "c": "1"})
        run.store.seal(run.lease, 1, apart=False)
        run.store.close_partition(1, run.lease, run.requests(1, logged=True)[1])
    lagging, ahead = paths_of(store_dir)
    facts = json.loads(collected(store_dir, "--json"))
    assert facts["floor"] == 1
    assert query(lagging, "SELECT count(*) FROM logged") == [(0,)]
    assert query(ahead, "SELECT count(*) FROM logged") == [(2,)]
    assert problems(store_dir) == []
    with Driver(store_dir) as run:
        assert (run.epoch, run.read(1, ["a", "b", "c"])) == (2, {"a": "0", "b": "0", "c": "0"})


def test_gc_leaves_a_damaged_log(killed):
    """It says so, and changes nothing."""
    for path in paths_of(killed):
        alter(path, "UPDATE changes SET digest = digest + 1")
    before = content(killed)
    result = CliRunner().invoke(main, ["gc", str(killed)])
    assert result.exit_code == CorruptPartitionError.exit_code
    assert "do not match their digest" in result.output
    assert content(killed) == before


@pytest.mark.parametrize("point", ["fold.2.collected", "fold.2.snaps", "fold.2.epochs"])
def test_gc_killed_while_it_folds(killed, point):
    """A partition is folded or not; nothing is lost, and the next one goes on."""
    code = "import sys; from recovery.cli import main; main(['gc', sys.argv[1]])"
    done = run_code(code, killed, env={"RECOVERY_CRASH_AT": point})
    assert done.returncode == -signal.SIGKILL
    assert problems(killed) == []
    assert found(killed) == {"a": "2", "c": "1"}
    collected(killed)
    assert window(killed) == (3,)
    assert problems(killed) == []
    assert found(killed) == {"a": "2", "c": "1"}


def test_a_delta_forgets_nothing_before_it_is_folded(store_dir):
    """Sealing in between does not exchange its tables."""
    with Driver(store_dir) as run:
        [deltas] = run.store._deltas.values()
        assert deltas[0].seal(0, apart=False).since == NO_BATCH
        first = deltas[0].seal(1, apart=False)
        assert first == (deltas[0]._meta().active, 0)
        assert deltas[0].seal(1, apart=True).table == first.table != deltas[0]._meta().active


def test_the_query_in_the_docs_finds_the_newest_states(store_dir):
    """For tools of others."""
    page = (ROOT / "docs" / "file-format.md").read_text()
    [described] = re.findall(r"^## changes: .*?^```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1", "b": "1"})
        run.close(0)
        logged(run, 1, {"a": "2", "d": "2", **ODD_KEYS})
        logged(run, 2, {"a": None, "d": ("3", 9)})
        read = [row for path in paths_of(store_dir) for row in query(path, described)]
        assert sorted(read) == sorted(found(store_dir).items())


def test_status_says_of_which_epoch_the_snapshots_are(store_dir):
    """For people, and for programs."""
    with Driver(store_dir) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        assert "logged" not in CliRunner().invoke(main, ["status", str(store_dir)]).output
        logged(run, 1, {"a": "2"})
        shown = CliRunner().invoke(main, ["status", str(store_dir)]).output
        assert "epochs after 1 are only logged; keys and sizes are as of epoch 1" in shown
        facts = json.loads(CliRunner().invoke(main, ["status", str(store_dir), "--json"]).output)
        assert {(each["folded_epoch"], each["newest_epoch"]) for each in facts["partitions"]} == {(1, 2)}
