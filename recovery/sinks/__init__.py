"""Where output goes, and what makes it appear exactly once.

protocol.py   what a sink may be, and the values it is given
delivery.py   how the driver hands micro-batches and epochs to whatever sink a flow has
plain.py      sinks without memory: discard, console
files.py      FileSink; output.py: its directory; manifest.py: what that holds and what is to be done; disk.py
all_keys.py   AllKeysSink
upsert.py     UpsertSink; database.py: a transaction of any DB-API connection
"""

from recovery.sinks.all_keys import AllKeysSink
from recovery.sinks.files import FileSink
from recovery.sinks.plain import ConsoleSink, DiscardSink
from recovery.sinks.protocol import BatchContext, EpochOutput, EpochSink, Resume, Sink, current_batch
from recovery.sinks.upsert import UpsertSink

__all__ = [
    "AllKeysSink",
    "BatchContext",
    "ConsoleSink",
    "DiscardSink",
    "EpochOutput",
    "EpochSink",
    "FileSink",
    "Resume",
    "Sink",
    "UpsertSink",
    "current_batch",
]
