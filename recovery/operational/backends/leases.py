"""Leases: locks in a store that several machines reach, held for a limited time and renewed while in use.

1. A process that finds the lock free, or its holder silent for a whole lease, writes itself into the lock's object with
   the next fencing number. The write is conditional, so only one of several succeeds.
2. Silent means: the object did not change while the waiting process watched it, by that process's own elapsed time.
   Clocks of two machines are never compared, so it does not matter what they show.
3. The holder renews after a third of the lease by writing the object again. If the holder could not do so for a whole
   lease, or finds another holder in the object, it knows that it has lost the lock.
4. A write under a lease carries the lease's fencing number; an object written under a higher number refuses it.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from recovery.base.clock import Clock
from recovery.base.intervals import format_interval
from recovery.errors import ConfigurationError, CorruptStateError, LeaseLostError, RecoveryError, StateLockedError
from recovery.host.processes import as_holder, describe_holder
from recovery.operational.backends.paths import LOCK_FILE, encode_path
from recovery.places.protocol import Conflict, DocumentStore, Token, nonce

LONGEST_LEASE_S = 366 * 86400.0
REMEMBERED = 100
"""How many takeovers a lock remembers, so that a holder whose release got no answer can find out whether it
happened."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long a lease lasts without being renewed, and how long a waiter pauses between two looks; in seconds."""

    lock_timeout_s: float = 10.0
    lock_retry_s: float = 1.0

    def __post_init__(self) -> None:
        if self.lock_timeout_s <= 0 or self.lock_retry_s <= 0:
            raise ConfigurationError("the times of a lease must be positive", remedy="Give positive seconds.")


class HeldLease:
    """One named lock. Entering waits for the lease at most `wait_s` seconds; leaving frees the lease.

    Raises StateLockedError naming the holder; on leaving LeaseLostError if the lock was lost meanwhile.
    """

    def __init__(
        self, objects: DocumentStore, name: str, purpose: str, clock: Clock, terms: LeaseTerms, wait_s: float
    ) -> None:
        self.name = name
        self.fence = 0
        self._objects = objects
        self._path = f"{encode_path(name)}/{LOCK_FILE}"
        self._clock = clock
        self._terms = terms
        self._wait_s = wait_s
        self._holder = as_holder(purpose, id=nonce())
        self._token: Token = None
        self._taken_over: list[int] = []
        self._renewed_s = 0.0
        self._lost = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> HeldLease:
        self._acquire()
        self._thread = threading.Thread(target=self._renew_on, name="lease", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()
        try:
            self._release()
        except RecoveryError:
            # An error that ended the work matters more.
            if kind is None:
                raise

    def check(self) -> None:
        """Raises LeaseLostError unless the store shows that the lease is still held."""
        with self._lock:
            self._check()
            found = self._read()
            if found["holder"] != self._holder or found["fence"] != self.fence:
                self._lost = "another process took it over"
                self._check()

    # ---- the protocol

    def _acquire(self) -> None:
        began_s = self._clock.elapsed_s()
        watched: Token = None
        since_s = began_s
        stirred = False
        while True:
            asked_s = self._clock.elapsed_s()
            found = self._read()
            if found["token"] != watched:
                stirred = watched is not None
                watched, since_s = found["token"], self._clock.elapsed_s()
            if found["holder"] == self._holder:
                # Our own earlier write, whose answer never arrived.
                self._token, self._renewed_s = found["token"], asked_s
                return
            silent = self._clock.elapsed_s() - since_s >= max(self._terms.lock_timeout_s, found["lease_s"])
            if found["holder"] is None or silent:
                self.fence = found["fence"] + 1
                self._taken_over = found["taken_over"]
                if found["holder"] is not None:
                    self._taken_over = [*self._taken_over, found["fence"]][-REMEMBERED:]
                try:
                    self._write(self._holder, found["token"])
                    self._renewed_s = asked_s
                    return
                except Conflict:
                    # Another process was faster: look again immediately.
                    continue
            waited_s = self._clock.elapsed_s() - began_s
            # An unchanged holder may be dead; that is known only after a whole lease.
            known = stirred or self._clock.elapsed_s() - since_s >= self._terms.lock_timeout_s
            if waited_s >= self._wait_s and known:
                raise StateLockedError(
                    f"{describe_holder(found['holder'])} held the lock {self.name!r:.120} for more than "
                    f"{format_interval(self._wait_s)}",
                    path=self._objects.location,
                )
            pause_s = self._terms.lock_retry_s * (0.5 + random.random())
            time.sleep(min(pause_s, self._wait_s - waited_s) if waited_s < self._wait_s else pause_s)

    def _renew_on(self) -> None:
        while not self._over.wait(self._terms.lock_timeout_s / 3):
            with self._lock:
                if self._lost:
                    return
                asked_s = self._clock.elapsed_s()
                try:
                    self._write(self._holder, self._token)
                    self._renewed_s = asked_s
                except Conflict:
                    self._adopt()
                except RecoveryError:
                    # The store is out of reach: try again until the lease has run out.
                    continue

    def _release(self) -> None:
        with self._lock:
            self._check()
            try:
                self._write(None, self._token)
            except Conflict:
                if not self._was_freed():
                    self._adopt()
                    self._check()
                    self._write(None, self._token)

    def _was_freed(self) -> bool:
        """Whether this holder's own write, whose answer never arrived, freed the lock."""
        found = self._read()
        if found["fence"] == self.fence:
            return found["holder"] is None
        return self.fence not in found["taken_over"] and self.fence < found["fence"] <= self.fence + REMEMBERED

    def _adopt(self) -> None:
        """Handle a changed object: keep the lock if our own renewal, whose answer never arrived, wrote it; lose it if a
        successor did."""
        with contextlib.suppress(RecoveryError):
            found = self._read()
            if (found["holder"], found["fence"]) == (self._holder, self.fence):
                self._token = found["token"]
            else:
                self._lost = "another process took it over"

    def _check(self) -> None:
        silent_s = self._clock.elapsed_s() - self._renewed_s
        if not self._lost and silent_s >= self._terms.lock_timeout_s:
            self._lost = f"it could not be renewed for {format_interval(silent_s)}"
        if self._lost:
            raise LeaseLostError(
                f"the lock {self.name!r:.120} with fencing number {self.fence} is lost: {self._lost}",
                path=self._objects.location,
                cause="This process was suspended, or cut off from the store, for longer than the lease.",
                remedy="Start again from what the new holder left; nothing was written since the lock was lost.",
            )

    def _write(self, holder: dict[str, Any] | None, token: Token) -> None:
        content = {"fence": self.fence, "holder": holder, "lease_s": self._terms.lock_timeout_s,
                   "taken_over": self._taken_over, "nonce": nonce()}  # fmt: skip
        self._token = self._objects.put(self._path, json.dumps({"lock": content}).encode(), token)

    def _read(self) -> dict[str, Any]:
        found = self._objects.get(self._path)
        if found is None:
            return {"fence": 0, "holder": None, "lease_s": 0.0, "taken_over": [], "token": None}
        try:
            lock = json.loads(found.content)["lock"]
            fence, holder, lease_s, taken_over = (lock[name] for name in ("fence", "holder", "lease_s", "taken_over"))
            # Refuse a lease so long that waiting for it must be a mistake.
            sound = type(fence) is int and 0 <= fence < 1 << 62 and 0 <= float(lease_s) <= LONGEST_LEASE_S
            if not sound or not (holder is None or isinstance(holder, dict)):
                raise ValueError("a field of it is out of range")
            return {
                "fence": fence,
                "holder": holder,
                "lease_s": float(lease_s),
                "taken_over": list(taken_over),
                "token": found.token,
            }
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise CorruptStateError(
                f"the lock {self.name!r:.120} cannot be read", path=f"{self._objects.location}/{self._path}"
            ) from error
