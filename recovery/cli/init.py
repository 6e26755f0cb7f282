"""`recovery init DIR N`."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.base.printable import one_line
from recovery.base.wording import counted
from recovery.cli.common import DIRECTORY, json_option, print_json, say, umask_option
from recovery.cli.owners import receiving_options
from recovery.cli.restore_to_owners import new_store
from recovery.storage.initialize import init_partitions
from recovery.storage.store import OwnerAccess


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
    with new_store(directory, access) as new:
        paths = init_partitions(new.made, count, umask=umask)
        by_owner = new.bring(count, umask=umask, quiet=True)
    facts = by_owner.facts()
    if as_json:
        names = list(facts["owners"]) if facts else [str(path) for path in paths]
        print_json({"directory": str(directory), "partitions": names, **facts})
        return
    created = f"Created {counted(count, 'recovery partition')}"
    if facts:
        say(f"{created} at {counted(len(access.owners), 'owner')}:\n{by_owner.text()}")
    else:
        say(f"{created} in {one_line(directory)}: {paths[0].name}{f' … {paths[-1].name}' if count > 1 else ''}")
    say(f"Next: python -m recovery run flow.py -r {one_line(directory)} -s 10s{' --owner …' if facts else ''}")
