"""Why Spark refuses a flow's output mode, and which mode the flow can have, by mode and operator."""

from __future__ import annotations

import re
from typing import NamedTuple

_WATERMARK = 'frame.withWatermark("at", "10 minutes")'


class Diagnosis(NamedTuple):
    """The cause and the remedy of an error."""

    cause: str
    remedy: str


def advice(text: str) -> Diagnosis | None:
    """Return the cause and the remedy for a refusal in Spark's words; None if the output mode is not the problem."""
    for pattern, cause, remedy in _REFUSALS:
        found = pattern.search(text)
        if found is not None:
            named = {name: value.lower() for name, value in found.groupdict().items() if value is not None}
            return Diagnosis(cause.format(**named), remedy.format(**named))
    return None


def _refusal(pattern: str, cause: str, remedy: str) -> tuple[re.Pattern[str], str, str]:
    return re.compile(pattern, re.IGNORECASE), cause, remedy


_REFUSALS = (
    _refusal(
        r"output mode: append\b.*not supported for streaming aggregations without watermark"
        r"|append output mode not supported for .* without watermark",
        "The flow has an aggregation of Spark's own. In append mode the sink gets only rows that cannot change any "
        "more, and without a watermark they can change forever.",
        'Give the sink the rows that changed, Flow(..., output_mode="update"), or all rows, "complete"; or give '
        f"the aggregation a watermark, {_WATERMARK}, and group by that column or a window of it.",
    ),
    _refusal(
        r"output mode: update\b.*not supported for session window",
        "The flow aggregates over session windows. Two sessions may become one, and update mode has no row for the one "
        "that is gone.",
        f'Give the aggregation a watermark, {_WATERMARK}, and leave output_mode out, which is "append": the sink is '
        'given a session when it has ended. Or have it given all sessions: Flow(..., output_mode="complete").',
    ),
    _refusal(
        r"output mode: complete\b.*not supported for no streaming aggregations",
        "In complete mode the sink gets all rows of an aggregation of Spark's own, and the flow has none. The "
        "steps of this package, joins, dropDuplicates and the like are none.",
        'Leave output_mode out, which is "append", or give the mode that applyInPandasWithState or its like was '
        "declared with. For all keys of recovery.aggregate, use recovery.AllKeysSink.",
    ),
    _refusal(
        r"join between two streaming .* not supported in (?P<mode>\w+) output mode, only in (?P<first>\w+)"
        r"(?: and (?P<second>\w+))? output mode",
        "The flow joins two streams, whose rows Spark cannot give in {mode} mode.",
        'Flow(..., output_mode="{first}"), which may be left out when it is "append".',
    ),
    _refusal(
        r"\b(?P<operator>\w+GroupsWithState|applyInPandasWithState) in (?P<own>\w+) mode is not supported with "
        r"(?P<mode>\w+) output mode",
        "The flow's operator was declared with outputMode {own}, and the flow has {mode}.",
        'Flow(..., output_mode="{own}"), or declare the operator with outputMode {mode}.',
    ),
    _refusal(
        r"mapGroupsWithState is not supported with (?P<mode>\w+) output mode",
        "mapGroupsWithState gives one row for each key that had rows, and the flow has output mode {mode}.",
        'Flow(..., output_mode="update").',
    ),
    _refusal(
        r"Limits are not supported .* in update output mode",
        "The flow limits how many rows there are, and rows that change have no first ones.",
        'Leave output_mode out, which is "append": the first rows of all are given. For the first of an aggregation, '
        'sort it, and Flow(..., output_mode="complete"). Or limit each micro-batch in the sink.',
    ),
    _refusal(
        r"Sorting is not supported .* Complete output mode",
        "A stream has no end, so its rows cannot be sorted, except all rows of an aggregation in complete mode.",
        "Sort each micro-batch in the sink, or a step's rows of a key with order_by=. To sort an aggregation of "
        'Spark\'s own: Flow(..., output_mode="complete").',
    ),
    _refusal(
        r"output mode: (?P<mode>\w+)\. This output mode is not supported for (?P<what>.+?) on streaming",
        "Spark does not define {mode} mode for {what}.",
        'Give the flow another mode: Flow(..., output_mode="append"), "update" or "complete".',
    ),
    _refusal(
        r"\[STREAMING_OUTPUT_MODE\.UNSUPPORTED",
        "The flow has an operator of Spark's own that is not defined in the flow's output mode.",
        'Give the flow another mode: Flow(..., output_mode="update"), "complete" or "append".',
    ),
)
