"""What decides which sources a flow reads: its code, and what the code has looked at while it built the flow.

`CodeWatch` watches the flow's code while it is loaded and while it builds its frame, by Python's own audit events, and
notes modules, files, directories and variables. What cannot be compared later, such as a connection to a database,
voids the note. `change_of` compares a note with what is there now, and runs no code of the flow.

Python reports neither `stat` nor the clock, and not what libraries in C do: a flow whose sources depend on the date, on
whether a file exists, or on a library that `_UNSEEN` lacks, is not for --if-new-input. docs/operations.md says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from recovery.base.untrusted_paths import read_received
from recovery.idle.note import FlowCode, difference, seal

PREFIXES = ("RECOVERY_", "BYTEWAX_", "SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "JAVA_", "PYTHON", "AWS_", "TZ")
"""Variables that are compared whether the flow's code reads them or not: Python, Spark or its JVM do."""
UNCOUNTED = ("RECOVERY_CACHE",)
LARGE = 4 << 20
"""Files beyond this size are compared by size and modification time."""
COARSE_NS = 100_000_000
"""How far the time of a change may lie before the clock: the kernel takes it from the last tick."""
_INSTALLED = ("site-packages", "dist-packages")
_SYSTEM = re.compile("/(proc|sys|dev(?!/shm/))/")
"""What the kernel shows as files."""
_STARTS_PROCESS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
_UNSEEN = (
    "psycopg", "psycopg2", "MySQLdb", "pyodbc", "oracledb", "duckdb", "deltalake", "grpc", "pycurl", "polars",
    "confluent_kafka",
    "pyarrow.fs", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.csv", "pyarrow.orc", "pyarrow.feather",
)  # fmt: skip
"""Modules that connect or open files without Python: no event says so. The sinks of this package load none of them
before they prepare."""
_CONFIGURATIONS = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")

T = TypeVar("T")
D = TypeVar("D")


@contextlib.contextmanager
def forgotten_imports() -> Iterator[None]:
    """After this context, modules of `_UNSEEN` that were imported in it count as not imported: the import of such a
    module by the flow's code has to be seen."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - before:
            if any(f"{name}.".startswith(f"{unseen}.") for unseen in _UNSEEN):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                if parent in sys.modules:
                    vars(sys.modules[parent]).pop(child, None)


class CodeWatch:
    """Watches the code of one flow. `loading` and `building` are the times when the code decides what to read. Made
    before: the flow's code may change variables and the working directory."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        """facts: options and versions, by names for people."""
        self._facts = facts
        self._environment, self._here = dict(os.environ), os.getcwd()  # noqa: PTH109 - a text
        self._variables: set[str] = set()
        self._lists_variables = False
        self._opened: set[str] = set()
        self._searched: set[str] = set()
        self._listed: set[str] = set()
        self._files: dict[str, str | None] = {}
        self._packages: dict[str, tuple[int, int]] = {}
        self._listings: dict[str, str] = {}
        self._why_not = ""
        self._thread: int | None = None
        self._threads: list[threading.Thread] = []
        """Threads that the flow's code has started."""
        self._ports: frozenset[int] = frozenset()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Within this context, the flow's modules are loaded."""
        with self._watching(None, frozenset()):
            yield

    def building(
        self, build: Callable[[T], Any], port_of: Callable[[T], int], jobs_of: Callable[[T], int]
    ) -> Callable[[T], Any]:
        """Return a flow's `build` that is watched. Only its own thread counts, and those that the flow's code starts:
        the run has others by then. port_of: returns the port of a session's JVM, to which `build` may connect. jobs_of:
        returns how many jobs the JVM has begun: what `build` reads through Spark is not seen here."""

        def watched(spark: T) -> Any:
            with self._watching(threading.get_ident(), frozenset({port_of(spark)})):
                before = jobs_of(spark)
                frame = build(spark)
            if jobs_of(spark) != before:
                self._void("the flow's code reads something through Spark while it builds the flow")
            return frame

        return watched

    def code(self) -> FlowCode:
        """Return what was seen."""
        variables = sorted(self._variables)
        return FlowCode(
            facts=seal({**self._facts, **_facts_of(variables, self._lists_variables, self._environment, self._here)}),
            variables=variables,
            lists_variables=self._lists_variables,
            files=dict(sorted(self._files.items())),
            packages=self._packages,
            modules={path: _names(path, modules=True) for path in sorted(self._searched)},
            listings=self._listings,
            why_not=self._why_not,
        )

    @contextlib.contextmanager
    def _watching(self, thread: int | None, ports: frozenset[int]) -> Iterator[None]:
        self._thread, self._ports = thread, ports
        began_ns = time.time_ns() - COARSE_NS
        before = {name for name in _UNSEEN if name in sys.modules}
        with (
            _reporting_to(self._event),
            _calls_to(os.environ, "encodekey", self._read_variable),
            _calls_to(os.environ, "decodekey", self._list_variables),
            _calls_to(os, "readlink", self._follow),
            _calls_to(threading.Thread, "start", self._start),
        ):
            yield
        for name in _UNSEEN:
            if name in sys.modules and name not in before:
                self._void(f"the flow's code imports {name}, and Python does not report what {name} reads")
        if os.getcwd() != self._here:  # noqa: PTH109 - a text
            # Paths of sources may be relative to either.
            self._void("the flow's code changes the working directory")
        modules = set(_module_files())
        for path in filter(_is_installed, modules - self._packages.keys()):
            self._packages[path] = self._stable(path, began_ns, _size_and_time)
        read = self._opened | {path for path in modules if not _is_installed(path)}
        for path in read - self._files.keys():
            self._files[path] = self._stable(path, began_ns, _digest)
        for path in self._listed - self._listings.keys():
            self._listings[path] = self._stable(path, began_ns, _names)

    def _stable(self, path: str, began_ns: int, described: Callable[[str], D]) -> D:
        """Return what describes what the code has read; note if that may have changed since."""
        found = described(path)
        if _size_and_time(path)[1] >= began_ns:
            self._void(f"{path} changed while the flow's code read it")
        return found

    def _void(self, why: str) -> None:
        self._why_not = self._why_not or why

    def _is_watched(self) -> bool:
        """Whether the current thread runs the flow's code."""
        current = threading.get_ident()
        return self._thread in (None, current) or any(each.ident == current for each in self._threads)

    def _start(self, thread: threading.Thread) -> None:
        if self._is_watched():
            self._threads.append(thread)

    def _follow(self, link: Any) -> None:
        if self._is_watched():
            self._add(self._opened, link)

    def _read_variable(self, name: object) -> None:
        if isinstance(name, str):
            self._variables.add(name)

    def _list_variables(self, _: object) -> None:
        self._lists_variables = True

    def _event(self, name: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_watched():
            return
        if name == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or flags & os.O_ACCMODE != os.O_WRONLY:
                self._add(self._opened, path)
        elif name == "sqlite3.connect":
            for path in _database_files(arguments[0]):
                self._add(self._opened, path)
        elif name in ("os.listdir", "os.scandir"):
            # Python looks through directories for modules: only names of modules matter there.
            is_import = "importlib" in sys._getframe(2).f_code.co_filename
            self._add(self._searched if is_import else self._listed, arguments[0])
        elif name == "socket.connect":
            address = arguments[1]
            if not (isinstance(address, tuple) and len(address) > 1 and address[1] in self._ports):
                self._void("the flow's code connects to another process while it builds the flow")
        elif name in _STARTS_PROCESS:
            self._void("the flow's code starts a process while it builds the flow")

    def _add(self, to: set[str], path: Any) -> None:
        if path is None:
            path = "."
        with contextlib.suppress(TypeError, ValueError):
            found = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - not what links lead to
            # Compiled modules stand for their sources, which are compared.
            if not (_SYSTEM.match(found) or _is_library(found) or found.endswith(".pyc")):
                to.add(found)


def change_of(code: FlowCode, facts: Mapping[str, str]) -> str | None:
    """Return what has changed since a run noted its code, as text; None: nothing."""
    if code.why_not:
        return code.why_not
    here = os.getcwd()  # noqa: PTH109 - a text
    changed = difference(code.facts, {**facts, **_facts_of(code.variables, code.lists_variables, os.environ, here)})
    if changed is not None:
        return f"{changed} is not as in the run before"
    for path, known in code.files.items():
        if _digest(path) != known:
            return f"{path} has changed"
    for path, times in code.packages.items():
        if _size_and_time(path) != times:
            return f"{path} has changed"
    for listings, modules in ((code.modules, True), (code.listings, False)):
        for path, names in listings.items():
            if _names(path, modules=modules) != names:
                return f"{path} has other files"
    return None


def _facts_of(
    variables: Iterable[str], lists_variables: bool, environment: Mapping[str, str], here: str
) -> dict[str, str]:
    """Return the facts about a process: Python, the working directory, variables, configurations of Spark. variables:
    those that the flow's code has read. lists_variables: it has read which ones there are."""
    counted = [name for name in environment if name.startswith(PREFIXES) and name not in UNCOUNTED]
    facts = {"Python": f"{sys.executable} {sys.version}", "the working directory": here}
    for name in {*variables, *counted}:
        facts[f"the variable {name}"] = f"={environment[name]}" if name in environment else ""
    if lists_variables:
        facts["the list of variables"] = repr(sorted(environment.keys() - set(UNCOUNTED)))
    homes = [Path(environment["SPARK_HOME"], "conf")] if environment.get("SPARK_HOME") else []
    given = [Path(environment[name]) for name in _CONFIGURATIONS if environment.get(name)]
    for directory in (*homes, *given):
        files = [(path.name, *_size_and_time(str(path))) for path in _children(directory)]
        facts[f"the configuration {directory}"] = repr(files)
    return facts


_watcher: Callable[[str, tuple[Any, ...]], None] | None = None
_is_hooked = False


def _hook(name: str, arguments: tuple[Any, ...]) -> None:
    if _watcher is not None:
        _watcher(name, arguments)


@contextlib.contextmanager
def _reporting_to(watcher: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Within this context, call a function for Python's audit events. Python cannot remove a hook, so it stays, and
    does nothing."""
    global _watcher, _is_hooked
    if not _is_hooked:
        sys.addaudithook(_hook)
        _is_hooked = True
    _watcher = watcher
    try:
        yield
    finally:
        _watcher = None


@contextlib.contextmanager
def _calls_to(owner: Any, name: str, note: Callable[[Any], None]) -> Iterator[None]:
    """Within this context, call `note` with the first argument of each call of a function that has no event."""
    before = getattr(owner, name)

    def noting(first: Any, *others: Any, **named: Any) -> Any:
        note(first)
        return before(first, *others, **named)

    setattr(owner, name, noting)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _database_files(database: Any) -> Iterator[str]:
    """Yield the files that SQLite may read for what `sqlite3.connect` was given: a path or a URI."""
    with contextlib.suppress(TypeError):
        given = os.fsdecode(database)
        for path in (given, unquote(urlsplit(given).path)) if given.startswith("file:") else (given,):
            yield from (path, f"{path}-wal")


def _module_files() -> Iterator[str]:
    """Yield the files of all modules that are loaded, without Python's own."""
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or getattr(module, "__file__", None)
        if isinstance(origin, str) and origin.startswith(os.sep) and not _is_python(origin):
            yield _file_of(origin)


def _file_of(origin: str) -> str:
    """Return the file that a module comes from: its own, or the archive which that one is in."""
    found = origin
    while found != os.sep and not os.path.isfile(found):  # noqa: PTH113 - thousands of files
        found = os.path.dirname(found)  # noqa: PTH120
    return origin if found == os.sep else found


_STANDARD = tuple({f"{sysconfig.get_paths()[name]}/" for name in ("stdlib", "platstdlib")})


def _is_installed(path: str) -> bool:
    return any(f"/{name}/" in path for name in _INSTALLED)


def _is_python(path: str) -> bool:
    """Whether a file belongs to Python itself, whose version is a fact."""
    return path.startswith(_STANDARD) and not _is_installed(path)


def _is_library(path: str) -> bool:
    """Whether a file belongs to Python or to an installed package, whose modules are compared."""
    return _is_installed(f"{path}/") or f"{path}/".startswith(_STANDARD)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - thousands of files
    except OSError:
        return None


def _size_and_time(path: str) -> tuple[int, int]:
    """Return size and modification time of a file; zeros if there is none."""
    found = _stat(path)
    return (0, 0) if found is None else (found.st_size, found.st_mtime_ns)


def _digest(path: str) -> str | None:
    """Return a digest of a file's content; of a large file, its size and time; None if it cannot be read."""
    found = _stat(path)
    if found is None:
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGE:
        return f"{stat.S_IFMT(found.st_mode)} {found.st_size} {found.st_mtime_ns} {found.st_ino}"
    try:
        return hashlib.sha256(read_received(Path(path), LARGE, through_links=True)).hexdigest()
    except OSError:
        return None


def _names(path: str, *, modules: bool = False) -> str:
    """Return a digest of the names in a directory. modules: of those that Python may import."""
    names = sorted(each.name for each in _children(Path(path)))
    if modules:
        names = [name for name in names if name.partition(".")[0].isidentifier() and _may_be_module(name)]
    return hashlib.sha256("\0".join(names).encode(errors="surrogatepass")).hexdigest()


def _may_be_module(name: str) -> bool:
    return "." not in name or name.endswith((".py", ".so", ".pyc"))


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
