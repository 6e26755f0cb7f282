"""`recovery import`: the group of its commands, one for each tool."""

from __future__ import annotations

import click

from recovery.cli.common import Summaries
from recovery.cli.import_bytewax import bytewax


@click.group(name="import", cls=Summaries)
def import_group() -> None:
    """Take over the recovery directory of another tool."""


import_group.add_command(bytewax)
