"""The routes under /api/: one table, which the answers, the OpenAPI file and the tests follow.

The path is split before it is decoded, so a step or key may have any characters: `/` in a name is %2F. A key is the
rest of its path, also with `/` as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from recovery.ui.facts.compare import compare_facts
from recovery.ui.facts.copies import copy_facts
from recovery.ui.facts.epochs import epoch_facts
from recovery.ui.facts.flows import Flows, ShownFlow
from recovery.ui.facts.keys import history_facts, key_facts, page_facts
from recovery.ui.facts.limits import MOST_ROWS, ROWS
from recovery.ui.facts.now import flow_facts, partition_facts
from recovery.ui.facts.plans import plan_facts
from recovery.ui.facts.sources import source_facts
from recovery.ui.facts.steps import step_facts
from recovery.ui.facts.waiting import mark_facts, owner_facts, quarantine_facts


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter of a route's query. schema: of its value, by JSON Schema: an integer, a text or a list of these."""

    name: str
    schema: Mapping[str, Any]
    description: str
    argument: str = ""
    """The argument of the route's function, if it has another name."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One route. path: below a flow, with names in braces; the last one takes the rest. facts: what answers it.
    answer: the name of the schema of what it answers."""

    path: str
    facts: Callable[..., dict[str, Any]]
    answer: str
    summary: str
    query: tuple[QueryParameter, ...] = field(default=())


TEXT: Mapping[str, Any] = {"type": "string", "maxLength": 65_536}
EPOCH_NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**62}
PLACE: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**31}
LIMIT = QueryParameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": MOST_ROWS, "default": ROWS}, "The most rows of the answer."
)
AFTER = QueryParameter("after", PLACE, "The `next` of the answer before.")
EPOCH = QueryParameter("epoch", EPOCH_NUMBER, "As of this epoch, one that `window` of a flow has; without: the newest.")

ROUTES = (
    ApiRoute("", flow_facts, "FlowAnswer", "What runs now, its newest epoch and its health: `status --json`."),
    ApiRoute("partitions", partition_facts, "PartitionsAnswer", "The partitions, in ranges.", (AFTER, LIMIT)),
    ApiRoute("epochs", epoch_facts, "EpochsAnswer", "The time line: epochs, the newest first, in ranges.", (
        QueryParameter("before", TEXT, "The `next` of the answer before."), LIMIT)),
    ApiRoute("steps", step_facts, "StepsAnswer", "The steps: declaration, keys, bytes, growth."),
    ApiRoute("steps/{step}/keys", page_facts, "KeysAnswer", "The keys of a step, in ranges.", (
        QueryParameter("prefix", TEXT, "Only keys that begin with this."),
        QueryParameter("after", TEXT, "The `next` of the answer before."), LIMIT, EPOCH)),
    ApiRoute("steps/{step}/keys/{key}", key_facts, "KeyAnswer", "The state of a key.", (EPOCH,)),
    ApiRoute("steps/{step}/history/{key}", history_facts, "HistoryAnswer",
             "The versions of a key that are held: `history --json --show-input`."),
    ApiRoute("compare", compare_facts, "CompareAnswer", "Two epochs, or two flows, compared: `diff --json`.", (
        QueryParameter("epoch_a", EPOCH_NUMBER, "A as of this epoch; without: the newest."),
        QueryParameter("epoch_b", EPOCH_NUMBER, "B as of this epoch; without: the newest."),
        QueryParameter("with", TEXT, "The name of the flow that is B; without: the same flow.", "other"),
        QueryParameter("step", {"type": "array", "items": TEXT, "maxItems": 100}, "Only these steps.", "steps"),
        QueryParameter("key", TEXT, "Only keys that match this glob.", "pattern"), LIMIT)),
    ApiRoute("sources", source_facts, "SourcesAnswer", "The input and the output: positions, lag, the sink."),
    ApiRoute("copies", copy_facts, "CopiesAnswer", "Backups, replica, and what a loss of the disk would cost now.", (
        AFTER, LIMIT)),
    ApiRoute("plan", plan_facts, "PlanAnswer", "Where the next run would resume, and why: `plan --json`.", (
        QueryParameter("lost", {"type": "array", "items": PLACE, "maxItems": 1000},
                       "Partitions that the planner does not see, as if their files were lost."),
        QueryParameter("resume_after", EPOCH_NUMBER, "As of `run --resume-after`."), AFTER, LIMIT)),
    ApiRoute("quarantine", quarantine_facts, "QuarantineAnswer", "The keys with rows in quarantine.", (
        QueryParameter("step", TEXT, "Only rows of this step."),
        QueryParameter("key", TEXT, "With step: only this key, with the first of its rows."), AFTER, LIMIT)),
    ApiRoute("marks", mark_facts, "MarksAnswer", "The high-water marks: `hwm list --json`.", (AFTER, LIMIT)),
    ApiRoute("owners", owner_facts, "OwnersAnswer", "The owners of partitions on other hosts."),
)  # fmt: skip
"""The routes of a flow: /api/flows/NAME/PATH, and /api/PATH where there is one flow."""


def split_path(path: str, flows: Flows) -> tuple[ShownFlow, list[str]] | None:
    """Return the flow that a path below /api/ is about, and the encoded parts of the rest; None: the list of flows.
    Raises StateNotFoundError for a flow that is not there."""
    parts = path.split("/") if path else []
    if parts[:1] == ["flows"]:
        if len(parts) == 1 or parts[1:] == [""]:
            return None
        return flows.named(unquote(parts[1], errors="strict")), parts[2:]
    return flows.named(None), parts


def route_of(parts: list[str]) -> tuple[ApiRoute, list[str]] | None:
    """Return the route of the encoded parts of a path, and the parts that are names; None: there is none."""
    for route in ROUTES:
        wanted = route.path.split("/") if route.path else []
        takes_rest = len(wanted) > 1 and wanted[-1].startswith("{")
        if len(parts) < len(wanted) or (len(parts) > len(wanted) and not takes_rest):
            continue
        given = [*parts[: len(wanted) - 1], "/".join(parts[len(wanted) - 1 :])] if takes_rest else parts
        pairs = list(zip(wanted, given, strict=True))
        if all(want.startswith("{") or want == part for want, part in pairs):
            return route, [part for want, part in pairs if want.startswith("{")]
    return None
