"""An output directory: files that become visible with the epoch they belong to.

    out/
    ├── epoch-00000001-<execution>-<micro-batch>-00000.parquet      visible: of closed epochs only
    └── _recovery/                                                  readers skip names that begin with _
        ├── owner.json           whose output this is, and which execution may publish
        ├── manifest.jsonl       one entry per visible epoch
        ├── prepared/            files of an epoch that is being closed, and its entry
        └── staged/              files of micro-batches that are not in an epoch yet

Preparing an epoch:
1. Make the epoch's files durable, and collect them in prepared/ under their final names.
2. Write the epoch's entry beside the files, durable. The entry's digest goes into the partitions.

Publishing it:
1. Rename the files to their visible place, one by one, and make that durable.
2. Add the entry to the manifest, durable.
3. Remove the entry from prepared/.

Going back, when a run starts:
1. Make the directory this flow's, if it is new, this store's, if that takes the place of the former one, and this
   execution's: no earlier one publishes any more.
2. Cut the manifest after the newest closed epoch that it lists.
3. Publish what was prepared for closed epochs.
4. Remove visible files that are not in the manifest: they belong to an abandoned future, or to an interrupted
   publishing or going back.
5. Remove everything staged and prepared.

Going back and publishing exclude each other by a lock, `lock` beside owner.json, where the file system has locks. So an
execution that is not the owner any more publishes nothing. On an object store an execution that was suspended between
its look at owner.json and a rename may still show one epoch, which the owner's next start removes.

So a file that the manifest lists exists at any moment. The names prepare.1 to rollback.5 are crash points.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.base import faults
from recovery.base.ids import Lease
from recovery.base.printable import one_line
from recovery.errors import LeaseLostError, OutputMismatchError, RecoveryError
from recovery.hadoop.reports import PATIENCE_S, check_reported
from recovery.sinks.disk import Disk
from recovery.sinks.manifest import (
    VISIBLE_NAME,
    FileSinkNote,
    ManifestEntry,
    OutputContent,
    OutputFile,
    OutputOwner,
    OutputPlan,
    check_waiting,
    decode_entry,
    decode_manifest,
    decode_note,
    decode_owner,
    encode,
    plan_output,
    sealed,
    visible_name,
)
from recovery.sinks.protocol import EpochOutput, Resume
from recovery.sinks.targets import target_error

HIDDEN = "_recovery"
OWNER = "owner.json"
LOCK = "lock"


@dataclass(slots=True)
class StagedFile:
    """A file of a micro-batch that is not yet prepared."""

    path: Path
    suffix: str
    size_bytes: int
    sha256: str


class OutputDirectory:
    """The output directory of one execution. Staging may continue while an epoch of earlier micro-batches is closed."""

    def __init__(
        self, path: Path, format: str, *, fresh: bool, check_all: bool, disk: Disk, shared: bool = False
    ) -> None:
        """shared: whether tasks on other hosts may write there."""
        self.path = path
        self._format = format
        self._fresh = fresh
        self._check_all = check_all
        self._disk = disk
        self._shared = shared
        self._hidden = path / HIDDEN
        self._manifest = self._hidden / "manifest.jsonl"
        self._prepared = self._hidden / "prepared"
        self._staging = self._hidden / "staged"
        self._owner: OutputOwner | None = None
        self._last = ""
        self._staged: dict[int, list[StagedFile]] = {}
        self._entry: ManifestEntry | None = None

    def plan(self, resume: Resume) -> OutputPlan:
        """Return what `rollback` will do; changes nothing. Raises OutputMismatchError if there is no such plan, or
        SinkRefusedError if this user may not write there."""
        with self._translated():
            for each in (self.path, self._hidden, self._prepared):
                self._disk.check_writable(each)
            found = self.find()
            if self._fresh and resume.note is not None:
                self._check_former(resume.note, resume, found.owner)
            return self._plan(found, resume)

    def rollback(self, resume: Resume) -> None:
        """Leave exactly the output of the closed epochs; the module's docstring lists the steps."""
        with self._translated():
            before = self._signs()
            found = self.find()
            plan = self._plan(found, resume)
            self._disk.make_directory(self._prepared)
            with self._disk.alone(self._hidden / LOCK):
                if self._signs() != before:
                    # Somebody has published since.
                    found = self.find()
                    plan = self._plan(found, resume)
                self._go_back(found, plan, resume)

    def _go_back(self, found: OutputContent, plan: OutputPlan, resume: Resume) -> None:
        # 1
        execution = resume.execution
        owner = found.owner or OutputOwner(secrets.token_hex(8), resume.store_id, resume.flow_id, self._format)
        # A store that was repartitioned loses its output to the new one.
        owner = replace(
            owner, store=resume.store_id, execution=execution.id, number=execution.number, host=socket.gethostname(),
            formers=resume.formers,
        )  # fmt: skip
        if self._disk.read(self._manifest) is None:
            self._disk.replace(self._manifest, b"")
        if found.owner != owner:
            self._disk.replace(self._hidden / OWNER, encode(owner))
        self._owner = owner
        # What a killed run left is visible, but a power loss could still undo it.
        self._disk.sync(self._manifest)
        self._disk.sync_directory(self._hidden)
        faults.reach("rollback.1")
        # 2
        if plan.cut:
            self._disk.replace(self._manifest, b"".join(encode(entry) + b"\n" for entry in plan.keep))
        self._last = plan.keep[-1].digest if plan.keep else owner.sink
        faults.reach("rollback.2")
        # 3
        for entry in plan.publish:
            self._publish(entry, [file for file in entry.files if file.name in found.waiting])
        faults.reach("rollback.3")
        # 4
        for name in plan.remove:
            self._disk.unlink(self.path / name)
        self._disk.sync_directory(self.path)
        faults.reach("rollback.4")
        # 5
        self._disk.remove_tree(self._prepared)
        self._disk.make_directory(self._prepared)
        self._discard(self._staging)
        self._staged = {}
        self._entry = None
        faults.reach("rollback.5")

    def _signs(self) -> tuple[object, ...]:
        """Return what changes whenever somebody publishes or goes back."""
        hidden = {name: size for name, size in self._disk.files(self._hidden).items() if name != LOCK}
        return hidden, self._disk.files(self._prepared), self._disk.read(self._hidden / OWNER)

    def _hold(self, execution: Lease) -> None:
        """Check that this execution may still publish. Raises LeaseLostError."""
        owner = self._read_owner()
        if owner is None or owner.execution != execution.id:
            now = "nobody" if owner is None else f"execution {owner.number} ({owner.execution}) on {owner.host}"
            raise LeaseLostError(
                one_line(f"its output belongs to {now} now, not to execution {execution.number} ({execution.id})"),
                path=self._disk.shown(self.path),
            )

    def _read_owner(self) -> OutputOwner | None:
        path = self._hidden / OWNER
        return decode_owner(self._disk.read(path), self._disk.shown(path))

    def staging(self, execution: str, batch: int) -> Path:
        """Return the directory for a micro-batch's files; it need not exist."""
        return self._staging / execution / f"{batch:08}"

    def clear(self, directory: Path) -> None:
        """Remove what an earlier attempt at a micro-batch left in its directory."""
        with self._translated():
            self._disk.remove_tree(directory)

    def read(self, path: Path) -> bytes | None:
        """Return the content of a small file in a staging directory; None if there is none."""
        with self._translated():
            return self._disk.read(path)

    def stage(
        self,
        batch: int,
        directory: Path,
        reported: Mapping[str, int],
        is_empty: Callable[[Path, int], bool],
        host_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        """Register the files of a micro-batch; replaces the files registered for it before.

        reported: the files by name with their sizes in bytes, as the tasks that wrote them saw them. All other files in
        the directory come from attempts that failed. host_of: where the task of a file ran, if it is known. Raises
        OutputLostError unless each file is here at its size: nothing that a task wrote is left out silently.
        """
        with self._translated():
            check_reported(
                reported,
                lambda: self._disk.files(directory),
                self._disk.shown(directory),
                host_of,
                patience_s=PATIENCE_S if self._shared else 0,
            )
            self._staged[batch] = [
                StagedFile(directory / name, name[name.index(".") :], size, self._disk.sha256(directory / name))
                for name, size in sorted(reported.items())
                if not is_empty(directory / name, size)
            ]

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's files durable, in prepared/; returns the note."""
        assert self._owner is not None, "rollback comes first"
        with self._translated(), self._disk.alone(self._hidden / LOCK):
            self._hold(output.execution)
            files = []
            for batch in sorted(b for b in list(self._staged) if b <= output.batch):
                for number, each in enumerate(self._staged[batch]):
                    name = visible_name(output.epoch, output.execution.id, batch, number, each.suffix)
                    self._disk.sync(each.path)
                    self._disk.rename(each.path, self._prepared / name)
                    each.path = self._prepared / name
                    files.append(OutputFile(name, each.size_bytes, each.sha256))
            faults.reach("prepare.1")
            entry = sealed(ManifestEntry(output.epoch, output.execution.id, output.batch, tuple(files), self._last))
            # This makes the files' names durable too.
            self._disk.replace(self._prepared_entry(entry), encode(entry))
            self._entry = entry
            faults.reach("prepare.2")
        return encode(FileSinkNote(self._owner.sink, entry.epoch, entry.digest, self._disk.shown(self.path))).decode()

    def publish(self, output: EpochOutput) -> None:
        """Make the prepared epoch visible. Raises LeaseLostError if a successor has already handled the epoch."""
        entry = self._entry
        if entry is None:
            return
        assert (entry.epoch, entry.batch) == (output.epoch, output.batch), f"epoch {entry.epoch} was prepared"
        with self._translated(), self._disk.alone(self._hidden / LOCK):
            self._hold(output.execution)
            waiting = self._disk.files(self._prepared)
            if self._prepared_entry(entry).name not in waiting:
                raise LeaseLostError(
                    f"the output of epoch {entry.epoch} was published or taken back", path=self._disk.shown(self.path)
                )
            sizes = waiting
            if any(file.name not in waiting for file in entry.files):
                # An earlier attempt may have shown them.
                sizes = {**self._disk.files(self.path), **waiting}
            check_waiting(entry, sizes, self._disk.shown(self.path))
            self._publish(entry, [file for file in entry.files if file.name in waiting])
            self._entry = None
            for batch in [b for b in list(self._staged) if b <= output.batch]:
                del self._staged[batch]
                self._discard(self.staging(output.execution.id, batch))

    def find(self) -> OutputContent:
        """Return the current content of the directory."""
        with self._translated():
            self._refuse_links()
            visible = {n: s for n, s in self._disk.files(self.path).items() if not n.startswith(("_", "."))}
            manifest = self._disk.shown(self._manifest)
            entries, torn = decode_manifest(self._disk.read(self._manifest) or b"", manifest)
            prepared_files = self._disk.files(self._prepared)
            lines = [self._disk.read(self._prepared / name) for name in prepared_files if name.startswith("prepared-")]
            prepared = [
                entry
                for line in lines
                if line is not None and (entry := decode_entry(line, self._disk.shown(self._prepared))) is not None
            ]
            waiting = {name: size for name, size in prepared_files.items() if VISIBLE_NAME.fullmatch(name)}
            return OutputContent(self._read_owner(), entries, torn, visible, tuple(prepared), waiting)

    def _refuse_links(self) -> None:
        """Raise if one of the sink's own directories is a link: the sink renames and removes files in them."""
        for each in (self._hidden, self._prepared, self._staging):
            if self._disk.is_link(each):
                raise OutputMismatchError(
                    "it is a symbolic link",
                    path=self._disk.shown(each),
                    cause="Somebody else can write to the output directory, or parts of it were moved.",
                    remedy="Put the real directory back in its place.",
                )

    def damaged(self) -> list[Path]:
        """Return the listed files that are missing or whose content was changed. Reads all files, where the disk has
        their SHA-256."""
        found = self.find()
        with self._translated():
            return [
                self.path / file.name
                for entry in found.entries
                for file in entry.files
                if found.visible.get(file.name) != file.bytes or self._disk.sha256(self.path / file.name) != file.sha256
            ]

    def _plan(self, found: OutputContent, resume: Resume) -> OutputPlan:
        check_from = 0 if self._check_all else resume.floor + 1
        shown = self._disk.shown(self.path)
        return plan_output(found, resume, format=self._format, path=shown, fresh=self._fresh, check_from=check_from)

    def _check_former(self, text: str, resume: Resume, owner: OutputOwner | None) -> None:
        """Raise OutputMismatchError if the directory of the flow's former output, on this file system, lacks the newest
        closed epoch: nobody would publish it any more. owner: that of this directory, which may be the former one under
        another path."""
        system = self._disk.shown(Path("/"))
        try:
            note = decode_note(text)
            if (owner is not None and owner.sink == note.sink) or not note.path.startswith(system):
                return
            former = Path("/", note.path.removeprefix(system))
            found = OutputDirectory(former, self._format, fresh=False, check_all=False, disk=self._disk).find()
        except RecoveryError:
            # Of another kind of sink, damaged, or out of reach.
            return
        published = {entry.digest for entry in found.entries}
        is_own = found.owner is not None and resume.shares(found.owner.store, found.owner.formers)
        if is_own and note.digest in {entry.digest for entry in found.prepared} - published:
            raise OutputMismatchError(
                f"a new output would begin, and closed epoch {note.epoch} is not published in {note.path} yet",
                path=self._disk.shown(self.path),
                cause="The last run was killed between closing the epoch and publishing it.",
                remedy=f"Run the flow once with its former sink, FileSink({note.path!r}), and no new input.",
            )

    def _publish(self, entry: ManifestEntry, waiting: list[OutputFile]) -> None:
        # 1
        for file in waiting:
            self._disk.rename(self._prepared / file.name, self.path / file.name)
            faults.reach("publish.1.file")
        if entry.files:
            self._disk.sync_directory(self.path)
        faults.reach("publish.1")
        # 2
        self._disk.append(self._manifest, encode(entry) + b"\n")
        self._last = entry.digest
        faults.reach("publish.2")
        # 3
        self._disk.unlink(self._prepared_entry(entry))
        faults.reach("publish.3")

    def _discard(self, directory: Path) -> None:
        """Remove staged files. Late tasks may still write there; the next start removes what is left."""
        with contextlib.suppress(OSError):
            self._disk.remove_tree(directory)

    def _prepared_entry(self, entry: ManifestEntry) -> Path:
        return self._prepared / f"prepared-{entry.epoch:08}-{entry.execution}.json"

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors of the file system; see `targets`."""
        try:
            yield
        except OSError as error:
            raise target_error(error, str(error), self._disk.shown(self.path)) from error
