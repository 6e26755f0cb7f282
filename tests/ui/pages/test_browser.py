"""The pages in a real browser: they move while one watches, need no mouse, and say what the commands say."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from recovery.ui.pages.views import VIEWS
from tests.report.support import clock, long_history, run_epochs
from tests.report.test_page import EVIL
from tests.spark.test_crashes import finish, recovery_command
from tests.stores import ROOT, STEP, Driver
from tests.ui.pages.support import Tab, axe_script, chromium, served
from tests.waiting import wait_until

FLOW = ROOT / "examples" / "word_count.py"


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


def test_a_page_moves_while_one_watches(make_store, browser):
    """A new epoch appears without reloading; what was opened stays open, the focus stays, and nothing moves while it is
    paused. A server that has gone is said."""
    directory = make_store(2)
    with Driver(directory) as run:
        run.apply(0, {"a": "1"})
        run.close(0)
        with served(directory) as url:
            tab = Tab(browser, url)
            tab.open(f"flows/{directory.name}/")
            assert tab.text("#epoch") == "1"
            tab.page.evaluate("window.same = true; document.querySelector('main').dataset.every = 200")
            tab.page.locator("#around a").first.focus()
            run.apply(1, {"a": "2"})
            run.close(1)
            wait_until(lambda: tab.text("#epoch") == "2")
            assert tab.page.evaluate("window.same && document.activeElement.getAttribute('href')").endswith("/steps")
            tab.page.get_by_role("button", name="Pause").press("Enter")
            run.apply(2, {"a": "3"})
            run.close(2)
            tab.page.wait_for_timeout(700)
            assert tab.text("#epoch") == "2"
            tab.page.get_by_role("button", name="Continue").press("Enter")
            wait_until(lambda: tab.text("#epoch") == "3")
            # Nothing changes any more, so nothing is sent.
            statuses = []
            tab.page.on("response", lambda answer: statuses.append(answer.status))
            wait_until(lambda: tab.text("#epoch") and 304 in statuses)
            assert tab.problems() == []
        wait_until(lambda: "has not answered" in tab.text("#watched"))
        tab.page.close()


@pytest.mark.long
def test_an_error_comes_and_goes(make_store, browser):
    """What was shown before stays while there is one, with the error; a page that was opened meanwhile becomes the page
    of the flow when it is over."""
    directory = make_store(2)
    run_epochs(directory, 3, clock())
    file, aside = directory / "part-1.sqlite3", directory.parent / f"{directory.name}-part-1"
    with served(directory) as url:
        before, during = Tab(browser, url), Tab(browser, url)
        path = f"flows/{directory.name}/sources"
        before.open(path)
        before.page.evaluate("document.querySelector('main').dataset.every = 200")
        file.rename(aside)
        try:
            wait_until(lambda: "not up to date since" in before.text("#watched"))
            assert "missing" in before.text("#watched")
            assert before.text("#input h2") == "Input"
            during.open(path)
            assert "missing" in during.text("#error h2")
            during.page.evaluate("document.querySelector('main').dataset.every = 200")
        finally:
            aside.rename(file)
        wait_until(lambda: before.text("#watched") == "up to date")
        wait_until(lambda: during.page.locator("#input").count() == 1)
        for each in (before, during):
            each.page.close()


def test_the_keyboard_is_enough(make_store, browser):
    """From the link over the menu to a key, and to an older epoch of it; a sign-in form comes first where there is a
    token, and no key runs anything."""
    directory = make_store(2)
    run_epochs(directory, 4, clock())
    with Driver(directory, (STEP, EVIL)) as run:
        run.apply(900, {EVIL: '"old"', "k1": '"old"'}, step=EVIL)
        run.close(900)
        run.apply(901, {EVIL: '"new"'}, step=EVIL)
        run.close(901)
    token = directory.parent / "view-token"
    token.write_text("readers-of-these-pages\n")
    token.chmod(0o600)
    with served(directory, token_file=token) as url:
        tab = Tab(browser, url)
        keys = tab.page.keyboard
        tab.open(f"flows/{directory.name}/")
        keys.type("readers-of-these-pages\n")
        tab.page.wait_for_url("**/flows/**")
        keys.press("Tab")
        keys.press("Enter")
        assert tab.page.evaluate("document.activeElement.id") == "content"
        tab.page.get_by_role("link", name="A key").focus()
        keys.press("Enter")
        tab.page.get_by_label("Step").focus()
        keys.type(EVIL)
        keys.press("Tab")
        keys.type(EVIL)
        keys.press("Enter")
        tab.page.wait_for_selector("#value pre")
        assert tab.text("#value pre") == '"new"'
        tab.page.locator("#history a").last.focus()
        keys.press("Enter")
        tab.page.wait_for_url("**epoch=*")
        assert tab.text("#value pre") == '"old"'
        assert tab.problems() == []
        tab.page.close()


@pytest.mark.long
def test_every_page_for_everybody(make_store, browser):
    """On a phone, a desktop and a wall, light and dark: fits, asks no other host, and axe finds nothing."""
    directory = make_store(2)
    long_history(directory, 8, 40)
    axe = axe_script()
    if axe is None:
        pytest.skip("RECOVERY_AXE names no folder of npm with axe-core")
    base = f"flows/{directory.name}/"
    paths = [view.name for view in VIEWS if view.below is None]
    paths += [
        f"key?step={STEP}&key=k1",
        f"keys?step={STEP}",
        "epoch?epoch=30&execution=5",
        "compare?epoch_a=20&epoch_b=30",
    ]
    with served(directory) as url:
        for width, scheme in ((390, "dark"), (1280, "light"), (3840, "dark")):
            tab = Tab(browser, url, width=width, scheme=scheme)
            for path in paths:
                tab.open(base + path)
                assert tab.page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
                tab.page.evaluate(f"{axe}\n;0")
                found = tab.page.evaluate(
                    "axe.run().then((all) => all.violations.map((each) => each.id + each.nodes[0].html))"
                )
                assert found == [], (path, scheme)
            assert tab.problems() == []
            tab.page.close()


def command(*arguments: object, code: int = 0) -> dict:
    """What a command prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "recovery", *map(str, arguments), "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


class Growing:
    """A file of words that grows until the block ends."""

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._grow)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join(30)

    def _grow(self):
        number = 0
        while not self._ended.wait(0.2):
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"to be or not word{number % 50}\n")
            number += 1


@contextmanager
def pages_of(*directories: Path):
    """The command as a user starts it; its address."""
    arguments = [sys.executable, "-m", "recovery", "ui", *map(str, directories), "--at", ":0"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running.stderr.readline().split()[-1]
        finally:
            running.terminate()
            assert running.wait(30) == 0


def kill(run: subprocess.Popen) -> None:
    """Kill a run and its JVM."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait(30)
    run.stdout.close()


@pytest.mark.long
def test_a_live_flow(tmp_path, browser):
    """Watched over kills, a rewind, a fork and another number of partitions: the pages say what the commands say."""
    directory, forked, wider = tmp_path / "db", tmp_path / "forked", tmp_path / "wider"
    target = f"{FLOW}:make({str(tmp_path / 'logs')!r})"
    assert subprocess.run([sys.executable, "-m", "recovery", "init", str(directory), "2"], check=False).returncode == 0
    with Growing(tmp_path / "logs" / "words.txt"), pages_of(directory, forked, wider) as url:
        tab = Tab(browser, url)

        def epoch_shown() -> int:
            return int(tab.text("#epoch").replace(",", "").replace("–", "0"))

        for _ in range(2):
            before = int(command("status", directory)["resume_after"])
            tab.open("flows/db/")
            run = recovery_command(target, directory, "-s", "1s", "--trigger", "300ms", "-b", "1h")
            try:
                # The page is not loaded again.
                wait_until(lambda before=before: epoch_shown() >= before + 3, timeout_s=180)
                assert int(tab.text("#pid")) == command("status", directory)["lock"]["pid"]
            finally:
                kill(run)
            wait_until(lambda: "no run has the directory" in tab.text("#now"), timeout_s=30)
            assert epoch_shown() == command("status", directory)["resume_after"]
        goes_back_to = command("plan", directory)["resume_after"] - 2
        tab.open(f"flows/db/plan?resume_after={goes_back_to}")
        planned = command("plan", directory, "--resume-after", goes_back_to)
        assert int(tab.text("#resume")) == planned["resume_epoch"]
        gone = planned["discards"]
        assert tab.text("#discards").startswith(f"epochs {gone['first_epoch']} to {gone['last_epoch']},")
        rewound = recovery_command(target, directory, "-s", "1s", "-b", "1h", "--resume-after", str(goes_back_to))
        assert "Error" not in finish(rewound)
        tab.open("flows/db/timeline")
        rows = tab.page.locator("#epochs tbody tr").all_inner_texts()
        assert sum("abandoned" in row for row in rows) == gone["last_epoch"] - goes_back_to
        assert [each["status"] for each in command("runs", "list", directory)].count("dead") == 2
        assert tab.page.locator("#runs tbody tr").filter(has_text="dead").count() == 2
        held = command("status", directory)["window"]
        command("fork", directory, forked)
        command("repartition", directory, wider, 5)
        for other in (forked, wider):
            tab.open(f"flows/db/compare?other={other.name}")
            said = command("diff", directory, other, code=0)
            assert ("They are equal." in tab.page.content()) == said["equal"]
        tab.open("flows/wider/owners")
        assert tab.page.locator("tbody tr").count() == 5
        tab.open(f"flows/db/compare?epoch_a={held[0]}&epoch_b={held[-1]}")
        said = command("diff", directory, directory, "--epoch-a", held[0], "--epoch-b", held[-1], code=1)
        cells = tab.page.locator("tr", has_text="count").first.locator("td").all_inner_texts()
        assert [int(each) for each in cells[1:4]] == [
            said["steps"]["count"][each] for each in ("changed", "only_in_a", "only_in_b")
        ]
        for epoch in held[-2:]:
            tab.open(f"flows/db/key?step=count&key=be&epoch={epoch}")
            state = command("state", "get", directory, "--step", "count", "--key", "be", "--epoch", epoch)
            assert json.loads(tab.text("#value pre")) == state["content"]
        versions = command("history", directory, "--step", "count", "--key", "be")["versions"]
        assert tab.page.locator("#history tbody tr").count() == len(versions)
        problem = command("plan", missing(directory, tmp_path / "copy"), code=21)
        tab.open("flows/db/plan?lost=1")
        assert problem["error"] in tab.text("#plan")
        assert problem["remedy"] in tab.text("#plan")
        for name in ("db", "forked", "wider"):
            for view in VIEWS:
                assert view.below is not None or tab.open(f"flows/{name}/{view.name}").status == 200, view.name
        assert tab.problems() == []
        tab.page.close()


def missing(directory: Path, copy: Path) -> Path:
    """A copy of a directory, without its second partition."""
    shutil.copytree(directory, copy)
    (copy / "part-1.sqlite3").unlink()
    return copy
