"""Typed errors for input that is gone or was changed, found in what Spark and its connectors say.

Kafka, Delta and Iceberg each have their own words for lost input. A file that is gone is known by its path only, so the
table that it belongs to, and the version, come from what Spark says about the sources of its micro-batch. Iceberg names
no
table: `IcebergTable[name]: position` stands for each in what the run says about its sources.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator

from recovery.errors import FlowFailedError, InputLostError, InputRewrittenError, RecoveryError
from recovery.spark.jvm.delta_schemas import schema_changed
from recovery.spark.jvm.lost_topics import NO_TOPIC

_FROM_KAFKA = re.compile(
    r"Some data may have been lost because they are not available in Kafka.*?Reason:\s*(.*?)"
    r"(?=\s*SQLSTATE|\n\s*\n|\n\s*at |\nCaused by|\Z)",
    re.DOTALL,
)
_OFFSETS = re.compile(r"offset \[(\d+), (\d+)\) for topic partition (\S+)-(\d+)\b")
_TOPIC_PARTITION = re.compile(r"(?:\b[Pp]artition )?\b([\w.-]+)-(\d+)(?=[\s,;:)\]}]|$)")
_SUBSCRIBED = re.compile(r"KafkaV2\[Subscribe\[([^\]]*)\]\](?:: (?=\{))?")
_FILE = re.compile(r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\][^\n]*?reading file (\S[^\n]*?)\. +File does not exist")
_DELTA_SOURCE = re.compile(r"DeltaSource\[([^\]]+)\]: (\{[^}]*\})")
_LOOKUP = "LookupTable"
_LOOKUP_LINE = re.compile(rf"^{_LOOKUP}: (.+)$", re.MULTILINE)
_FILES_SOURCE = re.compile(r"FileStreamSource\[([^\]]+)\]")
_DELTA_CHANGED = re.compile(
    r"\[DELTA_SOURCE_(?:TABLE_IGNORE_CHANGES|IGNORE_DELETE)\].*?at version (\d+)\..*?found at path (\S+?)\.(?=\s|$)",
    re.DOTALL,
)
_DELTA_LOG = re.compile(
    r"\[DELTA_(?:LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE|STREAMING_TRAILING_COMMIT_MISSING"
    r"|MISSING_FILES_UNEXPECTED_VERSION\][^\n]*?transaction log starts at (\d+))"
)
_DELTA_ID = re.compile(
    r"\[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE\].*?It used to read [^']*\(id = '([\w-]+)'\)", re.DOTALL
)
_ICEBERG_SOURCE = re.compile(r"IcebergTable\[([^\]]+)\]: (\{[^}]*\}|-)")
_ICEBERG_EXPIRED = re.compile(r"Cannot load current offset at snapshot (\d+), the snapshot was expired or removed")
_ICEBERG_CHANGED = re.compile(r"Cannot process (?:delete|overwrite) snapshot: (\d+), to ignore \w+, set ([\w-]+)=true")
_ICEBERG_ROLLED_BACK = re.compile(
    r"Cannot find snapshot after \d+: not an ancestor"
    r"|java\.lang\.Long\.longValue\(\)[^\n]*org\.apache\.iceberg\.Snapshot\.parentId"
    r"|Table UUID does not match"
)
_ICEBERG_FILE = re.compile(r"(?:Failed to open input stream for file|File does not exist): (\S+)")
LOST_BETWEEN = "recovery-lost-between"
"""This package's option of a stream of an Iceberg table: the snapshot that was read last, and the next one that is
there. The user accepts that what was added between is lost."""
_BEGIN_AGAIN = "To read the table from its beginning instead, run the flow with a new recovery directory."
_KEEP_SNAPSHOTS = (
    "Keep snapshots (history.expire.max-snapshot-age-ms) for longer than the table may get no new one and the flow may "
    "stand still, taken together."
)
_KEEP = "Keep VACUUM's retention and the log's (delta.logRetentionDuration) longer than the flow may stand still."


def lost_input(
    text: str, reading: Callable[[], str], lacking: Callable[[Collection[str]], Collection[str]]
) -> RecoveryError | None:
    """Return the error for input that is gone or was changed, if that is what a failure's text says.

    reading: what Spark says about the sources of the micro-batch that failed, for failures that say nothing of them.
    lacking: which of these topics Kafka lacks; empty if Kafka does not say.
    """
    found = _records_gone(text) or _topic_gone(text, lacking) or _of_delta(text) or _of_iceberg(text, reading)
    if found is not None:
        return found
    gone = _FILE.search(text)
    return _file_gone(gone[1], f"{text}\n{reading()}") if gone is not None else None


def _records_gone(text: str) -> RecoveryError | None:
    lost = _FROM_KAFKA.search(text)
    if lost is None:
        return None
    return InputLostError(f"Kafka no longer has all records to read: {_lost_records(' '.join(lost[1].split()))}")


def _topic_gone(text: str, lacking: Callable[[Collection[str]], Collection[str]]) -> RecoveryError | None:
    if NO_TOPIC not in text:
        return None
    topics, read = _topics(text)
    if not topics:
        return None
    gone = topics if len(topics) == 1 else set(lacking(topics))
    if not gone:
        return no_topic(topics, read=topics & read, one_of=True)
    return no_topic(gone, read=gone & read)


def no_topic(names: Collection[str], *, read: Collection[str], one_of: bool = False) -> RecoveryError:
    """Return the error for topics that Kafka lacks. read: the topics that the flow has read. one_of: one of them is
    lacking, and Kafka does not say which."""
    texts = ", ".join(sorted(names))
    found = f"Kafka has no topic {texts}" if len(names) == 1 else f"Kafka has none of the topics {texts}"
    if one_of:
        found = f"Kafka lacks one of the topics {texts}"
    cause = "The topic was deleted, has another name, or this user may not see it."
    if read:
        options = " ".join(f"--lose-input {each}" for each in sorted(read))
        return InputLostError(
            found,
            cause=cause,
            remedy="Make the topic again only under another name: this topic's offsets count as read. To go on without "
            f"the topic, take it out of the flow, and run once with {options}.",
        )
    return FlowFailedError(found, cause=cause, remedy="Make the topic, or correct its name.")


def _topics(text: str) -> tuple[set[str], set[str]]:
    """Return the topics that Kafka's sources read by their names, and those of which the text has a position."""
    topics, read = set[str](), set[str]()
    for found in _SUBSCRIBED.finditer(text):
        topics |= set(re.split(r",\s*", found[1]))
        if text.startswith("{", found.end()):
            with contextlib.suppress(ValueError):
                read |= set(json.JSONDecoder().raw_decode(text, found.end())[0])
    return topics, read


def _lost_records(reason: str) -> str:
    """What is lost, from the reason that Kafka's connector gives."""
    found = _OFFSETS.search(reason)
    if found is None:
        return _TOPIC_PARTITION.sub(r"topic \1, partition \2", reason)
    start, end, topic, partition = found.groups()
    return f"topic {topic}, partition {partition}, offsets {start} to {int(end) - 1}"


def _of_delta(text: str) -> RecoveryError | None:
    tables = " or ".join(sorted({table for table, _ in _delta_sources(text)}))
    columns = schema_changed(text, tables or "that the flow reads")
    if columns is not None:
        return columns
    changed = _DELTA_CHANGED.search(text)
    if changed is not None:
        return InputRewrittenError(
            f"the Delta table {changed[2]} was changed in version {changed[1]}: rows were removed or replaced",
            cause="A DELETE, UPDATE, MERGE, RESTORE or overwrite in a table of which the flow reads what is added.",
            remedy="To go on with what later versions add, and to keep what was counted, set "
            f'.option("skipChangeCommits", "true"): it leaves out all rows of such a version. {_BEGIN_AGAIN}',
        )
    cut = _DELTA_LOG.search(text)
    if cut is not None:
        found = f"the log of the Delta table {_delta_positions(text)} no longer has what follows"
        remedy = "Put the entries of the log back."
        if cut[1]:
            found = f"{found}, and begins with version {cut[1]}"
            remedy = 'To go on without those versions, run once with .option("failOnDataLoss", "false").'
        return InputLostError(
            found,
            cause="The retention of the table's log removed it, or somebody did.",
            remedy=f"{remedy} {_BEGIN_AGAIN} {_KEEP}",
        )
    other = _DELTA_ID.search(text)
    if other is not None:
        table = _delta_tables(text, "reservoirId", other[1])
        return InputRewrittenError(
            f"the Delta table {table} is another table than the one read before, whose id was {other[1]}",
            cause="The table was deleted and made again, or the flow reads another table in its place.",
            remedy=f"Put the former table back. {_BEGIN_AGAIN}",
        )
    return None


def _of_iceberg(text: str, reading: Callable[[], str]) -> RecoveryError | None:
    changed, expired = _ICEBERG_CHANGED.search(text), _ICEBERG_EXPIRED.search(text)
    rolled_back = _ICEBERG_ROLLED_BACK.search(text)
    gone = _ICEBERG_FILE.search(text) if "org.apache.iceberg." in text else None
    if changed is None and expired is None and rolled_back is None and gone is None:
        return None
    read = [(name, _snapshot(at)) for name, at in _ICEBERG_SOURCE.findall(reading())]
    if not read:
        # It is of a table that the flow writes, or joins with.
        return None
    table = " or ".join(name for name, _ in read)
    if changed is not None:
        return InputRewrittenError(
            f"the Iceberg table {table} was changed in snapshot {changed[1]}: rows were removed or replaced",
            cause="A DELETE, UPDATE, MERGE or overwrite in a table of which the flow reads what is added.",
            remedy="To go on with what later snapshots add, and to keep what was counted, set "
            f'.option("{changed[2]}", "true"): it leaves out all rows of such snapshots. {_BEGIN_AGAIN}',
        )
    if expired is not None:
        return table_expired(table, expired[1])
    if rolled_back is not None:
        return table_rolled_back(table, " or ".join(at for _, at in read))
    assert gone is not None
    return InputLostError(
        f"the Iceberg table {table} no longer has a file that the flow had still to read: {gone[1]}",
        cause="The file's snapshot expired while the flow read that snapshot, or somebody removed the file.",
        remedy=f"Put the file back. {_BEGIN_AGAIN} {_KEEP_SNAPSHOTS}",
    )


def table_expired(table: str, snapshot: object, oldest: int | None = None, dated: str = "") -> InputLostError:
    """Return the error for an Iceberg table without the snapshot that the flow has read last. oldest: the oldest
    snapshot that the table has; None: unknown. dated: that snapshot and its date."""
    return InputLostError(
        f"the Iceberg table {table} no longer has snapshot {snapshot}, from which the flow had to read on"
        f"{f'; its oldest one is {dated}' if oldest else ''}",
        cause="The snapshot expired before the flow had read on.",
        remedy=f"{_go_on(snapshot, oldest)} {_BEGIN_AGAIN} {_KEEP_SNAPSHOTS}",
    )


def table_gap(table: str, snapshot: object, oldest: int, dated: str) -> InputLostError:
    """Return the error for an Iceberg table that has the snapshot that the flow has read last, and not the next one."""
    return InputLostError(
        f"the Iceberg table {table} no longer has what comes between snapshot {snapshot}, which the flow has read "
        f"last, and {dated}",
        cause="The snapshots between were expired before the flow had read them; a tag or a branch has kept the "
        "snapshot that is there.",
        remedy=f"{_go_on(snapshot, oldest)} {_BEGIN_AGAIN} {_KEEP_SNAPSHOTS}",
    )


def _go_on(read: object, oldest: int | None) -> str:
    if oldest is None:
        return "The next run says how to go on without what is lost."
    return (
        f'To go on without what was added between, set .option("{LOST_BETWEEN}", "{read},{oldest}"): the flow goes on '
        "with what the second snapshot and later ones add. Where the flow has read some of that, as before a "
        "rollback, name a later snapshot."
    )


def table_rolled_back(table: str, snapshot: object) -> InputRewrittenError:
    """Return the error for an Iceberg table whose newest snapshot does not come after the one that the flow has read
    last."""
    return InputRewrittenError(
        f"the Iceberg table {table} was rolled back or replaced: snapshot {snapshot}, which the flow has read, does "
        "not lead to its newest one",
        cause="rollback_to_snapshot, set_current_snapshot, CREATE OR REPLACE TABLE, or a table made again.",
        remedy=f"Set the table's current snapshot to the one that was read, or to one after it. {_BEGIN_AGAIN}",
    )


def table_replaced(table: str, snapshot: object, dated: str) -> InputRewrittenError:
    """Return the error for an Iceberg table without the snapshot that the flow has read last, and with its first one,
    which is `dated`: so no snapshot expired before the ones that are there."""
    return InputRewrittenError(
        f"the Iceberg table {table} no longer has snapshot {snapshot}, which the flow has read last; it begins with "
        f"{dated}",
        cause="The table was rolled back and that snapshot expired, or the table was deleted and made again.",
        remedy="After a rollback, to keep what was counted, name the first snapshot that the flow has not read: "
        f'.option("{LOST_BETWEEN}", "{snapshot},NEXT"). {_BEGIN_AGAIN}',
    )


def table_emptied(table: str) -> InputRewrittenError:
    """Return the error for an Iceberg table that had snapshots when the flow has read it before, and has none."""
    return InputRewrittenError(
        f"the Iceberg table {table} has no snapshots any more, and the flow has read some",
        cause="The table was replaced, or deleted and made again; or stream-from-timestamp is later than all it has.",
        remedy=f"Put the former table back. {_BEGIN_AGAIN}",
    )


def _snapshot(position: str) -> str:
    found = re.search(r'"snapshot_id":(\d+)', position)
    return found[1] if found else "none"


def _delta_sources(text: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the Delta tables that the text names with a position, and the position."""
    for found in _DELTA_SOURCE.finditer(text):
        try:
            yield found[1], json.loads(found[2])
        except ValueError:
            continue


def _delta_tables(text: str, name: str, value: object) -> str:
    """Return the table whose position has this value, by a field's name; all tables if none has it."""
    sources = list(_delta_sources(text))
    found = {table for table, position in sources if position.get(name) == value} or {table for table, _ in sources}
    return " or ".join(sorted(found))


def _delta_positions(text: str) -> str:
    """Return the tables, each with the version that the flow has read: Spark names that first."""
    found: dict[str, object] = {}
    for table, position in _delta_sources(text):
        found.setdefault(table, _last(position))
    return " or ".join(f"{table}, of which the flow has read version {found[table]}," for table in sorted(found))


def _last(position: dict[str, object]) -> object:
    """Return the last version that a position has files of. Behind the last file of a version, a position names the
    next version."""
    version, index = position.get("reservoirVersion"), position.get("index")
    behind = isinstance(index, int) and index < 0 and not position.get("isStartingVersion")
    return version - 1 if isinstance(version, int) and behind else version


def lookup_line(path: str) -> str:
    """Return the line by which `lost_input` knows the directory or file of a table that does not stream."""
    return f"{_LOOKUP}: {path}"


def _file_gone(file: str, text: str) -> RecoveryError:
    streams = [table for table, _ in _delta_sources(text)] + [each[1] for each in _FILES_SOURCE.finditer(text)]
    lookup = next((each[1] for each in _LOOKUP_LINE.finditer(text) if _is_below(file, each[1])), None)
    if lookup is not None and not any(_is_below(file, each) for each in streams):
        return FlowFailedError(
            f"a file of {lookup}, a table that the flow reads beside its streams, is gone: {file}",
            cause="The table's files were removed or replaced during the run, which has listed them when it started.",
            remedy="Run the same command again: it lists the files that are there by then, and continues from the last "
            "closed epoch. To replace a table while a flow runs, write it to a new directory; see "
            "docs/flow-api.md#tables-beside-a-stream. Do not ignore missing files: the table would lose rows silently.",
        )
    remedy = (
        "Put the file back. To go on without the rows of this file and of other files that are gone, run once with "
        "--conf spark.sql.files.ignoreMissingFiles=true."
    )
    for table, position in _delta_sources(text):
        if _is_below(file, table):
            return InputLostError(
                f"the Delta table {table} no longer has a file that the flow had still to read, up to version "
                f"{_last(position)}: {file}",
                cause="VACUUM removed files of older versions before the flow had read them.",
                remedy=f"{remedy} {_BEGIN_AGAIN} {_KEEP}",
            )
    directories = [each[1] for each in _FILES_SOURCE.finditer(text)]
    directory = next((each for each in directories if _is_below(file, each)), None)
    return InputLostError(
        f"a file {f'below {directory} ' if directory else ''}that the flow had still to read is gone: {file}",
        cause="The file was removed, or replaced by other files, while the flow read it.",
        remedy=remedy,
    )


def _is_below(file: str, directory: str) -> bool:
    """Whether a file is below a directory. Spark writes local paths with one slash or with three."""
    path, parent = (re.sub("^file:/+", "/", each.rstrip("/")) for each in (file, directory))
    return path == parent or path.startswith(f"{parent}/")
