"""The address of an owner, as tasks get it. The address has no secret: the task key comes with the pickled step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from recovery.base.ids import ExecutionNumber, Lease

DEADLINE_S = 60.0


class OwnerAddress(NamedTuple):
    """Where an owner is, for which execution, and how many partitions it has.

    deadline_s: how long a task tries to reach it. tls_ca_pem: the certificates of which one must have signed the
    owner's; None for a connection without TLS. directory: the name of one of several directories that the owner serves.
    """

    host: str
    port: int
    lease: Lease
    partition_count: int
    deadline_s: float = DEADLINE_S
    tls_ca_pem: str | None = None
    directory: str = ""

    @property
    def location(self) -> str:
        """Host, port and directory, as people write them."""
        return location(self.host, self.port, self.directory)

    @classmethod
    def parsed(cls, found: Mapping[str, Any]) -> OwnerAddress:
        """Return the address from the parsed JSON of `owner_address`."""
        at, _, directory = found["at"].partition("/")
        host, _, port = at.rpartition(":")
        return cls(
            host.removeprefix("[").removesuffix("]"),
            int(port),
            Lease(ExecutionNumber(found["number"]), found["id"]),
            found["count"],
            found["deadline_s"],
            found["tls_ca_pem"],
            directory,
        )


def location(host: str, port: int, directory: str = "") -> str:
    """Return "host:port", or "host:port/directory"; an IPv6 address in brackets."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{at}/{directory}" if directory else at


def owner_address(
    at: str,
    lease: Lease,
    partition_count: int,
    *,
    deadline_s: float = DEADLINE_S,
    tls_ca_pem: str | None = None,
) -> str:
    """Return the text for `recovery.storage.reach.reach`. at: `location`, where tasks reach the owner."""
    return json.dumps(
        {
            "kind": "owner",
            "at": at,
            "number": lease.number,
            "id": lease.id,
            "count": partition_count,
            "deadline_s": deadline_s,
            "tls_ca_pem": tls_ca_pem,
        }
    )
