"""What a Kafka broker says when the sink asks something of it, as one table: whether the cause passes
(`SinkFailedError`), a person has to correct something (`SinkRefusedError`), or a later run has taken over
(`LeaseLostError`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recovery.base.printable import one_line
from recovery.errors import LeaseLostError, RecoveryError, SinkFailedError, SinkRefusedError

_AGAIN = "run the same command again: nothing is lost or produced twice."


@dataclass(frozen=True, slots=True)
class BrokerRefusal:
    """Why a broker does not do what the sink asks.

    means: what the broker says. why: why the run ends with `error`; both for the documentation. names: of the errors in
    Kafka's protocol, and of those of librdkafka, which begin with "_".
    """

    means: str
    names: tuple[str, ...]
    error: type[RecoveryError]
    why: str
    cause: str
    remedy: str


FENCED = BrokerRefusal(
    "another producer has begun with this `transactional.id`",
    ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "_FATAL", "_STATE"),
    LeaseLostError,
    "the later run owns the topic's output",
    "This run was suspended or cut off, or a copy of its directory was started, and another run has taken over.",
    "Let the later run continue: nothing of this run was accepted after the later one began.",
)
RIGHTS = BrokerRefusal(
    "this user may not do it, or the credentials are wrong",
    (
        "TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION", "DELEGATION_TOKEN_EXPIRED",
    ),
    SinkRefusedError,
    "somebody has to grant the right",
    "This user lacks a right at the broker, or the credentials are wrong.",
    "Grant the rights that docs/sinks.md lists (WRITE and DESCRIBE on the topic, READ and WRITE on the control topic, "
    f"WRITE and DESCRIBE on the transactional id), or correct the credentials; then {_AGAIN}",
)  # fmt: skip
MISSING = BrokerRefusal(
    "no such topic or partition",
    ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "TOPIC_EXCEPTION", "UNKNOWN_TOPIC_ID"),
    SinkRefusedError,
    "somebody has to make the topic, or to correct its name",
    "The name is wrong, or the topic was deleted.",
    f"Make the topic, or correct its name or the servers; then {_AGAIN}",
)
RECORD = BrokerRefusal(
    "a record that is too large for the topic, has no key in a compacted topic, or has a time that the topic refuses",
    ("MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_TIMESTAMP", "INVALID_MSG", "_BAD_MSG"),
    SinkRefusedError,
    "somebody has to change the topic",
    "The topic's limits were changed after the row was staged.",
    f"Change the topic's settings back (max.message.bytes, cleanup.policy, message.timestamp.*); then {_AGAIN} Or "
    "abandon the epoch with --resume-epoch, as long as it is held and nothing of it was produced.",
)
IMPOSSIBLE = BrokerRefusal(
    "transactions are not possible: the broker is too old or limits them, or cannot keep the topic of transactions",
    (
        "UNSUPPORTED_VERSION", "_UNSUPPORTED_FEATURE", "INVALID_TRANSACTION_TIMEOUT", "INVALID_REPLICATION_FACTOR",
        "POLICY_VIOLATION", "INVALID_CONFIG", "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    ),
    SinkRefusedError,
    "somebody has to change the broker's settings, or those of the sink",
    "The broker is older than Kafka 2.5, or its settings do not admit what the sink asks.",
    "Look at the broker's transaction.state.log.replication.factor, transaction.state.log.min.isr and "
    f"transaction.max.timeout.ms, and at the sink's options; then {_AGAIN}",
)  # fmt: skip
AWAY = BrokerRefusal(
    "anything else: no broker is reachable, a partition has no leader, a transaction took too long",
    (),
    SinkFailedError,
    "brokers and networks come back",
    "The brokers, or the network to them, are failing or too slow.",
    f"When they are there again, {_AGAIN}",
)
BROKER_REFUSALS = (FENCED, RIGHTS, MISSING, RECORD, IMPOSSIBLE, AWAY)
"""All rows. The last one is for every error that no other names."""


def broker_refusal(error: Any) -> BrokerRefusal:
    """Return the row for a KafkaError."""
    return next((each for each in BROKER_REFUSALS if error.name() in each.names), AWAY)


def broker_error(error: Any, topic: str, doing: str, said: Any = None) -> RecoveryError:
    """Return the error that a run ends with. error: a KafkaError. doing: what was being done. said: the KafkaError that
    the client reported before, which often says more."""
    causes = [each for each in (said, error) if each is not None]
    chosen = next((each for each in causes if broker_refusal(each) is not AWAY), error)
    refusal = broker_refusal(chosen)
    words = " / ".join(dict.fromkeys(f"{each.str()} ({each.name()})" for each in (error, chosen)))
    found = one_line(f"{doing}: the broker says: {words}")
    return refusal.error(found, path=f"topic {topic}", cause=refusal.cause, remedy=refusal.remedy)
