"""Asking owners for their facts."""

from __future__ import annotations

import time
from collections.abc import Sequence

from recovery.base.clock import Clock
from recovery.base.threads import each
from recovery.planning.owner_facts import SeenOwner
from recovery.wire.calls import OwnerCalls
from recovery.wire.run_client import Owner

AT_ONCE = 16


def seen(owner: Owner, clock: Clock) -> SeenOwner:
    """Ask an owner for its facts. Raises what `Owner.ask` raises."""
    # The first call connects, which would count as a slow answer.
    owner.ask(OwnerCalls.serving)
    began_s = time.monotonic()
    said = owner.ask(OwnerCalls.serving)
    return SeenOwner.of(owner.location, said.holder, said.facts, time.monotonic() - began_s, clock.wall_ms())


def seen_owners(owners: Sequence[Owner], clock: Clock) -> list[SeenOwner]:
    """Ask owners for their facts, several at a time."""
    return each(lambda owner: seen(owner, clock), owners, at_once=AT_ONCE, name="owner")
