"""What a KafkaSink produces: epochs and compensations, in transactions with a marker. The steps are those of `sink`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from recovery.base import faults
from recovery.base.ids import Lease
from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.errors import LeaseLostError, RecoveryError, SinkFailedError
from recovery.planning.sink_work import SinkWork
from recovery.sinks.kafka.broker import Broker, Transactions
from recovery.sinks.kafka.kept import KeptTopic, low_of
from recovery.sinks.kafka.marker import Compensating, KafkaNote, Marker, decode_marker, encode_marker
from recovery.sinks.kafka.reading import ControlTopic, committed_records
from recovery.sinks.kafka.staged import ROWS_PER_CHUNK, RecordsList, StagedRecords, TopicLimits
from recovery.sinks.protocol import Resume


class Points(NamedTuple):
    """The crash points of transactions: the records of one were handed over, it was committed, and all were."""

    sent: str
    part: str
    all: str


PRODUCING = Points("kafka.3.sent", "kafka.3.part", "kafka.3")
COMPENSATING = Points("kafka.5.back.sent", "kafka.5.back.part", "kafka.5.back")


class Production:
    """The transactions of one execution, which has claimed the topic's output. marker: the newest one it has written.
    most: the most records of a transaction."""

    def __init__(
        self,
        broker: Broker,
        control: ControlTopic,
        staged: StagedRecords,
        kept: KeptTopic | None,
        transactions: Transactions,
        marker: Marker,
        execution: Lease,
        most: int,
    ) -> None:
        """Record that this execution owns the topic's output."""
        self._broker, self._target, self._control = broker, broker.target, control
        self._staged, self._kept, self._transactions = staged, kept, transactions
        self._execution, self._most = execution, most
        self.marker = marker
        self.work = SinkWork()
        self.ahead = 0
        """How many records of the epoch that is not produced whole are in the topic."""
        self.claim(marker)

    def claim(self, marker: Marker) -> None:
        """Write a marker, with no records."""
        with self._committing(f"claiming topic {self._target.topic} for this run"):
            self._transactions.commit(self._target.control, self._target.name, encode_marker(marker))
        self.marker = marker

    def compensate(self, kept: KeptTopic, back: Marker, resume: Resume) -> None:
        """Produce what the keys had as of the epoch of `back`, for all keys that later epochs have touched."""
        marker, begun = self.marker, self.marker.compensating
        low = low_of(marker, back)
        goes_on = begun is not None and (begun.epoch, begun.execution) == (back.epoch, back.closed_by)
        produced = begun.produced if begun is not None and goes_on else 0
        count = kept.count(low)
        resume.say(
            f"{self._target.path}: {counted(count, 'key')}, which the epochs after {low} have touched, get the values "
            f"of epoch {back.epoch}"
        )

        def following(produced: int) -> Marker:
            if produced >= count:
                return back
            return replace(marker, compensating=Compensating(back.epoch, back.closed_by, low, produced))

        chunks = kept.chunks(low, back.epoch, produced, min(self._most, ROWS_PER_CHUNK))
        self._send(
            chunks,
            produced,
            count,
            lambda before: f"giving the keys {before} to {count} the values of epoch {back.epoch}",
            following,
            COMPENSATING,
        )
        kept.go_back(back.epoch)
        faults.reach("kafka.5.kept")

    def begin_keeping(self, kept: KeptTopic, resume: Resume, limits: TopicLimits) -> None:
        """Keep the last record of each key that the topic holds, as of what the marker says."""
        if self.marker.records:
            resume.say(f"{self._target.path}: reads the last value of each key, to keep it in {kept.path}")
        marker = kept.begin(self.marker, committed_records(self._broker, limits.partitions))
        faults.reach("kafka.5.read")
        self.claim(marker)
        kept.claim(marker)

    def produce(self, note: KafkaNote, records: RecordsList) -> None:
        """Produce the records of an epoch that are not in the topic yet."""
        is_begun = (self.marker.epoch, self.marker.closed_by) == (note.epoch, note.execution)
        produced = self.marker.produced if is_begun else 0
        if self._kept is not None:
            try:
                self._kept.keep(self._execution.id, note, self._staged.last_of_keys(records))
            except LeaseLostError:
                self.check_owner()
                raise
            faults.reach("kafka.3.kept")
        chunks = self._staged.chunks(records, produced, min(self._most, ROWS_PER_CHUNK))
        self._send(
            chunks,
            produced,
            note.rows,
            lambda before: f"producing the records {before} to {note.rows} of epoch {note.epoch}",
            lambda until: self.marker.produces(note, until),
            PRODUCING,
        )

    def _send(
        self,
        chunks: Iterator[list[tuple[Any, ...]]],
        produced: int,
        total: int,
        doing: Callable[[int], str],
        following: Callable[[int], Marker],
        points: Points,
    ) -> None:
        """Produce records until there are `total`, in as many transactions as that takes.

        doing: returns what a transaction does, for errors, by the number of records before it. following: returns the
        marker of a transaction, by the number of records with it.
        """
        size = min(self._most, ROWS_PER_CHUNK)
        transactions = self._transactions
        while True:
            count = 0
            with self._committing(doing(produced)):
                # The rest of the time is for the commit, which waits until the broker has everything.
                while count == 0 or (count + size <= self._most and transactions.age_s < transactions.timeout_s / 4):
                    chunk = next(chunks, [])
                    transactions.send(self._target.topic, chunk)
                    count += len(chunk)
                    if produced + count >= total:
                        break
                faults.reach(points.sent)
                marker = following(produced + count)
                transactions.commit(self._target.control, self._target.name, encode_marker(marker))
            self.marker, produced = marker, produced + count
            self._count(count, compensates=points is COMPENSATING)
            faults.reach(points.part)
            if produced >= total:
                break
        faults.reach(points.all)

    def _count(self, count: int, *, compensates: bool) -> None:
        """Count the records of a transaction that was committed."""
        work, took_s = self.work, self._transactions.age_s
        self.work = msgspec.structs.replace(
            work,
            produced=work.produced + (0 if compensates else count),
            compensated=work.compensated + (count if compensates else 0),
            transactions=work.transactions + 1,
            transaction_s=work.transaction_s + took_s,
            last_transaction_s=took_s,
        )
        self.ahead += 0 if compensates else count

    @contextlib.contextmanager
    def _committing(self, doing: str) -> Iterator[None]:
        """Open a transaction, which the block commits. Raises LeaseLostError if another run has begun since."""
        transactions = self._transactions
        try:
            with transactions.transaction(doing):
                yield
        except LeaseLostError:
            self.check_owner()
            raise SinkFailedError(
                f"{doing}: the broker has ended the transaction, which began {transactions.age_s:.0f} s ago",
                path=self._target.path,
                cause="The process was suspended, the broker is too slow for transaction.timeout.ms "
                f"({transactions.timeout_s:g} s), or another run is about to take over.",
                remedy="Run the same command again: nothing is lost or produced twice. If it happens again, lower "
                "records_per_transaction, or raise transaction.timeout.ms in options.",
            ) from None

    def check_owner(self) -> None:
        """Raise LeaseLostError if another execution has claimed the topic, as far as the marker can be read."""
        execution, owner = self._execution, None
        with contextlib.suppress(RecoveryError):
            owner = decode_marker(self._control.newest(_silent), self._target)
        if owner is not None and owner.execution != execution.id:
            raise LeaseLostError(
                one_line(
                    f"its output belongs to execution {owner.number} ({owner.execution}) on {owner.host} now, not to "
                    f"execution {execution.number} ({execution.id})"
                ),
                path=self._target.path,
            ) from None


def _silent(_text: str) -> None:
    """Say nothing."""
