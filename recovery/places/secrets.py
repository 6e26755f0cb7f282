"""What must not be shown: keys and passwords in addresses and in the environment, which services and Java repeat."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import unquote

NAMES = re.compile(r"KEY|SECRET|TOKEN|SAS|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Matches the names of variables and settings whose values must not be shown."""
SHORTEST = 4
"""Shorter texts are parts of words: hiding them would spoil the message."""
SHORTEST_OF_VARIABLES = 6
LONGEST_MESSAGE = 600

_QUERY = re.compile(r"\?[^\s\"')]+")
PASSWORD = re.compile(r"(://[^/@:]*):([^/]*|(?!\d+/)[^@]*)@")
"""Matches a URI of Hadoop's up to the @ behind a password: the text after the name. A port is none. Hadoop accepts no
slash in a password, but such text is hidden, too."""


class Secrets:
    """The texts that must not be shown, as they are written and percent-decoded."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        found = {form for text in texts for form in (text, unquote(text)) if form}
        # The longest first: it may contain another one.
        self._texts = sorted(found, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def scrubbed(self, text: object) -> str:
        """Return a message without these texts, query strings, the values of variables that may be secret, and what a
        client appends for its developers."""
        shown = str(text).partition("Debug source:")[0].strip()
        for secret in self._texts:
            shown = shown.replace(f":{secret}@", "@")
            if len(secret) >= SHORTEST:
                shown = shown.replace(secret, "***")
        shown = _QUERY.sub("?…", shown)
        for name, value in os.environ.items():
            if len(value) >= SHORTEST_OF_VARIABLES and NAMES.search(name):
                shown = shown.replace(value, "***")
        return shown[:LONGEST_MESSAGE]


def shown_address(place: str) -> str:
    """Return an address without credentials and query, or a path: safe in messages and logs."""
    bare = place.partition("?")[0]
    if has_loose_secret(place):
        return f"{place.partition('://')[0]}://…"
    return re.sub(r"://[^/@]*:.*@", "://", bare) if "://" in bare else place


def shown_word(word: str) -> str:
    """Return a word of a command line without the password of an address in it, and without the value of a setting
    whose name says that the value is secret."""
    if word.startswith("-"):
        option, equals, value = word.partition("=")
        return f"{option}={shown_word(value)}" if equals else word
    if has_loose_secret(word):
        return shown_address(word)
    name, equals, _ = word.partition("=")
    if equals and "://" not in name and NAMES.search(name):
        return f"{name}=…"
    return PASSWORD.sub(r"\1:…@", word, count=1)


def has_loose_secret(place: str) -> bool:
    """Whether a name and a key stand before an @ that no address format accepts as their end, or before no @."""
    _, separator, rest = place.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    _, colon, key = host.partition(":")
    return bool(separator and colon) and "@" not in host and ("@" in rest or not key.isdigit())


def without_password(uri: str) -> tuple[str, Secrets]:
    """Return the URI of one of Hadoop's file systems without its password, and the password."""
    found = PASSWORD.search(uri)
    return PASSWORD.sub(r"\1@", uri, count=1), Secrets([found[2]] if found else ())
