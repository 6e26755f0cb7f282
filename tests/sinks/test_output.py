"""An output directory through crashes, failures and power losses at every operation. Nothing here starts Spark."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import os
import random
import tempfile
import threading
import time
from pathlib import Path

import pytest

from recovery import FileSink
from recovery.base import faults
from recovery.errors import LeaseLostError, OutputMismatchError, SinkFailedError, SinkRefusedError, StaleDirectoryError
from recovery.sinks.disk import Disk
from recovery.sinks.output import OutputDirectory
from recovery.sinks.protocol import EpochOutput
from tests.shares import some
from tests.sinks import support
from tests.sinks.memory_disk import Killed, MemoryDisk
from tests.sinks.support import OUT, Closed, Run, Store, visible


def story(store: Store, disk, resume_epoch: int | None = None) -> None:
    """What a run may do: two epochs, one of them of two micro-batches and closed when a third was written already,
    an epoch without files, and micro-batches that are in no epoch at the end."""
    run = Run(store, disk, resume_epoch=resume_epoch)
    first = run.closed_batch + 1
    run.write(first)
    run.write(first + 1)
    run.write(first + 1)
    run.write(first + 2)
    run.close(first + 1)
    run.close(first + 2)
    run.write(first + 3, files=0)
    run.close(first + 3)
    run.write(first + 4)


def lived() -> tuple[Store, MemoryDisk]:
    """A directory with a past: a run, a rewind, and another run."""
    return copy.deepcopy(_lived())


@functools.cache
def _lived() -> tuple[Store, MemoryDisk]:
    store, disk = Store(), MemoryDisk()
    story(store, disk)
    story(store, disk, resume_epoch=2)
    return store, disk


def points(resume_epoch: int | None) -> int:
    """How many operations the story takes on a directory with a past."""
    store, disk = lived()
    disk.operations = 0
    story(store, disk, resume_epoch)
    return disk.operations


def is_exact(store: Store, disk) -> None:
    """A reader sees the records of the closed epochs once each; the manifest lists exactly the visible files."""
    assert visible(disk) == store.records()
    output = OutputDirectory(OUT, "json", fresh=False, check_all=True, disk=disk)
    found = output.find()
    assert sorted(f.name for e in found.entries for f in e.files) == sorted(found.visible)
    assert output.damaged() == []


RESUMES = {"goes on": None, "goes back": 3, "goes to the start": 1}


def test_a_run_without_faults():
    """Staged output is invisible until its epoch is closed, and closing as of b leaves b + 1 for the next epoch."""
    store, disk = Store(), MemoryDisk()
    run = Run(store, disk)
    for batch in range(3):
        run.write(batch)
    assert visible(disk) == []
    run.close(1)
    assert visible(disk) == sorted(run.written[0] + run.written[1])
    run.close(2)
    is_exact(store, disk)
    assert disk.text(OUT / "_recovery" / "prepared") == {}


def test_a_batch_that_is_written_again_counts_once():
    """The files of the first time are forgotten, also when the second time has fewer."""
    store, disk = Store(), MemoryDisk()
    run = Run(store, disk)
    run.write(0, files=5)
    disk.remove_tree(run.output.staging(run.lease.id, 0))
    run.write(0, files=1)
    run.close(0)
    assert len(visible(disk)) == 1
    is_exact(store, disk)


@pytest.mark.parametrize("name", some(RESUMES, "goes back"))
def test_killed_at_every_operation(name):
    """And once more at every operation of the run that follows: after the next one all is exact."""
    count = points(RESUMES[name])
    for kill_at in range(1, count + 1):
        store, disk = lived()
        disk.healthy().kill_at = kill_at
        with pytest.raises(Killed):
            story(store, disk, RESUMES[name])
        again = random.Random(kill_at).randrange(1, 40)
        disk.healthy().kill_at = again
        with contextlib.suppress(Killed):
            Run(store, disk)
        Run(store, disk.healthy())
        is_exact(store, disk)
        story(store, disk)
        is_exact(store, disk)


@pytest.mark.parametrize("lasting", some([False, True], False), ids=["once", "lasting"])
@pytest.mark.parametrize("name", some(RESUMES, "goes back"))
def test_every_operation_fails(name, lasting):
    """A full disk at any operation is a SinkFailedError; when there is space again, the next run is exact."""
    count = points(RESUMES[name])
    unnoticed = 0
    for fail_at in range(1, count + 1):
        store, disk = lived()
        disk.healthy()
        disk.fail_at, disk.fail_from = (0, fail_at) if lasting else (fail_at, 0)
        with contextlib.suppress(SinkFailedError):
            story(store, disk, RESUMES[name])
            unnoticed += 1
        Run(store, disk.healthy())
        is_exact(store, disk)
        story(store, disk)
        is_exact(store, disk)
    # Removing what was staged may fail: it is tried again by the next run.
    assert unnoticed < 0.25 * count


@pytest.mark.parametrize(
    "states",
    [
        pytest.param(400, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_OUTPUT_STATES", "10000")), id="many", marks=pytest.mark.long),
    ],
)
def test_power_losses(states):
    """Whatever of the unsynced changes survives, no record of a closed epoch is lost, and none is there twice."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest tests/sinks/test_output.py -k power")
    generator = random.Random(seed)
    counts = {name: points(epoch) for name, epoch in RESUMES.items()}
    for _ in range(states):
        name = generator.choice(list(RESUMES))
        store, disk = lived()
        disk.healthy().kill_at = generator.randrange(1, counts[name] + 1)
        with pytest.raises(Killed):
            story(store, disk, RESUMES[name])
        disk = disk.after_power_loss(generator)
        Run(store, disk)
        is_exact(store, disk)


@pytest.mark.parametrize(
    "histories",
    [
        pytest.param(60, id="a few"),
        pytest.param(int(os.environ.get("RECOVERY_TEST_OUTPUT_HISTORIES", "10000")), id="many", marks=pytest.mark.long),
    ],
)
def test_random_histories(histories):
    """Runs, kills, rewinds, and partitions put back from copies: always exact, or refused when the copy's past was
    taken back from the output since."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with: RECOVERY_TEST_SEED={seed} python -m pytest tests/sinks/test_output.py -k histories")
    generator = random.Random(seed)
    refused = 0
    for _ in range(histories):
        store, disk = Store(), MemoryDisk()
        copies = [list(store.closed)]
        for _ in range(generator.randrange(2, 8)):
            disk.healthy().kill_at = generator.choice([0, generator.randrange(1, 120)])
            if generator.random() < 0.2:
                store.edit()
            with contextlib.suppress(Killed):
                back = generator.randrange(1, len(store.closed) + 2) if generator.random() < 0.3 else None
                live_a_little(Run(store, disk, resume_epoch=back), generator)
            if generator.random() < 0.3:
                disk = disk.after_power_loss(generator)
            disk.healthy()
            copies.append(list(store.closed))
            if generator.random() < 0.3:
                newest, store.closed = store.closed, list(generator.choice(copies))
                try:
                    Run(store, disk)
                except OutputMismatchError:
                    assert store.closed, "the beginning can always be gone back to"
                    assert store.closed[-1] not in newest
                    refused += 1
                    store.closed = newest
            Run(store, disk)
            is_exact(store, disk)
    assert refused > 0 or histories < 20


def live_a_little(run: Run, generator: random.Random) -> None:
    """Some micro-batches, and some epochs, as of the last one or the one before."""
    batch = run.closed_batch
    for _ in range(generator.randrange(6)):
        batch += 1
        run.write(batch, files=generator.randrange(3))
        if generator.random() < 0.5:
            upto = generator.choice([batch, batch - 1])
            if upto > run.closed_batch:
                run.close(upto)


def test_nothing_durable_is_assumed_of_what_was_not_synced():
    """The model does lose things: without the sync of prepare, a power loss after closing costs the epoch."""

    class Careless(MemoryDisk):
        def sync(self, path):
            pass

    lost = 0
    for seed in range(20):
        store, disk = Store(), Careless()
        run = Run(store, disk)
        run.write(0)
        run.close(0)
        after = disk.after_power_loss(random.Random(seed))
        lost += visible(after) != store.records()
    assert lost > 0


@pytest.mark.parametrize("resume_epoch", [None, 1], ids=["went on", "went back"])
@pytest.mark.parametrize("files", [2, 0])
def test_a_stopped_run_that_wakes_publishes_nothing(resume_epoch, files):
    """Stopped at any operation of publishing; its successor has published that epoch, or taken it back."""
    stopped_at = 0
    while True:
        stopped_at += 1
        store, disk = Store(), MemoryDisk()
        sleeper = Sleeper(store, disk)
        sleeper.write(0, files)
        if not sleeper.close_until(0, stopped_at):
            break
        run = Run(store, disk, resume_epoch=resume_epoch)
        run.write(1)
        run.close(1)
        sleeper.wake()
        Run(store, disk)
        is_exact(store, disk)
    assert stopped_at > 3


class Gate:
    """A disk whose operations wait at one of them."""

    def __init__(self, disk, operation: int) -> None:
        self.disk, self.operation, self.count = disk, operation, 0
        self.reached, self.opened = threading.Event(), threading.Event()

    def __getattr__(self, name):
        method = getattr(self.disk, name)

        def pass_through(*arguments):
            self.count += 1
            if self.count == self.operation:
                self.reached.set()
                assert self.opened.wait(60)
            return method(*arguments)

        return pass_through


class Sleeper(Run):
    """A run that is stopped in the middle of publishing."""

    def close_until(self, batch: int, operation: int) -> bool:
        """Close an epoch up to this operation of publishing it; False when there are not so many."""
        publish = self.output.publish
        self.gate = Gate(self.disk, operation)
        self.done = threading.Event()

        def work(output):
            with contextlib.suppress(LeaseLostError, SinkFailedError):
                publish(output)
            self.done.set()
            self.gate.reached.set()

        def publish_later(output):
            self.output._disk = self.gate
            threading.Thread(target=work, args=(output,)).start()
            assert self.gate.reached.wait(60)

        self.output.publish = publish_later
        self.close(batch)
        return not self.done.is_set()

    def wake(self) -> None:
        """Let it go on, to its end."""
        self.gate.opened.set()
        assert self.done.wait(60)


class TestMismatch:
    """What does not fit is named, and nothing is changed."""

    def refused(self, store, disk, match, **options):
        before = disk.copy()
        with pytest.raises(OutputMismatchError, match=match):
            Run(store, disk, **options)
        assert disk.names.keys() == before.names.keys()
        assert all(inode.data == before.names[path].data for path, inode in disk.names.items())

    def test_another_store_or_flow(self):
        """A directory belongs to the flow and the recovery directory that used it first."""
        _, disk = lived()
        self.refused(Store(store_id="beef"), disk, "output of flow 'flow' on recovery directory 5e1f")
        self.refused(Store(flow_id="other"), disk, "not of 'other'")

    def test_a_directory_in_use(self):
        """Files of others are not mixed with ours."""
        disk = MemoryDisk()
        disk.put(OUT / "notes.txt", b"")
        self.refused(Store(), disk, "it holds notes.txt, and is not an output directory")

    def test_another_format(self):
        """One directory, one format: tools read it as a whole."""
        store, disk = lived()
        self.refused(store, disk, "it holds json, and the sink writes csv", format="csv")

    def test_a_missing_directory(self):
        """An empty mount point is not taken for a new output, unless that is said."""
        store, disk = lived()
        self.refused(store, MemoryDisk(), "the output of the epochs up to 4 is not here; it was written to /data/out")
        fresh = MemoryDisk()
        run = Run(store, fresh, fresh=True)
        run.write(run.closed_batch + 1)
        run.close(run.closed_batch + 1)
        assert visible(fresh) == sorted(store.closed[-1].records)
        Run(store, fresh)
        self.refused(store, disk, "was written|does not hold|snapshot")

    def test_a_new_output_while_the_former_one_lacks_an_epoch(self):
        """A run that was killed before it published left a closed epoch that only the former directory has. By another
        path, a link for example, that directory is no new output."""
        store, disk = Store(), MemoryDisk()
        killed = Run(store, disk)
        killed.write(0)
        killed.output.publish = lambda _: None
        killed.close(0)
        new = OutputDirectory(OUT.with_name("new"), "json", fresh=True, check_all=True, disk=disk)
        with pytest.raises(OutputMismatchError, match="closed epoch 1 is not published in /data/out yet"):
            new.plan(store.begin())
        new.plan(store.forked().begin())
        linked, link = disk.copy(), OUT.with_name("link")
        linked.names |= {link / path.relative_to(OUT): inode for path, inode in linked.names.items()}
        same = OutputDirectory(link, "json", fresh=True, check_all=True, disk=linked)
        assert [each.epoch for each in same.plan(store.begin()).publish] == [1]
        Run(store, disk)
        new.plan(store.begin())

    def test_a_new_output_after_another_sink(self):
        """The flow's output was in a table so far: that is said, and a new one begins when it is asked for."""
        store, _ = lived()
        store.closed[-1] = dataclasses.replace(store.closed[-1], note='{"upsert": "x"}')
        self.refused(store, MemoryDisk(), "another kind of sink")
        disk = MemoryDisk()
        run = Run(store, disk, fresh=True)
        run.write(run.closed_batch + 1)
        run.close(run.closed_batch + 1)
        assert visible(disk) == sorted(store.closed[-1].records)

    def test_a_missing_and_a_changed_file(self):
        """The error names them; an option of the sink allows old ones to be missing."""
        store, disk = lived()
        name = min(disk.text(OUT))
        kept = disk.names.pop(OUT / name)
        self.refused(store, disk, f"{name} is missing")
        store.floor = 1
        Run(store, disk, check_all=False)
        self.refused(store, disk, f"{name} is missing")
        disk.names[OUT / name] = kept
        kept.data += b"x"
        self.refused(store, disk, f"{name} is {len(kept.data)} bytes long instead of")
        kept.data = kept.data[:-2] + b"!"
        assert OutputDirectory(OUT, "json", fresh=False, check_all=True, disk=disk).damaged() == [OUT / name]

    @pytest.mark.parametrize("check_all", [True, False])
    @pytest.mark.parametrize("change", ["missing", "longer"])
    def test_a_file_of_a_closed_epoch_that_is_not_published(self, change, check_all):
        """No epoch is shown without a part of its rows, whether a run publishes it or the next start does; and it can
        be computed again."""
        store, disk = Store(), MemoryDisk()
        run = Run(store, disk, check_all=check_all)
        run.write(0)
        output = EpochOutput(1, 0, run.lease, "5e1f", "flow", 0)
        note = run.output.prepare(output)
        store.closed.append(Closed(run.lease, 0, note, run.written[0]))
        path = next(path for path in disk.names if path.parent.name == "prepared" and path.name.startswith("epoch-"))
        if change == "missing":
            del disk.names[path]
        else:
            disk.names[path].data += b"x"
        before = {path: inode.data for path, inode in disk.names.items()}
        found = f"closed epoch 1 is not published yet, and {path.name} is"
        with pytest.raises(OutputMismatchError, match=found) as caught:
            run.output.publish(output)
        assert "--resume-after 0" in caught.value.remedy
        # As without a backup interval: the newest epoch is the only one held.
        store.floor = 1
        with pytest.raises(OutputMismatchError, match=found):
            Run(copy.deepcopy(store), disk, check_all=check_all)
        assert {path: inode.data for path, inode in disk.names.items()} == before
        store.floor = 0
        Run(store, disk, resume_epoch=1, check_all=check_all)
        is_exact(store, disk)

    def test_a_directory_that_this_user_may_not_write_to(self):
        """It is known before anything is discarded."""
        if os.geteuid() != 0:
            pytest.skip("takes the place of another user")
        with tempfile.TemporaryDirectory() as home:
            Path(home).chmod(0o755)
            sink = FileSink(Path(home) / "out", "json")
            os.seteuid(65534)
            try:
                with pytest.raises(SinkRefusedError, match="this user may not write to it"):
                    sink.check(Store().begin())
            finally:
                os.seteuid(0)
            assert list(Path(home).iterdir()) == []

    def test_an_older_copy_of_the_output(self):
        """Output restored from a backup lacks what the snapshot says was published."""
        store, disk = Store(), MemoryDisk()
        story(store, disk)
        older = disk.copy()
        story(store, disk)
        self.refused(store, older, "does not hold all output up to epoch 6, .* its last is of epoch 3")

    def test_an_older_copy_of_the_partitions(self):
        """They go back, and so does the output; unless the output was rewound past them since."""
        store, disk = Store(), MemoryDisk()
        story(store, disk)
        before = list(store.closed)
        story(store, disk)
        store.closed = list(before)
        story(store, disk)
        is_exact(store, disk)
        Run(store, disk, resume_epoch=2).write(9)
        store.closed = list(before)
        self.refused(store, disk, "does not hold all output up to epoch 3")

    def test_a_copy_of_the_output_that_was_taken_after_the_partitions(self):
        """Files of later epochs may lack in it, and the manifest may end in the middle of a line."""
        store, disk = Store(), MemoryDisk()
        story(store, disk)
        copied = copy.deepcopy(store)
        story(store, disk)
        later = disk.copy()
        del later.names[OUT / max(name for name in later.text(OUT) if name.startswith("epoch-"))]
        manifest = later.names[OUT / "_recovery" / "manifest.jsonl"]
        manifest.data = manifest.data[:-30]
        Run(copied, later)
        is_exact(copied, later)
        story(copied, later)
        is_exact(copied, later)

    def test_partitions_that_know_of_no_output(self):
        """Output below the resume epoch without a note is of another history."""
        store, disk = lived()
        store.closed[-1].note = None
        self.refused(store, disk, "it holds output of epoch 1; the snapshot before epoch 5 has no record")

    @pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"epoch":1}'])
    def test_a_damaged_manifest(self, line):
        """A line that is not whole, with others behind it, is no crash's doing."""
        store, disk = lived()
        manifest = disk.names[OUT / "_recovery" / "manifest.jsonl"]
        lines = manifest.data.splitlines()
        manifest.data = b"\n".join([lines[0], line, *lines[2:]]) + b"\n"
        self.refused(store, disk, "line 2 of the manifest is damaged")
        manifest.data = b"\n".join([lines[0], *lines[2:]]) + b"\n"
        self.refused(store, disk, "does not hold all output up to epoch 4")

    def test_an_unfinished_line_at_the_end(self):
        """That is a crash's doing, and so is an entry that comes twice: the manifest is written again."""
        store, disk = lived()
        manifest = disk.names[OUT / "_recovery" / "manifest.jsonl"]
        whole = manifest.data
        for rest in (b'{"epoch":', b"\0\0\n", whole.splitlines(keepends=True)[0]):
            disk.names[OUT / "_recovery" / "manifest.jsonl"].data = whole + rest
            Run(store, disk)
            assert disk.text(OUT / "_recovery")["manifest.jsonl"] == whole

    def test_a_changed_owner(self):
        """A file of this package that cannot be read, or that is newer than this package."""
        store, disk = lived()
        owner = disk.names[OUT / "_recovery" / "owner.json"]
        owner.data = owner.data.replace(b'"version":1', b'"version":2')
        self.refused(store, disk, "of version 2, and this package knows 1")
        owner.data = b"{"
        self.refused(store, disk, "cannot be read")

    def test_a_note_of_another_sink(self):
        """A flow whose sink was changed says so."""
        store, disk = lived()
        store.closed[-1].note = "17"
        self.refused(store, disk, "written by another kind of sink")


class RealDisk(Disk):
    """Files, with what the tests need besides."""

    def put(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def text(self, path: Path) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in path.iterdir() if p.is_file()}


def test_on_a_real_file_system(tmp_path, monkeypatch):
    """The same story on files, killed nowhere: the operations do what they are said to."""
    monkeypatch.setattr(support, "OUT", tmp_path / "a" / "out")
    store, disk = Store(), RealDisk()
    story(store, disk)
    story(store, disk, resume_epoch=2)
    Run(store, disk)
    shown = sorted(data for name, data in disk.text(tmp_path / "a" / "out").items())
    assert shown == store.records()
    assert sorted(p.name for p in (tmp_path / "a" / "out").iterdir() if p.is_dir()) == ["_recovery"]
    assert not (tmp_path / "a" / "out" / "_recovery" / "staged").exists()


class TestTwoDirectoriesOfOneStore:
    """A copy of a recovery directory, or one that was taken over, does not touch what the newer owner has shown."""

    def two(self, disk: Disk) -> tuple[Store, Run, Store]:
        """A store whose run has closed an epoch, and its copy on another host."""
        store = Store(past=[])
        run = Run(store, disk)
        run.write(0)
        run.close(0)
        return store, run, store.copied()

    @pytest.mark.parametrize("published", [0, 2])
    def test_the_old_one_is_refused_before_it_changes_anything(self, published):
        """Whether the new owner has published or only begun. The error names the target, both executions and the way
        out; the new owner goes on."""
        disk = MemoryDisk()
        old, _, new = self.two(disk)
        successor = Run(new, disk)
        for batch in range(1, 1 + published):
            successor.write(batch)
            successor.close(batch)
        before = {path: inode.data for path, inode in disk.names.items()}
        for resume_epoch in (None, 1):
            store = old.copied()
            with pytest.raises(StaleDirectoryError, match=r"execution 2 \(.* has written to it") as caught:
                Run(store, disk, resume_epoch=resume_epoch)
            assert successor.lease.id in caught.value.found
            assert f"would begin execution 2 at epoch {resume_epoch or 2}" in caught.value.found
            assert caught.value.path == str(OUT)
            assert "--lose-epochs" in caught.value.remedy
        assert {path: inode.data for path, inode in disk.names.items()} == before
        successor.write(9)
        successor.close(9)
        is_exact(new, disk)
        Run(new, disk)
        is_exact(new, disk)

    def test_a_copy_from_the_middle_of_an_execution_is_refused(self):
        """The target has more of that execution than the copy knows. The directory itself goes on, and goes back."""
        disk = MemoryDisk()
        store, run, copy = self.two(disk)
        run.write(1)
        run.close(1)
        for resume_epoch in (None, 1):
            with pytest.raises(
                StaleDirectoryError, match="epoch 2; this directory has that execution only up to epoch 1"
            ):
                Run(copy.copied(), disk, resume_epoch=resume_epoch)
        is_exact(store, disk)
        Run(store, disk, resume_epoch=2)
        is_exact(store, disk)
        copy.loses = True
        Run(copy, disk)
        is_exact(copy, disk)

    def test_output_of_an_older_version_names_no_execution(self):
        """Then the entries that would be taken back say who wrote them."""
        disk = MemoryDisk()
        old, _, new = self.two(disk)
        successor = Run(new, disk)
        successor.write(1)
        successor.close(1)
        owner = disk.names[OUT / "_recovery/owner.json"]
        owner.data = owner.data[: owner.data.index(b',"execution"')] + b"}"
        with pytest.raises(StaleDirectoryError, match="up to epoch 2"):
            Run(old, disk)
        Run(new, disk)
        is_exact(new, disk)

    def test_an_older_version_that_was_killed_while_it_closed_an_epoch(self):
        """What it prepared and did not show makes no older copy of its own directory."""
        disk = MemoryDisk()
        store, run, _ = self.two(disk)
        run.write(1)
        run.output.prepare(EpochOutput(2, 1, run.lease, "5e1f", "flow", 0))
        owner = disk.names[OUT / "_recovery/owner.json"]
        owner.data = owner.data[: owner.data.index(b',"execution"')] + b"}"
        Run(store, disk)
        is_exact(store, disk)

    @pytest.mark.parametrize("step", ["prepare", "publish"])
    def test_a_run_that_was_replaced_publishes_nothing(self, step):
        """At whichever step the new owner begins, on the user's word or as a directory that was promoted."""
        disk = MemoryDisk()
        old, run, new = self.two(disk)
        run.write(1)
        if step == "publish":
            output = EpochOutput(2, 1, run.lease, "5e1f", "flow", 0)
            run.output.prepare(output)
        new.loses = True
        successor = Run(new, disk)
        successor.write(1)
        successor.close(1)
        with pytest.raises(LeaseLostError, match=f"belongs to execution 2 .{successor.lease.id}"):
            run.output.publish(output) if step == "publish" else run.close(1)
        is_exact(new, disk)
        # The old directory takes its place back, and with it the output.
        old.loses = True
        Run(old, disk)
        is_exact(old, disk)
        successor.write(2)
        with pytest.raises(LeaseLostError):
            successor.close(2)
        is_exact(old, disk)

    def test_executions_of_the_directory_continue(self):
        """Also one that died before it published, and one that goes back."""
        store, disk = Store(past=[]), MemoryDisk()
        story(store, disk)
        Run(store, disk)
        story(store, disk, resume_epoch=2)
        is_exact(store, disk)

    @pytest.mark.parametrize("point", ["rollback.1", "rollback.2", "rollback.3", "rollback.4"])
    @pytest.mark.parametrize("how", ["loses", "repartitioned"])
    def test_a_start_that_was_killed_while_it_took_output_back_continues(self, how, point, monkeypatch):
        """It had the right to, and has it still: it need not be said again that epochs of others may be lost."""
        disk = MemoryDisk()
        old, _, new = self.two(disk)
        if how == "repartitioned":
            new = new.repartitioned()
        run = Run(old, disk)
        run.write(1)
        run.close(1)
        new.loses = True

        def reach(name: str) -> None:
            if name == point:
                raise Killed

        with monkeypatch.context() as killed:
            killed.setattr(faults, "reach", reach)
            with pytest.raises(Killed):
                Run(new, disk)
        new.loses = False
        Run(new, disk)
        is_exact(new, disk)

    def test_a_start_waits_for_an_epoch_that_is_being_published(self, tmp_path, monkeypatch):
        """On a disk with locks: it sees all of it. It does not wait for ever."""
        monkeypatch.setattr(support, "OUT", tmp_path)
        old, run, new = self.two(RealDisk())
        new.loses = True
        publishing, may_go_on = threading.Event(), threading.Event()

        def reach(point: str) -> None:
            if point == "publish.1.file" and not publishing.is_set():
                publishing.set()
                assert may_go_on.wait(30)

        monkeypatch.setattr(faults, "reach", reach)
        run.write(1)
        closing = threading.Thread(target=run.close, args=[1])
        closing.start()
        assert publishing.wait(30)
        monkeypatch.setattr("recovery.sinks.disk.ALONE_S", 0.1)
        with pytest.raises(SinkFailedError, match=r"another process has held it for 0\.1 s"):
            Run(new.copied(), RealDisk())
        monkeypatch.setattr("recovery.sinks.disk.ALONE_S", 30)
        starting = threading.Thread(target=Run, args=[new, RealDisk()])
        starting.start()
        may_go_on.set()
        closing.join()
        starting.join()
        names = [path.read_bytes() for path in tmp_path.glob("epoch-*")]
        assert sorted(names) == new.records()
        with pytest.raises(StaleDirectoryError):
            Run(old, RealDisk())
