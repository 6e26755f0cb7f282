"""Commands that owners do not concern: what each says when somebody names owners."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from recovery.errors import ConfigurationError

OPTIONS = ("--owner", "--token-file", "--tls-ca")


class Refused(NamedTuple):
    """Why a command has no options that name owners, and what to do in its place."""

    cause: str
    remedy: str


REFUSED = {
    "drill": Refused(
        "A place of backups has the partitions of all owners, and a drill restores them into a scratch directory of "
        "this host.",
        "Leave these options out. Which owner would get which partition: recovery restore SRC --owner … --dry-run",
    ),
    "follow": Refused(
        "A place of backups has the partitions of all owners, and a standby is one directory of one host.",
        "Leave these options out. After recovery promote, recovery restore DIR NEW_DIR --owner … brings the partitions "
        "to owners.",
    ),
    "promote": Refused(
        "A standby is one directory of one host, with all partitions.",
        "Leave these options out. Afterwards recovery restore DIR NEW_DIR --owner … brings the partitions to owners.",
    ),
    "state migrate": Refused(
        "Its two places are directories of this host or state backends.",
        "In its place: recovery state export DIR --owner …, and recovery state import DIR FILE.",
    ),
}
"""By the words of the command."""
OTHERS = Refused("The command uses no partitions at owners.", "Leave these options out.")


class WithoutOwners(click.Group):
    """A group that says why a command has no option that names owners."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke the command. Raises ConfigurationError for an option that names owners."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.option_name not in OPTIONS or error.ctx is None:
                raise
            path = error.ctx.command_path
            words = path.removeprefix(ctx.command_path).strip()
            refused = REFUSED.get(words, OTHERS)
            raise ConfigurationError(
                f"{path} does not reach owners", cause=refused.cause, remedy=refused.remedy
            ) from error
