"""Whose fault it is that a job wrote no files, by the texts of real jobs."""

from __future__ import annotations

import pytest

from recovery.hadoop.writing import not_written

FULL = """An error occurred while calling o51.addBatch.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out/a. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:823)
\tat org.apache.spark.sql.execution.datasources.FileFormatDataWriter.enrichWriteError(FileFormatDataWriter.scala:92)
Caused by: org.apache.parquet.util.AutoCloseables$ParquetCloseResourceException: Unable to close resource
\tat org.apache.spark.sql.execution.datasources.parquet.ParquetOutputWriter.close(ParquetOutputWriter.scala:41)
Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device
\t... 21 more
Caused by: java.io.IOException: No space left on device
\t... 37 more
"""
REFUSED = """An error occurred while calling None.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink.
: java.net.ConnectException: Call From driver/10.0.0.1 to name:8020 failed on connection exception
\tat org.apache.hadoop.ipc.Client.call(Client.java:1519)
\tat org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog.<init>(FileStreamSinkLog.scala:91)
Caused by: java.net.ConnectException: Connection refused
"""
OF_READING = """An error occurred while calling o58.addBatch.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/x.parquet.
\tat org.apache.spark.sql.execution.datasources.FileScanRDD$$anon$1.hasNext(FileScanRDD.scala:153)
\tat org.apache.spark.sql.execution.datasources.FileFormatDataWriter.writeWithIterator(FileFormatDataWriter.scala:110)
Caused by: java.io.IOException: Input/output error
"""
OF_MEMORY = """An error occurred while calling o58.addBatch.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/out/a. SQLSTATE: 58030
Caused by: java.lang.OutOfMemoryError: Java heap space
"""
OF_PYTHON = FULL + "Traceback (most recent call last):\nValueError: no\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FULL, ("java.io.IOException", "No space left on device")),
        (REFUSED, ("java.net.ConnectException", "Connection refused")),
        (OF_READING, None),
        (OF_MEMORY, None),
        (OF_PYTHON, None),
        ("An error occurred while calling o58.addBatch.\n: java.io.IOException: No space left on device", None),
    ],
    ids=["full", "refused", "reading", "memory", "python", "a spilling task"],
)
def test_what_the_file_system_says(text, said):
    """Only what its own writers say: a source, a step or the memory may fail in the same job."""
    assert not_written(text) == said
