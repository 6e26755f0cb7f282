"""Hosts whose clocks are apart by minutes: the driver's clock decides when a key times out."""

from __future__ import annotations

import re
import shutil

import pytest

APART = ("+7m", "-7m")
BOTH_WORK = (
    "spark.cores.max=2",
    "spark.scheduler.minRegisteredResourcesRatio=1",
    "spark.shuffle.reduceLocality.enabled=false",
    "spark.locality.wait=0s",
)
"""The run begins when both executors are there. By default Spark waits with a task until the host of the rows is free:
then one of them can have all tasks."""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("faketime") is None, reason="no faketime, which changes a process's clock")
def test_clocks_of_executors(make_lab, keep, tmp_path):
    """One executor's Python is seven minutes ahead, the other's as much behind. Each key ends when its time is over, as
    on one host, and not earlier."""
    lab = make_lab(2)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nexec python3 "$@"\n')
    python.chmod(0o755)
    for host, apart in zip(lab.network.hosts, APART, strict=True):
        script = f'#!/bin/sh\nexec faketime -f {apart} python3 "$@"\n'
        host.run(["sh", "-c", f"mkdir -p {tmp_path}; cat > {python} <<'END'\n{script}END\nchmod +x {python}"])
    kept = keep(lab)
    options = ("--trigger", "500ms")
    output = kept.run("executors.py:expiring(3)", *options, settings=BOTH_WORK, PYSPARK_PYTHON=str(python)).succeed()
    began, ended = (
        {key: int(now_ms) for key, now_ms in re.findall(rf"^{what} (k\d+) (\d+)$", output, re.MULTILINE)}
        for what in ("began", "ended")
    )
    assert sorted(began) == sorted(ended) == sorted(f"k{number}" for number in range(15))
    for key, now_ms in ended.items():
        assert 3000 <= now_ms - began[key] < 120_000, key
    apart_s = [int(found) for found in re.findall(r"^clock (-?\d+)$", output, re.MULTILINE)]
    assert min(apart_s) < -400
    assert max(apart_s) > 400
