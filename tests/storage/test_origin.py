"""Where a store comes from: written once, shown by every command, and used to name files of the origin."""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import CorruptPartitionError, ForeignPartitionError
from recovery.operational.backends.backend import DirectoryBackend
from recovery.operational.backends.retry import RetryPolicy
from recovery.planning.explain import Role, explain
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import init_partitions
from recovery.storage.origin import DOCUMENT, Origin, add_origin, continued, origin_of, read_origins
from recovery.storage.scan import scan
from tests.backup.support import work

MADE_MS = 1_795_000_000_000


def origin(how="fork", store="11aa", epoch=3, directory="/data/rec"):
    """The record of a store."""
    return Origin(how, store, epoch, MADE_MS, 2, directory)


def call(*arguments):
    """Run a command; its exit code and output."""
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def write(directory, content):
    """Write the document as another program would."""
    DirectoryBackend(directory, SystemClock(), RetryPolicy()).update({DOCUMENT: lambda _: content})


def test_the_nearest_comes_first(store_dir):
    """Each store adds the one that it was made from to those that its copy of part-0 lists."""
    assert read_origins(store_dir) == ()
    add_origin(store_dir, origin(store="11aa"))
    add_origin(store_dir, origin("repartition", store="22bb"))
    assert [each.store_id for each in read_origins(store_dir)] == ["22bb", "11aa"]


def test_only_repartitioning_continues_a_store():
    """A fork is another store, and so is what was repartitioned before it was forked."""
    moved, forked = origin("repartition", store="2"), origin(store="1")
    assert continued([moved, origin("repartition", store="3"), forked, origin("repartition", store="0")]) == ("2", "3")
    assert continued([forked, moved]) == continued([]) == ()


def test_what_an_older_version_wrote(store_dir):
    """Its record does not name the newest execution."""
    known = {name: value for name, value in origin().as_json().items() if name not in ("execution", "newest")}
    write(store_dir, {"origins": [known]})
    assert read_origins(store_dir) == (origin(),)


def test_a_directory_of_any_name(tmp_path):
    """A name may hold bytes that are not text."""
    directory = tmp_path / b"d\xff".decode("utf-8", "surrogateescape")
    init_partitions(tmp_path / "new", 1)
    plan = plan_resume(scan(tmp_path / "new"))
    add_origin(tmp_path / "new", origin_of(directory, "fork", plan, MADE_MS))
    assert read_origins(tmp_path / "new")[0].directory.endswith("/d\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize(
    "content", ["text", [], {"origins": 3}, {"origins": [{}]},
                {"origins": [{**origin().as_json(), "how": "theft"}]},
                {"origins": [{**origin().as_json(), "epoch": -1}]},
                {"origins": [{**origin().as_json(), "made_ms": 1 << 60}]}],
)  # fmt: skip
def test_what_no_version_writes(store_dir, content):
    """It is refused with a way out, and status shows the rest of the directory."""
    write(store_dir, content)
    with pytest.raises(CorruptPartitionError, match="record of the store's origin cannot be read"):
        read_origins(store_dir)
    code, text = call("status", store_dir, "--json")
    facts = json.loads(text)
    assert (code, facts["origins"], len(facts["unreadable"])) == (0, [], 1)
    assert call("state", "clear", store_dir, DOCUMENT, "--yes")[0] == 0
    assert read_origins(store_dir) == ()


@pytest.mark.parametrize("how", ["fork", "repartition"])
def test_every_command_shows_it(store_dir, tmp_path, how):
    """plan, status and report, for people and for programs."""
    work(store_dir, 2)
    add_origin(store_dir, origin(how, directory="/data/<b>\x1b[31m"))
    line = f"{'forked' if how == 'fork' else 'repartitioned'} after epoch 3 from store 11aa in /data/"
    for command in ("plan", "status"):
        code, text = call(command, store_dir)
        assert code == 0
        assert line in text
        assert "\x1b" not in text
        assert json.loads(call(command, store_dir, "--json")[1])["origins"][0]["how"] == how
    assert call("report", store_dir, "-o", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert line in page
    assert "/data/<b>" not in page


@pytest.fixture
def pair(tmp_path):
    """Two stores of three partitions; the second one says that it was made from the first."""
    for name, store in (("old", "11aa"), ("new", "22bb")):
        init_partitions(tmp_path / name, 3, random_id=lambda store=store: store)
    add_origin(tmp_path / "new", origin())
    return tmp_path / "old", tmp_path / "new"


@pytest.mark.parametrize("copied", [[1], [1, 2], [2, 1]])
def test_a_file_of_the_origin_is_named(pair, copied):
    """Also when most files are the origin's."""
    old, new = pair
    for index in copied:
        shutil.copy(old / f"part-{index}.sqlite3", new)
    with pytest.raises(ForeignPartitionError, match="a copy of the store that this one was forked from") as refused:
        plan_resume(scan(new))
    assert refused.value.path == str(new / f"part-{min(copied)}.sqlite3")
    assert "11aa" in refused.value.found
    roles = {each.path.name: each.role for each in explain(scan(new), str)}
    assert [roles[f"part-{index}.sqlite3"] for index in copied] == [Role.FOREIGN] * len(copied)
    code, text = call("plan", new)
    assert code == 24
    assert "was forked from" in text


def test_a_plan_without_part_0(store_dir):
    """The files are listed before the error."""
    work(store_dir, 2)
    (store_dir / "part-0.sqlite3").unlink()
    code, text = call("plan", store_dir)
    assert code == 21
    assert "part-1.sqlite3" in text
    assert [each["role"] for each in json.loads(call("plan", store_dir, "--json")[1])["files"]] == [
        "missing",
        "current",
    ]


def test_part_0_of_the_origin(pair):
    """Without the record, the stores are named."""
    old, new = pair
    shutil.copy(old / "part-0.sqlite3", new)
    with pytest.raises(ForeignPartitionError, match="belongs to store 11aa, the other files to store 22bb"):
        plan_resume(scan(new))
