"""What `run`, `start` and `run_pipeline` are given: for anything else, the error names the right call."""

from __future__ import annotations

import inspect
import os
from typing import Any

from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError, shown
from recovery.flow import Flow
from recovery.pipeline import Node, Pipeline


def check_flow(flow: object, call: str) -> None:
    """Raise ConfigurationError unless a value is a Flow. call: the function that was given the value."""
    if not isinstance(flow, Flow):
        raise _no_flow(flow, call)


def check_flow_or_frame(flow: object, call: str) -> None:
    """Raise ConfigurationError unless a value is a Flow or a streaming DataFrame."""
    if isinstance(flow, Flow) or hasattr(flow, "sparkSession"):
        if getattr(flow, "isStreaming", True) is False:
            raise ConfigurationError(
                f"{call} was given a frame that is not a stream",
                cause="The frame was read with spark.read.",
                remedy="Read the input with spark.readStream; for a batch, use a Pipeline.",
            )
        return
    raise _no_flow(flow, call)


def check_pipeline(pipeline: object, call: str) -> None:
    """Raise ConfigurationError unless a value is a Pipeline."""
    if isinstance(pipeline, Pipeline):
        return
    if isinstance(pipeline, Flow):
        raise ConfigurationError(
            f"{call} was given a flow, {pipeline.name!r:.80}, not a pipeline",
            cause="A flow is one streaming query; a pipeline is nodes that read and write.",
            remedy="Run the flow with recovery.run(flow, config).",
        )
    if isinstance(pipeline, Node) or _are_nodes(pipeline):
        raise ConfigurationError(
            f"{call} was given nodes, not a pipeline",
            cause="A pipeline has a name, by which its runs are recorded.",
            remedy="Write Pipeline('name', [node, ...]).",
        )
    raise ConfigurationError(
        f"{call} was given {_described(pipeline)}, not a pipeline",
        cause=_of_class(pipeline),
        remedy=_of_text(pipeline) or "Give a Pipeline: Pipeline('name', [Node('load', read, write), ...]).",
    )


def check_config(config: object, call: str, *, needed: bool = False) -> None:
    """Raise ConfigurationError unless a value is a RecoveryConfig, or None if none is needed."""
    if isinstance(config, RecoveryConfig) or (config is None and not needed):
        return
    remedy = "Give a RecoveryConfig('db/')." if needed else (
        "Give a RecoveryConfig('db/'), or None to run without recovery."
    )  # fmt: skip
    if isinstance(config, str | os.PathLike):
        remedy = f"Write RecoveryConfig({os.fspath(config)!r:.200})."
    raise ConfigurationError(f"{call} was given {_described(config)} as its config", cause="", remedy=remedy)


def _no_flow(flow: object, call: str) -> ConfigurationError:
    if isinstance(flow, Pipeline):
        return ConfigurationError(
            f"{call} was given a pipeline, {flow.name!r:.80}, not a flow",
            cause="A pipeline is nodes that read and write; a flow is one streaming query.",
            remedy="Run the pipeline with recovery.run_pipeline(pipeline, config).",
        )
    found = f"{call} was given {_described(flow)}, not a flow"
    if hasattr(flow, "sparkSession"):
        return ConfigurationError(
            found,
            cause="A run builds its frame itself, on the session that it starts.",
            remedy="Give Flow('name', build, sink) with a function build(spark) that returns the frame; or start the "
            "frame with recovery.start(frame, config, sink=..., name='name').",
        )
    if inspect.isfunction(flow) or inspect.ismethod(flow):
        name = flow.__name__
        return ConfigurationError(
            found,
            cause="A function either builds the frame of a flow, or returns a flow.",
            remedy=f"If {name}(spark) returns the frame, give Flow('name', {name}, sink). If {name} returns a flow, "
            f"call it: {call}({name}(...), config).",
        )
    return ConfigurationError(
        found, cause=_of_class(flow), remedy=_of_text(flow) or "Give a Flow: Flow('name', build, sink)."
    )


def _are_nodes(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(each, Node) for each in value)


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isfunction(value) or inspect.ismethod(value):
        return f"the function {value.__name__}"
    if hasattr(value, "sparkSession"):
        return "a frame"
    return f"{shown(value)} ({type(value).__name__})"


def _of_class(value: object) -> str:
    return f"{value.__name__} is a class, and not called." if isinstance(value, type) else ""


def _of_text(value: object) -> str:
    """Return what to do about a text or path: a file is for the command line."""
    if not isinstance(value, str | os.PathLike):
        return ""
    return (
        f"On the command line: recovery run {os.fspath(value)!s:.120} -r DIR. In Python, import what the file defines, "
        "and give that."
    )
