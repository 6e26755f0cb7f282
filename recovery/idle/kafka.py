"""Whether topics of Kafka have records that an epoch lacks, as the brokers say now.

Asked without Spark, so only where that needs no secret. Topics and partitions have to be exactly those of the position,
each with its end there: anything else is for Spark's own start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from recovery.planning.lost_input import Needed, PartKind, There, losses
from recovery.planning.topics import GROUP_MARK, Offsets, Subscription, lowest, offsets_in

if TYPE_CHECKING:
    from recovery.sinks.kafka.client import Client

ANSWER_S = 3.0
"""How long a broker may take for an answer."""
ISOLATION = "kafka.isolation.level"
SERVERS = "kafka.bootstrap.servers"
PROTOCOL = "kafka.security.protocol"
KEPT = (SERVERS, ISOLATION, "subscribe", "subscribepattern", "assign")
"""Options that a note keeps, in lower case."""
_OF_SPARK = (
    "failondataloss", "fetchoffset.numretries", "fetchoffset.retryintervalms", "groupidprefix", "includeheaders",
    "kafkaconsumer.polltimeoutms", "maxoffsetspertrigger", "maxrecordsperpartition", "maxtriggerdelay",
    "minoffsetspertrigger", "minpartitions", "startingoffsets", "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy", "startingtimestamp",
)  # fmt: skip
"""Options of the connector that do not change which records there are: how they are cut into micro-batches, and where
topics begin that no run has read."""
_OF_CLIENTS = tuple(
    f"kafka.{name}"
    for name in (
        "client.id", "client.rack", "connections.max.idle.ms", "default.api.timeout.ms", "fetch.max.bytes",
        "fetch.max.wait.ms", "fetch.min.bytes", "group.id", "heartbeat.interval.ms", "max.partition.fetch.bytes",
        "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms", "receive.buffer.bytes",
        "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retry.backoff.ms",
        "send.buffer.bytes", "session.timeout.ms",
    )
)  # fmt: skip
"""Options of Kafka's clients that say how they ask, and not whom, as whom or what."""
_LEVELS = ("read_committed", "read_uncommitted")


def why_not_asked(options: Mapping[str, str]) -> str | None:
    """Return why only Spark can ask the brokers of a source; None: this package can. options: names in lower case."""
    others = sorted(options.keys() - {*KEPT, PROTOCOL, *_OF_SPARK, *_OF_CLIENTS})
    if options.get(PROTOCOL, "PLAINTEXT") != "PLAINTEXT":
        others.append(PROTOCOL)
    if options.get(ISOLATION, _LEVELS[0]) not in _LEVELS:
        others.append(ISOLATION)
    if others:
        return f"only Spark asks brokers with the option {others[0]}"
    subscription = Subscription.of(options)
    if not subscription.is_certain:
        return f"only Spark knows which topics match {subscription.pattern}"
    return None if options.get(SERVERS) else f"the source lacks {SERVERS}"


def new_records(options: Mapping[str, str], text: str, identities: Mapping[str, str]) -> str | None:
    """Return what a run would find to read in topics, as text, or why that is not known; None: nothing.

    options: those that the note keeps. text: the epoch's position in the topics. identities: the ids of topics, by
    name, as the position has them. Raises RecoveryError if a broker does not answer.
    """
    at, subscription = offsets_in(text), Subscription.of(options)
    if at is None or why_not_asked(options) is not None:
        return "only Spark can read the position in Kafka"
    client = _client(options)
    is_pattern = subscription.pattern is not None
    names = sorted(filter(subscription.covers, client.names()) if is_pattern else subscription.names)
    # Spark's own list of topics has no internal ones.
    found = {name: each for name, each in client.described(names).items() if not (is_pattern and each.is_internal)}
    known = {(topic, number): offset for topic, partitions in at.items() for number, offset in partitions.items()}
    if subscription.partitions is None:
        wanted = {(topic, each.id) for topic, described in found.items() for each in described.partitions}
    else:
        wanted = {(topic, number) for topic, numbers in subscription.partitions.items() for number in numbers}
    for topic in sorted(subscription.names - found.keys()):
        return f"there is no topic {topic}"
    for topic, number in sorted(wanted - known.keys()):
        return f"partition {number} of topic {topic} is new"
    for topic, number in sorted(known.keys() - wanted):
        return f"partition {number} of topic {topic} is gone, or not read any more"
    committed = options.get(ISOLATION) == _LEVELS[0]
    bounds = client.offsets(sorted(wanted), "earliest", "latest", committed=committed)
    there = {(topic, str(number)): There(first, end, _id(client.id_of(found[topic]), identities.get(topic)))
             for (topic, number), (first, end) in bounds.items()}  # fmt: skip
    needed = [Needed(topic, str(number), PartKind.TOPIC_PARTITION, offset, offset, identities.get(topic))
              for (topic, number), offset in known.items()]  # fmt: skip
    for loss in losses(needed, there):
        return f"partition {loss.needed.part} of topic {loss.needed.source} is not as it was read: {loss.change.value}"
    behind = sorted(topic for (topic, number), (_, end) in bounds.items() if end != known[topic, number])
    return f"new records in topic {behind[0]}" if behind else None


def not_shown(group: str, sources: Sequence[tuple[Mapping[str, str], str]]) -> str | None:
    """Return that a consumer group does not show where the sources are, which a start corrects, as text; None: it does.

    sources: options and position of each one. Raises RecoveryError if a broker does not answer.
    """
    clusters: dict[str, list[Offsets]] = {}
    clients = {}
    for options, text in sources:
        clusters.setdefault(options[SERVERS], []).append(offsets_in(text) or {})
        clients[options[SERVERS]] = options
    for servers, offsets in clusters.items():
        at = {(topic, n): offset for topic, parts in lowest(offsets).items() for n, offset in parts.items()}
        shown = _client(clients[servers]).committed(group, at)
        if any(shown[part][0] != offset or not shown[part][1].startswith(GROUP_MARK) for part, offset in at.items()):
            return f"consumer group {group} does not show the newest epoch"
    return None


def _client(options: Mapping[str, str]) -> Client:
    # Other sources do without the sinks and their modules.
    from recovery.sinks.kafka.client import Client

    topics = options.get("subscribe") or options.get("subscribepattern") or options.get("assign", "")
    return Client("a look at Kafka without Spark", options[SERVERS], topics, {}, ANSWER_S)


def _id(found: str, known: str | None) -> str:
    """Return the id of a topic; the text by which it is known if the id is among those of several clusters."""
    return known if known is not None and found in known.split() else found
