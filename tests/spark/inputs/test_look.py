"""Input that is gone or changed when a run has to read it again: the run is exact, or refused and nothing touched.

A table: source × what makes the run read again × what happened to the input. Each cell is run with a sink that shows
output with its epoch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from recovery import DiscardSink, FileSink
from recovery.base.outside import CannotTell, Checked, DoesNotApply, Question
from recovery.checkpoint.source_places import FILE_FORMATS
from recovery.cli import main
from recovery.errors import InputLostError, InputRewrittenError, RecoveryError
from recovery.spark.clusters import Input
from recovery.spark.inputs.kinds import GENERATED, KINDS, input_of
from recovery.spark.inputs.others import OtherInput
from recovery.spark.inputs.protocol import Resumes
from recovery.spark.jvm.versions import VERSION
from tests.shares import first
from tests.spark.support import run_to_end
from tests.spark.test_crashes import finish, recovery_command

ROWS = ["a", "b", "c", "d"]


class World:
    """Three epochs of a flow over some input, and what others may do to that input."""

    name = ""
    """By which a user accepts a loss."""

    def __init__(self, root: Path) -> None:
        self.root, self.input = root, root / "input"
        self.input.mkdir(parents=True)
        self.copy = root.with_name(f"{root.name}-copy")

    def frame(self, spark):
        """The stream: one text column `value`."""
        raise NotImplementedError

    def add(self, number: int) -> None:
        """Add four rows."""
        raise NotImplementedError

    def run(self, spark, **config):
        config.setdefault("backup_interval", "1h")
        return run_to_end(self.frame(spark), self.root / "db", FileSink(self.root / "out"), **config)

    def rows(self) -> list[str]:
        """What the sink shows."""
        files = (self.root / "out").glob("*.parquet")
        return sorted(row for file in files for row in pq.read_table(file).column("value").to_pylist())

    def digests(self) -> dict[str, str]:
        """The content of every partition, and of every file of the output."""
        files = [*(self.root / "db").glob("*.sqlite3"), *(self.root / "out").rglob("*")]
        return {
            str(each.relative_to(self.root)): hashlib.sha256(each.read_bytes()).hexdigest()
            for each in files
            if each.is_file()
        }

    def contents(self) -> dict[str, list]:
        """The rows of every partition, wherever SQLite has them, and the output."""
        found: dict[str, list] = {key: [each] for key, each in self.digests().items() if not key.endswith(".sqlite3")}
        for path in sorted((self.root / "db").glob("*.sqlite3")):
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in tables:
                found[f"{path.name} {table}"] = sorted(map(repr, connection.execute(f'SELECT * FROM "{table}"')))
            connection.close()
        return found

    def begin_again(self) -> None:
        """Put everything back as it was after the three epochs."""
        shutil.rmtree(self.root)
        shutil.copytree(self.copy, self.root)


class FilesWorld(World):
    """A file for each epoch."""

    @property
    def name(self) -> str:
        return str(self.input)

    def frame(self, spark):
        return spark.readStream.text(str(self.input))

    def add(self, number: int) -> None:
        path = self.input / f"{number} %é.txt"
        path.write_text("".join(f"{number}{row}\n" for row in ROWS))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    def file(self, number: int) -> Path:
        return self.input / f"{number} %é.txt"


class AppendedWorld(World):
    """One growing file."""

    @property
    def name(self) -> str:
        return str(self.file)

    @property
    def file(self) -> Path:
        return self.input / "app.log"

    def frame(self, spark):
        return spark.readStream.format("appended").load(str(self.file)).select("value")

    def add(self, number: int) -> None:
        with self.file.open("a") as out:
            out.write("".join(f"{number}{row}\n" for row in ROWS))


def _remove(path: Path) -> None:
    path.unlink()


def _rewrite(path: Path) -> None:
    path.write_text("x\n")
    os.utime(path, (1_700_000_100, 1_700_000_100))


@dataclass(frozen=True)
class Cell:
    """A change, and the error that it leads to; None: nothing is lost. left: the rows once the loss is accepted."""

    change: Callable[[World], object]
    kind: type[RecoveryError] | None
    says: str = ""
    left: str = ""


def _renamed(world) -> None:
    world.file.rename(world.input / "app.log.1")


FILES = {
    "removed": Cell(lambda w: _remove(w.file(3)), InputLostError, r"1 file below .* is gone: .*/3 %é\.txt", "1 2"),
    "both removed": Cell(
        lambda w: [_remove(w.file(2)), _remove(w.file(3))], InputLostError, "2 files below .* are gone", "1"
    ),
    "rewritten": Cell(
        lambda w: _rewrite(w.file(2)), InputRewrittenError, r"1 file .* is changed since: .*/2 %é", "1 3 x"
    ),
    "removed long ago": Cell(lambda w: _remove(w.file(1)), None),
    "more": Cell(lambda w: w.add(4), None),
}
APPENDED = {
    "removed": Cell(lambda w: _remove(w.file), InputRewrittenError, "app.log", "1"),
    "truncated": Cell(lambda w: os.truncate(w.file, 15), InputRewrittenError, "app.log", "1 2a"),
    "rewritten": Cell(lambda w: _rewrite(w.file), InputRewrittenError, "app.log", "1 x"),
    "renamed": Cell(_renamed, None),
    "more": Cell(lambda w: w.add(4), None),
}
BY_DEFAULT = [(FilesWorld, "removed"), (AppendedWorld, "removed"), (AppendedWorld, "truncated")]
CELLS = [
    pytest.param(
        kind, name, cell, id=f"{kind.__name__}-{name}",
        marks=[] if (kind, name) in BY_DEFAULT else [pytest.mark.long],
    )
    for kind, cells in ((FilesWorld, FILES), (AppendedWorld, APPENDED))
    for name, cell in cells.items()
]  # fmt: skip


@pytest.fixture(scope="module")
def worlds(spark, tmp_path_factory):
    """Each world after three epochs, and a copy of its partitions after the first."""
    made: dict[type[World], World] = {}

    def get(kind):
        if kind not in made:
            world = made[kind] = kind(tmp_path_factory.mktemp(kind.__name__) / "world")
            for number in (1, 2, 3):
                world.add(number)
                world.run(spark)
                if number == 1:
                    shutil.copytree(world.root / "db", world.root / "after-1")
            shutil.copytree(world.root, world.copy)
        made[kind].begin_again()
        return made[kind]

    return get


def _rows_of(texts: str) -> list[str]:
    """Rows: a number stands for all that were added with it."""
    return sorted(
        row for each in texts.split() for row in ([f"{each}{r}" for r in ROWS] if each.isdecimal() else [each])
    )


def planned(world: World, *options: str) -> str:
    """What `recovery plan` says of going back to epoch 1."""
    done = CliRunner().invoke(main, ["plan", str(world.root / "db"), "--resume-after", "1", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(("kind", "name", "cell"), CELLS)
def test_going_back(spark, worlds, capsys, kind, name, cell):
    """Refused and untouched, twice; then exact with the input put back, or without it if its loss is accepted."""
    if kind is AppendedWorld and VERSION < (4, 2):
        pytest.skip("the format of appended files in flows of this process")
    world = worlds(kind)
    cell.change(world)
    changed = world.root.with_name("changed")
    if cell.kind is None:
        assert json.loads(planned(world, "--json"))["reads_again"]["files"] == (2 if kind is FilesWorld else 1)
        world.run(spark, resume_after=1)
        assert world.rows() == _rows_of("1 2 3 4" if name == "more" else "1 2 3")
        assert json.loads(planned(world, "--json"))["reads_again"] is not None
        return
    before = world.digests()
    again = json.loads(planned(world, "--json"))["reads_again"]
    assert bool(again["gone"]) == ("removed" in name)
    assert bool(again["changed"]) == (name in ("rewritten", "truncated"))
    for each in (*again["gone"], *again["changed"]):
        assert each in planned(world)
    for accepted in ((), ["another", str(world.root)]):
        with pytest.raises(cell.kind, match=cell.says) as refused:
            world.run(spark, resume_after=1, lose_input=accepted)
        assert world.name in refused.value.remedy
        assert world.digests() == before
    shutil.rmtree(changed, ignore_errors=True)
    shutil.copytree(world.input, changed)
    if cell.left:
        summary = world.run(spark, resume_after=1, lose_input=[world.name])
        assert summary.lost_input.keys() == {world.name}
        assert world.rows() == _rows_of(cell.left)
        said = capsys.readouterr().err
        assert "--lose-input" in said
        assert world.name in said
        # It was accepted for good, and only for what was lost.
        world.add(5)
        world.run(spark, lose_input=[world.name])
        assert "nothing of it is lost" in capsys.readouterr().err
        assert world.rows() == _rows_of(f"{cell.left} 5")
        world.begin_again()
    shutil.rmtree(world.input)
    shutil.copytree(world.copy / "input", world.input)
    world.run(spark, resume_after=1)
    assert world.rows() == _rows_of("1 2 3")


@first("old", range(3), count=2)
@pytest.mark.any_spark
def test_partitions_that_are_older_copies(spark, worlds, capsys, old):
    """They pull the others back to an epoch that all hold. What the others know to have been read has to be there; what
    only the older copy's partition held is not known, and the run says so."""
    world = worlds(FilesWorld)
    for end in ("", "-wal", "-shm"):
        (world.root / "db" / f"part-{old}.sqlite3{end}").unlink(missing_ok=True)
    shutil.copy2(world.root / "after-1" / f"part-{old}.sqlite3", world.root / "db" / f"part-{old}.sqlite3")
    for number in (2, 3):
        world.file(number).unlink()
    before = world.digests()
    error = None
    try:
        world.run(spark)
    except InputLostError as refused:
        error = refused
    if error is not None:
        assert "the run would discard epochs 2 to 3, which not all partitions hold" in error.found
        assert world.digests() == before
    else:
        assert "is not known, since a partition is an older copy" in capsys.readouterr().err


@pytest.mark.long
def test_after_a_kill(spark, tmp_path):
    """What a killed run had read, and no epoch closed, has to be there: its checkpoint says what that is, until a start
    succeeds."""
    world = FilesWorld(tmp_path / "world")
    flow = tmp_path / "copy_lines.py"
    flow.write_text(
        "from recovery import FileSink, Flow\n"
        f"flow = Flow('test', lambda spark: spark.readStream.text({str(world.input)!r}), "
        f"sink=FileSink({str(world.root / 'out')!r}))\n"
    )
    world.add(1)
    world.run(spark)
    world.add(2)
    process = recovery_command(str(flow), world.root / "db", "-s", "0", crash_at="close.2.checked")
    printed = finish(process)
    assert process.returncode == -signal.SIGKILL, printed
    world.file(2).rename(world.root / "aside")
    before = world.contents()
    with pytest.raises(InputLostError, match=r"1 file .* is gone: .*/2 %é\.txt.*read on from its position") as lost:
        world.run(spark)
    assert f"--lose-input {world.input} (" in lost.value.remedy
    assert world.contents() == before
    # A file that was repaired after a crash is read as it is now.
    (world.root / "aside").write_text("x\n")
    (world.root / "aside").rename(world.file(2))
    world.run(spark)
    assert world.rows() == _rows_of("1 x")
    world.file(2).unlink()
    world.run(spark)
    assert world.rows() == _rows_of("1 x")


class Noted(DiscardSink):
    """A sink that takes part in closing epochs, and notes what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, resume):
        self.asked.append("check")

    def rollback(self, resume):
        self.asked.append("rollback")

    def prepare(self, output):
        self.asked.append("prepare")
        return ""

    def publish(self, output):
        self.asked.append("publish")


@pytest.mark.any_spark
def test_the_sink_is_only_asked_whether_it_can(spark, worlds):
    """Before the input is known to be there, no sink takes anything back or shows anything."""
    world, sink = worlds(FilesWorld), Noted()
    world.file(3).unlink()
    with pytest.raises(InputLostError):
        run_to_end(world.frame(spark), world.root / "db", sink, resume_after=1)
    assert sink.asked == ["check"]
    run_to_end(world.frame(spark), world.root / "db", sink, resume_after=1, lose_input=(f"{world.input}/",))
    assert sink.asked[1:3] == ["check", "rollback"]


@pytest.mark.any_spark
def test_taking_over(spark, tmp_path):
    """A run that cannot read its input does not stop the writer before: the place of its backups is untouched."""
    world, place = FilesWorld(tmp_path / "world"), tmp_path / "place"
    for number in (1, 2):
        world.add(number)
        world.run(spark, replicate=place)
    world.file(2).unlink()
    other = tmp_path / "other"
    shutil.copytree(world.root / "db", other / "db")
    before, held = world.digests(), {each: each.read_bytes() for each in place.rglob("*") if each.is_file()}
    with pytest.raises(InputLostError, match=r"1 file .* is gone"):
        run_to_end(
            world.frame(spark), other / "db", FileSink(world.root / "out"), replicate=place, takeover=True,
            resume_after=1, lose_epochs=True,
        )  # fmt: skip
    assert {each: each.read_bytes() for each in place.rglob("*") if each.is_file()} == held
    assert world.digests() == before
    world.add(3)
    world.run(spark, replicate=place)
    assert world.rows() == _rows_of("1 2 3")


def test_every_class_answers_every_question():
    """By a check, a reason why it cannot tell, or because the question means nothing."""
    for kind in KINDS:
        assert set(kind.answers) == set(Question), kind
        for answer in kind.answers.values():
            assert isinstance(answer, Checked | CannotTell | DoesNotApply)
            assert not isinstance(answer, Checked) or (answer.by and answer.at)
            assert not isinstance(answer, CannotTell) or answer.why.endswith(".")


@pytest.mark.parametrize("form", [*sorted(FILE_FORMATS), *sorted(GENERATED), "appended", "kafka", "delta", "mine"])
def test_every_format_has_a_class(spark, form, tmp_path):
    """One of a format that this package does not know cannot tell, and says so."""
    found = input_of(Input(form, {"path": str(tmp_path)}), Resumes(None), spark)
    assert type(found) in KINDS
    assert isinstance(found, OtherInput) == (form == "mine")
    assert found.look().needed == ()
