"""Each page: its address, its title, and the facts that it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recovery.errors import ConfigurationError, StateNotFoundError
from recovery.storage.history import MOST_DUE
from recovery.ui.facts.compare import compare_facts
from recovery.ui.facts.copies import copy_facts
from recovery.ui.facts.epochs import epoch_facts
from recovery.ui.facts.flows import Flows, ShownFlow
from recovery.ui.facts.keys import history_facts, key_facts, page_facts
from recovery.ui.facts.now import flow_facts, partition_facts
from recovery.ui.facts.plans import plan_facts
from recovery.ui.facts.sources import source_facts
from recovery.ui.facts.steps import step_facts
from recovery.ui.facts.waiting import owner_facts, quarantine_facts
from recovery.ui.pages.drawing import growth, health_meter, share, time_line, trends
from recovery.ui.pages.rendering import Links

ZOOMS = (20, 100, 300, 1000)
"""How many epochs the time line shows: each a link."""
TREND = 100
"""Epochs of the charts on the page of the flow."""
MOST_DIGITS = 15
_LINK = "epoch"


class Query(dict[str, str]):
    """The query of an address. What is left out is None."""

    def __missing__(self, name: str) -> None:
        return None

    def text(self, name: str) -> str | None:
        """Return a part of the query; None if it is left out, or empty, as a form sends it."""
        return self.get(name) or None

    def number(self, name: str) -> int | None:
        """Return a number; None if it is left out or empty. Raises ConfigurationError for another text."""
        text = self.text(name)
        return None if text is None else _number(text, name)

    def numbers(self, name: str) -> list[int]:
        """Return numbers with commas or spaces between them. Raises ConfigurationError."""
        return [_number(each, name) for each in (self.get(name) or "").replace(",", " ").split()]


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise ConfigurationError(
            f"{name}={text!r:.60} is not a number",
            cause="A part of the page's address was changed.",
            remedy="Go to a page by its link.",
        )
    return int(text)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reader asks for: a flow, the flows beside it, the query, and how links are made."""

    flow: ShownFlow
    flows: Flows
    query: Query
    links: Links

    def epoch_link(self, row: Mapping[str, Any]) -> str:
        """Return where an epoch of the time line leads."""
        return self.links.page(self.flow.name, _LINK, epoch=row["epoch"], execution=row["execution"])


@dataclass(frozen=True, slots=True)
class View:
    """A page. every_ms: how often it is looked at again; None: it shows what does not change. below: the page of the
    menu that it belongs to; empty: it is in the menu itself."""

    name: str
    title: str
    template: str
    shown: Callable[[Asked], Mapping[str, Any]]
    every_ms: int | None = None
    below: str | None = None

    @property
    def in_menu(self) -> bool:
        """Whether the menu has the page."""
        return self.below is None

    def is_current(self, shown: View) -> bool:
        """Whether the menu marks this entry while a page is shown."""
        return self.name == (shown.name if shown.below is None else shown.below)


def _flow(asked: Asked) -> Mapping[str, Any]:
    facts = flow_facts(asked.flow)
    epochs = epoch_facts(asked.flow, limit=TREND)["epochs"]
    return {
        "facts": facts,
        "trends": trends(epochs, asked.epoch_link),
        "meters": [health_meter(each) for each in facts["health"]],
    }


def _time_line(asked: Asked) -> Mapping[str, Any]:
    limit = asked.query.number("limit") or ZOOMS[1]
    facts = epoch_facts(asked.flow, before=asked.query.text("before"), limit=limit)
    chart = time_line(facts["epochs"], facts["executions"], facts["window"], asked.epoch_link)
    return {"facts": facts, "chart": chart, "zooms": ZOOMS, "limit": limit}


def _epoch(asked: Asked) -> Mapping[str, Any]:
    epoch, execution = asked.query.number("epoch"), asked.query.number("execution")
    if epoch is None or execution is None:
        raise _incomplete("epoch and execution")
    rows = epoch_facts(asked.flow, before=f"{execution}.{epoch + 1}", limit=2)["epochs"]
    row = next((each for each in rows if (each["execution"], each["epoch"]) == (execution, epoch)), None)
    before = next((each["execution"] for each in rows if each["epoch"] == epoch - 1), None)
    return {"epoch": epoch, "row": row, "earlier": before}


def _steps(asked: Asked) -> Mapping[str, Any]:
    facts = step_facts(asked.flow)
    return {"facts": facts, "charts": [growth(each) for each in facts["steps"]], "share": share, "most_due": MOST_DUE}


def _keys(asked: Asked) -> Mapping[str, Any]:
    query = asked.query
    step = query.text("step")
    if step is None:
        raise _incomplete("step")
    after, epoch = query.text("after"), query.number("epoch")
    return {"facts": page_facts(asked.flow, step, prefix=query.text("prefix") or "", after=after, epoch=epoch)}


def _key(asked: Asked) -> Mapping[str, Any]:
    query = asked.query
    now = flow_facts(asked.flow)
    around = {"steps": now["steps"], "window": now["window"]}
    step, key = query.text("step"), query.get("key")
    if step is None or key is None:
        return {**around, "facts": None, "history": None}
    facts = key_facts(asked.flow, step, key, epoch=query.number("epoch"))
    try:
        history = history_facts(asked.flow, step, key)
    except StateNotFoundError:
        # A key that never had a state has no history.
        history = None
    return {**around, "facts": facts, "history": history}


def _compare(asked: Asked) -> Mapping[str, Any]:
    query = asked.query
    window = flow_facts(asked.flow)["window"]
    others = [each.name for each in asked.flows if each is not asked.flow]
    around = {"window": window, "others": others}
    if not query:
        return {**around, "facts": None}
    other = query.text("other")
    facts = compare_facts(
        asked.flow,
        None if other is None else asked.flows.named(other),
        epoch_a=query.number("epoch_a"),
        epoch_b=query.number("epoch_b"),
        pattern=query.text("pattern"),
    )
    return {**around, "facts": facts}


def _plan(asked: Asked) -> Mapping[str, Any]:
    query = asked.query
    facts = plan_facts(
        asked.flow,
        lost=query.numbers("lost"),
        resume_after=query.number("resume_after"),
        after=query.number("after"),
    )
    return {"facts": facts}


def _quarantine(asked: Asked) -> Mapping[str, Any]:
    query = asked.query
    facts = quarantine_facts(asked.flow, step=query.text("step"), key=query.get("key"), after=query.number("after"))
    return {"facts": facts}


def _owners(asked: Asked) -> Mapping[str, Any]:
    return {
        "facts": owner_facts(asked.flow),
        "partitions": partition_facts(asked.flow, after=asked.query.number("after")),
    }


def _sources(asked: Asked) -> Mapping[str, Any]:
    return {"facts": source_facts(asked.flow)}


def _copies(asked: Asked) -> Mapping[str, Any]:
    return {"facts": copy_facts(asked.flow, after=asked.query.number("after"))}


def _incomplete(what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the page's address lacks {what}", cause="A part of it was left out.", remedy="Go to the page by its link."
    )


VIEWS = (
    View("", "Flow", "flow.html", _flow, every_ms=2000),
    View("timeline", "Time line", "timeline.html", _time_line, every_ms=5000),
    View("epoch", "An epoch", "epoch.html", _epoch, below="timeline"),
    View("steps", "Steps", "steps.html", _steps, every_ms=10_000),
    View("keys", "Keys", "keys.html", _keys, below="steps"),
    View("key", "A key", "key.html", _key, every_ms=5000),
    View("compare", "Compare", "compare.html", _compare),
    View("sources", "Input and output", "sources.html", _sources, every_ms=5000),
    View("copies", "Copies", "copies.html", _copies, every_ms=10_000),
    View("plan", "Plan", "plan.html", _plan, every_ms=10_000),
    View("quarantine", "Quarantine", "quarantine.html", _quarantine, every_ms=10_000),
    View("owners", "Owners", "owners.html", _owners, every_ms=5000),
)
"""The pages of a flow, in the order of the menu."""
