"""What is given in place of a Flow, a Pipeline or a RecoveryConfig: the error names the right call."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import recovery
from recovery import ConfigurationError, Flow, Node, Pipeline, RecoveryConfig


def build(spark):
    """A function that returns a frame."""
    raise NotImplementedError


FLOW = Flow("words", build)
NODE = Node("load", build, print)
PIPELINE = Pipeline("nightly", [NODE])
CONFIG = RecoveryConfig("db")


class Frame:
    """What looks like a frame of Spark's."""

    def __init__(self, *, is_streaming=True):
        self.sparkSession = None
        self.isStreaming = is_streaming


CASES = [
    (recovery.run, PIPELINE, "a pipeline, 'nightly', not a flow", "recovery.run_pipeline(pipeline, config)"),
    (recovery.run, build, "the function build", "Flow('name', build, sink)"),
    (recovery.run, lambda: FLOW, "the function <lambda>", "call it: run(<lambda>(...), config)"),
    (recovery.run, "words.py", "'words.py' (str)", "recovery run words.py -r DIR"),
    (recovery.run, Path("words.py"), "(PosixPath)", "recovery run words.py -r DIR"),
    (recovery.run, Frame(), "a frame", "recovery.start(frame, config, sink=..., name='name')"),
    (recovery.run, Flow, "the class Flow", "Flow('name', build, sink)"),
    (recovery.run, None, "None (NoneType)", "Flow('name', build, sink)"),
    (recovery.run, [NODE], "(list)", "Flow('name', build, sink)"),
    (recovery.start, PIPELINE, "a pipeline, 'nightly', not a flow", "recovery.run_pipeline(pipeline, config)"),
    (recovery.start, build, "the function build", "Flow('name', build, sink)"),
    (recovery.start, "words.py", "'words.py' (str)", "recovery run words.py -r DIR"),
    (recovery.start, Frame(is_streaming=False), "a frame that is not a stream", "spark.readStream"),
    (recovery.run_pipeline, FLOW, "a flow, 'words', not a pipeline", "recovery.run(flow, config)"),
    (recovery.run_pipeline, [NODE], "nodes, not a pipeline", "Pipeline('name', [node, ...])"),
    (recovery.run_pipeline, NODE, "nodes, not a pipeline", "Pipeline('name', [node, ...])"),
    (recovery.run_pipeline, "words.py", "'words.py' (str)", "recovery run words.py -r DIR"),
    (recovery.run_pipeline, Pipeline, "the class Pipeline", "Pipeline('name', [Node("),
]


@pytest.mark.parametrize(("call", "given", "found", "remedy"), CASES)
def test_the_right_call(call, given, found, remedy, tmp_path, monkeypatch):
    """It is named before Spark starts and before anything is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=re.escape(found)) as error:
        call(given, CONFIG)
    assert error.value.found.startswith(f"{call.__name__} was given ")
    assert remedy in error.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "given"), [(recovery.run, FLOW), (recovery.start, FLOW), (recovery.run_pipeline, PIPELINE)]
)
@pytest.mark.parametrize(("config", "remedy"), [("db/", "RecoveryConfig('db/')"), (5, "Give a RecoveryConfig('db/')")])
def test_the_settings(call, given, config, remedy):
    """A directory alone is no configuration."""
    with pytest.raises(ConfigurationError, match=" as its config") as error:
        call(given, config)
    assert remedy in error.value.remedy


def test_a_pipeline_needs_settings():
    """A flow may run without recovery; a pipeline keeps marks."""
    with pytest.raises(ConfigurationError, match="run_pipeline was given None"):
        recovery.run_pipeline(PIPELINE, None)
