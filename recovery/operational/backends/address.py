"""Addresses of operational state outside the recovery directory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from recovery.base.intervals import parse_interval
from recovery.errors import ConfigurationError
from recovery.host.buckets import KINDS, azure_place

SCHEMES = ("file", *KINDS)
TIMEOUT = "20s"
_SETTINGS = {
    "file": ("create",),
    "s3": ("endpoint", "region", "endpoint_override", "scheme"),
    "azure": ("endpoint", "account", "account_name"),
    "gs": ("endpoint", "endpoint_override", "scheme"),
}
"""The settings of each kind of store. Those with two names have one that addresses of backups use too."""
_OURS = ("timeout", "lock_timeout_seconds", "lock_retry_seconds")
SECRETS = re.compile(r"KEY|SECRET|TOKEN|SAS|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Matches the names of what must not be shown."""


class Address(NamedTuple):
    """A parsed URI of a backend."""

    scheme: str
    bucket: str
    prefix: str
    settings: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The URI without settings."""
        return f"{self.scheme}://{self.bucket}{'/' if self.bucket and self.prefix else ''}{self.prefix}"

    def seconds(self, name: str, default: str) -> float:
        """Return one of the settings that are intervals, in seconds."""
        return parse_interval(self.settings.get(name, default))


def is_uri(text: object) -> bool:
    """Whether a place is named by a URI instead of the path of a recovery directory."""
    return isinstance(text, str) and "://" in text


def parse_address(uri: str) -> Address:
    """Return the parts of `s3://bucket/prefix?endpoint=…`. Raises ConfigurationError, which repeats no secrets."""
    try:
        parts = urlsplit(uri)
        pairs = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise bad_address("it is not a URI") from None
    if parts.scheme not in SCHEMES:
        raise bad_address(f"there is no backend {parts.scheme!r}")
    kind = KINDS.get(parts.scheme, parts.scheme)
    named = "@" in parts.netloc and (kind != "azure" or parts.password is not None)
    if named or any(SECRETS.search(name) for name in pairs):
        raise bad_address("credentials do not belong into a URI, which is printed and logged")
    if "#" in uri:
        # The rest is not a part of a path, so two addresses would name one place.
        raise bad_address("it holds a #, which ends the path; one in a name is written %23")
    known = {*_OURS, *_SETTINGS[kind]}
    if not pairs.keys() <= known:
        raise bad_address(f"unknown settings {sorted(pairs.keys() - known)}; known are {', '.join(sorted(known))}")
    if parts.scheme == "file":
        if parts.netloc or not parts.path.strip("/"):
            raise bad_address("a file URI names an absolute path: file:///srv/state")
        return Address("file", "", unquote(parts.path), pairs)
    bucket, account, prefix = parts.netloc, None, unquote(parts.path).strip("/")
    if kind == "azure":
        bucket, account, prefix = azure_place(parts)
    if not bucket:
        raise bad_address("it names no bucket or container")
    return Address(kind, bucket, prefix, pairs if account is None else {"account": account, **pairs})


def bad_address(what: str) -> ConfigurationError:
    """Return the error for an address that cannot be used."""
    return ConfigurationError(
        f"the state backend cannot be used: {what}",
        cause="The URI in --state-backend or RECOVERY_STATE_BACKEND is wrong.",
        remedy="Write it like file:///srv/state, s3://bucket/prefix, azure://container/prefix or gs://bucket/prefix.",
    )
