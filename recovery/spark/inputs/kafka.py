"""Topics of Kafka: whether the records from the position on are still there, and whether the topics are those that were
read before."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec
from pyspark.sql import SparkSession

from recovery.base.outside import Answers, CannotTell, Checked, DoesNotApply, Moment, Question
from recovery.errors import InputLostError, RecoveryError
from recovery.planning.lag import PartLag
from recovery.planning.lost_input import SHOWN_PARTS, Change, Loss, Needed, PartKind, There
from recovery.planning.topics import Offsets, Subscription, offsets_in
from recovery.spark.clusters import Input
from recovery.spark.inputs.kafka_group import ConsumerGroup
from recovery.spark.inputs.protocol import Looked, Resumes
from recovery.spark.jvm.kafka_groups import KafkaWatch
from recovery.spark.jvm.kafka_offsets import Topic, found_by, names_at, topics_at
from recovery.spark.jvm.lost_input import no_topic

_LOOKS = (Moment.START, Moment.GOING_BACK)
_CAUSE = "Retention removed the records, or the topic was deleted, made again, or left out of the flow."


class LeftTopic(msgspec.Struct, frozen=True):
    """Where a flow has left a topic: the next offset of each partition, and the topic's id; None: unknown."""

    at: dict[int, int]
    id: str | None = None


class KafkaInput:
    """The `StreamInput` of one Kafka source. The name of a loss is the topic."""

    answers: ClassVar[Answers] = {
        Question.SAME: Checked(
            "the id of each topic, kept with the position, and with where the input begins, since the first run that "
            "saw it when it started; whether a topic is back that a run was left without",
            _LOOKS,
        ),
        Question.THERE: Checked("first and next offset of each partition of the position and of what was read", _LOOKS),
        Question.CHANGED: CannotTell("Records are never changed; a compacted topic loses records between others."),
        Question.ABLE: Checked("the broker answers this user about each topic", _LOOKS),
        Question.OWNER: DoesNotApply(),
    }

    tells_lag: ClassVar[bool] = True

    def __init__(self, stream: Input, resumes: Resumes, spark: SparkSession) -> None:
        self._options = stream.options
        self._subscription = Subscription.of(stream.options)
        self._spark = spark
        self._watch: KafkaWatch | None = None
        self._at = offsets_in(resumes.at) or {}
        reads = [found for text in resumes.reached.offsets if (found := offsets_in(text)) is not None]
        self._known = resumes.identities
        self._left = resumes.left
        self._back: dict[str, dict[int, int]] = {}
        mine = self._covered(set().union(*reads)) | self._at.keys()
        self._reached: Offsets = {topic: _furthest(topic, [self._at, *reads]) for topic in mine}

    def look(self) -> Looked:
        """Look at the topics, and change nothing. Raises InputLostError or FlowFailedError for a topic that the flow
        names and that does not exist, and InputUnavailableError if the broker does not answer."""
        named = self._subscription.names
        is_pattern = self._subscription.pattern is not None
        # The first run keeps the ids as well, before it has read anything.
        matching = self._covered(names_at(self._spark, self._options)) if is_pattern else set()
        returns = self._covered(self._left.keys() - self._at.keys())
        asked = {*self._reached, *named, *matching, *returns}
        if not asked:
            return Looked()
        found = topics_at(self._spark, self._options, asked)
        lacks = sorted(named - found.keys())
        # What Spark says of a topic that it has not read yet is as clear.
        if lacks and self._reached:
            raise no_topic(lacks, read=set(lacks) & self._reached.keys())
        covered = self._covered(found)
        here = {topic: each for topic, each in found.items() if topic in covered}
        back = {topic: self._again(topic, here[topic]) for topic in sorted(returns & here.keys())}
        looked = Looked(
            errors=tuple((topic, error) for topic, (error, _) in back.items()),
            identities={topic: each.id for topic, each in here.items()},
            left={
                topic: msgspec.json.encode(LeftTopic(at, self._identity(topic, found))).decode()
                for topic, at in self._at.items()
                if topic not in here
            },
            back=tuple(back),
            said={topic: said for topic, (_, said) in back.items()},
        )
        if self._options.get("failondataloss", "true").strip().lower() == "false":
            return looked
        needed = tuple(
            Needed(topic, str(number), PartKind.TOPIC_PARTITION, self._at.get(topic, {}).get(number, 0), reached,
                   self._identity(topic, here))
            for topic, partitions in self._reached.items() for number, reached in partitions.items()
        )  # fmt: skip
        return replace(looked, needed=needed, there=_there(here), causes=dict.fromkeys(self._reached, _CAUSE))

    def _covered(self, topics: Iterable[str]) -> set[str]:
        """Return those topics that the source reads. Java searches for a pattern, as for Spark: it has what Python
        lacks."""
        pattern = self._subscription.pattern
        if pattern is None or self._subscription.is_certain:
            return set(filter(self._subscription.covers, topics))
        return found_by(self._spark, pattern, topics)

    def _identity(self, topic: str, there: Mapping[str, Topic]) -> str | None:
        """Return the id by which the topic was known; None: by none. Sources of several clusters may have read topics
        of this name: the id of the one that is there, if it is among theirs."""
        known = self._known.get(topic)
        return there[topic].id if topic in there and there[topic].id in (known or "").split() else known

    def _again(self, topic: str, there: Topic) -> tuple[RecoveryError, str]:
        """Return the error for a topic that the flow has read, but not in this source's position; and what happens if
        that is accepted: the flow goes on where it has left the topic."""
        left = _left_topic(self._left[topic])
        is_same = left.id is None or there.id in left.id.split()
        self._back[topic] = goes_on = {
            number: min(max(first, left.at[number]), end)
            for number, (first, end) in there.bounds.items()
            if is_same and number in left.at
        }
        said = "read on where the flow has left it" if goes_on else "read from its first record"
        if not is_same:
            said = f"another topic than the one that was read, {said}"
        gone = [f"{n}, offsets {left.at[n]} to {at - 1}" for n, at in goes_on.items() if at > left.at[n]]
        if gone:
            said += f"; without what is gone of partition {'; '.join(gone[:SHOWN_PARTS])}"
        read = [f"partition {n} up to offset {at - 1}" for n, at in sorted(left.at.items())[:SHOWN_PARTS] if at]
        found = (
            f"the flow has read topic {topic} before ({', '.join(read) or 'no records'}), and names it now for a "
            "source that has no position in it. Nothing was changed: the run would read the topic from its beginning, "
            "and what was read there would count twice"
        )
        remedy = f"Run once with --lose-input {shlex.quote(topic)}: then the topic is {said}."
        cause = (
            "The topic was not in the flow, or did not exist, in a run with --lose-input or failOnDataLoss=false; or "
            "another source of the flow has read it."
        )
        return InputLostError(found, cause=cause, remedy=remedy), said

    def goes_on(self, lost: Sequence[Loss]) -> str | None:
        at = {topic: dict(partitions) for topic, partitions in self._at.items()}
        for loss in lost:
            partitions, number, to = at.setdefault(loss.needed.source, {}), int(loss.needed.part), loss.goes_on_at
            if to is None:
                partitions.pop(number, None)
            elif number in partitions or loss.change is not Change.SHORTENED:
                partitions[number] = to
        at.update(self._back)
        return msgspec.json.encode({topic: partitions for topic, partitions in at.items() if partitions}).decode()

    @property
    def servers(self) -> str:
        """The brokers, as the flow names them."""
        return self._options.get("kafka.bootstrap.servers", "")

    def offsets(self, at: str) -> Offsets:
        """Return the offset of the source as numbers."""
        return offsets_in(at) or {}

    def behind(self, at: str) -> Sequence[PartLag]:
        """Return the records beyond an offset in each of its partitions, as the brokers say now."""
        offsets = self.offsets(at)
        if not offsets:
            return ()
        ends = self._opened().ends(offsets)
        return [
            PartLag(self.servers, topic, str(number), "record", read, max(read, ends[topic, number]),
                    max(0, ends[topic, number] - read))
            for topic, partitions in offsets.items() for number, read in partitions.items()
        ]  # fmt: skip

    def show(self, group: ConsumerGroup, offsets: Offsets) -> None:
        """Let a consumer group show offsets to tools of Kafka. Raises nothing."""
        try:
            watch = self._opened()
            group.show(watch, offsets)
        except Exception as error:
            group.failed(error)

    def close(self) -> None:
        """Close the client, within a second."""
        if self._watch is not None:
            self._watch.close()

    def _opened(self) -> KafkaWatch:
        if self._watch is None:
            self._watch = KafkaWatch(self._spark, self._options)
        return self._watch


def _there(topics: Mapping[str, Topic]) -> dict[tuple[str, str], There]:
    return {
        (name, str(number)): There(first, after, topic.id)
        for name, topic in topics.items()
        for number, (first, after) in topic.bounds.items()
    }


def _left_topic(text: str) -> LeftTopic:
    """Return where a flow has left a topic; nowhere if a partition does not say it."""
    try:
        return msgspec.json.decode(text, type=LeftTopic)
    except (ValueError, RecursionError):
        return LeftTopic({})


def _furthest(topic: str, reads: Sequence[Offsets]) -> dict[int, int]:
    furthest: dict[int, int] = {}
    for each in reads:
        for number, offset in each.get(topic, {}).items():
            furthest[number] = max(offset, furthest.get(number, 0))
    return furthest
