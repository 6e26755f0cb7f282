"""Killed at every numbered step and at any write, and again while resuming, a run's state is that of the whole run."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from recovery.planning.resume import plan_resume
from recovery.storage.scan import scan
from tests.faults import minirun
from tests.faults.minirun import (
    CLOSE_POINTS,
    FOLD_POINTS,
    START_POINTS,
    STARTS,
    STEP,
    child,
    die_at,
    run,
    states,
    totals,
    wait,
)
from tests.stores import problems, state_at

BATCHES = 10
COUNT = 3
POINTS = [*START_POINTS, *CLOSE_POINTS, *FOLD_POINTS]
TURNS = 5
"""Among so many histories the points are divided."""


def config_of(generator: random.Random) -> dict:
    """Settings under which something is collected, or nothing is."""
    return {"backup_interval": generator.choice([0, 3600]), "discard_history": True}


def attempt(directory: Path, seed: int, point: str = "", visit: int = 1) -> int:
    """One run in a process of its own, to the end or killed; returns its exit code."""
    settings = config_of(random.Random(seed))

    def work() -> None:
        die_at(point, visit)
        run(directory, seed, BATCHES, seed, **settings)

    return wait(child(work))


def killed_and_resumed(directory: Path, seed: int, point: str, again: bool) -> int:
    """Kill a run at a point, with `again` also the run that resumes, and run to the end. Returns the kills that hit."""
    generator = random.Random(f"{seed} {point} {again}")
    rare = point.startswith(("start", "fold"))
    codes = [attempt(directory, seed, point, 1 if rare else generator.randrange(1, 5))]
    if again:
        codes.append(attempt(directory, seed, generator.choice(POINTS), 1))
    codes.append(attempt(directory, seed))
    return check_attempts(directory, seed, codes)


def killed_in_turn(directory: Path, seed: int, points: Sequence[str]) -> int:
    """Kill a run at the first point, the run that resumes at the next one, and so on; then run to the end. Returns the
    kills that hit."""
    generator = random.Random(f"{seed} {points}")
    codes = [attempt(directory, seed, each, generator.randrange(1, 3) if "close" in each else 1) for each in points]
    return check_attempts(directory, seed, [*codes, attempt(directory, seed)])


def check_attempts(directory: Path, seed: int, codes: list[int]) -> int:
    """Check what attempts, of which the last came to its end, have left. Returns the kills that hit."""
    assert codes.pop() == 0
    assert set(codes) <= {0, -signal.SIGKILL}, codes
    assert states(directory) == totals(seed, BATCHES)
    assert problems(directory) == []
    check_held(directory, seed)
    assert len(set((directory / STARTS).read_text().split())) == 1, "what was seen starts at one place"
    return codes.count(-signal.SIGKILL)


def check_held(directory: Path, seed: int) -> None:
    """Every epoch that is kept can be gone back to, logged or not, and has the states of its last micro-batch."""
    plan = plan_resume(scan(directory))
    if config_of(random.Random(seed))["backup_interval"]:
        assert plan.window == tuple(range(plan.resume_epoch))
    for closed in plan.partitions[0].epochs:
        if closed.epoch in plan.window:
            found = {key: text for (step, key), (text, _) in state_at(directory, closed.epoch).items() if step == STEP}
            assert found == totals(seed, closed.batch_id + 1), closed.epoch


def test_every_step_in_turn(make_store):
    """Killed at a numbered step of starting, closing or folding, and each run that resumes at another one, a run loses
    and doubles nothing."""
    kills = sum(killed_in_turn(make_store(COUNT), 10 + turn, POINTS[turn::TURNS]) for turn in range(TURNS))
    # Whether there is something to fold depends on what the attempts before have closed.
    assert kills >= 0.9 * len(POINTS)


@pytest.mark.long
def test_every_step_once_and_twice(store_maker):
    """Killed at each numbered step, and again during the resume; RECOVERY_TEST_KILL_SEEDS says with how many inputs."""
    histories = kills = 0
    for seed in range(int(os.environ.get("RECOVERY_TEST_KILL_SEEDS", "50"))):
        for point, again in itertools.product(POINTS, (False, True)):
            directory = store_maker(COUNT)
            try:
                kills += killed_and_resumed(directory, seed, point, again)
            except BaseException as error:
                error.add_note(f"seed {seed}, killed at {point}, {'twice' if again else 'once'}")
                raise
            histories += 1
            shutil.rmtree(directory)
    print(f"histories: {histories}, kills that hit: {kills}")
    # A run that finds where its input begins does not come by start.5.
    assert kills >= 0.9 * histories


def traceable() -> bool:
    """Whether strace is here and may attach to processes."""
    if shutil.which("strace") is None:
        return False
    pid = child(lambda: time.sleep(30))
    try:
        traced = subprocess.Popen(["strace", "-qq", "-e", "trace=none", "-p", str(pid)], stderr=subprocess.PIPE)
        try:
            return not traced.stderr.read(1) if traced.poll() is not None else wait_until_traced(pid, 20)
        finally:
            traced.terminate()
            traced.communicate()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait_until_traced(pid: int, timeout_s: float) -> bool:
    """Whether somebody traces the process before the time is over."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        if "TracerPid:\t0\n" not in status:
            return True
        time.sleep(0.002)
    return False


def attempt_traced(directory: Path, seed: int, write: int) -> int:
    """A run that is killed in the middle of one thread's pwrite64 number `write`: before the write is done."""
    settings = config_of(random.Random(seed))
    reading, writing = os.pipe()

    def work() -> None:
        os.close(writing)
        os.read(reading, 1)
        die_at("")
        run(directory, seed, BATCHES, seed, **settings)

    pid = child(work)
    os.close(reading)
    inject = f"inject=pwrite64:signal=KILL:when={write}"
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", inject, "-p", str(pid)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until_traced(pid, 60), "strace did not attach"
    finally:
        os.close(writing)
        code = wait(pid)
        tracer.wait(60)
    return code


def kill_at_writes(store_maker, hits: int, seed: int) -> int:
    """Kill runs at random writes, resume, sometimes be killed again, and compare; until so many kills hit."""
    generator = random.Random(seed)
    done = 0
    while done < hits:
        directory = store_maker(COUNT)
        number = generator.randrange(10**6)
        try:
            for _ in range(generator.randrange(1, 4)):
                code = attempt_traced(directory, number, generator.randrange(1, 60))
                assert code in (0, -signal.SIGKILL)
                done += code != 0
            assert attempt(directory, number) == 0
            assert states(directory) == totals(number, BATCHES)
            assert problems(directory) == []
        except BaseException as error:
            error.add_note(f"seed {seed}, input {number}, {done} hits before")
            raise
        shutil.rmtree(directory)
    return done


@pytest.mark.parametrize(
    "hits",
    [
        pytest.param(4, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_WRITE_KILLS", "500")), id="many", marks=pytest.mark.long),
    ],
)
def test_killed_at_random_writes(store_maker, hits):
    """SIGKILL arrives as a write begins, in whatever thread: between any two writes nothing is lost or doubled."""
    if not traceable():
        pytest.skip("strace is not installed, or may not attach to processes here")
    seed = int(os.environ.get("RECOVERY_TEST_SEED", random.randrange(10**6)))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    print(f"kills that hit: {kill_at_writes(store_maker, hits, seed)}")


def test_the_truth_is_that_of_an_uninterrupted_run(store_maker):
    """What the tests here compare with is what a run does that nobody kills."""
    directory = store_maker(COUNT)
    epochs = run(directory, 5, BATCHES)
    assert len(epochs) == BATCHES
    assert states(directory) == totals(5, BATCHES) != {}
    shutil.rmtree(directory)
    assert minirun.totals(5, BATCHES) != minirun.totals(6, BATCHES)
