"""A command gives one result, whether the partitions are files of this host or at owners, which are real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from recovery.base.clock import SystemClock
from recovery.base.credentials.task_key import task_key
from recovery.cli import main
from recovery.operators.importing import import_checkpoint
from recovery.storage.initialize import init_partitions
from recovery.storage.origin import read_origins
from recovery.storage.snapshot import snapshot_at
from recovery.storage.store import OwnerAccess, Store
from tests.backup.support import states
from tests.importing.theirs import word_count
from tests.operators.support import held, place, write_job
from tests.owner.served import Served, spread, token_file
from tests.stores import Driver, SpreadDirectory, alter, problems

VOLATILE = {"elapsed_s", "store_id", "origin", "bytes", "bytes_after", "cloned", "made_ms", "lock", "health"}
"""Of what is printed: times, new ids and sizes of files."""


class Kinds(NamedTuple):
    """One store twice: all files in `here`, and the same at owners, whose run has the directory `there`."""

    here: Path
    there: Path
    away: list[Path]
    options: list[object]

    def everything(self) -> dict[Path, bytes]:
        """All that lies at the owners and in the directory of the run, but logs without content and their indexes."""
        found = (path for root in (self.there, *self.away) for path in root.rglob("*") if path.is_file())
        content = {path: path.read_bytes() for path in found if not path.name.endswith(("-shm", ".lock"))}
        return {path: each for path, each in content.items() if each}


def call(words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in words])
    assert result.exit_code == code, (words, result.output, result.exception)
    return result


def plain(facts: Any) -> Any:
    """What does not differ between two stores that were made the same way."""
    if isinstance(facts, dict):
        return {name: plain(value) for name, value in facts.items() if name not in VOLATILE}
    return [plain(each) for each in facts] if isinstance(facts, list) else facts


@pytest.fixture(scope="module", params=["two owners", "two directories of one owner"])
def kinds(request, tmp_path_factory) -> Iterator[Kinds]:
    """Three partitions with state of steps and of one of Spark's own operators, and four epochs."""
    root = tmp_path_factory.mktemp("kinds")
    made = root / "db"
    init_partitions(made, 3)
    write_job(root / "job", batch=4)
    import_checkpoint(place(root / "job"), Store(made), "flow", clock=SystemClock())
    with Driver(made, ["count"]) as run:
        for batch in range(5, 8):
            run.apply(batch, {f"k{n}": f"{batch}" for n in range(30)}, step="count")
            run.close(batch, backup_interval_s=3600)
    here = Path(shutil.copytree(made, root / "here"))
    there, *away = spread(made, [(), (0, 2), (1,)])
    token = token_file(root)
    together = request.param != "two owners"
    owners = [Served(away[0], token, beside=away[1:])] if together else [Served(each, token) for each in away]
    places = map(owners[0].at_of, away) if together else (each.at for each in owners)
    options = [word for at in places for word in ("--owner", at)] + ["--token-file", token]
    yield Kinds(here, there, away, options)
    for each in owners:
        each.kill()


def both(kinds: Kinds, words: str, room: Path, code: int = 0) -> tuple[Any, Any]:
    """What the command prints with files and with owners, as JSON; DIR and TO stand for paths."""
    found = []
    for directory, options, name in ((kinds.here, [], "files"), (kinds.there, kinds.options, "owners")):
        (room / name).mkdir(exist_ok=True)
        named = words.replace("DIR", str(directory)).replace("TO", str(room / name / "new")).split()
        text = call([*named, "--json", *options], code).stdout
        text = text.replace(str(room / name), "ROOM").replace(str(directory), "DIR")
        found.append(plain(json.loads(text)))
    return found[0], found[1]


@pytest.mark.parametrize("words", [
    "fork DIR TO", "fork DIR TO --epoch 2", "fork DIR TO --dry-run",
    "repartition DIR TO 5", "repartition DIR TO 2 --dry-run",
])  # fmt: skip
def test_a_new_store(kinds, tmp_path, words):
    """On this host, with all partitions, and the run's directory as its origin; the owners keep their files."""
    before = kinds.everything()
    files, owners = both(kinds, words, tmp_path)
    assert owners == files
    assert kinds.everything() == before
    one, other = tmp_path / "files" / "new", tmp_path / "owners" / "new"
    assert one.exists() == other.exists() == ("--dry-run" not in words)
    if one.exists():
        assert states(other) == states(one)
        assert problems(other) == []
        [origin] = read_origins(other)
        assert origin.directory == str(kinds.there)


def test_status(kinds, tmp_path):
    """All but who has locked what, what a copy of the directory changes, and the owners themselves: operators, schemas
    and sizes, too."""
    files, owners = both(kinds, "status DIR", tmp_path)
    assert (len(owners.pop("owners")), files.pop("owners")) == (2, [])
    for each in (files, owners):
        each["partitions"] = [{**one, "file": ""} for one in each["partitions"]]
    assert owners == files
    assert [each["name"] for each in owners["operators"]] == ["stateStoreSave"]
    assert "stateStoreSave" in call(["status", kinds.there, *kinds.options]).stdout


@pytest.mark.parametrize("words", ["plan DIR", "plan DIR --resume-after 2"])
def test_a_plan(kinds, tmp_path, words):
    """With the files that a run would read again, and each partition's part in it."""
    files, owners = both(kinds, words, tmp_path)
    for each in (files, owners):
        each["files"] = [{**one, "file": ""} for one in each["files"]]
    assert owners == files


@pytest.mark.parametrize("words", [
    "state list DIR --step count", "state get DIR --step count --key k7", "history DIR --step count --key k7",
    "diff DIR DIR --epoch-a 2 --epoch-b 4", "advise DIR --cores 2",
])  # fmt: skip
def test_what_asks_copies_nothing(kinds, tmp_path, words, monkeypatch):
    """Not even to a temporary directory: the owners send the rows that the command needs."""

    def copies(*_: object) -> None:
        raise AssertionError("whole partitions were copied")

    monkeypatch.setattr("recovery.storage.copied.copied", copies)
    files, owners = both(kinds, words, tmp_path, 1 if words.startswith("diff") else 0)
    if words.startswith("advise"):
        assert (len(owners.pop("owners")), files.pop("owners")) == (2, [])
    assert owners == files


def test_a_checkpoint(kinds, tmp_path):
    """`checkpoint show` and `export` give at owners what they give for files, at each epoch with a checkpoint."""
    before = kinds.everything()
    for epoch in (1, 4):
        files, owners = both(kinds, f"checkpoint show DIR --epoch {epoch}", tmp_path)
        assert owners == files
        assert owners["operators"][0]["name"] == "stateStoreSave"
        files, owners = both(kinds, f"checkpoint export DIR TO/{epoch} --epoch {epoch}", tmp_path)
        assert owners == files
    assert held(tmp_path / "owners" / "new") == held(tmp_path / "files" / "new")
    assert kinds.everything() == before


@pytest.mark.parametrize(("words", "code"), [
    ("checkpoint show DIR --epoch 9", 28), ("checkpoint export DIR TO --epoch 0", 28),
    ("checkpoint show DIR --operator 7", 44),
    ("fork DIR DIR/new", 11), ("fork DIR TO --epoch 9", 28), ("repartition DIR TO 3", 11),
    ("repartition DIR DIR/new 4", 11),
])  # fmt: skip
def test_the_same_refusal(kinds, tmp_path, words, code):
    """With nothing made; the error names no temporary directory."""
    before = kinds.everything()
    files, owners = both(kinds, words, tmp_path, code)
    assert owners == files
    assert kinds.everything() == before
    assert [*(tmp_path / "owners").iterdir()] == []


def test_during_a_run(kinds, tmp_path):
    """A fork is made; a repartition would lack what the run closes, and says who has the partitions."""
    _, *words = kinds.options
    run = Store(kinds.there, OwnerAccess(tuple(words[:3:2]), Path(str(words[-1]))).connect(5.0))
    run.hold("one", "run one", task_key())
    try:
        for dry in ([], ["--dry-run"]):
            refused = call(["repartition", kinds.there, tmp_path / "new", 4, *dry, *kinds.options], 40)
            assert "run one" in refused.output
            assert not (tmp_path / "new").exists()
        call(["fork", kinds.there, tmp_path / "new", *kinds.options])
    finally:
        run.release()
    assert states(tmp_path / "new") == states(kinds.here)


@pytest.mark.parametrize("words", ["--in-place DIR 4", "--drop-old DIR"])
def test_a_directory_is_not_swapped(kinds, words):
    """Each owner has another one; the error names the two commands in its place."""
    before = kinds.everything()
    words = words.replace("DIR", str(kinds.there)).split()
    refused = call(["repartition", *words, *kinds.options], 11).output
    assert "repartition DIR NEW_DIR N --owner" in refused
    assert "restore NEW_DIR DIR --owner" in refused
    assert kinds.everything() == before


class TestAnImportedCheckpoint:
    """Into new partitions at owners, as into new ones in a directory."""

    @pytest.fixture
    def job(self, tmp_path) -> Path:
        write_job(tmp_path / "job", batch=4)
        return tmp_path / "job"

    @pytest.fixture
    def new(self, make_store) -> Iterator[SpreadDirectory]:
        places = SpreadDirectory(make_store(3), ((), (2, 0), (1,)))
        yield places
        places.close()

    def test_a_run_goes_on(self, job, new, make_store, tmp_path):
        """After the same micro-batch, with the same files and an entry in the run history; a second import names the
        first one."""
        here, facts = make_store(3), []
        for directory, options in ((here, []), (new.places[0], named(new))):
            words = ["checkpoint", "import", job, directory, "--flow", "flow", *options]
            facts.append({**json.loads(call([*words, "--json"]).stdout), "directory": ""})
            [run] = json.loads(call(["runs", directory, "--json", *options]).stdout)
            assert (run["status"], run["details"]["what"]) == ("succeeded", "checkpoint import")
            assert "it holds the checkpoint at" in call(words, 26).output
        assert facts[0] == facts[1]
        for directory, options in ((here, []), (new.places[0], named(new))):
            call(["checkpoint", "export", directory, tmp_path / directory.name, *options])
        assert held(tmp_path / here.name) == held(tmp_path / new.places[0].name)
        with Driver(new) as run:
            assert run.epoch == 2

    @pytest.mark.parametrize("refusal", ["a run", "no such job", "no partitions", "damaged"])
    def test_refused(self, job, new, tmp_path, refusal):
        """With every partition as it was, byte for byte."""
        code, run, directory = 40, None, new.places[0]
        if refusal == "a run":
            run = new.locations(run="one")
        elif refusal == "no such job":
            code, job = 29, tmp_path / "none"
        elif refusal == "no partitions":
            code, directory = 20, tmp_path / "none"
        else:
            code = 23
            alter(new.paths()[1], "INSERT INTO snaps VALUES ('x', 'y', 1, 'z', NULL, 1)")
        before = [path.read_bytes() for path in new.paths()]
        refused = call(["checkpoint", "import", job, directory, "--flow", "flow", *named(new)], code)
        assert "Traceback" not in refused.output
        if run is not None:
            run.release()
        assert [path.read_bytes() for path in new.paths()] == before


class TestAnImportOfBytewax:
    """To owners without partitions, as into a new directory."""

    STEPS = ("--rename-step", "count=count")

    @pytest.fixture
    def new(self, tmp_path) -> Iterator[SpreadDirectory]:
        places = SpreadDirectory(tmp_path / "db", ((), (), ()))
        yield places
        places.close()

    @pytest.fixture
    def theirs(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.chdir(tmp_path)
        Path("words.txt").write_text("one\none\ntwo\n")
        return word_count(tmp_path / "theirs", {f"k{n}": n for n in range(1, 30)}, 8).directory

    def test_a_run_goes_on(self, new, theirs, tmp_path):
        """From the same states; a second import names what is there. A dry run says the same, and changes nothing."""
        room = tmp_path / "all"
        words = ["import", "bytewax", theirs, *self.STEPS, "--partitions", 3, "--json"]
        files = json.loads(call([*words, tmp_path / "here"]).stdout)
        said = json.loads(call([*words, new.places[0], "--dry-run", *named(new)]).stdout)
        assert new.paths() == []
        owners = json.loads(call([*words, new.places[0], *named(new)]).stdout)
        assert {**said, "written": True} == {**owners, "held": {}}
        first, second = (each.at for each in new.services)
        assert list(owners.pop("owners").values()) == [first, first, second]
        assert {**owners, "directory": ""} == {**files, "directory": ""}
        room.mkdir()
        for path in new.paths():
            shutil.copy(path, room)
        one, other = (list(snapshot_at(each).states_in_order("count")) for each in (tmp_path / "here", room))
        assert one == other
        with Driver(new) as run:
            assert run.epoch == 2
        assert "holds part-0.sqlite3, part-1.sqlite3" in call([*words, new.places[0], *named(new)], 26).output

    def test_refused(self, new, theirs, tmp_path):
        """With nothing made: a partition in the run's directory, one at an owner, and a directory within theirs."""
        words = ["import", "bytewax", theirs, *self.STEPS]
        call([*words, theirs / "db", *named(new)], 11)
        for room in (new.places[0], new.places[2]):
            (room / "part-9.sqlite3").write_bytes(b"x")
            assert "part-9.sqlite3" in call([*words, new.places[0], *named(new)], 26).output
            assert [path.name for path in new.paths()] == ["part-9.sqlite3"]
            (room / "part-9.sqlite3").unlink()
        assert sorted(path.name for path in theirs.iterdir()) == ["part-0.sqlite3", "part-1.sqlite3"]
        said = call([*words, new.places[0], *named(new)]).stdout
        assert "part-0 are at 127.0.0.1:" in said
        assert f"run flow.py -r {new.places[0]} --owner" in said


def test_new_partitions(tmp_path):
    """`init` brings new partitions to owners without any, and a run begins there; a second `init` names them all."""
    new = SpreadDirectory(tmp_path / "db", ((), (), ()))
    try:
        first, second = (each.at for each in new.services)
        made = json.loads(call(["init", new.places[0], 3, "--json", *named(new)]).stdout)
        assert list(made["owners"].items()) == [
            ("part-0.sqlite3", first), ("part-1.sqlite3", first), ("part-2.sqlite3", second)
        ]  # fmt: skip
        with Driver(new) as run:
            assert (run.count, run.epoch) == (3, 1)
        before = [path.read_bytes() for path in new.paths()]
        assert f"{first} holds part-0.sqlite3" in call(["init", new.places[0], 2, *named(new)], 26).output
        assert "0 is not" in call(["init", new.places[0], 0, *named(new)], 11).output
        assert [path.read_bytes() for path in new.paths()] == before
    finally:
        new.close()


def test_the_ways_out_lead_there(kinds, tmp_path, monkeypatch):
    """Of a standby that is promoted, to owners; and of operational state, to a directory of this host."""
    monkeypatch.chdir(tmp_path)
    new = SpreadDirectory(tmp_path / "db", ((), (), ()))
    try:
        call(["backup", kinds.there, "place", *kinds.options])
        call(["follow", "place", "standby", "--once"])
        call(["promote", "standby"])
        call(["restore", "standby", new.places[0], *named(new)])
        with Driver(new) as run:
            assert (run.count, run.epoch) == (3, 5)
        call(["hwm", "set", new.places[0], "orders", 7, *named(new)])
        Path("exported").write_text(call(["state", "export", new.places[0], *named(new)]).stdout)
    finally:
        new.close()
    call(["state", "import", "standby", "exported", "--yes"])
    assert json.loads(call(["hwm", "get", "standby", "orders"]).stdout) == 7


@pytest.mark.parametrize(("words", "code", "way"), [
    ("drill backups", 11, "restore SRC --owner … --dry-run"),
    ("follow backups db", 11, "recovery restore DIR NEW_DIR --owner"),
    ("promote db", 11, "recovery restore DIR NEW_DIR --owner"),
    ("state migrate db file:x", 11, "recovery state export DIR --owner"),
    ("warmup", 11, "Leave these options out"),
    ("restore backups db --lazy", 2, "Leave --lazy out"),
    ("run flow.py -r db --from backups", 2, "recovery restore SRC DIR --owner"),
])  # fmt: skip
def test_a_refusal_names_its_own_way_out(words, code, way, tmp_path, monkeypatch):
    """Of the command that was typed."""
    monkeypatch.chdir(tmp_path)
    Path("flow.py").write_text("flow = None")
    refused = call([*words.split(), "--owner", "h1:7337"], code)
    assert way in " ".join(refused.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["flow.py"]


def named(places: SpreadDirectory) -> list[object]:
    """The options that name the owners."""
    found = [word for each in places.services for word in ("--owner", each.at)]
    return [*found, "--token-file", places.token]
