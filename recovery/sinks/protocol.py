"""The kinds of sinks: a function, an object with `write`, or an EpochSink, whose output appears epoch by epoch.

An EpochSink takes part in closing an epoch as in a two-phase commit. The commit point is not the sink's: it is that
every recovery partition holds the epoch. In the order of events:

1. `rollback(resume)` when an execution starts: publish what was prepared for epochs that turned out closed, take
   back everything else beyond the snapshot.
2. `write(batch, batch_id)` for each micro-batch: keep it aside, invisible. `write` may be called again for the same id.
3. `prepare(output)` before the partitions are written: make the epoch's output durable, still invisible. The
   transaction that closes the epoch saves the returned note in the partitions.
4. Every partition holds the epoch.
5. `publish(output)`: make the output visible. A crash may leave only `publish` undone, and then step 1 does it.

The note ties output to snapshots: going back to an older snapshot brings back that snapshot's note. So a sink that
finds its place by the note is right after a crash, a rewind or a restored backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from recovery.base.ids import BatchId, Epoch, Lease
from recovery.base.printable import one_line
from recovery.errors import ConfigurationError, OutputMismatchError, StaleDirectoryError
from recovery.planning.timeline import TimelinePart
from recovery.storage.origin import Origin, continued
from recovery.storage.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class BatchContext:
    """What a sink can know about the micro-batch that it is writing: see `current_batch`.

    epoch will contain the micro-batch, unless the run dies before closing it.
    """

    batch_id: BatchId
    epoch: Epoch
    execution_number: int
    execution_id: str
    store_id: str
    flow_id: str

    @property
    def app_id(self) -> str:
        """Together with `version`, identifies this micro-batch of this execution, and never another content.

        For sinks that skip what they have seen, such as Delta (txnAppId, txnVersion). Another execution has another app
        id, so nothing is skipped then: what an earlier one wrote since the last closed epoch is written again.
        """
        return f"recovery-{self.store_id}-{self.execution_id}-batch"

    @property
    def version(self) -> int:
        """The micro-batch's number, which only grows under one `app_id`."""
        return self.batch_id


BATCH_BEING_WRITTEN: ContextVar[BatchContext] = ContextVar("current_batch")


def current_batch() -> BatchContext:
    """Return the micro-batch that the calling sink is writing.

    Works only on the thread that called the sink, during that call. Raises ConfigurationError elsewhere.
    """
    try:
        return BATCH_BEING_WRITTEN.get()
    except LookupError:
        raise ConfigurationError(
            "no micro-batch is being written on this thread",
            cause="current_batch() was called outside a sink, or on a thread that the sink started.",
            remedy="Call it in the sink itself, and pass the values on.",
        ) from None


@dataclass(frozen=True, slots=True)
class EpochOutput:
    """An epoch whose output is to be prepared, or published.

    batch: the epoch's last micro-batch; everything that this execution wrote up to it and has not yet published belongs
        to the epoch. A later one may have been written already, or be written now on another thread.
    floor: no run can resume before the epoch after this one any more: data needed only to go back further may go.
    """

    epoch: Epoch
    batch: BatchId
    execution: Lease
    store_id: str
    flow_id: str
    floor: Epoch

    @property
    def app_id(self) -> str:
        """Together with `version`, identifies this epoch of this execution, and never another content.

        The output of a prepared epoch is fixed. So a sink that records this name with what it publishes can see that it
        has published an epoch, and is exact.
        """
        return f"recovery-{self.store_id}-{self.execution.id}-epoch"

    @property
    def version(self) -> int:
        """The epoch, which only grows under one `app_id`."""
        return self.epoch


_Explained: TypeAlias = tuple[str | None, str | None]
"""The cause of an error, and its remedy; None: the cause and remedy of the error's class."""

_OLDER_COPY: _Explained = (None, None)
_REPLACED: _Explained = (
    "The directory was repartitioned, and the flow has run on the new one since.",
    "Let the new directory go on, and repartition that directory for another number of partitions. If the new "
    "directory is lost, --lose-epochs goes on from this one: what the new directory has closed since is lost.",
)
_REPARTITIONED_TWICE: _Explained = (
    "A directory, or a copy of it, was repartitioned twice, and the flow has run on the other result.",
    "Let the other directory go on. If the other directory is lost, --lose-epochs goes on from this one: what the "
    "other directory has closed since is lost.",
)
_ORIGIN_WENT_ON: _Explained = (
    "The flow has run on the directory from which this one was repartitioned, or on a copy of it, after that.",
    "Let that directory go on, and repartition that one. If that directory is lost, --lose-epochs goes on from this "
    "one: what that directory has closed since is lost.",
)


def _silent(_text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where an execution starts, for a sink.

    epoch: the resume epoch; all epochs below it are closed.
    note: what `prepare` returned for the newest closed epoch in which this sink took part, None if there is none.
    timeline: which execution closed which epochs below `epoch`.
    floor: as in `EpochOutput`.
    origins: the stores that this store was forked or repartitioned from, the nearest first.
    executions: the ids of all executions that have begun on the partitions; None: not known. What another execution of
        the store has shown must stay: see `check_known`.
    replaced: the stores that take this one's place, and whose output is taken back nevertheless, since `loses`.
    held: the id of the newest of them, and the newest epoch that the partitions hold; None: not known. What that
        execution has shown after it must stay, too: the partitions are an older copy.
    loses: the user says that it may be taken back: the directory was restored or promoted for this run, or
        --lose-epochs was given. say: gets a sentence for each execution whose output is taken back only for that.
    where: the store with the partitions, to read them; None: not known.
    accepts_loss: --lose-epochs was given: rows of closed epochs that somebody else took out of the target may stay so.
    edits: an epoch that changes what is stored of steps follows before the first micro-batch, and its output with it.
    """

    epoch: Epoch
    note: str | None
    execution: Lease
    store_id: str
    flow_id: str
    floor: Epoch
    timeline: tuple[TimelinePart, ...]
    origins: tuple[Origin, ...] = ()
    executions: frozenset[str] | None = None
    loses: bool = False
    say: Callable[[str], None] = _silent
    held: tuple[str, Epoch] | None = None
    replaced: tuple[str, ...] = ()
    accepts_loss: bool = False
    where: Store | None = None
    edits: bool = False

    @property
    def stores(self) -> tuple[str, ...]:
        """The ids of all stores whose output is this store's: itself, and the stores that were repartitioned to it."""
        return (self.store_id, *self.formers)

    @property
    def formers(self) -> tuple[str, ...]:
        """The ids of the stores whose place this store takes: the stores that were repartitioned to it, the nearest
        first."""
        return continued(self.origins)

    @property
    def line(self) -> tuple[str, ...]:
        """The ids of all stores whose output this execution owns when it has begun."""
        return (*self.stores, *self.replaced)

    @property
    def forked_from(self) -> tuple[Origin, ...]:
        """The stores whose output is not this store's, although this store, or a store whose place it takes, was forked
        from them."""
        return self.origins[len(self.formers) :]

    def closed(self, epoch: int, execution_id: str) -> bool:
        """Whether this execution closed this epoch on the current timeline."""
        return any(p.execution.id == execution_id and p.first <= epoch <= p.last for p in self.timeline)

    def knows(self, execution_id: str) -> bool:
        """Whether an execution is the present one, or an earlier one on these partitions; True if the earlier ones are
        not known."""
        return self.executions is None or execution_id == self.execution.id or execution_id in self.executions

    def shares(self, store: str, formers: Iterable[str] = ()) -> bool:
        """Whether output of `store` is this store's too: `store` is this store, one whose place this store takes, or
        one that takes the place of such a store. formers: the stores whose place `store` takes."""
        return not {store, *formers}.isdisjoint(self.stores)

    def check_origin(self, target: str, store: str, formers: Iterable[str] = (), *, own: str = "") -> None:
        """Check that a target, which a store writes to, is not the target of a store from which this store was forked.

        formers: as in `shares`. own: how the sink can have a target of its own; empty: it cannot. Raises
        OutputMismatchError.
        """
        origin = next((each for each in self.forked_from if each.store_id in (store, *formers)), None)
        if origin is not None and not self.shares(store, formers):
            since = f", which was repartitioned from {origin.store_id}" if store != origin.store_id else ""
            raise OutputMismatchError(
                f"it holds the output of store {store}{since} in {origin.directory}, from which this store was forked",
                path=target,
                cause="The recovery directory is a fork, and its flow has the sink of the origin.",
                remedy="Run the fork without output: --no-output"
                f"{f', or give it a target of its own: {own}' * bool(own)}.",
            )

    def check_known(
        self,
        execution_id: str,
        target: str,
        *,
        number: int = 0,
        host: str = "",
        epoch: int = 0,
        store: str = "",
        formers: Iterable[str] = (),
        stays: bool = False,
    ) -> None:
        """Check that nothing of what an execution has shown at a target is unknown to these partitions: the execution
        began on these partitions, and they are no older copy. All sinks ask this question about the execution that owns
        their target. store: the execution's store, which shares this store's output; "": this store. formers: the
        stores whose place it takes. number, host: of the execution. epoch: the newest one that it has shown there. 0
        and "": unknown. stays: whether the target can take nothing back. Raises StaleDirectoryError, unless what the
        execution has shown may be lost.
        """
        lacks = self._lacks(execution_id, epoch, store or self.store_id, formers)
        if lacks is None:
            return
        knows, (cause, remedy) = lacks
        other = f"execution {number} ({execution_id})" if number else f"execution {execution_id}"
        found = one_line(
            f"{other}{f' of store {store}' * (store not in ('', self.store_id))}{f' on {host}' * bool(host)} has "
            f"written to it{f', up to epoch {epoch}' * bool(epoch)}; this directory {knows}"
        )
        if self.loses:
            then = "stays there" if stays else "is taken back"
            self.say(f"{target}: {found}; output that this directory does not know {then}")
            return
        raise StaleDirectoryError(
            f"{found}, and would begin execution {self.execution.number} at epoch {self.epoch}",
            path=target,
            cause=cause,
            remedy=remedy,
        )

    def newest_of(self, store: str) -> tuple[str, int] | None:
        """Return the id of the newest execution of a store that these partitions know, and the newest epoch that they
        hold of it; None: not known. store: this store, or one whose place it takes. "": of an older version's
        record."""
        if store == self.store_id:
            return self.held
        origin = next(each for each in self.origins if each.store_id == store)
        return origin.execution, origin.newest if origin.execution else origin.epoch

    def _lacks(
        self, execution_id: str, epoch: int, store: str, formers: Iterable[str]
    ) -> tuple[str, _Explained] | None:
        """Return what these partitions lack, with its cause and remedy; None: nothing."""
        if store not in self.stores:
            shared = next(each for each in self.stores if each in formers)
            if shared == self.store_id:
                return f"is of store {shared} (that store was repartitioned from it)", _REPLACED
            return f"is of store {self.store_id}, repartitioned from {shared} like that store", _REPARTITIONED_TWICE
        explained = _OLDER_COPY if store == self.store_id else _ORIGIN_WENT_ON
        if not self.knows(execution_id):
            return "does not know that execution", explained
        newest = self.newest_of(store)
        # A record of an older version does not name the newest execution: then any may be it.
        if newest is not None and newest[0] in ("", execution_id) and epoch > newest[1]:
            return f"has that execution only up to epoch {newest[1]}", explained
        return None


@runtime_checkable
class Sink(Protocol):
    """An object with the `write` of a foreachBatch function.

    single_action: True promises that `write` runs the batch exactly once and completely, on the calling thread; only
    then does it get the plan itself instead of a materialised copy.

    Two more attributes may be True if the class that declares them also has the `write` that they describe, or inherits
    that `write` unchanged: keeps_plan, that the one action runs the batch's plan without a change, so that what is
    measured in one micro-batch holds for the next; discards, that the sink has no use for rows that are already
    computed.
    """

    single_action: bool

    def write(self, batch: DataFrame, batch_id: int) -> Any:
        """Write one micro-batch. The same micro-batch may come again after a crash."""
        ...


@runtime_checkable
class EpochSink(Sink, Protocol):
    """A sink whose output appears once, with the epoch it belongs to; see the module's docstring.

    A sink may have two more methods: `check(resume)`, called before anything is written anywhere, raises if `rollback`
    would be impossible; `release()` releases the sink's resources when the run ends.
    """

    def rollback(self, resume: Resume) -> None:
        """Leave visible exactly the output of the closed epochs. Repeatable: after a crash halfway, `rollback` is
        called again."""
        ...

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's output durable; returns a note for the partitions. The epoch may still not be closed."""
        ...

    def publish(self, output: EpochOutput) -> None:
        """Make the output of a closed epoch visible. Repeatable."""
        ...
