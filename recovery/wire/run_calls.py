"""The owner's end of a connection of a run or look: it executes the calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from recovery.wire import messages
from recovery.wire.answers import Answers, disk_errors
from recovery.wire.calls import ASKED
from recovery.wire.declared import Verb
from recovery.wire.frames import VALUE_BYTES, Kind
from recovery.wire.service import RunConnection


def serve_call(answers: Answers, run: RunConnection, explain: messages.Explain, log: Callable[[str], None]) -> None:
    """See `Answers.serve_call`."""
    answers.serve_call(ASKED, VALUE_BYTES, partial(_execute, answers, run), explain, log)


def _execute(answers: Answers, run: RunConnection, verb: Verb, arguments: tuple[Any, ...]) -> Any:
    """Return the result of a call; send the items of a stream, and return None."""
    with answers.working(), contextlib.ExitStack() as used:
        with disk_errors():
            result = getattr(used.enter_context(run.target(verb)), verb.name)(*arguments)
        if not verb.is_stream:
            return result
        used.enter_context(contextlib.closing(result))
        while True:
            with disk_errors():
                some = next(result, None)
            if some is None:
                return None
            answers.send(Kind.STATES, verb.encode(some))
