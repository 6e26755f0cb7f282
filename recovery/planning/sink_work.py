"""What a sink has done that produces records in transactions, such as KafkaSink."""

from __future__ import annotations

import msgspec

from recovery.base.untrusted_json import Number, Real
from recovery.base.wording import counted


class SinkWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a sink in some epochs, or since the run began.

    staged: records that were kept aside until their epoch is closed. produced: records that readers see. compensated:
    keys that got an earlier value after going back. transactions, transaction_s: number and time of the transactions
    that were committed. last_transaction_s: of the newest one. waiting: records that are staged and not produced, now.
    """

    staged: Number = 0
    produced: Number = 0
    compensated: Number = 0
    transactions: Number = 0
    transaction_s: Real = 0.0
    last_transaction_s: Real = 0.0
    waiting: Number = 0

    def since(self, earlier: SinkWork) -> SinkWork:
        """Return the work after `earlier`."""
        return msgspec.structs.replace(
            self,
            staged=self.staged - earlier.staged,
            produced=self.produced - earlier.produced,
            compensated=self.compensated - earlier.compensated,
            transactions=self.transactions - earlier.transactions,
            transaction_s=max(self.transaction_s - earlier.transaction_s, 0.0),
        )

    def as_text(self) -> str:
        """Return the work as a part of a line."""
        waiting = f"{counted(self.waiting, 'record')} {'waits' if self.waiting == 1 else 'wait'}"
        return f"{counted(self.produced, 'record')} produced, {waiting}"
