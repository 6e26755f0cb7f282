"""`recovery run --owner`: a flow whose partitions are at owners of other hosts, here processes of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from recovery import ConfigurationError, RecoveryConfig
from recovery.wire.server import HOLD_S
from tests.backup.emulators import moto
from tests.cluster.support import Run, assert_exact, batches_in
from tests.faults.minirun import freeze
from tests.flows.cluster import truth
from tests.owner.served import TOKEN, Served, invoked, recovery, spread, token_file
from tests.stores import ROOT, state_at, window
from tests.waiting import wait_until
from tests.wire.certificates import make_certificates

FLOW = f"{ROOT}/tests/flows/cluster.py"


class Fleet:
    """Four partitions: one in the driver's directory, three at two owners."""

    def __init__(self, made: Path, root: Path, certificates: tuple[Path, Path, Path] | None = None) -> None:
        """certificates: those of all owners, their key, and the authority's."""
        self.root = root
        self.secured: list[object] = [] if certificates is None else ["--tls-ca", certificates[2]]
        options = () if certificates is None else ("--tls-cert", certificates[0], "--tls-key", certificates[1])
        self.token = token_file(root)
        self.places = spread(made, ((1,), (0, 3), (2,)))
        self.owners = [Served(each, self.token, *options) for each in self.places[1:]]

    @property
    def options(self) -> list[object]:
        named = [option for owner in self.owners for option in ("--owner", owner.at)]
        return [*named, "--token-file", self.token, *self.secured]

    def run(self, flow: str, *options: object, master: str = "local[2]", directory: Path | None = None) -> Run:
        """Start a run. directory: another one for the driver."""
        at = directory or self.places[0]
        command = [sys.executable, "-m", "recovery", "run", f"{FLOW}:{flow}", "-r", at, "--trigger", 0]
        command += ["--master", master, "-s", 0, "-b", "1h", *self.options, *options]
        return Run(["env", f"PYTHONPATH={ROOT}", *map(str, command)], self.root / "out")

    def is_free(self) -> bool:
        """Whether all owners have let go every run that held them."""
        return all(each.text().count(": held by ") == each.text().count(": let go by ") for each in self.owners)

    def together(self) -> Path:
        """All partitions, copied to one directory; ends the owners."""
        for each in self.owners:
            assert each.stop() == 0
        found = self.root / "together"
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        for place in self.places:
            for path in place.glob("part-*"):
                shutil.copyfile(path, found / path.name)
        return found

    def close(self) -> None:
        for each in self.owners:
            each.kill()


@pytest.fixture
def fleet(make_store, tmp_path):
    made = Fleet(make_store(4), tmp_path)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("returns", [False, True])
def test_an_owner_is_killed_in_the_midst_of_a_run(fleet, returns):
    """The run ends with 47, soon, whether the owner comes back; the same command goes on from the last closed epoch."""
    run = fleet.run("counts(2000, 99, 0.2)")
    run.await_text(r"^batch 2$")
    began_s = time.monotonic()
    fleet.owners[0].kill()
    if returns:
        fleet.owners[0].start()
    assert run.wait() == 47, run.text()
    # Its tasks alone would try for a minute each time.
    assert time.monotonic() - began_s < 40
    assert f"the owner at {fleet.owners[0].at}" in run.text()
    if not returns:
        fleet.owners[0].start()
    found = invoked("plan", fleet.places[0], *fleet.options, "--json")
    done = json.loads(found.stdout)["after_batch"] + 1
    assert done >= 2
    fleet.run(f"counts(2000, {done + 1})").succeed()
    together = fleet.together()
    assert assert_exact(together, 2000) == done + 2


@pytest.mark.long
def test_two_flows_at_one_owner(make_store, tmp_path):
    """At the same time, each with a directory of its own. When the owner is killed, both runs end with 47; the same
    commands continue both."""
    token = token_file(tmp_path)
    words, birds = (Path(shutil.move(make_store(2), tmp_path / name)) for name in ("words", "birds"))
    owner = Served(words, token, beside=[birds])

    def begun(directory: Path, flow: str) -> Run:
        own = tmp_path / f"driver of {directory.name}"
        own.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "recovery", "run", f"{FLOW}:{flow}", "-r", own, "--trigger", 0, "-s", 0]
        command += ["--master", "local[1]", "--owner", owner.at_of(directory), "--token-file", token]
        return Run(["env", f"PYTHONPATH={ROOT}", *map(str, command)], tmp_path / f"out of {directory.name}")

    try:
        runs = [begun(each, "counts(2000, 99, 0.2)") for each in (words, birds)]
        for run in runs:
            run.await_text(r"^batch 2$")
        owner.kill()
        for run, directory in zip(runs, (words, birds), strict=True):
            assert run.wait() == 47, run.text()
            assert f"the owner at {owner.at_of(directory)}" in run.text()
        owner.start()
        done = [batches_in(each) for each in (words, birds)]
        assert min(done) >= 2
        again = [begun(each, f"counts(2000, {n + 1})") for each, n in zip((words, birds), done, strict=True)]
        for run in again:
            run.succeed()
        assert owner.stop() == 0
        assert [assert_exact(each, 2000) for each in (words, birds)] == [n + 2 for n in done]
    finally:
        owner.kill()


@pytest.mark.long
@pytest.mark.parametrize("ends", [False, True])
def test_a_driver_that_was_replaced(fleet, tmp_path, ends):
    """Frozen until the owners have let it go, and another driver has begun or has even ended, it ends with 41."""
    (fleet.places[0] / "part-1.sqlite3").rename(fleet.places[1] / "part-1.sqlite3")
    successors = tmp_path / "successor"
    successors.mkdir()
    run = fleet.run("counts(2000, 99, 0.2)")
    run.await_text(r"^batch 2$")
    freeze(run.process.pid)
    try:
        wait_until(fleet.is_free, HOLD_S * 3)
        successor = fleet.run("counts(2000, 8, 0.2)" if ends else "counts(2000, 99, 0.2)", directory=successors)
        if ends:
            successor.succeed()
        else:
            successor.await_text(r"^batch 5$")
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
    assert run.wait() == 41, run.text()
    assert "execution 1 may not write any more: execution 2 began here" in run.text()
    if not ends:
        assert successor.process.poll() is None, successor.text()
        successor.process.send_signal(signal.SIGTERM)
        assert successor.wait() == 0, successor.text()
    assert_exact(fleet.together(), 2000)


@pytest.mark.long
def test_a_run_goes_back(fleet):
    """To the beginning, once."""
    fleet.run("counts(2000, 3)").succeed()
    fleet.run("counts(2000, 1)", "--resume-after", 0).succeed()
    again = fleet.run("counts(2000, 1)", "--resume-after", 0)
    assert again.wait() == 16, again.text()
    together = fleet.together()
    assert assert_exact(together, 2000) == 2


@pytest.mark.long
def test_a_replica_of_owners_is_restored_to_owners(fleet, tmp_path):
    """Each owner ships its own partitions; all disks are lost, and the next run goes on from the last epoch."""
    fleet.run("counts(2000, 3)", "--replicate", tmp_path / "dest", "--replicate-sync").succeed()
    found = json.loads(invoked("status", fleet.places[0], *fleet.options, "--json").stdout)
    assert found["replica"]["lag_epochs"] == 0
    for place in fleet.places:
        for path in place.glob("part-*"):
            path.unlink()
    done = invoked("restore", tmp_path / "dest", fleet.places[0], *fleet.options, "--json")
    assert done.returncode == 0, done.stdout
    again = json.loads(done.stdout)
    assert (again["epoch"], sorted(set(again["owners"].values()))) == (4, sorted(each.at for each in fleet.owners))
    fleet.run("counts(2000, 5)", "--replicate", tmp_path / "dest").succeed()
    assert assert_exact(fleet.together(), 2000) == 6


@pytest.fixture
def secured(make_store, tmp_path):
    """The same with TLS."""
    made = Fleet(make_store(4), tmp_path, make_certificates(tmp_path))
    yield made
    made.close()


@pytest.fixture
def bucket(monkeypatch):
    """A bucket, with what reaches it in the environment of every process."""
    with moto() as made:
        endpoint = dict(parse_qsl(made.parameters))["endpoint_override"]
        for name, value in {
            **made.environ,
            "AWS_ENDPOINT_URL": f"http://{endpoint}",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        yield f"{made.address}/words"


@pytest.mark.long
def test_a_replica_in_a_bucket(bucket, secured):
    """Over TLS, one owner being killed meanwhile. All disks are lost; owners get their partitions from the bucket, and
    the next run goes on. Nobody prints or keeps a secret."""
    fleet, replicate = secured, ("--replicate", bucket, "--replicate-sync")
    run = fleet.run("counts(2000, 99, 0.2)", *replicate)
    run.await_text(r"^batch 2$")
    fleet.owners[0].kill()
    assert run.wait() == 47, run.text()
    fleet.owners[0].start()
    fleet.run("counts(2000, 3)", *replicate).succeed()
    status = invoked("status", fleet.places[0], *fleet.options, "--json")
    replica = json.loads(status.stdout)["replica"]
    assert (replica["destination"], replica["lag_epochs"]) == (bucket, 0)
    for place in fleet.places:
        for path in place.glob("part-*"):
            path.unlink()
    done = invoked("restore", bucket, fleet.places[0], *fleet.options, "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["epoch"] == replica["epoch"]
    fleet.run("counts(2000, 5)", *replicate).succeed()
    printed = [(fleet.root / "out").read_text(), status.stdout, done.stdout, *(each.text() for each in fleet.owners)]
    kept = [path.read_bytes().decode(errors="replace") for place in fleet.places for path in place.glob("*.json")]
    for secret in ("not-a-real-secret", TOKEN):
        assert not any(secret in text for text in [*printed, *kept])
    assert assert_exact(fleet.together(), 2000) >= 6


@pytest.mark.long
def test_credentials_are_renewed_during_a_run(secured):
    """Token and certificate are read again by owners while the run goes on, and the run's metrics show each owner. The
    run does not end by it, nor does a command beside it that knows the new token alone."""
    fleet, new = secured, "fedcba9876543210fedcba9876543210"
    run = fleet.run("counts(2000, 10_000, 0.2)", "--metrics-port", 0)
    run.await_text(r"^batch 2$")
    url = re.search(r"metrics at (http://\S+)", run.text())[1]

    def page() -> str:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    for tokens in (f"{TOKEN}\n{new}", f"{new}\n{TOKEN}", new):
        fleet.token.write_text(tokens)
        for each in fleet.owners:
            reloads = each.text().count("reloaded: ")
            each.process.send_signal(signal.SIGHUP)
            wait_until(lambda each=each, reloads=reloads: each.text().count("reloaded: ") > reloads)
        status = invoked("status", fleet.places[0], *fleet.options, "--json")
        assert status.returncode == 0, status.stderr
    for each in fleet.owners:
        wait_until(lambda each=each: f'recovery_owner_held{{owner="{each.at}"}} 1' in page(), 60)
        assert "not reloaded" not in each.text()
    found = json.loads(status.stdout)
    assert [each["holder"].partition(" on ")[0] for each in found["owners"]] == ["flow counts", "flow counts"]
    assert {each["target"] for each in found["health"] if each["where"]} >= {"owner-call", "certificate"}
    assert re.search(r'recovery_health\{target="certificate",where="127\S+"\} 2', page())
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.text()
    assert not any("Traceback" in each.text() for each in fleet.owners)
    assert assert_exact(fleet.together(), 2000) > 3


@pytest.mark.long
def test_every_kind_of_step(secured):
    """A step per key, an Arrow step and one with timeouts; driver and tasks speak TLS."""
    fleet = secured
    fleet.run("kinds(2000, 3)").succeed()
    found = invoked("status", fleet.places[0], *fleet.options, "--json")
    assert sorted(json.loads(found.stdout)["steps"]) == ["arrow", "each", "waiting"]
    without = invoked("plan", fleet.places[0], *fleet.options[:-2])
    assert without.returncode == 48, without.stderr
    together = fleet.together()
    for step in ("each", "waiting"):
        assert assert_exact(together, 2000, step) == 4
    held = state_at(together, window(together)[-1])
    found = {key: next(iter(json.loads(text).values())) for (each, key), (text, _) in held.items() if each == "arrow"}
    assert found == truth(8000)


@pytest.mark.long
def test_an_aggregate_that_the_driver_merges(fleet):
    """It reaches the owners as a task does."""
    fleet.run("totals(2000, 3)").succeed()
    together = fleet.together()
    held = state_at(together, window(together)[-1])
    found = {key: next(iter(json.loads(text).values())) for (each, key), (text, _) in held.items() if each == "totals"}
    assert found == truth(2000 * batches_in(together))


@pytest.mark.long
def test_all_keys(fleet):
    """At each closed epoch, all of them, as where all partitions are files of the driver."""
    flow = f"every_key({str(fleet.places[0])!r})"
    last = 0
    for _ in range(2):
        # A run shows the epoch that it resumes from before it handles signals; the flow ends it two epochs later.
        text = fleet.run(flow.replace(")", f", {last + 3})")).succeed()
        shown = re.findall(r"^epoch (\d+) (\{.*\})$", text, re.MULTILINE)
        assert int(shown[-1][0]) >= last + 3
        last = int(shown[-1][0])
        for epoch, counts in shown:
            assert json.loads(counts) == truth(2000 * int(epoch)), epoch
    other = fleet.run("every_key('elsewhere')")
    assert other.wait() == 11
    assert "is not the recovery directory of this run" in other.text()


@pytest.mark.long
def test_loads_with_a_mark(fleet):
    """Each id is loaded once, over two runs; the mark is where the command looks for it, and can be set back."""
    loaded = []
    for last in (2, 4):
        text = fleet.run(f"loading({last})").succeed()
        loads = [json.loads(line.split(" ", 1)[1]) for line in text.splitlines() if line.startswith("loaded ")]
        loaded += [row for ids in loads for row in ids]
    assert loaded == list(range(len(loaded)))
    assert len(loaded) >= 50
    mark = invoked("hwm", "get", fleet.places[0], "ids", *fleet.options)
    assert json.loads(mark.stdout) == len(loaded) - 1, mark.stderr
    back = invoked("hwm", "set", fleet.places[0], "ids", 19, "--force", *fleet.options)
    assert back.returncode == 0, back.stderr
    text = fleet.run("loading(5)").succeed()
    assert json.loads(next(line for line in text.splitlines() if line.startswith("loaded ")).split(" ", 1)[1])[0] == 20


@pytest.mark.parametrize("owners", ["h1:7337", (":7337",), ("h1:7337", "h1:7337"), ("h1",)])
def test_names_of_owners_are_checked(owners):
    with pytest.raises(ConfigurationError):
        RecoveryConfig("db", owners=owners)


@pytest.mark.long
def test_a_pipeline(fleet, tmp_path):
    """Its marks move with epochs of all partitions, and its record lies with partition 0. A lost owner is named."""
    nodes = tmp_path / "nodes.py"
    nodes.write_text(
        "import os\n"
        "from recovery import Node, Pipeline, incremental\n"
        "read = incremental(lambda spark: spark.range(int(os.environ['ROWS'])), column='id', key='ids')\n"
        "write = lambda frame: print('loaded', sorted(row.id for row in frame.collect()), flush=True)\n"
        "pipeline = Pipeline('nightly', [Node('load', read, write)])\n"
    )
    words = ("run", nodes, "-r", fleet.places[0], *fleet.options)
    for count, loaded in (("4", [0, 1, 2, 3]), ("6", [4, 5])):
        done = recovery(*words, ROWS=count)
        assert done.returncode == 0, done.stderr
        assert f"loaded {loaded}" in done.stdout
    assert json.loads(invoked("hwm", "get", fleet.places[0], "ids", *fleet.options).stdout) == 5
    runs = json.loads(invoked("runs", fleet.places[0], "--json", *fleet.options).stdout)
    assert [(run["pipeline"], run["status"]) for run in runs] == [("nightly", "succeeded")] * 2
    back = recovery(*words, "--resume-after", 1, ROWS="6")
    assert "loaded [4, 5]" in back.stdout, back.stderr
    fleet.owners[0].kill()
    refused = recovery(*words, ROWS="6")
    assert refused.returncode == 47, refused.stderr
    assert "Traceback" not in refused.stderr
