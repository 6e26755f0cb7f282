"""`recovery serve DIR`."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.base.addresses import host_and_port
from recovery.cli.common import DIRECTORY, say
from recovery.cli.config_options import FILE
from recovery.cli.option import option
from recovery.errors import OwnerUnreachableError
from recovery.storage.store import OwnerAccess
from recovery.wire.calls import OwnerCalls

CHECK_S = 5.0


@click.command()
@click.argument("directory", metavar="[DIR]", required=False, type=DIRECTORY, envvar="RECOVERY_DIRECTORY")
@option("--at", metavar="[HOST]:PORT", envvar="RECOVERY_SERVE_AT",
        help="Where to listen; without a host, at the loopback interface. Another interface needs --tls-cert, or "
             "--insecure.")  # fmt: skip
@option("--token-file", type=FILE, required=True, envvar="RECOVERY_TOKEN_FILE",
        help="A file with a secret of at least 16 bytes, the same at all owners and for all who use them. The secret "
             "is never sent. A second line is accepted, too, [while the secret is "
             "replaced](owners.md#renewing).")  # fmt: skip
@option("--tls-cert", type=FILE, without="no TLS", help="The certificate of this host, a PEM file.")
@option("--tls-key", type=FILE, help="The key of the certificate that --tls-cert names, a PEM file.")
@option("--scratch", type=FILE, without="inside DIR", help="Where touched state is kept during a run.")
@option("--insecure", is_flag=True,
        help="Listen on another interface than loopback without TLS: states cross the network in plain "
             "text.")  # fmt: skip
@option("--metrics-at", metavar="[HOST]:PORT", envvar="RECOVERY_METRICS_AT",
        help="Serve [metrics for Prometheus](owners.md#watching) at /metrics, and /health and /ready for "
             "probes, over HTTP; without a host, at the loopback interface.")  # fmt: skip
@option("--check", metavar="HOST:PORT",
        help="Serve nothing: ask whether the owner there is ready, and whether a run has it. A probe for init systems "
             "and Kubernetes, which ends with 0, 47 (not reached, or being stopped) or 48 (another token, certificate "
             "or version).")  # fmt: skip
@option("--tls-ca", type=FILE, without="no TLS",
        help="With --check: a PEM file of certificates that verify the owner.")  # fmt: skip
def serve(
    directory: Path | None,
    at: str | None,
    token_file: Path,
    tls_cert: Path | None,
    tls_key: Path | None,
    scratch: Path | None,
    insecure: bool,
    metrics_at: str | None,
    check: str | None,
    tls_ca: Path | None,
) -> None:
    """Serve the partitions in DIR to runs on other hosts: an owner.

    Runs and commands on other hosts name this owner with --owner HOST:PORT.

    The owner serves one run at a time. On SIGTERM the owner lets that run finish the epoch that is being closed. The
    run then ends with 47, and the same command continues it once the owner is back. On SIGHUP the owner reads the token
    and the certificate again, for new connections. --check ends with 0 if the owner is
    ready, else with 47 or 48.
    """
    if check is not None:
        _check(check, OwnerAccess((check,), token_file, tls_ca))
        return
    if directory is None or at is None:
        raise click.UsageError("Give DIR and --at [HOST]:PORT, or --check HOST:PORT.")
    from recovery.owner.service import serve

    serve(
        directory,
        at,
        token_file=token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        scratch_directory=scratch,
        insecure=insecure,
        metrics_at=metrics_at,
    )


def _check(at: str, access: OwnerAccess) -> None:
    host_and_port(at)
    [owner] = access.connect(CHECK_S)
    try:
        found = owner.ask(OwnerCalls.serving)
    finally:
        owner.release()
    if found.stops:
        raise OwnerUnreachableError(f"the owner at {at} is being stopped", cause="", remedy="Wait until it is back.")
    say(f"ready, version {found.version}" + (f"; held by {found.holder}" if found.holder else ""))
