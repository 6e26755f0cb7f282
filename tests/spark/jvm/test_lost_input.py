"""Which error the words of Spark and its connectors about lost or changed input become: texts that they said."""

from __future__ import annotations

import pytest

from recovery.errors import FlowFailedError, InputLostError, InputRewrittenError
from recovery.spark.jvm.lost_input import lookup_line, lost_input

FAILED = """[STREAM_FAILED] Query [id = 039091bc, runId = a092ada8] terminated with exception: {} SQLSTATE: XXKST
=== Streaming Query ===
Identifier: t [id = 039091bc, runId = a092ada8]
Current Committed Offsets: {}
Current Available Offsets: {}

Current State: ACTIVE
Thread State: RUNNABLE
"""
A = (
    'DeltaSource[file:/data/a]: {"sourceVersion":1,"reservoirId":"39006779-7d32-4fbb-ab00-68b57e848f37",'
    '"reservoirVersion":%d,"index":%d,"isStartingVersion":%s}'
)
B = (
    'DeltaSource[file:/data/b]: {"sourceVersion":1,"reservoirId":"cc40676a-2e71-441b-a65c-f6366cb520d4",'
    '"reservoirVersion":9,"index":-1,"isStartingVersion":false}'
)
AT_3 = A % (4, -1, "false")
BOTH = f"{{{B},{AT_3}}}"
READ = 'IcebergTable[lake.db.a]: {"version":1,"snapshot_id":7,"position":1,"scan_all_files":false}'
KAFKA = 'KafkaV2[Subscribe[orders, payments]]: {"orders":{"0":10},"payments":{"0":1}}'
ONE_NEW = 'KafkaV2[Subscribe[orders, payments]]: {"orders":{"0":10,"1":3}}'
UNKNOWN = (
    "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic-partition."
)
GONE = (
    "An error occurred while calling o2343.save.\n: org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] "
    "Encountered error while reading file file:/data/a/day=1/part-0 0.parquet. File does not exist. It is possible the "
    "underlying files have been updated."
)
CASES = {
    "delta-update": (
        FAILED.format(
            "[DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data update (for example DELETE (Map(predicate -> "
            '"[\\"(value#3012L = 3)\\"]"))) in the source table at version 6. This is currently not supported. If this '
            "is going to happen regularly and you are okay to skip changes, set the option 'skipChangeCommits' to "
            "'true'. If you would like the data update to be reflected, please restart this query with a fresh "
            "checkpoint directory. The source table can be found at path file:/data/a.",
            BOTH,
            BOTH,
        ),
        InputRewrittenError,
        "the Delta table file:/data/a was changed in version 6: rows were removed or replaced",
    ),
    "delta-delete": (
        FAILED.format(
            "[DELTA_SOURCE_IGNORE_DELETE] Detected deleted data (for example part-0.parquet) from streaming source at "
            "version 2. This is currently not supported. If you'd like to ignore deletes, set the option "
            "'ignoreDeletes' to 'true'. The source table can be found at path s3a://bucket/a.b.",
            BOTH,
            BOTH,
        ),
        InputRewrittenError,
        "the Delta table s3a://bucket/a.b was changed in version 2: rows were removed or replaced",
    ),
    "delta-log": (
        FAILED.format(
            "[DELTA_MISSING_FILES_UNEXPECTED_VERSION] Delta stream cannot resume from version 4; transaction log "
            "starts at 6. Log files may have been deleted by log retention.",
            f"{{{AT_3}}}",
            f"{{{A % (4, 2, 'false')}}}",
        ),
        InputLostError,
        "the log of the Delta table file:/data/a, of which the flow has read version 3, no longer has what "
        "follows, and begins with version 6",
    ),
    "delta-log-lagging": (
        FAILED.format(
            "[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it, it's likely your query is "
            "lagging behind.",
            f"{{{A % (0, 1, 'true')}}}",
            f"{{{A % (0, 1, 'true')}}}",
        ),
        InputLostError,
        "the log of the Delta table file:/data/a, of which the flow has read version 0, no longer has what follows",
    ),
    "delta-other": (
        FAILED.format(
            "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta "
            "table (id = '0c1'). \nIt used to read from another Delta table (id = "
            "'39006779-7d32-4fbb-ab00-68b57e848f37') according to checkpoint.",
            BOTH,
            BOTH,
        ),
        InputRewrittenError,
        "the Delta table file:/data/a is another table than the one read before, whose id was "
        "39006779-7d32-4fbb-ab00-68b57e848f37",
    ),
    "delta-vacuum": (
        GONE,
        InputLostError,
        "the Delta table file:/data/a no longer has a file that the flow had still to read, up to version 3: "
        "file:/data/a/day=1/part-0 0.parquet",
    ),
    "iceberg-delete": (
        FAILED.format(
            "Cannot process delete snapshot: 8, to ignore deletes, set streaming-skip-delete-snapshots=true",
            "{}",
            "{}",
        ),
        InputRewrittenError,
        "the Iceberg table lake.db.a was changed in snapshot 8: rows were removed or replaced",
    ),
    "iceberg-expired": (
        FAILED.format("Cannot load current offset at snapshot 7, the snapshot was expired or removed", "{}", "{}"),
        InputLostError,
        "the Iceberg table lake.db.a no longer has snapshot 7, from which the flow had to read on",
    ),
    "iceberg-rolled-back": (
        FAILED.format(
            'Cannot invoke "java.lang.Long.longValue()" because the return value of '
            '"org.apache.iceberg.Snapshot.parentId()" is null',
            "{}",
            "{}",
        ),
        InputRewrittenError,
        "the Iceberg table lake.db.a was rolled back or replaced: snapshot 7, which the flow has read, does not lead "
        "to its newest one",
    ),
    "iceberg-file": (
        "An error occurred while calling o1.save.\n: org.apache.iceberg.exceptions.NotFoundException: Failed to open "
        "input stream for file: file:/data/a/data/0.parquet\n\tat org.apache.iceberg.hadoop.HadoopInputFile",
        InputLostError,
        "the Iceberg table lake.db.a no longer has a file that the flow had still to read: file:/data/a/data/0.parquet",
    ),
    "file": (
        GONE.replace("/data/a", "/in"),
        InputLostError,
        "a file below file:/in that the flow had still to read is gone: file:/in/day=1/part-0 0.parquet",
    ),
    "lookup": (
        GONE.replace("/data/a", "/cards"),
        FlowFailedError,
        "a file of file:/cards, a table that the flow reads beside its streams, is gone: file:/cards/day=1/part-0 "
        "0.parquet",
    ),
    "lookup-of-one-file": (
        GONE.replace("/data/a/day=1/part-0 0.parquet", "///one.csv"),
        FlowFailedError,
        "a file of file:/one.csv, a table that the flow reads beside its streams, is gone: file:///one.csv",
    ),
    "lookup-below-a-stream": (
        GONE.replace("/data/a", "/in/cards"),
        InputLostError,
        "a file below file:/in that the flow had still to read is gone: file:/in/cards/day=1/part-0 0.parquet",
    ),
    "kafka-topics": (
        FAILED.format(UNKNOWN, f"{{{KAFKA}}}", f"{{{KAFKA}}}"),
        InputLostError,
        "Kafka lacks one of the topics orders, payments",
    ),
    "kafka-never-read": (
        FAILED.format(UNKNOWN, "{}", "{}") + "+- StreamingDataSourceV2Relation KafkaV2[Subscribe[orders]]",
        FlowFailedError,
        "Kafka has no topic orders",
    ),
}
TOPICS = [
    (KAFKA, {"payments"}, InputLostError, "Kafka has no topic payments"),
    (KAFKA, {"orders", "payments"}, InputLostError, "Kafka has none of the topics orders, payments"),
    (ONE_NEW, {"payments"}, FlowFailedError, "Kafka has no topic payments"),
    (ONE_NEW, {"orders"}, InputLostError, "Kafka has no topic orders"),
    (ONE_NEW, set(), InputLostError, "Kafka lacks one of the topics orders, payments"),
]


def silent(topics):
    """Kafka does not say which it lacks."""
    return set()


@pytest.mark.parametrize(("text", "kind", "found"), CASES.values(), ids=CASES.keys())
def test_the_error_names_table_topic_file_and_version(text, kind, found):
    """Table, topic, file and version are named, and there is a way on."""
    beside = "\n".join(map(lookup_line, ("file:/cards", "file:/one.csv", "file:/in/cards")))
    reading = f'{{{AT_3},FileStreamSource[file:/in]: {{"logOffset":1}}}}\n{READ}\n{beside}'
    error = lost_input(text, lambda: reading, silent)
    assert (type(error), error.found) == (kind, found)
    assert error.remedy


@pytest.mark.parametrize(("position", "gone", "kind", "found"), TOPICS)
def test_the_topics_that_kafka_lacks(position, gone, kind, found):
    """Those are named, and it counts whether the flow has read them."""

    def lacking(topics):
        assert topics == {"orders", "payments"}
        return gone

    error = lost_input(FAILED.format(UNKNOWN, f"{{{position}}}", f"{{{position}}}"), lambda: "", lacking)
    assert (type(error), error.found) == (kind, found)
    assert ("under another name" in error.remedy) is (kind is InputLostError)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("iceberg")])
def test_an_iceberg_table_that_is_no_input(name):
    """The flow writes it, or joins with it: what failed is not its input."""
    assert lost_input(CASES[name][0], lambda: BOTH, silent) is None


def test_what_says_nothing_of_input():
    """A failure of another kind is left to others, and nothing is asked of Spark."""
    assert lost_input(FAILED.format("[INTERNAL_ERROR] ", BOTH, BOTH), lambda: pytest.fail("asked"), silent) is None
