"""`recovery demo`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from recovery.cli.common import DIRECTORY, say
from recovery.cli.option import option
from recovery.errors import AlreadyInitializedError
from recovery.host.durable import make_directories


@click.command()
@option("--directory", type=DIRECTORY, without="a temporary one",
        help="Where to put input and partitions: an empty or missing directory.")  # fmt: skip
def demo(directory: Path | None) -> None:
    """Kill a flow over real flights, resume it, and check. The input grows meanwhile. Takes about a minute."""
    from recovery.spark.jvm.installed import check_installed

    check_installed()
    from recovery.demo.story import Story

    target = Path(tempfile.mkdtemp(prefix="recovery-demo-")) if directory is None else directory
    if target.exists() and any(target.iterdir()):
        raise AlreadyInitializedError("the directory is not empty", path=target, cause="", remedy="Name another one.")
    make_directories(target)
    if not Story(target, say).tell():
        raise SystemExit(1)
