"""Every wait without a limit stands in docs/waits.md with its reason, and nothing else does."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import recovery

PACKAGE = Path(recovery.__file__).parent
PAGE = PACKAGE.parent / "docs" / "waits.md"

NO_ARGUMENT = {"wait", "join", "acquire", "result", "get", "readline", "shutdown", "select", "communicate"}
"""Methods that wait without a limit when they are called without any argument."""
ALWAYS = {"recv", "recv_into", "accept"}
"""Methods of sockets: the limit, if there is one, is the socket's."""
RUNS = {"run", "call", "check_call", "check_output"}


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def may_be_none(node: ast.expr | None) -> bool:
    """Whether a limit is left out, or is None in one case."""
    return node is None or any(isinstance(each, ast.Constant) and each.value is None for each in ast.walk(node))


def argument(call: ast.Call, place: int) -> ast.expr | None:
    return call.args[place] if len(call.args) > place else None


def is_polled(node: ast.expr, pollers: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in pollers


def is_without_limit(call: ast.Call, pollers: set[str], *, queues: bool = True) -> bool:
    """Whether a call may wait for ever, as far as its syntax says. pollers: names of objects of select.poll. queues:
    whether the module has queues, so that `get` may be one's."""
    if isinstance(call.func, ast.Name):
        if call.func.id == "lock_file":
            return True
        # The function of concurrent.futures.
        return call.func.id in ("urlopen", "wait") and may_be_none(keyword(call, "timeout") or argument(call, 1))
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    of = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if name in ALWAYS:
        return True
    if name == "poll":
        return is_polled(call.func.value, pollers) and not call.args
    if of == "select" and name == "select":
        return may_be_none(argument(call, 3))
    if of == "subprocess" and name in RUNS:
        return may_be_none(keyword(call, "timeout"))
    if of == "fcntl" and name in ("flock", "lockf"):
        how = ast.unparse(call.args[1])
        return "LOCK_NB" not in how and "LOCK_UN" not in how
    if of == "os" and name in ("read", "waitpid"):
        return "WNOHANG" not in ast.unparse(call)
    if of == "socket" and name == "create_connection":
        return may_be_none(argument(call, 1) or keyword(call, "timeout"))
    if name == "wait_for":
        return may_be_none(argument(call, 1) or keyword(call, "timeout"))
    if name == "shutdown":
        wait = keyword(call, "wait")
        return not call.args and not (isinstance(wait, ast.Constant) and wait.value is False)
    if name == "communicate":
        return may_be_none(keyword(call, "timeout"))
    if name == "get" and not queues:
        return False
    return name in NO_ARGUMENT and not call.args and not call.keywords


def is_pool(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and "PoolExecutor" in ast.unparse(node.func)


def waits_in(path: Path) -> Iterator[str]:
    """The calls of a module that may wait for ever, and the pools whose threads a block waits for."""
    text = path.read_text()
    nodes = [*ast.walk(ast.parse(text))]
    pollers = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value) == "select.poll()"
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    queues = re.search(r"^import queue|^from queue|\blines_of\b", text, re.MULTILINE) is not None
    for node in nodes:
        if isinstance(node, ast.Call) and is_without_limit(node, pollers, queues=queues):
            yield ast.unparse(node.func)
        if isinstance(node, ast.With) and any(is_pool(each.context_expr) for each in node.items):
            yield "with ThreadPoolExecutor"


def found() -> Counter[tuple[str, str]]:
    return Counter(
        (path.relative_to(PACKAGE).as_posix(), call) for path in PACKAGE.rglob("*.py") for call in waits_in(path)
    )


def listed() -> Counter[tuple[str, str]]:
    """The rows of the page: `module`, `call` (and ×N for several), reason."""
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.MULTILINE)
    counts: Counter[tuple[str, str]] = Counter()
    for module, calls, reason in rows:
        assert len(reason) > 10, f"{module} gives no reason"
        for call, times in re.findall(r"`([^`]+)`(?: ×(\d+))?", calls):
            counts[module, call] += int(times or 1)
    return counts


def test_every_wait_without_a_limit_has_its_reason():
    """The page names each, and only those that are there."""
    waits, rows = found(), listed()
    assert waits - rows == Counter(), "not in docs/waits.md"
    assert rows - waits == Counter(), "no longer in the package"


def test_the_limits_are_those_of_the_code():
    """Each limit of the page's first table is the value of its constant."""
    rows = re.findall(r"^\| .+? \| ([\d.]+) (s|min|h) .*?\| `([\w/]+\.py)::(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 20
    for number, unit, module, name in rows:
        [value] = [
            ast.literal_eval(node.value)
            for node in ast.walk(ast.parse((PACKAGE / module).read_text()))
            if isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == [name]
        ]
        seconds = value / 1000 if name.endswith("_MS") else float(str(value).removesuffix("s"))
        assert float(number) * {"s": 1, "min": 60, "h": 3600}[unit] == seconds, name


def test_the_finder():
    """It finds waits without a limit, and passes those with one."""
    unlimited = [
        "event.wait()", "thread.join()", "lock.acquire()", "sock.recv(1)", "sock.accept()", "future.result()",
        "queue.get()", "process.communicate(b'')", "select.select([a], [], [])", "select.select([a], [], [], None)",
        "select.select([a], [], [], 5 if b else None)", "subprocess.run(['x'])", "fcntl.flock(f, fcntl.LOCK_EX)",
        "lock_file(f)",
        "changed.wait_for(f)", "pool.shutdown()", "os.read(a, 1)", "selector.select()",
    ]  # fmt: skip
    limited = [
        "event.wait(1)", "thread.join(1)", "lock.acquire(timeout=1)", "lock.acquire(blocking=False)", "','.join(a)",
        "future.result(1)", "table.get('a')", "process.communicate(timeout=1)", "select.select([a], [], [], 1)",
        "subprocess.run(['x'], timeout=1)", "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)", "try_lock_file(f)",
        "changed.wait_for(f, 1)",
        "pool.shutdown(wait=False)", "sock.shutdown(1)", "process.poll()",
    ]  # fmt: skip
    parsed = lambda text: ast.parse(text, mode="eval").body  # noqa: E731
    assert [each for each in unlimited if not is_without_limit(parsed(each), set())] == []
    assert [each for each in limited if is_without_limit(parsed(each), set())] == []
