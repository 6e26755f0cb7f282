"""The page: it holds together, tells what there is, and lets no key do anything."""

from __future__ import annotations

import os
import random
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from recovery.base.clock import SystemClock
from recovery.base.ids import BatchId
from recovery.errors import ConfigurationError, DuplicatePartitionError
from recovery.operators.importing import import_checkpoint
from recovery.planning.advice import advise
from recovery.planning.health import DEFAULTS, parse_targets
from recovery.report.facts import gather, known, largest
from recovery.report.page import page
from recovery.report.quarantine import waited_before
from recovery.report.text import escaped
from recovery.storage.seam import BatchCount
from recovery.storage.store import Store
from recovery.values.keys import partition_of
from recovery.values.quarantine import WAITS_MS, Entry, KeyNote, entry_key, note_key, to_text
from tests.operators.support import place, write_job
from tests.report.support import STARTED_MS, clock, long_history, run_epochs
from tests.stores import STEP, Driver, pack

VOID = {"meta", "br", "img", "link", "input"}
EVIL = "</code><script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


class Page(HTMLParser):
    """What a browser would find: elements, attributes, text; raises when tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self):
        """All that is to be read."""
        return " ".join(self.texts)


def render(directory, targets=DEFAULTS, keys=5):
    """The page of a directory, as text."""
    facts = gather(Store(directory), targets, STARTED_MS + 10**8)
    return page(facts, advise(known(facts, 2), 30.0), largest(Store(directory), facts, keys))


def check(text):
    """What holds of every page."""
    found = Page(text)
    assert text.startswith("<!doctype html>")
    assert found.tags.count("script") == 1
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("href", "src")]
    outside = re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:https?:)?//\w|@import|url\((?!#)", outside) == []
    return found


def test_an_empty_store(make_store):
    """Says that there is nothing yet."""
    found = check(render(make_store(2)))
    assert "No run has begun yet." in found.text
    assert "Nothing is measured yet" in found.text
    assert "nothing measured yet" in found.text


def test_a_small_store(make_store):
    """Its epochs, its steps and keys, and its health."""
    directory = make_store(2)
    run_epochs(directory, 3, clock())
    found = check(render(directory))
    for text in ("flow", "epoch 4", "Biggest steps", "sessions", "s0", "healthy", "snapshot interval".capitalize()):
        assert text in found.text, text


def test_a_long_history(make_store):
    """Forty executions with rewinds and abandoned futures, in a page of bounded size."""
    directory = make_store(2)
    long_history(directory, 40, 160)
    text = render(directory, parse_targets({"snapshot-duration": "500ms/1m"}))
    found = check(text)
    assert "#40" in found.texts
    assert 'class="gone"' in text
    assert "went back over" in text
    assert "abandoned" in found.text
    assert "warning" in found.text
    assert len(text) < 600_000
    assert text.count('class="hit"') <= 6 * 240


def test_keys_and_steps_do_nothing(make_store):
    """Markup, control characters and direction marks in keys, steps and flow names are shown as what they are."""
    directory = make_store(2)
    with Driver(directory, (EVIL, "\u202etxt")) as run:
        run.apply(0, {EVIL: "1", "\u202egnp.exe": "1", "a\x01\nb": "1", "ключ 🔑": "1", "x" * 10_000: "1"}, step=EVIL)
        run.close(0)
    found = check(render(directory, keys=10))
    assert "img" not in found.tags
    assert any(EVIL in text for text in found.texts)
    assert any("‹U+202E›gnp.exe" in text for text in found.texts)
    assert any("a␁␊b" in text for text in found.texts)
    assert any("ключ 🔑" in text for text in found.texts)
    assert "x" * 200 not in found.text


def test_what_waits_in_quarantine(make_store):
    """How many rows since when, why, and how many more than at the oldest epoch; the text of errors does nothing."""
    directory, stored = make_store(2), f"$bad {STEP}"
    place = "(flow.py, line 3, in add)"
    with Driver(directory, (STEP, stored)) as run:
        for batch, keys in enumerate((("a",), ("b", "c"))):
            changes = {index: {} for index in range(2)}
            for key in keys:
                error = f"{EVIL}: {place}" if key == "a" else f"ValueError: bad value {key} {place}"
                changes[partition_of(key, 2)] |= {
                    note_key(key): (to_text(KeyNote(2, 0, 1, STARTED_MS + batch, error)), WAITS_MS),
                    entry_key(key, 0): (to_text(Entry(batch, STARTED_MS, 2, "")), None),
                }
            packed = {index: [pack(each)] for index, each in changes.items() if each}
            run.task().apply(stored, BatchId(batch), packed, BatchCount(0, 0))
            run.apply(batch, {"k": str(batch)})
            run.close(batch, backup_interval_s=1e9)
    store = Store(directory)
    facts = gather(store, DEFAULTS, STARTED_MS + 7_200_000)
    waited = waited_before(store, facts)
    assert (waited.epoch, waited.rows) == (1, 2)
    found = check(page(facts, advise(known(facts, 2), 30.0), [], waited))
    assert "Quarantine" in found.texts
    assert "4 rows more than after epoch 1, " in found.text
    assert f"ValueError: bad value c {place}" in found.texts or f"ValueError: bad value b {place}" in found.texts
    assert any(EVIL in text for text in found.texts)
    assert [(each.keys, each.rows) for each in facts.quarantine[STEP].errors] == [(2, 4), (1, 2)]
    assert "2 h" in found.text
    assert "Quarantine" not in check(render(make_store(1))).texts


@pytest.mark.parametrize("damage", ["header", "middle", "missing", "measures"])
def test_a_damaged_store(make_store, damage):
    """The page says so, and shows the rest."""
    directory = make_store(3)
    run_epochs(directory, 6, clock())
    path = directory / ("part-0.sqlite3" if damage == "measures" else "part-1.sqlite3")
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        if damage == "header":
            content[:100] = bytes(100)
        elif damage == "middle":
            content[4096:] = random.Random(1).randbytes(len(content) - 4096)
        else:
            place = content.index(b'"resume_s"')
            content[place : place + 10] = b'"rEsume_s"'
        path.write_bytes(content)
    found = check(render(directory))
    assert "damaged" in found.text or "cannot be resumed" in found.text
    assert path.name in found.text


def test_no_store(tmp_path):
    """A directory that is none is an error, not an empty page."""
    with pytest.raises(Exception, match="no recovery partition"):
        gather(Store(tmp_path), DEFAULTS, 0)


def test_escaping():
    """Also what is no valid Unicode."""
    assert escaped("\udc80<") == "\\udc80&lt;"
    assert escaped("a\x7f\x00") == "a␡␀"


def browser():
    """Chromium, by way of Playwright; skips where it is not."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    path = os.environ.get("RECOVERY_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no chromium on PATH, and RECOVERY_CHROMIUM names none")
    return playwright, path


def test_in_a_browser(make_store, tmp_path):
    """It runs without an error, asks the network for nothing, fits a phone and a desktop, says what is pointed at."""
    playwright, path = browser()
    directory = make_store(2)
    long_history(directory, 8, 40)
    with Driver(directory, (EVIL,)) as run:
        run.apply(900, {EVIL: "1"}, step=EVIL)
        run.close(900)
    output = Path(tmp_path / "report.html")
    output.write_text(render(directory, keys=10), encoding="utf-8")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            for width, scheme in ((390, "light"), (1440, "dark")):
                tab = chromium.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
                wrong, asked = [], []
                tab.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
                tab.on("console", lambda message, wrong=wrong: wrong.append(message.text))
                tab.on("dialog", lambda dialog, wrong=wrong: wrong.append(dialog.message))
                tab.on("request", lambda request, asked=asked: asked.append(request.url))
                tab.goto(output.as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                tab.locator("rect.lived").first.hover()
                said = tab.locator("#tip").inner_text().split("\n")
                assert (said[0].startswith("execution"), said[-1].endswith("count")) == (True, True)
                assert (wrong, asked) == ([], [output.as_uri()])
                tab.close()
        finally:
            chromium.close()


def test_an_invalid_threshold(make_store):
    """Is refused before anything is read."""
    with pytest.raises(ConfigurationError):
        render(make_store(1), parse_targets({"size": "1/2"}))


def test_a_rewind_to_the_beginning_is_marked(make_store):
    """By a line from the execution that it abandons; where it begins is said in the numbering of the options."""
    directory = make_store(2)
    times = clock()
    run_epochs(directory, 3, times)
    run_epochs(directory, 2, times, resume_epoch=1)
    text = render(directory)
    assert 'class="link rewind"' in text.split("<ul")[0]
    assert "went back over 3 epochs to before epoch 1" in check(text).text + text
    assert "after epoch 2, closed" in check(text).text


def test_the_keys_are_those_of_steps(make_store):
    """The rows that a run keeps of itself are none of the biggest keys."""
    directory = make_store(2)
    run_epochs(directory, 2, clock())
    found = largest(Store(directory), gather(Store(directory), DEFAULTS, STARTED_MS), 1000)
    assert {step for step, _, _ in found} == {"count", "sessions"}


def test_a_copy_beside_a_partition_does_not_count(make_store):
    """No run resumes from such a directory, and its keys and rows are those of the partitions."""
    directory = make_store(2)
    run_epochs(directory, 2, clock())

    def seen():
        facts = gather(Store(directory), DEFAULTS, STARTED_MS)
        return facts.problem, known(facts, 2), largest(Store(directory), facts, 1000)

    before = seen()
    shutil.copy(directory / "part-0.sqlite3", directory / "part-0 copy.sqlite3")
    assert seen()[1:] == before[1:]
    assert (before[0], type(seen()[0])) == (None, DuplicatePartitionError)


def test_state_of_sparks_own_operators_is_counted(make_store, tmp_path, monkeypatch):
    """A directory that took over a checkpoint has no keys of steps, and does not say that it has no state. Its
    partitions are described once."""
    directory = make_store(2)
    write_job(tmp_path / "job", batch=1)
    import_checkpoint(place(tmp_path / "job"), Store(directory), "words", clock=SystemClock())
    looks, found = [], Store.found
    monkeypatch.setattr(Store, "found", lambda store: (looks.append(store), found(store))[1])
    facts = gather(Store(directory), DEFAULTS, STARTED_MS)
    assert (facts.operator_count, len(looks)) == (1, 1)
    assert "of 1 operator of Spark; rows not counted yet" in page(facts, advise(known(facts, 2), 30.0), [])
    facts = replace(facts, operator_count=2, operator_rows=1)
    assert "1 row of 2 operators of Spark" in page(facts, advise(known(facts, 2), 30.0), [])
