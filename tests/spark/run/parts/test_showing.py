"""The pages of a run, asked while it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request

import pytest

from recovery import ConfigurationError, RecoveryConfig, init_partitions, start
from recovery.base.clock import SystemClock
from recovery.spark.run.parts.showing import RunPages
from recovery.spark.run.prepare import Prepared
from recovery.storage.store import OwnerAccess
from tests.spark.support import totals_step
from tests.stores import problems
from tests.waiting import wait_until

pytestmark = pytest.mark.any_spark


def ask(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def test_a_run_that_is_prepared_has_its_pages(store_dir, capfd):
    """Beside the lock of the directory; the end of the parts ends them. Nothing of Spark is needed."""
    prepared = Prepared(RecoveryConfig(store_dir, ui=":0"), "flow", SystemClock())
    try:
        for part in prepared.parts:
            part.ready()
        [url] = re.findall(r"recovery: pages at (\S+)", capfd.readouterr().err)
        assert ask(f"{url}api/flows/{store_dir.name}")["lock"]["purpose"] == "flow flow"
    finally:
        assert prepared.parts.end() is None
    with pytest.raises(urllib.error.URLError):
        ask(f"{url}api/flows")


def test_pages_that_end_do_not_end_the_run(store_dir, capfd):
    """The run says so once, with what shows the directory again."""
    pages = RunPages(RecoveryConfig(store_dir), ":0", OwnerAccess())
    try:
        pages.ready()
        os.kill(pages.pid, signal.SIGKILL)
        wait_until(lambda: (pages.closed(), "has ended (signal 9)" in (said := capfd.readouterr().err), said)[1])
        pages.closed()
        assert capfd.readouterr().err == ""
    finally:
        pages.end(None)


def test_a_run_shows_itself_until_it_ends(spark, feed, tmp_path, capfd):
    """The run says where its pages are before the first micro-batch. The pages show closed epochs, and end with the
    run, which a program that asks does not keep from closing."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    for seed in range(3):
        feed.add_random(seed, count=200)
    urls, found = [], []

    def sink(batch, batch_id):
        if not urls:
            urls.extend(re.findall(r"recovery: pages at (\S+)", capfd.readouterr().err))
        batch.count()
        flow = ask(f"{urls[0]}api/flows/db")
        steps = ask(f"{urls[0]}api/steps")["steps"]
        keys = ask(f"{urls[0]}api/steps/{steps[0]['step']}/keys?limit=1000")["keys"] if steps else []
        found.append((flow["lock"] is not None, len(keys)))

    config = RecoveryConfig(directory, snapshot_interval=0, ui=":0")
    frame = feed.frame(spark).transform(totals_step())
    start(frame, config, sink=sink, name="flow", trigger="available-now").await_termination()
    assert len(found) == 3
    assert all(running for running, _ in found)
    with pytest.raises(urllib.error.URLError):
        ask(f"{urls[0]}api/flows")
    assert problems(directory) == []


def test_an_address_for_others_is_refused(spark, feed, tmp_path):
    """Before anything is written: another interface needs a token and a certificate, as `recovery ui` has."""
    directory = tmp_path / "db"
    init_partitions(directory, 2)
    before = {path.name: path.read_bytes() for path in directory.glob("part-*")}
    frame = feed.frame(spark).transform(totals_step())
    with pytest.raises(ConfigurationError, match="this host only"):
        start(frame, RecoveryConfig(directory, ui="0.0.0.0:0"), name="flow", trigger="available-now")
    assert {path.name: path.read_bytes() for path in directory.glob("part-*")} == before
