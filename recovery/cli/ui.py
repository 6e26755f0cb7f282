"""`recovery ui DIR…`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from recovery.base.printable import one_line
from recovery.cli.common import DIRECTORY, tell
from recovery.cli.config_options import FILE, threshold_option, tls_options
from recovery.cli.option import option
from recovery.cli.owners import owner_options
from recovery.errors import ConfigurationError
from recovery.storage.store import OwnerAccess


@click.command()
@click.argument("directories", metavar="[DIR]...", nargs=-1, type=DIRECTORY)
@option("--place", "places", metavar="[NAME=]PLACE", multiple=True, without="only what DIR notes of its backups",
        help="Where backups of DIR are, as of [backup](#backup): the page of copies lists them. With several DIR, each "
             "place is that of the flow of this NAME.")  # fmt: skip
@option("--at", metavar="[HOST]:PORT", envvar="RECOVERY_UI_AT", default=":4050", show_default=True,
        help="Where to listen; without a host, at the loopback interface; port 0 takes a free one. Another interface "
             "needs --view-token-file, and --tls-cert or --insecure.")  # fmt: skip
@option("--view-token-file", type=FILE, envvar="RECOVERY_VIEW_TOKEN_FILE", without="all users of this machine get in",
        help="A file with a secret of at least 16 bytes, which readers show: in the form of the page, or as "
             "[Authorization: Bearer](ui.md#who-gets-in). It must not be the token of the owners. A second line is "
             "accepted, too.")  # fmt: skip
@tls_options
@option("--prefix", metavar="/PATH", default="", without="none",
        help="What all paths begin with, for [a proxy that has other pages, too](ui.md#behind-a-proxy).")  # fmt: skip
@option("--insecure", is_flag=True,
        help="Listen on another interface than loopback without TLS: the token and states cross the network in plain "
             "text.")  # fmt: skip
@threshold_option
@owner_options
def ui(
    directories: tuple[Path, ...],
    places: tuple[str, ...],
    at: str,
    view_token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    prefix: str,
    insecure: bool,
    thresholds: dict[str, str],
    access: OwnerAccess,
) -> None:
    """Serve pages that show flows while they run.

    The pages show what runs, the time line, each step's keys, copies, and what a run would resume from. The command
    only reads, also during runs, and until SIGTERM or Ctrl-C. On SIGHUP it reads the token and the certificate again.

    Several directories are a list of flows; the name of each is the last part of its path. --owner is that of one DIR.
    The command needs the extra `ui`.
    """
    # The variable names one directory, whatever its characters.
    named = os.environ.get("RECOVERY_DIRECTORY")
    given = directories or ((DIRECTORY.convert(named, None, None),) if named else ())
    if not given:
        raise click.UsageError("Give DIR, or several.")
    if len(given) > 1 and access.owners:
        raise click.UsageError("--owner is that of one DIR: start another server for each DIR with owners.")
    try:
        from recovery.ui.facts.flows import Flows, FlowSource, names_of
        from recovery.ui.server.app import application
        from recovery.ui.server.service import UiSettings, serve
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"recovery ui needs the package {error.name}",
            cause="This package was installed without its extra ui.",
            remedy="pip install 'starlette>=1.0' 'uvicorn>=0.35' 'jinja2>=3.1', or this package with the extra.",
        ) from error
    names = names_of(given)
    place = place_of(names, places)
    named_sources = zip(names, given, strict=True)
    flows = Flows([FlowSource(each, access, place.get(name), thresholds) for name, each in named_sources])
    settings = UiSettings(
        at, view_token_file, tls_cert, tls_key, prefix, insecure, access.token_file if access.owners else None
    )
    try:
        serve(lambda admission: application(flows, admission), settings, _say)
    finally:
        flows.release()


def _say(text: str) -> None:
    tell(f"recovery ui: {one_line(text)}")


def place_of(names: Sequence[str], places: Sequence[str]) -> dict[str, str]:
    """Return the place of each flow that has one. Raises UsageError."""
    found: dict[str, str] = {}
    for place in places:
        # A name may have `=` in it, too.
        name = max((each for each in names if place.startswith(f"{each}=")), key=len, default=None)
        if name is None and len(names) > 1:
            raise click.UsageError(
                f"--place {place!r:.120} is of no flow: write NAME=PLACE, with NAME one of {', '.join(names)}."
            )
        only, address = (names[0], place) if name is None else (name, place.removeprefix(f"{name}="))
        if only in found:
            raise click.UsageError(f"--place names two places of {only!r:.80}: the page lists one.")
        found[only] = address
    return found
