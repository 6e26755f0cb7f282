"""What is refused of a plan before it runs."""

from __future__ import annotations

import pytest

from recovery import UnsupportedPlanError
from recovery.spark.jvm.plan_nodes import children, walk, with_children
from recovery.spark.planner.bind import _frame, bind
from tests.spark.support import totals_step


def test_a_step_without_its_exchange(spark, feed):
    """A plan that something took apart and put together again: without the exchange keys would meet other states."""
    feed.add([("a", 1)])
    plan = feed.frame(spark).transform(totals_step())._jdf.queryExecution().analyzed()
    [exchange] = [node for node in walk(plan) if node.nodeName() == "RepartitionByExpression"]
    [project] = [node for node in walk(plan) if any(child.equals(exchange) for child in children(node))]
    assert children(plan)[0].equals(project), "the step stands at the top"
    assert bind(_frame(spark, plan), 2).steps
    without = with_children(spark._jvm, plan, [with_children(spark._jvm, project, children(exchange))])
    with pytest.raises(UnsupportedPlanError, match="step 'totals' has lost its exchange"):
        bind(_frame(spark, without), 2)
