"""Find the flow that a command line names: MODULE_OR_FILE[:FLOW]; FLOW may be a call with literal arguments."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import recovery
from recovery.base.tracebacks import headline
from recovery.errors import FlowLoadError, RecoveryError
from recovery.flow import Flow
from recovery.pipeline import Node, Pipeline

DEFAULT_NAME = "flow"
PIPELINE_NAME = "pipeline"
_OF_BYTEWAX = "This object is a dataflow of Bytewax, which this package does not run."


def load_flow(target: str) -> Flow:
    """Return the flow that a command line names; see `load`. Raises FlowLoadError, also for a pipeline."""
    found = load(target)
    if not isinstance(found, Flow):
        raise FlowLoadError(f"{target}: that is a pipeline, not a flow", cause="", remedy="Name a Flow.")
    return found


def load(target: str) -> Flow | Pipeline:
    """Return the flow or pipeline that `target` names: "words.py", "jobs.words:flow", "jobs/words.py:make('logs',
    n=2)".

    A file's directory, or the current one for a module, is added to the import path. Raises FlowLoadError.
    """
    where, expression = _split(target)
    module = _load_file(Path(where)) if _is_file(where) else _load_module(where)
    if expression == DEFAULT_NAME and not hasattr(module, DEFAULT_NAME) and hasattr(module, PIPELINE_NAME):
        expression = PIPELINE_NAME
    found = _evaluate(module, expression, target)
    if callable(found) and not isinstance(found, Flow):
        _check_needs_nothing(found, expression, target)
        found = _call(found, (), {}, target)
    if not isinstance(found, Flow | Pipeline):
        raise FlowLoadError(
            f"{target}: {expression} is a {type(found).__name__}, neither a Flow nor a Pipeline",
            cause=_OF_BYTEWAX if type(found).__module__.startswith("bytewax") else "",
            remedy=_remedy(found),
        )
    return found


def load_function(target: str) -> Callable[..., Any]:
    """Return the function that `target` names: "totals.py:moved", "jobs.totals:moved". Raises FlowLoadError."""
    where, colon, name = target.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise FlowLoadError(
            f"{target!r:.200} does not name a function", cause="", remedy="Write it like totals.py:moved."
        )
    module = _load_file(Path(where)) if _is_file(where) else _load_module(where)
    found = getattr(module, name, None)
    if not callable(found):
        raise FlowLoadError(
            f"{target}: it has no function {name!r}",
            cause="",
            remedy=f"Define {name}(key, state) at the top of the file.",
        )
    return cast("Callable[..., Any]", found)


def _remedy(found: object) -> str:
    """Return what to write in place of something that is neither a flow nor a pipeline."""
    if type(found).__module__.startswith("bytewax"):
        return (
            "Write it as a Flow: flow = Flow('NAME', build, sink). Then `recovery import bytewax` takes its state over."
        )
    if hasattr(found, "sparkSession"):
        return "Write a function that returns the frame, build(spark), and flow = Flow('NAME', build, sink)."
    if isinstance(found, list | tuple) and found and all(isinstance(each, Node) for each in found):
        return "Write pipeline = Pipeline('NAME', [node, ...])."
    return "Name a Flow or a Pipeline, or a function that makes one."


def _check_needs_nothing(function: Any, expression: str, target: str) -> None:
    """Raise FlowLoadError for a function that cannot be called without arguments: it builds a frame, or makes a flow
    from values."""
    try:
        inspect.signature(function).bind()
    except ValueError:
        return  # It has no signature.
    except TypeError:
        raise FlowLoadError(
            f"{target}: {expression} is a function that needs arguments, not a flow",
            cause="This function builds the frame of a flow, or it makes a flow from values.",
            remedy=f"If it builds a frame, write flow = Flow('NAME', {expression}, sink) in the file. If it makes a "
            f"flow, name its arguments: {_split(target)[0]}:{expression}('value')",
        ) from None


def import_paths(target: str) -> list[str]:
    """Return the directories that workers need on their import path to run the flow that `target` names."""
    where, _ = _split(target)
    if _is_file(where):
        return [str(Path(where).resolve().parent)]
    return [] if _is_own(where) else [str(Path.cwd())]


def _split(target: str) -> tuple[str, str]:
    """Split a target into file or module and flow. A colon inside a call's argument or a path does not separate
    them."""
    head, colon, tail = target.partition(":")
    while colon and not Path(head).is_file() and Path(target).exists():
        head, colon, tail = target, "", ""
    return head, tail or DEFAULT_NAME


def _is_file(where: str) -> bool:
    return where.endswith(".py") or Path(where).is_file()


def _load_file(path: Path) -> ModuleType:
    """Load a file under a unique name, so that it is not confused with a module of the same name; workers get its
    functions by value."""
    if not path.is_file():
        raise FlowLoadError(f"there is no file {path}", cause="", remedy="Check the path.")
    name = f"recovery_flow_{path.stem}"
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except RecoveryError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(str(path), error) from error
    # Where PySpark is missing there are no workers.
    with contextlib.suppress(ModuleNotFoundError):
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)
    return module


def _is_own(module: str) -> bool:
    """Return whether a module is of this package, as the demo's flow is: no other directory is needed for it."""
    return module.partition(".")[0] == recovery.__name__


def _load_module(name: str) -> ModuleType:
    if not _is_own(name):
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            if Path(name).is_dir():
                raise _directory(name) from error
            raise FlowLoadError(
                f"there is no module or file {name!r}", cause="", remedy="Name a .py file or an importable module."
            ) from error
        raise _failed(name, error) from error
    except RecoveryError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _evaluate(module: ModuleType, expression: str, target: str) -> Any:
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        raise _unreadable(target, expression) from None
    if isinstance(node, ast.Name):
        return _attribute(module, node.id, target)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        try:
            arguments = [ast.literal_eval(argument) for argument in node.args]
            if any(k.arg is None for k in node.keywords):
                raise _unreadable(target, expression)
            named = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        except (ValueError, TypeError):
            raise _unreadable(target, expression) from None
        return _call(_attribute(module, node.func.id, target), arguments, named, target)
    raise _unreadable(target, expression)


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        where, _ = _split(target)
        if getattr(module, "__file__", None) is None and Path(where).is_dir():
            raise _directory(where) from None
        kinds = {kind: [key for key, value in sorted(vars(module).items()) if isinstance(value, kind)]
                 for kind in (Flow, Pipeline)}  # fmt: skip
        named = [f"{where}:{key}" for keys in kinds.values() for key in keys]
        what = "flows" if not kinds[Pipeline] else "pipelines" if not kinds[Flow] else "flows and pipelines"
        raise FlowLoadError(
            f"{target}: it has no {name!r}",
            cause="",
            remedy=f"Name one of its {what}: {', '.join(named)}" if named else (
                "Define flow = Flow(name, build, sink=...)."
            ),
        ) from None  # fmt: skip


def _directory(where: str) -> FlowLoadError:
    flow = shlex.quote(where)
    return FlowLoadError(
        f"{where} is a directory, not a flow",
        cause="The first word after `run` is the flow; the recovery directory is given with -r.",
        remedy=f"Type: recovery run flow.py -r {flow}",
    )


def _call(function: Any, arguments: Any, named: dict[str, Any], target: str) -> Any:
    try:
        return function(*arguments, **named)
    except RecoveryError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(target, error) from error


def _failed(where: str, error: BaseException) -> FlowLoadError:
    found = f"{where} failed: {headline(error)}"
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        # Python's own message for such a file says no more.
        remedy = "Name it as a module, package.module, from the directory that holds the package."
        return FlowLoadError(found, cause="A file is loaded by itself, outside of any package.", remedy=remedy)
    return FlowLoadError(found, cause="", remedy="Fix the flow's code.")


def _unreadable(target: str, expression: str) -> FlowLoadError:
    return FlowLoadError(
        f"{target}: {expression!r} is neither a name nor a call with literal arguments",
        cause="",
        remedy="Write it like flow, or make('text', n=2).",
    )
