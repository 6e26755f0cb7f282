"""What an output mode that Spark refuses is answered with: the mode that fits, by the mode and the operator."""

from __future__ import annotations

import pytest

from recovery.spark.jvm.output_modes import advice

REFUSED = "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: {}. This output mode is not "
REFUSED += "supported for {} on streaming DataFrames/DataSets. SQLSTATE: 42KDE"
JOIN = "{} join between two streaming DataFrames/Datasets is not supported in {} output mode, only in {};"
TEXTS = [
    (
        REFUSED.format("append", "streaming aggregations without watermark"),
        "aggregation",
        ['"update"', "withWatermark"],
    ),
    (REFUSED.format("update", "session window streaming aggregations"), "session", ['"append"', '"complete"']),
    (REFUSED.format("complete", "no streaming aggregations"), "none", ['"append"', "AllKeysSink"]),
    (REFUSED.format("update", "something new"), "update mode for something new", ['"append"', '"complete"']),
    (JOIN.format("LeftOuter", "Update", "Append output mode"), "update mode", ['output_mode="append"']),
    (JOIN.format("Inner", "Complete", "Append and Update output modes"), "complete mode", ['output_mode="append"']),
    (
        "applyInPandasWithState in update mode is not supported with Append output mode on a streaming DataFrame",
        "outputMode update",
        ['output_mode="update"'],
    ),
    (
        "flatMapGroupsWithState in append mode is not supported with Update output mode on a streaming DataFrame",
        "outputMode append",
        ['output_mode="append"'],
    ),
    (
        "mapGroupsWithState is not supported with Append output mode on a streaming DataFrame",
        "mode append",
        ['"update"'],
    ),
    ("Limits are not supported on streaming DataFrames/Datasets in Update output mode;", "limits", ['"append"']),
    (
        "Sorting is not supported on streaming DataFrames/Datasets, unless it is on aggregated DataFrame/Dataset in "
        "Complete output mode;",
        "sorted",
        ["in the sink", '"complete"'],
    ),
    (
        "[UNSUPPORTED_STREAMING_OPERATOR_WITHOUT_WATERMARK] append output mode not supported for aggregate on "
        "streaming DataFrames/DataSets without watermark.",
        "watermark",
        ["withWatermark"],
    ),
]


@pytest.mark.parametrize(("text", "cause", "remedies"), TEXTS, ids=[text[:40] for text, _, _ in TEXTS])
def test_the_remedy_is_one_for_the_mode_and_the_operator(text, cause, remedies):
    """Spark's text names both."""
    found = advice(text)
    assert found is not None
    assert cause in found.cause
    assert [remedy for remedy in remedies if remedy not in found.remedy] == []


def test_the_remedies_differ():
    """None was written for all."""
    assert len({advice(text) for text, _, _ in TEXTS}) >= 9


def test_other_refusals_are_none_of_the_mode():
    """They have a text of their own."""
    assert advice("Sampling is not supported on streaming DataFrames/Datasets") is None
    assert advice("[STREAMING_OUTPUT_MODE.INVALID] Invalid streaming output mode: merge.") is None
