"""Open the place of backups that a user names: a directory, or an address in S3, Google Cloud Storage or Azure.

Addresses are those of operational state, and take pyarrow's query parameters besides; `recovery.host.buckets` knows
what the environment of each service's own tools supplies. This module constructs the file systems itself, because an
address cannot set time limits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from recovery.backup.arrow import arrow, or_arrow_error
from recovery.backup.target import NO_ANSWER_S, DirectoryTarget, ObjectTarget, Target
from recovery.base.addresses import has_backups, local_path
from recovery.errors import ConfigurationError
from recovery.host.buckets import (
    AZURE_KEYS,
    AZURE_TOKENS,
    KINDS,
    Access,
    azure_access,
    azure_place,
    endpoint_of,
    gs_access,
    s3_access,
)
from recovery.host.durable import PRIVATE, UMASK

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

ATTEMPTS = 3
SHORTEST_SECRET = 4


def open_target(
    place: str,
    environ: Mapping[str, str] = os.environ,
    *,
    no_answer_s: float = NO_ANSWER_S,
    umask: bool = False,
) -> Target:
    """Return the place of backups that a path or an address names, without contacting it. Raises ConfigurationError.

    umask: let others read the directories that are made, as far as this process's umask allows.
    """
    modes = UMASK if umask else PRIVATE
    if not place:
        raise ConfigurationError(
            "no destination for backups is given",
            cause="It is empty; a variable of the shell may not be set.",
            remedy="Give a path, or an address such as s3://BUCKET/PATH.",
        )
    scheme, separator, _ = place.partition("://")
    if not separator:
        return DirectoryTarget(local_path(place), modes)
    try:
        parts = urlsplit(place)
    except ValueError as error:
        raise ConfigurationError(
            f"it is not an address: {error}",
            path=shown_address(place),
            cause="",
            remedy="See docs/backup.md for the forms.",
        ) from None
    if scheme == "file":
        return DirectoryTarget(_path_of(parts, place), modes)
    kind = KINDS.get(scheme)
    if kind is None:
        raise ConfigurationError(
            f"{scheme}:// is not a place for backups",
            cause="Backups go to a directory, s3://, gs:// or azure://, which may be written az:// or abfs://.",
            remedy="Give a path, or an address that begins with one of these.",
        )
    if _has_loose_secret(place):
        raise ConfigurationError(
            "its credentials contain a character that ends them",
            path=shown_address(place),
            cause="A /, ? or # in a key ends the first part of an address.",
            remedy="Write it as %2F, %3F or %23; better, leave credentials to the environment: see docs/backup.md.",
        )
    if "#" in place:
        # The rest is not a part of a path, so two addresses would name one place.
        raise ConfigurationError(
            "it holds a #",
            path=shown_address(place),
            cause="A # ends an address; the text after it would be ignored.",
            remedy="Write it as %23 if it is part of a name.",
        )
    query = _Query(parts)
    secrets = list(_secrets(parts, environ))
    shown = shown_address(place)
    try:
        filesystem, root, access = {"s3": _s3, "gs": _gcs, "azure": _azure}[kind](parts, query, environ, no_answer_s)
        query.refuse_unknown(shown)
    except or_arrow_error(OSError, ValueError, TypeError) as error:
        if isinstance(error, ConfigurationError):
            raise
        text = str(error)
        for secret in secrets:
            text = text.replace(secret, "***")
        raise ConfigurationError(
            text, path=shown, cause="The address is incomplete.", remedy="See docs/backup.md for the forms."
        ) from None
    if not root.strip("/"):
        raise ConfigurationError(
            "it names no bucket", path=shown, cause="The address is incomplete.", remedy=f"{scheme}://BUCKET/PATH"
        )
    secrets += access.secrets
    return ObjectTarget(filesystem, root, shown, secrets=secrets, no_answer_s=no_answer_s, looked_at=access.looked_at)


def lasting_place(place: str) -> str:
    """Return an address by which a later process finds a place again: a path as an absolute one. Raises
    ConfigurationError for an address with credentials, which would be written into files."""
    target = open_target(place)
    if isinstance(target, DirectoryTarget):
        return str(target.root.absolute())
    parts = urlsplit(place)
    if parts.password is not None or (parts.username is not None and KINDS.get(parts.scheme) == "s3"):
        raise ConfigurationError(
            "the address holds credentials",
            path=target.shown,
            cause="It is kept in a file, so that other processes and later commands find the place.",
            remedy="Leave them out, and give them by the environment: see docs/backup.md.",
        )
    return place


def is_place(text: str) -> bool:
    """Return whether a text names a place of backups, and not a recovery directory: an address, or a directory of
    manifests."""
    return "://" in text or has_backups(Path(text))


def shown_address(place: str) -> str:
    """Return the address without credentials and query: safe in messages and logs."""
    bare = place.partition("?")[0]
    if _has_loose_secret(place):
        return f"{place.partition('://')[0]}://…"
    return re.sub(r"://[^/@]*:.*@", "://", bare) if "://" in bare else place


def _has_loose_secret(place: str) -> bool:
    """Whether a name and a key stand before an @ that no address format accepts as their end."""
    _, separator, rest = place.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    return bool(separator) and ":" in host and "@" not in host and "@" in rest


def _path_of(parts: SplitResult, place: str) -> Path:
    if parts.netloc not in ("", "localhost") or not parts.path or parts.query or parts.fragment:
        raise ConfigurationError(
            "it does not name a directory of this machine",
            path=shown_address(place),
            cause="Three slashes stand between file: and the path, and nothing follows the path.",
            remedy="Write file:///PATH, or the path alone.",
        )
    return Path(unquote(parts.path))


class _Query:
    """The query parameters of an address; parameters that no code takes are mistakes."""

    def __init__(self, parts: SplitResult) -> None:
        self._left = dict(parse_qsl(parts.query, keep_blank_values=True))

    def take(self, name: str) -> str | None:
        """Return the value of a parameter, None if it is not given."""
        return self._left.pop(name, None)

    def gives(self, *names: str) -> bool:
        """Whether one of these parameters is given."""
        return any(name in self._left for name in names)

    def refuse_unknown(self, shown: str) -> None:
        """Raises ConfigurationError for parameters that were not taken."""
        if self._left:
            raise ConfigurationError(
                f"unknown parameters in the address: {', '.join(sorted(self._left))}",
                path=shown,
                cause="A misspelt parameter would otherwise be ignored.",
                remedy="See docs/backup.md for the known ones.",
            )


Opened = tuple["FileSystem", str, Access]
"""A file system, the path of the place in it, and how it is reached."""


def _s3(parts: SplitResult, query: _Query, environ: Mapping[str, str], no_answer_s: float) -> Opened:
    access = s3_access(environ)
    endpoint, scheme = _endpoint(query, access)
    if parts.username:
        access = replace(
            access, key_id=unquote(parts.username), secret=unquote(parts.password or ""), token=None,
            looked_at="Its credentials are those of the address.",
        )  # fmt: skip
    options = {
        "region": query.take("region") or access.region,
        "endpoint_override": endpoint,
        "scheme": scheme,
        "access_key": access.key_id,
        "secret_key": access.secret,
        "session_token": access.token,
    }
    filesystem = arrow().fs.S3FileSystem(
        **{name: value for name, value in options.items() if value is not None},
        # All attempts together stay below the limit: when the process ends, S3 waits for a pending request.
        connect_timeout=no_answer_s / (ATTEMPTS + 1),
        request_timeout=no_answer_s / (ATTEMPTS + 1),
        retry_strategy=arrow().fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )
    return filesystem, f"{parts.hostname or ''}{unquote(parts.path)}", access


def _gcs(parts: SplitResult, query: _Query, environ: Mapping[str, str], no_answer_s: float) -> Opened:
    access = gs_access(environ)
    given = query.gives("endpoint", "endpoint_override")
    endpoint, scheme = _endpoint(query, access)
    limit_s = float(query.take("retry_limit_seconds") or no_answer_s / 2)
    named = parts.username == "anonymous"
    if parts.password or (parts.username and not named):
        raise ValueError("gs:// takes no name or password: it uses Google's application default credentials")
    anonymous = named or (access.anonymous and not given)
    # Without a limit, requests to a silent service are retried for a quarter of an hour.
    options: dict[str, Any] = {"retry_time_limit": timedelta(seconds=limit_s), "anonymous": anonymous}
    if endpoint is not None:
        options["endpoint_override"] = endpoint
    if scheme is not None:
        options["scheme"] = scheme
    project = query.take("project_id") or environ.get("GOOGLE_CLOUD_PROJECT")
    if project:
        options["project_id"] = project
    return arrow().fs.GcsFileSystem(**options), f"{parts.hostname or ''}{unquote(parts.path)}", access


def _azure(parts: SplitResult, query: _Query, environ: Mapping[str, str], _: float) -> Opened:
    container, account, path = azure_place(parts)
    account = query.take("account_name") or query.take("account") or account
    access = azure_access(environ, account)
    if parts.password:
        access = replace(
            access, secret=unquote(parts.password), token=None, looked_at="Its credentials are those of the address."
        )
    options: dict[str, Any] = {"account_name": access.account or ""}
    if access.secret:
        options["account_key"] = access.secret
    elif access.token:
        options["sas_token"] = access.token
    endpoint = query.take("endpoint") or access.endpoint
    if endpoint is not None:
        scheme, authority = endpoint_of(endpoint)
        # pyarrow puts the account before an authority that begins with a dot, and behind any other.
        blob = authority.removeprefix(str(access.account)) if authority.startswith(f"{access.account}.") else authority
        options |= {"blob_storage_authority": blob, "dfs_storage_authority": blob.replace(".blob.", ".dfs.", 1)}
        options |= {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    authorities = {name: query.take(name) for name in ("blob_storage_authority", "dfs_storage_authority")}
    options |= {name: value for name, value in authorities.items() if value is not None}
    if query.take("enable_tls") == "false":
        options |= {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    return arrow().fs.AzureFileSystem(**options), f"{container}/{path}" if container else "", access


def _endpoint(query: _Query, access: Access) -> tuple[str | None, str | None]:
    """Return authority and scheme of another server: what the address names comes before the environment."""
    given, other, scheme = query.take("endpoint"), query.take("endpoint_override"), query.take("scheme")
    if given is None and other is not None:
        return other, scheme
    url = given or access.endpoint
    if url is None:
        return None, scheme
    found, authority = endpoint_of(url)
    return authority, scheme or found


def _secrets(parts: SplitResult, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts that must not be shown."""
    names = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", *AZURE_KEYS, *AZURE_TOKENS)
    given = parts.password or ""
    for secret in (given, unquote(given), *(environ.get(name, "") for name in names)):
        if len(secret) >= SHORTEST_SECRET:
            yield secret
