"""State ids: the names of documents of operational state, and the glob that selects them.

An id is a text. Ids that the package makes consist of parts joined by "/". Inside a part "/" and "%" are written as %2F
and %25, so a part cannot reach into another scope:

    hwm                                      the high-water marks
    rewinds                                  the rewinds that executions made; in the recovery directory
    origin                                   the store that this one was made from; in the recovery directory
    runs/<pipeline>/<moment>-<random>        one run
    process/<namespace>/<name>               state of a process
    task/<dag>/<task>                        state of a task
    task-instance/<dag>/<task>/<run>/<map>   state of a task instance
    asset/<name, uri or id>/<asset>          state of an asset, by key

One more part, on the ids of tasks, task instances and assets, is a key in that scope.

The ids of an environment begin with "@<environment>/".
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from recovery.errors import ConfigurationError, shown
from recovery.operational.values import is_text

StateId = str
OF_STORE = frozenset({"rewinds", "origin"})
"""Documents that say what a store is and what it was asked: nobody lists, changes, exports or moves them."""


def join(*parts: str) -> StateId:
    """Return the id of these parts; different parts never give the same id. Raises ConfigurationError."""
    return "/".join(escape(part) for part in parts)


def escape(part: str) -> str:
    """Encode one part of an id; "" becomes "%". Raises ConfigurationError."""
    check(part, "name", empty=True)
    return part.replace("%", "%25").replace("/", "%2F") or "%"


def unescape(part: str) -> str:
    """Decode a part that `escape` encoded."""
    return "" if part == "%" else part.replace("%2F", "/").replace("%25", "%")


def check(text: str, what: str = "state id", *, empty: bool = False) -> str:
    """Return `text` if it can be an id or a key. Raises ConfigurationError otherwise."""
    if not isinstance(text, str) or "\0" in text or not is_text(text) or not (text or empty):
        raise ConfigurationError(
            f"{shown(text)} cannot be a {what}",
            cause="The text is empty or holds U+0000, or the value is not text.",
            remedy="Use text.",
        )
    return text


def matches(text: str, pattern: str | None) -> bool:
    """Whether a glob selects `text`: * any characters, ? one, [abc] one of these. None selects everything.

    Matching is case-sensitive, on every platform; "/" is an ordinary character.
    """
    return pattern is None or _compiled(pattern).match(text) is not None


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
