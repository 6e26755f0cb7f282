"""The examples, run as their docstrings say: the commands in them, in order, in an empty directory."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import shlex
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from recovery.spark.jvm.cache import ARCHIVE_VARIABLE, CACHE_VARIABLE
from tests.kafka import CONNECTOR, JARS, broker, needs_jars
from tests.shares import some
from tests.spark.support import run_here
from tests.stores import paths_of, query, state_at

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
FILE_FORMAT = (ROOT / "docs" / "file-format.md").read_text()
TIMEOUT_S = 600


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs commands in an empty directory where `python` is this Python and `examples/` are the examples."""
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python"
    # A link would lose the virtual environment.
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(EXAMPLES)
    kept = (CACHE_VARIABLE, ARCHIVE_VARIABLE)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RECOVERY_") or name in kept
    }
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    # Runs this short end before optimised code pays: it halves their time.
    environment.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    monkeypatch.chdir(work)

    def run(commands: str) -> str:
        """Standard output; fails with everything printed when a command does."""
        done = subprocess.run(
            ["sh", "-e", "-c", commands],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def typed(shell: Any, request: pytest.FixtureRequest) -> Any:
    """Like `shell`; if the test's parameter is "here", `recovery run` runs in this process."""

    def run(commands: str) -> str:
        printed = ""
        for line in map(str.strip, commands.splitlines()):
            words = shlex.split(line)
            if words[:4] == ["python", "-m", "recovery", "run"] and request.param == "here":
                done = run_here(request.getfixturevalue("spark"), *words[4:])
                assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
                printed += done.stdout
            else:
                printed += shell(line)
        return printed

    return run


def commands_of(example: str) -> str:
    """The indented lines of an example's docstring: the commands that its reader types."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / example).read_text()))
    assert docstring is not None
    return "\n".join(line for line in docstring.splitlines() if line.startswith("    "))


def states(step: str, directory: str = "db") -> dict[str, Any]:
    """The state of every key of a step, as the partitions hold it: folded or only logged."""
    newest = min(query(path, "SELECT max(epoch) FROM epochs")[0][0] or 0 for path in paths_of(Path(directory)))
    held = state_at(Path(directory), newest)
    return {key: msgspec.json.decode(text) for (name, key), (text, _) in held.items() if name == step}


def states_at_epoch_1() -> dict[str, str]:
    """What the statement in docs/file-format.md gives, which is written there for epoch 2."""
    [statement] = re.findall(r"^```sql\n([^`]*until_epoch[^`]*)^```", FILE_FORMAT, re.DOTALL | re.MULTILINE)
    found = {}
    for path in sorted(Path("db").glob("part-*.sqlite3")):
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        found.update(connection.execute(re.sub(r"epoch (<=|>) 2", r"epoch \1 1", statement)).fetchall())
        connection.close()
    return found


def test_every_example_is_run_here() -> None:
    """A new example needs a test."""
    tested = set(re.findall(r"commands_of\(\"(\w+\.py)\"\)", Path(__file__).read_text()))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("typed", some(["here", "in processes"], "here"), indirect=True)
def test_word_count_continues_where_it_stopped(shell: Any, typed: Any) -> None:
    """The second run reads the appended line alone, and counts on."""
    printed = typed(commands_of("word_count.py"))
    first, second = printed.split("micro-batch 1:")
    assert re.findall(r"(\d+)  (\w+)", first.split("micro-batch 0:")[1]) == [
        ("2", "be"), ("2", "to"), ("1", "not"), ("1", "or"),
    ]  # fmt: skip
    assert re.findall(r"(\d+)  (\w+)", second) == [("1", "is"), ("1", "question"), ("1", "that"), ("1", "the")]
    assert states("count") == {"to": 2, "be": 2, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1}
    assert states_at_epoch_1() == {"to": "2", "be": "2", "or": "1", "not": "1"}
    [script] = re.findall(r"^```python\n(import hashlib.*?)^```", FILE_FORMAT, re.DOTALL | re.MULTILINE)
    Path("digests.py").write_text(script)
    assert "rows are as they were written" in shell("python digests.py")


@pytest.mark.long
def test_the_state_of_a_processor_comes_along(shell: Any) -> None:
    """The dry run and the import count the same keys; the flow reads the second file alone, and counts on."""
    pytest.importorskip("google.protobuf", reason="transformWithState in Python needs it")
    printed = shell(commands_of("state_comes_along.py"))
    assert "would import operator 0 (transformWithStateInPandasExec) into step visits of flow visits: 2 keys" in printed
    assert "\nimported operator 0 (transformWithStateInPandasExec) into step visits of flow visits: 2 keys" in printed
    assert states("visits") == {
        "ann": {"pages": 3, "path": ["/a", "/c", "/d"]},
        "bob": {"pages": 1, "path": ["/b"]},
        "eve": {"pages": 1, "path": ["/a"]},
    }


@pytest.mark.long
def test_more_partitions_continue_and_back(shell: Any) -> None:
    """After repartitioning in place, a run goes on, and another goes back behind it: state and output are exact."""
    printed = shell(commands_of("more_partitions.py"))
    assert "all steps are equal at 2 held epochs" in printed
    counts = {"to": 2, "be": 2, "or": 1, "not": 1, "that": 1, "is": 1, "the": 1, "question": 1}
    assert states("count") == counts
    assert sorted(path.name for path in Path("db").glob("part-*.sqlite3")) == [f"part-{n}.sqlite3" for n in range(5)]
    written = [json.loads(line) for path in Path("out").glob("*.json") for line in path.read_text().splitlines()]
    assert sorted((each["word"], each["n"]) for each in written) == sorted(counts.items())
    assert sorted(path.name for path in Path().iterdir()) == ["db", "examples", "logs", "out"]


@pytest.mark.long
def test_the_story_of_a_bug_is_that_of_its_page(shell: Any) -> None:
    """What the commands print is what docs/point-in-time.md shows, but for ids, times and places."""
    printed = without_chance(shell(f"exec 2>&1\n{commands_of('bugfix/flights.py')}"))
    [section] = re.findall(r"^## A bug in a flow.*?(?=^## )", (ROOT / "docs/point-in-time.md").read_text(), re.M | re.S)
    blocks = re.findall(r"^```text\n(.*?)^```", section, re.M | re.S)
    shown = [line for block in blocks for line in without_chance(block).splitlines() if not line.startswith("$ ")]
    assert len(shown) > 30
    assert [line for line in shown if line not in printed.splitlines()] == ["AA,N3ALAA,-15"]
    assert "AA,N3ALAA,-15\n" in Path("flights.csv").read_bytes()[79_124:128_267].decode()
    late: defaultdict[str, int] = defaultdict(int)
    for line in Path("flights.csv").read_text().splitlines():
        carrier, tailnum, delay = line.split(",")
        late[f'["{carrier}","{tailnum}"]'] += 0 if delay == "NA" else max(0, int(float(delay)))
    assert {key: state["minutes_late"] for key, state in states("delays").items()} == late


def without_chance(text: str) -> str:
    """The lines without ids, times, sizes in bytes, rates and places, and with single spaces."""
    text = re.sub(r"[0-9a-f]{16}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", "…", text)
    text = re.sub(r"[\d.,]+ (rows/s|[kM]B|B|m?s|min)\b|(?<=')?/[\w/.-]+(?=/(out|flights\.csv))", "…", text)
    return re.sub(r" · snapshot.*|[ -]+(?=\n)| +(?= )", "", text)


@pytest.mark.long
def test_flight_delays_match_the_data(shell: Any) -> None:
    """After two runs on a growing file, the figures of every carrier and airplane are those of all of it."""
    printed = shell(commands_of("flight_delays.py"))
    flights_of: defaultdict[str, int] = defaultdict(int)
    carriers: defaultdict[str, list[Any]] = defaultdict(lambda: [0, 0, 0, None, 0])
    with Path("flights.csv").open(newline="") as file:
        for flight in csv.DictReader(file):
            figures = carriers[flight["carrier"]]
            figures[0] += 1
            flights_of[flight["tailnum"]] += 1
            figures[4] += flights_of[flight["tailnum"]] == 1 and flight["tailnum"] != "NA"
            if flight["dep_delay"] != "NA":
                delay = int(flight["dep_delay"])
                figures[1] += 1
                figures[2] += delay
                figures[3] = delay if figures[3] is None else max(figures[3], delay)
    assert sum(flights_of.values()) == 40_000
    flights_of["␀"] = flights_of.pop("NA")
    assert states("airplane") == flights_of
    assert states("carrier") == carriers
    last = printed.rsplit("micro-batch", 1)[1]
    n, _, minutes, _, airplanes = carriers["UA"]
    shown = re.search(r"^UA +(\S+) +(\S+) +(\S+)", last, re.MULTILINE)
    assert shown is not None
    assert shown.groups() == (f"{n:,}", f"{airplanes:,}", f"{minutes / carriers['UA'][1]:.1f}")


@pytest.mark.long
def test_sessions_end_on_an_idle_stream_and_between_runs(shell: Any) -> None:
    """Timeouts fire without input while a flow runs, and at the next run when they passed meanwhile."""
    printed = shell(commands_of("sessions.py"))
    alone, from_command_line = printed.split("Created 2 recovery partitions")
    assert re.findall(r"(\w+): (\d) clicks, left at (\S+),", alone) == [
        ("ann", "3", "/cart"), ("bob", "1", "/home"), ("cyd", "1", "/search"),
    ]  # fmt: skip
    assert "3 sessions over" in alone
    assert re.findall(r"(\w+): (\d) clicks, left at (\S+),", from_command_line) == [("ann", "1", "/home")]
    assert states("session") == {}


@pytest.mark.long
def test_bad_payments_wait_until_the_code_is_fixed(shell: Any) -> None:
    """Then all of them count, once."""
    printed = shell(commands_of("bad_records.py"))
    assert "KeyError: 'JPY'" in printed
    assert "the next run replays 5 rows of 3 keys" in printed
    assert states("totals", "payments-db") == {"alice": 1350, "bob": 663, "carol": 700, "dave": 400}


@pytest.mark.long
def test_odd_readings_are_reported(shell: Any) -> None:
    """The second run compares with the means of the first; the figures are those of all readings."""
    printed = shell(commands_of("sensors.py"))
    lines = re.findall(r"^\w+: \d readings.*$", printed, re.MULTILINE)
    assert lines == [
        "attic: 1 readings, mean 30.0, latest 30.0, odd: none",
        "cellar: 2 readings, mean 12.5, latest 13.0, odd: none",
        "attic: 2 readings, mean 30.5, latest 31.0, odd: none",
        "cellar: 3 readings, mean 21.7, latest 40.0, odd: 40.0",
    ]
    assert states("mean") == {"attic": {"n": 2, "mean": 30.5}, "cellar": {"n": 3, "mean": 65 / 3}}


@pytest.mark.long
def test_the_job_moved_over_gives_the_same(shell: Any) -> None:
    """applyInPandasWithState and stateful agree; the example itself compares them, and fails when they differ."""
    printed = shell(commands_of("from_apply_in_pandas.py"))
    assert re.search(r"^garden +n=2 mean=0.75 max=4.0 +n=2 mean=0.75 max=4.0$", printed, re.MULTILINE)
    assert "\nthe same\n" in printed
    assert "sensor=cellar  n=1  mean=12.5  highest=12.5" in printed
    assert states("averages") == {"cellar": [1, 12.5, 12.5]}


@pytest.mark.long
def test_output_appears_once(shell: Any) -> None:
    """Killed while publishing, the files hold every record once after the next run; so does the table."""
    printed = shell(commands_of("exactly_once.py"))
    _, after_kill = printed.split("\nkilled\n")
    found = re.findall(r"^ *([a-z]+) +(\d+)$", after_kill, re.MULTILINE)
    assert found == [("be", "2"), ("not", "1"), ("or", "1"), ("to", "2")] * 2


@pytest.mark.long
def test_a_pipeline_loads_what_is_new(shell: Any) -> None:
    """The first run loads two orders, the second only the one that came since; both reports are of all."""
    printed = shell(commands_of("pipeline.py"))
    first, second = printed.split("\n2\n")  # the mark between the two runs
    assert re.findall(r"loaded order (\d)", first) == ["1", "2"]
    assert re.findall(r"^(ann|bob): (\d+)$", first, re.MULTILINE) == [("ann", "10"), ("bob", "5")]
    assert re.findall(r"loaded order (\d)", second) == ["3"]
    assert re.findall(r"^(ann|bob): (\d+)$", second, re.MULTILINE) == [("ann", "17"), ("bob", "5")]


def test_a_remote_job_is_submitted_once(shell: Any) -> None:
    """Two tries crash, before and after noting its id; the tries after them get the result of the one job."""
    printed = shell(commands_of("remote_job.py"))
    [job] = [path.stem for path in Path("jobs").iterdir()]
    assert printed.count("crashed") == 2
    assert re.findall(r"submitted job (\w+)", printed) == [job, job]
    assert printed.splitlines()[-2:] == [f"job {job}: model of nightly/train/2024-05-01"] * 2


@pytest.mark.long
def test_windows_of_flights(shell: Any) -> None:
    """Every day that is complete is put out once, over two runs, with the flights that a plain loop counts in it."""
    printed = shell(commands_of("windows.py"))
    lines = re.findall(r"^(\S+)  (\w{3}) +(\d+) flights, +(\d+) cancelled$", printed, re.MULTILINE)
    counted: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    with Path("flights.csv").open(newline="") as file:
        for flight in {tuple(row) for row in csv.reader(file)}:
            figures = counted[flight[18][:10], flight[12]]
            figures[0] += 1
            figures[1] += flight[3] == "NA"
    assert len(lines) >= 15
    assert len({(day, origin) for day, origin, _, _ in lines}) == len(lines)
    assert all(counted[day, origin] == [int(n), int(cancelled)] for day, origin, n, cancelled in lines)


@pytest.mark.long
def test_flights_joined_with_the_weather(shell: Any) -> None:
    """Mean delays in rain and dry are those of all four days, joined in memory."""
    shell(commands_of("join.py"))
    rain = {}
    for path in Path("weather").iterdir():
        with path.open(newline="") as file:
            rain.update(
                {(hour, place): precip != "NA" and float(precip) > 0 for hour, place, precip in csv.reader(file)}
            )
    expected: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in Path("flights").iterdir():
        with path.open(newline="") as file:
            for hour, origin, delay in csv.reader(file):
                if (hour, origin) in rain and delay != "NA":
                    figures = expected["rain" if rain[hour, origin] else "dry"]
                    figures[0] += 1
                    figures[1] += int(delay)
    assert sum(n for n, _ in expected.values()) > 2000
    assert states("delays") == expected


@pytest.mark.long
def test_a_processor_with_timers_continues(shell: Any) -> None:
    """Every visit is put out once, by its timer, with all its pages: also the one that both runs have seen."""
    printed = shell(commands_of("spark_state.py"))
    assert re.findall(r"^(\w+): (\d) pages$", printed, re.MULTILINE) == [("ann", "2"), ("bob", "3")]


@pytest.mark.parametrize(
    ("language", "file"), [("ini", "recovery-words.service"), ("dockerfile", "Dockerfile"), ("yaml", "words.yaml")]
)
def test_the_files_of_a_deployment_are_those_that_are_explained(language, file):
    """A page and a file that differ would both be believed."""
    page = (ROOT / "docs" / "deploying.md").read_text()
    [shown] = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert (EXAMPLES / "deploy" / file).read_text() == shown


@pytest.mark.long
@needs_jars
def test_orders_from_a_topic(shell: Any, tmp_path: Path) -> None:
    """What is no JSON is passed over; the second run goes on with what has come since."""
    place = tmp_path / "broker"
    place.mkdir()
    with broker(place) as kafka:
        kafka.create("orders")
        make, run = commands_of("kafka_orders.py").splitlines()
        run = run.replace("127.0.0.1:9092", kafka.servers).replace("'jars/*.jar'", ",".join(map(str, CONNECTOR)))
        shell(make)
        sent = [(None, value) for value in (b'{"user":"ann","amount":2.5}', b"?", b'{"user":"bo","amount":1}')]
        kafka.send("orders", sent)
        assert "ann has 1 orders of 2.50" in shell(run)
        kafka.send("orders", sent[:1])
        second = shell(run)
    assert "ann has 2 orders of 5.00" in second
    assert "bo has" not in second
    assert states("spent").keys() == {"ann", "bo"}


def wire(schema_id: int, *fields: str | float | None) -> bytes:
    """A record in Confluent's wire format: text as its length and its bytes, a number in eight bytes, one of null and
    text with the number of the branch before it."""
    found = b"\x00" + schema_id.to_bytes(4, "big")
    for place, value in enumerate(fields):
        if isinstance(value, float):
            found += struct.pack("<d", value)
            continue
        content = (value or "").encode()
        text = bytes([len(content) * 2]) + content
        found += text if place == 0 else b"\x00" if value is None else b"\x02" + text
    return found


def avro_schemas(directory: Path) -> None:
    """Schema 7 without a currency, schema 300 with one, which the reader has, too."""
    fields = [{"name": "user", "type": "string"}, {"name": "amount", "type": "double"}]
    currency = {"name": "currency", "type": ["null", "string"], "default": None}
    directory.mkdir()
    for name, has in (("7", fields), ("300", [*fields, currency]), ("reader", [*fields, currency])):
        schema = {"type": "record", "name": "Order", "fields": has}
        (directory / f"{name}.avsc").write_text(json.dumps(schema))


def descriptor_set(path: Path) -> Any:
    """Write what protoc writes of a message Order; return its class."""
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    from google.protobuf import descriptor_pool, message_factory

    kinds = pb2.FieldDescriptorProto
    names = (("user", kinds.TYPE_STRING), ("amount", kinds.TYPE_DOUBLE), ("currency", kinds.TYPE_STRING))
    fields = [
        kinds(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
        for number, (name, kind) in enumerate(names, start=1)
    ]
    file = pb2.FileDescriptorProto(
        name="orders.proto", syntax="proto3", message_type=[pb2.DescriptorProto(name="Order", field=fields)]
    )
    path.write_bytes(pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))


@pytest.mark.long
@needs_jars
@pytest.mark.parametrize("form", ["json", "avro", "protobuf"])
def test_orders_of_a_format_that_changes(shell: Any, tmp_path: Path, form: str) -> None:
    """Records with and without the new field, one that cannot be read, and in Avro one of an unknown schema: each is in
    its total or in the count of those that were not read, and the next run goes on."""
    jars = list(CONNECTOR)
    if form == "json":
        old, new = b'{"user":"ann","amount":2.5,"new":[1]}', b'{"user":"ann","amount":1,"currency":"USD"}'
        more = [b'{"user":"ann"', b'{"user":7,"amount":"x"}']
    elif form == "avro":
        jars += JARS.glob("spark-avro*.jar")
        if len(jars) == len(CONNECTOR):
            pytest.skip("no jar spark-avro: see .ci/run")
        avro_schemas(Path("schemas"))
        old, new = wire(7, "ann", 2.5), wire(300, "ann", 1.0, "USD")
        more = [wire(8, "ann", 9.0), wire(300, "ann", 1.0, "USD")[:-2]]
    else:
        order = descriptor_set(Path("orders.desc"))
        old = order(user="ann", amount=2.5).SerializeToString()
        new = order(user="ann", amount=1, currency="USD").SerializeToString()
        more = [b"\xff\xff\xff", b""]
    place = tmp_path / "broker"
    place.mkdir()
    with broker(place) as kafka:
        kafka.create("orders", 1)
        make, run = commands_of("kafka_formats.py").splitlines()
        schemas = {"json": "schemas", "avro": "schemas", "protobuf": "orders.desc"}[form]
        target = f"make('{form}', '{kafka.servers}', schemas='{schemas}')"
        run = run.replace("make('json', '127.0.0.1:9092')", target)
        run = run.replace("'jars/*.jar'", ",".join(map(str, jars)))
        shell(make)
        kafka.send("orders", [(None, each) for each in (old, *more, new)])
        first = shell(run)
        assert {"ann EUR 1 2.5", "ann USD 1 1.0", "unread in partition 0 2 last offset 2"} <= set(first.split("\n"))
        kafka.send("orders", [(None, old)])
        second = shell(run)
    assert "ann EUR 2 5.0" in second
    assert "USD" not in second
    assert "unread" not in second


@pytest.mark.long
@needs_jars
def test_a_compacted_topic_as_a_table(shell: Any, tmp_path: Path) -> None:
    """Keys that are no text, records of two tenants and of nobody, a tombstone, and a value that is not JSON."""
    place = tmp_path / "broker"
    place.mkdir()
    with broker(place) as kafka:
        kafka.create("users", 1)
        make, run = commands_of("kafka_table.py").splitlines()
        run = run.replace("127.0.0.1:9092", kafka.servers).replace("'jars/*.jar'", ",".join(map(str, CONNECTOR)))
        shell(make)
        kafka.send("users", [(b"\xff\x00", b"1"), (b"\xfe", b'{"a": 1}')], headers=[("tenant", b"red")])
        kafka.send("users", [(b"\xff\x00", b"2")], headers=[("tenant", b"blue")])
        kafka.send("users", [(b"\xfe", b"{")], headers=[("tenant", b"red")])
        kafka.send("users", [(b"\xff\x00", b"3")])
        first = shell(run)
        kafka.send("users", [(b"\xff\x00", None)], headers=[("tenant", b"red")])
        second = shell(run)
    assert first.split("\n")[:5] == [
        "red ff00: new", "red fe: new", "blue ff00: new", "red fe: unreadable", "nobody ff00: new",
    ]  # fmt: skip
    assert second.split("\n")[0] == "red ff00: removed"
    assert sorted(map(str, states("newest").values())) == sorted(['{"a": 1}', "2", "3"])


@needs_jars
@pytest.mark.long
def test_totals_of_orders_come_once(shell: Any, tmp_path: Path) -> None:
    """Also the totals of a run that was killed between closing an epoch and producing it."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra has it)")
    place = tmp_path / "broker"
    place.mkdir()
    with broker(place) as kafka:
        kafka.create("orders", 1)
        kafka.create("totals", 2)
        make, run = commands_of("kafka_sink.py").splitlines()
        run = run.replace("127.0.0.1:9092", kafka.servers).replace("'jars/*.jar'", ",".join(map(str, CONNECTOR)))
        shell(make)
        kafka.send("orders", [(None, b'{"user":"ann","amount":%d}' % number) for number in (1, 2)])
        shell(run)
        kafka.send("orders", [(None, b'{"user":"ann","amount":%d}' % number) for number in (3, 4)])
        shell(f"export RECOVERY_CRASH_AT=kafka.3.sent\n{run} || true")
        shell(run)
        found = [json.loads(each.value) for each in kafka.committed("totals")]
    assert [(each["user"], each["n"], each["total"]) for each in found] == [
        ("ann", 1, 1.0), ("ann", 2, 3.0), ("ann", 3, 6.0), ("ann", 4, 10.0),
    ]  # fmt: skip
