"""Progress of backup, restore, drill, fork and follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Step = Literal[
    "copy",
    "check",
    "store",
    "stored",
    "linked",
    "fetch",
    "fetched",
    "begun",
    "hydrated",
    "settle",
    "copied",
    "cloned",
    "applied",
    "send",
    "sent",
]


@dataclass(frozen=True, slots=True)
class FileProgress:
    """How far one step with one file has come."""

    step: Step
    name: str
    bytes_done: int
    bytes_total: int


Observer = Callable[[FileProgress], None]


def ignore(_event: FileProgress) -> None:
    """Do nothing: the default observer."""
