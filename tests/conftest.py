"""What tests of several folders share: directories, one Spark session, one broker. Only tests that ask start them."""

from __future__ import annotations

import gc
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from recovery.storage.initialize import init_partitions
from tests.shares import TURNS, by_turn

# A failing example prints the line that replays it; how long one takes depends on the machine's disk.
settings.register_profile(
    "recovery", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("recovery")

# Tests start many short-lived JVMs: the quick compiler alone, and a collector without threads, halve their cost. By
# itself that compiler keeps room for a fifth of what both have, and stops when it is full.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC")

# And what they leave in the user's cache directory would be of such JVMs.
os.environ.setdefault("RECOVERY_CLASS_ARCHIVE", "off")

# Tests start hundreds of Pythons. Where bytecode is switched off, each would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Shells start background processes with SIGINT ignored, and nohup with SIGHUP. Tests send both to processes that they
# start, which inherit what is ignored, and not what has a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

MEMORY = Path("/dev/shm")
"""A file system in memory, where there is one."""
ROOM_BYTES = 8 << 30
"""With less, files of tests stay on the disk: in memory they would take the room of processes that tests start."""


def has_room() -> bool:
    """Whether files in memory may take the place of files on a disk."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        return False
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return found is not None and int(found[1]) << 10 >= ROOM_BYTES


OWN: Path | None = None
"""Where this session, its workers and what they start have their temporary files. The workers find it by TMPDIR."""
# Tests sync thousands of small files, which takes long on a disk that others use too. TMPDIR decides otherwise.
if "TMPDIR" not in os.environ and has_room():
    OWN = Path(tempfile.mkdtemp(prefix="recovery-tests-", dir=MEMORY))
    # Servers of tests run as other users.
    OWN.chmod(0o1777)
    os.environ["TMPDIR"] = tempfile.tempdir = str(OWN)
    # Directories of tests that failed stay, and pytest removes those of older sessions.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.backup.emulators import Servers
    from tests.kafka import Kafka

StoreMaker = Callable[..., Path]
"""What makes a recovery directory: called with the number of partitions, and perhaps a function of the directory, which
gives the directory a history, with arguments of the function."""

BEGUN = time.monotonic()


def pytest_report_header() -> list[str]:
    """What repeats the order of this run's tests."""
    turn = os.environ.get("RECOVERY_TEST_TURN")
    return [f"RECOVERY_TEST_TURN={turn}: file {int(turn) % TURNS + 1} of each {TURNS} first"] if turn else []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `RECOVERY_TEST_TURN`, a number, the tests begin with other files for each number: with it, runs that are too
    short for all tests reach every file, run by run. Tests that are deselected do not count."""
    turn = os.environ.get("RECOVERY_TEST_TURN")
    if turn:
        items[:] = by_turn(items, int(turn))


def pytest_collection_finish() -> None:
    """What was collected stays until the end: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Remove what processes have left that tests killed."""
    if OWN is not None:
        shutil.rmtree(OWN, ignore_errors=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """With `RECOVERY_TEST_MINUTES` no test begins later than that: what is left is skipped, and listed by name."""
    minutes = os.environ.get("RECOVERY_TEST_MINUTES")
    if minutes and time.monotonic() - BEGUN > 60 * float(minutes):
        # With the name in it, for pytest would only count what has one reason.
        pytest.skip(f"{item.nodeid}: the {minutes} minutes of RECOVERY_TEST_MINUTES are over")


@pytest.fixture(scope="session")
def store_maker() -> Iterator[StoreMaker]:
    """Makes recovery directories in memory where there is some: copies of one that was made before, so they are
    cheap."""
    with tempfile.TemporaryDirectory(prefix="recovery-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        root, numbers = Path(name), itertools.count()
        templates: dict[tuple[object, ...], Path] = {}

        def make(count: int, *history: Any) -> Path:
            if (count, history) not in templates:
                template = root / f"template-{next(numbers)}"
                init_partitions(template, count)
                if history:
                    history[0](template, *history[1:])
                templates[count, history] = template
            return Path(shutil.copytree(templates[count, history], root / f"store-{next(numbers)}"))

        yield make


@pytest.fixture
def make_store(store_maker: StoreMaker) -> Iterator[StoreMaker]:
    """Makes recovery directories of any number of partitions, new ones or with a history, removed after the test."""
    made: list[Path] = []

    def make(*arguments: Any) -> Path:
        made.append(store_maker(*arguments))
        return made[-1]

    yield make
    for path in made:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def store_dir(make_store: StoreMaker) -> Path:
    """A recovery directory of two empty partitions."""
    return make_store(2)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """The broker of all tests that leave it running: starting one takes five seconds. Each test has topics of its
    own."""
    from tests.kafka import broker

    with broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Object stores of all tests that leave them running: starting one takes a second or two."""
    from tests.backup.emulators import Servers

    with Servers() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests that can share it: two tasks at a time. A task that fails is not tried again, unless
    the test asks for `retries`: each attempt starts a Python worker, which takes longer than most micro-batches."""
    from recovery.spark.jvm.session import create_session, prepare_environment
    from recovery.spark.tuning.appended_lines import install
    from tests.kafka import CONNECTOR
    from tests.lake import JARS, SETTINGS
    from tests.spark.support import ROOT

    prepare_environment(str(ROOT))
    # A JVM loads jars when it starts, so the connectors' come with it, where there are some.
    jars = ",".join(map(str, [*CONNECTOR, *JARS]))
    conf = {"spark.sql.shuffle.partitions": "2", "spark.jars": jars, **SETTINGS}
    session = create_session("tests", master="local[2]", conf=conf)
    install(session)
    yield session
    session.stop()


@pytest.fixture
def retries(spark: SparkSession) -> Iterator[None]:
    """A task that fails is tried again in the shared session, four times in all, as in a session of `local[2,4]`."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    # Spark reads the number when a stage begins, and has no way to set it for a session that runs.
    attempts = scheduler.getClass().getDeclaredField("maxTaskFailures")
    attempts.setAccessible(True)
    before = attempts.getInt(scheduler)
    attempts.setInt(scheduler, 4)
    yield
    attempts.setInt(scheduler, before)
