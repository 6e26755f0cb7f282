"""The consumer group that shows tools of Kafka how far a flow has come. No run reads on from the group's offsets."""

from __future__ import annotations

import logging

from recovery.base.clock import Clock
from recovery.base.printable import one_line
from recovery.planning.topics import GROUP_MARK
from recovery.spark.jvm.errors import JVM_GONE
from recovery.spark.jvm.kafka_groups import KafkaWatch, Offsets, why_not_shown

_log = logging.getLogger("recovery")
OFF = "off"
AGAIN_S = 6 * 3600.0
"""How often all offsets are committed, also those that have not changed: Kafka forgets each one after a time, a week by
default."""


class ConsumerGroup:
    """One consumer group at the brokers of one source or more; for one thread.

    The offsets of a group are where its consumers go on. So a group is left alone that has members, or offsets that no
    run has committed: they are of a consumer that reads the topic, and may only be away.
    """

    def __init__(self, name: str, text: str, clock: Clock) -> None:
        """text: what the metadata of the offsets says besides that a run has committed them."""
        self.name = name
        self.problem: str | None = None
        """Why the group does not show the newest epoch; None: it does."""
        self._text = text
        self._clock = clock
        self._shown: Offsets = {}
        self._again_s = 0.0
        self._has_warned = False

    def show(self, watch: KafkaWatch, offsets: Offsets) -> None:
        """Let the group show these offsets. Raises the errors of asking the brokers; see `failed`."""
        if self._clock.elapsed_s() >= self._again_s:
            self._shown = {}
        changed = {
            topic: {n: at for n, at in partitions.items() if self._shown.get(topic, {}).get(n) != at}
            for topic, partitions in offsets.items()
        }
        if any(changed.values()):
            # Each time: consumers may have come and gone since.
            if not all(text.startswith(GROUP_MARK) for text in watch.metadata(self.name)):
                self._warn(
                    "another program has committed offsets for the group, which were not touched: name another one "
                    "(--kafka-group)"
                )
                return
            watch.commit(self.name, changed, self._text)
        if not self._shown:
            self._again_s = self._clock.elapsed_s() + AGAIN_S
        self._shown, self.problem = offsets, None

    def failed(self, error: BaseException) -> None:
        """Take what has kept the offsets from being shown: a warning once. The next offsets are tried again."""
        # The brokers may have kept some of the offsets.
        self._shown = {}
        # The run says itself that its JVM is gone.
        if not isinstance(error, JVM_GONE):
            self._warn(why_not_shown(error, self.name))

    def _warn(self, why: str) -> None:
        self.problem = why
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s", one_line(f"consumer group {self.name} does not show the run's offsets to tools of Kafka: {why}. "
                               "The run goes on."),
            )  # fmt: skip
