"""The lease of a store: which directory may write to a place of backups and publish output.

A document in the place, `lease.json`, names the store's writer. The lease's term grows by one with each writer. The
lease is only written conditionally, so of several writers that want the next term, one gets it.

1. A run claims a new term when it starts. The run may claim it if the place has none yet, or if the run's directory
   held the term before: `lease.json` in the directory has the random nonce of that term. A copy of the directory has
   the nonce too; whichever of the two directories starts first takes the lease from the other.
2. A promotion claims a new term from the writer that the standby last saw. The promotion reads the place after it has
   claimed the term. So does `run --from --takeover`, whoever holds the term. A takeover by a directory that holds
   partitions and never held a term, such as a restored one, claims it too, but does not know what was stored since the
   directory was restored.
3. A run checks, for each epoch, that its term is the place's: after it has stored the epoch there, and before it
   publishes the epoch's output. So a published epoch was in the place before a later term began, and whoever read the
   place after that has found the epoch. No clock is compared.
4. Each backup says under which term it was made, so the latest one is known without clocks.
5. `recovery backup` goes on under the term that its directory holds, or claims one: see `recovery.backup.writer`.
6. A run is refused if its directory lacks epochs that the place has: before it claims a term, which leaves the writer
   alone, and once more afterwards. So an old copy of a directory does not continue unnoticed. The first run after 2 is
   not refused: the directory has read the place, and what the writer before stored after that came too late.

A run that does not wait for 3 before it publishes may publish epochs that its successor does not know.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from recovery.backup.conditional import Documents
from recovery.base.clock import Clock
from recovery.base.printable import one_line
from recovery.base.untrusted_json import Count, Moment, decode_json
from recovery.errors import (
    BackupDamagedError,
    ForeignPartitionError,
    TakenOverError,
    UnsupportedVersionError,
)
from recovery.host.beside import alone_beside, read_beside, remove_beside, write_beside
from recovery.host.durable import modes_beside
from recovery.host.storage_errors import storage_errors
from recovery.places.address import SHARE
from recovery.places.protocol import Conflict, Place, Token, UnreadableError

NAME = "lease.json"
BACKUP = "backup"
"""The purpose of a term that `recovery backup` claimed."""
CHECK = "lease-check.json"
FORMAT = 1
LARGEST = 1 << 20
PLACES = 32
"""The number of places for which a directory remembers its terms."""
WAIT_S = 60.0
"""How long a claim waits for another claim of the same directory."""

_Text = Annotated[str, msgspec.Meta(max_length=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Who may write, since when.

    execution: the number of the run's; 0 for a promotion. sync: the run publishes an epoch only when it is in the
    place. ended: the run has ended, after this epoch, and everything is in the place.
    """

    store_id: _Text
    term: Count
    nonce: _Text
    execution: Count
    host: _Text
    pid: Count
    purpose: _Text
    since_ms: Moment
    sync: bool
    ended: Count | None = None

    @property
    def holder(self) -> str:
        """Who holds the term, for people."""
        who = f"execution {self.execution}" if self.execution else f"a {self.purpose}"
        return one_line(f"{who} on {self.host} (process {self.pid})")

    def as_json(self) -> dict[str, Any]:
        """Return the term for programs."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "nonce"}


@dataclass(frozen=True, slots=True)
class _LeaseDocument:
    """The document. format: only grows."""

    format: Count
    lease: Term


@dataclass(frozen=True, slots=True)
class _Held:
    """What a directory knows of the term that it holds at a place, or is about to claim. before: the term before, which
    is still the place's if the claim was cut off. directory: the inode of the directory, which a copy of the directory
    does not have; "" if an older version claimed. others: the same for other places, the one claimed last first.
    address: by which the place of a bucket is found again; "" for a directory, for an address that holds credentials,
    and if an older version claimed."""

    place: _Text
    nonce: _Text
    before: Term | None
    directory: _Text = ""
    others: tuple[_Held, ...] = ()
    address: _Text = ""

    @property
    def nonces(self) -> tuple[str, ...]:
        """The nonces of the terms that the directory may continue from."""
        return (self.nonce, _nonce(self.before))


class PublishingLease:
    """A term that this process claimed. before: the term before."""

    def __init__(self, documents: Documents, term: Term, before: Term | None) -> None:
        self.term = term
        self.before = before
        self._documents = documents

    def check(self) -> None:
        """Check that no later term has begun: what was stored in the place by now is known to every later writer.

        Raises TakenOverError, BackupTargetError, or BackupDamagedError.
        """
        self._own()

    def end(self, epoch: int) -> None:
        """Record that the run has ended after this epoch and that everything is in the place. Raises what `check`
        raises."""
        token = self._own()
        try:
            self._documents.put(NAME, _encode(replace(self.term, ended=epoch)), token)
        except Conflict:
            self._own()

    def _own(self) -> Token:
        found, token = _read(self._documents)
        if found is None or found.nonce != self.term.nonce:
            raise taken_over(self._documents.shown, found)
        return token


def read_term(target: Place) -> Term | None:
    """Return the term of a place, None if nobody claimed one. Raises BackupTargetError or BackupDamagedError."""
    try:
        return _decode(b"".join(target.read(NAME)), target.shown)
    except FileNotFoundError:
        return None
    except UnreadableError as error:
        raise _damaged(target.shown, str(error)) from error


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims a term: the directory of a run whose execution of this number begins, or one that is promoted.

    least: the newest term under which a backup at the place was made. The next term is higher, even if the lease was
    removed.
    """

    directory: Path
    store_id: str
    purpose: str
    pid: int
    execution: int = 0
    sync: bool = False
    least: int = 0


def claim(
    documents: Documents,
    claimant: Claimant,
    clock: Clock,
    random_id: Callable[[], str],
    *,
    takeover: bool = False,
    seen: str | None = None,
    renews: bool = False,
    check: Callable[[bool], None] = lambda _: None,
    dry_run: bool = False,
) -> PublishingLease:
    """Claim the next term of a place. takeover: whoever holds it now, but not for a directory that was taken over: it
    lacks what was written since. seen: the nonce of the term that may be ended; "" if there was none. renews: also if
    the claimant, which is no run, holds the term; else it continues with that. check: called before anything is
    written, with whether this directory holds that term by a takeover and so has all that counts; raises if the term
    shall not end. dry_run: write nothing, and return the lease that would be claimed.

    A promotion that claimed the term before continues with that term. Raises TakenOverError if another writer holds it
    or was faster; ForeignPartitionError for a place of another store, ConfigurationError if the store of the place
    cannot write conditionally, BackupTargetError, BackupDamagedError or StorageError.
    """
    with alone_beside(claimant.directory, WAIT_S):
        found, token = _read(documents)
        if found is not None and found.store_id != claimant.store_id:
            raise ForeignPartitionError(
                f"it belongs to store {found.store_id}, and this is store {claimant.store_id}", path=documents.shown
            )
        held = _held_at(claimant.directory, documents, found)
        if not claimant.execution and not renews and found is not None and _holds(held, found, claimant.directory):
            # An earlier attempt of this promotion claimed it, or an earlier backup.
            return PublishingLease(documents, found, None if held is None else held.before)
        known = {"" if seen is None else seen, *(() if held is None else held.nonces)}
        if found is not None and found.nonce not in known and not (takeover and held is None):
            raise taken_over(documents.shown, found, claimant.purpose, is_replaced=held is not None or seen is not None)
        if found is None and "" not in known:
            raise taken_over(documents.shown, found, claimant.purpose)
        check(held is not None and found is not None and found.nonce == held.nonce and not found.execution)
        if not dry_run:
            documents.check(CHECK)
        term = Term(
            store_id=claimant.store_id,
            term=max(found.term if found else 0, claimant.least) + 1,
            nonce=random_id(),
            execution=claimant.execution,
            host=socket.gethostname(),
            pid=claimant.pid,
            purpose=claimant.purpose,
            since_ms=clock.wall_ms(),
            sync=claimant.sync,
        )
        if not dry_run:
            _put_claim(documents, claimant, term, found, token)
        return PublishingLease(documents, term, found)


def _put_claim(documents: Documents, claimant: Claimant, term: Term, found: Term | None, token: Token) -> None:
    # Before the claim: if this process is killed after it, the directory still holds the term.
    before = _read_all_held(claimant.directory)
    held = _Held(
        documents.location, term.nonce, found, _inode(claimant.directory), address=documents.address
    )  # fmt: skip
    others = tuple(each for each in before if each.place != held.place)
    _write_held(claimant.directory, (held, *others[: PLACES - 1]))
    try:
        documents.put(NAME, _encode(term), token)
    except Conflict:
        # It may be this very write, whose answer never arrived.
        now, _ = _read(documents)
        if now is None or now.nonce != term.nonce:
            # The directory has never held it.
            _write_held(claimant.directory, before)
            raise taken_over(documents.shown, now, claimant.purpose) from None


def look_at_term(documents: Documents, directory: Path) -> tuple[Term | None, bool]:
    """Return the term of a place, None if nobody claimed one, and whether this directory holds it. A copy of the
    directory that claimed the term does not hold it. Raises BackupTargetError, BackupDamagedError or StorageError."""
    found, _ = _read(documents)
    return found, found is not None and _holds(_held_at(directory, documents, found), found, directory)


def places_of(directory: Path) -> list[str]:
    """Return the paths or addresses of the places whose terms a directory has claimed, the one claimed last first.
    Raises BackupDamagedError, UnsupportedVersionError or StorageError."""
    # The location of a directory is its path as it is: nothing in it is percent-encoded.
    return [each.address or each.place.removeprefix(SHARE) for each in _read_all_held(directory)]


def may_continue(documents: Documents, directory: Path, found: Term | None) -> bool:
    """Return whether no other directory holds this term of a place; a copy of the one that holds it is none."""
    held = _held_at(directory, documents, found)
    return found is None or (held is not None and found.nonce == held.nonce)


def claim_to_restore(
    documents: Documents, directory: Path, clock: Clock, random_id: Callable[[], str], *, takeover: bool
) -> PublishingLease | None:
    """Claim the next term of a place for a directory that is restored from it next; None if nobody holds one. The claim
    may be repeated. takeover, and what is raised: see `claim`."""
    found, _ = _read(documents)
    if found is None:
        return None
    claimant = Claimant(directory, found.store_id, "takeover", os.getpid())
    return claim(documents, claimant, clock, random_id, takeover=takeover)


def _nonce(term: Term | None) -> str:
    return "" if term is None else term.nonce


def _holds(held: _Held | None, found: Term, directory: Path) -> bool:
    return held is not None and found.nonce == held.nonce and held.directory in ("", _inode(directory))


def _inode(directory: Path) -> str:
    with storage_errors(directory):
        return str(directory.stat().st_ino)


def taken_over(shown: str, found: Term | None, purpose: str = "run", *, is_replaced: bool = True) -> TakenOverError:
    """Return the error for a directory that does not hold the term of a place. purpose: what it was to be claimed for.
    is_replaced: the directory held a term before."""
    if found is None:
        return TakenOverError(
            "its lease is gone", path=shown, cause="Somebody removed lease.json, or emptied the place."
        )
    is_backup = purpose == BACKUP
    if is_replaced:
        error = TakenOverError(f"{found.holder} is the store's writer now, with term {found.term}", path=shown)
        if is_backup:
            error.cause = "recovery promote, or --takeover, has given the place to another directory since."
            error.remedy = (
                "Let the other directory go on, and end this job. To keep this directory as well, back it up to a "
                "place of its own. To take the store back, restore the place into a new directory, and give --takeover "
                "there."
            )
        return error
    command = "the backup" if is_backup else "it"
    return TakenOverError(
        f"{found.holder} is the store's writer, with term {found.term}, and this directory is not the one that it used",
        path=shown,
        cause="The directory was restored or copied, or the other directory is still in use.",
        remedy=f"If nothing runs there any more, or it shall be stopped: run {command} with --takeover."
        + (" Else give this directory a place of its own." if is_backup else ""),
    )


def _read(documents: Documents) -> tuple[Term | None, Token]:
    found = documents.get(NAME)
    return (None, None) if found is None else (_decode(found.content, documents.shown), found.token)


def _encode(term: Term) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_LeaseDocument(FORMAT, term)), indent=1) + b"\n"


def _decode(content: bytes, shown: str) -> Term:
    stored = decode_json(content, lambda why: _damaged(shown, why), _LeaseDocument)
    if stored.format > FORMAT:
        raise UnsupportedVersionError(f"{NAME} has format {stored.format}", path=shown)
    return stored.lease


def _damaged(shown: str, why: str) -> BackupDamagedError:
    return BackupDamagedError(
        f"{NAME} cannot be read: {why}",
        path=shown,
        cause="The file was edited, or another program wrote it.",
        remedy="Make sure that one directory at most is in use, then remove the file.",
    )


def _held_at(directory: Path, documents: Documents, found: Term | None) -> _Held | None:
    """Return what a directory knows of a place, None if it never held a term there. found: the term of the place, which
    identifies the place if its address has changed."""
    known = _read_all_held(directory)
    of_term = (each for each in known if found is not None and each.nonce == found.nonce)
    of_place = (each for each in known if each.place == documents.location)
    return next(of_term, None) or next(of_place, None)


def _read_all_held(directory: Path) -> tuple[_Held, ...]:
    content = read_beside(directory / NAME, LARGEST)
    if content is None:
        return ()
    found = decode_json(content, lambda why: _damaged(str(directory), why), _Held)
    return (replace(found, others=()), *(replace(each, others=()) for each in found.others))


def _write_held(directory: Path, held: Sequence[_Held]) -> None:
    if not held:
        remove_beside(directory / NAME)
        return
    first, *others = held
    content = msgspec.json.encode(replace(first, others=tuple(others)))
    write_beside(directory / NAME, content, modes_beside(directory / "part-0.sqlite3"))
