"""How the command line names a flow: a name, or a call."""

from __future__ import annotations

import re
import sys

import pytest

from recovery import Flow, FlowFailedError, FlowLoadError
from recovery.cli.flow_loader import load
from recovery.spark.run.start import build_flow

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


BROKEN = """
from recovery import Flow

def build(spark):
    raise RuntimeError("no input")

def make():
    raise RuntimeError("no flow")

flow = Flow("words", build)
{}
"""


def test_what_fails_in_the_flows_code_is_reported_with_its_line(tmp_path):
    """When the file is read, when its function makes the flow, and when the flow is built."""
    file = tmp_path / "words.py"
    file.write_text(BROKEN.format("1 / 0"))
    with pytest.raises(FlowLoadError, match=r"failed: ZeroDivisionError: division by zero \(words\.py, line 11\)\n"):
        load(str(file))
    file.write_text(BROKEN.format(""))
    with pytest.raises(FlowLoadError, match=r"failed: RuntimeError: no flow \(words\.py, line 8\)\n"):
        load(f"{file}:make()")
    with pytest.raises(FlowFailedError, match=r"flow 'words' failed: RuntimeError: no input \(words\.py, line 5\)\n"):
        build_flow(load(str(file)), None)


def test_a_flow_of_another_name_is_named(tmp_path):
    """As the command line takes it."""
    file = tmp_path / "two.py"
    file.write_text("from recovery import Flow\nb = Flow('b', lambda spark: None)\na = Flow('a', lambda spark: None)\n")
    with pytest.raises(FlowLoadError, match=re.escape(f"Name one of its flows: {file}:a, {file}:b")):
        load(str(file))
    with pytest.raises(FlowLoadError, match=re.escape(f"Name one of its flows: {file}:a, {file}:b")):
        load(f"{file}:c")


def test_a_file_of_a_package_is_named_as_a_module(tmp_path, monkeypatch):
    """By itself it has no neighbours to import."""
    package = tmp_path / "relatives"
    package.mkdir()
    (package / "helpers.py").write_text("NAME = 'x'\n")
    (package / "job.py").write_text(
        "from .helpers import NAME\nfrom recovery import Flow\nflow = Flow(NAME, lambda spark: None)\n"
    )
    with pytest.raises(FlowLoadError, match=r"Name it as a module, package\.module"):
        load(str(package / "job.py"))
    monkeypatch.chdir(tmp_path)
    assert load("relatives.job").name == "x"


@pytest.mark.parametrize("code", ["", "0", "'no settings'"])
def test_a_file_that_leaves_the_program(tmp_path, code):
    """It is no flow that has run: a scheduler would take it for that."""
    (tmp_path / "flows.py").write_text(f"import sys\nsys.exit({code})\n")
    with pytest.raises(FlowLoadError, match=r"failed: SystemExit: .*\(flows.py, line 2\)"):
        load(f"{tmp_path / 'flows.py'}")
    (tmp_path / "flows.py").write_text(f"import sys\ndef make():\n    sys.exit({code})\n")
    with pytest.raises(FlowLoadError, match=r"SystemExit: .*\(flows.py, line 3\)"):
        load(f"{tmp_path / 'flows.py'}:make")
    with pytest.raises(FlowFailedError, match="building flow 'x' failed: SystemExit: "):
        build_flow(Flow("x", lambda spark: sys.exit(eval(code) if code else None)), None)


@pytest.mark.parametrize(
    ("content", "found", "remedy"),
    [
        ("def flow(spark): ...", "flow is a function that needs arguments", r"flow = Flow\('NAME', flow, sink\)"),
        ("def flow(spark): ...", "flow is a function that needs arguments", r"words.py:flow\('value'\)"),
        ("flow = 5", "flow is a int, neither a Flow nor a Pipeline", "Name a Flow or a Pipeline"),
        ("from recovery import Node\nflow = [Node('a', print, print)]", "flow is a list", r"Pipeline\('NAME', "),
        ("class Frame:\n    sparkSession = None\nflow = Frame()", "flow is a Frame", "that returns the frame"),
        ("class Dataflow: ...\nDataflow.__module__ = 'bytewax.dataflow'\nflow = Dataflow()", "flow is a Dataflow",
         "recovery import bytewax"),
        ("from recovery import Node, Pipeline\nload = Pipeline('p', [Node('a', print, print)])", "it has no 'flow'",
         "Name one of its pipelines: .*words.py:load"),
    ],
)  # fmt: skip
def test_what_is_no_flow(tmp_path, content, found, remedy):
    """The error says what it is, and how a flow is made of it."""
    file = tmp_path / "words.py"
    file.write_text(content)
    with pytest.raises(FlowLoadError, match=re.escape(found)) as error:
        load(str(file))
    assert re.search(remedy, error.value.remedy)


def test_a_directory_in_place_of_the_flow(tmp_path, monkeypatch):
    """As `recovery run db/`: the recovery directory is given with -r."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "db").mkdir()
    for name in ("db", "db/", str(tmp_path / "db")):
        with pytest.raises(FlowLoadError, match="is a directory, not a flow") as error:
            load(name)
        assert error.value.remedy == f"Type: recovery run flow.py -r {name}"
