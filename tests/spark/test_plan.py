"""What is refused of a plan before it runs."""

from __future__ import annotations

import pytest

from recovery import UnsupportedPlanError
from recovery.spark.jvm.plan_nodes import PlanNode
from recovery.spark.planner.bind import _frame, bind
from tests.spark.support import totals_step


def test_a_step_without_its_exchange(spark, feed):
    """A plan that something took apart and put together again: without the exchange keys would meet other states."""
    feed.add([("a", 1)])
    analyzed = feed.frame(spark).transform(totals_step())._jdf.queryExecution().analyzed()
    plan = PlanNode.read(analyzed)
    assert plan.handle is analyzed
    [project] = plan.children
    [exchange] = project.children
    assert (plan.name, project.name, exchange.name) == ("MapInArrow", "Project", "RepartitionByExpression")
    assert [each.name for each in plan.walk()][:3] == [plan.name, project.name, exchange.name]
    assert plan.with_children(spark._jvm, [project.handle]) is analyzed, "nothing has changed"
    assert bind(_frame(spark, analyzed), 2).steps
    [source] = exchange.children
    without = plan.with_children(spark._jvm, [project.with_children(spark._jvm, [source.handle])])
    with pytest.raises(UnsupportedPlanError, match="step 'totals' has lost its exchange"):
        bind(_frame(spark, without), 2)
