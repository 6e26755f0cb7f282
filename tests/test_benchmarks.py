"""The benchmarks' own arithmetic: inputs and their truth, tables and ratios. No Spark, no peers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from benchmarks import keyed, keyed_lines
from benchmarks.__main__ import benchmarks, everything, of_session, parser
from benchmarks.contenders.owners import serving
from benchmarks.harness import glance, machine, pictures, processes, table
from benchmarks.harness.glance import Compared
from benchmarks.harness.processes import ROOT, ChildFailedError, Usage, parse_stat, run_child, run_command, spent
from benchmarks.harness.report import Report, replace_section
from benchmarks.harness.rounds import Contender, Measurement, Rounds
from benchmarks.session import Session
from benchmarks.suite import amplification, day, python_state, scale, storage, throughput, wire, written
from recovery import init_partitions
from recovery.storage.store import OwnerAccess, Store

CHILD = """
import pathlib, subprocess, time

def child(arguments):
    if "bytes" in arguments:
        held = b"x" * arguments["bytes"]
        while not pathlib.Path(arguments["until"]).exists():
            time.sleep(0.02)
    if "sleep" in arguments:
        started = subprocess.Popen(["sleep", str(arguments["sleep"])])
        pathlib.Path("grandchild").write_text(str(started.pid))
        started.wait()
    print("this is not the answer")
    return {"seconds": arguments["value"]}
"""
SHAPE = keyed_lines.Shape(events=600, keys=40, files=3)


def read(path: Path) -> list[tuple[str, int]]:
    return [(key, int(value)) for key, value in (line.split(",") for line in path.read_text().splitlines())]


def measurement(contender: str, seconds: float, problem: str | None = None) -> Measurement:
    answer = {"seconds": seconds, "state_bytes": 1 << 20, "versions": {"python": "3"}}
    return Measurement(contender, 0, answer, Usage(total_s=seconds + 1), problem)


def test_contenders_differ_in_source_and_sink(tmp_path: Path) -> None:
    """`ours-readme` has both of what users have."""
    lines = keyed_lines.generate(SHAPE, tmp_path)
    names = ("ours", "ours-function", "ours-appended", "ours-readme")
    given = [keyed.contender(name, lines, keyed.Setting(), tmp_path).arguments for name in names]
    assert [(each["function"], each["appended"]) for each in given] == [
        (False, False), (True, False), (False, True), (True, True)
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK")
def test_java_is_compiled_before_anything_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contender's arguments name the classes."""
    monkeypatch.setenv("RECOVERY_BENCH_SPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    lines = keyed_lines.generate(SHAPE, tmp_path)
    given = keyed.contender("spark-java", lines, keyed.Setting(), tmp_path).arguments
    assert Path(given["classes"], "KeyedTotals.class").exists()


def test_without_a_jdk_one_contender_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: nothing is compiled before it runs."""
    monkeypatch.setenv("RECOVERY_BENCH_SPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    lines = keyed_lines.generate(SHAPE, tmp_path)
    assert keyed.contender("spark-java", lines, keyed.Setting(), tmp_path).arguments["classes"] is None


def test_partitions_are_at_owners_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender's partitions, while its run lasts: one at each owner."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    init_partitions("db", 2)
    files = sorted(Path("db").iterdir())
    with serving(Path("db"), 2) as settings:
        places = Store(Path("db"), OwnerAccess(settings["owners"], settings["token_file"]).connect(30.0))
        assert [each.path.parent.name for each in places.found()] == list(settings["owners"])
        places.release()
    assert sorted(Path("db").iterdir()) == files


def test_the_truth_is_what_a_plain_loop_finds(tmp_path: Path) -> None:
    """Counts and totals of the generator are those of the lines that it wrote, in files of equal size."""
    lines = keyed_lines.generate(SHAPE, tmp_path)
    files = sorted(lines.files_directory.iterdir())
    assert [path.stat().st_size for path in files] == [SHAPE.file_bytes] * SHAPE.files
    assert b"".join(path.read_bytes() for path in files) == lines.one_file.read_bytes()
    counts, totals = Counter[str](), Counter[str]()
    for key, value in read(lines.one_file):
        counts[key] += 1
        totals[key] += value
    for number in range(SHAPE.keys):
        key = f"key-{number:07}"
        assert (counts[key], totals[key]) == (lines.counts[number], lines.totals[number])
    assert sum(counts.values()) == SHAPE.events


def test_keys_that_are_held_before(tmp_path: Path) -> None:
    """A file with every key, older than the others, which are as they are without it; all of it is in the truth."""
    plain = keyed_lines.generate(SHAPE, tmp_path)
    held = keyed_lines.generate(replace(SHAPE, held=True), tmp_path)
    first, *others = sorted(held.files_directory.iterdir(), key=lambda path: path.stat().st_mtime)
    assert [key for key, _ in read(first)] == [f"key-{number:07}" for number in range(SHAPE.keys)]
    assert [p.read_bytes() for p in others] == [p.read_bytes() for p in sorted(plain.files_directory.iterdir())]
    assert (held.counts == plain.counts + 1).all()
    assert held.totals.sum() == plain.totals.sum() + sum(value for _, value in read(first))


def test_an_input_is_the_same_every_time(tmp_path: Path) -> None:
    """The same shape gives the same bytes anywhere; another seed gives others; a half-written input is made again."""
    one = keyed_lines.generate(SHAPE, tmp_path / "a").one_file.read_bytes()
    assert keyed_lines.generate(SHAPE, tmp_path / "b").one_file.read_bytes() == one
    other = keyed_lines.Shape(SHAPE.events, SHAPE.keys, SHAPE.files, seed=2)
    assert keyed_lines.generate(other, tmp_path / "a").one_file.read_bytes() != one
    kept = keyed_lines.generate(SHAPE, tmp_path / "b")
    (kept.one_file.parent / "shape.json").unlink()
    kept.one_file.write_bytes(b"half")
    assert keyed_lines.generate(SHAPE, tmp_path / "b").one_file.read_bytes() == one


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda rows: rows, None),
        (lambda rows: [*rows[:-1], rows[-1].replace(",", ",1", 1)], "1 of 40 keys are wrong"),
        (lambda rows: rows[1:], "1 of 40 keys are wrong"),
        (lambda rows: [*rows, rows[0]], "has two totals"),
        (lambda rows: [*rows, "key-0000040,1,10"], "no key of the input"),
    ],
)
def test_wrong_totals_are_noticed(tmp_path: Path, change, found: str | None) -> None:  # type: ignore[no-untyped-def]
    """Right totals pass; a wrong, missing, doubled or foreign key does not."""
    lines = keyed_lines.generate(SHAPE, tmp_path / "inputs")
    rows = [f"key-{n:07},{lines.counts[n]},{lines.totals[n]}" for n in range(SHAPE.keys) if lines.counts[n]]
    (tmp_path / "part.csv").write_text("\n".join(change(rows)) + "\n")
    wrong = keyed_lines.check(lines, tmp_path)
    assert wrong is None if found is None else found in str(wrong)


def test_medians_and_ratios_come_from_correct_runs() -> None:
    """The median of three is the middle one; a contender that was wrong once has no time and no ratio."""
    measurements = [
        *(measurement("ours", s) for s in (10.0, 30.0, 20.0)),
        *(measurement("peer", s) for s in (50.0, 40.0, 500.0)),
        measurement("liar", 1.0),
        measurement("liar", 1.0, problem="wrong totals: all of them"),
    ]
    given = parser().parse_args(["throughput", "--events", "1_000", "--keys", "10"])
    report = throughput.report(given, measurements)
    rows = {row[0]: row for row in report.rows}
    assert rows["ours"][1:5] == ("20.0", "10.0–30.0", "1.00", "50")
    assert rows["peer"][1:5] == ("50.0", "40.0–500", "2.50", "20")
    assert rows["liar"][1:5] == ("–", "1–1", "–", "–")
    assert [row[-1] for row in report.rows] == ["correct", "correct", "WRONG"]
    assert report.problems == ["liar, round 1: wrong totals: all of them"]


def test_numbers_are_written_with_as_many_digits_as_they_deserve() -> None:
    """Ratios, seconds, counts and sizes."""
    assert [table.ratio(v, 10.0) for v in (None, 0.27, 10.0, 25.04, 1234.0)] == ["–", "0.027", "1.00", "2.50", "123"]
    assert [table.seconds(v) for v in (None, 0.1234, 9.876, 12.34, 123.4)] == ["–", "0.123", "9.88", "12.3", "123"]
    assert (table.count(12345.6), table.mebibytes(3 << 30), table.milliseconds(0.2984)) == ("12,346", "3,072", "298")


def test_a_table_is_aligned_markdown() -> None:
    """All lines are equally long and the first column is to the left."""
    shown = table.markdown(("name", "s"), [("a", "1.0"), ("longer", "12.5")])
    assert shown == "| name   |    s |\n| ------ | ---: |\n| a      |  1.0 |\n| longer | 12.5 |"


def test_results_keep_one_section_for_each_benchmark() -> None:
    """A section replaces the one of its name and leaves the others alone."""
    text = replace_section("", "## one\n\nold\n")
    text = replace_section(text, "## two\n\nkept\n")
    text = replace_section(text, "## one\n\nnew \\1\n")
    assert text.count("## one") == text.count("## two") == 1
    assert text.index("new \\1") < text.index("## two") < text.index("kept")
    assert "old" not in text
    assert text.startswith("# Results")


def test_a_report_names_machine_and_versions() -> None:
    """The section says what was measured on what, and what went wrong, without naming places."""
    report = Report(
        "x", ("a",), [("1",)], [measurement("ours", 1.0, problem=f"failed in {ROOT}\nmore")], ["Note."], "cmd"
    )
    text = report.text()
    assert all(
        part in text for part in ("## x", "`cmd`", "- Note.", "python 3", "cores", "**ours, round 1: failed in .**")
    )
    assert str(ROOT) not in text


@pytest.mark.parametrize(
    ("path", "is_change"),
    [("benchmarks/RESULTS.md", False), ("benchmarks/pictures/a.svg", False), ("recovery/a.py", True)],
)
def test_results_are_no_change_of_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, is_change: bool
) -> None:
    """Otherwise no session could be resumed: it has written results."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    changed = tmp_path / path
    changed.parent.mkdir(parents=True)
    changed.write_text("before")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init"], ["add", "."], [*author, "commit", "-m", "First"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)
    changed.write_text("after")
    assert machine.commit().endswith(" with changes") == is_change


def test_rounds_interleave_and_survive_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contender runs once a round, with another one first; a child that fails is a problem, not the end."""
    sample = processes._Watch._sample

    def sampled(watch: processes._Watch) -> None:
        sample(watch)
        if watch._usage.python_rss_bytes > 64 << 20:
            (tmp_path / "seen").touch()

    # A child holds its memory until it was seen.
    monkeypatch.setattr(processes._Watch, "_sample", sampled)
    held = {"value": 1, "bytes": 64 << 20, "until": str(tmp_path / "seen")}
    contenders = [
        Contender("good one", Path(sys.executable), "some:child", held),
        Contender("bad", Path(sys.executable), "some:child", {}),
    ]
    (tmp_path / "some.py").write_text(CHILD)
    environment = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = Rounds(2, tmp_path / "runs", environment, timeout_s=120).measure(
        contenders, lambda contender, answer, directory: None
    )
    assert [(m.contender, m.round) for m in done] == [("good one", 0), ("bad", 0), ("bad", 1), ("good one", 1)]
    assert done[0].seconds == 1
    assert done[0].usage.python_rss_bytes > 64 << 20
    assert "KeyError: 'value'" in str(done[1].problem)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    """With everything that it started."""
    # A slow machine may not have started everything after a second.
    for timeout_s in (1, 5, 20, 60):
        directory = tmp_path / str(timeout_s)
        directory.mkdir()
        (directory / "some.py").write_text(CHILD)
        with pytest.raises(ChildFailedError, match=f"not done after {timeout_s} s"):
            run_child(Path(sys.executable), "some:child", {"sleep": 600}, directory, {}, timeout_s)
        noted = directory / "grandchild"
        if noted.exists() and noted.read_text():
            break
    try:
        grandchild = parse_stat(Path(f"/proc/{int(noted.read_text())}/stat").read_text())
    except OSError:
        grandchild = None
    assert grandchild is None


def test_the_status_of_any_process_is_understood() -> None:
    """Brackets and blanks in a process's name move no field."""
    numbers = "S 7 " + " ".join(str(n) for n in range(2, 40))
    process = parse_stat(f"12 (a ) b) {numbers}")
    assert process is not None
    assert (process.parent, process.name, process.started) == (7, "a ) b", 19)
    own = parse_stat(Path("/proc/self/stat").read_text())
    assert own is not None
    assert own.parent == os.getppid()


@pytest.mark.parametrize(
    ("kind", "held", "touched"),
    [("close", 400, 20), ("log", 400, 20), ("snapshot", 0, 300), ("snapshot", 300, 300), ("log once", 0, 300),
     ("log once", 300, 300), ("fold", 0, 300), ("fold", 300, 300), ("raw", 0, 300), ("raw", 300, 300),
     ("collect", 300, 0), ("collect", 300, 40)],
)  # fmt: skip
def test_cases_of_the_partitions_alone_check_their_own_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, held: int, touched: int
) -> None:
    """Each case leaves a whole store with the right number of keys, and says what it wrote."""
    monkeypatch.chdir(tmp_path)
    answer = storage.measure({"kind": kind, "held": held, "touched": touched})
    assert answer["wrong"] == ""
    assert answer["seconds"] > 0
    assert answer["live_bytes"] > 0
    assert (answer["written_bytes"] > 0) == (kind != "collect")


@pytest.mark.parametrize("kept_s", [0.0, 3600.0])
@pytest.mark.parametrize(
    ("held", "touched", "most"), [(50_000, 500, 500), (500, 500, 600)], ids=["hundredth", "counters"]
)
def test_few_bytes_are_written_for_a_changed_key(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, held: int, touched: int, most: int, kept_s: float
) -> None:
    """Partitions and SQLite's logs of them together, whatever else the machine does; and the states are right. The
    kernel counts no bytes that are written to memory."""
    (ROOT / "build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=ROOT / "build"))
    request.addfinalizer(lambda: shutil.rmtree(directory))
    monkeypatch.chdir(directory)
    given = {"held": held, "touched": touched, "batches": 6, "backup_interval_s": kept_s}
    answer = written.measure(given)
    assert answer["wrong"] == ""
    assert 0 < sum(answer["files"][name] for name in written.FILES[:2]) < most * answer["touched"]
    assert answer["causes"]["closing"] > 0


@pytest.mark.parametrize("kind", ["files", "owner"])
def test_cases_of_the_wire_check_their_own_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """And count what went over the wire."""
    monkeypatch.chdir(tmp_path)
    answer = wire.measure({"kind": kind, "keys": 50, "batches": 5})
    assert answer["wrong"] == ""
    assert answer["task_s"] > 0
    assert (answer["calls"], answer["sent_bytes"] > 0) == ((3, True) if kind == "owner" else (0, False))


def test_many_owners_check_their_own_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state is the number of its key's micro-batches; a task calls each of its owners twice."""
    monkeypatch.chdir(tmp_path)
    sizes = {"partitions": 4, "owners": 2, "keys": 200, "cores": 3, "touched": 50, "batches": 2}
    answer = scale.measure(sizes)
    assert answer["wrong"] == ""
    # Task 0 has partitions 0 and 3, which two owners have.
    assert (answer["calls"], answer["driver_calls"]) == (8, 4)
    assert answer["threads"] >= 3 + sizes["cores"]
    measured = Measurement("owners", 0, answer, Usage(), None)
    assert dict(scale.report(sizes, [measured]).rows)["state"] == "correct"


def test_the_table_of_the_partitions_compares_each_case_with_its_limit() -> None:
    """Ratios are to the case that each one names."""
    chosen = storage.cases(few=10, many=100, keys=50, touched=5)
    found = [
        Measurement(
            case.name,
            0,
            {"seconds": 1.0 + number, "written_bytes": 100, "size_bytes": 3, "live_bytes": 2},
            Usage(),
            None,
        )
        for number, case in enumerate(chosen)
    ]
    rows = {row[0]: row for row in storage.report(chosen, found, 1).rows}
    assert rows["close 5 touched of 100, logged"][2] == "2.00"
    assert rows["first snapshot of 50 keys"][2] == "1.60"
    assert rows["close 5 touched of 10, logged"][2] == table.NONE


def test_all_runs_every_benchmark_in_every_size() -> None:
    """Each command line of `all` is one that its benchmark takes, small ones too."""
    names = {name for name, _ in benchmarks()}
    for given in (["all"], ["all", "--quick", "--repeat", "1", "--write-results"]):
        lines = everything(parser().parse_args(given))
        assert {line[0] for line in lines} == names
        for line in lines:
            taken = parser().parse_args(line)
            assert (taken.repeat, taken.write_results) == ((1, True) if "--quick" in given else (3, False))


def test_a_session_measures_in_the_order_of_weight() -> None:
    """Each of its command lines is one that its benchmark takes, small ones too; those come once."""
    for given in (["session"], ["session", "--quick"]):
        lines = of_session(parser().parse_args(given))
        assert [line[0] for line in lines][:3] == ["throughput", "python_state", "amplification"]
        assert len({tuple(line) for line in lines}) == len(lines)
        for line in lines:
            taken = parser().parse_args(line)
            assert taken.timeout == 600
            assert taken.repeat == 1 or not given[1:]


def session(directory: Path, *failing: str) -> Session:
    """A session whose benchmarks take no time, but fail where their name is one of these."""

    def measure(line: list[str]) -> Report:
        if line[0] in failing:
            raise SystemExit("no peer")
        compared = [Compared(f"line of {line[0]}", "1 s", {"spark-rocksdb": (2.0, 3.0)})]
        return Report(line[0], ("a",), [("1",)], [measurement("ours", 1.0)], compared=compared)

    return Session(directory / "session.json", directory / "RESULTS.md", "cmd", "commit", measure)


def test_a_session_survives_a_failed_table_and_continues(tmp_path: Path) -> None:
    """RESULTS.md begins with the ratios of all tables that are done, and keeps those of other sessions behind them."""
    pytest.importorskip("matplotlib")
    (tmp_path / "RESULTS.md").write_text("# Results\n\n## two\n\nold\n\n## other\n\nkept\n")
    lines = [["one"], ["two"]]
    assert session(tmp_path, "one").run(lines, 60) == 1
    again = session(tmp_path)
    again.resume()
    again.measure = session(tmp_path, "two").measure
    assert again.run(lines, 60) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    parts = ["## At a glance", "| line of one |", "| line of two |", "## one", "## two", "# Other sessions", "## other"]
    assert [text.count(part) for part in parts] == [1] * len(parts)
    assert sorted(parts, key=text.index) == parts
    assert "old" not in text
    assert (tmp_path / "pictures" / "at-a-glance.svg").exists()
    assert session(tmp_path).run([["three"]], limit_s=-1) == 1
    other = session(tmp_path)
    other.commit = "another"
    with pytest.raises(SystemExit, match="is of commit"):
        other.resume()


def test_the_table_of_ratios_has_the_fastest_of_each_kind() -> None:
    """Wall time, and processor time in brackets; no column for who was not measured."""
    lines = [
        Compared("a", "5 s", {"transformWithState": (4.0, 5.0), "applyInPandasWithState": (8.0, 2.0)}),
        Compared("b", "5 bytes", {"bytewax": (0.5, None), "transformWithState": (None, None)}),
    ]
    assert [Compared.read(json.loads(json.dumps(asdict(line)))) for line in lines] == lines
    shown = [[cell.strip() for cell in row.split("|")[1:-1]] for row in glance.markdown_of(lines).splitlines()]
    assert shown[0] == ["", "recovery", "Spark, Python function", "Bytewax"]
    assert shown[2:] == [["a", "5 s", "4.00 (5.00)", "–"], ["b", "5 bytes", "–", "0.50"]]
    assert glance.bars_of(lines) == [("a", [("Spark, Python function", 4.0)]), ("b", [("Bytewax", 0.5)])]


def test_a_command_is_timed_until_its_prompt_and_counted_until_its_last_process() -> None:
    """A process that outlives the command is waited for, and its lines are read; short processes count, too."""
    later = "subprocess.Popen(['sh', '-c', 'sleep 1; echo last'])"
    code = f"import subprocess, sys; print('first', flush=True); sum(range(3_000_000)); {later}; sys.exit(3)"
    ran = run_command([sys.executable, "-c", code])
    assert (ran.code, ran.said) == (3, "first\nlast\n")
    assert ran.usage.cpu_s > 0.02
    [(first_s, _), (last_s, _)] = ran.lines
    assert last_s - first_s > 0.9
    assert ran.usage.total_s > 0


def test_what_was_spent_includes_children_that_ended(tmp_path: Path) -> None:
    """Written pages and processor time of a child that was waited for; what goes through pipes is not written."""
    before = spent()
    code = "open('written', 'wb').write(bytes(1 << 20)); print('x' * (1 << 20)); sum(range(3_000_000))"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    used = spent() - before
    assert used.cpu_s > 0.01
    assert used.written_bytes % 4096 == 0
    on_disk = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - tmpfs " in line}
    if not any(tmp_path.is_relative_to(place) for place in on_disk if place != "/"):
        assert 1 << 20 <= used.written_bytes < 2 << 20


def test_steady_state_is_what_python_state_compares() -> None:
    """The first micro-batch is in neither time nor events."""
    found = [measurement("ours", 9.0), measurement("transformWithState", 9.0)]
    for each, steady_s in zip(found, (3.0, 6.0), strict=True):
        each.answer.update(steady_s=steady_s, steady_cpu_s=2 * steady_s)
    given = parser().parse_args(["python_state", "--events", "400", "--keys", "10", "--batches", "4"])
    report = python_state.report(given, found)
    assert [row[1:2] + row[4:8] for row in report.rows] == [
        ("100", "1.00", "6", "1.00", "9"), ("50", "2.00", "12.0", "2.00", "9")
    ]  # fmt: skip
    assert report.compared[0].peers == {"transformWithState": (2.0, 2.0)}


def test_bytes_are_per_changed_key() -> None:
    """Of the micro-batches that count, by the shape of the input."""
    given = parser().parse_args(["amplification", "--keys", "1_000", "--batches", "4"])
    found = []
    for name, shape in amplification.shapes(1_000, 4).items():
        touched = keyed_lines.touched(shape, amplification.FIRST)
        for contender, times in ((amplification.OURS, 100), (amplification.BYTEWAX, 300)):
            each = measurement(f"{contender}: {name}", 1.0)
            each.answer.update(written_bytes=times * touched, counted_cpu_s=1.0, kept_bytes=50 * shape.keys)
            found.append(each)
    report = amplification.report(given, found)
    assert [(row[0], row[2:4], row[6]) for row in report.rows if row[1] == amplification.BYTEWAX] == [
        (name, ("300", "3.00"), "50") for name in amplification.shapes(1_000, 4)
    ]
    assert [each.ours for each in report.compared] == ["100 bytes"] * 3


@pytest.mark.parametrize("picture", [
    pictures.ratios("times", [("a", [("peer", 0.5), ("other", 2.0)]), ("b", [("peer", 4.0)])]),
    pictures.bars("t", "s", [("ours", 1.0), ("wrong", None), ("peer", 2.0)]),
    pictures.curves("t", "x", "y", {"ours": [(1, 1.0), (2, None)], "peer": [(1, 3.0), (2, 6.0)]}),
])  # fmt: skip
def test_pictures_show_whoever_has_a_time(tmp_path: Path, picture: pictures.Picture) -> None:
    """The same figures give the same bytes; who was wrong has no bar."""
    pytest.importorskip("matplotlib")
    for name in ("one.svg", "two.svg"):
        picture(tmp_path / name)
    text = (tmp_path / "one.svg").read_text()
    assert "wrong" not in text
    assert text.count("peer") >= 1
    assert (tmp_path / "two.svg").read_text() == text


def test_a_day_of_backups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways restore what was written; an epoch's changes are less than a whole copy; what was measured for a part
    of the minutes is calculated for all."""
    words = ["day", "--keys", "400", "--touched", "10", "--minutes", "6", "--whole-minutes", "3", "--retain", "4m"]
    arguments = parser().parse_args([*words, "--repeat", "1"])
    arguments.work = tmp_path
    found = []
    for name, minutes in ((day.WHOLE, 3), (day.INCREMENTAL, 6)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        given = {"incremental": name == day.INCREMENTAL, "minutes": minutes, "keys": 400, "touched": 10}
        found.append(Measurement(name, 0, day.measure({**given, "retain": ["4m"]}), Usage(total_s=1.0), None))
    whole, changes = (each.answer for each in found)
    assert whole["wrong"] == changes["wrong"] == ""
    assert (whole["backups"], changes["backups"]) == (4, 5)
    assert whole["written_bytes"] / 3 > changes["written_bytes"] / 6
    rows = {row[0]: row for row in day.report(found, arguments).rows}
    assert rows["whole copies, calculated from 3 minutes"][4] == f"{2 * whole['writes']:,}"
    assert rows["incremental"][4] == f"{changes['writes']:,}"
