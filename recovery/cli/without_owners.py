"""Commands that read or write partitions as files only: what they say when somebody names owners."""

from __future__ import annotations

from typing import Any

import click

from recovery.errors import ConfigurationError

OPTIONS = ("--owner", "--token-file", "--tls-ca")


class WithoutOwners(click.Group):
    """A group that names the way out when a command without these options is given one."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command. Raises ConfigurationError for an option that names owners."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name not in OPTIONS or error.ctx is None:
                raise
            raise ConfigurationError(
                f"{error.ctx.command_path} does not reach partitions at owners",
                cause="It uses files of this host only.",
                remedy="For operational state, run it on the host that has part-0 (recovery plan --owner … names it). "
                "Otherwise copy all partitions to one directory, and run it there; a replicator such as Litestream "
                "backs up each host's files by itself.",
            ) from error
