"""What `recovery erase` has done at one copy, and what keeps it from doing the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recovery.base.wording import counted
from recovery.errors import RecoveryError
from recovery.places.protocol import Lock


@dataclass(frozen=True, slots=True)
class ErasedCopy:
    """What was done, or would be done, at one copy: a place, a standby, or the bucket of a state backend, which keeps
    older versions of its objects. held: the objects that held a key, or the files of a standby; an older version of an
    object has its id behind a question mark. removed: the ids of the backups that listed one. backup: the id of the
    backup that takes their place. left: what still holds a key, or may; why: the reason. until: when the last lock of
    these ends; None: none is locked, or one is until somebody removes its hold. unseen: what the place may keep of
    removed objects that nobody can look at from here."""

    location: str
    held: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    backup: str | None = None
    left: tuple[str, ...] = ()
    why: str = ""
    until: str | None = None
    unseen: str = ""

    @property
    def is_done(self) -> bool:
        """Whether nothing of the keys is left there, and nothing that may hold them is unseen."""
        return not (self.left or self.unseen)

    @property
    def is_place(self) -> bool:
        """Whether the copy is a place, which has objects, and not a standby, which has files."""
        return all("/" in name or "?" in name for name in self.held)

    def as_json(self) -> dict[str, object]:
        """Return the fields as JSON values."""
        return {
            "location": self.location,
            "held": list(self.held),
            "removed": list(self.removed),
            "backup": self.backup,
            "left": list(self.left),
            "why": self.why,
            "until": self.until,
            "unseen": self.unseen,
        }


@dataclass(frozen=True, slots=True)
class Locked:
    """Why locks keep objects, and until when the last one does. Nothing: no lock is known."""

    why: str = ""
    until: str | None = None

    @classmethod
    def of(cls, locks_of: Callable[[Iterable[str]], list[Lock]], names: Iterable[str]) -> Locked:
        """Return what is known of the locks of these objects and versions, by their names in `ErasedCopy`."""
        try:
            locks = locks_of(names)
        except RecoveryError:
            # Whoever may remove objects need not see their locks.
            return cls()
        if not locks:
            return cls()
        until = max((lock.until for lock in locks if lock.until is not None), default=None)
        holds = any(lock.until is None for lock in locks)
        end = " and ".join([*([f"until {until}"] if until else []), *(["until its hold is removed"] if holds else [])])
        modes = ", ".join(sorted({lock.mode for lock in locks}))
        return cls(f"the bucket keeps {counted(len(locks), 'object')} {end} ({modes})", None if holds else until)
