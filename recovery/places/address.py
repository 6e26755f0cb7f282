"""Addresses: the one parser of what names a bucket, a directory by `file://`, or one of Hadoop's file systems.

What is given besides (settings after `?`, an account, credentials) is kept apart, so that an address and an environment
that work for copies work for operational state, too. `recovery.base.addresses` tells addresses from paths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from recovery.base.addresses import incomplete
from recovery.errors import ConfigurationError
from recovery.places.secrets import NAMES, PASSWORD, has_loose_secret, shown_address

KINDS = {"file": "file", "s3": "s3", "gs": "gs", "gcs": "gs",
         "az": "azure", "azure": "azure", "abfs": "azure", "abfss": "azure"}  # fmt: skip
"""The kind of place behind each scheme of an address."""
SETTINGS = {
    "file": frozenset[str](),
    "s3": frozenset({"endpoint", "region", "endpoint_override", "scheme"}),
    "gs": frozenset({"endpoint", "endpoint_override", "scheme", "retry_limit_seconds", "project_id"}),
    "azure": frozenset(
        {"endpoint", "account", "account_name", "blob_storage_authority", "dfs_storage_authority", "enable_tls"}
    ),
}
"""What the address of each kind of place may say after a `?`; a client ignores settings that it has no use for."""
SHARE = "file://"
"""The file system of a share that all hosts have mounted under the same path."""

_AZURE_HOSTS = (".dfs.core.windows.net", ".blob.core.windows.net")
_FILE_SYSTEM = re.compile(r"(?P<system>(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<authority>[^/?#]*))(?P<path>[^?#]*)")


@dataclass(frozen=True, slots=True)
class Purpose:
    """What addresses are for. remedy: the forms. more: settings besides those of its kind. begin: begins every message.
    cause: the probable one. holds_credentials: whether an address may."""

    remedy: str
    more: frozenset[str] = frozenset()
    begin: str = ""
    cause: str = "The address is incomplete, or holds a mistake."
    holds_credentials: bool = False


@dataclass(frozen=True, slots=True)
class PlaceAddress:
    """A parsed address. text: as it was given. account: of Azure. user, password: credentials in it."""

    text: str
    kind: str
    bucket: str
    path: str
    account: str | None = None
    user: str | None = None
    password: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The address as it was given, without credentials and settings."""
        return shown_address(self.text)

    @property
    def location(self) -> str:
        """The place's one name, however its address is written."""
        return f"{self.kind}://{self.bucket}{'/' if self.bucket and self.path else ''}{self.path}"


def is_uri(text: object) -> bool:
    """Whether a place is named by an address instead of a path."""
    return isinstance(text, str) and "://" in text


def parse_address(text: str, purpose: Purpose) -> PlaceAddress:
    """Return the parts of `s3://bucket/path?endpoint=…`. Raises ConfigurationError, which repeats no secrets."""

    def refused(why: str, remedy: str = purpose.remedy) -> ConfigurationError:
        return ConfigurationError(f"{purpose.begin}{why}", path=shown_address(text), cause=purpose.cause, remedy=remedy)

    if has_loose_secret(text):
        raise refused(
            "its credentials contain a character that ends them, or no @ stands behind them",
            "Write /, ? and # in a key as %2F, %3F and %23; better, leave credentials to the environment: see "
            "docs/backup.md.",
        )
    try:
        parts = urlsplit(text)
    except ValueError:
        # The parser's own text may repeat credentials.
        raise refused("it is not an address") from None
    kind = KINDS.get(parts.scheme)
    if kind is None:
        raise refused(f"{parts.scheme}:// is not one of {', '.join(f'{each}://' for each in KINDS)}")
    if "#" in text:
        # The rest is not a part of a path, so two addresses would name one place.
        raise refused("it holds a #, which ends the path", "Write # as %23 if it is part of a name.")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    wrong = _objection(parts, kind, settings, purpose)
    if wrong is not None:
        raise refused(wrong)
    if kind == "file":
        return PlaceAddress(text, kind, "", unquote(parts.path), settings=settings)
    bucket, account, path = parts.netloc.rpartition("@")[2], None, unquote(parts.path).strip("/")
    if kind == "azure":
        bucket, account, path = azure_place(parts)
        account = settings.get("account_name") or settings.get("account") or account
    if not bucket:
        raise refused(f"it names no bucket or container: {parts.scheme}://BUCKET/PATH")
    user = None if kind == "azure" else parts.username
    return PlaceAddress(text, kind, bucket, path, account, _decoded(user), _decoded(parts.password), settings)


def _objection(parts: SplitResult, kind: str, settings: Mapping[str, str], purpose: Purpose) -> str | None:
    """Return why the parts of an address cannot be used, None if they can."""
    if not purpose.holds_credentials:
        named = parts.password is not None or (parts.username is not None and kind != "azure")
        if named or any(NAMES.search(name) for name in settings):
            return "credentials do not belong into an address, which is printed and logged"
    elif kind == "gs" and (parts.password or parts.username not in (None, "anonymous")):
        return "gs:// takes no name or password: it uses Google's application default credentials"
    known = SETTINGS[kind] | purpose.more - ({"create"} if kind != "file" else set())
    if not settings.keys() <= known:
        return f"unknown settings {sorted(settings.keys() - known)}; known are {', '.join(sorted(known)) or 'none'}"
    if kind == "file":
        whole = parts.netloc in ("", "localhost") and parts.path.strip("/")
        return None if whole else "it names no path: three slashes stand between file: and the path, file:///PATH"
    return "a port stands behind the bucket" if ":" in parts.netloc.rpartition("@")[2] else None


def _decoded(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def azure_place(parts: SplitResult) -> tuple[str, str | None, str]:
    """Return container, account and path of an Azure address: CONTAINER@ACCOUNT.dfs.core.windows.net/PATH,
    ACCOUNT.blob.core.windows.net/CONTAINER/PATH, ACCOUNT@CONTAINER/PATH or CONTAINER/PATH."""
    host, user = parts.hostname or "", unquote(parts.username or "")
    path = unquote(parts.path).strip("/")
    if host.endswith(_AZURE_HOSTS):
        account, _, kind = host.partition(".")
        if kind.startswith("dfs") and user:
            return user, account, path
        container, _, path = path.partition("/")
        return container, account, path
    return host, user or None, path


def file_system(text: str, what: str) -> tuple[str, str] | None:
    """Return the file system and the path of a complete address, such as `s3a://bucket` and `/out`; None for any other
    text. what: names it in an error. Raises ConfigurationError for an address with a password, or without a place."""
    if text.lower().startswith(SHARE):
        path = text[len(SHARE) :]
        if not path.startswith("/") or path.strip("/") == "":
            raise incomplete(text, what, "Write file:///mnt/share/out, with three slashes, for a share of all hosts.")
        return SHARE, path
    found = _FILE_SYSTEM.fullmatch(text)
    if found is None:
        return None
    authority, path = found["authority"], "/" + found["path"].strip("/")
    user, at, _ = authority.rpartition("@")
    if at and ":" in user:
        # Show no more of it: it contains a password.
        raise ConfigurationError(
            f"{what}: the address contains a password",
            cause="Addresses are written to logs and to the recovery partitions.",
            remedy="Give credentials as settings of Spark, such as spark.hadoop.fs.s3a.access.key in a "
            "--properties-file.",
        )
    if not authority and found["scheme"].lower() != "hdfs":
        raise incomplete(text, what, "Name the bucket or host: s3a://bucket/out.")
    return found["system"], path


def split_uri(uri: str) -> tuple[str, str]:
    """Return the file system and the decoded path of a URI as Spark writes it: `file:` and `/a b` of `file:///a%20b`,
    `s3a://bucket` and `/a`. A ? or # is part of the path."""
    system, path = split_system(uri)
    return system.removesuffix("//"), unquote(path)


def split_system(uri: str) -> tuple[str, str]:
    """Return the file system and the path of a URI that Hadoop is given, both as they were written: `s3a://bucket` and
    `/a%20b`, `file:` and `/a`. The file system has the password."""
    scheme, _, rest = uri.partition(":")
    if not rest.startswith("//"):
        return f"{scheme}:", rest
    password = PASSWORD.search(uri)
    at = uri.find("/", password.end() if password else len(scheme) + 3)
    return (uri, "/") if at < 0 else (uri[:at], uri[at:])
