"""What was produced into a topic, as the control topic and the partitions know it; and what a start does about it.

The marker is the newest record of the control topic under the sink's name. Each transaction that produces records also
writes the marker, so both appear or neither does. The note in the partitions says what the newest closed epoch should
have produced. A start compares the two: `plan_producing` is a function of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from recovery.base.printable import one_line
from recovery.base.untrusted_json import Count, decode_json
from recovery.errors import OutputMismatchError
from recovery.sinks.protocol import Resume

MOST_SHOWN = 256
"""How many executions a marker remembers."""
Keeps: TypeAlias = "Callable[[Marker, int, str], bool]"
"""Whether the records that the keys had as of an epoch, which an execution closed, are kept, and so are those of all
that the marker has shown since."""


@dataclass(frozen=True, slots=True)
class ShownEpochs:
    """The epochs `first` to `last` that an execution closed, and whose records are all in the topic."""

    execution: str
    first: Count
    last: Count


@dataclass(frozen=True, slots=True)
class Compensating:
    """A compensation that is not complete: the keys that epochs after `low` have touched get the records that they had
    as of `epoch`, which `execution` closed. produced: how many of the keys have them."""

    epoch: Count
    execution: str
    low: Count
    produced: Count


@dataclass(frozen=True, slots=True)
class Marker:
    """What a sink has produced, and which execution may go on.

    sink: a random id, drawn when the name is first used. topic_id: that the broker gave the topic. execution, number,
    host: of the run that may produce. epoch: the newest epoch with records in the topic, which execution `closed_by`
    closed; 0: none. produced: how many of its `total` records are in the topic. part: the number of its transactions so
    far. records: all records since the sink began. shown: which epochs of which executions are in the topic, the newest
    executions only. kept: the id of the file with the records that the keys had before; "": there is none.
    """

    sink: str
    topic: str
    store: str
    flow: str
    execution: str
    number: Count
    host: str
    formers: tuple[str, ...] = ()
    epoch: Count = 0
    closed_by: str = ""
    produced: Count = 0
    total: Count = 0
    part: Count = 0
    records: Count = 0
    shown: tuple[ShownEpochs, ...] = ()
    topic_id: str = ""
    kept: str = ""
    compensating: Compensating | None = None

    def owned_by(self, resume: Resume, host: str, topic_id: str) -> Marker:
        """Return the marker that an execution begins with."""
        execution = resume.execution
        return replace(
            self, topic_id=topic_id, store=resume.store_id, execution=execution.id, number=execution.number, host=host,
            formers=resume.formers,
        )  # fmt: skip

    def produces(self, note: KafkaNote, produced: int) -> Marker:
        """Return the marker of a transaction with which `produced` records of an epoch are in the topic."""
        is_begun = (self.epoch, self.closed_by) == (note.epoch, note.execution) and self.produced > 0
        following = replace(
            self, epoch=note.epoch, closed_by=note.execution, produced=produced, total=note.rows,
            part=self.part + 1 if is_begun else 1, records=note.records - note.rows + produced,
        )  # fmt: skip
        if following.produced < note.rows:
            return following
        *earlier, last = self.shown or (ShownEpochs(note.execution, note.epoch, 0),)
        if last.execution == note.execution:
            shown = (*earlier, replace(last, last=note.epoch))
        else:
            shown = (*self.shown, ShownEpochs(note.execution, note.epoch, note.epoch))
        return replace(following, shown=shown[-MOST_SHOWN:])

    def has(self, epoch: int, execution: str) -> bool:
        """Whether all records of an epoch that this execution closed are in the topic."""
        return any(each.execution == execution and each.first <= epoch <= each.last for each in self.shown)

    def back_at(self, epoch: int, closed_by: str, total: int, records: int) -> Marker:
        """Return the marker after a compensation: the topic has the values of an epoch with `total` records."""
        place = next(
            (
                n
                for n, each in enumerate(self.shown)
                if each.execution == closed_by and each.first <= epoch <= each.last
            ),
            -1,
        )
        shown = self.shown[: place + 1]
        return replace(
            self, epoch=epoch, closed_by=closed_by, produced=total, total=total, part=0, records=records,
            shown=(*shown[:-1], replace(shown[-1], last=epoch)) if shown else (), compensating=None,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KafkaNote:
    """What the partitions keep of the output: their newest epoch, and the digest of the list of its rows. rows: of the
    epoch. records: of all epochs since the sink began. after, after_by: the epoch before, and who closed it."""

    kafka: str
    topic: str
    name: str
    epoch: Count
    execution: str
    digest: str
    rows: Count
    records: Count
    after: Count
    after_by: str


@dataclass(frozen=True, slots=True)
class Producing:
    """What a start does: `marker` is the state to begin with, apart from the new execution; None: a new output. note:
    the closed epoch whose records are not all in the topic; None: all are. stays: says which records of abandoned
    epochs stay in the topic, by the user's leave; "": none. back: the state after the compensation that has to be done
    first; None: none has to."""

    marker: Marker | None
    note: KafkaNote | None = None
    stays: str = ""
    back: Marker | None = None


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """The target of a sink, by its names. fresh: as for KafkaSink."""

    topic: str
    name: str
    control: str
    servers: str
    fresh: bool

    @property
    def path(self) -> str:
        """The target as errors name it."""
        return f"topic {self.topic}"

    def mismatch(self, found: str, cause: str, remedy: str) -> OutputMismatchError:
        """Return the error about this target."""
        return OutputMismatchError(one_line(found), path=self.path, cause=cause, remedy=remedy)


def encode_marker(value: Marker | KafkaNote) -> bytes:
    """Return the value as JSON."""
    return msgspec.json.encode(value)


def decode_marker(data: bytes | None, target: KafkaTarget) -> Marker | None:
    """Decode the newest record of the control topic; None if there is none. Raises OutputMismatchError."""
    if data is None:
        return None
    return decode_json(
        data,
        lambda why: target.mismatch(
            f"control topic {target.control}: the newest record with key {target.name!r} cannot be read: {why}",
            "Something else writes to the control topic.",
            "Give the sink a control topic of its own (control=…), and a new output there: fresh=True.",
        ),
        Marker,
    )


def decode_kafka_note(text: str | None, target: KafkaTarget) -> KafkaNote | None:
    """Decode the note of the partitions; None if there is none. Raises OutputMismatchError."""
    if text is None:
        return None
    return decode_json(
        text,
        lambda _why: target.mismatch(
            "the flow's output so far was written by another kind of sink",
            "The sink of the flow was changed.",
            "Use the former sink, or begin a new output: KafkaSink(…, fresh=True).",
        ),
        KafkaNote,
    )


def plan_producing(
    target: KafkaTarget, marker: Marker | None, resume: Resume, topic_id: str, keeps: Keeps | None = None
) -> Producing:
    """Return what a start does. topic_id: of the topic that is there. keeps: of a sink that compensates. Raises
    OutputMismatchError or StaleDirectoryError where a start can do nothing exact."""
    if marker is None and target.fresh:
        return Producing(None)
    note = decode_kafka_note(resume.note, target)
    if marker is None:
        if note is not None:
            raise _unknown(target, note)
        return Producing(None)
    _check_owner(target, marker, resume, stays=keeps is None)
    if marker.records and marker.topic_id != topic_id and not resume.accepts_loss:
        raise target.mismatch(
            f"the topic was deleted and made again since: the {marker.records} records of the epochs up to "
            f"{marker.epoch} went to the former one",
            "Somebody deleted the topic, or the servers are those of another cluster.",
            "Give the right servers, or restore the topic. To go on with the new one, without these records: "
            "--lose-epochs, for one run.",
        )
    if note is not None and note.kafka != marker.sink:
        raise target.mismatch(
            f"control topic {target.control} knows another output under the name {target.name!r} than the snapshot, "
            f"which belongs to epoch {note.epoch} of topic {note.topic}",
            "The partitions are from before a new output was begun (fresh=True), or were given another sink's name.",
            "Restore newer partitions, or give the sink the name and topic that it had: "
            f"KafkaSink({note.topic!r}, name={note.name!r}).",
        )
    if marker.compensating is not None:
        return _gone_back(target, marker, note, resume, keeps)
    if note is not None and (marker.epoch, marker.closed_by) == (note.epoch, note.execution):
        return Producing(marker, note if marker.produced < note.rows else None)
    if note is not None and _precedes(marker, note):
        return Producing(marker, note)
    if marker.epoch == 0 and note is None:
        return Producing(marker)
    on_this_timeline = marker.epoch == 0 or resume.closed(marker.epoch, marker.closed_by)
    if note is not None and marker.epoch < note.epoch and on_this_timeline:
        raise target.mismatch(
            f"the snapshot says that all records of the epochs before {note.epoch} were produced, and control topic "
            f"{target.control} knows epoch {marker.epoch} as the newest one, with {marker.produced} of {marker.total} "
            "records",
            "The topics are from another time than the partitions, or a failover lost the broker's newest "
            "transactions.",
            f"To go on with these topics, go back to that epoch: run once with --resume-after {marker.epoch}. The "
            "epochs after it are computed again, from input that must still exist.",
        )
    return _gone_back(target, marker, note, resume, keeps)


def _precedes(marker: Marker, note: KafkaNote) -> bool:
    """Whether exactly the note's epoch is missing in the topic."""
    before = marker.epoch, marker.closed_by, marker.records, marker.produced
    return before == (note.after, note.after_by, note.records - note.rows, marker.total)


def _check_owner(target: KafkaTarget, marker: Marker, resume: Resume, *, stays: bool) -> None:
    """Raise unless the topic's output is this store's and flow's, and these partitions know all of it."""
    own = "KafkaSink(…, fresh=True) with another topic or name"
    resume.check_origin(target.path, marker.store, marker.formers, own=own)
    if not resume.shares(marker.store, marker.formers) or marker.flow != resume.flow_id:
        raise target.mismatch(
            f"its records are produced by flow {marker.flow!r} on recovery directory {marker.store}, under the name "
            f"{target.name!r}; this is flow {resume.flow_id!r} on {resume.store_id}",
            "Two flows use one name, or the recovery directory was created a second time: its flow would produce all "
            "records again.",
            f"Run the flow on recovery directory {marker.store}. Two flows may write to one topic under two names, and "
            "a new name produces everything from the beginning: KafkaSink(…, name='…').",
        )
    if marker.topic != target.topic:
        raise target.mismatch(
            f"the name {target.name!r} belongs to topic {marker.topic}",
            "The sink was given another topic under the same name.",
            f"Give it {marker.topic} again; or another name and fresh=True, to begin a new output.",
        )
    newest = marker.epoch if marker.closed_by == marker.execution else 0
    resume.check_known(
        marker.execution,
        target.path,
        number=marker.number,
        host=marker.host,
        epoch=newest,
        store=marker.store,
        formers=marker.formers,
        stays=stays,
    )


def _unknown(target: KafkaTarget, note: KafkaNote) -> OutputMismatchError:
    if (note.topic, note.name) != (target.topic, target.name):
        return target.mismatch(
            f"the snapshot says that epoch {note.epoch} was produced into topic {note.topic}, under the name "
            f"{note.name!r}",
            "The sink was given another topic or name.",
            f"Give it topic {note.topic} and name {note.name!r} again; or begin a new output: fresh=True.",
        )
    return target.mismatch(
        f"the snapshot says that epoch {note.epoch} was produced, with {note.records} records so far, and control "
        f"topic {target.control} at {target.servers} has no record of it under the name {target.name!r}",
        "The servers are those of another cluster, or the control topic was deleted or made again.",
        "Give the right servers and control topic, or restore the control topic. To begin a new output after what the "
        "topic holds: fresh=True; whether the newest epoch was produced is then unknown.",
    )


def _gone_back(
    target: KafkaTarget, marker: Marker, note: KafkaNote | None, resume: Resume, keeps: Keeps | None
) -> Producing:
    """Return how to go back behind epochs that were produced: by a compensation; without, if the user accepts that."""
    last, known = (0, 0) if note is None else (note.epoch, note.records)
    epochs = f"epoch {marker.epoch}" if marker.epoch <= last + 1 else f"epochs {last + 1} to {marker.epoch}"
    behind = f"{max(marker.records - known, 0)} records of {epochs} are in the topic"
    if keeps is not None:
        back, missing = _back(marker, note)
        if back is not None and keeps(marker, back.epoch, back.closed_by):
            return Producing(marker, missing, back=back)
    if not resume.accepts_loss:
        raise _refused(target, marker, behind, resume, keeps)
    stays = f"{behind}; they stay there, and this run produces these epochs again"
    marker = replace(marker, compensating=None)
    if note is None:
        return Producing(replace(marker, epoch=0, closed_by="", produced=0, total=0, part=0, records=0), stays=stays)
    if marker.has(note.epoch, note.execution):
        begun = replace(marker, epoch=last, closed_by=note.execution, produced=note.rows, total=note.rows)
        return Producing(replace(begun, records=known), stays=stays)
    begun = replace(marker, epoch=note.after, closed_by=note.after_by, produced=0, total=0)
    return Producing(replace(begun, records=known - note.rows), note, stays=stays)


def _back(marker: Marker, note: KafkaNote | None) -> tuple[Marker | None, KafkaNote | None]:
    """Return the state after the compensation that leads to a note, and the note if its records are produced after
    that. None: the topic has never had what precedes them."""
    if note is None:
        return marker.back_at(0, "", 0, 0), None
    if marker.has(note.epoch, note.execution):
        return marker.back_at(note.epoch, note.execution, note.rows, note.records), None
    if note.after == 0 or marker.has(note.after, note.after_by):
        return marker.back_at(note.after, note.after_by, 0, note.records - note.rows), note
    return None, None


def _refused(
    target: KafkaTarget, marker: Marker, behind: str, resume: Resume, keeps: Keeps | None
) -> OutputMismatchError:
    """Return the error about a start that would go back behind epochs that were produced."""
    restore = f"Leave out --resume-after, or restore partitions that hold epoch {marker.epoch}."
    lose = "If readers can bear these records twice: --lose-epochs, for one run."
    back = f"this run would go back to epoch {resume.epoch}, and {behind} (the newest of execution {marker.closed_by})"
    if keeps is None and marker.compensating is not None:
        return target.mismatch(
            f"a run with compensate=True has begun to give the keys the values of epoch {marker.compensating.epoch}, "
            f"and was killed after {marker.compensating.produced} keys",
            "The sink of that run had compensate=True, and this one has not.",
            f"Give the sink compensate=True again. {lose}",
        )
    if keeps is None:
        return target.mismatch(
            f"{back}: they cannot be removed, and would be produced a second time",
            "--resume-after asks the run to go back, or the partitions were restored from an earlier time.",
            f"{restore} {lose}",
        )
    known = [
        (epoch, each.execution) for each in marker.shown for epoch in range(each.first, each.last + 1)
        if keeps(marker, epoch, each.execution)
    ]  # fmt: skip
    # Epochs of this timeline lie below the one to go back to: another copy of the partitions went on from there.
    own = [epoch for epoch, execution in known if resume.closed(epoch, execution)]
    nearest = max(own) if own else min((epoch for epoch, _ in known), default=None)
    possible = "" if nearest is None else f" As far as this is possible: --resume-after {nearest}."
    return target.mismatch(
        f"{back}: which values the keys had then is not kept",
        "The epoch is older than what a run can go back to, compensate=True was given later, or the kept records were "
        "removed, restored from another time, or are in another directory.",
        f"{restore}{possible} {lose}",
    )
