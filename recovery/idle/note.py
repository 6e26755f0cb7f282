"""What a run with --if-new-input leaves for the next one: a note beside the partitions.

The note only saves work. A note that is missing, unreadable or about another state of the directory makes the next run
start Spark. No part of the partitions depends on the note, and a copy of the directory may have it or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from recovery.base.untrusted_json import Count, Moment
from recovery.base.untrusted_paths import read_received
from recovery.host.durable import modes_beside, replace

NAME = "last-input.json"
LARGEST = 16 << 20
FORM = 1
"""The form of the note. A note in another form counts as missing."""
ROUNDS = 20_000
"""Rounds of the digest of facts, among which may be secrets: a guess at them takes some milliseconds."""


class NotedSource(msgspec.Struct, frozen=True):
    """One place where the flow reads a source: the format, and those options that say what to look at."""

    format: str
    options: dict[str, str] = {}


class FlowInput(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has read, as its last execution ended.

    execution: the id of that execution. epoch, batch: the newest closed epoch, and its last micro-batch. sources: by
    the places in the plan; places: which of them are one source, as `SourcePlaces` writes it. due_ms: when the next
    timeout of a step is due, milliseconds since 1970; None: none is. group: the consumer group that shows positions in
    topics; None: none does. why_not: why only Spark knows whether there is new input; empty: this package can tell.
    """

    flow: str
    execution: str
    epoch: Count
    batch: int
    sources: list[NotedSource] = []
    places: str = "[]"
    due_ms: Moment | None = None
    group: str | None = None
    why_not: str = ""


class SealedFacts(msgspec.Struct, frozen=True):
    """Facts, of which some may be secrets, as one digest; and a byte of a digest of each, to say which one differs."""

    salt: str
    digest: str
    checks: dict[str, int]


class FlowCode(msgspec.Struct, frozen=True, kw_only=True):
    """What decided which sources the flow reads.

    facts: options, variables, versions. variables: the variables of the environment among the facts. lists_variables:
    the names of all variables are a fact, too. files: digests of the modules and files that the flow's code has read;
    None: there was no file. packages: size and modification time of the installed modules. modules, listings: digests
    of the names in directories that Python and the flow's code have looked through. why_not: what the flow's code did
    whose result may differ the next time; empty: nothing.
    """

    facts: SealedFacts
    variables: list[str] = []
    lists_variables: bool = False
    files: dict[str, str | None] = {}
    packages: dict[str, tuple[int, int]] = {}
    modules: dict[str, str] = {}
    listings: dict[str, str] = {}
    why_not: str = ""


class LastInput(msgspec.Struct, frozen=True, kw_only=True):
    """The note."""

    form: int
    input: FlowInput
    code: FlowCode


def seal(facts: Mapping[str, str], salt: str | None = None) -> SealedFacts:
    """Return facts as digests. salt: of an earlier `SealedFacts`, to compare with; None: a new one."""
    salt = secrets.token_hex(16) if salt is None else salt
    content = json.dumps(sorted(facts.items())).encode(errors="surrogatepass")
    digest = hashlib.pbkdf2_hmac("sha256", content, salt.encode(), ROUNDS).hex()
    checks = {
        name: hashlib.sha256(f"{salt}\0{name}\0{value}".encode(errors="surrogatepass")).digest()[0]
        for name, value in facts.items()
    }
    return SealedFacts(salt, digest, checks)


def difference(noted: SealedFacts, facts: Mapping[str, str]) -> str | None:
    """Return the name of a fact that differs from the sealed ones; None: none differs."""
    now = seal(facts, noted.salt)
    if now.digest == noted.digest:
        return None
    names = sorted(noted.checks.keys() | now.checks.keys())
    differing = [name for name in names if noted.checks.get(name) != now.checks.get(name)]
    return differing[0] if differing else "an option or a variable"


def write_note(directory: Path, note: LastInput) -> None:
    """Replace the note, atomically. The note only saves work, so a failure to write it raises nothing."""
    with contextlib.suppress(OSError, ValueError):
        mode = modes_beside(directory / "part-0.sqlite3").file
        replace(directory / NAME, json.dumps(msgspec.to_builtins(note)).encode(), mode=mode)


def read_note(directory: Path) -> LastInput | None:
    """Return the note; None if it is missing, unreadable or in another form."""
    try:
        # Not msgspec's own reader: a path that is no text has code points that only this one reads.
        note = msgspec.convert(json.loads(read_received(directory / NAME, LARGEST)), LastInput)
    except (OSError, ValueError, RecursionError):
        return None
    return note if note.form == FORM else None
