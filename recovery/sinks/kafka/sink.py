"""KafkaSink: the rows of the closed epochs as records of a topic, each exactly once.

Rows are staged in files until their epoch is closed; then transactions of Kafka produce them. Each transaction also
writes a marker to the control topic, so a marker is there exactly if its records are. In the order of events:

1. `write`: stage the micro-batch's rows as files, and look whether the topic takes them.
2. `prepare`: make the files of the epoch durable, and their list; the list's digest goes into the partitions.
3. `publish`: produce the records in one transaction or several, each with the marker that says how many of the epoch's
   records are in the topic by then.
4. Remove the list and the files.
5. `rollback`: fence every earlier producer, read the marker, produce what is missing of the newest closed epoch, claim
   the topic for this execution, and remove what else is staged.

The transactional id is the sink's name, so the broker refuses commits of an earlier run, a copy of the directory, and a
process that wakes up late. The names kafka.1 to kafka.5 are crash points.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from recovery.base import faults
from recovery.base.ids import Lease
from recovery.base.outside import Answers, CannotTell, Checked, Moment, Question
from recovery.base.printable import one_line
from recovery.errors import ConfigurationError, LeaseLostError, OutputMismatchError, RecoveryError, SinkFailedError
from recovery.hadoop.reports import host_of_task
from recovery.sinks.kafka.broker import OWN_OPTIONS, Broker, Transactions
from recovery.sinks.kafka.marker import (
    KafkaNote,
    KafkaTarget,
    Marker,
    Producing,
    decode_kafka_note,
    decode_marker,
    encode_marker,
    plan_producing,
)
from recovery.sinks.kafka.rows import Expression, RecordColumns, write_records
from recovery.sinks.kafka.staged import ROWS_PER_CHUNK, RecordsList, StagedRecords, TopicLimits
from recovery.sinks.places import place_of
from recovery.sinks.protocol import EpochOutput, Resume

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONTROL_TOPIC = "recovery-markers"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class KafkaSink:
    """An EpochSink that produces each row of the closed epochs exactly once into a topic of Kafka.

    topic: an existing topic. servers: "HOST:PORT,…" or a list of them.
    staging: a directory for the rows of the epoch that is open or not produced yet; a path of this machine, or an
        address that all hosts reach, as for FileSink.
    key, value, headers, partition, timestamp: of a record: a column's name, an expression in SQL, or a Column; None:
        the column of that name, if there is one. key and value have to be text or bytes.
    options: of librdkafka, for credentials, compression and the like.
    name: under which the control topic knows this sink; None: the topic. Two flows that write to one topic need two.
    control: a compacted topic with the markers of all sinks that name it; it is made where it is missing.
    records_per_transaction: an epoch with more records is produced in several transactions.
    fresh: begin a new output although the flow's earlier output went to another topic, or under another name.

    A reader with isolation.level=read_committed sees each row once, in the order of its key. Produced records cannot be
    removed: a run that goes back behind them is refused.
    """

    single_action = True
    keeps_plan = True
    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the random id in the marker of the control topic with that in the snapshot's note; the topic's id with "
            "that in the marker",
            (Moment.START, Moment.GOING_BACK),
        ),
        Question.THERE: Checked(
            "the number of records in the marker with the snapshot's note; names and sizes of the staged files of a "
            "closed epoch that is not produced, and the content of each when it is",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING, Moment.PUBLISHING),
        ),
        Question.CHANGED: CannotTell(
            "records are never changed; others may add records to the topic, and retention and compaction remove some"
        ),
        Question.ABLE: Checked(
            "both topics with their policies, the rights on them, the right to the transactional id and a first "
            "transaction under a neighbouring id, the right to write to `staging`; size, partition, key and time of "
            "each row against the topic's settings",
            (Moment.START, Moment.GOING_BACK, Moment.CLOSING),
        ),
        Question.OWNER: Checked(
            "store, flow and last execution in the marker, when the run starts; later the broker itself, which fences "
            "the former producer",
            (Moment.START, Moment.GOING_BACK, Moment.PUBLISHING),
        ),
    }

    def __init__(
        self,
        topic: str,
        *,
        servers: str | Sequence[str],
        staging: str | os.PathLike[str],
        key: Expression = None,
        value: Expression = None,
        headers: Expression = None,
        partition: Expression = None,
        timestamp: Expression = None,
        options: Mapping[str, Any] | None = None,
        name: str | None = None,
        control: str = CONTROL_TOPIC,
        records_per_transaction: int = 1_000_000,
        fresh: bool = False,
    ) -> None:
        for what, each in (("topic", topic), ("control", control)):
            if not isinstance(each, str) or not _TOPIC_NAME.fullmatch(each) or each in (".", ".."):
                raise ConfigurationError(f"KafkaSink: {what}={each!r} is no name of a topic", remedy="Correct it.")
        if topic == control:
            raise ConfigurationError("KafkaSink: the control topic is the topic", remedy="Give it another: control=….")
        if name is not None and (not isinstance(name, str) or not name or name != one_line(name)):
            raise ConfigurationError(f"KafkaSink: name={name!r}", remedy="Give a text, or leave it out.")
        joined = servers if isinstance(servers, str) else ",".join(servers)
        if not joined:
            raise ConfigurationError("KafkaSink: no servers", remedy="Give them: servers='HOST:9092'.")
        if type(records_per_transaction) is not int or records_per_transaction < 1:
            raise ConfigurationError(
                f"KafkaSink: records_per_transaction={records_per_transaction!r}", remedy="Use 1, 2, 3 …"
            )
        for option in sorted(OWN_OPTIONS & set(options or {})):
            raise ConfigurationError(
                f"KafkaSink: options={{{option!r}: …}}",
                cause="Whether each row comes once depends on it, so the sink sets it itself.",
                remedy="Leave it out.",
            )
        self._columns = RecordColumns(key, value, headers, partition, timestamp)
        self._target = KafkaTarget(topic, name or topic, control, joined, fresh)
        place = place_of(os.fspath(staging), "KafkaSink")
        self.staging: Path | str = place.path if place.is_local else place.address
        self.shared = place.shared
        """Whether tasks on other hosts reach the directory."""
        self._broker = Broker(self._target, options or {})
        self._most = records_per_transaction
        self._staged = StagedRecords(place)
        self._transactions: Transactions | None = None
        self._execution: Lease | None = None
        self._limits: TopicLimits | None = None
        self._marker: Marker | None = None
        self._prepared: tuple[KafkaNote, RecordsList] | None = None

    def __repr__(self) -> str:
        return f"KafkaSink({self._target.topic!r}, servers={self._target.servers!r}, staging={str(self.staging)!r})"

    # ---- the phases

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        limits = self._broker.limits()
        there = self._broker.has_control()
        plan = self._plan(resume, limits, there=there)
        if plan.note is not None:
            self._staged.find(plan.note)
        elif plan.marker is None and self._target.fresh and resume.note is not None:
            self._check_former(resume.note)
        self._staged.check_writable()
        if not there:
            self._broker.make_control(only_try=True)
        # The id of the run itself would fence a run that is still active.
        self._broker.transactions(f"{self._transactional_id}.check", limits)

    def rollback(self, resume: Resume) -> None:
        """Produce what is missing of the closed epochs, and forget the rest; see `EpochSink`."""
        self._limits = self._broker.limits()
        if not self._broker.has_control():
            self._broker.make_control()
        self._execution = resume.execution
        self._transactions = self._broker.transactions(self._transactional_id, self._limits)
        # Nobody else can commit any more, so what is read now is final.
        plan = self._plan(resume, self._limits, there=True)
        if plan.stays:
            resume.say(f"{self._target.path}: {plan.stays}")
        found = None if plan.note is None else (plan.note, self._staged.find(plan.note))
        marker = plan.marker or Marker(
            secrets.token_hex(8), self._target.topic, resume.store_id, resume.flow_id, "", 0, ""
        )
        self._claim(marker.owned_by(resume, socket.gethostname(), self._limits.id))
        faults.reach("kafka.5.claimed")
        if found is not None:
            self._produce(*found)
        self._staged.use(marker.sink)
        self._staged.begin()
        self._broker.rest()
        self._prepared = None
        faults.reach("kafka.5")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Stage the micro-batch's rows; see `EpochSink`."""
        assert self._execution is not None, "rollback comes first"
        assert self._limits is not None
        directory = self._staged.directory(self._execution.id, batch_id)
        write_records(batch, self._columns, self._staged.address(directory))
        self._staged.stage(batch_id, directory, self._limits, partial(host_of_task, batch))
        faults.reach("kafka.1")

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's rows durable; see `EpochSink`."""
        marker = self._marker
        assert marker is not None, "rollback comes first"
        try:
            records, digest = self._staged.prepare(output.epoch, output.execution.id, output.batch)
        except SinkFailedError:
            # A later run removes what earlier ones have staged.
            self._check_owner()
            raise
        note = KafkaNote(
            marker.sink, self._target.topic, self._target.name, output.epoch, output.execution.id, digest,
            records.rows, marker.records + records.rows, marker.epoch, marker.closed_by,
        )  # fmt: skip
        self._prepared = note, records
        faults.reach("kafka.2")
        return encode_marker(note).decode()

    def publish(self, output: EpochOutput) -> None:
        """Produce the records of the prepared epoch; see `EpochSink`."""
        if self._prepared is None:
            return
        note, records = self._prepared
        assert note.epoch == output.epoch, f"epoch {note.epoch} was prepared"
        self._produce(note, records)
        self._staged.forget(records)
        self._prepared = None
        faults.reach("kafka.4")

    def release(self) -> None:
        """Let the clients go; see `EpochSink`."""
        self._broker.rest()
        self._transactions = None

    # ---- the steps

    @property
    def _transactional_id(self) -> str:
        return f"recovery.{self._target.control}.{self._target.name}"

    def _plan(self, resume: Resume, limits: TopicLimits, *, there: bool) -> Producing:
        """Return what a start does. there: whether the control topic is."""
        marker = decode_marker(self._broker.marker() if there else None, self._target)
        plan = plan_producing(self._target, marker, resume, limits.id)
        if plan.marker is not None:
            self._staged.use(plan.marker.sink)
        return plan

    def _check_former(self, text: str) -> None:
        """Check that the former output lacks no closed epoch, as far as its staged records say it. Raises
        OutputMismatchError."""
        try:
            note = decode_kafka_note(text, self._target)
        except OutputMismatchError:
            # Another kind of sink wrote it.
            return
        if note is not None and self._staged.has(note):
            raise self._target.mismatch(
                f"a new output would begin, and closed epoch {note.epoch} ({note.rows} records) may not be produced "
                f"into topic {note.topic} yet: its staged records are here",
                "The last run was killed between closing the epoch and producing it.",
                f"Run the flow once with its former sink (topic {note.topic}, name {note.name!r}) and no new input.",
            )

    def _claim(self, marker: Marker) -> None:
        """Record that this execution owns the topic's output."""
        with self._committing(f"claiming topic {self._target.topic} for this run") as transactions:
            transactions.commit(self._target.control, self._target.name, encode_marker(marker))
        self._marker = marker

    def _produce(self, note: KafkaNote, records: RecordsList) -> None:
        """Produce the records of an epoch that are not in the topic yet."""
        marker = self._marker
        assert marker is not None
        is_begun = (marker.epoch, marker.closed_by) == (note.epoch, note.execution)
        produced = marker.produced if is_begun else 0
        size = min(self._most, ROWS_PER_CHUNK)
        chunks = self._staged.chunks(records, produced, size)
        while True:
            count = 0
            doing = f"producing the records {produced} to {note.rows} of epoch {note.epoch}"
            with self._committing(doing) as transactions:
                # The rest of the time is for the commit, which waits until the broker has everything.
                while count == 0 or (count + size <= self._most and transactions.age_s < transactions.timeout_s / 4):
                    chunk = next(chunks, [])
                    transactions.send(self._target.topic, chunk)
                    count += len(chunk)
                    if produced + count >= note.rows:
                        break
                faults.reach("kafka.3.sent")
                marker = marker.produces(note, produced, count)
                transactions.commit(self._target.control, self._target.name, encode_marker(marker))
            self._marker, produced = marker, produced + count
            faults.reach("kafka.3.part")
            if produced >= note.rows:
                break
        faults.reach("kafka.3")

    @contextlib.contextmanager
    def _committing(self, doing: str) -> Iterator[Transactions]:
        """Open a transaction, which the block commits. Raises LeaseLostError if another run has begun since."""
        assert self._transactions is not None, "rollback comes first"
        transactions = self._transactions
        try:
            with transactions.transaction(doing):
                yield transactions
        except LeaseLostError:
            self._check_owner()
            raise SinkFailedError(
                f"{doing}: the broker has ended the transaction, which began {transactions.age_s:.0f} s ago",
                path=self._target.path,
                cause="The process was suspended, the broker is too slow for transaction.timeout.ms "
                f"({transactions.timeout_s:g} s), or another run is about to take over.",
                remedy="Run the same command again: nothing is lost or produced twice. If it happens again, lower "
                "records_per_transaction, or raise transaction.timeout.ms in options.",
            ) from None

    def _check_owner(self) -> None:
        """Raise LeaseLostError if another execution has claimed the topic, as far as the marker can be read."""
        execution, owner = self._execution, None
        with contextlib.suppress(RecoveryError):
            owner = decode_marker(self._broker.marker(), self._target)
        if owner is not None and execution is not None and owner.execution != execution.id:
            raise LeaseLostError(
                one_line(
                    f"its output belongs to execution {owner.number} ({owner.execution}) on {owner.host} now, not to "
                    f"execution {execution.number} ({execution.id})"
                ),
                path=self._target.path,
            ) from None
