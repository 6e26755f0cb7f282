"""A run's end, or a look's, of the connections to an owner service.

Nothing is repeated: an owner that is lost ends the run, and the same command continues from the last closed epoch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from recovery.base.clock import SystemClock
from recovery.errors import (
    LeaseLostError,
    OwnerRefusedError,
    OwnerUnreachableError,
    RecoveryError,
    StorageError,
    UnsupportedPlanError,
)
from recovery.planning.owner_facts import SeenOwner
from recovery.wire import messages
from recovery.wire.address import OwnerAddress
from recovery.wire.calls import ASKED, AskedCalls, BegunExecution, OwnerCalls
from recovery.wire.frames import SILENCE_S, Channel, Kind, WireError, wait_at_most
from recovery.wire.line import Line, RefusedError, ask, next_message, put, reason_of
from recovery.wire.proof import masked

STILL_S = 10.0
"""How often a run says that it continues."""
CLASSIFY_S = 5.0
"""How long a run that has lost a connection asks the owner why."""
LET_GO_S = 1.0
"""How long the end of a run waits for the answer to its last message to the owner."""
PAUSE_S = 0.2
ANSWER_S = 60.0
"""How long an owner that works on one of the calls below may take for it. Other calls take as long as partitions are
large, and the owner sends signs of progress meanwhile."""
PROMPT = frozenset({"serving", "found", "facts", "hold", "let_go"})
"""Calls of looks, and the first and last one of a run, that take long only where a disk hangs."""

P = ParamSpec("P")
R = TypeVar("R")


class Owner:
    """The connections of one run or look to one owner, each for one call at a time.

    Raises OwnerUnreachableError when the owner does not answer, and the error with which it refuses. The paths in those
    errors begin with the owner's location.
    """

    def __init__(self, address: OwnerAddress, token: bytes | Callable[[], bytes]) -> None:
        """address: the deadline in the address is for the first connection. token: or what returns it, for each
        connection."""
        self.address = address
        self.location = address.location
        self.begun: BegunExecution | None = None
        """What the run begins in the owner's partitions; None before."""
        self.seen: SeenOwner | None = None
        """What the owner last said to the run that holds it."""
        self._token = partial(bytes, token) if isinstance(token, bytes) else token
        self._lock = threading.Lock()
        self._idle: list[Line] = []
        self._run: str | None = None
        self._holding: Line | None = None
        self._lost: RecoveryError | None = None
        self._ended = threading.Event()
        self._keeper: threading.Thread | None = None

    def again(self) -> Owner:
        """Return further connections to the same owner, which belong to no run yet."""
        return Owner(self.address, self._token)

    def hold(self, run: str, purpose: str, task_key: bytes) -> None:
        """Lock the owner's directory for a run, until `release` or the end of this process. Raises
        DirectoryLockedError. Owners that are locked together are locked in the order of `incarnation`."""
        line = self._taken()
        try:
            key = masked(task_key, line.key, *line.facts)
            self._on(line, OwnerCalls.hold, run, purpose, key)
        except BaseException:
            line.drop()
            raise
        with self._lock:
            before, self._idle = self._idle, []
            self._run, self._holding = run, line
        # They belong to no run.
        for each in before:
            each.drop()
        self._keeper = threading.Thread(target=self._keep, name=f"hold-{self.location}", daemon=True)
        self._keeper.start()

    def incarnation(self) -> str:
        """Connect, and return the text that names the owner's process and directory, under whichever address it was
        reached."""
        # A connection that idled may have been to an earlier process. `hold` takes the newest one.
        line = self._connected()
        self._give(line)
        return line.incarnation

    def ask(self, call: Callable[Concatenate[AskedCalls, P], R], *arguments: P.args, **named: P.kwargs) -> R:
        """Make a call and return its result."""
        with self._line() as line:
            return self._on(line, call, *arguments, **named)

    def stream(
        self, call: Callable[Concatenate[AskedCalls, P], Iterator[R]], *arguments: P.args, **named: P.kwargs
    ) -> Generator[R, None, None]:
        """Make a call that yields several answers, and yield them. Closing the generator early ends the call."""
        with self._line() as line, self._described():
            channel = self._channel(line)
            verb = put(channel, ASKED, call, *arguments, **named)
            channel.flush()
            while (message := next_message(channel))[0] == Kind.STATES:
                yield verb.decode(message[1])
            if message[0] != Kind.ANSWER:
                raise WireError(f"a message of kind {message[0]} instead of an answer")

    def release(self) -> None:
        """Release the owner's directory, and end all connections. May be called again."""
        self._ended.set()
        if self._keeper is not None and self._holding is not None and self._lost is None:
            self._keeper.join(LET_GO_S)
            if not self._keeper.is_alive():
                # An owner that does not answer releases it when the connection ends.
                with contextlib.suppress(RecoveryError):
                    self._on(self._holding, OwnerCalls.let_go)
        with self._lock:
            lines, self._idle = self._idle, []
        for line in filter(None, [self._holding, *lines]):
            if line.channel is not None:
                line.channel.cut()
        if self._keeper is not None:
            self._keeper.join()
        for line in filter(None, [self._holding, *lines]):
            line.drop()
        self._holding = None

    def _on(
        self, line: Line, call: Callable[Concatenate[AskedCalls, P], R], *arguments: P.args, **named: P.kwargs
    ) -> R:
        with self._described(), self._prompt(line, call.__name__):
            return ask(self._channel(line), ASKED, call, *arguments, **named)

    @contextlib.contextmanager
    def _prompt(self, line: Line, call: str) -> Iterator[None]:
        """Raise OwnerUnreachableError if the owner takes longer than `ANSWER_S` for a call that should be prompt."""
        if call not in PROMPT or (self._run is not None and call != "let_go"):
            yield
            return
        channel = self._channel(line)
        channel.until_s = until_s = time.monotonic() + ANSWER_S
        try:
            yield
        except OSError as error:
            if time.monotonic() < until_s:
                raise
            raise OwnerUnreachableError(
                f"the owner at {self.location} works on one call for more than {ANSWER_S:.0f} s",
                cause="The disk of its directory does not answer, or its host is overloaded.",
                remedy="Look at the owner's log and at that disk. Then run the same command again.",
            ) from error
        finally:
            channel.until_s = None
            with contextlib.suppress(OSError):
                wait_at_most(channel.sock, SILENCE_S)

    @staticmethod
    def _channel(line: Line) -> Channel:
        assert line.channel is not None
        return line.channel

    @contextlib.contextmanager
    def _described(self) -> Iterator[None]:
        """Make typed errors of what goes wrong on a connection, each with the owner's location."""
        try:
            yield
        except RefusedError as refused:
            error = messages.as_error(refused.refusal, self.location)
            # An error without a path is this owner's, too, unless the flow is at fault.
            if not isinstance(error, UnsupportedPlanError):
                error.path = error.path or self.location
            raise error from None
        except StorageError as error:
            error.path = error.path or self.location
            raise
        except (OSError, WireError) as error:
            raise self._why(reason_of(error)) from error

    @contextlib.contextmanager
    def _line(self) -> Iterator[Line]:
        """Lend a connection of this run. A connection whose call failed half-way is not used again."""
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise self._unreachable("the run has released it")
        line = self._taken()
        try:
            yield line
        except RecoveryError as error:
            if isinstance(error, OwnerUnreachableError) or line.channel is None or line.channel.has_ended():
                line.drop()
            else:
                self._give(line)
            raise
        except BaseException:
            line.drop()
            raise
        self._give(line)

    def _taken(self) -> Line:
        """Return an idle connection, or a new one, which joins the run."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        line = self._connected()
        try:
            if self._run is not None:
                self._on(line, OwnerCalls.join, self._run, self.begun)
        except BaseException:
            line.drop()
            raise
        return line

    def _give(self, line: Line) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._idle.append(line)
                return
        line.drop()

    def _connected(self) -> Line:
        """Return a new connection; try until the deadline."""
        line = Line(self.address, self._token(), messages.RUN)
        began_s = time.monotonic()
        until_s = began_s + (self.address.deadline_s if self._run is None else CLASSIFY_S)
        while True:
            try:
                line.channel = line.connect(until_s)
                return line
            except (OSError, WireError) as error:
                if time.monotonic() + PAUSE_S >= until_s:
                    raise self._unreachable(f"{reason_of(error)}, for {time.monotonic() - began_s:.0f} s") from error
            time.sleep(PAUSE_S)

    def _unreachable(self, reason: str) -> OwnerUnreachableError:
        return OwnerUnreachableError(
            f"the owner at {self.location} was {'not reached' if self._run is None else 'lost'}: {reason}",
            cause="The owner's process or host was stopped, or the network to that host is cut.",
            remedy="Start it (recovery serve DIR --at HOST:PORT), and run the same command again: a run continues from "
            "the last closed epoch.",
        )

    def _why(self, reason: str) -> RecoveryError:
        """Return the error for a connection that broke. A run that was frozen for long may have been replaced: then the
        owner says so."""
        if self._run is None or self._ended.is_set():
            return self._unreachable(reason)
        line = Line(self.address, self._token(), messages.RUN)
        try:
            line.channel = line.connect(time.monotonic() + CLASSIFY_S)
            line.channel.until_s = time.monotonic() + ANSWER_S
            ask(line.channel, ASKED, OwnerCalls.join, self._run, self.begun)
        except RefusedError as refused:
            error = messages.as_error(refused.refusal, self.location)
            if isinstance(error, LeaseLostError):
                return error
        except OwnerRefusedError as error:
            self._lost = error
            return error
        except (OSError, WireError):
            pass
        finally:
            line.drop()
        # The owner lets a run go whose connection has ended.
        self._lost = self._unreachable(reason)
        return self._lost

    def _keep(self) -> None:
        """Say that the run continues, until it ends or the owner is lost."""
        assert self._holding is not None
        assert self._run is not None
        while not self._ended.wait(STILL_S):
            began_s = time.monotonic()
            try:
                said = self._on(self._holding, OwnerCalls.still, self._run, self.begun)
                self.seen = SeenOwner.of(
                    self.location, said.holder, said.facts, time.monotonic() - began_s, SystemClock().wall_ms()
                )
            except RecoveryError as error:
                if not self._ended.is_set():
                    self._lost = error
                return
