"""What a file system, an object store or a catalog says when a sink cannot write to it, as one table: whether the cause
passes (`SinkFailedError`) or a person has to correct something (`SinkRefusedError`)."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection
from dataclasses import dataclass

from recovery.base.printable import one_line
from recovery.errors import RecoveryError, SinkFailedError, SinkRefusedError

_AGAIN = "run the same command again: nothing is lost or written twice."
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m|↳")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries in Rust name an error of the operating system."""


@dataclass(frozen=True, slots=True)
class TargetRefusal:
    """Why a target cannot be written to.

    means: what the target says, and why: why the run ends with `error`, both for the documentation. codes: numbers of
    the operating system's errors, or SQLSTATEs. kinds: how the names of exceptions begin. texts: parts of what is said,
    in lower case.
    """

    means: str
    codes: tuple[int | str, ...]
    error: type[RecoveryError]
    why: str
    cause: str
    remedy: str
    kinds: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def fits(self, kinds: Collection[str], text: str) -> bool:
        """Return whether this is why, by the kinds of an error or by what is said, in lower case."""
        return any(kind.startswith(self.kinds) for kind in kinds) or any(part in text for part in self.texts)


FULL = TargetRefusal(
    "no room: the disk is full, a quota is used up",
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    SinkFailedError,
    "room is made without a change of the flow",
    "The disk is full, or the quota of this user or directory is used up.",
    f"Make room or raise the quota; then {_AGAIN}",
    texts=("no space left", "quota exceeded", "quotaexceeded"),
)
BUSY = TargetRefusal(
    "another process holds the lock",
    (errno.EBUSY, errno.EAGAIN),
    SinkFailedError,
    "the other process ends",
    "Another process uses the output, or hangs while it holds the lock.",
    f"Let that process end; then {_AGAIN}",
)
EXPIRED = TargetRefusal(
    "credentials that have expired",
    (),
    SinkFailedError,
    "a restart reads newer ones",
    "The credentials were valid when the run began, and have expired.",
    f"If they are renewed elsewhere, {_AGAIN}",
    kinds=("AuthorizationExpiredError",),
    texts=("expiredtoken", "token has expired", "expired token"),
)
RIGHTS = TargetRefusal(
    "this user may not write there, or the credentials are wrong",
    (errno.EACCES, errno.EPERM),
    SinkRefusedError,
    "somebody has to grant the right",
    "This user may not write there, or the credentials are wrong.",
    f"Grant access, or correct the credentials; then {_AGAIN}",
    kinds=("ForbiddenError", "UnauthorizedError", "OAuthError"),
    texts=(
        "permission denied", "permissiondenied", "accessdenied", "access denied", "access_denied",
        "accesscontrolexception", "invalidaccesskeyid", "invalid_access_key_id", "signaturedoesnotmatch",
        "signature_does_not_match", "403 forbidden", "401 unauthorized", "status code: 403",
        "status code: 401", "noawscredentials", "no aws credentials",
    ),
)  # fmt: skip
READ_ONLY = TargetRefusal(
    "the file system may only be read",
    (errno.EROFS,),
    SinkRefusedError,
    "somebody has to mount it for writing",
    "The file system is mounted to read only, by intention or after an error of the disk.",
    f"Mount it for writing, after a check of the disk; then {_AGAIN}",
    texts=("read-only file system",),
)
NO_BUCKET = TargetRefusal(
    "no such bucket, warehouse or namespace; no library for such an address",
    (),
    SinkRefusedError,
    "somebody has to make the place, or to correct the address",
    "The address is wrong, the bucket was deleted, or Spark lacks the library for such an address.",
    f"Correct the address, make the bucket, or add the library; then {_AGAIN}",
    kinds=("NoSuchNamespaceError", "NotInstalledError"),
    texts=(
        "nosuchbucket", "bucket does not exist", "unknownstoreexception", "no filesystem for scheme",
        "unsupportedfilesystemexception", "classnotfoundexception",
    ),
)  # fmt: skip
FORM = TargetRefusal(
    "a path that cannot be used: a file in the place of a directory, a name that is too long, a loop of links",
    (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EXDEV, errno.EOPNOTSUPP),
    SinkRefusedError,
    "somebody has to move what is in the way, or to correct the path",
    "Something else lies where the sink writes, or the file system cannot do what the sink needs.",
    f"Move it away, or give the sink another place; then {_AGAIN}",
    texts=("parentnotdirectoryexception", "is not a directory", "not a directory", "filealreadyexistsexception"),
)
ASKS = TargetRefusal(
    "a table, or its catalog, that asks for something else than the sink writes",
    (),
    SinkRefusedError,
    "somebody has to change the table",
    "The table asks something of a writer that this commit does not fulfil, or the catalog does not admit the request.",
    f"Change what the message names, or write to another table; then {_AGAIN}",
    kinds=("DeltaProtocolError", "SchemaMismatchError", "BadRequestError", "ValidationError", "ValidationException"),
    texts=("unsupported table features", "unsupported minimum reader version", "unsupported minimum writer version"),
)
AWAY = TargetRefusal(
    "anything else: the share or the host is gone, the service is down, the disk fails",
    (),
    SinkFailedError,
    "shares, networks and services come back",
    "What the sink writes to is failing or not reachable.",
    f"When it is there again, {_AGAIN}",
)
REFUSALS = (FULL, BUSY, EXPIRED, RIGHTS, READ_ONLY, NO_BUCKET, FORM, ASKS, AWAY)
"""All rows. Of several rows that fit, the first one counts."""


def refusal_of(error: BaseException) -> TargetRefusal:
    """Return the row for an error of a file system, an object store, or the library of a table format."""
    chain = [error, *([error.__cause__] if error.__cause__ is not None else [])]
    kinds = {kind.__name__ for each in chain for kind in type(each).__mro__}
    text = "\n".join(map(str, chain)).lower()
    found = _OS_ERROR.search(text)
    number = int(found[1]) if found is not None else getattr(error, "errno", None)
    by_number = next((each for each in REFUSALS if number in each.codes), None)
    return by_number or next((each for each in REFUSALS if each.fits(kinds, text)), AWAY)


def said(error: BaseException) -> str:
    """Return what an error says in one line, without the colours and arrows of libraries in Rust."""
    lines = (_ESCAPES.sub("", line).strip() for line in str(error).splitlines())
    return one_line(": ".join(line for line in lines if line)) or type(error).__name__


def target_error(error: BaseException, found: str, path: str | None = None) -> RecoveryError:
    """Return the error that a run ends with. found: what was being done, and what the target says."""
    refusal = refusal_of(error)
    return refusal.error(found, path=path, cause=refusal.cause, remedy=refusal.remedy)
