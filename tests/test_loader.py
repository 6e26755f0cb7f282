"""What stands on the command line for a flow: a name, or a call."""

from __future__ import annotations

import pytest

from recovery import Flow, FlowLoadError
from recovery.loader import load

SOURCE = """
from recovery import Flow
def make(n=1, *, name="x"):
    return Flow(f"{name}-{n}", lambda spark: None)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "flows.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize(("call", "name"), [("make", "x-1"), ("make(2)", "x-2"), ("make(2, name='y')", "y-2")])
def test_a_call_with_literals(file, call, name):
    """The function is called with what is written."""
    flow = load(f"{file}:{call}")
    assert isinstance(flow, Flow)
    assert flow.name == name


@pytest.mark.parametrize(
    "call", ["make({[]: 1})", "make(**{'n': 2})", "make(open('x'))", "make(1", "make.x", "make(*[2])"]
)
def test_anything_else_is_refused(file, call):
    """As an error of its own, and never taken for something else."""
    with pytest.raises(FlowLoadError, match="literal arguments"):
        load(f"{file}:{call}")
