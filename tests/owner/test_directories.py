"""`recovery serve` with several directories: their names, and that what one flow does stops no other."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery.errors import (
    ConfigurationError,
    CorruptPartitionError,
    LeaseLostError,
    NoPartitionsError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
)
from recovery.owner.service import OwnerService, named_directories
from recovery.owner.spool import ALL_BYTES
from recovery.owner.watch import disk
from recovery.storage.reach import reach
from recovery.storage.store import Store
from recovery.wire import server
from recovery.wire.address import owner_address
from recovery.wire.calls import OwnerCalls
from recovery.wire.client import OwnerTaskStore
from tests.owner.served import Served, invoked, token_file
from tests.shares import first
from tests.stores import KEY, STEP, Driver, ServedPlace, SpreadDirectory, state_at
from tests.waiting import wait_until

NAMES = {
    "one, by its last part": (["a/words"], {"words": "a/words"}),
    "one that no address can name": (["a/wörter"], {"": "a/wörter"}),
    "two": (["a/words", "b/birds"], {"words": "a/words", "birds": "b/birds"}),
    "two of one name": (["a/words", "old=b/words"], {"words": "a/words", "old": "b/words"}),
    "a name for one that no address can name": (["a/words", "w=a/wörter"], {"words": "a/words", "w": "a/wörter"}),
    "a path with = in it": (["./a=b"], {"": "a=b"}),
    "a link": (["a/words", "b/link"], {"words": "a/words", "link": "b/link"}),
}
REFUSED = {
    "two equal names": (["a/words", "b/words"], "has the same name words", "NAME=DIR"),
    "two equal names that were given": (["w=a/words", "w=b/birds"], "has the same name w", "NAME=DIR"),
    "one that no address can name": (["a/words", "a/wörter"], "no address can have the name", "NAME=DIR"),
    "one twice": (["a/words", "again=a/words"], "it is the directory", "once"),
    "one through a link": (["b/birds", "b/link"], "it is the directory", "once"),
    "an address": (["a/words", "w=s3://x/y"], "looks like an address", "path"),
    "none": ([], "no directory is given", "DIR"),
}


@pytest.fixture
def room(tmp_path, monkeypatch) -> Path:
    for each in ("a/words", "a/wörter", "b/words", "b/birds", "a=b"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "b/link").symlink_to("birds")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("what", NAMES)
def test_a_directory_has_a_name(room, what):
    given, named = NAMES[what]
    assert named_directories(given) == {name: room / path for name, path in named.items()}
    if len(given) == 1:
        assert named_directories(given[0]) == named_directories(given)


@pytest.mark.parametrize("what", REFUSED)
def test_names_that_do_not_fit(room, what):
    given, words, way = REFUSED[what]
    with pytest.raises(ConfigurationError, match=words) as error:
        named_directories(given)
    assert way in error.value.remedy


def moved(made: Path, to: Path) -> Path:
    return Path(shutil.move(made, to))


class Flows:
    """Two stores, each whole in a directory of one service, and the directories of their runs."""

    def __init__(self, first: Path, second: Path, root: Path, scratch: Path | None = None) -> None:
        self.lines: list[str] = []
        self.directories = {"words": moved(first, root / "words"), "birds": moved(second, root / "birds")}
        self.service = OwnerService(
            list(self.directories.values()), "127.0.0.1:0", token_file(root), scratch=scratch, log=self.lines.append
        )
        self.places = {name: ServedPlace(self.service, number, name) for number, name in enumerate(self.directories)}
        self.own = {name: root / f"driver of {name}" for name in self.directories}
        for each in self.own.values():
            each.mkdir()

    def driver(self, name: str) -> Driver:
        """An execution over the partitions of one directory."""
        return Driver(SpreadDirectory.of([self.own[name], self.directories[name]], [self.places[name]]))

    def content(self, name: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.directories[name].glob("part-*.sqlite3"))}


@pytest.fixture
def flows(make_store, tmp_path) -> Iterator[Flows]:
    made = Flows(make_store(2), make_store(2), tmp_path)
    yield made
    made.service.stop(0.1)


class TestWhoIsMeant:
    """A client gets the directory that it names, or an error with the names."""

    @pytest.mark.parametrize("name", ["", "fish", "words/x", "WORDS"])
    def test_a_name_that_is_not_served(self, flows, name):
        """Who has the token learns the names; the error begins with the address."""
        client = ServedPlace(flows.service, 0, name).client()
        with pytest.raises(OwnerRefusedError) as error:
            client.ask(OwnerCalls.serving)
        assert error.value.exit_code == 48
        assert "it serves birds, words" in error.value.remedy
        assert error.value.path == client.location
        assert all(each.runs.holding is None for each in flows.places.values())

    def test_who_has_no_token_learns_no_name(self, flows):
        client = ServedPlace(flows.service, 0, "fish").client("another token of 32 characters")
        with pytest.raises(OwnerRefusedError) as error:
            client.ask(OwnerCalls.serving)
        assert "words" not in str(error.value)

    @pytest.mark.parametrize("name", ["", "alone", "other"])
    def test_one_directory_needs_no_name(self, tmp_path, name):
        """With another name it is refused, too."""
        (tmp_path / "alone").mkdir()
        service = OwnerService(tmp_path / "alone", "127.0.0.1:0", token_file(tmp_path), log=lambda _: None)
        client = ServedPlace(service, 0, name).client()
        try:
            if name == "other":
                with pytest.raises(OwnerRefusedError, match="no directory named 'other'"):
                    client.ask(OwnerCalls.serving)
            else:
                assert client.ask(OwnerCalls.serving).holder == ""
        finally:
            client.release()
            service.stop(0.1)


class TestTwoRuns:
    """One service, two flows at the same time."""

    def test_each_has_its_own(self, flows):
        """Partitions, facts and log."""
        with flows.driver("words") as one, flows.driver("birds") as other:
            for run, value in ((one, "w"), (other, "b")):
                run.apply(0, dict.fromkeys("abcd", value))
            one.close(0)
            facts = flows.service.facts()
            assert (facts["words"].epoch, facts["birds"].epoch) == (1, None)
            assert (facts["words"].held, facts["birds"].held) == (True, True)
            other.close(0)
        for name, value in (("words", "w"), ("birds", "b")):
            with flows.driver(name) as run:
                assert run.read(1, "abcd") == dict.fromkeys("abcd", value)
        assert sum("words: execution 1 of" in line for line in flows.lines) == 1
        assert sum("birds: execution 1 of" in line for line in flows.lines) == 1

    @pytest.mark.parametrize("scratch", ["fast", "words/fast"])
    def test_one_scratch_directory_for_both(self, make_store, tmp_path, scratch):
        """No execution removes files of another flow, also if a directory of the two has the scratch directory."""
        flows = Flows(make_store(2), make_store(2), tmp_path, tmp_path / scratch)
        try:
            with flows.driver("birds") as one:
                one.apply(0, {key: key for key in "abcd"})
                with flows.driver("words") as other:
                    other.apply(0, {key: key for key in "abcd"})
                    for run in (one, other):
                        run.close(0)
                        assert run.read(1, "abcd") == {key: key for key in "abcd"}
            assert not list((tmp_path / scratch).rglob("ex-*"))
        finally:
            flows.service.stop(0.1)

    def test_the_stop_lets_both_finish_their_epochs(self, flows):
        with flows.driver("words") as one, flows.driver("birds") as other:
            for run in (one, other):
                run.apply(0, {key: key for key in "abcd"})
                run.store.seal(run.lease, 0)
            stopping = threading.Thread(target=flows.service.stop, args=(30.0,))
            stopping.start()
            wait_until(lambda: all(each.runs.stops for each in flows.places.values()))
            for run in (one, other):
                run.close(0)
                with pytest.raises(OwnerUnreachableError):
                    run.store.seal(run.lease, 1)
            stopping.join(60)
        for each in flows.directories.values():
            assert {key for _, key in state_at(each, 1)} == set("abcd")
        assert sum("stopping, when the epoch of" in line for line in flows.lines) == 2

    def test_the_same_store_may_be_in_both(self, make_store, tmp_path):
        """As with two disks of one host."""
        places = SpreadDirectory(make_store(4), ((1,), (0, 3), (2,)), together=True)
        try:
            for batch in range(2):
                with Driver(places) as run:
                    assert run.epoch == batch + 1
                    run.apply(batch, {key: f"{key}{batch}" for key in "abcdefgh"})
                    run.close(batch)
            look = places.locations()
            assert {each.key for each in look.at().states(STEP)} == set("abcdefgh")
            look.release()
        finally:
            places.close()


class TestAKeyOfAnotherFlow:
    """A task key reaches the partitions of its own run only."""

    @first("lease", ["own", "of the other"])
    def test_it_is_refused(self, flows, lease, monkeypatch):
        """Whatever lease the task claims; the partitions stay as they were."""
        other_key = bytes(32)
        with flows.driver("words") as one, monkeypatch.context() as changed:
            changed.setattr("tests.stores.KEY", other_key)
            other = flows.driver("birds")
            claimed = one.lease if lease == "own" else other.lease
            before = flows.content("birds")
            for name, key in (("birds", KEY), ("words", other_key), ("fish", KEY), ("", KEY)):
                at = ServedPlace(flows.service, 0, name).at
                task = reach(owner_address(at, claimed, 2, deadline_s=5.0), task_key=key)[0]
                assert isinstance(task, OwnerTaskStore)
                with pytest.raises(OwnerRefusedError, match="refused the task's proof"):
                    task.read(STEP, 0, {0: ("a",)})
            own = reach(owner_address(flows.places["birds"].at, other.lease, 2), task_key=other_key)[0]
            assert own.read(STEP, 0, {0: ("a",)}) == {0: [None]}
            assert flows.content("birds") == before
            other.store.release()

    def test_one_driver_process_has_one_key_for_both(self, flows):
        """Then the lease decides."""
        with flows.driver("words") as one, flows.driver("birds"):
            task = reach(owner_address(flows.places["birds"].at, one.lease, 2), task_key=KEY)[0]
            with pytest.raises(LeaseLostError):
                task.read(STEP, 0, {0: ("a",)})


class TestAFlowThatFloods:
    """Such a flow gets what is free, and never what is reserved for another directory."""

    def test_connections(self, flows, monkeypatch):
        """Some are reserved for each directory."""
        monkeypatch.setattr(server, "MOST_CONNECTIONS", 12)
        monkeypatch.setattr(server, "RESERVED_CONNECTIONS", 4)
        with contextlib.ExitStack() as open_ones:
            flood = [flows.places["words"].client(deadline_s=0.3) for _ in range(20)]
            for each in flood:
                open_ones.callback(each.release)
            came_in = 0
            for each in flood:
                with contextlib.suppress(OwnerUnreachableError):
                    came_in += each.ask(OwnerCalls.serving).holder == ""
            assert came_in == 12 - 4
            others = [flows.places["birds"].client(deadline_s=20) for _ in range(4)]
            for each in others:
                open_ones.callback(each.release)
                assert each.ask(OwnerCalls.serving).holder == ""
            assert any("words: refused" in line and "8 connections are open already" in line for line in flows.lines)
        with flows.driver("words") as one, flows.driver("birds") as other:
            assert one.read(0, "a") == other.read(0, "a") == {"a": None}

    def test_memory(self, flows):
        """Each has its share of what waits in memory; what is more waits in a file."""
        spools = [each.runs._memory for each in flows.places.values()]
        assert spools[0] is not spools[1]
        assert [each.take(ALL_BYTES // 2) for each in spools] == [True, True]
        assert [each.take(1) for each in spools] == [False, False]

    def test_calls_that_hang(self, flows, monkeypatch):
        """All turns of one directory are taken: the tasks of the other one are still answered."""
        hang, stuck = threading.Event(), []
        with flows.driver("words"), flows.driver("birds") as other:
            turns = flows.places["words"].served.turns

            def hold() -> None:
                with turns.taken():
                    hang.wait(60)

            for _ in range(8 * (os.cpu_count() or 1)):
                stuck.append(threading.Thread(target=hold, daemon=True))
                stuck[-1].start()
            wait_until(lambda: turns.waiting > 0)
            try:
                other.apply(0, {key: key for key in "abcd"})
                other.close(0)
                assert flows.service.facts()["birds"].epoch == 1
            finally:
                hang.set()
                for each in stuck:
                    each.join(30)


class TestDamage:
    """Damage of one directory does not stop another one."""

    def test_a_disk_that_hangs(self, make_store, tmp_path, monkeypatch):
        """The free space of that disk is not known; probes, and the metrics of the other directory, are answered."""
        end, whole = threading.Event(), shutil.disk_usage
        there, other = make_store(2), make_store(2)

        def usage(path: Path) -> Any:
            return end.wait(60) if path == there else whole(path)

        monkeypatch.setattr(disk, "DISK_S", 0.1)
        monkeypatch.setattr(disk.shutil, "disk_usage", usage)
        service = OwnerService(
            [there, other], "127.0.0.1:0", token_file(tmp_path), metrics_at="127.0.0.1:0", log=lambda _: None
        )
        try:
            before = threading.active_count()
            for _ in range(5):
                for page in ("/metrics", "/health", "/ready"):
                    url = service._endpoint.url.replace("/metrics", page)
                    with urllib.request.urlopen(url, timeout=30) as answer:
                        text = answer.read().decode()
                    if page == "/metrics":
                        names = re.findall(r'^recovery_owner_disk_free_bytes\{directory="(.*)"\} ', text, re.MULTILINE)
                        assert names == [other.name]
            assert threading.active_count() <= before + 2
            look = ServedPlace(service, 0, there.name).client()
            assert look.ask(OwnerCalls.serving).facts.disk_free_bytes is None
            look.release()
        finally:
            end.set()
            service.stop(0.1)

    def test_a_damaged_partition(self, flows):
        path = flows.directories["words"] / "part-0.sqlite3"
        path.write_bytes(b"x" * 5000)
        with pytest.raises(RecoveryError) as error:
            Store(flows.own["words"], [flows.places["words"].client()]).found()
        assert str(error.value.path).startswith(f"{flows.places['words'].at}/")
        assert isinstance(error.value, CorruptPartitionError) or error.value.exit_code == 22
        with flows.driver("birds") as run:
            run.apply(0, {"a": "1"})
            run.close(0)

    def test_a_directory_that_is_missing(self, make_store, tmp_path):
        """As when one disk of several was not mounted: the others are served, and the log warns. Without any, nothing
        is."""
        lines: list[str] = []
        there = make_store(2)
        service = OwnerService([there, tmp_path / "gone"], "127.0.0.1:0", token_file(tmp_path), log=lines.append)
        try:
            assert ServedPlace(service, 0, there.name).client().ask(OwnerCalls.serving).holder == ""
            gone = ServedPlace(service, 1, "gone").client()
            assert gone.ask(OwnerCalls.found, {}) == []
            with pytest.raises(RecoveryError) as error:
                gone.hold("one", "a run", KEY)
            assert str(error.value.path).startswith(f"127.0.0.1:{service.port}/gone/")
            gone.release()
            assert any("gone: serving" in line and "there is no such directory" in line for line in lines)
        finally:
            service.stop(0.1)
        with pytest.raises(NoPartitionsError):
            OwnerService([tmp_path / "gone", tmp_path / "also"], "127.0.0.1:0", token_file(tmp_path))


class TestProcess:
    """As users call it."""

    def test_two_flows(self, make_store, tmp_path):
        """Two directories at one port, one token, one endpoint; commands name one, and an unknown name is refused with
        the names."""
        token = token_file(tmp_path)
        words, birds = moved(make_store(2), tmp_path / "words"), moved(make_store(3), tmp_path / "birds")
        own = tmp_path / "driver"
        own.mkdir()
        owner = Served(words, token, beside=[birds])
        access = ("--owner", owner.at_of(birds), "--token-file", token)
        try:
            assert invoked("serve", "--check", owner.at_of(words), "--token-file", token).returncode == 0
            found = invoked("status", own, *access, "--json")
            shown = json.loads(found.stdout)
            assert [each["owner"] for each in shown["owners"]] == [owner.at_of(birds)]
            assert [each["file"] for each in shown["partitions"]] == [
                f"{owner.at_of(birds)}/part-{index}.sqlite3" for index in range(3)
            ]
            for command in ("report DIR -o PAGE", "advise DIR", "verify DIR", "gc DIR", "runs DIR", "hwm set DIR m 1",
                            "backup DIR COPY", "plan DIR"):  # fmt: skip
                stands = {"DIR": own, "PAGE": tmp_path / "page.html", "COPY": tmp_path / "copy"}
                done = invoked(*(stands.get(word, word) for word in command.split()), *access)
                assert done.returncode == 0, done.stderr
            assert owner.at_of(birds) in (tmp_path / "page.html").read_text()
            bare = f"127.0.0.1:{owner.port}"
            for at in (bare, f"{bare}/fish"):
                refused = invoked("status", own, "--owner", at, "--token-file", token)
                assert refused.returncode == 48, refused.stderr
                assert "birds, words" in refused.stderr
                assert refused.stderr.startswith(f"error: {at}: ") or at in refused.stderr
                assert invoked("serve", "--check", at, "--token-file", token).returncode == 48
            assert owner.stop() == 0
            assert "Traceback" not in owner.text()
        finally:
            owner.kill()

    @pytest.mark.parametrize(("words", "code", "said"), [
        (("db", "sub/db"), 11, "has the same name db"),
        (("none",), 20, "there is no such directory"),
        (("db", "x=s3://b/k"), 11, "looks like an address"),
        ((), 2, "Give DIR"),
    ])  # fmt: skip
    def test_what_does_not_fit(self, tmp_path, monkeypatch, words, code, said):
        """No traceback; and nothing listens."""
        token = token_file(tmp_path)
        for each in ("db", "sub/db"):
            (tmp_path / each).mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        found = invoked("serve", *words, "--at", "127.0.0.1:0", "--token-file", token)
        assert found.returncode == code, found.stderr
        assert said in found.stderr
        assert "Traceback" not in found.stderr
