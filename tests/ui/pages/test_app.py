"""The pages: what they show, that no text of a user becomes markup, and that nothing is written."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from dataclasses import asdict
from urllib.parse import quote

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from recovery.backup.note import LastBackup, LastReplaced, LastReplica, Waiting
from recovery.cli import main
from recovery.cli.ui import place_of
from recovery.operational.steps.epoch_input import FileRange, SourceInput
from recovery.operational.steps.quarantine import WaitingKey, WaitingRows
from recovery.planning.lag import InputLag, SourceLag
from recovery.planning.sink_work import SinkWork
from recovery.storage.glance import Glances
from recovery.storage.origin import Origin
from recovery.storage.store import OwnerAccess, Store
from recovery.ui.facts import flows
from recovery.ui.pages import views
from recovery.ui.pages.rendering import named
from recovery.ui.pages.views import VIEWS
from recovery.values.quarantine import KeyNote, note_key
from tests.cli.test_quarantine import written
from tests.owner.served import Served, spread, token_file
from tests.report.support import STARTED_MS, clock, long_history, run_epochs
from tests.report.test_page import EVIL, Page
from tests.shares import some
from tests.stores import STEP, Driver, alter, run_python
from tests.ui.pages.support import served
from tests.waiting import wait_until

ODD = (
    EVIL,
    "\u202egnp.exe",
    "a\x01\nb",
    "ключ 🔑",
    "' onmouseover='alert(1)",
    "../../etc/passwd",
    "%00",
    "",
    "{{7*7}}",
)


class Client:
    """Reads pages and checks what holds of each."""

    def __init__(self, url):
        self.url = url
        self.http = httpx.Client(base_url=url, timeout=60, trust_env=False, follow_redirects=True)

    def get(self, path="", status=200, **query):
        answer = self.http.get(path, params=query or None)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        page = Page(answer.text)
        # Nothing within the page runs or styles: the policy would refuse it.
        assert page.tags.count("script") == 2
        names = {name for name, _ in page.attributes}
        assert not [name for name in names if name.startswith("on") or name == "style"]
        assert "style" not in page.tags
        for name, value in page.attributes:
            if name in ("href", "src", "action"):
                assert value.startswith(("/", "#", "data:,")), value
                assert not value.startswith("//"), value
        return page


@pytest.fixture
def pages():
    opened = []

    def open_(*directories, **more):
        context = served(*directories, **more)
        client = Client(context.__enter__())
        opened.append((context, client))
        return client

    yield open_
    for context, client in opened:
        client.http.close()
        context.__exit__(None, None, None)


def files(directory):
    """Every file below a directory, with its content and its time."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}


def everything(name):
    """An address of every page, and some with a query."""
    base = f"flows/{quote(name, safe='')}"
    yield from (f"{base}/{view.name}" for view in VIEWS if view.below is None)
    yield from (
        f"{base}/timeline?limit=20",
        f"{base}/epoch?epoch=3&execution=1",
        f"{base}/keys?step={STEP}",
        f"{base}/key?step={STEP}&key=k1",
        f"{base}/key?step={STEP}&key=k1&epoch=3",
        f"{base}/compare?epoch_a=2&epoch_b=4",
        f"{base}/plan?lost=1",
        f"{base}/plan?resume_after=2",
    )


def test_every_page_of_a_small_store(make_store, pages):
    """Says what there is, at an address of its own, and writes nothing."""
    directory = make_store(2)
    run_epochs(directory, 5, clock())
    before = files(directory)
    client = pages(directory)
    for path in everything(directory.name):
        client.get(path)
    assert files(directory) == before
    page = client.get()
    assert "5" in page.text
    [address] = [value for name, value in page.attributes if name == "href" and value.startswith("/api/")]
    assert client.http.get(address).json()["epoch"] == 5
    assert "held" in client.get(f"flows/{directory.name}/epoch", epoch=3, execution=1).text
    plan = client.get(f"flows/{directory.name}/plan", lost="1").text
    assert "part-1.sqlite3" in plan
    assert "MissingPartitionsError" in plan


def test_a_page_that_says_the_same_is_not_sent_again(make_store, pages):
    """Every page has a tag; who names it gets 304 without a body until the page says something else."""
    directory = make_store(2)
    run_epochs(directory, 5, clock())
    client = pages(directory)
    tags = {}
    for path in everything(directory.name):
        tags[path] = client.http.get(path).headers["etag"]
        again = client.http.get(path, headers={"if-none-match": tags[path]})
        assert (again.status_code, again.content) == (304, b""), path
        assert again.headers["etag"] == tags[path]
        assert again.headers["cache-control"] == "no-store"
    with Driver(directory, (STEP,)) as run:
        run.apply(50, {"k1": "[50]"})
        run.close(50)
    path = f"flows/{directory.name}/key?step={STEP}&key=k1"
    wait_until(lambda: client.http.get(path, headers={"if-none-match": tags[path]}).status_code == 200)
    assert "etag" not in client.http.get("flows/nobody/", headers={"if-none-match": "*"}).headers


def test_an_empty_store(make_store, pages):
    """Says that there is nothing yet."""
    directory = make_store(2)
    client = pages(directory)
    for view in VIEWS:
        if view.below is None:
            client.get(f"flows/{directory.name}/{view.name}")
    assert "No epoch is closed yet." in client.get(f"flows/{directory.name}/timeline").text


def test_a_long_history(make_store, pages):
    """In pages of bounded size, with what was abandoned."""
    directory = make_store(2)
    long_history(directory, 30, 150)
    client = pages(directory)
    page = client.get(f"flows/{directory.name}/timeline", limit=1000)
    assert "abandoned" in page.text
    assert len(client.http.get(f"flows/{directory.name}/timeline?limit=20").text) < 40_000
    earlier = re.search(r'rel="next" href="([^"]+)"', client.http.get(f"flows/{directory.name}/timeline?limit=20").text)
    assert "the newest" in client.get(earlier[1].replace("&amp;", "&")).text


def test_text_of_users_is_text(make_store, pages):
    """In keys, steps, values and names: markup, quotes, direction marks and controls are shown as what they are."""
    directory = make_store(2)
    with Driver(directory, (EVIL, "\u202etxt")) as run:
        run.apply(0, {key: f'"{"x" * 5}"' for key in ODD if key}, step=EVIL)
        run.apply(
            0, {"value": '"</pre><script>alert(1)</script>\u202e"', "large": f'"{"y" * (1 << 20)}"'}, step="\u202etxt"
        )
        run.close(0)
    client = pages(directory)
    base = f"flows/{directory.name}"
    shown = client.get(f"{base}/keys", step=EVIL)
    assert any(EVIL in text for text in shown.texts)
    assert any("‹U+202E›gnp.exe" in text for text in shown.texts)
    assert any("a␁␊b" in text for text in shown.texts)
    assert "img" not in shown.tags
    for key in ODD:
        page = client.get(f"{base}/key", step=EVIL, key=key)
        assert "img" not in page.tags
        if key:
            assert '"xxxxx"' in page.text, key
    assert "</pre><script>" in client.get(f"{base}/key", step="\u202etxt", key="value").text
    large = client.get(f"{base}/key", step="\u202etxt", key="large")
    assert "Cut: 4,000 of 1,048,5" in large.text
    assert len(large.text) < 20_000
    for page in ("", "/steps", "/timeline", "/compare?epoch_a=1"):
        client.get(base + page)


def test_a_field_shows_what_it_sends(make_store, pages):
    """A key that a field cannot show is not in the field: sending the form again would ask for another key."""
    directory = make_store(1)
    run_epochs(directory, 2, clock())
    client = pages(directory)
    for key, sent in (("plain 'key' \"1\"", "plain 'key' \"1\""), ("\u202ea", ""), ("a\x01", "")):
        page = client.get(f"flows/{directory.name}/key", step=STEP, key=key)
        attributes = page.attributes
        place = attributes.index(("name", "key"))
        assert dict(attributes[place : place + 3])["value"] == sent


ROWS = WaitingRows(keys=2, rows=3, since_ms=STARTED_MS, replays=True)
RARE = {
    "waiting": msgspec.to_builtins(Waiting(execution=1, since_ms=STARTED_MS, what="for executors <b>")),
    "replica": {**msgspec.to_builtins(LastReplica("s3://b", 3, 1, STARTED_MS, "no route <b>", STARTED_MS)),
                "lag_epochs": 2, "lag_s": 20.0, "ahead_s": 0.0},
    "last_backup": {**msgspec.to_builtins(LastBackup(STARTED_MS, 3, "/copies<b>", chain=4)), "ahead_s": 3600.0},
    "replaced": msgspec.to_builtins(LastReplaced(STARTED_MS, 3, "/p", ["h1:1"], {"part-0.sqlite3": "h2:1"}, 1)),
    "origins": [Origin("fork", "s", 1, STARTED_MS, 2, "/from<b>").as_json()],
    "lag": InputLag(
        execution=1, epoch=3, seen_ms=STARTED_MS, group="g", problem="refused <b>",
        sources=(SourceLag(source="b:9092", topic="t<b>", unit="record", behind=3, seconds=2.0, most="1"),),
    ).as_json(),
    "quarantine": {"step<b>": asdict(ROWS)},
    "links": {"part-0.sqlite3": "/disk<b>"},
    "unreadable": ["part-9: <b>"],
    "standby": {"source": "/place<b>", "backup": "b", "epoch": 3, "closed_ms": STARTED_MS, "incomplete": []},
    "hydrating": [{"file": "part-0.sqlite3", "from": "s3://b<b>", "there_bytes": 1, "total_bytes": 2}],
    "lock": {"pid": 1, "host": "h<b>"}, "running_since_ms": STARTED_MS,
    "input": [SourceInput("0", (FileRange("/logs<b>", 0, 5),)).as_json(), SourceInput("1", None).as_json()],
    "sink": {"note": {"value": {"a": "<b>"}, "value_bytes": 9, "is_cut": False},
             "work": msgspec.to_builtins(SinkWork(staged=2))},
    "keys": [WaitingKey("step", "key<b>", KeyNote(3, 0, 1, STARTED_MS, "ValueError: <b>"), True).as_json()],
    "entries": [{"step": "step", "key": "k", "number": 0, "batch": 4, "at_ms": STARTED_MS, "attempts": 2,
                 "timed_out": False, "error": {"message": "<b>"}, "rows": [{"value": "<b>"}]}],
    "notes": ["a copy <b>"],
}  # fmt: skip
"""Facts that a small store does not have, as their own classes write them."""


def test_rare_facts(make_store, pages, monkeypatch):
    """Each page has a place for them, and their text stays text."""
    directory = make_store(2)
    run_epochs(directory, 3, clock())
    for name in ("flow_facts", "source_facts", "copy_facts", "owner_facts", "quarantine_facts"):
        whole = getattr(views, name)

        def more(flow, *arguments, whole=whole, **options):
            facts = whole(flow, *arguments, **options)
            return {**facts, **{key: value for key, value in RARE.items() if key in facts}}

        monkeypatch.setattr(views, name, more)
    client = pages(directory)
    for name, rare in (("", 10), ("copies", 5), ("sources", 4), ("owners", 1), ("quarantine", 4)):
        page = client.get(f"flows/{directory.name}/{name}")
        assert page.text.count("<b>") >= rare, (name, page.text)
        assert ("1 h ahead of this host" in page.text) is (name in ("", "copies"))


ODD_QUERIES = (
    "epoch=x", "epoch=-1", "epoch=" + "9" * 30, "epoch=٣", "limit=0", "limit=99999", "before=x", "after=x", "lost=a",
    "lost=1%00", "resume_after=99", "epoch_a=99", "other=none", "step=none&key=", "key=%ff%fe", "step=%00",
    "prefix=%00", "execution=1",
)  # fmt: skip
SHARES = 5
"""Of the pairs of a query and a page, one in so many runs by default: every query, and every page."""


@pytest.mark.parametrize("share", some(range(SHARES), 0))
def test_odd_addresses_get_a_page_that_says_why(make_store, pages, share):
    """And never one that failed."""
    directory = make_store(2)
    run_epochs(directory, 3, clock())
    client = pages(directory)
    for number, (query, view) in enumerate(itertools.product(ODD_QUERIES, VIEWS)):
        if number % SHARES == share:
            answer = client.http.get(f"flows/{directory.name}/{view.name}?{query}")
            assert answer.status_code in (200, 400, 404, 409), (view.name, query, answer.text)
            Page(answer.text)


def test_an_address_without_its_slash_leads_on(make_store, pages):
    """To the same host: behind a proxy, the request names another one than the browser's."""
    directory = make_store(2)
    client, headers = pages(directory), {"host": "localhost:1"}
    answer = client.http.get(f"flows/{directory.name}", headers=headers, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"/flows/{directory.name}/")


@pytest.mark.parametrize(("key", "shown"), [("", "‹empty›"), (" ", "␣"), ("  a b ", "␣␣a b␣"), ("a", "a")])
def test_a_key_can_be_seen_and_clicked_on(key, shown):
    """An empty key, and a key of spaces, too."""
    assert named(key) == shown


def test_copies_at_a_place(make_store, tmp_path, pages):
    """What is there, and what a loss of the disk would cost; a place that is none is an error on the page."""
    directory, place = make_store(2), tmp_path / "copies"
    run_epochs(directory, 3, clock())
    assert main(["backup", str(directory), str(place)], standalone_mode=False) is None
    run_epochs(directory, 2, clock(STARTED_MS + 10**6))
    client = pages(directory, place=str(place))
    shown = client.get(f"flows/{directory.name}/copies")
    assert "1 backup, the newest first" in shown.text
    assert f"A restore from {place} brings back epoch 3." in " ".join(shown.text.split())
    assert re.search(r"the newest first, as of 20\d\d-", shown.text)
    other = pages(directory, place="s3:/cut-off").get(f"flows/{directory.name}/copies")
    assert "ConfigurationError" in other.text


def test_a_place_that_hangs_hides_no_other_copies(make_store, pages, monkeypatch):
    """The rest of the page is there, and says that the list is not."""
    directory, ends = make_store(1), threading.Event()
    run_epochs(directory, 2, clock())
    monkeypatch.setattr(flows, "listed", lambda place, now_ms: {"problem": None} if ends.wait(60) else {})
    client = pages(directory, place="s3://b/p")
    try:
        text = client.get(f"flows/{directory.name}/copies").text
    finally:
        ends.set()
    assert "Last backup" in text
    assert "the list of backups is not there yet" in text


def test_partitions_at_an_owner(make_store, tmp_path, monkeypatch):
    """The pages are those of files, with what the owner says of itself. A lost owner is an error on the page."""
    monkeypatch.setattr(flows, "OWNER_S", 1.0)
    directory = make_store(2)
    run_epochs(directory, 5, clock())
    token = token_file(tmp_path)
    here, there = spread(directory, [(0,), (1,)])
    owner = Served(there, token)
    try:
        with served(here, access=OwnerAccess((owner.at,), token)) as url:
            client = Client(url)
            assert owner.at in client.get(f"flows/{here.name}/owners").text
            for path in everything(here.name):
                client.get(path)
            owner.kill()
            wait_until(lambda: client.http.get(f"flows/{here.name}/").status_code == 502, 60)
            assert "OwnerUnreachableError" in client.get(f"flows/{here.name}/", status=502).text
            client.http.close()
    finally:
        owner.kill()


def test_several_flows(make_store, pages):
    """Are a list; one cannot be reached by another's name, nor a file by any."""
    one, other = make_store(1), make_store(1)
    run_epochs(one, 2, clock())
    client = pages(one, other)
    listed = client.get()
    assert {one.name, other.name} <= set(listed.texts)
    assert "No epoch is closed yet." in client.get(f"flows/{other.name}/timeline").text
    for path in (
        "..",
        f"..%2F{one.name}",
        f"{one.name}%2F..%2F{other.name}",
        "none",
        "%2e%2e",
        f"{one.name}/part-0.sqlite3",
    ):
        client.get(f"flows/{path}/steps", status=404)
    for path in ("..%2fui.css", "../ui.css", "page.py"):
        assert client.http.get(f"static/{path}").status_code == 404
    differ = client.get(f"flows/{one.name}/compare", other=other.name)
    assert "They differ." in differ.text


@pytest.mark.parametrize("damage", ["cut", "missing", "middle"])
def test_a_damaged_store(make_store, pages, damage):
    """The pages say so, with the error and the way out."""
    directory = make_store(2)
    run_epochs(directory, 4, clock())
    path = directory / "part-1.sqlite3"
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:100] if damage == "cut" else content[:4096] + bytes(len(content) - 4096))
    client = pages(directory)
    for view in VIEWS:
        answer = client.http.get(f"flows/{directory.name}/{view.name}")
        Page(answer.text)
        assert "could not be made" not in answer.text, view.name
    assert "part-1.sqlite3" in client.http.get(f"flows/{directory.name}/").text


def test_behind_a_prefix(make_store, pages):
    """Every link begins with it."""
    directory = make_store(1)
    run_epochs(directory, 5, clock())
    client = pages(directory, prefix="/ops")
    for path in everything(directory.name):
        page = client.get(path)
        for name, value in page.attributes:
            if name in ("href", "src", "action") and value.startswith("/"):
                assert value.startswith("/ops/"), value


def test_the_command(make_store, tmp_path):
    """Prints where the pages are, and ends with a signal; without the extra it says what is missing."""
    directory = make_store(1)
    run_epochs(directory, 2, clock())
    arguments = [sys.executable, "-m", "recovery", "ui", str(directory), "--at", ":0"]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as running:
        said = running.stderr.readline()
        url = said.split()[-1]
        assert Store(directory).at().epoch == 2
        assert "Flow" in httpx.get(url, follow_redirects=True, trust_env=False, timeout=60).text
        running.terminate()
        assert running.wait(30) == 0
    block = "import sys; sys.modules['starlette'] = None; from recovery.__main__ import main; main()"
    done = run_python(block, "ui", directory)
    assert done.returncode == 11
    assert "needs the package starlette" in done.stderr


def test_a_page_says_how_far_the_first_look_is(make_store, pages, monkeypatch):
    """A page does not wait for long, looks again by itself, whichever page it is, and then shows what was asked for; a
    program gets 503."""
    directory = make_store(3)
    run_epochs(directory, 3, clock())
    goes_on = threading.Event()
    real = Glances._look

    def slow(self, path):
        assert self.done == 0 or goes_on.wait(60)
        return real(self, path)

    monkeypatch.setattr(Glances, "_look", slow)
    monkeypatch.setattr("recovery.ui.pages.app.PATIENCE_S", 0.0)
    for name in ("PATIENCE_S", "LEAST_PATIENCE_S"):
        monkeypatch.setattr(f"recovery.ui.facts.limits.{name}", 0.0)
    client = pages(directory)
    paths = [f"flows/{directory.name}/", f"flows/{directory.name}/keys?step={STEP}"]
    wait_until(lambda: "partition 2 of 3 is being read" in client.http.get(paths[0]).text)
    for path in paths:
        page = client.get(path, status=503)
        assert "partition 2 of 3 is being read" in page.text
        assert ("data-every", "1000") in page.attributes
    found = client.http.get(f"api/flows/{directory.name}")
    assert (found.status_code, found.json()["path"]) == (503, str(directory))
    goes_on.set()
    wait_until(lambda: client.http.get(paths[0]).status_code == 200)
    assert ("data-every", "1000") not in client.get(paths[1]).attributes


def test_a_page_of_older_facts_says_of_when_they_are(make_store, pages, monkeypatch):
    """Every page of a flow, and the list of flows; a page that was read just now says nothing."""
    directory, other = make_store(1), make_store(1)
    run_epochs(directory, 3, clock())
    assert "As of " not in pages(directory).get(f"flows/{directory.name}/").text
    # Where a page has to look again, that ends after the page was begun.
    monkeypatch.setattr("recovery.ui.pages.rendering.STALE_MS", -600_000)
    client = pages(directory, other)
    for path in ("", f"flows/{directory.name}/", f"flows/{directory.name}/steps", f"flows/{directory.name}/plan"):
        assert re.search(r"As of 20\d\d-.* ago: a look at this directory takes long", client.get(path).text), path


def test_damage_and_odd_timeouts_of_a_step(make_store, pages, monkeypatch):
    """The page of steps shows the rest; a timeout that is no date is a number, wherever it is shown."""
    directory = make_store(1)
    with Driver(directory, (STEP, "odd")) as run:
        run.apply(0, {"a": ("1", 5)})
        run.apply(0, {"b": ("2", 6), "c": ("2", 9_000_000_000_000_000_000)}, step="odd")
        run.close(0)
    monkeypatch.setattr("recovery.ui.facts.steps.MOST_DUE", 1)
    client = pages(directory)
    alter(directory / "part-0.sqlite3", "UPDATE snaps SET ser_change = '9' WHERE step_id = ?", (STEP,))
    text = client.get(f"flows/{directory.name}/steps").text
    assert "the state of step 'count' key 'a' does not match its digest" in text
    assert "1 due now" in text
    assert "there are more" in text
    for path in ("steps", "key?step=odd&key=c"):
        assert "9,000,000,000,000,000,000 ms, which is no date" in client.get(f"flows/{directory.name}/{path}").text


def test_rows_in_quarantine_without_a_note(tmp_path, pages):
    """The page has the finding of `quarantine list`."""
    directory = written(tmp_path / "db", lacks=note_key("a"))
    assert "the note of the key is missing" in pages(directory).get(f"flows/{directory.name}/quarantine").text


def test_a_disk_that_hangs_keeps_no_pages_of_other_flows(make_store, pages, monkeypatch):
    """Their pages, the list, and what programs ask are answered; the list says which flow is not read."""
    stuck, sound = make_store(1), make_store(1)
    ends = threading.Event()
    real = Glances._look
    monkeypatch.setattr(
        Glances, "_look", lambda self, path: (path.parent != stuck or ends.wait(120)) and real(self, path)
    )
    # Programs are answered behind this time.
    monkeypatch.setattr("recovery.ui.facts.limits.PATIENCE_S", 0.5)
    monkeypatch.setattr("recovery.ui.pages.app.PATIENCE_S", 0.2)
    client = pages(stuck, sound)
    asked = [threading.Thread(target=client.http.get, args=(f"flows/{stuck.name}/",)) for _ in range(12)]
    for each in asked:
        each.start()
    try:
        client.get(f"flows/{sound.name}/")
        assert "is being read" in client.get().text
        assert client.http.get("api/flows").json()["flows"][1]["problem"] is None
    finally:
        ends.set()
        for each in asked:
            each.join(60)


def test_places_of_several_flows(make_store, tmp_path):
    """Each by the name of its flow; one of no flow, and two of one, are refused with what to write."""
    one, two = make_store(1), make_store(1)
    for given, message in (
        ([tmp_path / "copies"], f"is of no flow: write NAME=PLACE, with NAME one of {one.name}, {two.name}."),
        ([f"{one.name}=a", f"{one.name}=b"], f"names two places of '{one.name}'"),
    ):
        options = [part for each in given for part in ("--place", str(each))]
        result = CliRunner().invoke(main, ["ui", str(one), str(two), *options])
        assert (result.exit_code, message in " ".join(result.stderr.split())) == (2, True), result.stderr
    assert place_of([one.name, two.name], [f"{two.name}=s3://b/p?region=x"]) == {two.name: "s3://b/p?region=x"}
    assert place_of(["db", "db=2"], ["db=2=copies", "db=other"]) == {"db=2": "copies", "db": "other"}
    assert place_of(["db"], ["copies=old"]) == {"db": "copies=old"}
