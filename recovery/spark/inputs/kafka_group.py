"""The consumer group that shows tools of Kafka how far a flow has come. No run reads on from the group's offsets."""

from __future__ import annotations

import logging

from recovery.base.printable import one_line
from recovery.spark.jvm.kafka_groups import FAILURES, MARK, KafkaWatch, Offsets, why_not_shown

_log = logging.getLogger("recovery")
OFF = "off"


class ConsumerGroup:
    """One consumer group at the brokers of one source or more; for one thread.

    The offsets of a group are where its consumers go on. So a group is left alone that has members, or offsets that no
    run has committed: they are of a consumer that reads the topic, and may only be away.
    """

    def __init__(self, name: str, text: str) -> None:
        """text: what the metadata of the offsets says besides that a run has committed them."""
        self.name = name
        self.problem: str | None = None
        """Why the group does not show the newest epoch; None: it does."""
        self._text = text
        self._shown: Offsets = {}
        self._is_free: bool | None = None
        self._has_warned = False

    def show(self, watch: KafkaWatch, offsets: Offsets) -> None:
        """Let the group show these offsets. A failure is a warning once, and is tried again with the next offsets."""
        if self._is_free is False:
            return
        try:
            if self._is_free is None:
                self._is_free = all(text.startswith(MARK) for text in watch.metadata(self.name))
            if not self._is_free:
                self._warn("another program has committed offsets for it, and they were not touched: name another "
                           "group (--kafka-group)")  # fmt: skip
                return
            changed = {
                topic: {n: at for n, at in partitions.items() if self._shown.get(topic, {}).get(n) != at}
                for topic, partitions in offsets.items()
            }
            if any(changed.values()):
                watch.commit(self.name, changed, self._text)
            self._shown, self.problem = offsets, None
        except FAILURES as error:
            # The broker may have kept some of the offsets.
            self._shown = {}
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Take one of FAILURES that has kept the offsets from being shown."""
        self._warn(why_not_shown(error, self.name))

    def _warn(self, why: str) -> None:
        self.problem = why
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%s", one_line(f"consumer group {self.name} does not show the run's offsets to tools of Kafka: {why}. "
                               "The run goes on."),
            )  # fmt: skip
