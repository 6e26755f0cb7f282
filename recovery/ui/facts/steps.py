"""The steps: what each declares, how much state it has, how that grows, and its largest keys."""

from __future__ import annotations

from typing import Any

from recovery.base.reserved import RESERVED_PREFIX
from recovery.planning.measures import Measure
from recovery.report.facts import largest
from recovery.ui.facts.flows import Look, ShownFlow

POINTS = 100
"""The most points of growth of a step."""
LARGEST_OF = 200_000
"""The largest keys are looked for where there are no more keys than this: that reads all of them."""
LARGEST = 10


def step_facts(flow: ShownFlow) -> dict[str, Any]:
    """Return {"steps": […], "operators": […]}.

    steps: {"step", "declaration", "keys", "bytes", "growth", "quarantine", "largest"}. declaration: as in `status
    --json`; None: the step declares nothing. growth: [{"epoch", "closed_ms", "keys", "bytes"}], the oldest first.
    largest: [{"key", "bytes"}]; None: the flow has too many keys to look for them, and `report --keys` does it.
    operators: Spark's own, as in `status --json`.
    """
    look = flow.look()
    sizes = {step: size for step, size in look.gathered.steps.items() if not step.startswith(RESERVED_PREFIX)}
    known = dict.fromkeys([*look.status["steps"], *sizes])
    most = largest_keys(look, sum(size.rows for size in sizes.values()))
    steps = [
        {
            "step": step,
            "declaration": look.status["schemas"].get(step),
            "keys": sizes[step].rows if step in sizes else None,
            "bytes": sizes[step].size_bytes if step in sizes else None,
            "growth": _growth(look.measures, step),
            "quarantine": look.status["quarantine"].get(step),
            "largest": None if most is None else most.get(step, []),
        }
        for step in known
    ]
    return flow.answer(look, {"steps": steps, "operators": look.status["operators"]})


def largest_keys(look: Look, keys: int) -> dict[str, list[dict[str, Any]]] | None:
    """Return the largest keys by step, of all steps together; None if there are more than `LARGEST_OF`."""
    if keys > LARGEST_OF:
        return None
    found: dict[str, list[dict[str, Any]]] = {}
    for step, key, size_bytes in largest(look.store, look.gathered, LARGEST):
        found.setdefault(step, []).append({"key": key, "bytes": size_bytes})
    return found


def _growth(epochs: list[Measure], step: str) -> list[dict[str, Any]]:
    """Return the sizes of a step over time, in at most `POINTS` points, the newest among them."""
    measured = [each for each in epochs if step in each.steps]
    stride = max(1, -(-len(measured) // POINTS))
    chosen = measured[::-1][::stride][::-1]
    return [
        {
            "epoch": each.epoch,
            "closed_ms": each.measured_ms,
            "keys": each.steps[step].rows,
            "bytes": each.steps[step].size_bytes,
        }
        for each in chosen
    ]
