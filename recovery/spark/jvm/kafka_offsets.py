"""What a Kafka broker says about topics: the topics' ids, and the first and the next offset of each partition.

Asked through the client that comes with Spark's connector, with the options that the flow gives it. The questions need
the rights that reading needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from recovery.errors import InputUnavailableError, RecoveryError
from recovery.spark.jvm.errors import JVM_GONE
from recovery.spark.jvm.failure_table import BAD_OPTION
from recovery.spark.jvm.lost_topics import NO_TOPIC
from recovery.spark.jvm.plan_nodes import seq

ANSWER_S = 60
"""How long a broker may take for an answer: as long as Kafka's own client waits by default."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. bounds: the first and the next offset of each partition, by its number."""

    id: str
    bounds: Mapping[int, tuple[int, int]]


def topics_at(spark: SparkSession, options: Mapping[str, str], names: Iterable[str]) -> dict[str, Topic]:
    """Return those topics that exist. options: the options of a source, by their names in lower case.

    Raises InputUnavailableError if the broker does not answer, and ConfigurationError for an option that Kafka does not
    take.
    """
    jvm: Any = spark._jvm
    wanted = jvm.java.util.ArrayList()
    for name in sorted(set(names)):
        wanted.add(name)
    with _client(jvm, options) as client:
        described = client.describeTopics(wanted).topicNameValues()
        found: dict[str, Topic] = {}
        for name in wanted:
            topic = _answer(jvm, described[name])
            if topic is not None:
                partitions = [each.partition() for each in topic.partitions()]
                first, after = (_offsets(jvm, client, name, partitions, spec) for spec in ("earliest", "latest"))
                found[name] = Topic(topic.topicId().toString(), {n: (first[n], after[n]) for n in partitions})
        return found


def names_at(spark: SparkSession, options: Mapping[str, str]) -> set[str]:
    """Return the names of the topics that this user may see, without those that Kafka itself needs. options: as for
    `topics_at`. Raises what `topics_at` raises."""
    jvm: Any = spark._jvm
    with _client(jvm, options) as client:
        listed = client.listTopics().names().get(ANSWER_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
        # As one text: a call into the JVM for each of thousands of names takes longer than the broker.
        return set(filter(None, str(listed.toString()).strip("[]").split(", ")))


def found_by(spark: SparkSession, pattern: str, topics: Iterable[str]) -> set[str]:
    """Return those names of topics in which Java finds a pattern, as Spark's connector searches for it; all of them for
    a pattern that Java refuses: Spark says why."""
    jvm: Any = spark._jvm
    names = set(topics)
    try:
        compiled = jvm.java.util.regex.Pattern.compile(pattern)
        return {name for name in names if compiled.matcher(name).find()}
    except (Py4JError, PySparkException):
        return names


@contextlib.contextmanager
def _client(jvm: Any, options: Mapping[str, str]) -> Iterator[Any]:
    client = None
    try:
        client = open_client(jvm, options)
        yield client
    except (Py4JError, PySparkException) as error:
        raise _unanswered(options, error) from error
    finally:
        if client is not None:
            close_client(jvm, client)


def open_client(jvm: Any, options: Mapping[str, str]) -> Any:
    """Return Kafka's own client for questions, with the options of a source by their names in lower case."""
    settings = jvm.java.util.HashMap()
    for name, value in options.items():
        if name.startswith("kafka."):
            settings.put(name.removeprefix("kafka."), value)
    # The connector's own way: it adds the delegation tokens that Spark has.
    return jvm.org.apache.spark.sql.kafka010.SubscribeStrategy(seq(jvm, [])).createAdmin(settings)


def close_client(jvm: Any, client: Any) -> None:
    """Close a client of `open_client`, within a second. A failure to close it raises nothing."""
    with contextlib.suppress(Py4JError, PySparkException, *JVM_GONE):
        client.close(jvm.java.time.Duration.ofSeconds(1))


def _answer(jvm: Any, future: Any) -> Any | None:
    """Return the broker's answer to a question; None if there is no such topic."""
    try:
        return future.get(ANSWER_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
    except (Py4JError, PySparkException) as error:
        if NO_TOPIC in _text(error):
            return None
        raise


def _offsets(jvm: Any, client: Any, topic: str, partitions: Iterable[int], spec: str) -> dict[int, int]:
    places = {number: jvm.org.apache.kafka.common.TopicPartition(topic, number) for number in partitions}
    asked = jvm.java.util.HashMap()
    for place in places.values():
        asked.put(place, getattr(jvm.org.apache.kafka.clients.admin.OffsetSpec, spec)())
    answers = client.listOffsets(asked)
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    return {n: int(answers.partitionResult(place).get(ANSWER_S, seconds).offset()) for n, place in places.items()}


def _text(error: BaseException) -> str:
    """Return an error's text with that of its causes: a client's future wraps what happened."""
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else None
    return f"{error}\n{'' if thrown is None else thrown.getCause()}"


def _unanswered(options: Mapping[str, str], error: BaseException) -> RecoveryError:
    servers = options.get("kafka.bootstrap.servers", "")
    thrown = error.java_exception if isinstance(error, Py4JJavaError) else None
    reason = str(error).splitlines()[0] if thrown is None else str(thrown.toString())
    cause = None if thrown is None else thrown.getCause()
    if cause is not None and str(cause.toString()) not in reason:
        reason = f"{reason}: {cause.toString()}"
    assert BAD_OPTION.pattern is not None
    bad = BAD_OPTION.pattern.search(reason)
    if bad is not None:
        return BAD_OPTION.error(bad.groupdict())
    return InputUnavailableError(
        f"Kafka at {servers} does not say which records it has: {reason}",
        cause="The broker cannot be reached, or refuses this user; or this user may not describe the topics.",
        remedy="Check the broker, its address and the credentials; then run the same command again: nothing was "
        "changed.",
    )
