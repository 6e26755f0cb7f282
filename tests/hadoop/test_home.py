"""The checkpoint of a run at a place that all hosts reach: every request fails or ends the process. No Spark."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from recovery.base.ids import Lease
from recovery.checkpoint import capture
from recovery.errors import StorageError
from recovery.hadoop import home
from recovery.hadoop.home import HadoopHome
from tests.checkpoint.support import write
from tests.hadoop.checkpoint_story import ENDS, LAST, Story
from tests.hadoop.faulty import WAYS, Faulty, LocalFiles
from tests.sinks.memory_disk import Killed

ROOT = Path("/scratch")


@pytest.fixture
def make_story(tmp_path, monkeypatch):
    """Makes stories, each over a place of its own; a run looks again without a pause, and not long."""
    monkeypatch.setattr(capture.time, "sleep", lambda _: None)
    monkeypatch.setattr(capture, "_TRIES", 4)
    made = []

    def make() -> Story:
        made.append(Story(LocalFiles(tmp_path / f"place-{len(made)}"), ROOT, tmp_path / f"here-{len(made)}"))
        return made[-1]

    return make


@pytest.fixture
def undisturbed(make_story):
    """The rows after a run in which nothing fails, and the requests that it made, and those of one that goes on."""
    story = make_story()
    first, second = Faulty(story.files), Faulty(story.files)
    story.run(first, 1)
    story.run(second)
    assert list(story.files.directories(ROOT)) == []
    return story.rows, (first.requests, second.requests)


KINDS = [(way, lasting, killed) for way in WAYS for lasting, killed in ((False, False), (True, False), (False, True))]


@pytest.mark.parametrize("step", [53, pytest.param(1, marks=pytest.mark.long)], ids=["some", "every"])
@pytest.mark.parametrize(("way", "lasting", "killed"), KINDS)
def test_requests_of_a_run_and_of_the_next_one(make_story, undisturbed, way, lasting, killed, step):
    """Whatever happens, the partitions hold what a run without faults gives them as of the same micro-batch; the run
    after that is exact."""
    rows, requests = undisturbed
    for number, last in ((0, 1), (1, LAST)):
        for at in range(1 + KINDS.index((way, lasting, killed)) % step, requests[number] + 1, step):
            story = make_story()
            if number:
                story.run(story.files, 1)
            faulty = Faulty(story.files, at, way, lasting, killed)
            with contextlib.suppress(*ENDS):
                story.run(faulty, last)
            again = Faulty(story.files, random.Random(at).randrange(1, 60), way, killed=killed)
            with contextlib.suppress(*ENDS):
                story.run(again)
            story.run(story.files)
            assert story.rows == rows, f"request {at} of run {number}"


def test_a_place_that_lost_a_file_or_cut_it_refuses_to_start(tmp_path):
    """Spark would fail in the middle of a micro-batch, or lose state."""
    for broken in ("fetch nothing", "half"):
        local = tmp_path / broken / "checkpoint"
        write(local, "offsets/0", "v1\n{}\n0")
        write(local, "state/0/0/1.delta", "content")
        files = LocalFiles(tmp_path / broken / "place")

        def put(source, path, files=files, broken=broken):
            if path.name == "1.delta":
                if broken == "half":
                    files.create(path, source.read_bytes()[:3])
                return
            files.create(path, source.read_bytes())

        faulty = Faulty(files)
        faulty.put = put
        with pytest.raises(StorageError, match=r"state/0/0/1\.delta is not there as it was written"):
            HadoopHome(faulty, "test://place", ROOT / "run", local).put()


def test_what_a_killed_run_leaves_is_removed_by_the_next_and_nothing_else(tmp_path, monkeypatch):
    """Also where that one is killed while it removes; places of others stay."""
    files = LocalFiles(tmp_path)
    leases = [Lease(number, f"{number:016x}") for number in (1, 2)]
    names = [home._name("5e1f", each) for each in leases]
    others = ["recovery-5e1f-3-0000000000000003", "recovery-0000-1-0000000000000001", "mine"]
    for name in (*names, *others):
        files.create(ROOT / name / "state" / "1.delta", b"x")
    faulty = Faulty(files, at=2, killed=True)
    monkeypatch.setattr(home, "HadoopFiles", lambda system: faulty)
    with pytest.raises(Killed):
        home.discard_earlier("test://place/scratch", "5e1f", leases)
    home.discard_earlier("test://place/scratch", "5e1f", leases)
    assert sorted(files.directories(ROOT)) == sorted(others)
