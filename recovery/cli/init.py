"""`recovery init DIR N`."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.common import DIRECTORY, json_option, print_json, say, umask_option
from recovery.cli.owners import receiving_options
from recovery.cli.restore_to_owners import bring
from recovery.host.scratch import scratch_directory
from recovery.storage.initialize import init_partitions
from recovery.storage.locations import OwnerAccess


@click.command()
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.argument("count", metavar="N", type=int)
@umask_option
@receiving_options
@json_option
def init(directory: Path, count: int, umask: bool, access: OwnerAccess, as_json: bool) -> None:
    """Create N recovery partitions in DIR. Makes DIR if it is missing.

    Either all partitions are created or none. Choose about one partition per core that will run the flow. To change the
    number later, use `recovery repartition`.

    With --owner, the partitions go to the owners, the same number to each; DIR is then the directory of the run. The
    command ignores RECOVERY_OWNERS.
    """
    if access.owners:
        _at_owners(directory, count, umask, access, as_json)
        return
    paths = init_partitions(directory, count, umask=umask)
    if as_json:
        print_json({"directory": str(directory), "partitions": [str(path) for path in paths]})
        return
    last = f" … {paths[-1].name}" if count > 1 else ""
    say(f"Created {counted(count, 'recovery partition')} in {one_line(directory)}: {paths[0].name}{last}")
    say(f"Next: python -m recovery run flow.py -r {one_line(directory)} -s 10s")


def _at_owners(directory: Path, count: int, umask: bool, access: OwnerAccess, as_json: bool) -> None:
    with scratch_directory("init") as scratch:
        init_partitions(scratch / "made", count)
        made = bring(scratch / "made", count, directory, access, umask=umask, quiet=True)
    if as_json:
        print_json({"directory": str(directory), "partitions": list(made.facts()["owners"]), **made.facts()})
        return
    say(f"Created {counted(count, 'recovery partition')} at {counted(len(access.owners), 'owner')}:")
    say(made.text())
    say(f"Next: python -m recovery run flow.py -r {one_line(directory)} -s 10s --owner …")
