"""Flows that read other sources than before, or the same in other places: each goes on where it was."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from recovery import stateful
from recovery.errors import FlowFailedError, FlowMismatchError
from recovery.storage.scan import scan
from tests.shares import first, some
from tests.spark.support import Feed, add_up, run_to_end, states, totals_step


def add_up_and_wait(key, rows, state):
    """The same, with a timeout that nobody waits for."""
    yield from add_up(key, rows, state)
    state.setTimeoutDuration(1_000_000)


def totals_of(*feeds):
    """The truth over several inputs."""
    truth = {}
    for feed in feeds:
        for key, (count, total) in feed.totals().items():
            held = truth.setdefault(key, [0, 0])
            truth[key] = [held[0] + count, held[1] + total]
    return truth


def read(spark, feed, kind):
    """The feed by Spark's file source, or by ours."""
    if kind == "files":
        return feed.frame(spark)
    lines = spark.readStream.format("appended").load(str(feed.path / "*.txt"))
    return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")


@pytest.mark.long
@pytest.mark.parametrize("kind", some(["files", "appended"], "files"))
def test_sources_that_change_their_order_and_one_more(spark, tmp_path, kind):
    feeds = [Feed(tmp_path / name) for name in "abc"]
    for number, feed in enumerate(feeds):
        feed.add_random(number)
    orders = [[0, 1], [1, 0], [2, 1, 0]]
    for number, order in enumerate(orders):
        frame = read(spark, feeds[order[0]], kind)
        for each in order[1:]:
            frame = frame.union(read(spark, feeds[each], kind))
        update = add_up_and_wait if number % 2 else add_up
        run_to_end(frame.transform(totals_step(update=update)), tmp_path / "db", backup_interval="1h")
        assert states(tmp_path / "db", "totals") == totals_of(*(feeds[each] for each in sorted(order)))
        for each, feed in enumerate(feeds):
            feed.add_random(10 * number + each)
    frame = read(spark, feeds[0], kind).union(read(spark, feeds[1], kind))
    run_to_end(frame.transform(totals_step()), tmp_path / "db", resume_epoch=1)
    assert states(tmp_path / "db", "totals") == totals_of(*feeds[:2]), "back, before there was a third one"


def test_a_source_that_is_gone(spark, tmp_path):
    """It would begin again if it came back. Nothing is given up before it is refused."""
    feeds = [Feed(tmp_path / name) for name in "ab"]
    for seed in range(3):
        for feed in feeds:
            feed.add_random(seed)
        frame = feeds[0].frame(spark).union(feeds[1].frame(spark))
        run_to_end(frame.transform(totals_step()), tmp_path / "db", backup_interval="1h")

    def held():
        return [file.description.newest_epoch for file in scan(tmp_path / "db")]

    before = held()
    with pytest.raises(FlowMismatchError, match=r"reads 1 sources.*saved position has 2"):
        run_to_end(feeds[1].frame(spark).transform(totals_step()), tmp_path / "db", resume_epoch=2)
    with pytest.raises(FlowMismatchError):
        run_to_end(feeds[1].frame(spark).transform(totals_step("other")), tmp_path / "db", drop_steps=["totals"])
    assert held() == before


@pytest.mark.long
@pytest.mark.parametrize("waits", some([False, True], False))
def test_steps_side_by_side_come_and_go(spark, tmp_path, waits):
    """The frame is read in one place more, or less; the source is one."""
    feed, other = Feed(tmp_path / "in"), Feed(tmp_path / "other")
    seen = Counter()

    def run(*steps, drop=()):
        feed.add_random(len(seen))
        other.add_random(len(seen))
        seen.update(steps)
        lines = feed.frame(spark)
        update = add_up_and_wait if waits and len(steps) == 1 else add_up
        frame = lines.transform(totals_step(steps[0], update=update))
        for each in steps[1:]:
            frame = frame.union(lines.transform(totals_step(each)))
        frame = frame.union(other.frame(spark).transform(totals_step("beside")))
        run_to_end(frame, tmp_path / "db", drop_steps=drop)
        assert states(tmp_path / "db", steps[0]) == feed.totals()
        assert states(tmp_path / "db", "beside") == other.totals()

    run("one")
    before = feed.totals()
    run("one", "two")
    found = states(tmp_path / "db", "two")
    assert found == {
        key: [n - before.get(key, [0, 0])[0], total - before.get(key, [0, 0])[1]]
        for key, (n, total) in feed.totals().items()
        if n != before.get(key, [0])[0]
    }, "a new step begins at the present position"
    run("one", drop=["two"])
    run("one", "two")


@pytest.mark.long
def test_steps_that_read_for_themselves_come_and_go(spark, tmp_path):
    """A frame for each step, which Spark takes for sources of their own, in whatever order."""
    feed = Feed(tmp_path / "in")
    for number, steps in enumerate((["old"], ["new", "old"], ["old", "new"], ["new"], ["new", "other"])):
        feed.add_random(number)
        frame = feed.frame(spark).transform(totals_step(steps[0]))
        for each in steps[1:]:
            frame = frame.union(feed.frame(spark).transform(totals_step(each)))
        run_to_end(frame, tmp_path / "db", drop_steps=["old"] if number == 3 else ())
        if "old" in steps:
            assert states(tmp_path / "db", "old") == feed.totals()
    counted = {key: n for key, (n, _) in states(tmp_path / "db", "new").items()}
    begun = Counter(key for key, _ in feed.rows[len(feed.rows) // 5 :])
    assert counted == begun, "from the second run on"


class Growing(DataSource):
    """A file of lines, one more whenever Spark looks for input: each read of it comes to another position."""

    @classmethod
    def name(cls):
        return "growing"

    def schema(self):
        return "key string, value bigint"

    def streamReader(self, schema):  # noqa: N802
        return GrowingReader(Path(self.options["topic"]))


class GrowingReader(DataSourceStreamReader):
    def __init__(self, path):
        self.path = path

    def initialOffset(self):  # noqa: N802
        return {"n": 0}

    def latestOffset(self):  # noqa: N802
        with self.path.open("a") as file:
            file.write("x\n")
        return {"n": len(self.path.read_text().split())}

    def partitions(self, start, end):
        return [InputPartition(end["n"] - start["n"])]

    def read(self, partition):
        yield from [("x", 1)] * partition.value


@pytest.mark.long
def test_separate_reads_while_input_comes_in(spark, tmp_path):
    """Each goes on where it was, by the step that it is for, and one more begins at a present position; those of steps
    that are dropped may be left out."""
    spark.dataSource.register(Growing)

    def run(*steps, **config):
        frames = [spark.readStream.format("growing").option("topic", str(tmp_path / "in")).load() for _ in steps]
        frame = frames[0].transform(totals_step(steps[0]))
        for each, step in zip(frames[1:], steps[1:], strict=True):
            frame = frame.union(each.transform(totals_step(step)))
        run_to_end(frame, tmp_path / "db", **config)
        return [states(tmp_path / "db", step)["x"][0] for step in steps]

    assert run("one", "two") == [1, 2]
    assert run("two", "uno", rename_steps={"one": "uno"}) == [3, 4]
    assert run("two", drop_steps=["uno"]) == [5]
    assert run("one", "two") == [1, 7], "from where the other one was"


def forward(key, rows, state):
    """A step that gives what it gets."""
    for row in rows:
        yield key, row.value


@pytest.mark.long
def test_a_step_that_is_put_before_another(spark, tmp_path):
    """What lies behind it goes on where it was, and again when it is taken out."""
    spark.dataSource.register(Growing)
    before = stateful("before", key="key", update=forward, output="key string, value bigint")

    def run(*steps, **config):
        frames = []
        for step, through in steps:
            read = spark.readStream.format("growing").option("topic", str(tmp_path / "in")).load()
            frames.append((read.transform(before) if through else read).transform(totals_step(step)))
        run_to_end(frames[0].union(frames[1]), tmp_path / "db", **config)
        return [states(tmp_path / "db", step)["x"][0] for step, _ in steps]

    assert run(("one", False), ("two", False)) == [1, 2]
    assert run(("two", False), ("one", True)) == [3, 4]
    assert run(("two", False), ("one", False)) == [5, 6]
    assert run(("one", False), ("two", True)) == [7, 8]


@pytest.mark.long
@pytest.mark.parametrize("orders", some([["a", "ba"], ["ab", "ba"]], ["ab", "ba"]))
def test_two_parts_of_one_directory(spark, tmp_path, orders):
    """Their options distinguish them."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.a").write_text("x,1\n" * 10)
    (tmp_path / "in/1.b").write_text("y,1\n" * 5)

    def part(name):
        lines = spark.readStream.option("pathGlobFilter", f"*.{name}").text(str(tmp_path / "in"))
        return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")

    for order in orders:
        frame = part(order[0])
        for name in order[1:]:
            frame = frame.union(part(name))
        run_to_end(frame.transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == {"x": [10, 10], "y": [5, 5]}


@pytest.mark.parametrize(
    ("first", "then"), [("files", "appended"), pytest.param("appended", "files", marks=pytest.mark.long)]
)
def test_a_source_of_another_kind(spark, tmp_path, first, then):
    """Its position means nothing to the other one. Nothing is given up before it is refused."""
    feeds = [Feed(tmp_path / name) for name in "abc"]
    for feed in feeds:
        feed.add_random(1)
    one = feeds[0].frame(spark).transform(totals_step("one"))
    run_to_end(one.union(read(spark, feeds[1], first).transform(totals_step("two"))), tmp_path / "db")
    before = [file.description for file in scan(tmp_path / "db")]
    changed = one.union(read(spark, feeds[2], then).transform(totals_step("three")))
    with pytest.raises(FlowMismatchError, match="of which 1 is not found"):
        run_to_end(changed, tmp_path / "db", drop_steps=["two"])
    assert [file.description for file in scan(tmp_path / "db")] == before


@pytest.mark.long
def test_files_that_were_moved(spark, tmp_path):
    """Spark would read all again under their new path. A link in the old place is the way out."""
    feed = Feed(tmp_path / "in")
    feed.add_random(1)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    (tmp_path / "in").rename(tmp_path / "moved")
    feed.path = tmp_path / "moved"
    with pytest.raises(FlowMismatchError, match=r"the flow reads \S+/moved where it read \S+/in/"):
        run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    feed.path = tmp_path / "in"
    (tmp_path / "in").symlink_to("moved")
    feed.add_random(2)
    run_to_end(feed.frame(spark).transform(totals_step()), tmp_path / "db")
    assert states(tmp_path / "db", "totals") == feed.totals()


def read_by(spark, feed, files):
    """The feed, so many files a micro-batch: an option that tells reads of one directory apart."""
    lines = spark.readStream.option("maxFilesPerTrigger", files).text(str(feed.path))
    return lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")


@pytest.mark.long
def test_one_of_the_steps_that_share_a_read_gets_other_options(spark, tmp_path):
    """It would read everything again, beside what it has counted; the way out takes two runs, without any input."""
    feed = Feed(tmp_path / "in")
    feed.add_random(1)
    feed.add_random(2)

    def run(one, two):
        frame = one.transform(totals_step("one")).union(two.transform(totals_step("two")))
        run_to_end(frame, tmp_path / "db")
        assert states(tmp_path / "db", "one") == states(tmp_path / "db", "two") == feed.totals()

    shared = feed.frame(spark)
    run(shared, shared)
    before = [file.description for file in scan(tmp_path / "db")]
    with pytest.raises(FlowMismatchError, match="step 'one' would read a source from its start"):
        run(read_by(spark, feed, 2), shared)
    assert [file.description for file in scan(tmp_path / "db")] == before
    run(feed.frame(spark), feed.frame(spark))
    run(read_by(spark, feed, 2), feed.frame(spark))
    feed.add_random(3)
    run(feed.frame(spark), read_by(spark, feed, 2))


@pytest.mark.long
def test_a_run_without_input_records_which_source_is_which(spark, tmp_path):
    """The next run knows it: two changes, each of which is clear, stay two."""
    feed = Feed(tmp_path / "in")
    feed.add_random(1)

    def run(**files):
        frames = [read_by(spark, feed, count).transform(totals_step(step)) for step, count in files.items()]
        frame = frames[0]
        for each in frames[1:]:
            frame = frame.union(each)
        run_to_end(frame, tmp_path / "db", rename_steps={"one": "uno"} if "uno" in files else {})
        for step in files:
            assert states(tmp_path / "db", step) == feed.totals()

    def epochs():
        return scan(tmp_path / "db")[0].description.newest_epoch

    run(one=1)
    first = epochs()
    run(one=2)
    run(one=2, two=1)
    run(two=1, one=2)
    run(one=2, two=1)
    run(two=1, uno=3)
    assert epochs() == first + 6, "one for each change, and one for the input of a step that is new"
    run(two=1, uno=3)
    assert epochs() == first + 6
    feed.add_random(2)
    run(uno=3, two=1)


class Topic(DataSource):
    """A source that reads, like Kafka's, what an option says: ten rows of each topic in each run."""

    @classmethod
    def name(cls):
        return "topic"

    def schema(self):
        return "key string, value long"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return TopicReader(self.options)


class TopicReader(DataSourceStreamReader):
    def __init__(self, options):
        self.topic, self.end = options["subscribe"], 10 * int(options["runs"])

    def initialOffset(self):  # noqa: N802 - Spark's name
        return {self.topic: 0}

    def latestOffset(self):  # noqa: N802 - Spark's name
        return {self.topic: self.end}

    def partitions(self, start, end):
        assert start.keys() == end.keys(), f"the offset {start} is not of {self.topic}"
        return [InputPartition((start[self.topic], end[self.topic]))]

    def read(self, partition):
        yield from ((self.topic, 1) for _ in range(*partition.value))


@pytest.mark.long
def test_topics_with_other_passwords_in_another_order(spark, tmp_path):
    """The topic says which source it is: each resumes at its own offset, whatever its other options are."""
    spark.dataSource.register(Topic)

    def run(number, topics):
        frames = [
            spark.readStream.format("topic").option("subscribe", each).options(runs=number, password=f"{number}").load()
            for each in topics
        ]
        run_to_end(frames[0].union(frames[1]).transform(totals_step()), tmp_path / "db")
        assert states(tmp_path / "db", "totals") == {each: [10 * number, 10 * number] for each in "ab"}

    for number, topics in enumerate(["ab", "ba", "ab"], start=1):
        run(number, topics)


@first("kind", ["csv", "parquet"])
def test_a_table_beside_the_stream_that_is_replaced(spark, tmp_path, kind):
    """The error names the table, which is no input, and does not advise to ignore missing files; the next run reads
    what is there by then, and every row of the stream counts once."""
    feed = Feed(tmp_path / "feed")
    for number in range(3):
        feed.add([("a", number), ("b", number)])
    cards = tmp_path / "cards"
    rows = spark.createDataFrame([("a", "first"), ("b", "second")], "key string, name string")
    rows.coalesce(1).write.format(kind).save(str(cards))

    def frame():
        table = spark.read.format(kind).schema("key string, name string").load(str(cards))
        joined = feed.frame(spark).join(table, "key", "left").selectExpr("name AS key", "value")
        return joined.transform(totals_step())

    def replace(batch, batch_id):
        batch.collect()
        if batch_id == 1:
            [file] = cards.glob("part-*")
            file.rename(cards / f"part-new.{kind}")

    with pytest.raises(FlowFailedError) as caught:
        run_to_end(frame(), tmp_path / "db", replace)
    assert caught.value.found.startswith(
        f"a file of file:{cards}, a table that the flow reads beside its streams, is gone"
    )
    assert "ignoreMissingFiles" not in caught.value.remedy
    run_to_end(frame(), tmp_path / "db")
    totals = feed.totals()
    assert states(tmp_path / "db", "totals") == {"first": totals["a"], "second": totals["b"]}
