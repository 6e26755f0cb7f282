"""Which nodes of a pipeline run, and why: a pure function of its definition and the last run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recovery.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LastNode:
    """A node in the last run: whether it succeeded, its status, and the hash of its definition."""

    succeeded: bool
    status: str
    definition: str | None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Whether a node runs, and why."""

    name: str
    runs: bool
    why: str


def order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes in an order that puts each after those it needs, and otherwise keeps the given order.

    Raises ConfigurationError for a needed node that does not exist, and for a cycle.
    """
    for name, wanted in needs.items():
        for each in wanted:
            if each not in needs:
                raise ConfigurationError(
                    f"node {name!r} needs {each!r}, which does not exist", cause="", remedy="Correct or add it."
                )
    done: list[str] = []
    left = dict(needs)
    while left:
        ready = [name for name, wanted in left.items() if all(each in done for each in wanted)]
        if not ready:
            raise ConfigurationError(
                f"the nodes {', '.join(map(repr, left))} depend on each other in a circle", cause="", remedy="Break it."
            )
        done.append(ready[0])
        del left[ready[0]]
    return done


def plan_nodes(
    needs: Mapping[str, Sequence[str]],
    definitions: Mapping[str, str],
    last: Mapping[str, LastNode] | None,
    *,
    resume: bool,
) -> list[NodePlan]:
    """Return the plan of a run, in execution order. `last` is None before the first run.

    With `resume`, a node is skipped if it succeeded in the last run, its definition has not changed, and no node that
    it needs runs again.
    """
    plans: dict[str, NodePlan] = {}
    for name in order(needs):
        why = _why(name, needs, definitions, last, plans) if resume else "all nodes run"
        plans[name] = NodePlan(name, bool(why), why or "it succeeded in the last run, and nothing changed since")
    return list(plans.values())


def _why(
    name: str,
    needs: Mapping[str, Sequence[str]],
    definitions: Mapping[str, str],
    last: Mapping[str, LastNode] | None,
    plans: Mapping[str, NodePlan],
) -> str:
    """Return why a node runs again; "" when the node does not have to run."""
    if last is None:
        return "there was no run before"
    if name not in last:
        return "it was not in the last run"
    if not last[name].succeeded:
        return f"it {'was ' * (last[name].status in ('blocked', 'dead'))}{last[name].status} in the last run"
    if last[name].definition != definitions[name]:
        return "its definition changed"
    again = [each for each in needs[name] if plans[each].runs]
    return f"{', '.join(again)}, which it needs, runs again" if again else ""
