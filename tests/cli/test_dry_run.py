"""--dry-run: it changes nothing, byte for byte, and the command afterwards does precisely what it said."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.operational.manager import StateManager
from recovery.storage.initialize import init_partitions
from tests.backup.support import work
from tests.cli.test_repeated import call, contents
from tests.owner.served import Served, invoked, recovery, spread, token_file
from tests.stores import Driver

OF_TIME = {"since_ms", "elapsed_s", "age_ms", "store_id", "origin", "nonce"}
"""Facts that differ each time."""


def everything(*directories: Path) -> dict[str, bytes]:
    """All files and directories, locks included."""
    return {
        str(path): path.read_bytes() if path.is_file() else b"directory"
        for directory in directories
        for path in directory.rglob("*")
    }


def facts(command: str, code: int = 0) -> dict[str, Any]:
    """What a command says for programs, without what differs each time, and without `dry_run`, which is checked."""
    found = json.loads(call(f"{command} --json", code).stdout)
    assert found.pop("dry_run") == ("--dry-run" in command)
    return _lasting(found)


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(each) for name, each in value.items() if name not in OF_TIME}
    return value


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    """An empty directory with a store of three partitions and five epochs."""
    with contextlib.chdir(tmp_path):
        init_partitions("db", 3)
        work(Path("db"), 5)
        yield tmp_path


def test_prune(here: Path) -> None:
    """Backups, chains of incremental ones, and what unfinished backups have left, by name and number."""
    for incremental in (False, True, True, False):
        work(Path("db"), 1)
        call(f"backup db place{' --incremental' if incremental else ''}")
    old = time.time() - 2 * 86_400
    for name in ("manifests/20200101T000000.000Z-00000000.json.gz", "running/20200101T000000.000Z-00000001.json.gz"):
        Path("place", name).parent.mkdir(exist_ok=True)
        Path("place", name).write_bytes(b"torn")
        os.utime(Path("place", name), (old, old))
    before = everything(here)
    text = call("backup place --prune --keep 1 --dry-run").stdout
    said = facts("backup place --prune --keep 1 --dry-run")
    assert everything(here) == before
    assert text.startswith(f"would remove backup {said['removed'][0]}\n")
    assert (len(said["removed"]), len(said["kept"]), len(said["leftovers"])) == (3, 1, 2)
    done = call("backup place --prune --keep 1").stdout
    gone = {name: content for name, content in before.items() if name not in everything(here)}
    assert done == text.replace("would remove", "removed")
    names = [Path(name).name.partition(".json")[0] for name in gone if "/manifests/" in name or "/running/" in name]
    assert sorted(names) == sorted(
        [*said["removed"], *(Path(each).name.partition(".json")[0] for each in said["leftovers"])]
    )
    objects = [content for name, content in gone.items() if "/objects/" in name]
    assert (len(objects), sum(map(len, objects))) == (said["objects"], said["bytes"])
    nothing = facts("backup place --prune --keep 1")
    assert (nothing["removed"], nothing["leftovers"], nothing["objects"]) == ([], [], 0)


def test_prune_needs_prune() -> None:
    """`backup --dry-run` alone would be taken for a backup that was made."""
    assert "give both" in call("backup db place --dry-run", 2).output
    assert not Path("place").exists()


def _full_of_garbage() -> None:
    """Superseded rows, what a killed run left logged, and expired scoped state."""
    with Driver(Path("db")) as run:
        for number in (1, 2):
            batch = run.plan.snapshot.batch_id + number
            run.apply(batch, {f"k{key}": f"logged.{number}" for key in range(40)})
            run.store.seal(run.lease, batch, apart=number < 2)
            run.close(batch, logged=number > 1, floor=0)
    state = StateManager("db")
    for name in "abc":
        state.process_state("jobs", name).set(name, 0.001)
    state.process_state("jobs", "kept").set("x")
    time.sleep(0.01)


@pytest.mark.parametrize("interval", ["-b 0", ""])
def test_gc(here: Path, interval: str) -> None:
    """Rows, logged changes, expired states, sizes, and the epochs that runs can no longer go back to."""
    _full_of_garbage()
    # A reader of the state manager may have left SQLite's log beside part-0.
    before = everything(here)
    text = call(f"gc db {interval} --dry-run").stdout
    said = facts(f"gc db {interval} --dry-run")
    assert everything(here) == before
    assert (said["expired"], said["changes"] > 0, said["rows"] > 0) == (3, True, True)
    done = facts(f"gc db {interval}")
    assert done == said
    assert f"would collect {said['rows']} superseded rows up to epoch {said['floor']}" in text
    assert StateManager("db").process_state("jobs", "kept").get() == "x"


def test_gc_refuses_what_it_would_refuse(here: Path) -> None:
    """During a run, on a standby, and with an interval that discards history."""
    from recovery.base.clock import SystemClock
    from recovery.storage.lock import DirectoryLock

    with DirectoryLock(Path("db"), SystemClock(), "a run"):
        assert "in use by" in call("gc db --dry-run", 40).output
    call("backup db place")
    call("follow place standby --once")
    call("gc standby --dry-run", 58)
    call("gc none --dry-run", 20)


def test_gc_at_owners(tmp_path: Path) -> None:
    """Two real owners: each keeps its files, and the command afterwards collects what the dry run said."""
    _full_of_garbage()
    db, *away = spread(tmp_path / "db", [(), (0, 2), (1,)])
    token = token_file(tmp_path)
    with contextlib.ExitStack() as served:
        owners = [Served(directory, token) for directory in away]
        for owner in owners:
            served.callback(owner.kill)
        words = ["gc", db, "-b", "0", "--json", "--token-file", token]
        words += [word for owner in owners for word in ("--owner", owner.at)]
        before = contents(db, *away)
        said = invoked(*words, "--dry-run")
        assert said.returncode == 0, said.stderr
        # An owner that sends copies makes its scratch directory, and leaves it empty.
        assert contents(db, *away) == before
        done = invoked(*words)
        assert {**json.loads(done.stdout), "dry_run": True} == json.loads(said.stdout)


@pytest.mark.parametrize("unfenced", ["", " --unfenced"])
@pytest.mark.parametrize("damaged", [False, True])
def test_promote(here: Path, unfenced: str, damaged: bool) -> None:
    """The backup that is reached, what is lost, and the term that is claimed; also if the latest backup is damaged."""
    call("backup db place --incremental")
    call("follow place standby --once")
    for _ in range(2):
        work(Path("db"), 1)
        call("backup db place --incremental")
    if damaged:
        newest = sorted(Path("place").glob("objects/part-1/*"))[-1]
        newest.write_bytes(b"x" + newest.read_bytes()[1:])
    before = everything(here)
    text = call(f"promote standby --dry-run{unfenced}").stdout
    said = facts(f"promote standby --dry-run{unfenced}")
    assert everything(here) == before
    assert said["epoch"] == (5 if unfenced else 6 if damaged else 7)
    assert (said["lost_epochs"], bool(said["missed"])) == (
        ([7, 7], True) if damaged and not unfenced else (None, False)
    )
    assert text.startswith("would promote standby: the state after epoch ")
    assert facts(f"promote standby{unfenced}") == said
    assert facts(f"promote standby --dry-run{unfenced}")["changed"] is False


def test_a_dry_run_of_a_promotion_does_not_complete_what_a_killed_follow_left(here: Path) -> None:
    """It says that the directory is between two backups; the promotion itself completes that."""
    call("backup db place --incremental")
    call("follow place standby --once")
    work(Path("db"), 1)
    call("backup db place --incremental")
    killed = recovery("follow", here / "place", here / "standby", "--once", RECOVERY_CRASH_AT="follow.4")
    assert killed.returncode not in (0, 1), killed.stderr
    before = everything(here)
    assert "to which it was being brought" in call("promote standby --dry-run", 58).output
    assert everything(here) == before
    assert facts("promote standby")["epoch"] == 6


@pytest.mark.parametrize("command", ["fork db new", "repartition db new 2", "repartition --in-place db 2"])
def test_others_change_nothing(here: Path, command: str) -> None:
    """Not even a lock."""
    before = everything(here)
    call(f"{command} --dry-run")
    assert everything(here) == before


def test_a_restore_into_a_directory_that_holds_partitions_says_that_it_is_refused(here: Path) -> None:
    """As the command itself does: with the plan, which is of use in a disaster."""
    call("backup db place")
    before = everything(here)
    assert (
        "db holds part-0.sqlite3, part-1.sqlite3, part-2.sqlite3: it is refused"
        in call("restore place db --dry-run").stdout
    )
    assert facts("restore place db --dry-run")["held"] == ["part-0.sqlite3", "part-1.sqlite3", "part-2.sqlite3"]
    assert everything(here) == before
