"""Rows that no run writes, in any table: every command ends with an answer or a typed error, and changes nothing.

Digests and sums are right, as whoever forges a partition makes them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.cli import main
from recovery.errors import all_errors
from tests.faults.test_hostile_files import template as template
from tests.hostile import forge, lenient, make_right
from tests.owner.served import Served, invoked, spread, token_file
from tests.shares import some
from tests.stores import STEP, paths_of

TYPED = {kind.exit_code for kind in all_errors()} | {0}
WRONG = {
    "changes that are no JSON": ("changes", "content", "{bad"),
    "changes of another form": ("changes", "content", "[[5]]"),
    "changes without a step": ("changes", "step_id", None),
    "superseded until a text": ("superseded", "until_epoch", "x"),
    "superseded until bytes": ("superseded", "until_epoch", b"x"),
    "superseded until a fraction": ("superseded", "until_epoch", 1.5),
    "a timeout that is a text": ("snaps", "timeout_ms", "x"),
    "a key of bytes": ("snaps", "state_key", b"\xff"),
    "measures that are no JSON": ("measures", "content", "{bad"),
    "a state of bytes": ("states", "content", b"x"),
    "a total that is a text": ("totals", "states", "x"),
    "a size that is a text": ("sizes", "live_bytes", "x"),
    "an epoch whose number of rows is a text": ("epochs", "written", "x"),
    "a logged epoch whose number of rows is a text": ("logged", "row_count", "x"),
    "a collected epoch that is a text": ("commits", "commit_epoch", "x"),
    "an interval that is a text": ("exs", "backup_interval_s", "x"),
    "a time that is a text": ("parts", "created_ms", "x"),
    "two totals": ("totals", None, "INSERT INTO totals SELECT 2, states, states_digest, 0 FROM totals"),
    "no totals": ("totals", None, "DELETE FROM totals"),
    "no sizes": ("sizes", None, "DELETE FROM sizes"),
    "two partitions in one": (
        "parts", None, "INSERT INTO parts SELECT 1 - part_index, 2, store_id, flow_id, created_ms, 0 FROM parts",
    ),
    "no commits": ("commits", None, "DELETE FROM commits"),
}  # fmt: skip
COMMANDS = (
    "repartition DB to 3", "repartition --in-place DB 3", "backup DB to", "fork DB to", "gc DB", "gc DB -b 0",
    "restore DB to", "hwm set DB orders 99", "state clear DB hwm --yes", "status DB", "verify DB",
    f"state set DB --step {STEP} --key k1 [9] --yes", f"state clear DB --step {STEP} --key k1 --yes",
    f"history DB --step {STEP} --key k1", f"state list DB --step {STEP}",
)  # fmt: skip
BY_DEFAULT = ("changes that are no JSON", "superseded until a text", "two totals", "a collected epoch that is a text")


def _make_wrong(path: Path, wrong: str) -> None:
    table, column, value = WRONG[wrong]
    if column is not None:
        forge(path, table, column, value)
        return
    with lenient(path) as connection:
        connection.execute(value)  # type: ignore[arg-type]
        make_right(connection)


@pytest.mark.parametrize("wrong", some(WRONG, *BY_DEFAULT))
def test_a_wrong_row_is_a_typed_error_of_every_command(template: Path, tmp_path: Path, wrong: str) -> None:
    """No traceback; what is refused leaves the partitions byte for byte as before, and makes nothing else. Only gc may
    have collected in sound partitions before it came to this one. verify finds what ends any other command."""
    forged = shutil.copytree(template, tmp_path / "forged")
    _make_wrong(paths_of(forged)[0], wrong)
    codes = {}
    for number, command in enumerate(COMMANDS):
        place = tmp_path / str(number)
        place.mkdir()
        shutil.copytree(forged, place / "db")
        before = {path.name: path.read_bytes() for path in paths_of(place / "db")}
        with contextlib.chdir(place):
            result = CliRunner().invoke(main, command.replace("DB", "db").split())
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(f"{command} with {wrong}") from result.exception
        assert result.exit_code in TYPED, (command, result.output)
        codes[command] = result.exit_code
        if result.exit_code and not command.startswith("gc"):
            assert {path.name: path.read_bytes() for path in paths_of(place / "db")} == before, command
            assert {path.name for path in place.iterdir()} <= {"db", "to"}, command
        shutil.rmtree(place)
    assert codes["verify DB"] == 23 or set(codes.values()) == {0}, codes


AT_OWNERS = (
    "plan DB", "verify DB", "status DB", f"history DB --step {STEP} --key k1", f"state list DB --step {STEP}",
    "backup DB TO", "hwm set DB orders 99", "state clear DB hwm --yes",
    f"state set DB --step {STEP} --key k1 [9] --yes", f"state clear DB --step {STEP} --key k1 --yes",
    "gc DB", "gc DB -b 0", "gc DB --dry-run",
)  # fmt: skip


@pytest.mark.parametrize("index", some([0, 1], 1))
@pytest.mark.parametrize("wrong", some(WRONG, "two totals"))
def test_a_wrong_row_at_an_owner_is_the_same_error_with_the_address_of_that_owner(
    template: Path, tmp_path: Path, wrong: str, index: int
) -> None:
    """Of two owners, real processes, one has the forged partition: no command ends with a traceback or a failure of the
    owner, and the error of a damaged partition begins with the address of the owner that has it."""
    made = shutil.copytree(template, tmp_path / "made")
    _make_wrong(paths_of(made)[index], wrong)
    db, *away = spread(made, [(), (0,), (1,)])
    token = token_file(tmp_path)
    with contextlib.ExitStack() as served:
        owners = [Served(directory, token) for directory in away]
        for owner in owners:
            served.callback(owner.kill)
        where = [word for owner in owners for word in ("--owner", owner.at)]
        codes = {}
        for command in AT_OWNERS:
            words = [{"DB": str(db), "TO": str(tmp_path / "to")}.get(word, word) for word in command.split()]
            done = invoked(*words, "--token-file", token, *where)
            assert "Traceback" not in done.stderr, (command, done.stderr)
            assert done.returncode in TYPED, (command, done.stderr)
            assert "owner of the partitions failed" not in done.stderr, (command, done.stderr)
            assert done.returncode not in (47, 48), (command, done.stderr)
            if done.returncode == 23:
                at = owners[index].at
                named = rf"Error: {re.escape(at)}/(\S+/)?part-{index}\.sqlite3: "
                assert re.match(named, done.stderr), (command, done.stderr)
            codes[command] = done.returncode
        assert codes["verify DB"] == 23 or set(codes.values()) == {0}, codes
