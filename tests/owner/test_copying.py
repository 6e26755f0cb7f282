"""Commands that read partitions of owners: what they say is what they say of all partitions in one directory."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from recovery.base.reserved import EPOCH_STEP
from recovery.cli import main
from recovery.errors import StorageError
from recovery.planning.resume import plan_resume
from recovery.storage import copied as copying
from recovery.storage.copied import copied
from recovery.storage.scan import scan
from recovery.wire.calls import Piece
from tests.stores import Driver, SpreadDirectory, partition_of, problems, state_at, window

KEYS = "abcdefgh"


def called(*words: object) -> Any:
    """What a command prints as JSON."""
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)


@pytest.fixture
def made(make_store) -> Path:
    """Three partitions with three epochs."""
    directory = make_store(3)
    with Driver(directory, ["count"]) as run:
        for batch in range(3):
            run.apply(batch, dict.fromkeys(KEYS, f"{batch}"), step="count")
            run.close(batch)
    return directory


@pytest.fixture
def here(made, tmp_path) -> Path:
    """A copy of all partitions in one directory."""
    return Path(shutil.copytree(made, tmp_path / "here"))


@pytest.fixture
def there(made, here):
    """The same partitions at two owners, one of them with the first, and one in the driver's directory."""
    places = SpreadDirectory(made, ((1,), (0,), (2,)), together=True)
    yield places
    places.close()


@pytest.fixture
def options(there) -> list[object]:
    """Those that name the owners."""
    named = [word for each in there.services for word in ("--owner", each.at)]
    return [*named, "--token-file", there.token]


@pytest.mark.parametrize("command", [
    "advise DIR --cores 2 --json", "history DIR --step count --key a --json", "state list DIR --step count --json",
    "state get DIR --step count --key b --json", "diff DIR DIR --epoch-a 2 --json", "diff DIR HERE --json",
    "state list DIR --json", "hwm list DIR --json", "runs DIR --json",
])  # fmt: skip
def test_a_command_that_reads(command, there, here, options):
    one = called(*command.replace("DIR", str(here)).replace("HERE", str(here)).split())
    other = called(*command.replace("DIR", str(there.places[0])).replace("HERE", str(here)).split(), *options)
    answered = json.loads(json.dumps(other).replace(str(there.places[0]), str(here)))
    if command.startswith("advise"):
        assert len(answered.pop("owners")) == 2
        assert one.pop("owners") == []
    assert answered == one


def test_a_report(there, here, options, tmp_path):
    """All partitions and the largest keys are on the page, and what says who has the directory."""
    found = called("report", there.places[0], "-o", tmp_path / "page.html", "--json", *options)
    assert found["unreadable"] == []
    page = (tmp_path / "page.html").read_text()
    assert str(there.places[0]) in page
    assert all(f"part-{index}" in page for index in range(3))


def test_a_backup_and_its_restore(there, here, options, tmp_path):
    """The backup has the partitions of all places, and the run's directory the note of it."""
    for incremental in ((), ("--incremental",)):
        found = called("backup", there.places[0], tmp_path / "backups", "--json", *incremental, *options)
        assert (found["partitions"], found["epoch"]) == (3, 3)
    assert found["unchanged"] == 3
    assert (there.places[0] / "last-backup.json").exists()
    called("restore", tmp_path / "backups", tmp_path / "restored", "--json")
    assert state_at(tmp_path / "restored", 3) == state_at(here, 3)


def test_documents_are_written_where_partition_0_is(there, options):
    """Marks and other documents, with the options or with variables."""
    directory = there.places[0]
    done = CliRunner().invoke(main, ["hwm", "set", str(directory), "orders", "7", *map(str, options)])
    assert done.exit_code == 0, done.output
    named = ",".join(each.at for each in there.services)
    variables = {"RECOVERY_OWNERS": named, "RECOVERY_TOKEN_FILE": str(there.token)}
    assert json.loads(CliRunner().invoke(main, ["hwm", "get", str(directory), "orders"], env=variables).stdout) == 7
    # The documented name of the default backend.
    for own in ((), ("--state-backend", "recovery")):
        assert called("hwm", "get", directory, "orders", "--json", *own, *options)["value"] == 7
        assert called("history", directory, "--hwm", "orders", "--json", *own, *options)["now"]["value"] == 7
    called("state", "set", directory, "a/b", '{"n": 1}', "--yes", "--json", *options)
    assert called("state", "get", there.places[1], "a/b", "--json")["content"] == {"n": 1}


def test_an_edit_of_a_step(there, here, options):
    """It is an epoch of all partitions, with an entry in the run history; not while a run holds the owners."""
    directory = there.places[0]
    words = ("--step", "count", "--yes", "--json")
    for where, named in ((here, []), (directory, options)):
        assert called("state", "clear", where, "--key", "a", *words, *named) == {"done": "epoch 4 closed: 1 key edited"}
        called("state", "set", where, "--key", "b", '{"n": 5}', *words, *named)
        called("state", "copy", where, "b", "new", *words, *named)
        assert called("state", "merge", where, "--key", "b", "5", *words, *named)["done"].startswith("epoch 7")
        assert called("state", "merge", where, "--key", "b", "5", *words, *named) == {"done": "nothing to change"}
    one, other = (called("state", "list", where, "--step", "count", "--json", *named)
                  for where, named in ((here, []), (directory, options)))  # fmt: skip
    assert one == other
    edits = called("runs", directory, "--json", *options)
    assert edits[-1]["details"]["what"] == "clear"
    assert [each["status"] for each in edits] == ["succeeded"] * 4
    run = there.locations(run="one")
    refused = CliRunner().invoke(main, ["state", "clear", str(directory), "--key", "b", *words, "--force",
                                        *map(str, options)])  # fmt: skip
    assert refused.exit_code == 40, refused.output
    run.release()


def test_marks_that_epochs_moved(there, options):
    """Marks that epochs have moved are read and changed as in one directory: never back without force, and not during
    a run, which may move the marks. During a run, commands that concern no marks work."""
    directory = there.places[0]
    key = next(f"/orders{n}" for n in range(99) if partition_of(f"/orders{n}", 3) == 0)
    with Driver(there, ["count", EPOCH_STEP]) as run:
        run.apply(3, {key: '{"value": 41, "changed_ms": 1, "version": 0}'}, step=EPOCH_STEP)
        run.close(3)
    [mark] = called("hwm", "list", directory, "--json", *options)
    assert (mark["key"], mark["value"]) == (key[1:], 41)
    assert called("hwm", "get", directory, key[1:], "--json", *options) == mark
    assert called("runs", directory, "--json", *options) == []
    before = [path.read_bytes() for path in there.paths()]
    run = there.locations(run="one")
    for words, code in ((("hwm", "set", directory, key[1:], 50), 40), (("state", "set", directory, "a", "1", "-y"), 0)):
        done = CliRunner().invoke(main, [*map(str, words), *map(str, options)])
        assert (done.exit_code, "run one" in done.stderr) == (code, code == 40), done.output
        if code:
            assert [path.read_bytes() for path in there.paths()] == before
    run.release()
    back = CliRunner().invoke(main, ["hwm", "set", str(directory), key[1:], "40", *map(str, options)])
    assert (back.exit_code, "41" in back.stderr) == (42, True), back.output
    called("hwm", "set", directory, key[1:], 50, "--json", *options)
    assert called("hwm", "get", directory, key[1:], "--json", *options)["value"] == 50
    listed = CliRunner().invoke(main, ["state", "list", str(directory), *map(str, options)]).stdout
    assert listed.split() == ["a", "hwm"]
    called("hwm", "rm", directory, key[1:], "--json", *options)
    assert called("hwm", "list", directory, "--json", *options) == []


def test_copies_while_a_run_closes_epochs(make_store, tmp_path):
    """Each is sound, and holds an epoch that all partitions have."""
    places = SpreadDirectory(make_store(4), ((1,), (0, 3), (2,)))
    ended = threading.Event()

    def work() -> None:
        with Driver(places, ["count"]) as run:
            batch = 0
            while not ended.is_set():
                run.apply(batch, dict.fromkeys(KEYS, f"{batch}"), step="count")
                run.close(batch)
                batch += 1

    thread = threading.Thread(target=work)
    thread.start()
    newest = 0
    try:
        for number in range(6):
            room = tmp_path / f"{number}"
            room.mkdir()
            look = places.locations()
            found = copied(look, room)
            look.release()
            assert problems(found) == []
            epoch = plan_resume(scan(found)).resume_epoch - 1
            assert epoch >= newest
            newest = epoch
            if epoch:
                assert set(state_at(found, window(found)[-1]).values()) == {(f"{epoch - 1}", None)}
    finally:
        ended.set()
        thread.join()
        places.close()
    assert newest > 1
    assert list(places.places[1].glob("*/recovery-copy-*")) == []


@pytest.mark.parametrize("pieces", [
    [Piece("../part-0.sqlite3", b"x")], [Piece("part-0.sqlite3", b"x")],
    [Piece("part-0.sqlite3", b"x"), Piece("part-1.sqlite3", b"x"), Piece("part-0.sqlite3", b"x")],
])  # fmt: skip
def test_an_owner_that_sends_something_else(tmp_path, pieces):
    """No file outside the directory is written, and no part of a file is taken for the whole."""
    with pytest.raises(StorageError, match="an owner sent"):
        copying._receive((piece for piece in pieces), ["part-0.sqlite3", "part-1.sqlite3"], tmp_path)
    assert not (tmp_path.parent / "part-0.sqlite3").exists()
