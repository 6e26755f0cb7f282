"""Two sites with clocks of their own that back up to one place, and what the place must hold after each of their moves.

`Sites` is the model: it knows which directory holds the place's term, and the state that it saved last. It compares
the place with that after every move, in every way in which a place is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from recovery.backup.catalog import Catalog
from recovery.backup.conditional import documents_to_back_up
from recovery.backup.lease import look_at_term
from recovery.backup.make import Made, make_backup
from recovery.backup.repository import list_backups, prune
from recovery.backup.restore import restore
from recovery.backup.sources import open_source
from recovery.backup.standby.follow import Follower
from recovery.backup.standby.promote import promote
from recovery.backup.writer import Writer
from recovery.base.clock import SystemClock
from recovery.errors import RecoveryError, StaleDirectoryError, TakenOverError
from recovery.places.directory import DirectoryPlace
from recovery.places.protocol import Place
from recovery.planning.backups import KeepRule, parse_keep
from recovery.planning.resume import plan_resume
from recovery.storage.documents import change_states
from recovery.storage.scan import scan
from tests.backup.support import random_id
from tests.backup.test_faults import FailingTarget
from tests.stores import Driver, State, paths_of, problems, query, state_at

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class SkewedClock(SystemClock):
    """A host's clock. It shows what the test sets."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


def saved(
    directory: Path,
    place: Path | Place,
    clock: SystemClock | None = None,
    *,
    keep: Sequence[KeepRule] = (),
    incremental: bool = False,
    takeover: bool = False,
    lose_epochs: bool = False,
) -> Made:
    """`recovery backup DIRECTORY PLACE`, with the clock of a host."""
    clock = clock or SystemClock()
    target = DirectoryPlace(place) if isinstance(place, Path) else place
    catalog = Catalog(target)
    address = str(place) if isinstance(place, Path) else target.shown
    writer = Writer(
        directory, target, clock, random_id, place=address, takeover=takeover, lose_epochs=lose_epochs
    )  # fmt: skip
    made = make_backup(
        directory, target, clock=clock, random_id=random_id, incremental=incremental, catalog=catalog, writer=writer
    )
    if keep:
        prune(target, keep, clock.wall_ms(), catalog, made.manifest)
    return made


def edited(directory: Path, value: str, clock: SystemClock | None = None, resume_epoch: int | None = None) -> None:
    """`recovery state set DIRECTORY --step`: an execution that closes an epoch. resume_epoch: it goes back first."""
    with Driver(directory, started_ms=(clock or SystemClock()).wall_ms(), resume_epoch=resume_epoch) as run:
        run.apply(run.epoch * 10, {"k0": value, f"k{run.epoch % 7}": value})
        run.close(run.epoch * 10)


def noted(directory: Path, value: str) -> None:
    """`recovery state set DIRECTORY ID`: operational state, which needs no epoch."""
    change_states(paths_of(directory)[0], {"doc": lambda _: f'{{"n":"{value}"}}'}, 10, busy_ms=1000)


def restored(place: Path, directory: Path, scratch: Path, **options: object) -> Path:
    """`recovery restore PLACE DIRECTORY`."""
    clock = SystemClock()
    source = open_source(DirectoryPlace(place), scratch, clock)
    restore(source, directory, clock=clock, random_id=random_id, **options)
    return directory


def followed(place: Path, directory: Path) -> Path:
    """`recovery follow PLACE DIRECTORY --once`."""
    with Follower(directory, str(place), SystemClock()) as follower:
        follower.look()
    return directory


Held = tuple[int, State, list]


def held_by(directory: Path) -> Held:
    """What a run would go on from: the epoch, the state of the steps, and operational state."""
    epoch = plan_resume(scan(directory)).resume_epoch - 1
    documents = query(paths_of(directory)[0], "SELECT * FROM states ORDER BY 1")
    return epoch, state_at(directory, epoch), documents


def content_of(root: Path) -> dict[str, str]:
    """Every file below a directory, byte for byte."""
    if not root.exists():
        return {}
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != ".writing"
    }


class Sites:
    """The model. `step` makes a random move, and checks all that must hold."""

    def __init__(self, root: Path, first: Path, chance: random.Random) -> None:
        self.root = root
        self.place = root / "place"
        self.chance = chance
        self.clocks = [SkewedClock(), SkewedClock()]
        self.directories = [first]
        self.standbys: list[Path] = []
        self.holder: Path | None = None
        self.saved: Held | None = None
        self.latest = ""
        self.made_by: dict[str, Path] = {}
        self.told: list[str] = []
        self._count = 0

    def step(self) -> None:
        """One move, then every look at the place."""
        moves: list[Callable[[], None]] = [
            self.edit, self.edit, self.note, self.go_on, self.go_on, self.back_up, self.back_up, self.take_over,
            self.take_over, self.jump, self.restore, self.restore, self.follow, self.promote, self.copy, self.kill,
            self.prune,
        ]  # fmt: skip
        self.chance.choice(moves)()
        self.check()

    def edit(self) -> None:
        directory = self._any()
        window = plan_resume(scan(directory)).window
        back = self.chance.choice(window) + 1 if self.chance.random() < 0.2 else None
        self._tell(f"edit {directory.name} {back}")
        edited(directory, self._value(), self.chance.choice(self.clocks), resume_epoch=back)

    def note(self) -> None:
        noted(self._any(), self._value())

    def jump(self) -> None:
        clock = self.chance.choice(self.clocks)
        clock.ahead_ms = self.chance.choice([0, 3, -3, 10 * MINUTE_MS, -10 * MINUTE_MS, 3 * DAY_MS, -3 * DAY_MS])
        self._tell(f"clock {self.clocks.index(clock)} {clock.ahead_ms}")

    def go_on(self) -> None:
        """The writer closes an epoch and is backed up."""
        if self.holder is not None:
            edited(self.holder, self._value(), self.chance.choice(self.clocks))
            self.back_up(self.holder)

    def take_over(self) -> None:
        """A directory that never was the writer becomes it, whatever it lacks."""
        never = [each for each in self.directories if not self._lease(each)]
        if never:
            self.back_up(self.chance.choice(never), takeover=True, lose=True)

    def back_up(self, directory: Path | None = None, *, takeover: bool = False, lose: bool = False) -> None:
        chance = self.chance
        directory = directory or self._any()
        takeover, lose = takeover or chance.random() < 0.2, lose or chance.random() < 0.2
        keep = chance.choice([(), ("1",), ("2",), ("1d",), ("3h/1h",)])
        was_holder, before = self._holds(directory), content_of(self.place)
        state, ids = held_by(directory), self._ids()
        options = {"incremental": chance.random() < 0.6, "takeover": takeover, "lose_epochs": lose}
        self._tell(f"backup {directory.name} {keep} {options}")
        made = refused = None
        try:
            made = saved(
                directory, self.place, chance.choice(self.clocks), keep=[parse_keep(each) for each in keep], **options
            )
        except (TakenOverError, StaleDirectoryError) as error:
            refused = error
        if made is None:
            self._tell(f"  {type(refused).__name__}")
            assert content_of(self.place) == before, "a refused backup changed the place"
            assert not was_holder or isinstance(refused, StaleDirectoryError)
            assert directory != self.holder, "the writer was refused"
            return
        assert was_holder or self.holder is None or takeover, "another directory wrote"
        if not was_holder and self.saved is not None and not lose:
            there, here = (dict(row[:2] for row in held[2]) for held in (self.saved, state))
            assert all(here.get(name, 0) >= generation for name, generation in there.items()), (
                "newer documents are lost"
            )
        self._count_as_saved(directory, made.manifest.id, state)
        removed = ids - self._ids()
        assert made.manifest.id not in removed

    def kill(self) -> None:
        """A backup whose calls to the place fail from some moment on."""
        directory, before = self._any(), self._ids()
        was_holder, state = self._holds(directory), held_by(directory)
        target = FailingTarget(DirectoryPlace(self.place), self.chance.randint(1, 25), lasting=True)
        self._tell(f"kill {directory.name}")
        with contextlib.suppress(RecoveryError):
            make_backup(
                directory, target, clock=SystemClock(), random_id=random_id, incremental=True,
                writer=Writer(directory, DirectoryPlace(self.place), SystemClock(), random_id, place=str(self.place)),
            )  # fmt: skip
        if look_at_term(documents_to_back_up(DirectoryPlace(self.place)), directory)[1]:
            self.holder = directory
        for identity in self._ids() - before:
            assert was_holder or self.holder == directory
            self._count_as_saved(directory, identity, state)

    def prune(self) -> None:
        if not self.saved:
            return
        self._tell("prune")
        prune(DirectoryPlace(self.place), [KeepRule(count=self.chance.randint(1, 3))], self.clocks[0].wall_ms())

    def restore(self) -> None:
        if self.saved is not None and len(self.directories) < 5:
            self.directories.append(restored(self.place, self._new("restored"), self.root))
            self._tell(f"-> {self.directories[-1].name}")

    def copy(self) -> None:
        if len(self.directories) < 5:
            self.directories.append(Path(shutil.copytree(self._any(), self._new("copy"))))
            self._tell(f"-> {self.directories[-1].name}")

    def follow(self) -> None:
        if self.saved is not None and len(self.directories) + len(self.standbys) < 5:
            self.standbys.append(self._new("standby"))
        for standby in self.standbys:
            followed(self.place, standby)

    def promote(self) -> None:
        if not self.standbys:
            return
        standby = self.chance.choice(self.standbys)
        self._tell(f"promote {standby.name}")
        before = content_of(self.place)
        try:
            promote(standby, self.chance.choice(self.clocks), random_id)
        except TakenOverError:
            assert content_of(self.place) == before
            return
        self.standbys.remove(standby)
        self.directories.append(standby)
        self.holder = standby

    def check(self) -> None:
        """Everybody who reads the place reads what its writer saved last."""
        if self.saved is None:
            return
        assert list_backups(DirectoryPlace(self.place)).newest.id == self.latest, self.told
        assert Catalog(DirectoryPlace(self.place)).newest().id == self.latest
        for look in (lambda to: restored(self.place, to, self.root), lambda to: followed(self.place, to)):
            found = look(self._new("look"))
            assert problems(found) == []
            assert held_by(found) == self.saved, self.told
            shutil.rmtree(found)

    def _count_as_saved(self, directory: Path, identity: str, state: Held) -> None:
        self.holder, self.latest, self.saved = directory, identity, state
        self.made_by[identity] = directory

    def _holds(self, directory: Path) -> bool:
        """Whether the directory, or one that it was copied from, holds the term."""
        found, _ = look_at_term(documents_to_back_up(DirectoryPlace(self.place)), directory)
        return found is not None and found.nonce.encode() in self._lease(directory)

    def _lease(self, directory: Path) -> bytes:
        path = directory / "lease.json"
        return path.read_bytes() if path.exists() else b""

    def _ids(self) -> set[str]:
        return {manifest.id for manifest in list_backups(DirectoryPlace(self.place)).manifests}

    def _any(self) -> Path:
        return self.chance.choice(self.directories)

    def _new(self, kind: str) -> Path:
        self._count += 1
        return self.root / f"{kind}-{self._count}"

    def _value(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _tell(self, text: str) -> None:
        self.told.append(text)
