"""A partition that is in use is opened by SQLite alone: closing any descriptor of a file drops all locks that the
process has on it."""

from __future__ import annotations

import json

from tests.stores import run_python

# SQLite opens files in C, which raises no audit event; whatever Python opens does.
WORK = """
import contextlib, json, os, sys
from pathlib import Path

from click.testing import CliRunner
from recovery import StateManager
from recovery.cli import main
from recovery.storage.scan import scan
from tests.faults.minirun import MiniRun, totals, states

directory, dest = Path(sys.argv[1]), Path(sys.argv[2])
watched, opened, doing = set(), [], ["nothing"]

def watch(event, arguments):
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    # By what it leads to: through a link the locks are dropped just as well.
    for name in sorted(watched):
        with contextlib.suppress(OSError, ValueError):
            if os.path.samefile(arguments[0], directory / name):
                opened.append([doing[0], name])

def look():
    watched.update(path.name for path in directory.glob("part-*"))

def call(*arguments):
    look()
    doing[0] = " ".join(map(str, arguments))
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == 0, (arguments, result.output, result.exception)

look()
sys.addaudithook(watch)
for number in range(2):
    doing[0] = "start"
    run = MiniRun(directory, 1, backup_interval="1h")
    for _ in range(3):
        doing[0] = "apply and close"
        run.batch()
        look()
    StateManager(directory).set_hwm("orders", number)
    run.closer.wait()
    call("verify", directory)
    call("status", directory)
    call("plan", directory)
    call("runs", "list", directory)
    call("hwm", "list", directory)
    call("state", "list", directory)
    call("state", "list", directory, "--step", "totals")
    call("advise", directory)
    call("report", directory, "-o", dest / f"report-{number}.html")
    call("backup", directory, dest / "backup", "--verify")
    call("backup", directory, dest / "backup")
    doing[0] = "end"
    run.batch()
    run.finish()
    call("gc", directory, "-b", "0")
assert states(directory) == totals(1, 8)

unwanted = list(opened)
doing[0] = "proof"
(dest / "link").symlink_to(directory / "part-1.sqlite3")
for path in (directory / "part-0.sqlite3", dest / "link"):
    os.close(os.open(path, os.O_RDONLY))
print(json.dumps({"unwanted": unwanted, "proof": opened[len(unwanted):], "watched": sorted(watched)}))
"""


def test_only_sqlite_opens_a_partition_in_use(store_dir, tmp_path):
    """Neither a run, from start to end, nor any command beside it; nor the log or its index."""
    done = run_python(WORK, store_dir, tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["proof"] == [["proof", "part-0.sqlite3"], ["proof", "part-1.sqlite3"]]
    names = [f"part-{number}.sqlite3{suffix}" for number in (0, 1) for suffix in ("", "-shm", "-wal")]
    assert facts["watched"] == sorted(names)
    assert facts["unwanted"] == []
