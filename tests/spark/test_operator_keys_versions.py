"""A job that another version of PySpark ran, whose state moves into a step under this one."""

from __future__ import annotations

import os
import subprocess

import pytest

from recovery import stateful
from tests.spark.support import ODD_KEYS, ROOT, Feed, run_to_end
from tests.spark.test_operator_keys import JOBS, OUTPUT, imported, totals_in, truth
from tests.stores import problems

pytestmark = pytest.mark.long

PYTHONS = list(filter(None, os.environ.get("RECOVERY_TEST_SPARKS", "").split(os.pathsep)))
NAMES = [name for name in JOBS if name != "groups, processing time"]


@pytest.fixture(scope="module", params=PYTHONS or [None])
def jobs(request, tmp_path_factory):
    """The jobs have run over the first half of an input, with this Python. RECOVERY_TEST_SPARKS names Pythons with
    other versions of PySpark, separated as in PATH."""
    if request.param is None:
        pytest.skip("RECOVERY_TEST_SPARKS names no Python with another version of PySpark")
    root = tmp_path_factory.mktemp("older")
    feed = Feed(root / "input")
    for seed in (1, 2):
        feed.add_random(seed, count=60, keys=12)
    feed.add((key, 5) for key in ODD_KEYS if key is not None and "," not in key)
    command = [request.param, "-m", "tests.spark.job_of_another_version", feed.path, root / "jobs", *NAMES]
    environ = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "VIRTUAL_ENV")}
    environ |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": request.param}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environ, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-5000:]
    half = truth(feed)
    feed.add_random(3, count=60, keys=20)
    return root / "jobs", half, feed


@pytest.mark.parametrize("name", NAMES)
def test_state_of_another_version_goes_on_here(spark, jobs, tmp_path, name):
    """Totals are those of all input, with the operator's metadata, schemas and files as that version wrote them."""
    checkpoints, half, feed = jobs
    if not (checkpoints / name).exists():
        pytest.skip("that version has no transformWithState of rows")
    _, _, options, update, state = JOBS[name]
    done = imported(spark, checkpoints / name, tmp_path / "db", **options)
    assert (done.keys, done.left_out, done.expired) == (len(half), 0, 0)
    assert totals_in(tmp_path / "db") == half
    step = stateful("totals", key="key", update=update, output=OUTPUT, state=state, timeout=True)
    run_to_end(feed.frame(spark).transform(step), tmp_path / "db")
    assert totals_in(tmp_path / "db") == truth(feed)
    assert problems(tmp_path / "db") == []
