"""What a run counts, and how it is shown to Prometheus."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from recovery.base.ids import BatchId, Epoch
from recovery.errors import ConfigurationError
from recovery.metrics.endpoint import MetricsEndpoint
from recovery.metrics.exposition import About, exposition, families
from recovery.metrics.memory import ProcessMemory, measure_memory
from recovery.metrics.meter import BatchMeasure, Counts, Meter
from recovery.planning.health import DEFAULTS, parse_targets
from recovery.planning.lag import InputLag, PartLag, SourceLag
from recovery.planning.measures import ClosedPartition, Measure, OperatorWork, StepSize
from recovery.planning.replica import ReplicaLag, ReplicaState, Shipped
from recovery.planning.sink_work import SinkWork


class Clock:
    """A clock that only a test moves."""

    now_s = 100.0

    def wall_ms(self):
        return int(self.now_s * 1000)

    def elapsed_s(self):
        return self.now_s


def meter(targets=DEFAULTS, clock=None, memory=lambda _: ProcessMemory(1_000, 2_000, 3_000)):
    """A meter of execution 7."""
    return Meter(7, clock or Clock(), targets, memory)


def partition(**fields):
    """What closing did in one partition."""
    given = {
        "states": 1, "written": 2, "written_bytes": 20, "collected": 1, "collect_s": 0.5,
        "sizes": {"a": StepSize(3, 30)},
    }  # fmt: skip
    return ClosedPartition(**{**given, **fields})


def batch(rows=10, touched=4, looked_up=5, seam_s=0.05, duration_s=2.0):
    """A micro-batch."""
    return BatchMeasure(rows, touched, looked_up, seam_s, duration_s)


def test_micro_batches_belong_to_the_epoch_that_is_closed_as_of_them():
    """What goes on while an epoch is written counts for the next; nothing is counted twice."""
    counts = meter()
    counts.batch(0, batch())
    counts.batch(1, batch())
    counts.batch(2, batch(rows=99))
    counts.progress(0, 100, {0: 7})
    counts.progress(1, 200, {0: 8, 1: 3})
    counts.paused(1, 0.25)
    first, _ = counts.closed(1, 1, 0.75, [partition(), partition(collect_s=0.1)])
    assert (first.batches, first.batch_s, first.rows, first.input_rows) == (2, 4.0, 20, 300)
    assert (first.written, first.written_bytes, first.collected, first.collect_s) == (4, 40, 2, 0.5)
    assert first.steps == {"a": StepSize(6, 60)}
    assert first.operators == {0: 8, 1: 3}, "of the very micro-batch that the epoch ends with"
    assert first.update_latency_s == pytest.approx(0.1 / 10)
    assert (first.snapshot_s, first.pause_s, first.memory_bytes) == (0.75, 0.25, 6_000)
    second, _ = counts.closed(2, 2, 0.5, [partition()])
    assert (second.batches, second.rows, second.pause_s) == (1, 99, 0)
    assert second.input_rows == 99, "Spark has not told yet what it read"
    counts.progress(2, 120, {0: 9})
    counts.batch(3, batch())
    third, _ = counts.closed(3, 3, 0.5, [partition()])
    assert third.input_rows == 10, "what came late counts for no other epoch"
    assert (second.operators, third.operators) == ({}, {}), "nor does its number of rows"
    totals = counts.totals
    assert (totals.batches, totals.rows, totals.epochs, totals.snapshot_s) == (4, 129, 3, 1.75)
    assert totals.input_rows == 420


def test_counts_have_one_name_in_totals_measures_and_listeners():
    """What a run adds up is what each epoch's measure holds, and what a listener gets."""
    counted = set(Counts.__struct_fields__)
    assert counted <= set(Measure.__struct_fields__)
    counts = meter()
    counts.batch(0, batch())
    counts.progress(0, 100, {})
    counts.paused(0, 0.25)
    measure, _ = counts.closed(1, 0, 0.75, [partition(), partition(collect_s=0.1)])
    totals, listened = counts.totals, counts.as_json(0)
    for name in counted:
        assert getattr(totals, name) == getattr(measure, name) > 0, name
    assert {name: listened[name] for name in counted & set(listened)} == {
        name: getattr(totals, name) for name in counted - {"written", "collected"}
    }


def test_the_work_of_a_sink():
    """A measure has that of its epoch; a sink that does not count has none."""
    counts = meter()
    assert counts.closed(1, 0, 0.0, [partition()])[0].sink is None
    first = counts.closed(2, 1, 0.0, [partition()], sink=SinkWork(staged=5, produced=3, waiting=2))[0]
    second = counts.closed(3, 2, 0.0, [partition()], sink=SinkWork(staged=9, produced=9, transactions=2))[0]
    assert first.sink == SinkWork(staged=5, produced=3, waiting=2)
    assert second.sink == SinkWork(staged=4, produced=6, transactions=2)


def test_the_work_of_sparks_own_operators():
    """Each epoch has that of its micro-batches; without any report of them it is not measured, where there are some."""
    counts = Meter(7, Clock(), DEFAULTS, lambda _: ProcessMemory(1, 2, 3), native=True)
    for number in range(4):
        counts.batch(number, batch(looked_up=0, seam_s=0.0))
    work = OperatorWork(updated=100, update_s=0.5, removed=7, remove_s=2.0, memory_bytes=900)
    later = OperatorWork(updated=300, update_s=0.5, removed=1, remove_s=1.0, memory_bytes=800)
    counts.progress(0, 100, {0: 7}, {0: work})
    counts.progress(1, 100, {0: 9}, {0: later})
    counts.progress(2, 100, {}, None)
    first, _ = counts.closed(1, 1, 0.0, [partition()])
    assert first.native == {0: OperatorWork(updated=400, update_s=1.0, removed=8, remove_s=2.0, memory_bytes=800)}
    assert (first.native_latency_s, first.native_remove_s) == (0.0025, 2.0)
    second, _ = counts.closed(2, 2, 0.0, [partition()])
    assert second.native is None
    counts.progress(3, 100, {0: 9}, {0: later})
    third, _ = counts.closed(3, 3, 0.0, [partition()])
    assert third.native == {0: later}
    text = scraped(counts)
    for line in (
        'recovery_operator_rows{operator="0"} 9',
        'recovery_operator_updated_rows_total{operator="0"} 700',
        'recovery_operator_update_seconds_total{operator="0"} 1.5',
        'recovery_operator_removed_rows_total{operator="0"} 9',
        'recovery_operator_memory_bytes{operator="0"} 800',
        'recovery_target{target="cleanup-time"} 1',
        'recovery_health{target="update-latency"} 0',
        'recovery_health{target="backup-lag"} -1',
    ):
        assert f"{line}\n" in text
    assert 'recovery_target{target="backup-lag"}' not in text


def test_targets_that_are_missed_are_kept_at_their_worst():
    """Of each target the highest value of the run."""
    counts = meter(parse_targets({"snapshot-duration": "1s/5s"}))
    missed = [[str(each) for each in counts.closed(n, n, s, [])[1]] for n, s in enumerate((0.5, 6.0, 2.0))]
    assert missed == [
        [],
        ["snapshot duration 6 s (critical from 5 s)"],
        ["snapshot duration 2 s (warning from 1 s)"],
    ]
    assert [(each.value, str(each.level)) for each in counts.exceeded] == [(6.0, "critical")]


def test_memory_is_not_looked_at_too_often():
    """A look costs a walk over all processes; epochs may be closed many times a second."""
    clock, looks = Clock(), []

    def look(pid):
        looks.append(pid)
        return ProcessMemory(1, None, None)

    counts = meter(clock=clock, memory=look)
    for epoch in range(50):
        clock.now_s += 0.1
        counts.closed(epoch, epoch, 0.0, [])
    assert set(looks) == {os.getpid()}
    assert 2 <= len(looks) <= 4


def test_memory_of_a_tree_of_processes():
    """Our own, and Python processes below us; what is no process is not known."""
    code = "import sys; data = bytearray(30_000_000); print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        found = measure_memory(os.getpid())
    finally:
        child.communicate()
    assert found.driver_bytes > 5_000_000
    assert found.workers_bytes > 30_000_000
    assert measure_memory(2**30) == ProcessMemory()


def test_memory_of_a_driver_that_the_jvm_has_started(tmp_path, monkeypatch):
    """As spark-submit does: the JVM is the parent, and the workers are its children like the driver."""
    page = os.sysconf("SC_PAGE_SIZE")
    for number, name, parent, pages in (
        (1, "init", 0, 9), (5, "java", 1, 100), (6, "python3", 5, 10), (7, "python3", 5, 20), (8, "python3", 7, 30),
    ):  # fmt: skip
        process = tmp_path / str(number)
        process.mkdir()
        (process / "stat").write_text(f"{number} ({name}) S {parent} 0 0")
        (process / "statm").write_text(f"999 {pages} 0")
        (process / "cmdline").write_bytes(name.encode())
    assert measure_memory(6, tmp_path) == ProcessMemory(10 * page)
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert measure_memory(6, tmp_path) == ProcessMemory(10 * page, 100 * page, 50 * page)


def test_memory_of_an_owner():
    """Its process is known by its command, and is no worker, as processes that other tests have left are."""
    before = measure_memory(os.getpid()).workers_bytes or 0
    code = "import sys; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "-m", "recovery.owner"]
    child = subprocess.Popen([*command, ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        found = measure_memory(os.getpid())
    finally:
        child.communicate()
    assert found.owner_bytes > 1_000_000
    assert (found.workers_bytes or 0) - before < found.owner_bytes


def test_memory_without_proc(tmp_path):
    """On another system nothing is known."""
    assert measure_memory(1, tmp_path / "none") == ProcessMemory()


ODD = 'wö"rds\\\nx'


def scraped(counts):
    """The text that a scrape gets."""
    about = About(ODD, 7, 3, "0.1.0", DEFAULTS)
    return exposition(families(about, counts.totals, resume_s=0.5, epoch_age_s=None, backup_age_s=60.0))


def test_the_text_is_what_prometheus_reads():
    """Its own parser finds every family, with names and types by its conventions, and odd labels as they are."""
    parser = pytest.importorskip("prometheus_client.parser", reason="the test extra has it")
    counts = meter()
    counts.batch(0, batch())
    counts.closed(1, 0, 0.75, [partition(sizes={ODD: StepSize(1, 2)})])
    found = {family.name: family for family in parser.text_string_to_metric_families(scraped(counts))}
    assert found["recovery_info"].samples[0].labels["flow"] == ODD
    assert found["recovery_state_bytes"].samples[0].labels == {"step": ODD}
    assert found["recovery_snapshot_seconds"].type == "counter"
    assert found["recovery_snapshot_seconds"].samples[0].value == 0.75
    assert found["recovery_epoch"].samples[0].value == 1
    assert {s.labels["process"]: s.value for s in found["recovery_memory_bytes"].samples}["workers"] == 3_000
    assert {s.labels["target"] for s in found["recovery_health"].samples} == {
        t.name for t in DEFAULTS if not t.optional or t.name == "wait"
    }
    for name, family in found.items():
        assert name.startswith("recovery_")
        assert family.documentation.endswith(".")
        assert (
            all(s.name.endswith("_total") for s in family.samples) == (family.type == "counter") or not family.samples
        )


def test_a_run_that_has_closed_nothing_has_no_such_samples():
    """A missing value is missing, not zero."""
    text = scraped(meter())
    assert "recovery_epoch " not in text.replace("# TYPE recovery_epoch ", "").replace("# HELP recovery_epoch ", "")
    assert "recovery_batches_total 0" in text


def get(url):
    """The answer's code, type and text."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, None, ""


def test_the_lag_is_as_new_as_the_last_look():
    """Not as the newest epoch: by source, by partition, and as a target."""
    source = SourceLag(source="b:1", topic="t", unit="record", behind=7, seconds=700.0)
    lag = InputLag(execution=7, epoch=1, seen_ms=0, sources=(source,), group="g")
    parts = [PartLag("b:1", "t", "0", "record", 3, 10, 7)]
    counts = meter()
    _, missed = counts.closed(Epoch(1), BatchId(0), 0.1, [], None, None, 4000.0)
    assert ("source-lag", "critical") in [(each.target.name, each.level) for each in missed]
    about = About("flow", 1, 1, "0", DEFAULTS)

    def lines(**more):
        found = families(about, counts.totals, resume_s=0, epoch_age_s=None, backup_age_s=None, **more)
        return exposition(found).splitlines()

    text = lines(lag=lag, lag_parts=parts)
    for line in (
        'recovery_source_lag{source="b:1",topic="t",partition="0",unit="record"} 7',
        'recovery_source_lag_seconds{source="b:1",topic="t"} 700',
        'recovery_kafka_group_shown{group="g"} 1',
        'recovery_target{target="source-lag"} 700',
        'recovery_health{target="source-lag"} 1',
    ):
        assert text.count(line) == 1
    assert not [each for each in lines() if each.startswith(("recovery_source_lag", "recovery_kafka"))]


def test_the_endpoint():
    """Any free port, on the loopback; only the metrics path is served; closing it ends it."""
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    try:
        assert endpoint.url.startswith("http://127.0.0.1:")
        assert get(endpoint.url)[2] == "# The run is starting.\n"
        endpoint.serve(lambda: "recovery_x 1\n")
        assert get(endpoint.url + "?a=b") == (200, "text/plain; version=0.0.4; charset=utf-8", "recovery_x 1\n")
        assert get(endpoint.url.replace("/metrics", "/etc/passwd"))[0] == 404

        def broken():
            raise KeyError

        endpoint.serve(broken)
        assert get(endpoint.url)[0] == 500
    finally:
        endpoint.close()
    endpoint.close()
    with pytest.raises(urllib.error.URLError):
        get(endpoint.url)


def test_a_port_that_is_taken():
    """The error says which, and what to do; the one that has it goes on."""
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    try:
        port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ConfigurationError, match=str(port)):
            MetricsEndpoint("127.0.0.1", port)
        assert get(endpoint.url)[0] == 200
    finally:
        endpoint.close()


def test_an_address_of_another_machine():
    """The message says so."""
    with pytest.raises(ConfigurationError, match="cannot be served"):
        MetricsEndpoint("203.0.113.7", 0)


def test_a_run_that_replicates_exports_how_far_its_replica_is_behind():
    """Only such a run has these metrics; the lag is a target of each of its epochs."""
    counts = meter()
    state = ReplicaState("s3://bucket", Shipped(Epoch(7), 1), ReplicaLag(2, 61.5), 1000, 5, 3, "no answer")
    about = About("flow", 1, 1, "0", DEFAULTS)

    def text(replica: ReplicaState | None) -> str:
        found = families(about, counts.totals, resume_s=0, epoch_age_s=None, backup_age_s=None, replica=replica)
        return exposition(found)

    assert "replica_" not in text(None)
    lines = text(state).splitlines()
    for line in ("epoch 7", "lag_epochs 2", "lag_seconds 61.5", "shipped_bytes_total 1000", "failures_total 3"):
        assert f"recovery_replica_{line}" in lines
    _, missed = counts.closed(Epoch(1), BatchId(0), 0.1, [], None, state.lag)
    assert [(each.target.name, each.level) for each in missed if "replica" in each.target.name] == [
        ("replica-lag", "warning")
    ]
    _, missed = counts.closed(Epoch(2), BatchId(1), 0.1, [], None, ReplicaLag(4, 4.0))
    assert [str(each) for each in missed] == ["replica behind by 4 epochs (warning from 4 epochs)"]


def test_rows_in_quarantine_are_counted_by_step():
    """Of each step that has a quarantine, also without rows; other flows have no such samples."""
    counts = meter()

    def text(quarantined: dict[str, int]) -> list[str]:
        about = About("flow", 1, 1, "0", DEFAULTS)
        found = families(about, counts.totals, resume_s=0, epoch_age_s=None, backup_age_s=None, quarantined=quarantined)
        return [line for line in exposition(found).splitlines() if line.startswith("recovery_quarantined_rows")]

    assert text({"totals": 3, ODD: 0}) == [
        'recovery_quarantined_rows{step="totals"} 3',
        'recovery_quarantined_rows{step="wö\\"rds\\\\\\nx"} 0',
    ]
    assert text({}) == []
