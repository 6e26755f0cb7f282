"""Which directory may go on with a target: one that has seen all that the target shows, whatever was copied,
repartitioned, forked or restored before. One rule, for all sinks. Nothing here starts Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from recovery.errors import OutputMismatchError, StaleDirectoryError
from recovery.sinks.tables.commits import CommitHistory
from tests.shares import one_in, seeds
from tests.sinks.directories import TARGETS, World

every_sink = pytest.mark.parametrize("sink", TARGETS)

STALE: dict[str, tuple[str, list[str], str]] = {
    "a copy has run, and the old directory was repartitioned": (
        "C",
        ["run A", "copy B A", "run B", "repartition C A"],
        r"execution .* of store 5e1f.* has written to it, up to epoch 2; this directory does not know that",
    ),
    "the old directory has run after it was repartitioned": (
        "C",
        ["run A", "repartition C A", "run A"],
        "up to epoch 2; this directory does not know that",
    ),
    "the old directory has only begun after it was repartitioned": (
        "C",
        ["run A", "repartition C A", "begin A"],
        "this directory does not know that execution",
    ),
    "a copy from the middle of an execution was repartitioned": (
        "C",
        ["run A, copied as B", "repartition C B"],
        "up to epoch 2; this directory has that execution only up to epoch 1",
    ),
    "a copy from before the first epoch was repartitioned": (
        "C",
        ["begin A", "copy B A", "run A", "repartition C B"],
        "this directory does not know that execution",
    ),
    "the new directory has run, and then the old one": (
        "A",
        ["run A", "repartition C A", "run C"],
        "repartitioned from",
    ),
    "the new directory has run without an epoch, and then the old one": (
        "A",
        ["begin A", "repartition C A", "begin C"],
        "repartitioned from",
    ),
    "the new directory has run, and then a copy of the old one": (
        "B",
        ["run A", "copy B A", "repartition C A", "run C"],
        "repartitioned from",
    ),
    "a directory was repartitioned twice": (
        "D",
        ["run A", "repartition C A", "repartition D A", "run C"],
        "repartitioned from",
    ),
    "a chain: the first directory runs": (
        "A",
        ["run A", "repartition C A", "run C", "repartition E C", "run E"],
        "repartitioned from",
    ),
    "a chain without runs between: the first directory has run since": (
        "E",
        ["run A", "repartition C A", "repartition E C", "run A"],
        "this directory does not know that execution",
    ),
    "a chain: the middle directory has run since": (
        "E",
        ["run A", "repartition C A", "repartition E C", "run C"],
        "this directory does not know that execution",
    ),
    "a chain: a copy of the first directory, and the last one has run": (
        "B",
        ["run A", "copy B A", "repartition C A", "repartition E C", "run E"],
        "repartitioned from",
    ),
    "a copy of the new directory has run": (
        "C",
        ["run A", "repartition C A", "copy B C", "run B"],
        "this directory does not know that execution",
    ),
    "a copy of the new directory from the middle of its execution": (
        "B",
        ["run A", "repartition C A", "run C, copied as B"],
        "only up to epoch 2",
    ),
}
"""The directory that must not run, what happened before, and what the error says."""

RIGHT: dict[str, tuple[str, list[str]]] = {
    "repartitioned": ("C", ["run A", "repartition C A"]),
    "repartitioned before the first epoch": ("C", ["begin A", "repartition C A"]),
    "repartitioned before the first execution": ("C", ["repartition C A"]),
    "a chain without runs between": ("E", ["run A", "repartition C A", "repartition E C"]),
    "a chain": ("E", ["run A", "repartition C A", "run C", "repartition E C"]),
    "after the old directory was refused": ("C", ["run A", "repartition C A", "run C", "refused A"]),
    "after the new directory was refused": ("A", ["run A", "repartition C A", "run A", "refused C"]),
    "gone back behind the repartitioning": ("C", ["run A", "run A", "repartition C A", "back C"]),
    "gone back, and then repartitioned": ("C", ["run A", "run A", "back A", "repartition C A"]),
}
"""The directory that must run, and what happened before."""


def play(world: World, moves: list[str]) -> None:
    """Do what moves say: verb, directory, and the directory that it is made of."""
    world.create("A")
    for move in moves:
        verb, name, *of = move.split()
        if verb == "run":
            middle = of[-1] if of else ""
            world.run(name.rstrip(","), 2 if middle else 1, copy_as=middle)
        elif verb == "begin":
            world.run(name, 0)
        elif verb == "back":
            world.run(name, back_to=2)
        elif verb == "refused":
            with pytest.raises(StaleDirectoryError):
                world.run(name)
        else:
            getattr(world, verb)(name, *of)


@pytest.mark.parametrize(("sink", "case"), one_in(3, TARGETS, STALE))
def test_a_stale_directory_is_refused(tmp_path, sink, case):
    """Also when it goes back; the target is untouched, and the directory that is right goes on. On the user's word the
    stale one takes the target, and then the other one is refused."""
    world = World(TARGETS[sink](tmp_path))
    name, moves, found = STALE[case]
    play(world, moves)
    before = world.target.everything()
    last = next(move.split()[1].rstrip(",") for move in reversed(moves) if move.split()[0] in ("run", "begin"))
    for back_to in (None, 1):
        with pytest.raises(StaleDirectoryError, match=found) as caught:
            world.run(name, back_to=back_to)
        assert caught.value.cause != StaleDirectoryError.default_cause or "copy" in case
        assert world.target.everything() == before
    world.run(last)
    assert world.target.shown() == world.target.closed(world.stores[last])
    world.run(name, loses=True)
    assert world.target.shown() == world.target.closed(world.stores[name])
    with pytest.raises(StaleDirectoryError):
        world.run(last)
    world.run(name)
    assert world.target.shown() == world.target.closed(world.stores[name])


@pytest.mark.parametrize(("sink", "case"), one_in(3, TARGETS, RIGHT))
def test_the_directory_that_is_right_runs(tmp_path, sink, case):
    """It is not taken for a stale one."""
    world = World(TARGETS[sink](tmp_path))
    name, moves = RIGHT[case]
    play(world, moves)
    for _ in range(2):
        world.run(name)
        assert world.target.shown() == world.target.closed(world.stores[name])


@every_sink
def test_a_backup_from_before_a_repartitioning(tmp_path, sink):
    """Its restore takes the place of the directory that was repartitioned: the epochs since are taken back."""
    world = World(TARGETS[sink](tmp_path))
    play(world, ["run A", "copy B A", "run A", "repartition C A", "run C"])
    world.run("B", loses=True)
    assert world.target.shown() == world.target.closed(world.stores["B"])
    for name in "AC":
        with pytest.raises(StaleDirectoryError):
            world.run(name)


@every_sink
@pytest.mark.parametrize(
    "moves",
    [
        ["run A", "fork F A"],
        ["run A", "repartition C A", "run C", "fork F C"],
        ["run A", "fork F A", "repartition C A", "run C"],
        ["run A", "fork F A", "repartition G F", "copy F G"],
        ["begin A", "fork F A"],
    ],
    ids="; ".join,
)
def test_a_fork_has_no_part_in_the_target_of_its_origin(tmp_path, sink, moves):
    """Nor has one that was repartitioned; also where the origin was. Nor is the fork taken for a stale directory."""
    world = World(TARGETS[sink](tmp_path))
    play(world, moves)
    before = world.target.everything()
    for loses in (False, True):
        with pytest.raises(OutputMismatchError, match="from which this store was forked") as caught:
            world.run("F", loses=loses)
        assert "--no-output" in caught.value.remedy
    assert world.target.everything() == before


@every_sink
@pytest.mark.parametrize("seed", seeds(20))
def test_random_directories(tmp_path, sink, seed):
    """Copies, also of running directories, repartitionings and runs in any order: a directory runs if and only if it
    has seen all that the target shows, and then the target is exact. Otherwise it is untouched."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", "0")) * 1000 + seed
    print(f"replay with RECOVERY_TEST_SEED={seed // 1000}, test {seed % 1000}")
    generator = random.Random(seed)
    world = World(TARGETS[sink](tmp_path))
    world.create("A")
    names = iter("BCDEFGHIJKLMNOPQRSTUVWXYZ")
    refused = 0
    for _ in range(12):
        name = generator.choice(list(world.stores))
        move = generator.random()
        if move < 0.2:
            world.copy(next(names), name)
        elif move < 0.4:
            world.repartition(next(names), name)
        else:
            refused += not run_any(world, name, generator, names)
    print(f"{len(world.stores)} directories, {refused} runs refused")


def run_any(world: World, name: str, generator: random.Random, names) -> bool:
    """Run a directory in some way; return whether it ran, which is checked."""
    closed = len(world.stores[name].closed)
    back_to = generator.randrange(1, closed + 1) if closed and generator.random() < 0.2 else None
    loses, may_run = generator.random() < 0.15, world.may_run(name)
    before = world.target.everything()
    run: Callable[[], None] = lambda: world.run(  # noqa: E731
        name, generator.randrange(3), back_to, next(names) if generator.random() < 0.2 else "", loses
    )
    if may_run:
        run()
    elif loses:
        try:
            run()
        except OutputMismatchError:
            # The other directory has gone back behind an epoch that this one holds: its rows are gone.
            assert world.target.everything() == before
            return False
    else:
        with pytest.raises(StaleDirectoryError):
            run()
        assert world.target.everything() == before
        return False
    assert world.target.shown() == world.target.closed(world.stores[name])
    return True


@pytest.mark.parametrize("sink", [name for name in TARGETS if name[0] in "DI"])
@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("C", ["run A", "copy B A", "run B", "repartition C A"]),
        ("C", ["run A, copied as B", "repartition C B"]),
        ("B", ["run A, copied as B"]),
        ("A", ["run A", "repartition C A", "run C"]),
        ("D", ["run A", "repartition C A", "repartition D A", "run C"]),
    ],
    ids=str,
)
def test_a_table_whose_history_was_cleaned(tmp_path, monkeypatch, sink, name, moves):
    """It still knows whose it is, and whether the directory is an older copy; and a fork is refused."""
    world = World(TARGETS[sink](tmp_path))
    play(world, [*moves, f"fork F {name}"])
    before = world.target.everything()
    log = type(world.target._make()._log)
    with monkeypatch.context() as cleaned:
        cleaned.setattr(log, "history", lambda *_: CommitHistory((), whole=False))
        with pytest.raises(StaleDirectoryError):
            world.run(name)
        with pytest.raises(OutputMismatchError, match="from which this store was forked"):
            world.run("F")
    assert world.target.everything() == before
