"""What a sink does to a table whose commits are atomic, whatever the format: read its history, and commit in the name
of one execution.

Each commit names the output, so that it is committed once, and the execution: one whose successor has begun cannot
commit any more. Each commit also records in its metadata what it did (`Record`). By these records a run finds what it
has to take back. Marks, which the table keeps when it forgets its history, say what each execution has committed at
all.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from recovery.base.ids import ExecutionNumber
from recovery.base.untrusted_json import decode_json
from recovery.errors import LeaseLostError, OutputMismatchError, SinkFailedError, StaleDirectoryError
from recovery.hadoop.reports import PATIENCE_S, REPORT_NAMES, REPORTS, check_reported, reported
from recovery.host.durable import sync
from recovery.sinks.protocol import Resume
from recovery.sinks.tables.commits import AddedFile, Change, CommitHistory, Mark, Proposal, Record, app_of, start_of

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

TAKEN_OVER = 2**62
"""In place of the number of a store's newest execution: another store has taken the store's place."""
BY_HAND = (
    "Resume without going back, or write to a new table. Or take the rows out of the table yourself, and run once with "
    "--lose-epochs: what is still there of them stays."
)
"""What to do when rows of abandoned epochs cannot be told from others."""
_ATTEMPTS = 5
_NULL = "__HIVE_DEFAULT_PARTITION__"


class TableLog(ABC):
    """One table. name: for messages. local: the directory on this host below which files are, None if elsewhere."""

    kind: ClassVar[str]
    forgets: ClassVar[str]
    """What the table's maintenance removes of its history."""
    name: str
    local: Path | None

    @abstractmethod
    def open(self) -> Any | None:
        """Return the newest version of the table, or None if there is no table."""

    @abstractmethod
    def identity(self, table: Any) -> str:
        """Return what no other table has, also not one of the same name."""

    @abstractmethod
    def create(self, schema: str, partition_by: Sequence[str]) -> None:
        """Create an empty table, unless it exists. schema: Spark's, as JSON."""

    @abstractmethod
    def check_able(self, table: Any, partition_by: Sequence[str], *, merges: bool) -> None:
        """Raise SinkRefusedError if the table asks more of a writer than this sink does, whatever the columns. merges:
        whether the sink rewrites rows."""

    @abstractmethod
    def check_removable(self, table: Any) -> None:
        """Raise SinkRefusedError if the table allows nobody to take rows out of it."""

    @abstractmethod
    def check_fits(self, table: Any, schema: str) -> None:
        """Raise if files with this schema (JSON, see `columns.nullable`) cannot be added to the table as they are."""

    @abstractmethod
    def has_type(self, kind: Any) -> bool:
        """Whether the format has a type of Spark's, in the form of a schema's JSON."""

    @abstractmethod
    def address(self) -> str:
        """Return the address by which Spark writes below the table."""

    @abstractmethod
    def files(self) -> FileSystem:
        """Return the file system below the table."""

    @abstractmethod
    def version(self, table: Any) -> int:
        """Return a number that grows with each commit to the table."""

    @abstractmethod
    def mark(self, table: Any, resume: Resume, application: str) -> int:
        """Return the version that an application of a store, or of one whose place it takes, has; 0: none."""

    @abstractmethod
    def executions(self, table: Any, resume: Resume) -> Iterable[tuple[str, str]]:
        """Yield store and execution of all that may have committed epochs, also if the history has forgotten them."""

    def committed(self, table: Any, resume: Resume, once: Mark) -> bool:
        """Whether the table has what this mark names."""
        return self.mark(table, resume, once[0]) >= once[1]

    @abstractmethod
    def owner(self, table: Any, resume: Resume) -> int:
        """Return the number of the newest execution of the store that has begun to write to the table; 0: none."""

    @abstractmethod
    def history(self, table: Any, resume: Resume) -> CommitHistory:
        """Return the table's commits, as far back as they are known."""

    @abstractmethod
    def touched(self, table: Any, resume: Resume, since: int) -> bool:
        """Whether somebody may have taken rows of the store out of the table since a version of it."""

    @abstractmethod
    def paths(self, table: Any) -> Iterable[tuple[str, Any]]:
        """Yield the path below the table of each of its files, and what `remove` needs to remove it."""

    @abstractmethod
    def append(self, files: Sequence[AddedFile], partition_by: Sequence[str]) -> Change:
        """Return the change that adds files."""

    @abstractmethod
    def remove(self, files: Sequence[Any]) -> Change:
        """Return the change that removes files; none of them is a commit that changes nothing."""

    @abstractmethod
    def check_restorable(self, table: Any, version: int) -> None:
        """Raise OutputMismatchError if what the table was at a version of its history cannot be brought back."""

    @abstractmethod
    def restore(self, version: int) -> Change:
        """Return the change that brings back what the table was at a version of its history."""

    @abstractmethod
    def apply(self, table: Any, resume: Resume, proposal: Proposal, once: Mark) -> bool:
        """Commit a change to exactly this version of the table, durably; return False if somebody else committed. The
        other stores of `resume.line` do not own the output from then on (`TAKEN_OVER`). Raises SinkRefusedError
        if nobody else did, and the table still refuses it."""

    def marks(self, resume: Resume, proposal: Proposal, once: Mark) -> dict[str, int]:
        """Return what a commit sets: what names it, what was proposed, and whose execution the owner of this number
        is."""
        start = start_of(resume.store_id, resume.execution.id), resume.execution.number
        return dict([*proposal.marks, start, once])

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the sizes in bytes of those files below the table that are there."""
        return {info.path: info.size for info in self.files().get_file_info(list(paths)) if info.size is not None}

    def check(self, table: Any, resume: Resume) -> None:
        """Raise if this execution must not commit to the table: LeaseLostError if a later one has begun, or what
        `check_line` raises."""
        self.check_line(table, resume)
        number = self.owner(table, resume)
        if number > resume.execution.number and number != TAKEN_OVER:
            raise LeaseLostError(f"execution {number} writes to the table now", path=self.name)

    def check_line(self, table: Any, resume: Resume) -> None:
        """Raise StaleDirectoryError if a store that takes this store's place writes to the table, OutputMismatchError
        if a store from which this store was forked writes to it."""
        for origin in resume.forked_from:
            if self.owner_of(table, resume, origin.store_id):
                resume.check_origin(self.name, origin.store_id, own=self.own)
        number = self.owner(table, resume)
        # Of the stores whose place this one takes, the nearest that wrote here must still own the output.
        formers = (self.owner_of(table, resume, each) for each in resume.formers)
        taken_over = number == TAKEN_OVER or (number == 0 and next(filter(None, formers), 0) == TAKEN_OVER)
        if taken_over and not resume.replaced:
            raise StaleDirectoryError(
                "a store that was repartitioned from this one, or from the store that this one was repartitioned "
                "from, writes to the table",
                path=self.name,
                cause="A directory was repartitioned, and the flow has run on the result since.",
                remedy="Let that directory go on; or give this flow another table (fresh=True).",
            )

    def check_known(self, resume: Resume, record: Record, number: int = 0) -> None:
        """Ask `Resume.check_known` of a record. number: of its execution."""
        resume.check_known(
            record.execution, self.name, number=number, epoch=record.epoch, store=record.store, formers=record.formers
        )

    @property
    def own(self) -> str:
        """How a sink can have a table of its own."""
        return f"{self.kind}Sink(NEW_TABLE, fresh=True)"

    def owner_of(self, table: Any, resume: Resume, store_id: str) -> int:
        """Return `owner` for another store."""
        return self.owner(table, replace(resume, store_id=store_id, origins=(), replaced=()))

    def taking(self, table: Any, resume: Resume) -> Resume:
        """Return where an execution starts, with the stores whose output it takes back on the user's word although
        those stores take this store's place."""
        if not resume.loses:
            return resume
        records = [commit.record for commit in self.history(table, resume).commits if commit.record is not None]
        replaced = {each.store for each in records if resume.shares(each.store, each.formers)} - {*resume.stores}
        return replace(resume, replaced=tuple(sorted(replaced)))

    def successor(self, table: Any, resume: Resume) -> Resume:
        """Return where an execution starts, with a number above that of the table's owner, if the execution may take
        the owner's place.

        The numbers of a directory that was restored may be lower than the numbers of the directory that it replaces;
        and the numbers of two directories may be equal. Raises StaleDirectoryError if the table does not say any more
        whose execution owns it.
        """
        number = self.owner(table, resume)
        if resume.execution.number > number or (number == TAKEN_OVER and not resume.replaced):
            return resume
        records = (commit.record for commit in self.history(table, resume).commits)
        last = next((each for each in records if each is not None and each.store == resume.store_id), None)
        if last is None:
            self.check_owner(table, resume)
        if not resume.loses and (resume.executions is None or (last is not None and not resume.knows(last.execution))):
            return resume
        return replace(resume, execution=replace(resume.execution, number=ExecutionNumber(number + 1)))

    def check_owner(self, table: Any, resume: Resume) -> None:
        """Check, by what outlasts the table's history, that an execution that has begun on these partitions owns the
        output, and that the partitions are no older copy. Raises StaleDirectoryError, unless what another execution has
        shown may be lost."""
        owners = ((each, self.owner_of(table, resume, each)) for each in resume.stores)
        store, number = next((each for each in owners if each[1]), ("", 0))
        if number in (0, TAKEN_OVER) or resume.loses or resume.executions is None:
            return
        for each in resume.executions:
            if self.committed(table, resume, (start_of(store, each), number)):
                epoch = self.mark(table, resume, app_of(store, each))
                resume.check_known(each, self.name, number=number, epoch=epoch, store=store)
                return
        raise StaleDirectoryError(
            f"execution {number} has written to the table last, and is no longer in the table's history; this "
            f"directory does not know that execution, and would begin execution {resume.execution.number} at epoch "
            f"{resume.epoch}",
            path=self.name,
            cause="Another directory of the store has written to the table, and the commits were removed since, by age "
            "or by maintenance. So nobody knows which rows would have to be taken back.",
            remedy="Let the other directory go on. If the other directory is not in use any more, run once with "
            "--lose-epochs: "
            "this directory goes on, and rows that the other one has added stay in the table.",
        )

    def commit(
        self,
        resume: Resume,
        once: Mark,
        propose: Callable[[Any], Proposal],
        *,
        claims: bool = False,
    ) -> Resume:
        """Commit in the name of an execution, unless this was done already.

        once: the mark that names what is committed. propose: returns what to commit to a version of the
        table; if somebody else commits first, it is asked again. claims: the execution owns the output from then on;
        returns `resume` with the number under which it does, which is also the version that the table then has.
        """
        versions = list[int]()
        for _ in range(_ATTEMPTS):
            table = self.open()
            if table is None:
                raise OutputMismatchError(
                    "the table is gone", path=self.name, cause="Somebody dropped the table during the run."
                )
            if claims:
                resume = self.successor(table, resume)
                once = once[0], resume.execution.number
            self.check(table, resume)
            if self.committed(table, resume, once):
                return resume
            versions.append(self.version(table))
            if self.apply(table, resume, propose(table), once):
                return resume
        raise SinkFailedError(
            f"the {self.kind} table {self.name}: others committed {_ATTEMPTS} times while this run tried to, after "
            f"versions {', '.join(map(str, versions))}",
            cause="Each commit has to follow the newest one.",
            remedy="Run the same command again, when others write less.",
        )

    def written(self, directory: str, host_of: Callable[[str], str | None]) -> list[AddedFile]:
        """Return the files with rows that Spark's tasks have written below a directory, in the order of their names.

        host_of: where the task of a file ran, if it is known. Raises OutputLostError if one of them is not here.
        """
        import pyarrow.parquet as pq

        files, shown = self.files(), f"{self.name}: {directory}"
        reports = [_content(files, f"{directory}/{REPORTS}/{name}") for name in REPORT_NAMES]
        sizes = {f"{directory}/{_below(directory, path)}": size for path, size in reported(reports, shown).items()}
        infos: dict[str, FileInfo] = {}

        def look() -> dict[str, int]:
            infos.update((info.path, info) for info in files.get_file_info(list(sizes)) if info.size is not None)
            return {path: info.size for path, info in infos.items()}

        check_reported(sizes, look, shown, host_of, patience_s=PATIENCE_S)
        self.remove_directory(f"{directory}/{REPORTS}")
        found = []
        for path in sorted(sizes):
            with files.open_input_file(path) as opened:
                rows = pq.read_metadata(opened).num_rows
            if rows:
                partition = dict(map(_partition_value, PurePosixPath(path).parts[3:-1]))
                found.append(
                    AddedFile(path, sizes[path], rows, int((infos[path].mtime_ns or 0) // 1_000_000), partition)
                )
        return found

    def sync_files(self, paths: Sequence[str]) -> None:
        """Make files below a local table durable, with their names."""
        if self.local is not None:
            directories: set[Path] = set()
            for path in paths:
                sync(self.local / path)
                directories.update(Path(path).parents)
            for each in directories:
                sync(self.local / each)

    def remove_directory(self, path: str) -> None:
        """Remove a directory below the table, if it exists."""
        with contextlib.suppress(OSError):
            self.files().delete_dir(path)

    def record_of(self, text: str | None) -> Record | None:
        """Return the record in a commit's metadata. Raises OutputMismatchError if the record is none of this
        package."""
        return None if text is None else decode_json(text, self._unreadable, Record)

    def _unreadable(self, why: str) -> OutputMismatchError:
        return OutputMismatchError(
            f"a commit of the table has a record that is not one of this package: {why}", path=self.name
        )


def spark_uri(uri: str) -> str:
    """Return the address by which Spark writes to a table. Hadoop takes a local path literally."""
    if "://" not in uri:
        return f"file:{os.fspath(uri)}"
    return "s3a://" + uri.removeprefix("s3://") if uri.startswith("s3://") else uri


def _partition_value(part: str) -> tuple[str, str | None]:
    name, _, value = part.partition("=")
    return unquote(name), None if value == _NULL else unquote(value)


def _below(directory: str, path: str) -> str:
    """Return the part of a reported path that is below a directory of the table."""
    return path.rpartition(f"/{directory}/")[2]


def _content(files: FileSystem, path: str) -> bytes | None:
    """Return the content of a small file, None if there is none."""
    try:
        with files.open_input_file(path) as opened:
            return bytes(opened.read())
    except FileNotFoundError:
        return None
