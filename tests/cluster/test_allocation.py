"""Executors that come and go as the cluster has it: dynamic allocation, and executors and hosts that are
decommissioned. The state is that of a plain loop, wherever the partitions are."""

from __future__ import annotations

import os
import signal

import pytest

from tests.cluster.support import EXECUTOR, WORKER

ROWS = 2000
DYNAMIC = (
    "spark.dynamicAllocation.enabled=true",
    "spark.dynamicAllocation.shuffleTracking.enabled=true",
    "spark.dynamicAllocation.shuffleTracking.timeout=1s",
    "spark.dynamicAllocation.minExecutors=0",
    "spark.dynamicAllocation.maxExecutors=3",
    "spark.dynamicAllocation.executorIdleTimeout=1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout=1s",
)
DECOMMISSION = (
    "spark.decommission.enabled=true",
    "spark.storage.decommission.enabled=true",
    "spark.storage.decommission.replicationReattemptInterval=1s",
)
LAUNCHED, KILLED = r"Launching executor app-", r"Executor app-\S+ finished with state KILLED"


@pytest.mark.long
def test_dynamic_allocation(make_lab, keep):
    """Executors are asked for when tasks wait, and let go between micro-batches, again and again."""
    lab = make_lab(3)
    kept = keep(lab)
    run = kept.run("cluster.py:paced(2000, 99, 1.0)", "--trigger", "8s", settings=DYNAMIC)
    run.await_that(lambda: min(lab.said(LAUNCHED), lab.said(KILLED)) >= 5, "five executors have come and gone")
    run.stop()
    assert kept.assert_exact(ROWS) >= 2


@pytest.mark.long
def test_executors_are_let_go_with_the_rows_that_a_sink_reads(make_lab, beside):
    """That takes a setting, which the error names; the next run does the micro-batch again."""
    kept = beside(make_lab(2))
    settings = [*DYNAMIC, "spark.dynamicAllocation.cachedExecutorIdleTimeout=1s"]
    run = kept.run("cluster.py:counts(2000, 99, 15)", settings=settings)
    assert run.wait() == 54, run.text()
    assert "the rows of a micro-batch were lost while the sink read them" in run.text()
    assert "leave that setting out" in run.text()
    done = kept.batches()
    kept.run(f"cluster.py:counts(2000, {done + 1})", settings=DYNAMIC).succeed()
    assert kept.assert_exact(ROWS) == done + 2


@pytest.mark.long
def test_an_executor_and_a_host_are_decommissioned(make_lab, keep):
    """By SIGPWR, as where a cloud takes its machines back: neither gets further tasks, and both end when they have
    done those that they have."""
    lab = make_lab(0)
    for _ in range(3):
        lab.add_host(SPARK_WORKER_OPTS=f"-D{DECOMMISSION[0]}")
    kept = keep(lab)
    run = kept.run("cluster.py:paced(2000, 99, 0.3)", settings=DECOMMISSION)
    run.await_text("^batch 1$")
    executor = lab.processes(EXECUTOR)[0]
    os.kill(executor, signal.SIGPWR)
    run.await_that(lambda: executor not in lab.processes(EXECUTOR), "the executor has ended")
    host = lab.network.hosts[1]
    [worker] = lab.processes(WORKER, host)
    os.kill(worker, signal.SIGPWR)
    run.await_that(lambda: not lab.processes(EXECUTOR, host), "the host has no executor")
    run.stop()
    assert kept.assert_exact(ROWS) >= 3
