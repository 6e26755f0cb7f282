"""Several owners, one of which does not answer: every command ends in time, and says which."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from recovery.cli import main
from recovery.wire import run_client
from tests.backup.support import back_up
from tests.shares import some
from tests.stores import Driver, SpreadDirectory
from tests.waiting import wait_until

READS = [
    "status DIR", "plan DIR", "verify DIR", "history DIR --step count --key a", "diff DIR DIR --epoch-a 1 --epoch-b 1",
    "advise DIR", "report DIR -o TO", "gc DIR", "gc DIR --dry-run", "backup DIR TO", "fork DIR TO",
    "repartition DIR TO 5", "checkpoint show DIR", "checkpoint export DIR TO", "hwm get DIR x", "hwm set DIR x 1",
    "runs DIR", "state list DIR",
    "state list DIR --step count", "state set DIR --step count --key a 1 --yes", "state export DIR --step count",
]  # fmt: skip
BRINGS = ["init DIR 2", "restore BACKUP DIR"]
"""Commands of owners without partitions."""
IN_SHORT = ["status DIR", "gc DIR", "backup DIR TO", "repartition DIR TO 5", "hwm set DIR x 1", *BRINGS]
KINDS = {
    "hangs before the proof": "not reached: ",
    "hangs in a call": "works on one call for more than",
    "is not there": "not reached: ",
}
LIMIT_S = 20.0


class Silent:
    """What listens, and says nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.at = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    for name in ("owners.LOOK_S", "serve.CHECK_S"):
        monkeypatch.setattr(f"recovery.cli.{name}", 0.5)
    monkeypatch.setattr(run_client, "ANSWER_S", 0.5)


IN_DEFAULT = "hangs in a call"


@pytest.fixture(params=[pytest.param(each, marks=[pytest.mark.long] if each != IN_DEFAULT else []) for each in KINDS])
def silent(request, make_store, monkeypatch) -> Iterator[tuple[SpreadDirectory, str, str]]:
    """A store at two owners, the address of the one that does not answer, and what is said of it."""
    places = SpreadDirectory(make_store(2), together=True)
    with Driver(places, ["count"]) as run:
        run.apply(0, {key: key for key in "abcd"}, step="count")
        run.close(0)
    end, owner = threading.Event(), places.services[1]
    other = Silent()
    if request.param == "hangs in a call":
        for name in ("scan", "hold"):
            monkeypatch.setattr(owner.runs, name, lambda *_: end.wait(60))
        owner.runs.serving = lambda: end.wait(60)
        at = owner.at
    else:
        at = other.at
        if request.param == "is not there":
            other.close()
    yield places, at, KINDS[request.param]
    end.set()
    other.close()
    places.close()


def ended(words: list[str], at: str) -> tuple[int, str]:
    """Exit code and output of a command, which ends in time."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(CliRunner().invoke(main, words)), daemon=True)
    thread.start()
    wait_until(lambda: bool(found), LIMIT_S)
    [result] = found
    assert "Traceback" not in result.output
    return result.exit_code, result.output


@pytest.mark.parametrize("words", some([*READS, *BRINGS], *IN_SHORT))
def test_a_command_ends_and_names_the_owner(silent, tmp_path, words):
    places, at, said = silent
    if words in BRINGS and words.startswith("restore"):
        local = tmp_path / "db"
        CliRunner().invoke(main, ["init", str(local), "2"])
        back_up(local, tmp_path / "backups")
    stands = {"DIR": places.places[0], "TO": tmp_path / "new", "BACKUP": tmp_path / "backups"}
    given = [str(stands.get(word, word)) for word in words.split()]
    given += ["--owner", places.services[0].at, "--owner", at, "--token-file", str(places.token)]
    before = [path.read_bytes() for path in places.paths()]
    code, output = ended(given, at)
    assert code == 47, output
    assert f"the owner at {at} " in output
    assert said in output
    assert not Path(tmp_path / "new").exists()
    assert [path.read_bytes() for path in places.paths()] == before


def test_the_check_of_a_probe(silent):
    places, at, said = silent
    code, output = ended(["serve", "--check", at, "--token-file", str(places.token)], at)
    assert (code, said in output) == (47, True), output
