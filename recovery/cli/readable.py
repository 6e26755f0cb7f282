"""Arguments of commands that only read: a recovery directory, or a place of backups, which is read like one."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import click

from recovery.base.clock import SystemClock
from recovery.base.printable import one_line
from recovery.cli.common import DIRECTORY, tell
from recovery.cli.option import ParsedType
from recovery.cli.owners import store_to_read, to_read
from recovery.storage.store import OwnerAccess, Store


class Readable(NamedTuple):
    """A directory to read, and what to call it. is_place: it names a place of backups, and the directory is a temporary
    one."""

    path: Path
    shown: str
    is_place: bool = False

    def store(self, access: OwnerAccess) -> Store:
        """Return the store to read, with the partitions that owners have; a place of backups has all partitions."""
        return Store(self.path) if self.is_place else store_to_read(self.path, access)

    def to_read(self, access: OwnerAccess) -> Readable:
        """Return the same with all partitions as files of this host, for Spark."""
        return self if self.is_place else self._replace(path=to_read(self.path, access))


class ReadableType(ParsedType[Readable]):
    """A recovery directory, or a place of backups: an address, or a directory of manifests and objects.

    For a place of backups, the newest backup is restored into a temporary directory until the command ends, with all
    epochs that its chains hold.
    """

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Readable:
        if isinstance(value, Readable):
            return value
        from recovery.places.opening import is_place
        from recovery.places.secrets import shown_address

        if not is_place(value):
            return Readable(DIRECTORY.convert(value, param, ctx), value)
        # It imports Arrow, which other commands need not wait for.
        from recovery.backup.restore import restored_to_read

        assert ctx is not None
        restored = restored_to_read(value, SystemClock(), lambda: token_hex(4), lambda text: tell(one_line(text)))
        return Readable(ctx.with_resource(restored), shown_address(value), is_place=True)


READABLE = ReadableType()
