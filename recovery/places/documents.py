"""Documents in a bucket, through obstore: pyarrow's file systems have no conditional writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from recovery.errors import ConfigurationError, RecoveryError
from recovery.places.access import Access, access_of
from recovery.places.address import PlaceAddress
from recovery.places.bucket import versions_in
from recovery.places.failures import Failures
from recovery.places.protocol import LARGEST, Conflict, FoundObject, Token
from recovery.places.secrets import Secrets

T = TypeVar("T")

_NO_BUCKET = re.compile(r">\s*(NoSuchBucket|ContainerNotFound)\s*<|(bucket|container) does not exist", re.IGNORECASE)
"""How a store says that the bucket is missing, and not the object. The path of an object, which an error names too, has
neither brackets nor blanks."""


class BucketDocuments:
    """A `DocumentStore` in S3, Azure Blob Storage or Google Cloud Storage. No request takes longer than `timeout_s`,
    retries included."""

    _asking_pids: ClassVar[set[int]] = set()
    """The ids of the processes that have made a request: this process, and the processes from which it was forked after
    they had."""

    def __init__(self, address: PlaceAddress, timeout_s: float, failure: type[RecoveryError], shown: str) -> None:
        """failure, shown: the class of errors, and the place in their texts. Raises ConfigurationError."""
        self.location = address.location
        self._prefix = f"{address.path}/" if address.path else ""
        try:
            import obstore
            from obstore import store
        except ImportError:
            raise ConfigurationError(
                f"{self.location} needs the package obstore",
                cause="This package is optional and not installed.",
                remedy="pip install obstore",
            ) from None
        self._api: Any = obstore
        access = access_of(address, os.environ)
        self._failures = Failures(failure, shown, Secrets(access.secrets), access.looked_at)
        self.versions, self.unseen = versions_in(address, access, self._failures, timeout_s)
        if access.unread is not None:
            raise ConfigurationError(
                f"{self.location} cannot be used: {access.unread}",
                cause="The client of documents reads keys only.",
                remedy='Get keys for the profile: eval "$(aws configure export-credentials --format env)"',
            )
        kind = {"s3": store.S3Store, "azure": store.AzureStore, "gs": store.GCSStore}[address.kind]
        try:
            self._store: Any = kind(
                address.bucket,
                config=_config(address.kind, access) or None,
                client_options={
                    # A Google key file may name another server, which may lack TLS.
                    "allow_http": address.kind == "gs" or (access.endpoint or "").startswith("http:"),
                    "timeout": timedelta(seconds=timeout_s / 2),
                    "connect_timeout": timedelta(seconds=min(5.0, timeout_s / 2)),
                },
                retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=timeout_s / 2)},
            )
        except Exception as error:
            raise ConfigurationError(
                f"{self.location} cannot be used: {self._failures.secrets.scrubbed(error)}",
                cause=f"The store rejects the value of a setting or an environment variable. {access.looked_at}",
                remedy="Correct it.",
            ) from None

    def get(self, path: str) -> FoundObject | None:
        def get() -> FoundObject | None:
            found = self._api.get(self._store, self._prefix + path)
            if found.meta["size"] > LARGEST:
                raise self._failures.kind(f"{path} is larger than {LARGEST:,} bytes", path=self._failures.shown)
            return FoundObject(bytes(found.bytes()), _token(found.meta))

        return self._ask(get, lambda _: None)

    def put(self, path: str, content: bytes, expected: Token | None) -> Token:
        mode = "create" if expected is None else expected

        def removed(error: FileNotFoundError) -> Token:
            # S3 answers 404, and not 412, where the object was removed since it was read.
            raise Conflict(self._failures.secrets.scrubbed(error)) from None

        return self._ask(
            lambda: _token(self._api.put(self._store, self._prefix + path, content, mode=mode, use_multipart=False)),
            None if expected is None else removed,
        )

    def paths(self, prefix: str) -> list[str]:
        below = (self._prefix + prefix).rstrip("/") or None
        found = self._ask(lambda: self._api.list(self._store, prefix=below).collect())
        return sorted(each["path"].removeprefix(self._prefix) for each in found)

    def delete(self, path: str) -> None:
        self._ask(lambda: self._api.delete(self._store, self._prefix + path), lambda _: None)

    def _ask(self, call: Callable[[], T], missing: Callable[[FileNotFoundError], T] | None = None) -> T:
        """Return what a call does. missing: what to do if there is no such object; a bucket that is missing is an
        error: nobody may take it for an empty one."""
        self._check_process()
        errors = self._api.exceptions
        try:
            return call()
        except RecoveryError:
            raise
        except FileNotFoundError as error:
            if missing is None or _NO_BUCKET.search(str(error)):
                raise self._failures.of_service(error) from None
            return missing(error)
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise Conflict(self._failures.secrets.scrubbed(error)) from None
        except Exception as error:
            # Stores answer like this when two conditional writes meet.
            if "409 Conflict" in str(error) or "ConditionalRequestConflict" in str(error):
                raise Conflict(self._failures.secrets.scrubbed(error)) from None
            raise self._failures.of_service(error) from None

    def _check_process(self) -> None:
        """Raise an error in a forked process whose parent has made requests. obstore's threads serve the whole process,
        start with its first request, and do not survive a fork: every request would wait for them forever."""
        pid = os.getpid()
        if self._asking_pids - {pid}:
            raise self._failures.kind(
                f"process {pid} was forked from a process that had already used a state backend",
                path=self.location,
                cause="obstore, the client of the store, does not work in such a process.",
                remedy='Start processes with multiprocessing.get_context("spawn") or "forkserver", or fork them before '
                "the state is used for the first time.",
            )
        self._asking_pids.add(pid)


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


def _token(meta: Any) -> Token:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}
