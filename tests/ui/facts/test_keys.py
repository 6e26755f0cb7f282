"""Keys of a step against a model: each held epoch, ranges and prefixes, with and without a log."""

from __future__ import annotations

import itertools
import random

import pytest

from recovery.storage import history
from recovery.ui.facts.keys import after_prefix, history_facts, key_facts, page_facts
from tests.shares import some
from tests.stores import STEP, Driver, state_at
from tests.ui.support import HOSTILE, served

NAMES = [*HOSTILE, *(f"k{number}" for number in range(12)), "é", "\ud7ff", "\U0010ffff", "\U0010ffffx", "a", "a/", "ab"]


@pytest.fixture(params=some(range(4), 0, 3), ids=lambda seed: f"seed {seed}")
def store(request, make_store):
    """Six epochs of random changes of keys of any kind, of which the last ones, as many as the seed says, are only
    logged."""
    dice = random.Random(request.param)
    directory = make_store(3)
    with Driver(directory, (STEP, "other")) as run:
        for batch in range(6):
            for step in (STEP, "other"):
                some = {key: dice.choice((f'"{batch}"', None, (f'"{batch}"', batch))) for key in dice.sample(NAMES, 20)}
                run.apply(batch, some, step=step)
            run.close(batch, logged=batch >= 6 - request.param)
        yield directory


def all_pages(flow, **wanted):
    """All keys of a step, page by page."""
    found, after = [], None
    for _ in range(1_000):
        page = page_facts(flow, STEP, after=after, **wanted)
        found += page["keys"]
        after = page["next"]
        if after is None:
            return found
    raise AssertionError("the pages have no end")


def test_a_key_at_each_held_epoch_is_that_of_the_model(store):
    """Whether its changes are folded, superseded or logged, whatever characters the key has."""
    [flow] = served(store)
    for epoch in flow.look().status["window"][-6:]:
        held = {key: value for (step, key), value in state_at(store, epoch).items() if step == STEP}
        for key in NAMES:
            state = key_facts(flow, STEP, key, epoch=epoch or None)["state"] if epoch else None
            if epoch:
                assert (state and (f'"{state["value"]}"', state["timeout_ms"])) == held.get(key), (epoch, key)
    newest = {key: value for (step, key), value in state_at(store, 6).items() if step == STEP}
    for key in newest:
        assert f'"{history_facts(flow, STEP, key)["versions"][-1]["value"]}"' == newest[key][0]


def test_pages_have_each_key_once(store):
    """In the order of the partitions and keys; also of an older epoch, and of a prefix; whatever the limit is."""
    [flow] = served(store)
    limits = (1, 2, 7, 1_000)
    for limit, epoch in itertools.product(limits, (None, flow.look().status["window"][-2])):
        held = {key: value for (step, key), value in state_at(store, epoch or 6).items() if step == STEP}
        found = all_pages(flow, limit=limit, epoch=epoch)
        assert {each["key"]: (f'"{each["value"]}"', each["timeout_ms"]) for each in found} == held
        assert len(found) == len(held)
    now = {key for step, key in state_at(store, 6) if step == STEP}
    for limit, prefix in itertools.product(limits, ("k1", "a", "\U0010ffff", "\ud7ff", "%", "none")):
        found = [each["key"] for each in all_pages(flow, limit=limit, prefix=prefix)]
        assert sorted(found) == sorted(key for key in now if key.startswith(prefix))


def test_the_text_after_a_prefix():
    """The first one that sorts after all texts with it, as SQLite sorts: by UTF-8."""
    assert [after_prefix(each) for each in ("a", "a\ud7ff", "a\U0010ffff", "\U0010ffff", "")] == [
        "b", "a\ue000", "b", None, None
    ]  # fmt: skip


def test_a_long_history_has_its_newest_versions(store, monkeypatch):
    """As the whole history has them, with what changed and what was removed in between; values that are left out are
    not read, and counted."""
    # What epochs have read takes most of the time, and is the same for every limit.
    monkeypatch.setattr("recovery.ui.facts.keys.INPUTS", 2)
    [flow] = served(store)
    keys = [key for key in NAMES if key_facts(flow, STEP, key)["found"]]
    whole = {key: history_facts(flow, STEP, key)["versions"] for key in keys}
    read = []
    real = history._checked
    monkeypatch.setattr(history, "_checked", lambda *given: read.append(given) or real(*given))
    for most_bytes, key in itertools.product((0, 4, 9, 20, 1 << 20), keys):
        monkeypatch.setattr("recovery.ui.facts.keys.MOST_PAGE_BYTES", most_bytes)
        read.clear()
        found, full = history_facts(flow, STEP, key), whole[key]
        shown = found["versions"]
        assert shown
        assert shown == full[len(full) - len(shown) :]
        assert found["left_out"] == len(full) - len(shown)
        # With the one that the first is compared with.
        assert len(read) <= sum(each["what"] == "written" for each in shown) + 1
