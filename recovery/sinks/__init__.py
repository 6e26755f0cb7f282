"""Sinks: where output goes, and how it appears exactly once.

protocol.py   what a sink may be, and the values that it gets
delivery.py   passes micro-batches and epochs from the driver to a flow's sink
plain.py      sinks without memory: discard, console
tables/       what DeltaSink and IcebergSink share: the protocol, the history of commits, going back
delta/        DeltaSink; table.py: its commits; operations.py: those of others; features.py; merge.py: rows by key
iceberg/      IcebergSink; table.py: its commits; columns.py: types; partitions.py
files.py      FileSink; places.py: where it writes; output.py: its directory; manifest.py: its content and plan
disk.py       operations on files; hadoop_disk.py: the same without an atomic rename
all_keys.py   AllKeysSink
kafka/        KafkaSink; marker.py: what was produced, and what a start does; staged.py: rows in files; rows.py: rows as
              records; client.py: what brokers say; broker.py: topics and transactions
upsert/       UpsertSink; table.py: its tables; effects.py: what epochs write and what they replaced;
              database.py: a transaction of any DB-API connection
"""

from recovery.sinks.all_keys import AllKeysSink
from recovery.sinks.delta.sink import DeltaSink
from recovery.sinks.files import FileSink
from recovery.sinks.iceberg.sink import IcebergSink
from recovery.sinks.kafka.sink import KafkaSink
from recovery.sinks.plain import ConsoleSink, DiscardSink
from recovery.sinks.protocol import BatchContext, EpochOutput, EpochSink, Resume, Sink, current_batch
from recovery.sinks.upsert.sink import UpsertSink

__all__ = [
    "AllKeysSink",
    "BatchContext",
    "ConsoleSink",
    "DeltaSink",
    "DiscardSink",
    "EpochOutput",
    "EpochSink",
    "FileSink",
    "IcebergSink",
    "KafkaSink",
    "Resume",
    "Sink",
    "UpsertSink",
    "current_batch",
]
