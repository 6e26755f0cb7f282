"""KafkaSink: the rows of the closed epochs as records of a topic, each exactly once.

Rows are staged in files until their epoch is closed; then transactions of Kafka produce them. Each transaction also
writes a marker to the control topic, so a marker is there exactly if its records are. In the order of events:

1. `write`: stage the micro-batch's rows as files, and look whether the topic takes them.
2. `prepare`: make the files of the epoch durable, and their list; the list's digest goes into the partitions.
3. `publish`: produce the records in one transaction or several, each with the marker that says how many of the epoch's
   records are in the topic by then.
4. Remove the list and the files.
5. `rollback`: fence every earlier producer, read the marker, claim the topic for this execution, produce what is
   missing of the newest closed epoch, and remove what else is staged.

A sink that compensates also keeps the last record of each key: in step 3, before the epoch's first transaction. When it
goes back, step 5 produces after claiming, for each key that abandoned epochs have touched, the record that the key had
before, in transactions with markers like those of step 3. Then the kept records go back.

The transactional id is the sink's name, so the broker refuses commits of an earlier run, a copy of the directory, and a
process that wakes up late. The names kafka.1 to kafka.5 are crash points.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from recovery.base import faults
from recovery.base.outside import Answers, CannotTell, Checked, Moment, Question
from recovery.base.printable import one_line
from recovery.errors import ConfigurationError, OutputMismatchError, SinkFailedError
from recovery.hadoop.reports import host_of_task
from recovery.planning.sink_work import SinkWork
from recovery.sinks.kafka.broker import Broker
from recovery.sinks.kafka.client import OWN_OPTIONS
from recovery.sinks.kafka.kept import KeptTopic
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
from recovery.sinks.kafka.production import Production
from recovery.sinks.kafka.reading import ControlTopic
from recovery.sinks.kafka.rows import Expression, RecordColumns, write_records
from recovery.sinks.kafka.staged import RecordsList, StagedRecords, TopicLimits
from recovery.sinks.places import OutputPlace, place_of
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
    compensate: True, or a directory of the driver's host. For a compacted topic, whose readers take the last value of
        each key: keep that value, in `staging` or in the directory; a run that goes back produces it again.

    A reader with isolation.level=read_committed sees each row once, in the order of its key. Produced records cannot be
    removed: unless the sink compensates, a run that goes back behind them is refused.
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
            "closed epoch that is not produced, and the content of each when it is; with `compensate`, before going "
            "back, that the kept records begin early enough and are whole",
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
        compensate: bool | str | os.PathLike[str] = False,
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
        self._kept = self._kept_in(compensate, place, partition)
        self._broker = Broker(self._target, options or {})
        self._control = ControlTopic(self._broker)
        self._most = records_per_transaction
        self._staged = StagedRecords(place)
        self._production: Production | None = None
        self._work = SinkWork()
        self._limits: TopicLimits | None = None
        self._prepared: tuple[KafkaNote, RecordsList] | None = None

    def _kept_in(
        self, compensate: bool | str | os.PathLike[str], staging: OutputPlace, partition: Expression
    ) -> KeptTopic | None:
        """Return what the sink keeps to compensate; None if it does not."""
        if compensate is False:
            return None
        if not isinstance(compensate, bool | str | os.PathLike):
            raise ConfigurationError(f"KafkaSink: compensate={compensate!r}", remedy="Give True, or a directory.")
        if partition is not None:
            raise ConfigurationError(
                "KafkaSink: partition=… with compensate",
                cause="Readers see the last value of a key only if all its records are in one partition.",
                remedy="Leave partition out, so that the key decides; or leave compensate out.",
            )
        if compensate is True and staging.shared:
            raise ConfigurationError(
                f"KafkaSink: compensate=True, and {staging.address} is no path of this machine",
                cause="The last value of each key is kept in a SQLite file on the driver's host.",
                remedy="Give a directory of that host for it: compensate='kept/'.",
            )
        kept = staging if isinstance(compensate, bool) else place_of(os.fspath(compensate), "KafkaSink")
        if kept.shared:
            raise ConfigurationError(
                f"KafkaSink: compensate={kept.address!r} is no path of this machine",
                remedy="Give a directory on a disk of the driver's host.",
            )
        return KeptTopic(kept.path, self._target)

    def __repr__(self) -> str:
        return f"KafkaSink({self._target.topic!r}, servers={self._target.servers!r}, staging={str(self.staging)!r})"

    # ---- the phases

    def check(self, resume: Resume) -> None:
        """Raise if `rollback` would be impossible; see `EpochSink`."""
        limits = self._broker.limits(compensates=self._kept is not None)
        there = self._broker.has_control()
        plan = self._plan(resume, limits, there=there)
        if plan.note is not None:
            self._staged.find(plan.note)
        elif plan.marker is None and self._target.fresh and resume.note is not None:
            self._check_former(resume.note)
        self._staged.check_writable()
        if self._kept is not None:
            self._kept.check_writable()
            if plan.marker is not None and plan.back is not None:
                self._kept.check(plan.marker, plan.back)
        if not there:
            self._broker.make_control(only_try=True)
        # The id of the run itself would fence a run that is still active.
        self._broker.transactions(f"{self._transactional_id}.check", limits)

    def rollback(self, resume: Resume) -> None:
        """Produce what is missing of the closed epochs, and forget the rest; see `EpochSink`."""
        self._limits = limits = self._broker.limits(compensates=self._kept is not None)
        if not self._broker.has_control():
            self._broker.make_control()
        transactions = self._broker.transactions(self._transactional_id, limits)
        # Nobody else can commit any more, so what is read now is final.
        plan = self._plan(resume, limits, there=True)
        if plan.stays:
            resume.say(f"{self._target.path}: {plan.stays}")
        found = None if plan.note is None else (plan.note, self._staged.find(plan.note))
        marker = plan.marker or Marker(
            secrets.token_hex(8), self._target.topic, resume.store_id, resume.flow_id, "", 0, ""
        )
        if self._kept is None or plan.stays or marker.topic_id != limits.id:
            # What was kept is not what this topic holds from now on.
            marker = replace(marker, kept="")
        owned = partial(Marker.owned_by, resume=resume, host=socket.gethostname(), topic_id=limits.id)
        self._production = production = Production(
            self._broker, self._control, self._staged, self._kept, transactions, owned(marker), resume.execution,
            self._most,
        )  # fmt: skip
        faults.reach("kafka.5.claimed")
        if self._kept is not None:
            self._kept.use(marker.sink)
            self._kept.claim(production.marker)
            if plan.back is not None:
                production.compensate(self._kept, owned(plan.back), resume)
        if found is not None:
            production.produce(*found)
        if self._kept is not None and not self._kept.is_usable:
            production.begin_keeping(self._kept, resume, limits)
        production.ahead = 0
        self._staged.use(marker.sink)
        self._staged.begin()
        self._control.close()
        self._prepared = None
        faults.reach("kafka.5")

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Stage the micro-batch's rows; see `EpochSink`."""
        assert self._production is not None, "rollback comes first"
        assert self._limits is not None
        directory = self._staged.directory(self._production.marker.execution, batch_id)
        write_records(batch, self._columns, self._staged.address(directory))
        self._staged.stage(batch_id, directory, self._limits, partial(host_of_task, batch))
        faults.reach("kafka.1")

    def prepare(self, output: EpochOutput) -> str:
        """Make the epoch's rows durable; see `EpochSink`."""
        production = self._production
        assert production is not None, "rollback comes first"
        marker = production.marker
        try:
            records, digest = self._staged.prepare(output.epoch, output.execution.id, output.batch)
        except SinkFailedError:
            # A later run removes what earlier ones have staged.
            production.check_owner()
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
        assert self._production is not None
        note, records = self._prepared
        assert note.epoch == output.epoch, f"epoch {note.epoch} was prepared"
        self._production.produce(note, records)
        self._staged.forget(records)
        self._production.ahead = 0
        self._prepared = None
        faults.reach("kafka.4")
        if self._kept is not None:
            self._kept.collect(output.floor)

    def release(self) -> None:
        """Let the clients go; see `EpochSink`."""
        self._control.close()
        if self._kept is not None:
            self._kept.close()
        self._work, self._production = self.work, None

    @property
    def work(self) -> SinkWork:
        """What the sink has done since the run began."""
        if self._production is None:
            return self._work
        waiting = max(self._staged.waiting - self._production.ahead, 0)
        return msgspec.structs.replace(self._production.work, staged=self._staged.staged, waiting=waiting)

    # ---- the steps

    @property
    def _transactional_id(self) -> str:
        return f"recovery.{self._target.control}.{self._target.name}"

    def _plan(self, resume: Resume, limits: TopicLimits, *, there: bool) -> Producing:
        """Return what a start does. there: whether the control topic is."""
        marker = decode_marker(self._control.newest(resume.say) if there else None, self._target)
        kept = self._kept

        def keeps(marker: Marker, epoch: int, execution: str) -> bool:
            assert kept is not None
            kept.use(marker.sink)
            return marker.topic_id == limits.id and kept.has(marker, epoch, execution)

        plan = plan_producing(self._target, marker, resume, limits.id, None if kept is None else keeps)
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
