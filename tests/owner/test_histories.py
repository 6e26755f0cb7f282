"""Runs whose partitions are at several owners are exact, whoever dies: random histories against a plain loop."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.owner.histories import H, History, play
from tests.owner.replacing import SILENCE_S, ReplacingHistory, patient_for
from tests.owner.replicated import ReplicatedHistory


def played(store_maker, root: Path, seeds: range, kind: type[H] = History) -> list[H]:
    """Several histories."""
    found = []
    for seed in seeds:
        directory = root / f"{seed}"
        directory.mkdir()
        count = random.Random(seed).randrange(2, 6)
        found.append(play(kind, store_maker(count), count, seed, directory))
        for place in found[-1].places:
            shutil.rmtree(place)
    return found


def test_a_few_histories(store_maker, tmp_path):
    """Owners and drivers are killed at steps and at any moment, files are copied and moved, runs go back."""
    histories = played(store_maker, tmp_path, range(3, 5))
    assert sum(each.kills for each in histories) > 1, "kills must hit"


@pytest.mark.long
def test_many_histories(store_maker, tmp_path):
    """The same; RECOVERY_TEST_OWNER_HISTORIES says how many, RECOVERY_TEST_OWNER_SEED which one is the first."""
    number = int(os.environ.get("RECOVERY_TEST_OWNER_HISTORIES", "100"))
    first = int(os.environ.get("RECOVERY_TEST_OWNER_SEED", "100"))
    histories = played(store_maker, tmp_path, range(first, first + number))
    kills, moves, rewinds = (sum(getattr(each, what) for each in histories) for what in ("kills", "moves", "rewinds"))
    print(f"histories: {number}, runs that did not end well: {kills}, files moved: {moves}, rewinds: {rewinds}")


@pytest.mark.long
def test_a_history_with_a_replica(store_maker, tmp_path):
    """Each owner ships its share of every epoch. Whoever ships is killed, and disks are lost and restored."""
    played(store_maker, tmp_path, range(1), ReplicatedHistory)


@pytest.mark.long
def test_many_histories_with_a_replica(store_maker, tmp_path):
    """The same; RECOVERY_TEST_SHIPPED_HISTORIES says how many, RECOVERY_TEST_OWNER_SEED which one is the first."""
    number = int(os.environ.get("RECOVERY_TEST_SHIPPED_HISTORIES", "30"))
    first = int(os.environ.get("RECOVERY_TEST_OWNER_SEED", "100"))
    histories = played(store_maker, tmp_path, range(first, first + number), ReplicatedHistory)
    counts = {what: sum(getattr(each, what) for each in histories) for what in ("kills", "ship_kills", "losses")}
    print(f"histories: {number}; {counts}")
    assert sum(each.shipped for each in histories) >= number, "epochs must be shipped"


@pytest.fixture
def impatient(monkeypatch):
    """A frozen owner counts as lost soon."""
    patient_for(SILENCE_S)
    yield
    patient_for(20.0)


@pytest.mark.long
def test_a_history_of_replaced_owners(store_maker, tmp_path, impatient):
    """Owners that are killed, frozen, or lost with their disks are replaced from the replica, and come back stale."""
    [history] = played(store_maker, tmp_path, range(101, 102), ReplacingHistory)
    assert history.runs > 1


@pytest.mark.long
def test_many_histories_of_replaced_owners(store_maker, tmp_path, impatient):
    """RECOVERY_TEST_REPLACED_HISTORIES says how many histories, RECOVERY_TEST_OWNER_SEED which is the first."""
    number = int(os.environ.get("RECOVERY_TEST_REPLACED_HISTORIES", "30"))
    first = int(os.environ.get("RECOVERY_TEST_OWNER_SEED", "100"))
    histories = played(store_maker, tmp_path, range(first, first + number), ReplacingHistory)
    counts = {what: sum(getattr(each, what) for each in histories) for what in ("kills", "losses", "replaced")}
    print(f"histories: {number}; {counts}")
