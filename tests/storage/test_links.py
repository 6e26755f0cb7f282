"""Partitions behind links: one lock for one file whatever the path, and no file with two names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from click.testing import CliRunner

from recovery import StateManager
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import DirectoryLockedError, FileReplacedError, LinkedPartitionError, RecoveryError
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import STAGING
from recovery.storage.lock import DirectoryLock, lock_holder
from recovery.storage.scan import scan
from recovery.storage.sqlite.store import FilePartitions
from tests.forks import Forked
from tests.stores import STEP, Driver, paths_of, problems, state_at, window

HOLD = """
import sys
from pathlib import Path
from recovery.base.clock import SystemClock
from recovery.storage.lock import DirectoryLock
with DirectoryLock(Path(sys.argv[1]), SystemClock(), "flow elsewhere"):
    print("held", flush=True)
    sys.stdin.read()
"""


def lock(directory: Path) -> DirectoryLock:
    """Of a run on this directory."""
    return DirectoryLock(directory, SystemClock(), f"flow on {directory.name}")


def refused(directory: Path) -> str:
    """The error that a second run gets."""
    with pytest.raises(DirectoryLockedError) as raised, lock(directory):
        pass
    assert raised.value.path == str(directory)
    return raised.value.found


def filled(directory: Path) -> Path:
    """Two epochs."""
    with Driver(directory) as run:
        for batch in range(2):
            run.apply(batch, {"a": str(batch), "b": "1"})
            run.close(batch)
    return directory


def spread(directory: Path, place: Path) -> Path:
    """Move every partition to a place of its own, and leave a link."""
    for path in paths_of(directory):
        there = place / f"disk-{path.stem}"
        there.mkdir(parents=True)
        shutil.move(path, there / path.name)
        path.symlink_to(there / path.name)
    return directory


def invoke(*arguments: object) -> str:
    """The output of a command that ends well."""
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


class TestOneLock:
    """For one file, by whatever path it is reached."""

    def test_two_directories_of_links_to_the_same_files(self, store_dir, tmp_path):
        """As `cp -r` makes of a directory with links: one of the two can run."""
        spread(store_dir, tmp_path)
        shutil.copytree(store_dir, tmp_path / "copy", symlinks=True)
        with lock(store_dir):
            assert "part-0.sqlite3 leads to" in refused(tmp_path / "copy")
            assert f"(flow on {store_dir.name})" in refused(tmp_path / "copy")
            assert lock_holder(tmp_path / "copy")["pid"] == os.getpid()
        with lock(tmp_path / "copy"):
            refused(store_dir)
            assert lock_holder(store_dir)["purpose"] == "flow on copy"
        assert lock_holder(store_dir) is None
        assert lock_holder(tmp_path / "copy") is None

    def test_a_directory_of_links_into_another_directory(self, store_dir, tmp_path, monkeypatch):
        """It is refused. With the variable, the files of one that runs are in use, and so is their directory."""
        # How often to look for a name that nobody writes.
        monkeypatch.setattr("recovery.storage.lock.NAME_ATTEMPTS", 3)
        links = tmp_path / "links"
        links.mkdir()
        for path in paths_of(store_dir):
            (links / path.name).symlink_to(path)
        before = sorted(each.name for each in store_dir.iterdir())
        with pytest.raises(LinkedPartitionError, match="has all partitions itself"), lock(links):
            pass
        result = CliRunner().invoke(main, ["hwm", "set", str(links), "orders", "99"])
        assert (result.exit_code, "RECOVERY_THROUGH_LINKS=1" in result.output) == (14, True), result.output
        assert sorted(each.name for each in store_dir.iterdir()) == before
        for words in (["status"], ["plan"], ["verify"]):
            looked = CliRunner().invoke(main, [*words, str(links)])
            assert f"part-0.sqlite3 is a link to {paths_of(store_dir)[0]}" in looked.output
            found = json.loads(CliRunner().invoke(main, [*words, str(links), "--json"]).output)
            assert found["links"] == {path.name: str(path) for path in paths_of(store_dir)}
        monkeypatch.setenv("RECOVERY_THROUGH_LINKS", "1")
        with lock(store_dir):
            refused(links)
            assert lock_holder(links) is not None
        with lock(links):
            assert "(flow on links)" in refused(store_dir)
            assert lock_holder(store_dir)["purpose"] == "flow on links"
        with lock(store_dir):
            pass

    def test_links_to_links(self, store_dir, tmp_path):
        """What counts is where they end."""
        spread(store_dir, tmp_path)
        links = tmp_path / "links"
        links.mkdir()
        for path in paths_of(store_dir):
            (links / path.name).symlink_to(path)
        with lock(store_dir):
            refused(links)
        with lock(links):
            refused(store_dir)

    def test_a_single_file_that_is_shared(self, store_dir, make_store, tmp_path):
        """It is enough that one partition is the same; and what was taken before is given back."""
        other = make_store(2)
        spread(store_dir, tmp_path)
        (other / "part-1.sqlite3").unlink()
        (other / "part-1.sqlite3").symlink_to(store_dir / "part-1.sqlite3")
        with lock(store_dir):
            refused(other)
            assert not (store_dir / "part-1.sqlite3").samefile(store_dir / "part-0.sqlite3")
        with lock(other):
            refused(store_dir)
        for directory in (other, store_dir):
            with lock(directory):
                pass

    def test_files_of_two_stores_in_one_directory(self, store_dir, make_store, tmp_path):
        """They have other names there, and neither keeps the other from running."""
        other, disk = make_store(1), tmp_path / "disk"
        disk.mkdir()
        for directory, name in ((store_dir, "first"), (other, "second")):
            shutil.move(directory / "part-0.sqlite3", disk / name)
            (directory / "part-0.sqlite3").symlink_to(disk / name)
        with lock(store_dir), lock(other):
            assert lock_holder(store_dir)["purpose"] == f"flow on {store_dir.name}"
            assert lock_holder(other)["purpose"] == f"flow on {other.name}"

    def test_a_file_beside_its_link(self, store_dir):
        """A link may lead to another name in its own directory."""
        (store_dir / "part-0.sqlite3").rename(store_dir / "fast")
        (store_dir / "part-0.sqlite3").symlink_to("fast")
        with lock(store_dir):
            refused(store_dir)
        filled(store_dir)
        assert problems(store_dir) == []

    def test_a_directory_behind_a_link(self, store_dir, tmp_path):
        """It is the same directory, with one lock."""
        (tmp_path / "db").symlink_to(store_dir)
        (tmp_path / "parent").symlink_to(store_dir.parent)
        for one, other in ((store_dir, tmp_path / "db"), (tmp_path / "parent" / store_dir.name, store_dir)):
            with lock(one):
                refused(other)
                assert lock_holder(other) is not None
        filled(tmp_path / "db")
        assert window(store_dir) == (0, 1, 2)

    def test_the_death_of_its_holder_frees_it(self, store_dir, tmp_path):
        """All of it, as that of a directory without links."""
        spread(store_dir, tmp_path)
        shutil.copytree(store_dir, tmp_path / "copy", symlinks=True)
        with Forked(["-c", HOLD, store_dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"held\n"
            assert f"process {process.pid} " in refused(tmp_path / "copy")
            process.kill()
            process.wait()
        with lock(tmp_path / "copy"):
            pass

    @pytest.mark.parametrize("at", ["file", "directory"])
    def test_its_files_are_watched(self, store_dir, tmp_path, at):
        """Each of them: who removes one lets another run begin."""
        spread(store_dir, tmp_path)
        with lock(store_dir) as held:
            held.check()
            there = tmp_path / "disk-part-1"
            gone = there / ("recovery.lock" if at == "directory" else "recovery-part-1.sqlite3.lock")
            gone.unlink()
            with pytest.raises(FileReplacedError) as raised:
                held.check()
            assert raised.value.path == str(gone)


class TestSymbolicLinks:
    """Partitions on several disks."""

    def test_every_command_works(self, store_dir, tmp_path):
        """What was written through links is found through them, backed up, checked, collected and restored."""
        spread(store_dir, tmp_path / "disks")
        filled(store_dir)
        assert sorted(path.is_symlink() for path in store_dir.glob("part-*")) == [True, True]
        StateManager(store_dir).set_hwm("orders", 5)
        for command in ("plan", "verify", "status", "runs", "report"):
            more = ["-o", tmp_path / "report.html"] if command == "report" else []
            invoke(command, *([store_dir, *more]))
        invoke("gc", store_dir)
        invoke("backup", store_dir, tmp_path / "backups")
        invoke("restore", tmp_path / "backups", tmp_path / "restored")
        assert window(tmp_path / "restored") == window(store_dir)
        assert StateManager(tmp_path / "restored").get_hwm("orders") == 5
        assert problems(store_dir) == problems(tmp_path / "restored") == []
        assert all(path.is_symlink() for path in paths_of(store_dir))

    def test_the_log_lies_where_the_link_leads(self, store_dir, tmp_path):
        """So the directory of links holds none."""
        spread(store_dir, tmp_path)
        with Driver(store_dir) as run:
            run.apply(0, {"a": "1"})
            run.close(0)
            assert (tmp_path / "disk-part-0" / "part-0.sqlite3-wal").exists()
            assert list(store_dir.glob("*-wal")) == []
            run.store.open(run.lease, 1)

    def test_init_leaves_links_alone(self, store_dir, tmp_path):
        """Also those that lead nowhere: what they led to may only be away."""
        spread(store_dir, tmp_path)
        (tmp_path / "disk-part-1" / "part-1.sqlite3").unlink()
        result = CliRunner().invoke(main, ["init", str(store_dir), "2"])
        assert result.exit_code == 26, result.output

    def test_commands_name_a_link_that_leads_nowhere(self, store_dir, tmp_path):
        """And where it led."""
        spread(store_dir, tmp_path)
        (tmp_path / "disk-part-1" / "part-1.sqlite3").unlink()
        for command in ("plan", "verify", "gc"):
            result = CliRunner().invoke(main, [command, str(store_dir)])
            assert result.exit_code == 12, (command, result.output)
            assert "part-1.sqlite3: it is a link to" in result.output
            assert str(tmp_path / "disk-part-1") in result.output


def contents(directory: Path) -> dict[str, bytes]:
    """Of the partitions, and what lies beside them."""
    return {path.name: path.read_bytes() for path in directory.glob("part-*")}


def by_name(directory: Path, place: Path) -> Path:
    """A second name of one file elsewhere, as `cp -l` makes it."""
    (directory / "other").hardlink_to(directory / "part-1.sqlite3")
    return directory


def of_real(directory: Path, place: Path) -> Path:
    """A second name of the file that a link leads to."""
    spread(directory, place)
    (place / "other").hardlink_to((directory / "part-1.sqlite3").resolve())
    return directory


@pytest.mark.parametrize("make", [by_name, of_real])
class TestHardLinks:
    """A file with two names has two logs: it is refused by name, before anything is written."""

    def test_planning_refuses_it(self, store_dir, tmp_path, make: Callable):
        """So does everything that plans, and nothing changes."""
        make(filled(store_dir), tmp_path)
        before = contents(store_dir)
        with pytest.raises(LinkedPartitionError) as raised:
            plan_resume(scan(store_dir))
        assert raised.value.path == str(store_dir / "part-1.sqlite3")
        assert "1 other name (hard link)" in raised.value.found
        assert "cp part-1.sqlite3 part-1.sqlite3.copy && mv part-1.sqlite3.copy part-1.sqlite3" in raised.value.remedy
        for arguments in (
            ("plan", store_dir),
            ("verify", store_dir),
            ("gc", store_dir),
            ("backup", store_dir, tmp_path / "backups"),
            ("state", "set", store_dir, "--step", "count", "--key", "a", "5"),
        ):
            result = CliRunner().invoke(main, [str(each) for each in arguments])
            assert result.exit_code == 14, (arguments, result.output)
            assert "part-1.sqlite3: this file has 1 other name" in result.output.replace("\n", " ")
        assert contents(store_dir) == before

    def test_who_writes_refuses_it(self, store_dir, tmp_path, make: Callable):
        """Also without a plan."""
        make(store_dir, tmp_path)
        with pytest.raises(LinkedPartitionError):
            FilePartitions(paths_of(store_dir), store_dir / "scratch")

    def test_status_shows_it(self, store_dir, tmp_path, make: Callable):
        """And that no run begins."""
        make(store_dir, tmp_path)
        shown = invoke("status", store_dir)
        assert "LinkedPartitionError" in shown
        assert "It cannot be resumed" in shown

    def test_the_way_out_works(self, store_dir, tmp_path, make: Callable):
        """By the way out that the error names."""
        make(filled(store_dir), tmp_path)
        with pytest.raises(LinkedPartitionError) as raised:
            plan_resume(scan(store_dir))
        command = raised.value.remedy.partition(": ")[2]
        there = (store_dir / "part-1.sqlite3").resolve().parent
        assert subprocess.run(command, shell=True, cwd=there, check=False).returncode == 0
        assert window(store_dir) == (0, 1, 2)
        assert problems(store_dir) == []

    def test_the_way_out_overwrites_no_other_file(self, store_dir, tmp_path, make: Callable):
        """A copy of an earlier day may have the first name of the new one."""
        make(filled(store_dir), tmp_path)
        there = (store_dir / "part-1.sqlite3").resolve().parent
        old = there / "part-1.sqlite3.copy"
        old.write_text("old")
        with pytest.raises(LinkedPartitionError) as raised:
            plan_resume(scan(store_dir))
        command = raised.value.remedy.partition(": ")[2]
        assert subprocess.run(command, shell=True, cwd=there, check=False).returncode == 0
        assert old.read_text() == "old"
        assert window(store_dir) == (0, 1, 2)


def test_operational_state_is_not_written_to_a_file_with_two_names(store_dir, tmp_path):
    """It is read: whoever only looks needs no other file."""
    StateManager(store_dir).set_hwm("orders", 5)
    (store_dir / "other").hardlink_to(store_dir / "part-0.sqlite3")
    with pytest.raises(LinkedPartitionError):
        StateManager(store_dir).set_hwm("orders", 6)
    assert StateManager(store_dir).get_hwm("orders") == 5


def test_copies_that_share_their_bytes_can_be_restored(store_dir, tmp_path):
    """As `rsync --link-dest` keeps them: what is restored has files of its own."""
    filled(store_dir)
    shutil.copytree(store_dir, tmp_path / "copies" / "monday")
    shutil.copytree(tmp_path / "copies" / "monday", tmp_path / "copies" / "tuesday", copy_function=os.link)
    invoke("restore", tmp_path / "copies" / "tuesday", tmp_path / "restored")
    assert {path.stat().st_nlink for path in paths_of(tmp_path / "restored")} == {1}
    assert window(tmp_path / "restored") == (0, 1, 2)


def test_what_a_killed_init_left_is_no_other_name(store_dir):
    """It links files from where it made them, and may be killed before it removes that."""
    staging = store_dir / f"{STAGING}0123456789abcdef"
    staging.mkdir()
    for path in paths_of(store_dir):
        (staging / path.name).hardlink_to(path)
    filled(store_dir)
    assert window(store_dir) == (0, 1, 2)
    assert state_at(store_dir, 2) == {(STEP, "a"): ("1", None), (STEP, "b"): ("1", None)}


def test_another_program_s_database_may_have_any_names(store_dir):
    """The link is not part of the directory."""
    connection = apsw.Connection(str(store_dir / "other.sqlite3"))
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    (store_dir / "link").hardlink_to(store_dir / "other.sqlite3")
    assert len(scan(store_dir)) == 2


def test_a_lock_that_cannot_be_made_where_a_link_leads(store_dir, tmp_path, monkeypatch):
    """It is an error that names the file, and nothing stays locked."""
    spread(store_dir, tmp_path)
    original = os.open

    def opening(path, *rest, **options):
        if "disk-part-1" in str(path):
            raise PermissionError(13, "Permission denied")
        return original(path, *rest, **options)

    monkeypatch.setattr(os, "open", opening)
    with pytest.raises(RecoveryError) as raised, lock(store_dir):
        pass
    assert "disk-part-1" in raised.value.path
    monkeypatch.undo()
    with lock(store_dir):
        pass
