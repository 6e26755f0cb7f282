"""From the path or the address that a user names to the place: for copies, and for documents."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from recovery.base.addresses import has_backups, local_path
from recovery.errors import ConfigurationError
from recovery.host.durable import PRIVATE, UMASK
from recovery.places.address import PlaceAddress, Purpose, is_uri, parse_address
from recovery.places.protocol import NO_ANSWER_S, Place

COPIES = Purpose(
    remedy="Give a path, or an address such as s3://BUCKET/PATH: see docs/backup.md for the forms.",
    holds_credentials=True,
)
"""The addresses of places of backups."""


def open_place(
    place: str,
    environ: Mapping[str, str] = os.environ,
    *,
    no_answer_s: float = NO_ANSWER_S,
    umask: bool = False,
) -> Place:
    """Return the place of backups that a path or an address names, without contacting it. Raises ConfigurationError.

    umask: let others read the directories that are made, as far as this process's umask allows.
    """
    # Most processes that have partitions open reach no place.
    from recovery.places.bucket import open_bucket
    from recovery.places.directory import DirectoryPlace

    if not place:
        raise ConfigurationError(
            "no destination for backups is given",
            cause="The argument is empty; a variable of the shell may not be set.",
            remedy="Give a path, or an address such as s3://BUCKET/PATH.",
        )
    path = directory_of(place)
    if path is not None:
        return DirectoryPlace(path, UMASK if umask else PRIVATE)
    address = copies_address(place)
    assert address is not None, "a path is a directory"
    return open_bucket(address, environ, no_answer_s)


def copies_address(place: str) -> PlaceAddress | None:
    """Return the parts of the address of a place of backups; None for a path. Raises ConfigurationError."""
    return parse_address(place, COPIES) if is_uri(place) else None


def directory_of(place: str) -> Path | None:
    """Return the directory that a path or an address of backups names; None for a bucket. Raises ConfigurationError."""
    address = copies_address(place)
    if address is None:
        return local_path(place)
    return Path(address.path) if address.kind == "file" else None


def refuse_itself(place: str, directory: Path, what: str) -> None:
    """Raise ConfigurationError if a place of backups is this recovery directory, however both are written. what: what
    the place would be of the directory."""
    path = directory_of(place)
    if path is not None and os.path.realpath(path) == os.path.realpath(directory):
        raise ConfigurationError(
            f"the recovery directory would be its own {what}",
            path=place,
            cause="Whatever happens to the partitions happens to a copy beside them.",
            remedy="Name another place, best on another host.",
        )


def lasting_place(place: str) -> str:
    """Return an address by which a later process finds a place again: a path as an absolute one. Raises
    ConfigurationError for an address with credentials, which would be written into files."""
    path = directory_of(place)
    if path is not None:
        return str(path.absolute())
    address = copies_address(place)
    assert address is not None, "a path is a directory"
    if address.password is not None or (address.user is not None and address.kind == "s3"):
        raise ConfigurationError(
            "the address holds credentials",
            path=address.shown,
            cause="The address is kept in a file, so that other processes and later commands find the place.",
            remedy="Leave the credentials out of the address, and give them by the environment: see docs/backup.md.",
        )
    return place


def is_place(text: str) -> bool:
    """Return whether a text names a place of backups, and not a recovery directory: an address, or a directory of
    manifests."""
    return is_uri(text) or has_backups(Path(text))
