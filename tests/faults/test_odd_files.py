"""Files and logs that were lost, swapped, cut off or overwritten: never a silent wrong result, and the file is named.

And what should not be in the directory at all: refused, with every file left as it was.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.cli import main
from recovery.errors import (
    AlreadyInitializedError,
    ConfigurationError,
    DuplicatePartitionError,
    ForeignPartitionError,
    MissingPartitionsError,
    RecoveryError,
    UnsupportedVersionError,
)
from recovery.planning.resume import plan_resume
from recovery.storage.initialize import init_partitions
from recovery.storage.scan import scan
from recovery.storage.sqlite.file.tables import SCHEMA_VERSION
from recovery.storage.verify import PartitionCheck
from tests.faults.test_copies import contents
from tests.stores import Driver, State, alter, paths_of, state_at

COUNT = 2
EPOCHS = 6
KEYS = [f"key{number}" for number in range(25)]


class Killed:
    """A store as a killed run leaves it, logs included; copies of earlier moments; and what every epoch holds."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root / name
        directory = self.root / "live"
        init_partitions(directory, COUNT)
        self.states: dict[int, State] = {0: {}}
        with Driver(directory) as run:
            for epoch in range(1, EPOCHS + 1):
                changes = {key: f'"{name}{epoch}{key}{"x" * 50}"' for key in KEYS[epoch % 3 :: 2]}
                self.states[epoch] = self.states[epoch - 1] | {("count", k): (v, None) for k, v in changes.items()}
                run.apply(epoch, changes)
                run.close(epoch)
                if epoch == 2:
                    run.move_logs()
                # The files as they are at this moment, while the run goes on: what a killed one leaves.
                shutil.copytree(directory, self.copy(epoch), ignore=shutil.ignore_patterns("scratch", "*-shm"))

    def copy(self, epoch: int) -> Path:
        """The directory as it was after an epoch was closed."""
        return self.root / f"epoch-{epoch}"


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Two killed stores."""
    root = tmp_path_factory.mktemp("killed")
    return Killed(root, "a"), Killed(root, "b")


def log_of(path: Path) -> Path:
    """The log beside a partition."""
    return path.with_name(path.name + "-wal")


Tamper = Callable[[Path, Path, random.Random, "tuple[Killed, Killed]"], None]


def lose_the_log(path, other, generator, stores):
    log_of(path).unlink()


def swap_logs(path, other, generator, stores):
    log_of(path).rename(path.with_name("aside"))
    log_of(other).rename(log_of(path))
    path.with_name("aside").rename(log_of(other))


def log_of_another_moment(path, other, generator, stores):
    shutil.copy(log_of(stores[0].copy(generator.randrange(1, EPOCHS)) / path.name), log_of(path))


def log_of_another_store(path, other, generator, stores):
    shutil.copy(log_of(stores[1].copy(EPOCHS) / path.name), log_of(path))


def database_of_another_moment(path, other, generator, stores):
    shutil.copy(stores[0].copy(generator.randrange(1, EPOCHS)) / path.name, path)


def cut(path, other, generator, stores):
    target = generator.choice([path, log_of(path)])
    os.truncate(target, generator.randrange(target.stat().st_size))


def empty(path, other, generator, stores):
    generator.choice([path, log_of(path)]).write_bytes(b"")


def junk(path, other, generator, stores):
    target = generator.choice([path, log_of(path)])
    target.write_bytes(generator.randbytes(generator.randrange(1, 20_000)))


def junk_inside(path, other, generator, stores):
    target = generator.choice([path, log_of(path)])
    content = bytearray(target.read_bytes())
    start = generator.randrange(len(content))
    length = min(generator.randrange(1, 5_000), len(content) - start)
    content[start : start + length] = generator.randbytes(length)
    target.write_bytes(content)


def junk_behind(path, other, generator, stores):
    with generator.choice([path, log_of(path)]).open("ab") as file:
        file.write(generator.randbytes(generator.randrange(1, 9_000)))


def a_page_of_zeros(path, other, generator, stores):
    content = bytearray(path.read_bytes())
    start = generator.randrange(len(content) // 4096) * 4096
    content[start : start + 4096] = bytes(4096)
    path.write_bytes(content)


def flip(path, other, generator, stores):
    target = generator.choice([path, log_of(path)])
    content = bytearray(target.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    target.write_bytes(content)


TAMPERS: list[Tamper] = [
    lose_the_log, swap_logs, log_of_another_moment, log_of_another_store, database_of_another_moment, cut, empty, junk,
    junk_inside, junk_behind, a_page_of_zeros, flip,
]  # fmt: skip


def outcome(directory: Path, store: Killed) -> str:
    """What the package says to the files: "refused" with the file named, "found" by the full check with the file
    named, or "exact". Fails on anything else."""
    try:
        plan = plan_resume(scan(directory))
        verdicts = [PartitionCheck(path).run() for path in paths_of(directory)]
    except RecoveryError as error:
        return "refused" if "part-" in str(error) else f"no file is named: {error}"
    if any(verdict.problems for verdict in verdicts):
        return "found"
    for epoch in plan.window:
        assert state_at(directory, epoch) == store.states[epoch], f"epoch {epoch} is silently wrong"
    return "exact"


def tamper_with(directory: Path, tamper: Tamper, generator: random.Random, stores: tuple[Killed, Killed]) -> str:
    """One tampered copy of the killed store, and its outcome."""
    shutil.copytree(stores[0].copy(EPOCHS), directory)
    first, second = generator.sample(paths_of(directory), 2)
    tamper(first, second, generator, stores)
    try:
        return outcome(directory, stores[0])
    finally:
        shutil.rmtree(directory)


def tamper_often(root: Path, tamper: Tamper, stores: tuple[Killed, Killed], times: int) -> dict[str, int]:
    """How often each outcome came."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    generator = random.Random(seed)
    outcomes: dict[str, int] = {}
    for number in range(times):
        found = tamper_with(root / f"{tamper.__name__}-{number}", tamper, generator, stores)
        outcomes[found] = outcomes.get(found, 0) + 1
    print(f"{tamper.__name__}: {outcomes}")
    assert outcomes.keys() <= {"refused", "found", "exact"}
    return outcomes


@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: tamper.__name__)
def test_no_silent_wrong_result(store_maker, stores, tamper):
    """The run is refused, or the check finds the damage, or every epoch that can be resumed is as it was closed."""
    tamper_often(store_maker(1), tamper, stores, 12)


@pytest.mark.long
@pytest.mark.parametrize("tamper", TAMPERS, ids=lambda tamper: tamper.__name__)
def test_no_silent_wrong_result_in_many_cases(store_maker, stores, tamper):
    """The same, more often; RECOVERY_TEST_ODD_FILES says how often each."""
    tamper_often(store_maker(1), tamper, stores, int(os.environ.get("RECOVERY_TEST_ODD_FILES", "400")))


def test_a_killed_store_is_exact(stores, tmp_path):
    """Untouched, it is: the tests above begin with something good, whose newest epochs are in the logs alone."""
    directory = tmp_path / "db"
    shutil.copytree(stores[0].copy(EPOCHS), directory)
    assert outcome(directory, stores[0]) == "exact"
    assert plan_resume(scan(directory)).window[-1] == EPOCHS
    for path in paths_of(directory):
        log_of(path).unlink(missing_ok=True)
    assert plan_resume(scan(directory)).window[-1] < EPOCHS


class TestWhatDoesNotBelong:
    """Refused by name, and nothing in the directory was changed."""

    @pytest.fixture
    def directory(self, stores, tmp_path):
        """A store that was run and ended well."""
        directory = tmp_path / "db"
        shutil.copytree(stores[0].root / "live", directory)
        return directory

    def refused(self, directory: Path, kind: type[RecoveryError], *named: str) -> None:
        """Planning refuses it, for a program and on the command line, and every byte stays."""
        before = contents(directory)
        with pytest.raises(kind) as raised:
            Driver(directory)
        assert type(raised.value) is kind
        for name in named:
            assert name in str(raised.value)
        from click.testing import CliRunner

        for command in ("plan", "status", "verify", "gc"):
            result = CliRunner().invoke(main, [command, str(directory)])
            if command in ("plan", "gc"):
                assert result.exit_code == kind.exit_code, result.output
            assert "Traceback" not in result.output
        after = {name: digest for name, digest in contents(directory).items() if name != "recovery.lock"}
        assert after == {name: digest for name, digest in before.items() if name != "recovery.lock"}

    @pytest.mark.parametrize(
        "name", ["part-0-old.sqlite3", "part-0 (copy).sqlite3", "backup.sqlite3", "part-7.sqlite3"]
    )
    def test_a_stray_copy(self, directory, name):
        """Of an older moment or the same: one of two files would be believed at random."""
        shutil.copy(directory / "part-0.sqlite3", directory / name)
        self.refused(directory, DuplicatePartitionError, name)

    def test_a_partition_that_was_made_again(self, directory, tmp_path):
        """A lost file cannot be replaced by an empty one."""
        init_partitions(tmp_path / "new", COUNT)
        shutil.copy(tmp_path / "new" / "part-1.sqlite3", directory / "part-1.sqlite3")
        self.refused(directory, ForeignPartitionError, "part-")

    @pytest.mark.parametrize("count", [1, COUNT, COUNT + 1])
    def test_init_on_a_store(self, directory, count):
        """With any count, also the same."""
        before = contents(directory)
        with pytest.raises(AlreadyInitializedError):
            init_partitions(directory, count)
        assert contents(directory) == before

    def test_init_where_one_partition_is_left(self, directory):
        """Half a store is not an empty directory."""
        (directory / "part-0.sqlite3").unlink()
        before = contents(directory)
        with pytest.raises(AlreadyInitializedError):
            init_partitions(directory, COUNT)
        assert contents(directory) == before
        self.refused(directory, MissingPartitionsError, "part-0.sqlite3")

    @pytest.mark.parametrize("count", [0, -1, 5000, True, 2.0, "2", None])
    def test_a_wrong_count(self, tmp_path, count):
        """Refused before anything is made."""
        with pytest.raises(ConfigurationError):
            init_partitions(tmp_path / "db", count)
        assert list(tmp_path.iterdir()) == []

    def test_a_store_of_another_count(self, directory, tmp_path):
        """A third file of a store of three among those of two."""
        init_partitions(tmp_path / "three", 3)
        shutil.copy(tmp_path / "three" / "part-2.sqlite3", directory)
        self.refused(directory, ForeignPartitionError, "part-2.sqlite3")

    @pytest.mark.parametrize("index", range(COUNT))
    def test_a_newer_schema(self, directory, index):
        """In one file is enough."""
        path = directory / f"part-{index}.sqlite3"
        alter(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        self.refused(directory, UnsupportedVersionError, path.name)
