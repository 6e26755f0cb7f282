"""`recovery serve DIR…`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from recovery.base.addresses import owner_place
from recovery.cli.common import DIRECTORY, say
from recovery.cli.config_options import FILE, config_option, tls_options
from recovery.cli.option import ParsedType, option
from recovery.errors import OwnerUnreachableError
from recovery.storage.store import OwnerAccess
from recovery.wire.calls import OwnerCalls

CHECK_S = 5.0


class NamedDirectoryType(ParsedType[str]):
    """A directory, perhaps with the name under which it is served: NAME=DIR."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        DIRECTORY.convert(value, param, ctx)
        return str(value)


@click.command()
@click.argument("directories", metavar="[[NAME=]DIR]...", nargs=-1, type=NamedDirectoryType())
@option("--at", metavar="[HOST]:PORT", envvar="RECOVERY_SERVE_AT",
        help="Where to listen; without a host, at the loopback interface. Another interface needs --tls-cert, or "
             "--insecure.")  # fmt: skip
@config_option("token_file", required=True,
        help="A file with a secret of at least 16 bytes, the same at all owners and for all who use them. The secret "
             "is never sent. A second line is accepted, too, [while the secret is "
             "replaced](owners.md#renewing).")  # fmt: skip
@tls_options
@config_option("scratch_directory", type=FILE, metavar="DIR", envvar=None, without="inside each DIR",
               help="Where to keep what need not survive the run: touched state.")  # fmt: skip
@option("--insecure", is_flag=True,
        help="Listen on another interface than loopback without TLS: states cross the network in plain "
             "text.")  # fmt: skip
@option("--metrics-at", metavar="[HOST]:PORT", envvar="RECOVERY_METRICS_AT",
        help="Serve [metrics for Prometheus](owners.md#watching) at /metrics, and /health and /ready for "
             "probes, over HTTP; without a host, at the loopback interface.")  # fmt: skip
@option("--check", metavar="HOST:PORT[/NAME]",
        help="Serve nothing: ask whether the owner there is ready, and whether a run has it. A probe for init systems "
             "and Kubernetes, which ends with 0, 47 (not reached, or being stopped) or 48 (another token, certificate, "
             "version or directory).")  # fmt: skip
@config_option("tls_ca", envvar=None, without="no TLS",
               help="With --check: a PEM file of certificates that verify the owner.")  # fmt: skip
def serve(
    directories: tuple[str, ...],
    at: str | None,
    token_file: Path,
    tls_cert: Path | None,
    tls_key: Path | None,
    scratch_directory: Path | None,
    insecure: bool,
    metrics_at: str | None,
    check: str | None,
    tls_ca: Path | None,
) -> None:
    """Serve the partitions in DIR to runs on other hosts: an owner.

    Runs and commands on other hosts name this owner with --owner HOST:PORT. Of several directories, they name one with
    --owner HOST:PORT/NAME: the last part of DIR, or what stands before the = of NAME=DIR.

    The owner serves one run at a time for each directory. On SIGTERM the owner lets these runs finish the epochs that
    are being closed. The runs then end with 47, and the same commands continue them once the owner is back. On SIGHUP
    the owner reads the token and the certificate again, for new connections. --check ends with 0 if the owner is ready,
    else with 47 or 48.
    """
    if check is not None:
        _check(check, OwnerAccess((check,), token_file, tls_ca))
        return
    # The variable names one directory, whatever its characters.
    given = directories or tuple(filter(None, [os.environ.get("RECOVERY_DIRECTORY")]))
    if not given or at is None:
        raise click.UsageError("Give DIR and --at [HOST]:PORT, or --check HOST:PORT.")
    from recovery.owner.service import serve

    serve(
        directories or DIRECTORY.convert(given[0], None, None),
        at,
        token_file=token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        scratch_directory=scratch_directory,
        insecure=insecure,
        metrics_at=metrics_at,
    )


def _check(at: str, access: OwnerAccess) -> None:
    owner_place(at)
    [owner] = access.connect(CHECK_S)
    try:
        found = owner.ask(OwnerCalls.serving)
    finally:
        owner.release()
    if found.stops:
        raise OwnerUnreachableError(f"the owner at {at} is being stopped", cause="", remedy="Wait until it is back.")
    say(f"ready, version {found.version}" + (f"; held by {found.holder}" if found.holder else ""))
