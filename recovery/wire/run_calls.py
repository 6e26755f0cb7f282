"""The owner's end of a connection of a run or look: it reads one call, executes it and answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from recovery.errors import RecoveryError
from recovery.wire import calls, messages
from recovery.wire.answers import Answers
from recovery.wire.frames import VALUE_BYTES, Kind, WireError
from recovery.wire.service import RunConnection


def serve_call(answers: Answers, run: RunConnection, explain: messages.Explain, log: Callable[[str], None]) -> None:
    """Wait for a call and answer it. explain, log: see `messages.as_typed`. Raises OSError and WireError."""
    kind, body = answers.channel.message(VALUE_BYTES, idle=True)
    if kind != Kind.CALL:
        raise WireError(f"a message of kind {kind} instead of a call")
    name, arguments = calls.read_call(body)
    is_stream = calls.verb(name).is_stream
    try:
        with answers.working():
            result = _done(partial(getattr(run, name), *arguments), explain, log)
            if is_stream:
                with contextlib.closing(result):
                    while (some := _done(partial(next, result, None), explain, log)) is not None:
                        answers.send(Kind.STATES, calls.encode(some))
    except RecoveryError as error:
        answers.refuse(error)
        return
    answers.send(Kind.ANSWER, calls.encode(None if is_stream else result))


def _done(work: Callable[[], Any], explain: messages.Explain, log: Callable[[str], None]) -> Any:
    """Execute a part of a call. Raises typed errors only, so that none is taken for an error of the connection."""
    try:
        return work()
    except RecoveryError:
        raise
    except Exception as error:
        raise messages.as_typed(error, explain, log) from error
