"""Memory that runs out at an executor: in a step's function, in a Python worker that the kernel ends, in the JVM. The
error names what ended, and the next run goes on from what was closed."""

from __future__ import annotations

import pytest

ROWS = 2000
ENDINGS = {
    "step": (35, "Error: step 'counts', key 'k7', micro-batch 2: MemoryError", "spark.executor.pyspark.memory"),
    "worker": (54, "a Python worker ended while it did a task", "leave the workers more memory"),
    "jvm": (54, "ran out of memory: Command exited with code 52", "--conf spark.executor.memory"),
}


@pytest.mark.long
@pytest.mark.parametrize("who", ENDINGS)
def test_memory_runs_out(lab, beside, who):
    """Each attempt of the task ends in the same way, so the run does, too."""
    code, found, remedy = ENDINGS[who]
    kept = beside(lab)
    run = kept.run(f"executors.py:hungry({who!r})", settings=["spark.executor.pyspark.memory=1g"])
    assert run.wait() == code, run.text()
    assert found in run.text()
    assert remedy in run.text()
    assert "Traceback" not in run.text()
    assert kept.batches() == 2
    kept.run("executors.py:hungry()").succeed()
    assert kept.assert_exact(ROWS) == 5


@pytest.mark.long
def test_the_kernel_ends_a_worker_once(make_lab, beside):
    """Another one does the task."""
    kept = beside(make_lab(1))
    kept.run("executors.py:hungry('once')").succeed()
    assert kept.lab.network.hosts[0].run(["ls", "/tmp/was-killed"])
    assert kept.assert_exact(ROWS) == 5
