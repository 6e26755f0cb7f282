"""Commands that need partitions as files of this host: what they say when somebody names owners."""

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
                cause="The command uses files of this host only.",
                remedy="Bring all partitions to one directory (recovery backup DIR DEST --owner …, then recovery "
                "restore DEST NEW), and run the command there. Between runs, recovery restore NEW --owner … brings "
                "the result to owners without partitions.",
            ) from error
