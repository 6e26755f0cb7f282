"""Hosts whose clocks are apart by minutes: the driver's clock decides when a key times out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
APART = ("+7m", "-7m")


@pytest.mark.long
@pytest.mark.skipif(LIBRARY is None, reason="no libfaketime, a library that changes a process's clock")
def test_clocks_of_executors(make_lab, keep):
    """One is seven minutes ahead, the other as much behind. Each key ends when its time is over, as on one host, and
    not earlier."""
    lab = make_lab(0)
    for apart in APART:
        lab.add_host(FAKETIME=apart, FAKETIME_DONT_FAKE_MONOTONIC="1")
    kept = keep(lab)
    settings = [f"spark.executorEnv.LD_PRELOAD={LIBRARY}"]
    output = kept.run("executors.py:expiring(3)", "--trigger", "500ms", settings=settings).succeed()
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
