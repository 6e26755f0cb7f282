"""Commands that are given a second time: what each says, and that nothing has changed by it, byte for byte."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from recovery.backup.restore import restore
from recovery.backup.sources import open_source
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.places.opening import lasting_place, open_place
from tests.backup.support import work
from tests.forks import Forked
from tests.operators.support import write_job

SECOND = {
    # command, what goes before it, exit code of the second time, what that says
    "init": (
        "init new 3", "", 26, "it holds 3 recovery partitions already, as many as were asked for; nothing changed",
    ),
    "init of another number": ("init db 4", "", 26, "it holds 3 recovery partitions already, and not 4"),
    "gc": ("gc db -b 0", "", 0, "collected 0 superseded rows up to epoch 5"),
    "backup --prune": ("backup --prune --keep 1 place", "backup db place; backup db place", 0, "removed 0 backups"),
    "backup --verify": ("backup db place --verify", "", 0, "0 partitions stored, 3 unchanged"),
    "drill": ("drill place", "backup db place --verify", 0, "a run would begin at epoch 6"),
    "drill of incremental backups": (
        "drill place", "backup db place --incremental; backup db place --incremental --verify", 0, "begin at epoch 6",
    ),
    "restore": ("restore place new", "backup db place", 26, "it holds part-0.sqlite3"),
    "restore --lazy": (
        "restore place new --lazy", "backup db place", 0, "all of new is there already: the state after epoch 5",
    ),
    "restore --lazy of the same epoch": (
        "restore place new --lazy --epoch 4", "backup db place", 0,
        "all of new is there already: the state after epoch 4",
    ),
    "follow": ("follow place new --once", "backup db place", 0, "nothing later in"),
    "promote": (
        "promote new", "backup db place; follow place new --once", 0,
        "new is an ordinary directory already, as of the state after epoch 5, and the writer of",
    ),
    "promote --unfenced": (
        "promote new --unfenced", "backup db place; follow place new --once", 0,
        "it was promoted or restored, and no run has begun on it since; nothing changed",
    ),
    "fork": ("fork db new", "", 26, "it holds what was forked from store"),
    "repartition": ("repartition db new 2", "", 26, "it holds what was repartitioned from store"),
    "repartition --in-place": ("repartition --in-place db 2", "", 0, "db has 2 partitions already; nothing changed"),
    "repartition --drop-old": (
        "repartition --drop-old db", "repartition --in-place db 2", 0, "nothing is kept beside it",
    ),
    "checkpoint import": (
        "checkpoint import job new --flow flow", "init new 2", 26,
        "after micro-batch 4 already: epoch 1 of flow 'flow'",
    ),
}  # fmt: skip
CHANGES = {
    "gc": r"part-\d\.sqlite3",
    "drill": r"\d+-[0-9a-f]+\.json",
    "drill of incremental backups": r"\d+-[0-9a-f]+\.json",
    "backup --verify": r"last-backup\.json|.*\.json\.gz",
}
"""Files that the second time may change, though not what they hold: SQLite counts how often a file was compacted; each
backup has a manifest, and each drill a note."""


@pytest.fixture(autouse=True)
def here(make_store: Callable[..., Path], tmp_path: Path) -> Iterator[Path]:
    """An empty directory with a store of three partitions and five epochs, and a Spark checkpoint."""
    with contextlib.chdir(tmp_path):
        shutil.copytree(make_store(3, work, 5), "db")
        write_job(Path("job"), batch=4)
        yield tmp_path


def call(command: str, code: int = 0) -> Result:
    """A command as a user gives it; its exit code is checked."""
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == code, (command, result.output, result.exception)
    return result


def contents(*directories: str | Path) -> dict[str, bytes]:
    """All files, except locks, which name their holder while it runs."""
    return {
        str(path): path.read_bytes()
        for directory in directories or (".",)
        for path in Path(directory).rglob("*")
        if path.is_file() and path.name != "recovery.lock"
    }


@pytest.mark.parametrize("case", SECOND)
def test_a_second_time_changes_nothing_and_says_so(case: str) -> None:
    """With 0 where the first time has left nothing to do, else with an error that says that it was done before."""
    command, before, code, says = SECOND[case]
    for each in filter(None, before.split("; ")):
        call(each)
    if case != "init of another number":
        call(command)
    before_it = contents()
    result = call(command, code)
    assert says in result.output
    after = contents()
    changed = {name for name in {*before_it, *after} if before_it.get(name) != after.get(name)}
    assert not [name for name in changed if not re.fullmatch(CHANGES.get(case, ""), Path(name).name)]


def test_a_restore_that_was_used_since_is_not_taken_for_done() -> None:
    """A run has begun on it: the directory is refused, as is one that a restore of another epoch has made."""
    call("backup db place")
    call("restore place new --lazy")
    call("restore place new --lazy --epoch 3", 26)
    work(Path("new"), 1)
    there = contents("new")
    call("restore place new --lazy", 26)
    assert contents("new") == there
    (Path("new") / "restored.json").unlink()
    call("restore place new --lazy", 26)
    assert contents("new") == {name: content for name, content in there.items() if "restored" not in name}


def test_a_lazy_restore_that_was_ended_early_is_continued_and_says_how_much_is_left() -> None:
    """A dry run says that it would be continued; the JSON of the second time has where runs resume."""
    call("backup db place")
    Path("scratch").mkdir()
    restore(
        open_source(open_place("place"), Path("scratch"), SystemClock()), Path("new"), clock=SystemClock(),
        random_id=lambda: "0123abcd", lazy_from=lasting_place("place"),
    )  # fmt: skip
    there = contents("new")
    assert "the restore that has begun them would be continued" in call("restore place new --lazy --dry-run").output
    assert contents("new") == there
    text = call("restore place new --lazy").output
    assert "new can be used; an earlier restore is continued: " in text
    assert text.splitlines()[-1].startswith("all of new is there: the state after epoch 5, 3 partitions; the next run")
    facts = json.loads(call("restore place new --lazy --json").output)
    assert (facts["continued"], facts["epoch"], facts["resume_epoch"]) == (False, 5, 6)


def test_a_promoted_directory_that_was_taken_over_since_is_refused_and_names_the_writer() -> None:
    """Whoever promotes it again must not believe that it is still the writer."""
    call("backup db place")
    call("follow place one --once")
    call("promote one")
    call("backup one place")
    call("follow place two --once")
    call("promote two")
    there = contents()
    assert "is the store's writer now, with term 3" in call("promote one", 59).output
    assert "the writer of" in call("promote two").output
    assert contents() == there


def test_another_place_does_not_hide_that_the_store_was_taken_over() -> None:
    """The directory is the only one that is backed up to its own place, and no longer the store's writer; a place that
    is gone says nothing."""
    call("backup db place")
    call("follow place one --once")
    call("promote one")
    call("backup one other")
    assert "nothing changed" in call("promote one").output
    call("follow place two --once")
    call("promote two")
    assert "place: a promotion on" in call("promote one", 59).output
    Path("place").rename("gone")
    assert "nothing changed" in call("promote one").output


@pytest.mark.parametrize("place", ["a#b", "a?b=c", "a%41", "a b"])
def test_a_promotion_finds_its_place_again_whatever_its_name_is(here: Path, place: str) -> None:
    """The directory has noted the place's path; no character in it is taken for a part of an address."""
    for command in (["backup", "db", place], ["follow", place, "new", "--once"], ["promote", "new"]):
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, (command, result.output)
    there = contents()
    for command in ("promote new", "promote new --dry-run"):
        assert f"and the writer of {here / place}, with term 2; nothing changed" in call(command).output
    assert contents() == there


def test_a_follower_that_was_stopped_goes_on(here: Path) -> None:
    """SIGTERM ends it with 0; started again, it applies what came meanwhile."""
    call("backup db place --incremental")
    for epoch in (5, 6):
        words = ["-m", "recovery", "follow", "place", "new", "--every", "100ms"]
        following = Forked(words, env={"PATH": ""}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            until_s = time.monotonic() + 60
            while (line := following.stdout.readline()) and not line.startswith(f"epoch {epoch},"):
                assert time.monotonic() < until_s, line
            following.send_signal(signal.SIGTERM)
            assert following.wait(60) == 0
        finally:
            following.kill()
            following.communicate()
        work(Path("db"), 1)
        call("backup db place --incremental")
