"""Runs with owners that replicate: each owner stores its own partitions, and every epoch of the place is restored."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from recovery.backup.lease import NAME as LEASE
from recovery.backup.note import last_replica
from recovery.backup.repository import list_backups
from recovery.backup.share import OwnerDirectories, Sharing, StoredShare
from recovery.backup.spread import SpreadParts
from recovery.base.clock import SystemClock
from recovery.cli import main
from recovery.errors import BackupTargetError, ConfigurationError, InconsistentPartitionsError, StorageError
from recovery.owner.runs import Connection
from recovery.owner.shipping import Shipping
from recovery.places.directory import DirectoryPlace
from recovery.places.packed import packed, unpacked
from recovery.replication.process import Replication
from recovery.replication.shipper import PASSING, Shipper
from recovery.storage.scan import describe_file
from recovery.storage.store import OwnerAccess
from recovery.wire.messages import as_refusal
from recovery.wire.run_client import Owner
from tests.backup.support import random_id, states
from tests.shares import seeds, some
from tests.stores import Driver, SpreadDirectory, state_at

KEYS = [f"k{n}" for n in range(30)]


@pytest.fixture(params=some([False, True], False), ids=["two owners", "two directories of one owner"])
def spread(request, make_store, monkeypatch) -> Iterator[SpreadDirectory]:
    """Four partitions: one in the driver's directory, three at two owners. Chains are merged with every third link."""
    monkeypatch.setattr("recovery.planning.chains.FANOUT", 3)
    places = SpreadDirectory(make_store(4), ((1,), (0, 3), (2,)), together=request.param)
    yield places
    places.close()


@pytest.fixture
def here(monkeypatch) -> dict[Path, Sharing]:
    """Owners store in this process, as their processes do, which these are."""
    processes: dict[Path, Sharing] = {}

    def store_copies(self: Connection, wanted: bytes) -> bytes:
        at = self._owner.directory
        if at not in processes:
            processes[at] = Sharing(OwnerDirectories(str(at), str(self._owner.scratch)))
        line = bytes(unpacked([wanted], 1 << 30))
        return packed(msgspec.json.encode(processes[at].answer(line)))

    monkeypatch.setattr(Connection, "store_copies", store_copies)
    return processes


@contextlib.contextmanager
def asking() -> Iterator[list[tuple[str, int]]]:
    """The calls to owners within this context: name, and bytes both ways."""
    asked: list[tuple[str, int]] = []
    original = Owner.ask

    def ask(self: Owner, call: Callable, *arguments: object) -> object:
        answer = original(self, call, *arguments)
        asked.append((call.__name__, sum(len(each) for each in (*arguments, answer) if isinstance(each, bytes))))
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Owner, "ask", ask)
        yield asked


def shipper(spread: SpreadDirectory, place: Path, **options: object) -> Shipper:
    parts = SpreadParts(spread.locations(), str(place))
    return Shipper(
        spread.places[0], DirectoryPlace(place), clock=SystemClock(), random_id=random_id, parts=parts, **options
    )


def step(run: Driver, batch: int, chance: random.Random) -> dict[str, str | None]:
    """One closed epoch."""
    changes = {key: chance.choice([None, f"{batch}"]) for key in chance.sample(KEYS, 8)}
    run.apply(batch, changes)
    run.close(batch, floor=0, notes_made=True)
    return changes


@pytest.mark.usefixtures("here")
class TestEpochs:
    """What is in the place."""

    @pytest.mark.parametrize("seed", seeds(6))
    def test_every_epoch_of_a_random_history_is_restored(self, seed, spread, here, tmp_path):
        """Runs, rewinds, shippings that are left out or begun again, and processes that are started again."""
        chance = random.Random(seed)
        expected: dict[int, dict[str, str]] = {0: {}}
        batch, linked, at = 0, 0, shipper(spread, tmp_path / "dest")
        for _ in range(3):
            back = max(1, max(expected) + 1 - chance.randint(0, 2))
            with Driver(spread, resume_epoch=back if batch else None) as run:
                model = dict(expected[run.epoch - 1])
                expected = {epoch: state for epoch, state in expected.items() if epoch < run.epoch}
                for _ in range(chance.randint(1, 3)):
                    for key, value in step(run, batch, chance).items():
                        model.pop(key, None) if value is None else model.__setitem__(key, value)
                    expected[run.epoch - 1] = dict(model)
                    batch += 1
                    if chance.random() < 0.2:
                        at = shipper(spread, tmp_path / "dest")
                    if chance.random() < 0.2:
                        here.clear()
                    if chance.random() < 0.8:
                        linked += at.ship().made.linked
        done = at.ship()
        assert done.newest.epoch == max(expected)
        assert linked
        for epoch, state in expected.items():
            room = tmp_path / f"epoch-{epoch}"
            call("restore", tmp_path / "dest", room, "--epoch", epoch)
            assert {key: value for (_, key), (value, _) in state_at(room, epoch).items()} == state

    def test_a_shipping_asks_each_owner_once_and_only_for_what_changed(self, spread, tmp_path):
        """Neither the held epochs nor the length of the chain make the messages longer."""
        at, sizes, lengths = shipper(spread, tmp_path / "dest"), [], []
        with Driver(spread) as run:
            # So large that no chain outgrows it.
            run.apply(0, {f"{n}": f"{random.Random(n).getrandbits(400):x}" for n in range(4000)})
            run.close(0, floor=0, notes_made=True)
            at.ship()
            for _ in range(3):
                for _ in range(20):
                    step(run, run.epoch, random.Random(run.epoch))
                for _ in range(3):
                    step(run, run.epoch, random.Random(run.epoch))
                    at.ship()
                step(run, run.epoch, random.Random(run.epoch))
                with asking() as asked:
                    made = at.ship().made
                assert [name for name, _ in asked] == ["store_copies"] * len(spread.services)
                assert made.linked == 4
                sizes.append(sum(size for _, size in asked))
                lengths.append(len(made.manifest.copies[0].changes))
        assert lengths == [2, 4, 2]
        assert max(sizes) < 500 * len(spread.services) + 500 * 3, sizes
        assert max(sizes) - min(sizes) < 50, sizes

    def test_an_owner_that_no_longer_knows_what_it_stored(self, spread, here, tmp_path):
        """The owner's process was started again: the owner is asked once more, with the copies before, and stores what
        changed."""
        at = shipper(spread, tmp_path / "dest")
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
            at.ship()
            step(run, 1, random.Random(2))
            del here[spread.places[1]]
            with asking() as asked:
                assert at.ship().made.linked == 4
        assert len(asked) == len(spread.services) + 1
        call("restore", tmp_path / "dest", tmp_path / "new")

    def test_an_answer_that_is_lost(self, spread, tmp_path, monkeypatch):
        """An owner has stored what the run knows nothing of: what is stored next does not continue that."""
        at, original = shipper(spread, tmp_path / "dest"), Connection.store_copies

        def store_copies(self: Connection, wanted: bytes) -> bytes:
            original(self, wanted)
            raise StorageError("the answer is lost")

        expected, model = {}, {}
        with Driver(spread) as run:
            for batch in range(6):
                model |= step(run, batch, random.Random(batch))
                expected[run.epoch - 1] = {key: value for key, value in model.items() if value is not None}
                with monkeypatch.context() as losing:
                    if batch in {1, 4}:
                        losing.setattr(Connection, "store_copies", store_copies)
                        with pytest.raises(PASSING, match="the answer is lost"):
                            at.ship()
                    else:
                        assert at.ship().newest.epoch == batch + 1
        for epoch, state in expected.items():
            room = tmp_path / f"epoch-{epoch}"
            call("restore", tmp_path / "dest", room, "--epoch", epoch)
            assert {key: value for (_, key), (value, _) in state_at(room, epoch).items()} == state

    def test_a_partition_that_another_owner_has_by_now(self, spread, tmp_path):
        """As after a move: the attempt fails, and the next one asks who has it."""
        at = shipper(spread, tmp_path / "dest")
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
            at.ship()
            step(run, 1, random.Random(2))
        for path in spread.places[1].glob("part-3.sqlite3*"):
            path.rename(spread.places[2] / path.name)
        with pytest.raises(PASSING, match="no such file"):
            at.ship()
        assert at.ship().newest.epoch == 2

    def test_what_did_not_change_is_not_stored_again(self, spread, tmp_path):
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
            began = {run.execution.id}
        at = shipper(spread, tmp_path / "dest")
        assert at.ship().made.stored == 4
        assert at.ship().made.reused == 4
        assert at.lacks(began, 1) is None
        assert "it has epoch 1, closed by execution 1" in at.lacks(began, 0)

    def test_owners_that_are_an_epoch_ahead(self, spread, tmp_path, monkeypatch):
        """A run closes epochs while owners store: the backup is of the newest epoch that all have."""
        run = Driver(spread).__enter__()
        step(run, 0, random.Random(1))
        at = shipper(spread, tmp_path / "dest")
        at.ship()
        original, batches = Connection.store_copies, iter(range(1, 9))

        def store_copies(self: Connection, wanted: bytes) -> bytes:
            step(run, next(batches), random.Random(2))
            return original(self, wanted)

        monkeypatch.setattr(Connection, "store_copies", store_copies)
        monkeypatch.setattr("recovery.backup.spread.AT_ONCE", 1)
        done = at.ship()
        run.__exit__(None, None, None)
        assert 1 <= done.newest.epoch <= 3
        assert list_backups(DirectoryPlace(tmp_path / "dest")).newest.epoch == done.newest.epoch
        call("restore", tmp_path / "dest", tmp_path / "new")
        call("restore", tmp_path / "dest", tmp_path / "old", "--epoch", 1)

    def test_epochs_that_are_closed_between_looks_at_owners(self, spread, tmp_path, monkeypatch):
        """With a backup interval that is shorter than that, no epoch fits, however often the look is repeated. The next
        attempt ships; the run goes on."""
        run = Driver(spread).__enter__()
        step(run, 0, random.Random(1))
        at = shipper(spread, tmp_path / "dest")
        original, batches = Connection.found, itertools.count(1)

        def found(self: Connection, known: dict[str, int]) -> object:
            run.apply(batch := next(batches), {"k": f"{batch}"})
            run.close(batch, floor=run.epoch - 1, notes_made=True)
            return original(self, known)

        with monkeypatch.context() as closing:
            closing.setattr(Connection, "found", found)
            closing.setattr("recovery.storage.store.AT_ONCE", 1)
            closing.setattr("recovery.storage.store.LOOKS", 3)
            with pytest.raises(InconsistentPartitionsError, match="backup interval is shorter") as error:
                at.ship()
        assert isinstance(error.value, PASSING)
        assert at.ship().newest.epoch == run.epoch - 1
        run.__exit__(None, None, None)

    def test_a_backup_interval_that_is_shorter_than_a_shipping(self, spread, tmp_path, monkeypatch):
        """Owners that store one after the other have no epoch in common: what status shows says so, and what to do."""
        run = Driver(spread).__enter__()
        step(run, 0, random.Random(1))
        at = shipper(spread, tmp_path / "dest")
        original, batches = Connection.store_copies, iter(range(1, 99))

        def store_copies(self: Connection, wanted: bytes) -> bytes:
            for batch in itertools.islice(batches, 2):
                run.apply(batch, {"k": f"{batch}"})
                run.close(batch, floor=run.epoch - 1, notes_made=True)
            return original(self, wanted)

        monkeypatch.setattr(Connection, "store_copies", store_copies)
        monkeypatch.setattr("recovery.backup.spread.AT_ONCE", 1)
        with pytest.raises(InconsistentPartitionsError, match="backup interval is shorter") as error:
            at.ship()
        run.__exit__(None, None, None)
        assert isinstance(error.value, PASSING)
        assert "-b 10m" in error.value.remedy
        assert "backup interval is shorter" in last_replica(spread.places[0]).problem

    def test_a_place_that_is_another_one_at_an_owner(self, spread, tmp_path, monkeypatch):
        """A path that each host has for itself: no backup counts whose objects are not all there."""
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
        parts = SpreadParts(spread.locations(), str(tmp_path / "elsewhere"))
        at = Shipper(
            spread.places[0], DirectoryPlace(tmp_path / "dest"), clock=SystemClock(), random_id=random_id, parts=parts
        )
        with pytest.raises(BackupTargetError, match="which has stored nothing") as error:
            at.ship()
        assert "all hosts reach" in error.value.remedy
        assert list_backups(DirectoryPlace(tmp_path / "dest")).manifests == ()
        for place in ("dest", "elsewhere"):
            kept = [path for path in (tmp_path / place).rglob("*") if path.is_file() and "part-1" not in str(path)]
            assert kept == []

    @pytest.mark.parametrize("damaged", [[2], [0, 1, 2, 3]])
    def test_a_damaged_chain_is_begun_again(self, spread, tmp_path, damaged):
        """Objects that owners were to merge were changed: their partitions are stored whole, and the others are not."""
        at = shipper(spread, tmp_path / "dest")
        with Driver(spread) as run:
            run.apply(0, {f"{n}": "x" * 50 for n in range(2000)})
            run.close(0, floor=0, notes_made=True)
            at.ship()
            whole: dict[str, str] = {}
            for batch in range(1, 6):
                step(run, batch, random.Random(batch))
                whole |= at.ship().made.whole_because
                if batch == 2:
                    for index in damaged:
                        for path in (tmp_path / "dest" / "objects" / f"part-{index}").glob("*.changes.zst"):
                            path.write_bytes(b"damaged" + path.read_bytes()[7:])
        assert sorted(whole) == [f"part-{index}.sqlite3" for index in damaged], whole
        call("restore", tmp_path / "dest", tmp_path / "new")

    @pytest.mark.parametrize(("path", "shown"), [
        ("/data/scratch/x", "{owner}/data/scratch/x: no room"), (None, "{owner}: no room"),
        ("s3://bucket/words", "s3://bucket/words: the owner at {owner}: no room"),
    ])  # fmt: skip
    def test_an_owner_that_fails(self, spread, tmp_path, monkeypatch, path, shown):
        """The error says which one it is, whatever the path in it is of."""
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
        failed = StoredShare(refusal=as_refusal(StorageError("no room", path=path)))
        monkeypatch.setattr(Connection, "store_copies", lambda self, _: packed(msgspec.json.encode(failed)))
        with pytest.raises(StorageError) as error:
            shipper(spread, tmp_path / "dest").ship()
        starts = [shown.format(owner=each.at) for each in spread.services]
        assert str(error.value).startswith(tuple(starts))

    def test_answers_of_something_else(self, spread, tmp_path, monkeypatch):
        """Nothing counts that is not exactly what was asked for."""
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
        answers = {
            "unpacked": "something else", "x": "something else", "{}": "other partitions",
            '{"copies": [{}]}': "cannot be read",
            '{"copies": [{"index": 9, "shared": []}]}': "cannot be read", '{"lacks_base": true}': "other partitions",
            '{"spoiled": [9, "cut off"]}': "a chain that it was not to continue: part-9",
        }  # fmt: skip
        for text, words in answers.items():
            answer = text.encode() if text == "unpacked" else packed(text.encode())
            monkeypatch.setattr(Connection, "store_copies", lambda self, wanted, answer=answer: answer)
            with pytest.raises(StorageError, match=words):
                shipper(spread, tmp_path / "dest").ship()


def call(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def replication(spread: SpreadDirectory, place: object, **options: object) -> Replication:
    access = OwnerAccess(tuple(each.at for each in spread.services), spread.token)
    return Replication(
        spread.places[0], describe_file(spread.paths()[0]).store_id, str(place), spread.places[0], clock=SystemClock(),
        access=access, **options,
    )  # fmt: skip


def test_a_service_that_stops_while_an_owner_is_asked(tmp_path):
    """Whenever that is, the error is a typed one."""
    shipping = Shipping(tmp_path, tmp_path)
    shipping._process = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    shipping._process.stdin.close()
    with pytest.raises(StorageError, match="cannot be reached"):
        shipping.ask(packed(b"{}"))
    shipping.end()
    assert shipping._process.poll() is not None
    with pytest.raises(StorageError, match="is being stopped"):
        shipping.ask(packed(b"{}"))


class TestProcesses:
    """The real processes, of the driver and of owners."""

    def test_epochs_are_shipped(self, spread, tmp_path):
        """With sync, an epoch is in the place when `wait` returns; status shows what the replica has."""
        made = replication(spread, tmp_path / "dest", sync=True)
        made.ready(120)
        with Driver(spread) as run:
            for batch in range(3):
                step(run, batch, random.Random(batch))
                made.closed()
                made.wait(lambda: False)
                newest = list_backups(DirectoryPlace(tmp_path / "dest")).newest
                assert newest.epoch == made.state.shipped.epoch == batch + 1
                if batch == 1:
                    # The next process of this owner knows nothing of what was stored.
                    process = spread.services[0].runs.shipping._process
                    process.kill()
                    process.wait()
            made.end()
        assert json.loads((tmp_path / "dest" / LEASE).read_text())["lease"]["ended"] == 3
        assert last_replica(spread.places[0]).epoch == 3
        named = [word for each in spread.services for word in ("--owner", each.at)]
        found = json.loads(call("status", spread.places[0], *named, "--token-file", spread.token, "--json"))
        assert (found["replica"]["epoch"], found["replica"]["lag_epochs"]) == (3, 0)
        call("restore", tmp_path / "dest", tmp_path / "new")
        assert sorted(states(tmp_path / "new")) == [0, 1, 2, 3]

    def test_a_place_that_each_host_has_for_itself_ends_the_run(self, spread, tmp_path, monkeypatch):
        """Before its first epoch, with 60, and nothing is stored on an owner's disk."""
        for name in ("owners", "run"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "owners")
        for each in spread.services:
            each.runs.shipping.ask(packed(b"{}"))
        monkeypatch.chdir(tmp_path / "run")
        made = replication(spread, "/proc/self/cwd/dest")
        with pytest.raises(BackupTargetError, match="for the owner at 127") as error:
            made.ready(60)
        made.stop()
        assert (error.value.exit_code, type(error.value)) == (60, BackupTargetError)
        assert not list((tmp_path / "owners").rglob("*.*"))
        assert not list((tmp_path / "run" / "dest").glob("[om]*/**/*.*"))

    @pytest.mark.long
    def test_an_owner_that_is_away(self, spread, tmp_path):
        """The lag and the error say why; when it is back, the same epochs are shipped."""
        with Driver(spread) as run:
            step(run, 0, random.Random(1))
        if spread.services[0].service is spread.services[1].service:
            pytest.skip("one process is away with all its directories")
        port = spread.services[1].port
        spread.services[1].stop(0.1)
        made = replication(spread, tmp_path / "dest")
        made.closed()
        with made._changed:
            made._changed.wait_for(lambda: made._failures, 60)
        assert f"127.0.0.1:{port}" in made.state.problem
        with pytest.raises(BackupTargetError) as error:
            made.wait(lambda: False, once=True)
        assert error.value.cause == "The owner's process or host was stopped, or the network to that host is cut."
        spread.services[1] = spread.serve(2, port)
        made.wait(lambda: False)
        assert made.state.shipped.epoch == 1
        made.end()

    def test_an_address_with_a_secret_is_not_sent(self, spread):
        made = replication(spread, "s3://name:secret@bucket/path")
        with pytest.raises(ConfigurationError, match="the address holds credentials") as error:
            made.ready(60)
        made.stop()
        assert "secret" not in str(error.value).replace("secrets", "")
        assert "sent to the owners" in error.value.cause
