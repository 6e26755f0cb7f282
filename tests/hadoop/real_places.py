"""Faults on a real file system of Hadoop's, through the JVM of a session.

As a program: ADDRESS STEP STEP, and settings of Spark as NAME=VALUE; it prints how many faults it tried.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from recovery.errors import RecoveryError
from recovery.places.hadoop import HadoopFiles
from recovery.sinks.hadoop_disk import HadoopDisk
from tests.hadoop.checkpoint_story import ENDS, LAST, Story
from tests.hadoop.faulty import WAYS, Faulty
from tests.sinks.memory_disk import Killed
from tests.sinks.support import Run, Store
from tests.sinks.test_output import RESUMES, is_exact, story

KINDS = [(way, killed) for way in WAYS[:2] for killed in (False, True)]


class PlaceDisk(HadoopDisk):
    """What the sink does to a real file system, with what the tests of other disks do to it."""

    def __init__(self, address: str, faulty: Any = None) -> None:
        self.real = HadoopFiles(address)
        super().__init__(faulty or self.real, address)

    def put(self, path: Path, data: bytes) -> None:
        self.real.create(path, data)

    def text(self, path: Path) -> dict[str, bytes]:
        return {name: self.real.read(path / name) for name in self.real.sizes(path)}


def checkpoints(address: str, step: int) -> int:
    """Runs with native state whose requests fail or end the process; return the number of faults."""
    files = HadoopFiles(address)
    with tempfile.TemporaryDirectory() as home:
        counting = Faulty(files)
        undisturbed = Story(files, Path("/undisturbed"), Path(home, "undisturbed"))
        undisturbed.run(counting)
        points = range(1, counting.requests + 1, step)
        for number, at in enumerate(points):
            way, killed = KINDS[number % len(KINDS)]
            found = Story(files, Path(f"/fault-{at}"), Path(home, str(at)))
            with contextlib.suppress(*ENDS):
                found.run(Faulty(files, at, way, killed=killed), LAST)
            found.run(files)
            assert found.rows == undisturbed.rows, f"request {at} {way} {killed}"
            # The last request removes it.
            assert killed or at == counting.requests or not files.directories(found.root), f"request {at}"
    return len(points)


def outputs(address: str, step: int) -> int:
    """Runs with an output whose requests fail or end the process; return the number of faults."""
    faults = 0
    for resume in RESUMES.values():
        counting = Faulty(HadoopFiles(f"{address}/count-{resume}"))
        story(*_lived(f"{address}/count-{resume}", counting)[:2], resume)
        for at in range(1 + faults % step, counting.requests + 1, step):
            way, killed = KINDS[faults % len(KINDS)]
            place = f"{address}/out-{faults}"
            store, disk = _lived(place, Faulty(HadoopFiles(place), at, way, killed=killed))
            with contextlib.suppress(RecoveryError, Killed):
                story(store, disk, resume)
            again = Faulty(HadoopFiles(place), random.Random(at).randrange(1, 40), way, killed=killed)
            with contextlib.suppress(RecoveryError, Killed):
                Run(store, PlaceDisk(place, again))
            Run(store, PlaceDisk(place))
            is_exact(store, PlaceDisk(place))
            faults += 1
    return faults


def _lived(address: str, faulty: Faulty) -> tuple[Store, PlaceDisk]:
    """An output with a past, reached without faults, and then by `faulty`."""
    store = Store()
    story(store, PlaceDisk(address))
    return store, PlaceDisk(address, faulty)


def main(address: str, of_checkpoints: str, of_outputs: str, *settings: str) -> None:
    from recovery.spark.jvm.session import create_session

    spark = create_session("places", master="local[2]", conf=dict(each.split("=", 1) for each in settings))
    print(f"faults {checkpoints(address, int(of_checkpoints))} {outputs(address, int(of_outputs))}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
