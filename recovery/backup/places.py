"""Open the place of backups that a user names: a directory, or an address in S3, Google Cloud Storage or Azure.

Addresses are pyarrow's, with its query parameters; the environment variables of each service's own tools supply the
rest. This module constructs the file systems itself, because an address cannot set time limits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from recovery.backup.arrow import arrow, or_arrow_error
from recovery.backup.target import NO_ANSWER_S, DirectoryTarget, ObjectTarget, Target
from recovery.base.addresses import local_path
from recovery.errors import ConfigurationError
from recovery.host.durable import PRIVATE, UMASK

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
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
    if scheme not in SCHEMES:
        raise ConfigurationError(
            f"{scheme}:// is not a place for backups",
            cause="Backups go to a directory, s3://, gs:// or abfs://.",
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
        if scheme == "s3":
            filesystem, root = _s3(parts, query, environ, no_answer_s), f"{parts.hostname or ''}{unquote(parts.path)}"
        elif scheme in ("gs", "gcs"):
            filesystem, root = _gcs(parts, query, environ, no_answer_s), f"{parts.hostname or ''}{unquote(parts.path)}"
        else:
            filesystem, root = _azure(parts, query, environ)
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
    return ObjectTarget(filesystem, root, shown, secrets=secrets, no_answer_s=no_answer_s)


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

    def refuse_unknown(self, shown: str) -> None:
        """Raises ConfigurationError for parameters that were not taken."""
        if self._left:
            raise ConfigurationError(
                f"unknown parameters in the address: {', '.join(sorted(self._left))}",
                path=shown,
                cause="A misspelt parameter would otherwise be ignored.",
                remedy="See docs/backup.md for the known ones.",
            )


def _s3(parts: SplitResult, query: _Query, environ: Mapping[str, str], no_answer_s: float) -> FileSystem:
    options: dict[str, Any] = {name: query.take(name) for name in ("region", "scheme", "endpoint_override")}
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint and options["endpoint_override"] is None:
        # pyarrow reads this from the environment only when it makes the file system from an address itself.
        scheme, separator, host = endpoint.rpartition("://")
        options["endpoint_override"] = host.rstrip("/")
        options["scheme"] = options["scheme"] or (scheme if separator else None)
    if parts.username:
        options |= {"access_key": unquote(parts.username), "secret_key": unquote(parts.password or "")}
    return arrow().fs.S3FileSystem(
        **{name: value for name, value in options.items() if value is not None},
        # All attempts together stay below the limit: when the process ends, S3 waits for a pending request.
        connect_timeout=no_answer_s / (ATTEMPTS + 1),
        request_timeout=no_answer_s / (ATTEMPTS + 1),
        retry_strategy=arrow().fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


def _gcs(parts: SplitResult, query: _Query, environ: Mapping[str, str], no_answer_s: float) -> FileSystem:
    endpoint, scheme = query.take("endpoint_override"), query.take("scheme")
    limit_s = float(query.take("retry_limit_seconds") or no_answer_s / 2)
    anonymous = parts.username == "anonymous"
    if parts.password or (parts.username and not anonymous):
        raise ValueError("gs:// takes no name or password: it uses Google's application default credentials")
    emulator = environ.get("STORAGE_EMULATOR_HOST")
    if endpoint is None and emulator:
        found, separator, host = emulator.rpartition("://")
        endpoint, scheme, anonymous = host.rstrip("/"), found if separator else "http", True
    # Without a limit, requests to a silent service are retried for a quarter of an hour.
    options: dict[str, Any] = {"retry_time_limit": timedelta(seconds=limit_s), "anonymous": anonymous}
    if endpoint is not None:
        options["endpoint_override"] = endpoint
    if scheme is not None:
        options["scheme"] = scheme
    project = query.take("project_id") or environ.get("GOOGLE_CLOUD_PROJECT")
    if project:
        options["project_id"] = project
    return arrow().fs.GcsFileSystem(**options)


def _azure(parts: SplitResult, query: _Query, environ: Mapping[str, str]) -> tuple[FileSystem, str]:
    """Open abfs[s]://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, abfs[s]://ACCOUNT[:KEY]@CONTAINER/PATH or
    abfs[s]://CONTAINER/PATH with the account from the environment."""
    host, user = parts.hostname or "", unquote(parts.username or "")
    path = unquote(parts.path).strip("/")
    account, key = environ.get("AZURE_STORAGE_ACCOUNT", ""), environ.get("AZURE_STORAGE_KEY")
    if host.endswith((".dfs.core.windows.net", ".blob.core.windows.net")):
        named, _, kind = host.partition(".")
        account = named
        root = f"{user}/{path}" if kind.startswith("dfs") else path
    else:
        account = user or account
        root = f"{host}/{path}"
    if parts.password:
        key = unquote(parts.password)
    options: dict[str, Any] = {"account_name": query.take("account_name") or account}
    sas = environ.get("AZURE_STORAGE_SAS_TOKEN")
    if key:
        options["account_key"] = key
    elif sas:
        options["sas_token"] = sas
    authorities = {name: query.take(name) for name in ("blob_storage_authority", "dfs_storage_authority")}
    options |= {name: value for name, value in authorities.items() if value is not None}
    if query.take("enable_tls") == "false":
        options |= {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    return arrow().fs.AzureFileSystem(**options), root


def _secrets(parts: SplitResult, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the texts that must not be shown."""
    names = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN")
    given = parts.password or ""
    for secret in (given, unquote(given), *(environ.get(name, "") for name in names)):
        if len(secret) >= SHORTEST_SECRET:
            yield secret
