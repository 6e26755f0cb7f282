"""What `save_pipeline_run` takes: results of nodes in this package's forms and in Odibi's; and Odibi's words for
statuses and arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from recovery.errors import ConfigurationError, StateValueError, shown
from recovery.operational.ids import check
from recovery.operational.runs import BLOCKED, FAILED, NODE_STATUSES, SUCCEEDED, NodeRun, checked_node

_FIELDS = ("status", "duration_s", "rows", "definition", "why", "error")
_STORED = {"last_run", "nodes"}
_LISTS = {"completed": SUCCEEDED, "failed": FAILED, "skipped": BLOCKED}
"""The lists of names that Odibi's `PipelineResults.to_dict()` has, and what they mean."""
_STATUSES = {"success": SUCCEEDED, "failure": FAILED, "upstream_failed": BLOCKED}
"""Statuses of Odibi and Airflow that have another name here."""
P = ParamSpec("P")
R = TypeVar("R")
_FORMS = """Give for each node True, False, or a mapping with "success" or "status"; or a result object with \
node_results; or {"last_run": …, "nodes": {…}}."""


def parse_results(given: Any) -> tuple[dict[str, NodeRun], dict[str, Any]]:
    """Return the results of nodes, and facts about their run. Raises ConfigurationError or StateValueError.

    given: for each node a NodeRun, True or False, or the fields of a NodeRun; the summary of a pipeline's run; Odibi's
    PipelineResults, what their `to_dict()` returns, or the form in which Odibi stores them: {"last_run": …, "nodes":
    {name: {"success": …}}}.
    """
    results = getattr(given, "node_results", None)
    if isinstance(results, Mapping):
        return _parsed(_of_results(given, results)), _moments(given)
    nodes = given if isinstance(given, Mapping) else getattr(given, "nodes", None)
    if nodes is None and callable(to_dict := getattr(given, "to_dict", None)):
        nodes = to_dict()
    if not isinstance(nodes, Mapping):
        raise ConfigurationError(f"{shown(given)} is not the result of a pipeline", remedy=_FORMS)
    if nodes.keys() == _STORED and isinstance(nodes["nodes"], Mapping) and isinstance(nodes["last_run"], str | None):
        return _parsed(nodes["nodes"]), {"last_run": nodes["last_run"]}
    if nodes.keys() >= _LISTS.keys() and all(isinstance(nodes[each], list) for each in _LISTS):
        found = {name: status for each, status in _LISTS.items() for name in nodes[each]}
        facts = {name: each for name, each in nodes.items() if name not in _LISTS}
        return _parsed({name: NodeRun(status) for name, status in found.items()}), facts
    return _parsed(nodes), {}


def status_of(text: object) -> str | None:
    """Return the status that a text names, in this package's words or in those of Odibi and Airflow, in any case; None
    if it names none."""
    word = text.lower() if isinstance(text, str) else ""
    found = _STATUSES.get(word, word)
    return found if found in NODE_STATUSES else None


def also_named(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator with which a function takes arguments by other names, too: `theirs="ours"`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*args: P.args, **given: P.kwargs) -> R:
            for theirs, ours in names.items():
                if theirs in given:
                    if ours in given:
                        raise ConfigurationError(f"{theirs} and {ours} are the same argument", remedy="Give one.")
                    given[ours] = given.pop(theirs)
            return function(*args, **given)

        return called

    return decorate


def _of_results(results: Any, nodes: Mapping[str, Any]) -> dict[str, Any]:
    """Return Odibi's results in the form of NodeRuns. A node that it skipped, because what it needs failed, may have no
    result."""
    found: dict[str, Any] = dict.fromkeys(getattr(results, "skipped", ()), BLOCKED)
    found |= dict.fromkeys(getattr(results, "failed", ()), FAILED)
    unfinished = {name: NodeRun(status) for name, status in found.items()}
    return {**unfinished, **{name: _of_result(name, each) for name, each in nodes.items()}}


def _of_result(name: str, result: Any) -> dict[str, Any]:
    success = getattr(result, "success", None)
    if not isinstance(success, bool):
        raise ConfigurationError(
            f"the result {shown(result)} of node {name!r:.80} has no success that is True or False", remedy=_FORMS
        )
    metadata = getattr(result, "metadata", None)
    # Metadata of any objects: as text, as Odibi stores them.
    metadata = json.loads(json.dumps(metadata or {}, default=str), parse_constant=str)
    timestamp = metadata.get("timestamp") if isinstance(metadata, dict) else None
    error = getattr(result, "error", None)
    return {
        "success": success,
        "duration_s": getattr(result, "duration", None),
        "rows": getattr(result, "rows_processed", None),
        "error": None if error is None else f"{type(error).__name__}: {error}"[:2000],
        "metadata": metadata,
        **({} if timestamp is None else {"timestamp": timestamp}),
    }


def _moments(results: Any) -> dict[str, Any]:
    found = {name: getattr(results, name, None) for name in ("start_time", "end_time")}
    return {name: str(moment) for name, moment in found.items() if moment is not None}


def _parsed(nodes: Mapping[str, Any]) -> dict[str, NodeRun]:
    return {check(name, "name of a node"): _parse_node(name, given) for name, given in nodes.items()}


def _parse_node(name: str, given: Any) -> NodeRun:
    node = _node_of(name, given)
    try:
        json.dumps(dict(node.details))
        return checked_node(node)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateValueError(
            f"the result of node {name!r:.80} cannot be recorded: {error}",
            cause="Records are JSON, and numbers, texts and the like have their types.",
            remedy="Give numbers, texts, lists and dicts with text keys.",
        ) from error


def _node_of(name: str, given: Any) -> NodeRun:
    if isinstance(given, NodeRun):
        return given
    if isinstance(given, bool):
        return NodeRun(SUCCEEDED if given else FAILED)
    fields = dict(given) if isinstance(given, Mapping) else {}
    if isinstance(fields.get("success"), bool):
        fields["status"] = SUCCEEDED if fields.pop("success") else FAILED
    known = {key: fields.pop(key) for key in _FIELDS if key in fields}
    if (status := status_of(known.get("status"))) is None:
        raise ConfigurationError(
            f"the result {shown(given)} of node {name!r:.80} has no status",
            remedy=f'Give True, False, or a mapping with a "status": {", ".join(NODE_STATUSES)}.',
        )
    known["status"] = status
    details = fields.pop("details", {})
    return NodeRun(**known, details={**fields, **details} if isinstance(details, Mapping) else details)
