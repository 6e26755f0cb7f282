"""`recovery warmup`."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from recovery.base.printable import one_line
from recovery.cli.common import format_size, json_option, print_json, say
from recovery.cli.option import option


@click.command()
@option(
    "--remove", is_flag=True, help="Remove the files for all versions of Java and Spark, also those that runs left."
)
@json_option
def warmup(remove: bool, as_json: bool) -> None:
    """Make Spark start in half the time. Call this command once after installing, or when you build a container image.

    The command runs small flows, and stores the Java classes that they needed in one file of some 200 MB. Every later
    run maps the classes from that file. With Java 25 or newer, the file also has what Java learnt about them, so the
    first minutes are faster. Takes one to two minutes. Call this command again after an update of Java or Spark.
    """
    from recovery.spark.jvm.cache import make_archive, remove_archives
    from recovery.spark.jvm.java import java_home
    from recovery.spark.jvm.session import prepare_environment

    if remove:
        removed = remove_archives()
        if as_json:
            print_json({"removed": [str(path) for path in removed]})
        else:
            say(
                "".join(f"Removed {one_line(path)}\n" for path in removed) or "There is nothing to remove.",
                end="" if removed else "\n",
            )
        return
    prepare_environment()
    path = make_archive(java_home(), (lambda _: None) if as_json else _telling())
    size_bytes = path.stat().st_size
    if as_json:
        print_json({"path": str(path), "size_bytes": size_bytes})
    else:
        say(f"Made {one_line(path)}, {format_size(size_bytes)}. Runs use it from now on.")


def _telling() -> Callable[[str], None]:
    """Return a function that reports each step of the work, with the time since the first."""
    began = time.monotonic()
    return lambda doing: say(f"{time.monotonic() - began:5.0f} s  {doing}")
