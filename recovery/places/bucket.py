"""Objects in a bucket, through pyarrow's file systems."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from recovery.base.outside import Answers, Checked, Moment, Question
from recovery.base.threads import bounded
from recovery.errors import BackupTargetError, ConfigurationError
from recovery.places.access import Access, access_of, endpoint_of
from recovery.places.address import PlaceAddress
from recovery.places.arrow import arrow, content_of, or_arrow_error
from recovery.places.failures import Failures
from recovery.places.protocol import CHUNK_BYTES, NO_ANSWER_S, OF_EVERY_PLACE, ObjectVersions, PlaceEntry
from recovery.places.secrets import Secrets

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ATTEMPTS = 3
OPEN_FILES = 256
"""How many objects of which parts were read stay open."""

UNSEEN = {
    "s3": "older versions and locks of objects, for which keys have to be in the environment or in a profile",
    "gs": "what the bucket keeps of removed objects: soft-deleted ones, for 7 days unless set otherwise, and versions",
    "azure": "what the container keeps of removed objects: soft-deleted ones, versions and snapshots",
}
"""What `Place.unseen` and `DocumentStore.unseen` say of each kind of bucket that cannot be looked at."""

T = TypeVar("T")


class BucketPlace:
    """The `Place` of a prefix in a bucket. Every call ends: with an answer, or with an error after `no_answer_s`
    without one."""

    answers: ClassVar[Answers] = {
        **OF_EVERY_PLACE,
        Question.ABLE: Checked(
            "writes whose condition is not met, before a term is claimed; a missing permission shows when something is "
            "written",
            (Moment.START, Moment.COPYING),
        ),
    }

    def __init__(
        self,
        filesystem: FileSystem,
        root: str,
        shown: str,
        *,
        secrets: Secrets | None = None,
        no_answer_s: float = NO_ANSWER_S,
        looked_at: str = "",
        versions: ObjectVersions | None = None,
        unseen: str = "",
    ) -> None:
        """looked_at: where credentials were looked for."""
        self.versions = versions
        self.unseen = unseen
        self._filesystem = filesystem
        self._root = root.strip("/")
        self.shown = shown
        self._failures = Failures(BackupTargetError, shown, secrets or Secrets(), looked_at)
        self._no_answer_s = no_answer_s
        self._silent = False
        self._files: dict[str, Any] = {}

    def write(self, name: str, chunks: Iterable[bytes]) -> int:
        size = 0
        # Not a context manager: leaving it by an exception would publish what was written so far.
        try:
            stream = self._ask(lambda: self._filesystem.open_output_stream(self._path(name), compression=None))
        except FileNotFoundError as error:
            raise BackupTargetError(
                self._failures.secrets.scrubbed(error), path=self.shown, cause="There is no such bucket or container."
            ) from None
        try:
            for chunk in chunks:
                self._ask(lambda chunk=chunk: stream.write(chunk))  # type: ignore[misc]
                size += len(chunk)
            self._ask(stream.close)
        except BaseException:
            # Closing publishes the part; a stream that is never closed may be published when the process ends.
            with contextlib.suppress(BackupTargetError, FileNotFoundError):
                if not self._silent:
                    self._ask(stream.close)
                if not self._silent:
                    self.delete(name)
            raise
        return size

    def read(self, name: str) -> Iterator[bytes]:
        stream = self._ask(lambda: self._filesystem.open_input_stream(self._path(name), compression=None))
        try:
            yield from content_of(name, lambda: self._ask(lambda: stream.read(CHUNK_BYTES)), self.shown)
        finally:
            with contextlib.suppress(BackupTargetError):
                self._ask(stream.close)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        # Opening asks for the object's size, so it stays open.
        known = self._files.get(name)
        if known is not None:
            with contextlib.suppress(BackupTargetError):
                return self._ask(lambda: known.read_at(size, offset))  # type: ignore[no-any-return]
            # It may have been removed meanwhile: opening it says so.
            self._files.pop(name, None)
        file = self._files[name] = self._ask(lambda: self._filesystem.open_input_file(self._path(name)))
        # A list, for other threads may open objects meanwhile.
        for oldest in list(self._files)[:-OPEN_FILES]:
            self._files.pop(oldest, None)
        return self._ask(lambda: file.read_at(size, offset))  # type: ignore[no-any-return]

    def entries(self, prefix: str) -> list[PlaceEntry]:
        # Recursive, because some stores do not know directories that were never made.
        selector = arrow().fs.FileSelector(self._path(prefix.rstrip("/")), recursive=True, allow_not_found=True)
        infos = self._ask(lambda: self._filesystem.get_file_info(selector))
        found = [
            PlaceEntry(
                info.path.removeprefix(self._root).lstrip("/"), info.size or 0, (info.mtime_ns or 0) // 1_000_000
            )
            for info in infos
            if info.type == arrow().fs.FileType.File
        ]
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            self._ask(lambda: self._filesystem.delete_file(path))
        except FileNotFoundError:
            return
        except BackupTargetError:
            # pyarrow removes the object, then writes one for its directory, which a bucket with object lock refuses.
            if self._ask(lambda: self._filesystem.get_file_info(path)).type != arrow().fs.FileType.NotFound:
                raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if self._root else name

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            found = bounded(call, self._no_answer_s)
            self._silent = False
            return found
        except FileNotFoundError:
            raise
        except TimeoutError:
            self._silent = True
            raise self._failures.silent(self._no_answer_s) from None
        except or_arrow_error(OSError, ValueError) as error:
            raise self._failures.of_service(error) from None


def open_bucket(address: PlaceAddress, environ: Mapping[str, str], no_answer_s: float) -> BucketPlace:
    """Return the place in a bucket that an address names, without contacting it. Raises ConfigurationError."""
    access = access_of(address, environ)
    secrets = Secrets([address.password or "", *access.secrets])
    open_files = {"s3": _s3, "gs": _gcs, "azure": _azure}[address.kind]
    try:
        filesystem = open_files(address, access, environ, no_answer_s)
    except or_arrow_error(OSError, ValueError, TypeError, OverflowError) as error:
        raise ConfigurationError(
            secrets.scrubbed(error),
            path=address.shown,
            cause="The address is incomplete.",
            remedy="See docs/backup.md for the forms.",
        ) from None
    failures = Failures(BackupTargetError, address.shown, secrets, access.looked_at)
    versions, unseen = versions_in(address, access, failures, no_answer_s)
    return BucketPlace(
        filesystem,
        f"{address.bucket}/{address.path}",
        address.shown,
        secrets=secrets,
        no_answer_s=no_answer_s,
        looked_at=access.looked_at,
        versions=versions,
        unseen=unseen,
    )


def versions_in(
    address: PlaceAddress, access: Access, failures: Failures, no_answer_s: float
) -> tuple[ObjectVersions | None, str]:
    """Return what a bucket keeps of objects that were removed or replaced, and in words what of that nobody can look at
    from here; see `Place`. Contacts nobody."""
    if address.kind == "s3" and access.key_id and access.secret:
        # It imports Python's HTTP client, which few processes need.
        from recovery.places.versions import BucketVersions

        return BucketVersions(address.bucket, address.path, access, failures, no_answer_s), ""
    return None, UNSEEN[address.kind]


def _s3(address: PlaceAddress, access: Access, _: Mapping[str, str], no_answer_s: float) -> FileSystem:
    # The address cannot set time limits, so the file systems are constructed here.
    scheme, authority = endpoint_of(access.endpoint) if access.endpoint else (address.settings.get("scheme"), None)
    options = {
        "region": access.region,
        "endpoint_override": authority,
        "scheme": scheme,
        "access_key": access.key_id,
        "secret_key": access.secret,
        "session_token": access.token,
    }
    return arrow().fs.S3FileSystem(
        **{name: value for name, value in options.items() if value is not None},
        # All attempts together stay below the limit: when the process ends, S3 waits for a pending request.
        connect_timeout=no_answer_s / (ATTEMPTS + 1),
        request_timeout=no_answer_s / (ATTEMPTS + 1),
        retry_strategy=arrow().fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


def _gcs(address: PlaceAddress, access: Access, environ: Mapping[str, str], no_answer_s: float) -> FileSystem:
    given = address.settings
    limit_s = float(given.get("retry_limit_seconds") or no_answer_s / 2)
    # An emulator that the environment names needs no credentials; another server that the address names may.
    anonymous = address.user == "anonymous" or (
        access.anonymous and not given.keys() & {"endpoint", "endpoint_override"}
    )
    # Without a limit, requests to a silent service are retried for a quarter of an hour.
    options: dict[str, Any] = {"retry_time_limit": timedelta(seconds=limit_s), "anonymous": anonymous}
    if access.endpoint is not None:
        options["scheme"], options["endpoint_override"] = endpoint_of(access.endpoint)
    project = given.get("project_id") or environ.get("GOOGLE_CLOUD_PROJECT")
    if project:
        options["project_id"] = project
    return arrow().fs.GcsFileSystem(**options)


def _azure(address: PlaceAddress, access: Access, _: Mapping[str, str], _no_answer_s: float) -> FileSystem:
    given = address.settings
    options: dict[str, Any] = {"account_name": access.account or ""}
    if access.secret:
        options["account_key"] = access.secret
    elif access.token:
        options["sas_token"] = access.token
    if access.endpoint is not None:
        scheme, authority = endpoint_of(access.endpoint)
        # pyarrow puts the account before an authority that begins with a dot, and behind any other.
        blob = authority.removeprefix(str(access.account)) if authority.startswith(f"{access.account}.") else authority
        options |= {"blob_storage_authority": blob, "dfs_storage_authority": blob.replace(".blob.", ".dfs.", 1)}
        options |= {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    authorities = {name: given[name] for name in ("blob_storage_authority", "dfs_storage_authority") if name in given}
    options |= authorities
    if given.get("enable_tls") == "false":
        options |= {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    return arrow().fs.AzureFileSystem(**options)
