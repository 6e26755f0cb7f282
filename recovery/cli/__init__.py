"""The command line: `python -m recovery`, and `recovery` once installed. Each command has its own file."""

from __future__ import annotations

import click

from recovery.cli.advise import advise_command
from recovery.cli.backup import backup
from recovery.cli.checkpoint import checkpoint
from recovery.cli.common import Commands
from recovery.cli.demo import demo
from recovery.cli.diff import diff
from recovery.cli.drill import drill
from recovery.cli.follow import follow
from recovery.cli.fork import fork
from recovery.cli.gc import gc
from recovery.cli.history import history
from recovery.cli.hwm import hwm
from recovery.cli.import_group import import_group
from recovery.cli.init import init
from recovery.cli.plan import plan
from recovery.cli.promote import promote
from recovery.cli.repartition import repartition_command
from recovery.cli.report import report
from recovery.cli.restore import restore
from recovery.cli.run import run
from recovery.cli.runs import runs
from recovery.cli.serve import serve
from recovery.cli.state import state
from recovery.cli.status import status
from recovery.cli.verify import verify
from recovery.cli.warmup import warmup


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="recovery")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Recovery partitions for PySpark: keyed state and input positions of a streaming job, in SQLite files.

    \b
      recovery init db/ 2                    create two partitions
      recovery run flow.py -r db/ -s 10s     run a flow; run it again to resume
      recovery status db/                    what the directory holds
    """


for command in (
    init,
    run,
    serve,
    status,
    plan,
    verify,
    history,
    diff,
    advise_command,
    report,
    gc,
    backup,
    restore,
    drill,
    follow,
    promote,
    fork,
    repartition_command,
    checkpoint,
    import_group,
    hwm,
    runs,
    state,
    warmup,
    demo,
):
    main.add_command(command)
