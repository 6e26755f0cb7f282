"""Objects on a disk or in a bucket, written conditionally: only if nobody wrote them since they were read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from recovery.base.untrusted_paths import read_received
from recovery.errors import ConfigurationError, RecoveryError, StateBackendError
from recovery.host.buckets import Access, azure_access, gs_access, s3_access
from recovery.host.durable import PRIVATE, UMASK, create, files_below, make_directories, open_own, sync
from recovery.host.locks import free, lock_file_within
from recovery.operational.backends.address import SECRETS, TIMEOUT, Address, bad_address

T = TypeVar("T")

Token = Any
"""Identifies one content of an object."""

LARGEST = 256 << 20
"""The largest object that is read, in bytes. Documents stay far below it; a larger object came from another program."""
_QUERY = re.compile(r"\?[^\s\"')]+")


class Conflict(Exception):  # noqa: N818 - another writer was faster: the write is tried again on the current content
    """The object has changed since it was read."""


class Found(NamedTuple):
    """An object's content, and the token that identifies it."""

    content: bytes
    token: Token


class Objects(Protocol):
    """A place for small objects by path. Raises StateBackendError if it cannot be reached or refuses."""

    location: str

    def get(self, path: str) -> Found | None:
        """Return the object, None if there is none."""
        ...

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        """Write the whole object durably if it is still the `expected` one; None: if it does not exist yet.

        Raises Conflict otherwise; then nothing was written.
        """
        ...

    def paths(self, prefix: str) -> list[str]:
        """Return the paths of all objects below a directory, "" for all."""
        ...

    def delete(self, path: str) -> None:
        """Remove the object; a missing object is not an error."""
        ...


def open_objects(address: Address) -> Objects:
    """Return the place that an address names. Raises ConfigurationError if its package is not installed."""
    if address.scheme == "file":
        if address.settings.get("create", "0") not in ("0", "1"):
            raise bad_address("create is 0 or 1")
        if address.settings.get("create") == "1":
            make_directories(Path(address.prefix), PRIVATE)
        return FileObjects(Path(address.prefix), address.seconds("timeout", TIMEOUT))
    return BucketObjects(address)


class FileObjects:
    """Objects as files of a directory. An operating system lock excludes other writers of this machine; no writer waits
    for it longer than `timeout_s`.

    The directory must exist: an unmounted share or a wrong path is never taken for empty. as_root: files get the
    permissions of the directory, as far as the umask allows; by default only this user may read them.
    """

    def __init__(self, root: Path, timeout_s: float, *, as_root: bool = False) -> None:
        self.root = root
        # One place has one name, by which it is recognised.
        self.location = f"file://{os.path.realpath(root)}"
        self._timeout_s = timeout_s
        self._as_root = as_root

    def get(self, path: str) -> Found | None:
        """See `Objects.get`."""
        with self._translated():
            try:
                content = read_received(self.root / path, LARGEST, through_links=True)
            except FileNotFoundError:
                self._check_root()
                return None
            except NotADirectoryError:
                self._check_root()
                raise
        return Found(content, hashlib.sha256(content).hexdigest())

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        """See `Objects.put`. A rename replaces the file; the file is synced before it, its directory after it."""
        target = self.root / path
        with self._translated():
            self._check_root()
            self._make(target.parent)
            with self._writing():
                found = self.get(path)
                if (None if found is None else found.token) != expected:
                    raise Conflict(path)
                draft = target.with_name(f".{target.name}.draft")
                # Only writers make a draft; a killed writer leaves it behind.
                draft.unlink(missing_ok=True)
                with os.fdopen(create(draft, self._mode()), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(target)
                sync(target.parent)
        return hashlib.sha256(content).hexdigest()

    def paths(self, prefix: str) -> list[str]:
        """See `Objects.paths`."""
        with self._translated():
            found = [path for path in files_below(self.root / prefix) if path.suffix == ".json" and path.is_file()]
            self._check_root()
            return sorted(path.relative_to(self.root).as_posix() for path in found if not path.name.startswith("."))

    def delete(self, path: str) -> None:
        """See `Objects.delete`."""
        target = self.root / path
        with self._translated():
            if not target.exists():
                self._check_root()
                return
            with self._writing():
                target.unlink(missing_ok=True)
                sync(target.parent)

    def _check_root(self) -> None:
        try:
            if stat.S_ISDIR(self.root.stat().st_mode):
                return
        except NotADirectoryError:
            pass
        except FileNotFoundError:
            raise StateBackendError(
                "there is no such directory",
                path=self.root,
                cause="The disk is not mounted, the path is wrong, or nothing was ever stored there.",
                remedy="Mount it or correct the URI; to begin there, add ?create=1 to the URI, or make it: "
                f"mkdir -p {shlex.quote(str(self.root))}",
            ) from None
        raise StateBackendError(
            "it is not a directory",
            path=self.root,
            cause="The URI names a file, or a path that leads through one.",
            remedy="Name a directory.",
        )

    def _make(self, directory: Path) -> None:
        """Make directories below the root, but never the root itself, even if it has disappeared."""
        below = [each for each in (directory, *directory.parents) if self.root in each.parents and not each.exists()]
        for each in reversed(below):
            each.mkdir(PRIVATE.directory, exist_ok=True)
            sync(each.parent)

    def _mode(self) -> int:
        return self.root.stat().st_mode & UMASK.file | PRIVATE.file if self._as_root else PRIVATE.file

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        path = self.root / ".writing"
        descriptor, holder_pid = open_own(path, self._mode()), os.getpid()
        try:
            if not lock_file_within(descriptor, self._timeout_s):
                raise StateBackendError(
                    f"another process has been writing for {self._timeout_s:g} s",
                    path=path,
                    cause="It was suspended in the middle of a write, or the disk does not answer.",
                    remedy=f"Find it with `fuser {path}`, and let it continue, or end it.",
                )
            yield
        finally:
            free(descriptor, holder_pid)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateBackendError(
                str(error), path=self.location, cause="The disk is full or failing, or this user may not write there."
            ) from error


class BucketObjects:
    """Objects of S3, Azure Blob Storage or Google Cloud Storage, through obstore.

    Credentials come from where the vendors' tools look for them: see `recovery.host.buckets`. No request takes longer
    than the address's `timeout`, retries included.
    """

    _asking_pids: ClassVar[set[int]] = set()
    """The ids of the processes that have made a request: this one, and those that it was forked from after they had."""

    def __init__(self, address: Address) -> None:
        self.location = address.shown
        self._prefix = f"{address.prefix}/" if address.prefix else ""
        self._timeout_s = address.seconds("timeout", TIMEOUT)
        try:
            import obstore
            from obstore import store
        except ImportError:
            raise ConfigurationError(
                f"{address.shown} needs the package obstore",
                cause="This package is optional and not installed.",
                remedy="pip install obstore",
            ) from None
        self._api: Any = obstore
        kind = {"s3": store.S3Store, "azure": store.AzureStore, "gs": store.GCSStore}[address.scheme]
        access = _access(address)
        self._access = access
        if access.unread is not None:
            raise ConfigurationError(
                f"{address.shown} cannot be used: {access.unread}",
                cause="The client of operational state reads keys only.",
                remedy='Get keys for it: eval "$(aws configure export-credentials --format env)"',
            )
        try:
            self._store: Any = kind(
                address.bucket,
                config=_config(address.scheme, access) or None,
                client_options={
                    # A Google key file may name another server, which may lack TLS.
                    "allow_http": address.scheme == "gs" or (access.endpoint or "").startswith("http:"),
                    "timeout": timedelta(seconds=self._timeout_s / 2),
                    "connect_timeout": timedelta(seconds=min(5.0, self._timeout_s / 2)),
                },
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=self._timeout_s / 2)},
            )
        except Exception as error:
            raise ConfigurationError(
                f"{address.shown} cannot be used: {self._scrubbed(error)}",
                cause=f"The store rejects the value of a setting or an environment variable. {access.looked_at}",
                remedy="Correct it.",
            ) from None

    def get(self, path: str) -> Found | None:
        """See `Objects.get`."""

        def get() -> Found | None:
            try:
                found = self._api.get(self._store, self._prefix + path)
                if found.meta["size"] > LARGEST:
                    raise StateBackendError(f"{path} is larger than {LARGEST:,} bytes", path=self.location)
                return Found(bytes(found.bytes()), _token(found.meta))
            except FileNotFoundError:
                return None

        return self._ask(get)

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        """See `Objects.put`."""
        mode = "create" if expected is None else expected
        return self._ask(
            lambda: _token(self._api.put(self._store, self._prefix + path, content, mode=mode, use_multipart=False))
        )

    def paths(self, prefix: str) -> list[str]:
        """See `Objects.paths`."""
        below = (self._prefix + prefix).rstrip("/") or None
        found = self._ask(lambda: self._api.list(self._store, prefix=below).collect())
        return sorted(each["path"].removeprefix(self._prefix) for each in found)

    def delete(self, path: str) -> None:
        """See `Objects.delete`."""

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._api.delete(self._store, self._prefix + path)

        self._ask(delete)

    def _ask(self, call: Callable[[], T]) -> T:
        self._check_process()
        errors = self._api.exceptions
        try:
            return call()
        except RecoveryError:
            raise
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise Conflict(self._scrubbed(error)) from None
        except Exception as error:
            # Stores answer like this when two conditional writes meet.
            if "409 Conflict" in str(error) or "ConditionalRequestConflict" in str(error):
                raise Conflict(self._scrubbed(error)) from None
            cause = f"{StateBackendError.default_cause} {self._access.looked_at}"
            raise StateBackendError(self._scrubbed(error), path=self.location, cause=cause) from None

    def _scrubbed(self, error: Exception) -> str:
        text = scrubbed(str(error))
        for secret in self._access.secrets:
            text = text.replace(secret, "***")
        return text

    def _check_process(self) -> None:
        """Raise an error in a forked process whose parent has made requests. obstore's threads serve the whole process,
        start with its first request, and do not survive a fork: every request would wait for them forever."""
        pid = os.getpid()
        if self._asking_pids - {pid}:
            raise StateBackendError(
                f"process {pid} was forked from a process that had already used a state backend",
                path=self.location,
                cause="obstore, the client of the store, does not work in such a process.",
                remedy='Start processes with multiprocessing.get_context("spawn") or "forkserver", or fork them before '
                "the state is used for the first time.",
            )
        self._asking_pids.add(pid)


def _access(address: Address) -> Access:
    """Return how to reach the address's bucket: its own settings come before the environment."""
    given = address.settings
    if address.scheme == "s3":
        access = s3_access(os.environ)
    elif address.scheme == "azure":
        access = azure_access(os.environ, given.get("account") or given.get("account_name"))
    else:
        access = gs_access(os.environ)
    other = given.get("endpoint_override")
    endpoint = given.get("endpoint") or (f"{given.get('scheme', 'https')}://{other}" if other else access.endpoint)
    # Only the address of a place of backups can have these.
    if "secret" in given:
        access = replace(
            access, key_id=given.get("key_id"), secret=given["secret"], token=None, unread=None,
            looked_at="Its credentials are those of the address.",
        )  # fmt: skip
    anonymous = access.anonymous or given.get("anonymous") == "1"
    return replace(access, endpoint=endpoint, region=given.get("region") or access.region, anonymous=anonymous)


def _config(kind: str, access: Access) -> dict[str, Any]:
    """Return the settings of obstore's store."""
    if kind == "s3":
        found = {"endpoint": access.endpoint, "region": access.region, "access_key_id": access.key_id,
                 "secret_access_key": access.secret, "session_token": access.token}  # fmt: skip
    elif kind == "azure":
        found = {"endpoint": access.endpoint, "account_name": access.account, "account_key": access.secret,
                 "sas_key": access.token}  # fmt: skip
    elif access.anonymous:
        # Conditional writes ask for a token even with skip_signature; a key without OAuth asks for none.
        key = {"gcs_base_url": access.endpoint, "disable_oauth": True, "client_email": "", "private_key": "",
               "private_key_id": ""}  # fmt: skip
        found = {"service_account_key": json.dumps(key)}
    else:
        found = {"base_url": access.endpoint, "application_credentials": access.key_file}
    return {name: value for name, value in found.items() if value is not None}


def scrubbed(text: str) -> str:
    """Return the first lines of a message, without query strings and without the values of possibly secret
    variables."""
    shown = _QUERY.sub("?…", text.partition("Debug source:")[0].strip())[:600]
    for name, value in os.environ.items():
        if len(value) >= 6 and SECRETS.search(name):
            shown = shown.replace(value, "***")
    return shown


def nonce() -> str:
    """Return a random text that makes every content different, so that a token never stands for two contents."""
    return secrets.token_hex(8)


def _token(meta: Any) -> Token:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}
