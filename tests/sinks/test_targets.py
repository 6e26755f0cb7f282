"""What sinks make of each state of a file system, and of what object stores and catalogs say. Without Spark."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recovery import DeltaSink, FileSink
from recovery.errors import SinkFailedError, SinkRefusedError
from recovery.sinks import targets
from recovery.sinks.delivery import Delivery
from recovery.sinks.targets import REFUSALS, TargetRefusal, refusal_of, said, target_error
from tests.sinks.support import Store
from tests.sinks.tables import Run, two_epochs


@contextlib.contextmanager
def mounted(*options: str) -> Iterator[Path]:
    """A file system of its own; skips the test where none can be mounted."""
    with tempfile.TemporaryDirectory() as home:
        mount = ["mount", "-t", "tmpfs", "-o", ",".join(("size=400k", *options)), "tmpfs", home]
        if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("no file system can be mounted here")
        try:
            yield Path(home)
        finally:
            subprocess.run(["umount", home], check=True)


def a_file(place: Path) -> Path:
    (place / "out").write_text("a file")
    return place / "out"


def below_a_file(place: Path) -> Path:
    return a_file(place) / "below"


def a_loop(place: Path) -> Path:
    (place / "out").symlink_to("out")
    return place / "out"


def a_long_name(place: Path) -> Path:
    return place / ("n" * 256)


WAYS: dict[str, tuple[Callable[[Path], Path], TargetRefusal]] = {
    "a file": (a_file, targets.FORM),
    "below a file": (below_a_file, targets.FORM),
    "a loop of links": (a_loop, targets.FORM),
    "a long name": (a_long_name, targets.FORM),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_path_that_cannot_be_an_output(tmp_path, name):
    """It is refused before the run writes anything."""
    make, refusal = WAYS[name]
    sink, before = FileSink(make(tmp_path), "json"), sorted(tmp_path.iterdir())
    with pytest.raises(SinkRefusedError) as caught:
        (sink.rollback if name == "a long name" else sink.check)(Store().begin())
    assert caught.value.cause == refusal.cause
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_system_that_may_only_be_read():
    """That is not taken for a missing right."""
    with mounted("ro") as place:
        with pytest.raises(SinkRefusedError, match="may only be read") as caught:
            FileSink(place / "out", "json").check(Store().begin())
        assert caught.value.cause == targets.READ_ONLY.cause


def test_a_full_disk():
    """It passes: when there is room, the run goes on."""
    with mounted() as place:
        sink = FileSink(place / "out", "json")
        sink.check(Store().begin())
        with (place / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(b"x" * 4096)
        with pytest.raises(SinkFailedError, match="No space left on device") as caught:
            sink.rollback(Store().begin())
        assert caught.value.cause == targets.FULL.cause
        (place / "fill").unlink()
        sink.rollback(Store().begin())


def test_a_full_disk_under_a_delta_table():
    """What the package deltalake says of it is read, and the run goes on later."""
    pytest.importorskip("deltalake")
    with mounted() as place:
        store, run = two_epochs(DeltaSink(place / "t"))
        run.write([("c", 3)])
        with (place / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
            while True:
                fill.write(b"x" * 512)
        with pytest.raises(SinkFailedError, match="No space left on device"):
            run.close()
        (place / "fill").unlink()
        Run(store, DeltaSink(place / "t"))


@pytest.mark.parametrize("what", ["to write", "to read"])
def test_a_delta_table_without_the_right(what):
    """The text has neither colours nor line ends, and a table that may not be read is not taken for none."""
    pytest.importorskip("deltalake")
    if os.geteuid() != 0:
        pytest.skip("takes the place of another user")
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        store, _ = two_epochs(DeltaSink(Path(home) / "t"))
        if what == "to read":
            Path(home).chmod(0o700)
        os.seteuid(65534)
        try:
            sink = DeltaSink(Path(home) / "t")
            with pytest.raises(SinkRefusedError, match=r"(?i)permission ?denied") as caught:
                Run(store, sink)
        finally:
            os.seteuid(0)
        assert caught.value.cause == targets.RIGHTS.cause
        assert "\x1b" not in caught.value.found
        assert "\n" not in caught.value.found
        Path(home).chmod(0o755)
        Run(store, DeltaSink(Path(home) / "t"))


SAID = [
    (OSError(errno.EDQUOT, "Disk quota exceeded"), targets.FULL),
    (OSError(errno.ESTALE, "Stale file handle"), targets.AWAY),
    (OSError(errno.ENOTCONN, "Transport endpoint is not connected"), targets.AWAY),
    (OSError(errno.EIO, "org.apache.hadoop.security.AccessControlException: Permission denied: user=a"),
     targets.RIGHTS),
    (OSError(errno.EIO, "java.nio.file.AccessDeniedException: out: getFileStatus: 403 Forbidden"), targets.RIGHTS),
    (OSError(errno.EIO, "org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://b/': Bucket does not exist"),
     targets.NO_BUCKET),
    (OSError(errno.EIO, 'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3a"'),
     targets.NO_BUCKET),
    (OSError(errno.EIO, "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The quota of /o is exceeded"),
     targets.FULL),
    (OSError(errno.EIO, "org.apache.hadoop.ipc.RemoteException: Cannot create file. Name node is in safe mode."),
     targets.AWAY),
    (OSError(errno.EIO, "java.net.ConnectException: Call From a to b:8020 failed: Connection refused"), targets.AWAY),
    (OSError("Generic S3 error\n  \x1b[31m↳\x1b[0m Client error with status 404: <Code>NoSuchBucket</Code>"),
     targets.NO_BUCKET),
    (OSError("Generic S3 error\n  \x1b[31m↳\x1b[0m <Code>ExpiredToken</Code> status code: 403"), targets.EXPIRED),
    (OSError("Generic S3 error: tcp connect error: Connection refused (os error 111)"), targets.AWAY),
    (Exception("Unable to open file /t/1.json#1: Permission denied (os error 13)"), targets.RIGHTS),
    (Exception("Kernel error: Unsupported: Unsupported minimum reader version 9"), targets.ASKS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "refusal"), SAID, ids=lambda value: value.means if isinstance(value, TargetRefusal) else ""
)
def test_what_is_said(error, refusal):
    """By number where there is one that says more than that something failed, otherwise by name and text."""
    assert refusal_of(error) is refusal
    made = target_error(error, said(error))
    assert isinstance(made, refusal.error)
    assert "\x1b" not in made.found
    assert "\n" not in made.found


def test_what_a_catalog_says():
    """By the classes of pyiceberg."""
    known = pytest.importorskip("pyiceberg.exceptions")
    for name, refusal in (
        ("ForbiddenError", targets.RIGHTS),
        ("UnauthorizedError", targets.RIGHTS),
        ("OAuthError", targets.RIGHTS),
        ("AuthorizationExpiredError", targets.EXPIRED),
        ("BadRequestError", targets.ASKS),
        ("ValidationError", targets.ASKS),
        ("NoSuchNamespaceError", targets.NO_BUCKET),
        ("CommitStateUnknownException", targets.AWAY),
        ("ServiceUnavailableError", targets.AWAY),
        ("ServerError", targets.AWAY),
    ):
        assert refusal_of(getattr(known, name)("said")) is refusal, name


def test_no_number_is_in_two_rows():
    """And only what passes is restarted."""
    numbers = [number for each in REFUSALS for number in each.codes]
    assert len(numbers) == len(set(numbers))
    assert {each.error for each in REFUSALS} == {SinkFailedError, SinkRefusedError}


class Ledger:
    """A sink of a user."""

    single_action = False

    def __init__(self, failing: str, error: BaseException) -> None:
        self._failing, self._error = failing, error

    def _call(self, name: str) -> str:
        if name == self._failing:
            raise self._error
        return "note"

    def rollback(self, resume) -> None:
        self._call("rollback")

    def write(self, batch, batch_id) -> None:
        self._call("write")

    def prepare(self, output) -> str:
        return self._call("prepare")

    def publish(self, output) -> None:
        self._call("publish")


CALLS = {
    "rollback": lambda delivery: delivery.rollback(),
    "write": lambda delivery: delivery.write("frame", 7, 5),
    "prepare": lambda delivery: delivery.prepare(5, 7, 0),
    "publish": lambda delivery: delivery.publish(5, 7, 0),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_sink_of_one_s_own(call):
    """The error names the class, the call and the line, and is that of the state."""
    for error, kind in (
        (OSError(errno.ENOSPC, "full"), SinkFailedError),
        (PermissionError(errno.EACCES, "barred"), SinkRefusedError),
    ):
        delivery = Delivery(Ledger(call, error), Store().begin(), recoverable=True)
        with pytest.raises(kind, match=rf"^Ledger\.{call} failed, .*\(test_targets\.py, line \d+\)"):
            CALLS[call](delivery)
