"""A person in the history of a directory, whom the tests of erasing look for afterwards."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

from recovery.base.clock import SystemClock
from recovery.base.reserved import quarantine_of
from recovery.operational.steps.erasing import Erased, erase
from recovery.storage.seam import BatchCount, KeyToErase
from recovery.storage.store import Store
from recovery.values.keys import WAITING_SEPARATOR, home_of
from recovery.values.quarantine import entry_key, note_key
from tests.stores import STEP, Driver, SpreadDirectory, State, pack, state_at, window

PERSON = "person-81c7f2"
OTHER = "other"
"""A second step."""
WAITING = quarantine_of(STEP)
BESIDE = [f"{PERSON}{WAITING_SEPARATOR}x", PERSON[:-1], f"{PERSON}0", f"{PERSON} "]
"""Keys that only look like the person's."""
SECRET = "their-street-4d"
KEYS = [PERSON, *BESIDE, *(f"k{number}" for number in range(12))]
EVERYWHERE = (KeyToErase(None, PERSON),)


def is_of_the_person(step: str, key: str) -> bool:
    """What is to go: the person's states, and what waits for the person in quarantine."""
    own, _, number = key.rpartition(WAITING_SEPARATOR)
    return own == PERSON and (not number or number.isdecimal()) if step == WAITING else key == PERSON


def rest(state: State) -> State:
    """A state without the person's."""
    return {each: value for each, value in state.items() if not is_of_the_person(*each)}


def traces(root: Path, *words: str) -> list[tuple[str, str]]:
    """Each file below `root` that holds one of these words, as text, in base64 or in hexadecimal, and the word."""
    found = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for word in words or (PERSON, SECRET):
            packed = base64.b64encode(word.encode()).rstrip(b"=")[:-1]
            if any(form in data for form in (word.encode(), packed, word.encode().hex().encode())):
                found.append((path.name, word))
    return found


def apply(run: Driver, batch: int, step: str, changes: dict) -> None:
    """Apply changes of one step where its keys live."""
    divided: dict[int, dict] = {}
    for key, change in changes.items():
        divided.setdefault(home_of(step, run.count, key), {})[key] = change
    for index, some in divided.items():
        task = run.task()
        task.apply(step, batch, {index: [pack(some)]}, BatchCount(len(some), len(some)))
        task.release()


class History:
    """Runs with states of two steps and rows in quarantine, which log, fold, collect, go back and are killed."""

    def __init__(self, directory: Path | SpreadDirectory, chance: random.Random) -> None:
        self.directory, self.chance = directory, chance
        self._batch = 0

    def go_on(self, window: tuple[int, ...] = ()) -> None:
        """One execution. window: the epochs to which it may go back."""
        chance = self.chance
        resume = chance.choice(window) + 1 if window and chance.random() < 0.3 else None
        logged = chance.random() < 0.5
        kept = chance.choice([0.0, 3600.0])
        steps = (STEP, OTHER, WAITING)
        with Driver(self.directory, steps, resume_epoch=resume, backup_interval_s=kept) as run:
            for number in range(chance.randint(1, 4)):
                self._batch += 1
                for step in steps:
                    apply(run, self._batch, step, self._changes(step, self._batch))
                if chance.random() < 0.1 and number:
                    return
                floor = max(0, run.epoch - 4) if chance.random() < 0.5 else 0
                run.close(self._batch, floor=floor, logged=logged, notes_made=chance.random() < 0.5)
            if logged and chance.random() < 0.5:
                run.fold(0)

    def _changes(self, step: str, batch: int) -> dict:
        chance = self.chance
        keys = chance.sample(KEYS, chance.randint(1, 9)) + ([PERSON] if chance.random() < 0.7 else [])
        value = lambda key: json.dumps({"n": batch, "at": f"{SECRET} {batch}" if key == PERSON else "x" * batch})  # noqa: E731
        if step != WAITING:
            return {key: None if chance.random() < 0.2 else (value(key), chance.choice([None, 5])) for key in keys}
        packed = lambda key: json.dumps({"data": base64.b64encode(value(key).encode()).decode()})  # noqa: E731
        names = [name for key in keys for name in (note_key(key), entry_key(key, batch))]
        return {
            name: None if chance.random() < 0.1 else (packed(name.rpartition(WAITING_SEPARATOR)[0]), None)
            for name in names
        }


def history(directory: Path | SpreadDirectory, seed: int, executions: int = 6) -> History:
    """A directory with a history in which the person occurs."""
    made = History(directory, random.Random(seed))
    for _ in range(executions):
        made.go_on(window(directory) if isinstance(directory, Path) else ())
    with Driver(directory, (STEP, WAITING), backup_interval_s=3600.0) as run:
        apply(run, 10_000, STEP, {PERSON: (f'"{SECRET}"', 7), "k1": '"v"'})
        apply(run, 10_000, WAITING, {note_key(PERSON): f'"{SECRET}"'})
        run.close(10_000)
    return made


def erased(directory: Path, keys: tuple[KeyToErase, ...] = EVERYWHERE, **options) -> Erased | None:
    """Erase keys from a directory."""
    return erase(Store(directory), keys, SystemClock(), **options)


def left(directory: Path) -> dict[int, State]:
    """The state of each held epoch."""
    return {epoch: state_at(directory, epoch) for epoch in window(directory)}
