"""The pages of a run: where they are, and that they end with the run in every way it can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from recovery.errors import ConfigurationError
from recovery.storage.store import OwnerAccess
from recovery.ui.beside.process import PagesProcess, check_at
from tests.stores import ROOT, STEP
from tests.ui.support import filled
from tests.waiting import wait_until

NOBODY = OwnerAccess()


def get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=30, trust_env=False)


def test_it_serves_the_directory(make_store):
    """Pages and JSON, until it is stopped; stopping again does nothing."""
    store = filled(make_store(2))
    pages = PagesProcess(store, ":0", NOBODY, {})
    try:
        url = pages.ready()
        assert url.startswith("http://127.0.0.1:")
        assert get(f"{url}api/steps/{STEP}/keys/k1").json()["epoch"] == 7
        assert get(f"{url}flows/{store.name}/").status_code == 200
        assert pages.ended() is None
    finally:
        pages.stop()
    assert pages.ended() is not None
    pages.stop()
    with pytest.raises(httpx.ConnectError):
        get(url)


def test_a_port_in_use_is_refused_before_anything_is_written(make_store):
    """With the words of `recovery ui`, and the option of the run."""
    first = PagesProcess(make_store(1), ":0", NOBODY, {})
    try:
        port = httpx.URL(first.ready()).port
        second = PagesProcess(make_store(1), f":{port}", NOBODY, {})
        try:
            with pytest.raises(ConfigurationError, match=f"{port}") as refused:
                second.ready()
            assert "--ui :PORT" in refused.value.remedy
        finally:
            second.stop()
    finally:
        first.stop()


def test_addresses():
    """Of the loopback interface only."""
    found = [check_at(each) for each in (":4050", "127.0.0.1:4050", "[::1]:0", "localhost:1")]
    assert found == ["127.0.0.1:4050", "127.0.0.1:4050", "[::1]:0", "localhost:1"]
    for wrong in ("0.0.0.0:4050", "example.com:1"):
        with pytest.raises(ConfigurationError, match="this host only"):
            check_at(wrong)
    for wrong in ("", "4050x", ":70000"):
        with pytest.raises(ConfigurationError):
            check_at(wrong)


RUN = """
import sys, time
from pathlib import Path
from recovery.storage.store import OwnerAccess
from recovery.ui.beside.process import PagesProcess
pages = PagesProcess(Path(sys.argv[1]), ":0", OwnerAccess(), {})
print(pages.pid, pages.ready(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_a_run_that_is_killed(store_dir: Path, number: int):
    """Nobody is left to stop it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.Popen([sys.executable, "-c", RUN, store_dir], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert run.stdout is not None
        pid, url = run.stdout.readline().split()
        assert get(f"{url}api/flows").status_code == 200
        run.send_signal(number)
        run.wait(30)
        wait_until(lambda: not _runs(int(pid)))
    finally:
        run.kill()
        run.wait()


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
