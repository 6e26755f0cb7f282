"""Choosing and opening the backend of operational state."""

from __future__ import annotations

import os
from pathlib import Path

from recovery.base.addresses import local_path
from recovery.base.clock import Clock
from recovery.base.intervals import parse_interval
from recovery.errors import ConfigurationError, StateBackendError
from recovery.host.durable import PRIVATE, make_directories
from recovery.operational.backends.backend import Backend, DirectoryBackend
from recovery.operational.backends.custom import StateStore, StoreObjects
from recovery.operational.backends.leases import LeaseTerms
from recovery.operational.backends.owned import OwnerBackend
from recovery.operational.backends.remote import RemoteBackend
from recovery.operational.backends.retry import RetryPolicy
from recovery.places.address import PlaceAddress, Purpose, is_uri, parse_address
from recovery.places.directory import DirectoryDocuments
from recovery.places.documents import BucketDocuments
from recovery.places.protocol import DocumentStore

VARIABLE = "RECOVERY_STATE_BACKEND"
DIRECTORY = "recovery"
"""The name of the default backend: the recovery directory itself."""

TIMEOUT = "20s"
_FORMS = "Write it like file:///srv/state, s3://bucket/prefix, azure://container/prefix or gs://bucket/prefix."
STATE = Purpose(
    more=frozenset({"timeout", "lock_timeout_seconds", "lock_retry_seconds", "create"}),
    begin="the state backend cannot be used: ",
    cause="The URI in --state-backend or RECOVERY_STATE_BACKEND is wrong.",
    remedy=_FORMS,
)
"""The addresses of operational state. Only a directory can be created."""

Location = str | os.PathLike[str]
StoreBackend = DirectoryBackend | OwnerBackend
"""The operational state that lies with the partitions of a store."""


def choose_backend(
    directory: Location | None, backend: str | StateStore | StoreBackend | None, clock: Clock, retry: RetryPolicy
) -> Backend:
    """Return the backend that `choose` names, the given one, or one on a store that the caller provides. Raises as
    `open_backend`."""
    if isinstance(backend, DirectoryBackend | OwnerBackend):
        return backend
    if backend is None or isinstance(backend, str):
        return open_backend(choose(directory, backend), clock, retry)
    return RemoteBackend(StoreObjects(backend), clock, retry, LeaseTerms())


def choose(directory: Location | None, backend: str | None) -> Location:
    """Return where operational state is: in `backend`, in what RECOVERY_STATE_BACKEND names, or in the recovery
    directory.

    Raises ConfigurationError if none of them is given.
    """
    chosen = backend or ("" if is_uri(directory) else os.environ.get(VARIABLE, ""))
    if chosen and chosen != DIRECTORY:
        if not is_uri(chosen):
            raise ConfigurationError(
                f"{chosen!r:.120} is not a state backend",
                cause="A state backend is named by a URI; give a recovery directory as DIR instead.",
                remedy=_FORMS,
            )
        return chosen
    if not directory:
        raise ConfigurationError(
            "no recovery directory was named",
            cause="Neither a directory nor a state backend is given.",
            remedy="Name the directory created by: python -m recovery init DIR N",
        )
    if not is_uri(directory):
        local_path(directory)
    return directory


def open_backend(location: Location, clock: Clock, retry: RetryPolicy) -> Backend:
    """Return the backend at a location: a recovery directory, or a URI. Raises ConfigurationError or
    NoPartitionsError."""
    if isinstance(location, str) and is_uri(location):
        address = parse_address(location, STATE)
        terms = LeaseTerms(
            _seconds(address, "lock_timeout_seconds", "10"), _seconds(address, "lock_retry_seconds", "1")
        )
        return RemoteBackend(open_objects(address), clock, retry, terms)
    return DirectoryBackend(local_path(location), clock, retry)


def open_objects(address: PlaceAddress) -> DocumentStore:
    """Return the place of operational state that an address names. Raises ConfigurationError."""
    timeout_s = _seconds(address, "timeout", TIMEOUT)
    if address.kind != "file":
        return BucketDocuments(address, timeout_s, StateBackendError, address.location)
    create = address.settings.get("create", "0")
    if create not in ("0", "1"):
        raise ConfigurationError(f"{STATE.begin}create is 0 or 1", cause=STATE.cause, remedy=STATE.remedy)
    if create == "1":
        make_directories(Path(address.path), PRIVATE)
    return DirectoryDocuments(Path(address.path), timeout_s)


def _seconds(address: PlaceAddress, name: str, default: str) -> float:
    return parse_interval(address.settings.get(name, default))
